//! fio as it is installed: runs one part of a job file and reads what fio says of it; and which jobs must run before which, which is pure.
//! Invariant: fio is waited for, or ended, before this returns.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use super::jobs::Job;

/// How often fio is looked at while it runs.
const LOOK: Duration = Duration::from_millis(50);

/// fio ends its jobs when it is asked to; after so long it is made to.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// Why there is nothing to say.
#[derive(Debug, thiserror::Error)]
pub enum FioError {
    #[error("fio is not installed: install the package fio")]
    Missing,
    #[error("cannot run fio: {0}")]
    Run(#[source] io::Error),
    #[error("fio failed: {0}")]
    Failed(String),
    #[error("fio did not end within {} s", .0.as_secs())]
    TooLong(Duration),
    #[error("fio's report is not understood: {0}")]
    Report(String),
    /// Whoever asked wants it no more.
    #[error("stopped")]
    Stopped,
    #[error("{0} is there already: {1} would write into it; move it away, or name another directory")]
    Taken(String, &'static str),
}

/// What a job came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    pub bytes: u64,
    pub bytes_per_second: f64,
    pub operations_per_second: f64,
    /// While there was I/O, by fio's own clock.
    pub took: Duration,
}

/// Jobs in the order in which they run, and the folders that must be made for them and removed afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    pub jobs: Vec<Job>,
    pub folders: Vec<&'static str>,
}

impl Steps {
    /// `wanted`, and before each the job that writes what it reads, unless that is there.
    ///
    /// # Errors
    /// [`FioError::Taken`] when a job would write where something is.
    pub fn plan(wanted: &[Job], is_there: impl Fn(&str) -> bool) -> Result<Self, FioError> {
        let mut steps = Self::default();
        for &job in wanted {
            let folder = job.folder();
            let is_ours = steps.folders.contains(&folder);
            if !is_ours && is_there(folder) {
                if job.writes() {
                    return Err(FioError::Taken(folder.to_owned(), job.name));
                }
            } else if !is_ours {
                steps.folders.push(folder);
                steps.jobs.extend(job.writer().filter(|writer| *writer != job));
            }
            steps.jobs.push(job);
        }
        Ok(steps)
    }
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    read: Side,
    write: Side,
}

#[derive(Deserialize)]
struct Side {
    io_bytes: u64,
    bw_bytes: f64,
    iops: f64,
    /// Milliseconds.
    runtime: u64,
}

/// What the JSON says that fio wrote, behind warnings that may stand before it.
fn parse(text: &str) -> Result<Ran, FioError> {
    let json = text.find('{').map_or("", |at| &text[at..]);
    let output: Output = serde_json::from_str(json).map_err(|error| FioError::Report(error.to_string()))?;
    let sides: Vec<Side> = output.jobs.into_iter().flat_map(|entry| [entry.read, entry.write]).collect();
    Ok(Ran {
        bytes: sides.iter().map(|side| side.io_bytes).sum(),
        bytes_per_second: sides.iter().map(|side| side.bw_bytes).sum(),
        operations_per_second: sides.iter().map(|side| side.iops).sum(),
        took: Duration::from_millis(sides.iter().map(|side| side.runtime).max().unwrap_or(0)),
    })
}

/// Whether fio can be run.
///
/// # Errors
/// [`FioError::Missing`].
pub fn check() -> Result<(), FioError> {
    let asked = Command::new("fio").arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match asked {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FioError::Run(error)),
        _ => Err(FioError::Missing),
    }
}

