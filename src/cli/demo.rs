//! `windlass demo`: a bucket of samples in a temporary directory, served by this process, mounted by this process, read
//! and verified through the mount. The engine is in `demo`, the mount in `mount`; this puts them in order and tells how
//! it went. Invariant: whatever way it ends, the mount goes first, then the server, then the directory.

mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use self::table::{Column, Counts, Table};
use super::progress::{Progress, Unit};
use super::stop::Stop;
use super::{Failure, mountpoint};
use crate::config::{Input, Settings};
use crate::demo::{Reading, Samples, Server, Watch};
use crate::logging::{self, Attachment};
use crate::mount::{self, End, Mounted};
use crate::units::ByteSize;

const BUCKET: &str = "demo";

/// Threads that read small objects: as many as a loader of a data set has workers.
const READERS: usize = 16;

/// Room on the disk beyond the samples, for blocks that are not full and for the directories.
const SPARE_ROOM: ByteSize = ByteSize::mib(64);

/// See it work: mounts a bucket of samples that this program serves itself, reads it and verifies every byte.
///
/// Needs no account and leaves nothing behind.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An empty directory to mount at; without it a temporary one.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Leave it mounted to play with, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    #[arg(long, hide = true, value_name = "SIZE", default_value = "512MiB")]
    large_size: ByteSize,
    #[arg(long, hide = true, value_name = "N", default_value_t = 3000)]
    small_count: usize,
}

/// Runs the demo and cleans up behind it.
pub fn run(args: &Args) -> Result<(), Failure> {
    // What the mount has to say at `info` would run through the bars.
    let log = logging::Options { level: "warn".into(), ..logging::Options::default() };
    super::start_log(&log, Attachment::Foreground)?;
    let stop = Stop::listen().map_err(Failure::without_signals)?;
    match (in_temporary_directory(args, &stop), stop.exit_code()) {
        (Err(_), Some(code)) => Err(Failure { code, message: "interrupted: unmounted, and what the demo stored is removed".into() }),
        (outcome, _) => outcome,
    }
}

fn in_temporary_directory(args: &Args, stop: &Stop) -> Result<(), Failure> {
    let parent = std::env::temp_dir();
    let failed = |e: io::Error| Failure::internal(format!("cannot use {}: {e}; set TMPDIR to another directory", parent.display()));
    let place = TempDir::with_prefix("windlass-demo-").map_err(failed)?;
    let outcome = in_directory(place.path(), args, stop);
    let path = place.path().to_owned();
    let removed = place.close().map_err(|e| Failure::internal(format!("cannot remove {}: {e}", path.display())));
    outcome.and(removed)
}

fn in_directory(place: &Path, args: &Args, stop: &Stop) -> Result<(), Failure> {
    let samples = Samples::new(args.large_size, args.small_count);
    let target = match &args.directory {
        Some(directory) => directory.clone(),
        None => {
            let target = place.join("mnt");
            std::fs::create_dir(&target).map_err(|e| Failure::internal(format!("cannot create {}: {e}", target.display())))?;
            target
        }
    };
    let mut settings =
        Settings::gather(&Input { places: vec![format!("s3://{BUCKET}").into(), target.clone().into()], ..Input::default() })?;
    mountpoint::check(&settings)?;
    check_room(place, samples.bytes())?;
    let server = Server::start(place, BUCKET).map_err(told)?;
    settings.store = server.options();
    // Its readers are counted; what can be written to is what "windlass mount" shows.
    settings.read_only = true;
    let outcome = store(&server, &samples, stop).and_then(|()| read_through_mount(&settings, &target, &server, &samples, args.keep, stop));
    // Before its directory goes.
    server.stop();
    outcome
}

fn store(server: &Server, samples: &Samples, stop: &Stop) -> Result<(), Failure> {
    let progress = Progress::start("storing samples", samples.bytes(), Unit::Bytes);
    samples.store(server, &watch(&progress, stop)).map_err(told)?;
    progress.finish();
    Ok(())
}

