//! `windlass bench fio`: the fio jobs that come with this program, in any directory, with what the daemon behind it took. It reads the words,
//! runs one job after the other and makes the report. Invariant: folders that were made here are removed, and no other one is written to.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::Failure;
use super::super::stop::Stop;
use super::daemon::{ceiling_of, daemon};
use super::{Shape, or_interrupted, with_ceiling};
use crate::bench::{
    Cell, FioError, JOBS, Job, Limits, Name, Process, Ran, Report, Steps, check_fio, check_room, megabytes, percent, remove_tree, run_fio,
    seconds,
};
use crate::units::ByteSize;

/// Run the fio jobs that come with this program, and show what each moved and what the daemon took for it.
///
/// A job that reads files which are not there has them written first. For example: windlass bench fio /mnt/data sequential
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, in a mount or not; it must be there.
    #[arg(value_name = "DIR", required_unless_present = "list")]
    dir: Option<PathBuf>,
    /// Only these, see --list; without it all.
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    /// Show the jobs and the question that each answers.
    #[arg(long, conflicts_with = "dir")]
    list: bool,
    /// Size of each large file, and of all small files together; the files as they come have 100 GiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: ByteSize,
    /// Seconds of those jobs that run for a time.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    duration: u64,
    /// Have the kernel drop its pages before each job that reads, as the published figures do; for root.
    #[arg(long)]
    drop_caches: bool,
    #[command(flatten)]
    shape: Shape,
}

/// Longest time of a job that has no time of its own.
const MOST_TIME: Duration = Duration::from_secs(900);

/// What fio may take beyond the time of a job: to lay files out, and to have the last byte stored.
const BESIDE: Duration = Duration::from_secs(300);

/// Files removed at a time: each may be a request.
const REMOVALS: usize = 64;

const DIR: Name = Name { shown: "directory", key: "directory" };
const SIZE: Name = Name { shown: "size bytes", key: "size_bytes" };
const DAEMON: Name = Name { shown: "daemon", key: "daemon_pid" };
const COLUMNS: [Name; 8] = [
    Name { shown: "job", key: "job" },
    Name { shown: "part", key: "part" },
    Name { shown: "s", key: "seconds" },
    Name { shown: "MB/s", key: "megabytes_per_second" },
    Name { shown: "IOPS", key: "operations_per_second" },
    Name { shown: "daemon CPU %", key: "daemon_cpu_percent" },
    Name { shown: "CPU-s per GiB", key: "daemon_cpu_seconds_per_gib" },
    Name { shown: "daemon peak MiB", key: "daemon_peak_mib" },
];

/// Runs them.
pub fn run(args: &Args) -> Result<(), Failure> {
    let Some(dir) = args.dir.as_ref().filter(|_| !args.list) else { return list() };
    let told = |error: FioError| Failure::usage(error.to_string());
    let jobs = args.jobs.iter().map(|name| job(name)).collect::<Result<Vec<_>, _>>()?;
    let jobs = if jobs.is_empty() { JOBS } else { &jobs[..] };
    let limits = Limits { size: args.size, time: Duration::from_secs(args.duration), most_time: MOST_TIME };
    check_fio().map_err(told)?;
    let dir = fs::canonicalize(dir).map_err(|error| Failure::usage(format!("{}: {error}", dir.display())))?;
    let steps = Steps::plan(jobs, |folder| dir.join(folder).exists()).map_err(told)?;
    let needed = steps.jobs.iter().filter(|job| job.writes()).map(|job| job.bytes(&limits)).sum();
    check_room(&dir, needed).map_err(|error| Failure::usage(error.to_string()))?;
    let stop = Stop::listen().map_err(Failure::without_signals)?;
    let made = Folders::make(&dir, &steps)?;
    let ran = all(args, &dir, &steps, &limits, &stop);
    made.remove()?;
    args.shape.print(&ran.map_err(|failure| or_interrupted(failure, &stop))?)
}

