//! The built program in front of a server, and what it said.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::support::{BUCKET, S3Server};

/// The program with a server, and nothing else in its environment that could decide anything.
pub fn command(server: &S3Server, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(args).args(["--endpoint", &server.endpoint()]).env_clear().env("PATH", "/usr/bin:/bin").envs(server.client_env());
    // Tests count requests: on a machine that is busy enough some are late, and would be sent twice.
    command.env("WINDLASS_HEDGE", "false").env("WINDLASS_STALL_TIMEOUT", "60s");
    command
}

pub struct Said {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Said {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("what people read is text")
    }

    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    /// Ends with this code and one line that has all these words.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}", self.err);
        let last = self.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("windlass: "), "{}", self.err);
        for word in words {
            assert!(last.contains(word), "{word:?} is missing in: {last}");
        }
        self
    }
}

pub fn said(output: Output) -> Said {
    Said { code: output.status.code().unwrap_or(-1), out: output.stdout, err: String::from_utf8_lossy(&output.stderr).into_owned() }
}

pub fn run(server: &S3Server, args: &[impl AsRef<OsStr>]) -> Said {
    said(command(server, args).stdin(Stdio::null()).output().expect("the program starts"))
}

/// `s3://BUCKET/key`
pub fn at(key: &str) -> String {
    format!("s3://{BUCKET}/{key}")
}

/// Bytes that tell their place.
pub fn content(len: usize) -> Vec<u8> {
    (0..len as u64).step_by(8).flat_map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).take(len).collect()
}

pub fn json(said: &Said) -> Vec<serde_json::Value> {
    said.text().lines().map(|line| serde_json::from_str(line).expect("one JSON value a line")).collect()
}

pub const MIB: usize = 1 << 20;

/// What is in a directory, hidden files too.
pub fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// `windlass get` of parts of 1 MiB, with more words.
pub fn get(server: &S3Server, key: &str, dest: &Path, more: &[&str]) -> Said {
    let args = ["get", &at(key), dest.to_str().unwrap(), "--part-size", "1MiB", "--bigfile-threshold", "4MiB"];
    run(server, &[&args[..], more].concat())
}

/// Every file below a directory, by its path there.
pub fn tree_of(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap());
            }
        }
    }
    found
}

/// The most memory that a process has had until now, in KiB.
pub fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().split(' ').next()?.parse().ok());
    peak.unwrap_or(0)
}

/// `windlass put` of a file of this content, with more words.
pub fn put(server: &S3Server, content: &[u8], dest: &str, more: &[&str]) -> Said {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file.json");
    fs::write(&file, content).unwrap();
    let args = ["put", file.to_str().unwrap(), &at(dest), "--part-size", "5MiB", "--bigfile-threshold", "8MiB"];
    run(server, &[&args[..], more].concat())
}
