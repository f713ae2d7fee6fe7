//! Names and attributes: what programs that look around cost, and what they see.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use windlass::store::memory::Synthetic;

use crate::support::mounts::{Daemon, trial, trial_with, wait_until};
use crate::support::{Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_with(&["ls"], "ls_of_100_000_keys_is_100_lists_and_then_nothing", ls_of_100_000_keys),
        trial("a_missing_name_is_one_request_and_then_nothing", a_missing_name_is_one_request),
        trial("a_file_made_elsewhere_appears_though_it_is_polled", a_file_made_elsewhere_appears),
        trial("a_directory_hides_the_file_of_its_name", a_directory_hides_the_file_of_its_name),
        trial("odd_keys_are_hidden_and_harm_nobody", odd_keys_are_hidden),
        trial("small_files_are_one_get_each_after_a_listing", small_files_are_one_get_each),
        trial_with(
            &["find", "du", "cp", "diff", "md5sum", "sh", "sort"],
            "find_du_cp_and_md5sum_see_the_tree_that_is_there",
            tools_see_the_tree,
        ),
        trial("the_kernel_reads_ahead_by_a_whole_request", the_kernel_reads_ahead),
    ]
}

fn ls_of_100_000_keys() {
    const KEYS: usize = 100_000;
    let server = S3Server::start();
    for i in 0..KEYS {
        server.put_synthetic(&format!("d/{i:06}"), i as u64 * 7);
    }
    // On a slow machine what was listed must not end before all of it was shown.
    let mount = Daemon::new(&server).arg("--stat-cache-ttl", "3600s").start();
    let directory = mount.join("d");
    assert!(directory.is_dir());
    for (lists, what) in [(100, "the first time"), (0, "again")] {
        server.reset_log();
        let output = Command::new("ls").env("LC_ALL", "C").args(["-l", "--time-style=+"]).arg(&directory).output().expect("ls starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("the names are ASCII");
        let mut lines = text.lines().skip(1);
        for i in 0..KEYS {
            let line: Vec<&str> = lines.next().unwrap_or_else(|| panic!("ends before {i}")).split_whitespace().collect();
            assert_eq!((line[0], line[4], line[5]), ("-rw-r--r--", &*(i * 7).to_string(), &*format!("{i:06}")));
        }
        assert_eq!(lines.next(), None);
        assert_eq!((server.count(Kind::List), server.requests().len()), (lists, lists), "{what}");
    }
}

#[track_caller]
fn assert_absent(path: &Path) {
    let error = fs::metadata(path).expect_err("there is no such name");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

fn a_missing_name_is_one_request() {
    let server = S3Server::start();
    server.put("d/there", "1");
    let mount = Daemon::new(&server).arg("--negative-ttl", "60s").start();
    assert!(mount.join("d").is_dir());
    server.reset_log();
    assert_absent(&mount.join("d/missing"));
    let requests = server.requests();
    let asked: BTreeSet<(&str, &str)> = requests.iter().map(|request| (request.method.as_str(), request.key.as_str())).collect();
    assert_eq!((requests.len(), asked), (1, BTreeSet::from([("GET", "d/missing")])), "one listing of the names that begin so");
    for _ in 0..3 {
        assert_absent(&mount.join("d/missing"));
    }
    assert_eq!(server.requests().len(), 1, "it is believed to be absent");
}

/// The name is asked for all the time, which must not keep the belief in its absence alive.
fn a_file_made_elsewhere_appears() {
    for listed in [false, true] {
        let server = S3Server::start();
        server.put("d/there", "1");
        let mount = Daemon::new(&server).start();
        if listed {
            assert_eq!(fs::read_dir(mount.join("d")).expect("it is a directory").count(), 1);
        }
        let path = mount.join("d/new");
        assert_absent(&path);
        server.put("d/new", "from elsewhere");
        wait_until(&format!("it is seen, listed before: {listed}"), || fs::metadata(&path).is_ok());
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "from elsewhere");
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is a directory");
    let mut names: Vec<String> = entries.map(|entry| entry.expect("it is listed").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn a_directory_hides_the_file_of_its_name() {
    for list_first in [false, true] {
        let server = S3Server::start();
        server.put("foo", "the file");
        server.put("foo/bar", "inside");
        // Sorts between the two in the store's order.
        server.put("foo-1", "1");
        let mount = Daemon::new(&server).start();
        if list_first {
            assert_eq!(names_in(mount.path()), ["foo", "foo-1"]);
        }
        assert!(fs::metadata(mount.join("foo")).expect("it is there").is_dir());
        assert_eq!(names_in(mount.path()), ["foo", "foo-1"]);
        assert_eq!(names_in(&mount.join("foo")), ["bar"]);
        assert_eq!(fs::read_to_string(mount.join("foo/bar")).expect("it is there"), "inside");
        assert_eq!(fs::read(mount.join("foo")).expect_err("a directory").raw_os_error(), Some(libc::EISDIR));
        assert!(mount.log().contains("foo"), "the hidden file is worth a warning: {}", mount.log());
    }
}

fn odd_keys_are_hidden() {
    let server = S3Server::start();
    let (long, longest) = (format!("d/{}", "l".repeat(256)), format!("d/{}", "m".repeat(255)));
    let odd = ["/root", "d//x", "d/./x", "d/../x", "../x", "./x", "..", ".", "d/a\0b", "d//", &long];
    for key in odd {
        server.put(key, "odd");
    }
    for key in ["d/a", "d/z", "z", "d/ü \n*%?", &longest] {
        server.put(key, key.to_owned());
    }
    let mount = Daemon::new(&server).start();
    assert_eq!(names_in(mount.path()), ["d", "z"]);
    assert_eq!(names_in(&mount.join("d")), ["a", &longest[2..], "z", "ü \n*%?"]);
    for key in ["d/a", "d/z", "z", "d/ü \n*%?", &longest] {
        assert_eq!(fs::read_to_string(mount.join(key)).expect("it is there"), *key);
    }
    assert_eq!(fs::metadata(mount.join(&long)).expect_err("too long").raw_os_error(), Some(libc::ENAMETOOLONG));
    assert_absent(&mount.join("d/x"));
    assert_absent(&mount.join("x"));
}

fn small_files_are_one_get_each() {
    const FILES: usize = 300;
    let server = S3Server::start();
    let contents: Vec<Synthetic> = (0..FILES).map(|i| server.put_synthetic(&format!("d/{i}"), size_of_file(i))).collect();
    let mount = Daemon::new(&server).arg("--stat-cache-ttl", "3600s").flag("--hedge=false").start();
    assert_eq!(names_in(&mount.join("d")).len(), FILES);
    server.reset_log();
    let read = || {
        for (i, content) in contents.iter().enumerate() {
            let bytes = fs::read(mount.join(format!("d/{i}"))).expect("it is there");
            assert_eq!(bytes.len() as u64, size_of_file(i));
            assert!(content.matches(0, &bytes));
        }
    };
    read();
    let requests = server.requests();
    let keys: BTreeSet<&str> = requests.iter().filter(|r| r.kind == Kind::Get && r.if_match.is_some()).map(|r| r.key.as_str()).collect();
    // There is nothing to get of the empty one.
    assert_eq!((requests.len(), keys.len()), (FILES - 1, FILES - 1));
    // What the kernel has no more is one GET again.
    server.reset_log();
    for i in 0..FILES {
        let file = fs::File::open(mount.join(format!("d/{i}"))).expect("it is there");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("it is a file");
    }
    read();
    assert_eq!(server.requests().len(), FILES - 1);
}

/// One is empty, most are small, a few are larger than a request of the kernel.
fn size_of_file(i: usize) -> u64 {
    (i as u64 * i as u64 * 37) % 1_500_000
}

fn tools_see_the_tree() {
    const FILES: usize = 300;
    let server = S3Server::start();
    let local = tempfile::tempdir().expect("a temporary directory can be made");
    let original = local.path().join("original");
    for i in 0..FILES {
        let key = format!("{}/{}/file {i}", i % 3, i % 7);
        let mut bytes = vec![0; size_of_file(i) as usize / 4];
        server.put_synthetic(&key, bytes.len() as u64).fill(0, &mut bytes);
        let path = original.join(&key);
        fs::create_dir_all(path.parent().expect("it has one")).expect("it can be made");
        fs::write(path, bytes).expect("it can be written");
    }
    let mount = Daemon::new(&server).start();
    let in_both = [
        "find . -printf '%y %P\\n' | sort",
        "find . -type f -printf '%P %s\\n' | sort",
        "find . -type f -print0 | du -cb --files0-from=- | sort -k2",
        "find . -type f -print0 | sort -z | xargs -0 md5sum",
    ];
    for script in in_both {
        assert_eq!(sh(script, mount.path(), &[]), sh(script, &original, &[]), "{script}");
    }
    let copy = local.path().join("copy");
    sh("cp -r . \"$1\"", mount.path(), &[&copy]);
    assert_eq!(sh("diff -r . \"$1\"", &original, &[&copy]), "");
}

#[track_caller]
fn sh(script: &str, directory: &Path, arguments: &[&Path]) -> String {
    let mut command = Command::new("sh");
    command.env("LC_ALL", "C").current_dir(directory).args(["-c", script, "sh"]).args(arguments);
    let output = command.output().expect("sh starts");
    assert!(output.status.success(), "{script}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the names are ASCII")
}

fn the_kernel_reads_ahead() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel shows its mounts");
    let line = table.lines().find(|line| line.split(' ').nth(4).map(Path::new) == Some(mount.path())).expect("it is mounted");
    let setting = format!("/sys/class/bdi/{}/read_ahead_kb", line.split(' ').nth(2).expect("major:minor"));
    let kib: u32 = fs::read_to_string(&setting).expect("a mount has one").trim().parse().expect("a number");
    // Without root it stays at the kernel's default, and the daemon says so.
    if rustix::process::geteuid().is_root() {
        assert_eq!(kib, 1024);
    } else {
        assert!(mount.log().contains("read-ahead stays"), "{kib}: {}", mount.log());
    }
}