fn list() -> Result<(), Failure> {
    let wide = JOBS.iter().map(|job| job.name.len()).max().unwrap_or(0);
    let lines: String = JOBS.iter().map(|job| format!("{:<wide$}  {}\n", job.name, job.question())).collect();
    super::super::print(lines.as_bytes())
}

fn job(name: &str) -> Result<Job, Failure> {
    Job::find(name).ok_or_else(|| Failure::usage(format!("{name}: there is no such job: windlass bench fio --list shows all")))
}

/// Folders that were made for the jobs.
struct Folders(Vec<PathBuf>);

impl Folders {
    fn make(dir: &Path, steps: &Steps) -> Result<Self, Failure> {
        let mut made = Self(Vec::new());
        for folder in &steps.folders {
            let path = dir.join(folder);
            if let Err(error) = fs::create_dir(&path) {
                made.remove()?;
                return Err(Failure::usage(format!("cannot make {}: {error}", path.display())));
            }
            made.0.push(path);
        }
        Ok(made)
    }

    fn remove(self) -> Result<(), Failure> {
        for path in self.0 {
            remove_tree(&path, REMOVALS).map_err(|error| Failure::internal(error.to_string()))?;
            eprintln!("windlass: removed {}", path.display());
        }
        Ok(())
    }
}

fn all(args: &Args, dir: &Path, steps: &Steps, limits: &Limits, stop: &Stop) -> Result<Report, Failure> {
    let stats = daemon(dir);
    let (daemon, mut best) = (stats.as_ref().map(|stats| Process(stats.pid)), 0.0_f64);
    let report = Report::new("fio").fact(DIR, dir.display().to_string()).fact(SIZE, args.size.as_u64());
    let mut report = report.fact(DAEMON, daemon.map(|Process(pid)| u64::from(pid))).columns(COLUMNS);
    for job in &steps.jobs {
        let text = job.adapted(dir, limits);
        for section in job.sections() {
            eprintln!("windlass: {} {section}: {}", job.name, job.question());
            if args.drop_caches && !job.writes() {
                let failed = |error: std::io::Error| Failure::usage(format!("cannot drop the kernel's pages: {error}: only root can"));
                rustix::fs::sync();
                fs::write("/proc/sys/vm/drop_caches", "1").map_err(failed)?;
            }
            let has_peak = daemon.is_some_and(Process::forget_peak);
            let before = daemon.and_then(Process::cpu);
            let ran = run_fio(&text, section, limits.time.max(limits.most_time) + BESIDE, &|| stop.check().is_err());
            let ran = ran.map_err(|error| Failure::internal(format!("{} {section}: {error}", job.name)))?;
            let cpu = daemon.and_then(Process::cpu).zip(before).map(|(after, before)| after.saturating_sub(before));
            let peak = daemon.filter(|_| has_peak).and_then(Process::peak_bytes);
            report.row(row(job, section, &ran, cpu, peak));
            // The ceiling is that of reading.
            best = if job.writes() { best } else { best.max(ran.bytes_per_second) };
        }
    }
    Ok(with_ceiling(report, ceiling_of(stats.as_ref()).filter(|_| best > 0.0), best))
}

fn row(job: &Job, section: &str, ran: &Ran, cpu: Option<Duration>, peak_bytes: Option<u64>) -> [Cell; 8] {
    let gib = ran.bytes as f64 / f64::from(1 << 30);
    [
        job.name.into(),
        section.into(),
        seconds(ran.took),
        megabytes(ran.bytes_per_second),
        Cell::number(ran.operations_per_second, 1),
        cpu.map(|cpu| percent(cpu.as_secs_f64(), ran.took.as_secs_f64())).into(),
        cpu.map(|cpu| Cell::number(cpu.as_secs_f64() / gib, 3)).into(),
        peak_bytes.map(|bytes| Cell::number(bytes as f64 / f64::from(1 << 20), 1)).into(),
    ]
}
