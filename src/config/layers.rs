//! From values to the options of each layer but the store. Adds no option of its own. Invariant: without any input the layers get their own
//! defaults.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Error;
use super::gather::{Origin, Values};
use super::source::Source;
use crate::budget::Allowance;
use crate::handover::Meeting;
use crate::reader::ReadMode;
use crate::units::ByteSize;
use crate::{admin, budget, fuse, logging, reader, started_in, vfs, writer};

impl Values {
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

    /// The default of another program counts only where there is so much.
    pub(super) fn budget(&self) -> budget::Options {
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

    pub(super) fn reader(&self) -> reader::Options {
        let defaults = reader::Options::default();
        let small = |name| self.count(name).map(|n| u32::try_from(n).expect("the table bounds it"));
        reader::Options {
            verify_reads: self.text("verify-reads").as_deref() != Some("off"),
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

    pub(super) fn vfs(&self, source: &Source) -> vfs::Options {
        let id = |name, own: u32| self.count(name).map_or(own, |n| u32::try_from(n).expect("the table bounds it"));
        vfs::Options {
            prefix: source.prefix.clone(),
            root_names: match source.is_account() {
                true => vfs::RootNames::Buckets { all_listed: self.text("buckets").is_some() },
                false => vfs::RootNames::Objects,
            },
            stat_cache_size: self.count("stat-cache-size").unwrap_or_default(),
            stat_cache_ttl: self.time("stat-cache-ttl"),
            negative_ttl: self.time("negative-ttl"),
            close_to_open: self.flag("close-to-open"),
            readdir_optimize: self.flag("readdir-optimize"),
            posix_attributes: match self.flag_or_auto("posix-attributes") {
                Some(true) => vfs::PosixAttributes::On,
                Some(false) => vfs::PosixAttributes::Off,
                None => vfs::PosixAttributes::Auto,
            },
            rename_limit: usize::try_from(self.count("rename-limit").unwrap_or(u64::MAX)).unwrap_or(usize::MAX),
            conflict: match self.text("conflict").as_deref() {
                Some("overwrite") => vfs::Conflict::Overwrite,
                Some("save") => vfs::Conflict::Save,
                _ => vfs::Conflict::Fail,
            },
            uid: id("uid", rustix::process::getuid().as_raw()),
            gid: id("gid", rustix::process::getgid().as_raw()),
            file_mode: self.mode("file-mode"),
            dir_mode: self.mode("dir-mode"),
            umask: self.mode("umask"),
            root_mode: self.mode_if_set("root-mode"),
            forced: vfs::Forced { uid: self.flag("force-uid"), gid: self.flag("force-gid"), mode: self.flag("force-mode") },
            ..vfs::Options::default()
        }
    }

    pub(super) fn writer(&self) -> writer::Options {
        let defaults = writer::Options::default();
        let concurrency = self.count("upload-concurrency").map(|n| usize::try_from(n).expect("the table bounds it"));
        writer::Options {
            part_size: self.size("upload-part-size").unwrap_or(defaults.part_size),
            concurrency,
            total_concurrency: defaults.total_concurrency.max(concurrency.unwrap_or(0)),
            staging: writer::staging::Options {
                dir: self.path("spill-dir"),
                max: self.size("spill-max").unwrap_or_default(),
                ensure_free: self.size("ensure-diskfree").unwrap_or_default(),
                free_ratio: self.count("free-space-ratio").map_or(0, |n| u8::try_from(n).expect("the table bounds it")),
            },
            ..defaults
        }
    }

    pub(super) fn admin(&self, environment: &[(String, String)]) -> Result<admin::Options, Error> {
        let directories = socket_directories(rustix::process::geteuid().as_raw(), environment);
        let files = self.text("metrics-dir").map(|text| match text.as_str() {
            "auto" => admin::MetricsDir::OfTheDriver,
            path => admin::MetricsDir::At(started_in::absolute(path).unwrap_or_else(|_| path.into())),
        });
        Ok(admin::Options { directories, socket: self.path("control-socket"), metrics: self.pages()?, files })
    }

    pub(super) fn fuse(&self) -> fuse::Options {
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

    pub(super) fn logging(&self) -> Result<logging::Options, Error> {
        let level = self.text("log-level").unwrap_or_else(|| logging::Options::default().level);
        logging::check_level(&level).map_err(|reason| self.refused("log-level", level.clone(), reason))?;
        Ok(logging::Options {
            level,
            format: self.text("log-format").map(|name| logging::Format::named(&name)).unwrap_or_default(),
            file: self.path("log-file"),
        })
    }

    pub(super) fn all_notes(&self) -> Vec<String> {
        self.notes.iter().cloned().chain(self.too_much_memory()).collect()
    }
}

/// Where the control sockets of a user's mounts may lie, as the environment says.
pub fn socket_directories(uid: u32, environment: &[(String, String)]) -> Vec<PathBuf> {
    let runtime = environment.iter().find(|(name, _)| name == "XDG_RUNTIME_DIR").map(|(_, path)| PathBuf::from(path));
    admin::directories(uid, runtime.as_deref())
}
