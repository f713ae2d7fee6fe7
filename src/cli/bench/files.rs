//! `windlass bench files`: many small files in any directory, written or read by many threads. It reads the words and makes the report.
//! Invariant: what was written is gone afterwards, or it is said where it is.

use std::path::{Path, PathBuf};

use super::super::Failure;
use super::super::stop::Stop;
use super::daemon::{ceiling_of, daemon};
use super::{BYTES, SECONDS, Shape, or_interrupted, with_ceiling};
use crate::bench::{Cell, Name, NewFiles, PREFIX, Pass, Report, TAIL, megabytes, read_files, seconds, tail};
use crate::transfer;

/// Read every file below a directory whole, or with --write write small files into it, with many threads.
///
/// Where a mount is measured, the first pass writes and keeps the files, and the second one reads them after the kernel's pages were
/// dropped. For example: windlass bench files --dir /mnt/data/small --file-count 100000 --write --keep
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, in a mount or not; it must be there.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Files at a time.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: u16,
    /// KiB of each file [default when writing: 128]. Reading, every file must have so many.
    #[arg(long = "file-size-KB", value_name = "KB", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    file_size_kb: Option<u64>,
    /// How many to write [default: 1000], or at most to read [default: all]; fewer are an error.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    file_count: Option<u64>,
    /// Write the files, and remove them afterwards.
    #[arg(long)]
    write: bool,
    /// With --write: leave the files for a pass that reads them.
    #[arg(long, requires = "write")]
    keep: bool,
    #[command(flatten)]
    shape: Shape,
}

const DIR: Name = Name { shown: "directory", key: "directory" };
const PASS: Name = Name { shown: "pass", key: "pass" };
const THREADS: Name = Name { shown: "threads", key: "threads" };
const FILES: Name = Name { shown: "files", key: "files" };
const MEGABYTES: Name = Name { shown: "MB/s", key: "megabytes_per_second" };
const FILES_PER_SECOND: Name = Name { shown: "files/s", key: "files_per_second" };

const KIB: u64 = 1 << 10;

/// Writes or reads.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (stop, threads) = (Stop::listen().map_err(Failure::without_signals)?, usize::from(args.threads));
    let told = |error: transfer::Error| or_interrupted(Failure::usage(error.to_string()), &stop);
    let bytes = args.file_size_kb.map(|kb| kb * KIB);
    if !args.write {
        let pass = read_files(&args.dir, args.file_count, bytes, threads, &|| stop.check()).map_err(told)?;
        let report = report(&args.dir, "read", threads, &pass);
        let ceiling = ceiling_of(daemon(&args.dir).as_ref());
        return args.shape.print(&with_ceiling(report, ceiling, pass.bytes as f64 / pass.took.as_secs_f64()));
    }
    let files = NewFiles::plan(&args.dir, bytes.unwrap_or(128 * KIB), args.file_count.unwrap_or(1000)).map_err(told)?;
    let written = files.write(threads, &|| stop.check());
    let at = args.dir.display();
    if args.keep && written.is_ok() {
        eprintln!("windlass: the files are {at}/{PREFIX}*");
    } else {
        files.remove(threads).map_err(told)?;
        eprintln!("windlass: removed {at}/{PREFIX}*");
    }
    args.shape.print(&report(&args.dir, "write", threads, &written.map_err(told)?))
}

fn report(dir: &Path, name: &'static str, threads: usize, pass: &Pass) -> Report {
    let per_second = |amount: u64| amount as f64 / pass.took.as_secs_f64();
    let report = Report::new("files").fact(DIR, dir.display().to_string()).fact(PASS, name).fact(THREADS, threads);
    let report = report.fact(FILES, pass.files).fact(BYTES, pass.bytes).fact(SECONDS, seconds(pass.took));
    let report = report.fact(MEGABYTES, megabytes(per_second(pass.bytes)));
    let report = report.fact(FILES_PER_SECOND, Cell::number(per_second(pass.files), 1));
    TAIL.into_iter().zip(tail(&pass.times)).fold(report, |report, (name, cell)| report.fact(name, cell))
}
