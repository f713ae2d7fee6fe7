//! From values under their names to the options of each layer. Adds no option of its own. Invariant: without any
//! input the layers get their own defaults.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::gather::{Input, Origin, Values};
use super::source::{self, Source};
use super::table::OPTIONS;
use super::value::Value;
use super::{Error, Program};
use crate::budget::Allowance;
use crate::handover::Meeting;
use crate::reader::ReadMode;
use crate::spill::Bounds;
use crate::store::{CredentialOptions, Dialect, Exit, KeyFiles, Signature, Sse, StaticKeys, WebIdentity};
use crate::units::ByteSize;
use crate::{admin, budget, fuse, logging, reader, store, vfs, writer};

/// Where the files appear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountTarget {
    /// A directory that is mounted over.
    Directory(PathBuf),
    /// A descriptor of /dev/fuse that a privileged parent has mounted already.
    Fd(RawFd),
}

impl std::fmt::Display for MountTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Fd(fd) => write!(f, "/dev/fd/{fd}"),
        }
    }
}

/// Everything a mount needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    pub source: Source,
    pub mountpoint: MountTarget,
    pub store: store::Options,
    pub reader: reader::Options,
    pub budget: budget::Options,
    pub vfs: vfs::Options,
    pub fuse: fuse::Options,
    pub admin: admin::Options,
    pub writer: writer::Options,
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// How long writers are waited for before the mount ends.
    pub drain_timeout: Duration,
    pub logging: logging::Options,
    /// Stay attached to the terminal.
    pub foreground: bool,
    /// A process holds the mount and starts the daemon anew when it dies.
    pub supervised: bool,
    /// A file that exists while the mount answers.
    pub ready_file: Option<PathBuf>,
    /// SIGTERM ends nothing.
    pub ignores_sigterm: bool,
    /// What went on although it may surprise, one line each: logged once, when the log is there.
    pub notes: Vec<String>,
}

/// A bucket and how it is reached, for commands that mount nothing.
#[derive(Clone, Debug)]
pub struct Place {
    pub source: Source,
    pub store: store::Options,
    /// The directory for chunks and staged writes, where one was named.
    pub spill_dir: Option<PathBuf>,
}

impl Place {
    /// The place that a person named.
    ///
    /// # Errors
    /// The first thing in it that cannot be used.
    pub fn gather(input: &Input) -> Result<Self, Error> {
        let mut values = Values::gather(input)?;
        let source = values.source(&input.environment)?;
        values.ask_environment_of(source.dialect, &input.environment);
        values.default_signature();
        Ok(Self { store: values.store(&source)?, spill_dir: values.path("spill-dir"), source })
    }
}

/// A bucket and the disk that mounts of it read from, for filling that without a mount.
#[derive(Clone, Debug)]
pub struct Preload {
    pub source: Source,
    pub store: store::Options,
    pub reader: reader::Options,
    pub budget: budget::Options,
    pub vfs: vfs::Options,
    /// The directory.
    pub directory: PathBuf,
    pub bounds: Bounds,
}

impl Preload {
    /// The bucket that a person named, and the disk.
    ///
    /// # Errors
    /// The first thing in it that cannot be used, or no disk.
    pub fn gather(input: &Input) -> Result<Self, Error> {
        let mut values = Values::gather(input)?;
        let source = values.source(&input.environment)?;
        values.ask_environment_of(source.dialect, &input.environment);
        values.default_signature();
        let disk = values.writer().staging;
        let directory = disk.dir.ok_or_else(|| {
            Error::Conflict(
                "without a mount it has to be said which disk: add --spill-dir with the directory that mounts of the bucket read from"
                    .into(),
            )
        })?;
        Ok(Self {
            store: values.store(&source)?,
            reader: reader::Options { mode: ReadMode::Cached, ..values.reader() },
            budget: values.budget(),
            // What is asked for lies below the bucket, file or directory.
            vfs: vfs::Options { prefix: String::new(), ..values.vfs(&source) },
            directory,
            bounds: Bounds { max: disk.max, ensure_free: disk.ensure_free, free_ratio: disk.free_ratio },
            source,
        })
    }
}

impl Settings {
    /// Settings from everything a person gave.
    ///
    /// # Errors
    /// The first thing in it that cannot be used.
    pub fn gather(input: &Input) -> Result<Self, Error> {
        Self::from_values(&mut Values::gather(input)?, &input.environment)
    }