/// Runs one section of a job file, for `most` at the longest.
///
/// # Errors
/// [`FioError`].
pub fn run(text: &str, section: &str, most: Duration, is_stopped: &dyn Fn() -> bool) -> Result<Ran, FioError> {
    // fio leaves files where it stands.
    let place = tempfile::tempdir().map_err(FioError::Run)?;
    let at = |name: &str| place.path().join(name);
    fs::write(at("job.fio"), text).map_err(FioError::Run)?;
    let said = File::create(at("said")).map_err(FioError::Run)?;
    let mut fio = Command::new("fio")
        .args(["--output-format=json", "--eta=never", "--output=report"])
        .arg(format!("--section={section}"))
        .arg("job.fio")
        .current_dir(place.path())
        .stdin(Stdio::null())
        .stdout(said.try_clone().map_err(FioError::Run)?)
        .stderr(said)
        .spawn()
        .map_err(|error| if error.kind() == io::ErrorKind::NotFound { FioError::Missing } else { FioError::Run(error) })?;
    let (began, mut ending) = (Instant::now(), None);
    let status = loop {
        if let Some(status) = fio.try_wait().map_err(FioError::Run)? {
            break status;
        }
        let over = if is_stopped() { Some(FioError::Stopped) } else { (began.elapsed() > most).then_some(FioError::TooLong(most)) };
        if ending.is_none()
            && let Some(why) = over
        {
            ending = Some(why);
            end(&mut fio)?;
            continue;
        }
        std::thread::sleep(LOOK);
    };
    match ending {
        Some(why) => Err(why),
        None if status.success() => parse(&fs::read_to_string(at("report")).map_err(FioError::Run)?),
        None => Err(FioError::Failed(last_words(&at("said"), &at("report")))),
    }
}

/// Asks fio to end its jobs, and makes it.
fn end(fio: &mut Child) -> Result<(), FioError> {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_child(fio), Signal::INT);
    let asked = Instant::now();
    while fio.try_wait().map_err(FioError::Run)?.is_none() {
        if asked.elapsed() > LAST_WORDS {
            return fio.kill().map_err(FioError::Run);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The line in which fio says what is wrong.
fn last_words(said: &Path, report: &Path) -> String {
    let text = fs::read_to_string(said).unwrap_or_default() + &fs::read_to_string(report).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("fio: ")).or_else(|| text.lines().find(|line| !line.trim().is_empty()));
    line.map_or_else(|| "it does not say why".to_owned(), |line| line.trim_start_matches("fio: ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> Job {
        Job::find(name).unwrap()
    }

    fn names(steps: &Steps) -> Vec<&str> {
        steps.jobs.iter().map(|job| job.name).collect()
    }

    #[test]
    fn what_is_read_is_written_before_once() {
        let steps = Steps::plan(&[job("mmap"), job("strided"), job("small-files")], |_| false).unwrap();
        assert_eq!(names(&steps), ["sequential-write", "mmap", "strided", "small-files-write", "small-files"]);
        assert_eq!(steps.folders, ["fio_direct_write", "fio_small"]);
        let steps = Steps::plan(&[job("sequential-write"), job("sequential")], |_| false).unwrap();
        assert_eq!(names(&steps), ["sequential-write", "sequential"]);
    }

    #[test]
    fn files_that_are_there_are_read_and_never_written() {
        let steps = Steps::plan(&[job("mmap")], |folder| folder == "fio_direct_write").unwrap();
        assert_eq!((names(&steps), steps.folders.len()), (vec!["mmap"], 0));
        let taken = Steps::plan(&[job("mmap"), job("sequential-write")], |_| true).unwrap_err();
        assert!(taken.to_string().starts_with("fio_direct_write is there already: sequential-write"), "{taken}");
    }

    #[test]
    fn a_report_is_summed_over_its_jobs_and_sides() {
        let side = |bytes: u64, ms: u64| {
            format!("{{\"io_bytes\":{bytes},\"bw_bytes\":{},\"iops\":{}.5,\"runtime\":{ms},\"x\":[]}}", bytes / 2, bytes / 10)
        };
        let entry = |read: String, write: String| format!("{{\"jobname\":\"a\",\"read\":{read},\"write\":{write}}}");
        let jobs = [entry(side(1000, 2000), side(0, 0)), entry(side(3000, 1500), side(500, 2500))].join(",");
        let ran = parse(&format!("note: something\n{{\"fio version\":\"fio-3.33\",\"jobs\":[{jobs}]}}")).unwrap();
        assert_eq!((ran.bytes, ran.bytes_per_second, ran.took), (4500, 2250.0, Duration::from_millis(2500)));
        assert!((ran.operations_per_second - 452.0).abs() < 1e-9, "{ran:?}");
        for text in ["", "no json", "{\"jobs\":[{}]}"] {
            assert!(matches!(parse(text), Err(FioError::Report(_))), "{text}");
        }
    }
}
