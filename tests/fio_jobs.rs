//! The job files of fio-jobs/ as fio itself reads them. Runs no load. Invariant: every file is a test of its own, and
//! where fio is absent it is reported as ignored with that word.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let has_fio = Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success());
    let word = if has_fio { "" } else { " (fio is not installed)" };
    let mut trials: Vec<_> = job_files()
        .into_iter()
        .map(|path| {
            let name = format!("{}{word}", path.file_name().expect("it was listed under a name").to_string_lossy());
            Trial::test(name, move || check(&path)).with_ignored_flag(!has_fio)
        })
        .collect();
    trials.push(Trial::test(format!("a bad job file is noticed{word}"), refuses_nonsense).with_ignored_flag(!has_fio));
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn job_files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fio-jobs");
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("fio-jobs/ is part of the sources").map(|entry| entry.expect("it can be listed").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "fio"));
    assert!(files.len() >= 13, "workloads are missing: {files:?}");
    files.sort();
    files
}

fn check(path: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(path)?;
    let first = text.lines().next().unwrap_or_default();
    if !(first.starts_with("# ") && first.contains('?')) {
        return Err(format!("the first line asks no question: {first}").into());
    }
    // At the place that README names; what only reads lays nothing out where a file is missing.
    let writes = text.lines().any(|line| line.starts_with("rw=") && line.contains("write"));
    let needed: &[&str] = if writes { &["directory=/mnt/oss"] } else { &["directory=/mnt/oss", "allow_file_create=0"] };
    for needed in needed {
        if !text.lines().any(|line| line.starts_with(needed)) {
            return Err(format!("{needed} is missing").into());
        }
    }
    parse(path)
}

fn refuses_nonsense() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let bad = dir.path().join("bad.fio");
    fs::write(&bad, "[global]\ndirectory=/mnt/oss\n[job]\nrw=sideways\n")?;
    if parse(&bad).is_ok() { Err("fio took rw=sideways".into()) } else { Ok(()) }
}

/// From a directory of its own, because fio leaves files where it stands.
fn parse(path: &Path) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let output = Command::new("fio").arg("--parse-only").arg("--warnings-fatal").arg(path).current_dir(dir.path()).output()?;
    let said = [output.stdout, output.stderr].concat();
    if output.status.success() && said.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(&said).into_owned().into()) }
}