    /// Settings from gathered values. `environment` is asked for the stores' own variables, which rank below
    /// everything that was said to windlass itself; what it adds is added to the values, with its origin.
    ///
    /// # Errors
    /// When values do not go together, or source or mount point are missing.
    pub fn from_values(values: &mut Values, environment: &[(String, String)]) -> Result<Self, Error> {
        let source = values.source(environment)?;
        values.ask_environment_of(source.dialect, environment);
        values.default_signature();
        let origin = values.get("source").map_or(Origin::Default, |(_, origin)| origin.clone());
        values.put("source", Value::Text(source.to_string()), origin);
        let mountpoint = target(values.path("mountpoint").ok_or(Error::Missing("MOUNTPOINT"))?)?;
        let settings = Self {
            store: values.store(&source)?,
            reader: values.reader(),
            budget: values.budget(),
            vfs: values.vfs(&source),
            fuse: values.fuse(),
            admin: values.admin(environment)?,
            writer: values.writer(),
            read_only: values.flag("read-only"),
            drain_timeout: values.time("drain-timeout"),
            logging: values.logging()?,
            foreground: values.is_foreground(),
            supervised: values.flag("supervised"),
            ready_file: values.path("ready-file"),
            ignores_sigterm: values.text("on-sigterm").as_deref() == Some("ignore"),
            notes: values.all_notes(),
            source,
            mountpoint,
        };
        settings.check(values.program)?;
        Ok(settings)
    }

    fn check(&self, program: Program) -> Result<(), Error> {
        let conflict = |text: String| Err(Error::Conflict(text));
        if self.fuse.allow_other && self.fuse.allow_root {
            return conflict("allow-other and allow-root exclude each other: allow-other includes root".into());
        }
        if self.supervised && self.fuse.auto_unmount {
            return conflict("supervised keeps the mount when the daemon dies, auto-unmount takes it away: choose one".into());
        }
        if self.supervised && matches!(self.mountpoint, MountTarget::Fd(_)) {
            return conflict("supervised needs a directory: whoever passes a descriptor keeps the mount".into());
        }
        // fusermount3 runs as root and has to look at the mount before it takes it away.
        if self.fuse.auto_unmount && !(self.fuse.allow_other || self.fuse.allow_root) {
            return conflict("auto-unmount is done by root, who must be let in: add allow-root or allow-other".into());
        }
        // The least a reader can work with: the chunk in demand and the one that follows.
        if let Some(limit) = self.budget.memory_limit.filter(|limit| limit.as_u64() < 2 * self.reader.chunk_size.as_u64()) {
            let chunk = self.reader.chunk_size;
            return conflict(format!("memory-limit={limit} does not hold two chunks of {chunk}: raise it or lower chunk-size"));
        }
        if self.reader.mode == ReadMode::Hybrid(ByteSize::default()) {
            return conflict("read-mode=hybrid keeps the first hybrid-threshold of each object on the disk: say how much".into());
        }
        if self.reader.mode != ReadMode::Direct && self.writer.staging.dir.is_none() && program == Program::Native {
            return conflict("read-mode=cached and hybrid keep what is read on a disk: say where with spill-dir".into());
        }
        // A part that is being filled and one that is sent, beside what readers need.
        let part = self.writer.part_size;
        if !self.read_only
            && let Some(limit) = self.budget.memory_limit.filter(|limit| limit.as_u64() < 2 * part.as_u64())
        {
            return conflict(format!(
                "memory-limit={limit} does not hold two parts of {part}: raise it, lower upload-part-size, or mount --read-only"
            ));
        }
        if self.store.dialect == Dialect::S3 && self.store.signature == Signature::V1 {
            return conflict("signature=v1 exists for oss:// only; S3 knows v4 and none".into());
        }
        if self.store.dialect == Dialect::Oss && self.store.endpoint.is_none() && self.store.region.is_none() {
            return conflict(format!("{}: add --endpoint, for example https://oss-cn-hangzhou.aliyuncs.com, or --region", self.source));
        }
        Ok(())
    }
}

