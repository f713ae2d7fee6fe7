//! `bench files`.

use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::program::Said;
use crate::support::mounts::{self, Daemon, wait_until};
use crate::support::{Kind, S3Server};
use crate::{program, report, said, trial, windlass};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("files are written, kept, read whole, and removed", writes_and_reads),
        trial("files that are missing or of another size are one line", refuses),
        trial("an interrupted write leaves nothing behind", is_interrupted),
        mounts::trial("files go through a mount to the bucket and back", through_a_mount),
    ]
}

fn bench(dir: &Path, args: &[&str]) -> Said {
    said(windlass(&[&["bench", "files", "--dir", dir.to_str().unwrap()], args].concat()))
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn writes_and_reads() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("deep")).unwrap();
    fs::write(dir.path().join("deep/mine"), vec![7; 3072]).unwrap();
    let write = ["--write", "--file-size-KB", "3", "--file-count", "200", "--threads", "16", "--json"];
    let told = bench(dir.path(), &write).succeeds();
    assert!(told.err.contains("removed") && count(dir.path()) == 1, "{}", told.err);
    let told = bench(dir.path(), &[&write[..], &["--keep"]].concat()).succeeds();
    assert!(told.err.contains("the files are") && count(dir.path()) == 201, "{}", told.err);
    let json = report(&told);
    assert_eq!((json["pass"].as_str(), json["files"].as_u64(), json["bytes"].as_u64()), (Some("write"), Some(200), Some(200 * 3072)));
    bench(dir.path(), &write).fails(2, &["earlier bench"]);

    let json = report(&bench(dir.path(), &["--threads", "16", "--file-size-KB", "3", "--json"]));
    assert_eq!((json["pass"].as_str(), json["files"].as_u64(), json["bytes"].as_u64()), (Some("read"), Some(201), Some(201 * 3072)));
    let number = |key: &str| json[key].as_f64().unwrap();
    assert!(
        number("megabytes_per_second") > 0.0
            && number("files_per_second") > 0.0
            && number("p50_milliseconds") <= number("max_milliseconds")
    );
    let json = report(&bench(dir.path(), &["--file-count", "50", "--json"]));
    assert_eq!(json["files"].as_u64(), Some(50));
    assert_eq!(fs::read(dir.path().join("deep/mine")).unwrap(), vec![7; 3072]);
}

fn refuses() {
    let dir = tempfile::tempdir().unwrap();
    bench(dir.path(), &[]).fails(2, &["no files"]);
    bench(&dir.path().join("none"), &["--write"]).fails(2, &["none", "No such file"]);
    fs::write(dir.path().join("mine"), "12345").unwrap();
    bench(dir.path(), &["--file-count", "2"]).fails(2, &["1 of 2 files"]);
    bench(dir.path(), &["--file-size-KB", "128"]).fails(2, &["mine", "5 bytes and not 131072"]);
    bench(dir.path(), &["--write", "--file-count", "100000000", "--file-size-KB", "1048576"]).fails(2, &["MiB are free"]);
    assert_eq!(bench(dir.path(), &["--keep"]).code, 2);
    assert_eq!(count(dir.path()), 1);
}

fn is_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut command =
        windlass(&["bench", "files", "--dir", path, "--write", "--file-count", "1000000", "--file-size-KB", "1", "--threads", "2"]);
    let child = command.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("files are written", || count(dir.path()) > 10);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    program::said(child.wait_with_output().unwrap()).fails(130, &["interrupted"]);
    assert_eq!(count(dir.path()), 0);
}

fn through_a_mount() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).arg("--stat-cache-ttl", "60s").start();
    let write = ["--write", "--file-size-KB", "16", "--file-count", "64", "--threads", "8", "--keep", "--json"];
    let json = report(&bench(mount.path(), &write));
    assert_eq!((json["files"].as_u64(), server.count(Kind::Put)), (Some(64), 64));
    let read = ["--file-size-KB", "16", "--file-count", "64", "--threads", "8", "--json"];
    assert_eq!(report(&bench(mount.path(), &read))["bytes"].as_u64(), Some(64 * 16 * 1024));
}
