//! The settings of a mount, from values under their names, and what does not go together in them. What each layer gets is decided in `bucket` and
//! `layers`. Invariant: settings that a mount begins with have passed all checks that need no bucket.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use super::gather::{Input, Values};
use super::source::Source;
use super::value::Value;
use super::{Error, Program};
use crate::reader::ReadMode;
use crate::store::{Dialect, Signature};
use crate::units::ByteSize;
use crate::{admin, budget, fuse, logging, reader, started_in, store, vfs, writer};

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

/// The variable that tells a daemon its share of the memory of all.
pub const MEMORY_SHARE: &str = "WINDLASS_MEMORY_SHARE";

/// Everything a mount needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    pub source: Source,
    pub mountpoint: MountTarget,
    pub store: store::Options,
    pub reader: reader::Options,
    pub budget: budget::Options,
    /// The memory limit is a share of a budget, which others have a part in and who made them changes: nobody has set one for this mount.
    pub has_memory_share: bool,
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
    /// A crash may leave a core dump, which has credentials and data in it.
    pub core_dumps: bool,
    /// A file that exists while the mount answers.
    pub ready_file: Option<PathBuf>,
    /// SIGTERM ends nothing.
    pub ignores_sigterm: bool,
    /// What went on although it may surprise, one line each: logged once, when the log is there.
    pub notes: Vec<String>,
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
        let source = values.take_source(environment)?;
        let origin = values.origin("source");
        values.put("source", Value::Text(source.to_string()), origin);
        let mountpoint = target(values.path("mountpoint").ok_or(Error::Missing("MOUNTPOINT"))?)?;
        let (reader, writer, read_only, mut budget) = (values.reader(), values.writer(), values.flag("read-only"), values.budget());
        let share = environment.iter().find(|(name, _)| name == MEMORY_SHARE).and_then(|(_, text)| text.parse::<ByteSize>().ok());
        let has_memory_share = share.is_some() && budget.memory_limit.is_none();
        if has_memory_share {
            // However many have a share, what was asked of this mount has to fit.
            let part = if read_only { 0 } else { writer.part_size.as_u64() };
            budget.memory_limit = share.map(|share| share.max(ByteSize::bytes(2 * part.max(reader.chunk_size.as_u64()))));
        }
        let store = values.store(&source)?;
        let limits = writer::Limits { equal_parts: store.quirks.equal_parts, ..writer.limits };
        let writer = writer::Options { limits, ..writer };
        let vfs = vfs::Options { content_types: store.content_types.clone(), ..values.vfs(&source) };
        let settings = Self {
            store,
            reader,
            budget,
            has_memory_share,
            vfs,
            fuse: values.fuse(),
            admin: values.admin(environment)?,
            writer,
            read_only,
            drain_timeout: values.time("drain-timeout"),
            logging: values.logging()?,
            foreground: values.is_foreground(),
            supervised: values.flag("supervised"),
            core_dumps: values.flag("core-dumps"),
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
            let word = if let ReadMode::Hybrid(_) = self.reader.mode { "hybrid-threshold (read-mode=hybrid)" } else { "read-mode=cached" };
            return conflict(format!("{word} keeps what is read on a disk: name a directory for it with spill-dir"));
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

fn target(path: PathBuf) -> Result<MountTarget, Error> {
    let Ok(number) = path.strip_prefix("/dev/fd") else {
        // The daemon mounts after it has left the directory where it was started.
        return Ok(MountTarget::Directory(started_in::absolute(&path).unwrap_or(path)));
    };
    let fd = number.to_str().and_then(|n| n.parse::<RawFd>().ok()).filter(|fd| *fd > 2);
    fd.map(MountTarget::Fd).ok_or(Error::Mountpoint { path, reason: "write /dev/fd/N with the number of a descriptor above 2".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_input_every_layer_gets_its_own_defaults() {
        let input = Input { places: vec!["s3://data".into(), "/mnt".into()], ..Input::default() };
        let settings = Settings::gather(&input).unwrap();
        // Without an endpoint it is AWS.
        let quirks = store::Quirks::of("aws", Dialect::S3, None).unwrap();
        assert_eq!(settings.store, store::Options { bucket: "data".into(), quirks, ..store::Options::default() });
        assert_eq!(settings.writer.limits, writer::Limits::default());
        assert_eq!(settings.reader, reader::Options::default());
        assert_eq!(settings.budget, budget::Options::default());
        let (uid, gid) = (settings.vfs.uid, settings.vfs.gid);
        let posix_attributes = vfs::PosixAttributes::Auto;
        assert_eq!(settings.vfs, vfs::Options { uid, gid, posix_attributes, ..vfs::Options::default() });
        assert_eq!(settings.fuse, fuse::Options::default());
        assert_eq!(settings.logging, logging::Options::default());
        assert_eq!(settings.notes, Vec::<String>::new());
    }

    #[test]
    fn a_variable_that_nobody_knows_is_named_and_those_of_clusters_and_of_our_own_processes_are_not() {
        let names = ["SERVICE_HOST", "PORT_80_TCP", "SUPERVISOR", "HANDOVER", "DAEMON_PARENT", "STARTED_IN", "MEMORY_SHARE", "CHUNK_SISE"];
        let environment = names.map(|name| (format!("WINDLASS_{name}"), "1".to_owned()));
        let input = Input { places: vec!["s3://data".into(), "/mnt".into()], environment: environment.into(), ..Input::default() };
        let notes = Settings::gather(&input).unwrap().notes;
        assert_eq!(notes, ["environment variable WINDLASS_CHUNK_SISE names no option and is ignored; did you mean WINDLASS_CHUNK_SIZE?"]);
    }

    #[test]
    fn a_share_of_memory_is_a_default_that_holds_what_was_asked_for() {
        let limit = |share: &str, flags: &[(&str, &str)]| {
            let flags = flags.iter().map(|(name, text)| ((*name).to_owned(), Some((*text).to_owned()))).collect();
            let environment = vec![(MEMORY_SHARE.to_owned(), share.to_owned())];
            let places = vec!["s3://data".into(), "/mnt".into()];
            let settings = Settings::gather(&Input { places, environment, flags, ..Input::default() }).expect("it can be used");
            (settings.budget.memory_limit.expect("there is one").as_u64() >> 20, settings.has_memory_share)
        };
        assert_eq!(limit("100MiB", &[]), (100, true));
        assert_eq!(limit("21MiB", &[("chunk-size", "16MiB")]), (32, true));
        assert_eq!(limit("21MiB", &[("upload-part-size", "64MiB")]), (128, true));
        assert_eq!(limit("21MiB", &[("upload-part-size", "64MiB"), ("read-only", "true")]), (21, true));
        assert_eq!(limit("100MiB", &[("memory-limit", "64MiB")]), (64, false));
    }
}