impl Values {
    /// Every option as a line of a TOML file, with the origin as a comment. What is not set is a
    /// comment altogether, so that the text can be used as a file.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut group = "";
        for spec in OPTIONS {
            if spec.group != group {
                group = spec.group;
                text += &format!("\n# {group}\n");
            }
            text += &match self.get(spec.name) {
                // A mask is not the value: as a line it would be taken for the secret.
                Some((value @ Value::Secret(_), origin)) => format!("# {} = {}  # {origin}\n", spec.name, value.to_toml()),
                Some((value, origin)) => format!("{} = {}  # {origin}\n", spec.name, value.to_toml()),
                None => format!("# {} =  # not set\n", spec.name),
            };
        }
        text.trim_start().to_owned()
    }

    /// Where a mount is handed over, and how long is waited for that; none: source and mount point say what is mounted.
    ///
    /// # Errors
    /// When it is no place, or the mount point is named too.
    pub fn meeting(&self) -> Result<Option<(Meeting, Duration)>, Error> {
        let Some(text) = self.text("fd-socket") else { return Ok(None) };
        if self.get("mountpoint").is_some() {
            return Err(Error::Conflict("fd-socket stands in place of MOUNTPOINT: give one of them".into()));
        }
        let meeting = text.parse().map_err(|reason| self.refused("fd-socket", text, reason))?;
        Ok(Some((meeting, self.time("fd-socket-timeout"))))
    }

    /// Where pages are served over HTTP, if anywhere.
    ///
    /// # Errors
    /// When it is no place.
    pub fn pages(&self) -> Result<Option<admin::Listen>, Error> {
        self.text("metrics-listen").map(|text| text.parse().map_err(|reason| self.refused("metrics-listen", text, reason))).transpose()
    }

    /// Whether it stays attached.
    pub fn is_foreground(&self) -> bool {
        self.flag("foreground")
    }

    fn refused(&self, word: &str, text: String, reason: String) -> Error {
        let origin = self.get(word).map_or(Origin::Default, |(_, origin)| origin.clone());
        Error::Value { word: word.into(), text, reason, origin }
    }

    fn source(&self, environment: &[(String, String)]) -> Result<Source, Error> {
        let text = match (self.text("source"), self.text("bucket")) {
            (Some(source), _) => source,
            (None, Some(bucket)) => format!("{bucket}:/{}", self.text("prefix").unwrap_or_default().trim_start_matches('/')),
            (None, None) => return Err(Error::Missing("SOURCE")),
        };
        let endpoint = self.text("endpoint").or_else(|| variable(environment, &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]).map(|v| v.1));
        Source::parse(&text, endpoint.as_deref(), self.program)
    }

    fn ask_environment_of(&mut self, dialect: Dialect, environment: &[(String, String)]) {
        let (endpoints, regions): (&[_], &[_]) = match dialect {
            Dialect::S3 => (&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], &["AWS_REGION", "AWS_DEFAULT_REGION"]),
            Dialect::Oss => (&["OSS_ENDPOINT"], &["OSS_REGION"]),
        };
        // An endpoint that was given to us is not to be paired with the region of another one, but S3 needs some region.
        for (option, names) in [("endpoint", endpoints), ("region", regions)] {
            if self.get(option).is_none()
                && let Some((name, text)) = variable(environment, names)
            {
                self.put(option, Value::Text(text), Origin::Environment(name));
            }
        }
    }

    /// ossfs2 signs with V4 when it knows the region, else with V1.
    fn default_signature(&mut self) {
        let untouched = self.get("signature").is_some_and(|(_, origin)| *origin == Origin::Default);
        if self.program == Program::Ossfs2 && untouched && self.get("region").is_none() {
            self.put("signature", Value::Text("v1".into()), Origin::DefaultOf(Program::Ossfs2));
        }
    }

    fn store(&self, source: &Source) -> Result<store::Options, Error> {
        Ok(store::Options {
            dialect: source.dialect,
            bucket: source.bucket.clone(),
            endpoint: self.endpoint("endpoint", source)?,
            read_endpoint: self.endpoint("read-endpoint", source)?,
            region: self.text("region"),
            path_style: self.flag_or_auto("path-style"),
            signature: match self.text("signature").as_deref() {
                Some("v1") => Signature::V1,
                Some("none") => Signature::None,
                _ => Signature::V4,
            },
            credentials: self.credentials()?,
            hedge: self.flag("hedge"),
            retries: self.count("retries").and_then(|n| n.try_into().ok()).unwrap_or_default(),
            connect_timeout: self.time("connect-timeout"),
            request_timeout: self.time("request-timeout"),
            stall_timeout: self.time("stall-timeout"),
            redirect_hosts: self.redirect_hosts()?,
            exits: self.exits()?,
            sse: self.sse()?.0,
            sse_key_id: self.sse()?.1,
            storage_class: self.text("storage-class"),
            acl: self.text("acl"),
            requester_pays: self.flag("requester-pays"),
        })
    }

    fn endpoint(&self, word: &str, source: &Source) -> Result<Option<String>, Error> {
        let Some(text) = self.text(word) else { return Ok(None) };
        source::endpoint(&text, &source.bucket).map(Some).map_err(|reason| {
            let shown = text.rsplit_once('@').map_or(text.as_str(), |(_, host)| host).to_owned();
            let origin = self.get(word).map_or(Origin::Default, |(_, origin)| origin.clone());
            Error::Value { word: word.into(), text: shown, reason, origin }
        })
    }

    /// How the store encrypts, and with which key. `kmsid:KEY` is how ossfs and s3fs write both.
    fn sse(&self) -> Result<(Sse, Option<String>), Error> {
        let key = self.text("sse-key-id");
        let Some(text) = self.text("sse") else {
            return match key {
                None => Ok((Sse::None, None)),
                Some(_) => Err(Error::Conflict("sse-key-id goes with sse=kms".into())),
            };
        };
        let lower = text.to_ascii_lowercase();
        let sse = match lower.as_str() {
            "on" | "true" | "1" | "aes256" => Sse::Aes256,
            "off" | "false" | "none" => Sse::None,
            "kms" | "aws:kms" | "kmsid" => Sse::Kms,
            _ if lower.starts_with("kmsid:") || lower.starts_with("k:") => Sse::Kms,
            _ => {
                let origin = self.get("sse").map_or(Origin::Default, |(_, origin)| origin.clone());
                return Err(Error::Value { word: "sse".into(), text, reason: "must be on (AES256), kms, kmsid:KEY or off".into(), origin });
            }
        };
        let inside = text.split_once(':').filter(|_| lower.starts_with("kmsid:") || lower.starts_with("k:")).map(|(_, key)| key.to_owned());
        match (sse, inside.or(key)) {
            (Sse::Kms, key) => Ok((sse, key)),
            (_, None) => Ok((sse, None)),
            (_, Some(_)) => Err(Error::Conflict("sse-key-id goes with sse=kms".into())),
        }
    }

    fn exits(&self) -> Result<Vec<Exit>, Error> {
        let Some(list) = self.text("bind") else { return Ok(Vec::new()) };
        let exits: Result<_, String> = list.split([',', ' ', ';']).filter(|word| !word.is_empty()).map(str::parse).collect();
        exits.map_err(|reason| {
            let origin = self.get("bind").map_or(Origin::Default, |(_, origin)| origin.clone());
            Error::Value { word: "bind".into(), text: list.clone(), reason, origin }
        })
    }

    fn redirect_hosts(&self) -> Result<Vec<String>, Error> {
        let Some(list) = self.text("redirect-hosts") else { return Ok(Vec::new()) };
        let hosts: Vec<_> = list.split([',', ' ']).filter(|host| !host.is_empty()).map(str::to_ascii_lowercase).collect();
        let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']'));
        match hosts.iter().find(|host| host.contains(odd) || host.trim_matches(['.', ':']).is_empty()) {
            None => Ok(hosts),
            Some(host) => {
                let reason = format!("\"{host}\" is not host, host:port or .domain (without http:// and without a path)");
                let origin = self.get("redirect-hosts").map_or(Origin::Default, |(_, origin)| origin.clone());
                Err(Error::Value { word: "redirect-hosts".into(), text: list, reason, origin })
            }
        }
    }

    fn credentials(&self) -> Result<CredentialOptions, Error> {
        let keys = match (self.text("access-key-id"), self.text("access-key-secret")) {
            (Some(id), Some(secret)) => Some(StaticKeys { id, secret, token: self.text("session-token") }),
            (None, None) => None,
            _ => return Err(Error::Conflict("access-key-id and access-key-secret go together: one of them is missing".into())),
        };
        let key_files = match (self.path("access-key-id-file"), self.path("access-key-secret-file"), self.path("session-token-file")) {
            (Some(id), Some(secret), token) => Some(KeyFiles { id, secret, token }),
            (None, None, None) => None,
            _ => return Err(Error::Conflict("access-key-id-file and access-key-secret-file go together: one of them is missing".into())),
        };
        let web_identity = WebIdentity {
            role_arn: self.text("role-arn"),
            provider_arn: self.text("oidc-provider-arn"),
            token_file: self.path("oidc-token-file"),
            session_name: self.text("role-session-name"),
            sts_endpoint: self.text("sts-endpoint"),
            then_role_arn: self.text("assume-role-arn"),
            external_id: self.text("assume-role-external-id"),
        };
        Ok(CredentialOptions {
            keys,
            key_files,
            web_identity: Some(web_identity).filter(|identity| *identity != WebIdentity::default()),
            profile: self.text("profile"),
            passwd_file: self.path("passwd-file"),
            process: self.text("credential-process"),
            // ossfs takes the whole address of the metadata service, whose last part is the role.
            ram_role: self.text("ram-role").map(|role| role.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()),
        })
    }

    /// The default of another program counts only where there is so much.
    fn budget(&self) -> budget::Options {
        let said = self.size("memory-limit");
        let is_default = matches!(self.get("memory-limit"), Some((_, Origin::DefaultOf(_))));
        let memory_limit = if is_default { said.map(|limit| limit.min(budget::default_limit(Path::new("/")))) } else { said };
        budget::Options { memory_limit }
    }

    /// What may surprise about the memory that was asked for.
    fn too_much_memory(&self) -> Option<String> {
        let limit = self.budget().memory_limit?;
        let Allowance { bytes, by } = budget::available(Path::new("/")).filter(|left| left.bytes / 2 < limit.as_u64())?;
        let left = ByteSize::mib(bytes >> 20);
        Some(format!("memory-limit={limit} is more than half of the {left} that {by} leaves: the kernel may end the mount when it is used"))
    }

    fn reader(&self) -> reader::Options {
        let defaults = reader::Options::default();
        let small = |name| self.count(name).map(|n| u32::try_from(n).expect("the table bounds it"));
        reader::Options {
            chunk_size: self.size("chunk-size").unwrap_or(defaults.chunk_size),
            prefetch_chunks: small("prefetch-chunks").map_or(reader::PrefetchChunks::Auto, reader::PrefetchChunks::Fixed),
            backward_chunks: small("backward-chunks").unwrap_or(defaults.backward_chunks),
            mode: self.read_mode(),
            prefetch_concurrency: self.count("prefetch-concurrency").map(|n| usize::try_from(n).expect("the table bounds it")),
        }
    }

    fn read_mode(&self) -> ReadMode {
        let threshold = self.size("hybrid-threshold").filter(|size| size.as_u64() > 0);
        match (self.text("read-mode").as_deref(), threshold) {
            (Some("cached"), _) => ReadMode::Cached,
            // ossfs says direct_read and how much of a file is kept nevertheless.
            (_, Some(threshold)) => ReadMode::Hybrid(threshold),
            (Some("hybrid"), None) => ReadMode::Hybrid(ByteSize::default()),
            _ => ReadMode::Direct,
        }
    }

    fn vfs(&self, source: &Source) -> vfs::Options {
        let id = |name, own: u32| self.count(name).map_or(own, |n| u32::try_from(n).expect("the table bounds it"));
        vfs::Options {
            prefix: source.prefix.clone(),
            stat_cache_size: self.count("stat-cache-size").unwrap_or_default(),
            stat_cache_ttl: self.time("stat-cache-ttl"),
            negative_ttl: self.time("negative-ttl"),
            readdir_optimize: self.flag("readdir-optimize"),
            posix_attributes: self.flag("posix-attributes"),
            rename_limit: usize::try_from(self.count("rename-limit").unwrap_or(u64::MAX)).unwrap_or(usize::MAX),
            uid: id("uid", rustix::process::getuid().as_raw()),
            gid: id("gid", rustix::process::getgid().as_raw()),
            file_mode: self.mode("file-mode"),
            dir_mode: self.mode("dir-mode"),
            umask: self.mode("umask"),
        }
    }

    fn writer(&self) -> writer::Options {
        let defaults = writer::Options::default();
        let concurrency =
            self.count("upload-concurrency").map_or(defaults.concurrency, |n| usize::try_from(n).expect("the table bounds it"));
        writer::Options {
            part_size: self.size("upload-part-size").unwrap_or(defaults.part_size),
            concurrency,
            total_concurrency: defaults.total_concurrency.max(concurrency),
            staging: writer::staging::Options {
                dir: self.path("spill-dir"),
                max: self.size("spill-max").unwrap_or_default(),
                ensure_free: self.size("ensure-diskfree").unwrap_or_default(),
                free_ratio: self.count("free-space-ratio").map_or(0, |n| u8::try_from(n).expect("the table bounds it")),
            },
            ..defaults
        }
    }

    fn admin(&self, environment: &[(String, String)]) -> Result<admin::Options, Error> {
        let directories = socket_directories(rustix::process::geteuid().as_raw(), environment);
        let files = self.text("metrics-dir").map(|text| match text.as_str() {
            "auto" => admin::MetricsDir::OfTheDriver,
            path => admin::MetricsDir::At(std::path::absolute(path).unwrap_or_else(|_| path.into())),
        });
        Ok(admin::Options { directories, socket: self.path("control-socket"), metrics: self.pages()?, files })
    }

    fn fuse(&self) -> fuse::Options {
        let defaults = fuse::Options::default();
        fuse::Options {
            allow_other: self.flag("allow-other"),
            allow_root: self.flag("allow-root"),
            auto_unmount: self.flag("auto-unmount"),
            nonempty: self.flag("nonempty"),
            max_readahead: self
                .size("max-readahead")
                .map_or(defaults.max_readahead, |size| u32::try_from(size.as_u64()).expect("the table bounds it")),
            mount_flags: self.mount_flags.clone(),
        }
    }

    fn logging(&self) -> Result<logging::Options, Error> {
        let level = self.text("log-level").unwrap_or_else(|| logging::Options::default().level);
        logging::check_level(&level).map_err(|reason| {
            let origin = self.get("log-level").map_or(Origin::Default, |(_, origin)| origin.clone());
            Error::Value { word: "log-level".into(), text: level.clone(), reason, origin }
        })?;
        let json = self.text("log-format").as_deref() == Some("json");
        Ok(logging::Options {
            level,
            format: if json { logging::Format::Json } else { logging::Format::Text },
            file: self.path("log-file"),
        })
    }

    fn all_notes(&self) -> Vec<String> {
        self.notes.iter().cloned().chain(self.too_much_memory()).collect()
    }
}