fn read_through_mount(
    settings: &Settings,
    target: &Path,
    server: &Server,
    samples: &Samples,
    keep: bool,
    stop: &Stop,
) -> Result<(), Failure> {
    let failed = |error: mount::Error| Failure { code: error.exit_code(), message: error.to_string() };
    let mut mounted = mount::start(settings).map_err(failed)?;
    let table = read(&mounted, target, samples, stop).map_err(|e| Failure::internal(e.to_string()))?;
    super::print(format!("\n{table}").as_bytes())?;
    if keep && stop.exit_code().is_none() {
        super::print(what_to_try(target, server).as_bytes())?;
        if let End::Failed { reason } = mounted.serve() {
            return Err(failed(mounted.fail(reason)));
        }
    }
    mounted.unmount().map_err(failed)
}

fn read(mounted: &Mounted, target: &Path, samples: &Samples, stop: &Stop) -> io::Result<Table> {
    let (metrics, peak_bytes) = (mounted.metrics(), || mounted.budget().usage().peak_bytes as u64);
    let before = Counts::of(metrics);

    let progress = Progress::start("reading a large object", samples.large.size, Unit::Bytes);
    let reading = samples.read_large(target, &watch(&progress, stop))?;
    progress.finish();
    let between = Counts::of(metrics);
    let large = Column { reading, counts: between.since(before), peak_bytes: peak_bytes() };

    let progress = Progress::start("reading small objects", samples.small.len() as u64, Unit::Files);
    let reading = samples.read_small(target, READERS, &watch(&progress, stop))?;
    progress.finish();
    let end = Counts::of(metrics);
    let small = Column { reading, counts: end.since(between), peak_bytes: peak_bytes() };

    let reading = Reading {
        files: large.reading.files + small.reading.files,
        bytes: large.reading.bytes + small.reading.bytes,
        took: large.reading.took + small.reading.took,
    };
    Ok(Table { large, small, total: Column { reading, counts: end, peak_bytes: peak_bytes() } })
}

/// Moves the bar, and ends the work when a signal came.
fn watch(progress: &Progress, stop: &Stop) -> Watch {
    let (progress, stop) = (progress.clone(), stop.clone());
    Arc::new(move |n| {
        progress.add(n);
        stop.check()
    })
}

fn check_room(place: &Path, bytes: u64) -> Result<(), Failure> {
    let disk = rustix::fs::statvfs(place).map_err(|e| Failure::internal(format!("{}: {}", place.display(), io::Error::from(e))))?;
    room(&std::env::temp_dir(), disk.f_bavail.saturating_mul(disk.f_frsize), bytes + SPARE_ROOM.as_u64())
}

fn room(place: &Path, free: u64, needed: u64) -> Result<(), Failure> {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    if free >= needed {
        return Ok(());
    }
    let (free, needed) = (mib(free), mib(needed));
    Err(Failure::usage(format!("{}: {free} are free and the demo needs {needed}: set TMPDIR to a directory with more", place.display())))
}

fn what_to_try(target: &Path, server: &Server) -> String {
    let (target, endpoint, passwd) = (target.display(), server.endpoint(), server.passwd_file().display());
    format!(
        "
Mounted at {target} until Ctrl-C. Try, in another terminal:
  ls -l {target}/small/00 | head
  dd if={target}/large.bin of=/dev/null bs=1M
  sha256sum {target}/small/00/*.bin | tail
The bucket itself, which you can mount a second time, with options to compare:
  windlass mount s3://{BUCKET} DIR --endpoint {endpoint} --region us-east-1 --passwd-file {passwd} --chunk-size 8MiB
"
    )
}

/// An error of the engine with its reasons, in one line.
fn told(error: crate::demo::Error) -> Failure {
    Failure::internal(format!("{:#}", anyhow::Error::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_answered_with_what_is_needed() {
        assert!(room(Path::new("/tmp"), 600 << 20, 600 << 20).is_ok());
        let refusal = room(Path::new("/tmp"), 100 << 20, 600 << 20).unwrap_err();
        assert_eq!(refusal.message, "/tmp: 100 MiB are free and the demo needs 600 MiB: set TMPDIR to a directory with more");
    }

    #[test]
    fn a_watch_moves_the_bar_and_ends_the_work_after_a_signal() {
        let (progress, stop) = (Progress::start("test", 10, Unit::Files), Stop::default());
        let watch = watch(&progress, &stop);
        assert!(watch(1).is_ok());
        stop.set(crate::signals::Ending::Interrupt);
        assert!(watch(1).is_err());
    }
}