/// Where the control sockets of a user's mounts may lie, as the environment says.
pub fn socket_directories(uid: u32, environment: &[(String, String)]) -> Vec<PathBuf> {
    let runtime = environment.iter().find(|(name, _)| name == "XDG_RUNTIME_DIR").map(|(_, path)| PathBuf::from(path));
    admin::directories(uid, runtime.as_deref())
}

fn target(path: PathBuf) -> Result<MountTarget, Error> {
    let Ok(number) = path.strip_prefix("/dev/fd") else { return Ok(MountTarget::Directory(path)) };
    let fd = number.to_str().and_then(|n| n.parse::<RawFd>().ok()).filter(|fd| *fd > 2);
    fd.map(MountTarget::Fd).ok_or(Error::Mountpoint { path, reason: "write /dev/fd/N with the number of a descriptor above 2".into() })
}

fn variable(environment: &[(String, String)], names: &[&str]) -> Option<(String, String)> {
    names.iter().find_map(|name| environment.iter().find(|(n, text)| n == name && !text.is_empty()).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_input_every_layer_gets_its_own_defaults() {
        let input = Input { places: vec!["s3://data".into(), "/mnt".into()], ..Input::default() };
        let settings = Settings::gather(&input).unwrap();
        assert_eq!(settings.store, store::Options { bucket: "data".into(), ..store::Options::default() });
        assert_eq!(settings.reader, reader::Options::default());
        assert_eq!(settings.budget, budget::Options::default());
        let (uid, gid) = (settings.vfs.uid, settings.vfs.gid);
        assert_eq!(settings.vfs, vfs::Options { uid, gid, ..vfs::Options::default() });
        assert_eq!(settings.fuse, fuse::Options::default());
        assert_eq!(settings.logging, logging::Options::default());
        assert_eq!(settings.notes, Vec::<String>::new());
    }

    #[test]
    fn a_variable_that_nobody_knows_is_named_and_those_of_clusters_and_of_our_own_processes_are_not() {
        let names = ["SERVICE_HOST", "PORT_80_TCP", "SUPERVISOR", "HANDOVER", "DAEMON_PARENT", "CHUNK_SISE"];
        let environment = names.map(|name| (format!("WINDLASS_{name}"), "1".to_owned()));
        let input = Input { places: vec!["s3://data".into(), "/mnt".into()], environment: environment.into(), ..Input::default() };
        let notes = Settings::gather(&input).unwrap().notes;
        assert_eq!(notes, ["environment variable WINDLASS_CHUNK_SISE names no option and is ignored; did you mean WINDLASS_CHUNK_SIZE?"]);
    }
}
