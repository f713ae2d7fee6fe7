//! The virtual file: what it shows, to whom, and that nothing there can be changed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;

use super::place::{Place, program, run};
use super::support::mounts::{Daemon, lacks, trial, trial_unless, wait_until};
use super::support::{S3Server, python};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("the_virtual_file_shows_what_the_command_does", same_as_stats),
        trial("a_handle_reads_the_look_that_was_taken_when_it_was_opened", one_look),
        trial("no_listing_names_the_virtual_directory", not_listed),
        trial("nothing_virtual_can_be_changed", unchangeable),
        trial("what_a_bucket_has_under_that_name_is_not_shown", key_of_that_name),
        trial("a_read_only_mount_has_it_too", read_only),
        trial_unless(|| lacks("cat").or_else(|| python::lacks("json")), "programs_read_it_whole", programs),
        trial_unless(not_root, "whoever_may_enter_may_read_it", unprivileged),
    ]
}

fn not_root() -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    if root { lacks("setpriv") } else { Some("only root can become another user".into()) }
}

fn look(mount: &Path) -> Value {
    let text = fs::read_to_string(mount.join(".windlass/stats")).expect("it is there");
    assert!(text.ends_with("}\n") && text.lines().count() == 1, "one line: {text}");
    serde_json::from_str(&text).expect("it is JSON")
}

fn names_in(stats: &Value) -> BTreeSet<String> {
    let groups = ["counters", "gauges", "histograms"].map(|group| stats[group].as_object().expect("an object").clone());
    groups.into_iter().flatten().map(|(name, _)| name).collect()
}

fn same_as_stats() {
    let server = S3Server::start();
    server.put_synthetic("file", 3 << 20);
    let mount = Daemon::new(&server).start();
    assert_eq!(fs::read(mount.join("file")).expect("there").len(), 3 << 20);
    // Whoever brings the last bytes answers the reader first, and is done with its request then.
    wait_until("the requests are over", || look(mount.path())["gauges"]["requests_in_flight"] == 0);
    let mut command = program();
    command.args(["stats", "--json"]).arg(mount.path());
    let told: Value = serde_json::from_str(&run(command).succeeds().out).expect("it is JSON");
    let shown = look(mount.path());
    assert_eq!(names_in(&shown), names_in(&told));
    for name in ["pid", "source", "mountpoint", "windlass"] {
        assert_eq!(shown[name], told[name], "{name}");
    }
    assert_eq!(shown["counters"]["read_bytes"].as_u64(), Some(3 << 20));
    assert_eq!(shown["counters"]["fetched_bytes"], told["counters"]["fetched_bytes"]);
    assert!(shown["histograms"]["read_seconds"]["count"].as_u64() >= Some(3));
    assert_eq!(shown["counters"]["answered_requests"]["get"]["2xx"], shown["counters"]["get_requests"]);
    assert_eq!(shown["histograms"]["request_seconds"]["get"]["count"], shown["counters"]["get_requests"]);
    assert!(shown["counters"]["connections_opened"].as_u64() > Some(0) && shown["gauges"]["connections_open"].as_u64() > Some(0));
}

fn one_look() {
    let server = S3Server::start();
    server.put_synthetic("file", 1 << 20);
    let mount = Daemon::new(&server).start();
    let mut file = File::open(mount.join(".windlass/stats")).expect("it is there");
    let mut start = vec![0; 10];
    file.read_exact(&mut start).expect("it is longer");
    fs::read(mount.join("file")).expect("there");
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).expect("it can be read");
    let stats: Value = serde_json::from_slice(&[start.clone(), rest].concat()).expect("both are of one look");
    assert_eq!(stats["counters"]["read_bytes"].as_u64(), Some(0), "from before the read");
    let mut again = vec![0; 10];
    file.read_exact_at(&mut again, 0).expect("it can be read again");
    assert_eq!((again, file.read_at(&mut [0; 10], 1 << 30).expect("the end")), (start, 0));
    assert_eq!(look(mount.path())["counters"]["read_bytes"].as_u64(), Some(1 << 20));
}

fn entries(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).expect("a directory").map(|entry| entry.expect("listed").file_name().into_string().expect("text"));
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn not_listed() {
    let server = S3Server::start();
    server.put("a", "1");
    let mount = Daemon::new(&server).start();
    assert_eq!(entries(mount.path()), ["a"]);
    let directory = mount.join(".windlass");
    let (of_directory, of_file) = (fs::metadata(&directory).expect("there"), fs::metadata(directory.join("stats")).expect("there"));
    assert!(of_directory.is_dir() && of_file.is_file());
    assert_eq!((of_directory.permissions().mode() & 0o7777, of_file.permissions().mode() & 0o7777, of_file.len()), (0o555, 0o444, 0));
    assert_eq!((of_directory.uid(), of_file.uid()), (rustix::process::getuid().as_raw(), rustix::process::getuid().as_raw()));
    assert_eq!(entries(&directory), ["stats"]);
    assert_eq!(entries(mount.path()), ["a"], "also when it was looked up");
    assert!(fs::metadata(directory.join("other")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    assert_eq!(fs::canonicalize(directory.join("..")).expect("it leads back"), mount.path());
}

fn refused<T>(what: &str, result: io::Result<T>) {
    let error = result.err().unwrap_or_else(|| panic!("{what} was done"));
    assert!(matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)), "{what}: {error}");
}

fn unchangeable() {
    let server = S3Server::start();
    server.put("file", "content");
    let mount = Daemon::new(&server).start();
    let (directory, stats, file) = (mount.join(".windlass"), mount.join(".windlass/stats"), mount.join("file"));
    refused("writing", fs::write(&stats, "x"));
    refused("opening for writing", File::options().write(true).open(&stats));
    refused("appending", File::options().append(true).open(&stats));
    refused("cutting", File::options().read(true).write(true).truncate(true).open(&stats));
    refused("making a file", File::create(directory.join("new")));
    refused("making a directory", fs::create_dir(directory.join("new")));
    refused("making a link", symlink("file", directory.join("new")));
    refused("making a hard link", fs::hard_link(&file, directory.join("new")));
    refused("linking to it", fs::hard_link(&stats, mount.join("new")));
    refused("removing", fs::remove_file(&stats));
    refused("removing the directory", fs::remove_dir(&directory));
    refused("moving in", fs::rename(&file, directory.join("file")));
    refused("moving over it", fs::rename(&file, &stats));
    refused("moving out", fs::rename(&stats, mount.join("stats")));
    refused("moving the directory", fs::rename(&directory, mount.join("other")));
    refused("changing its mode", fs::set_permissions(&stats, fs::Permissions::from_mode(0o666)));
    refused("changing its owner", std::os::unix::fs::chown(&directory, Some(1), Some(1)));
    let same = fs::create_dir(&directory).expect_err("it is there");
    assert_eq!(same.kind(), io::ErrorKind::AlreadyExists);
    assert!(look(mount.path())["counters"].is_object(), "it is still there");
    assert_eq!((fs::read(&file).expect("there"), entries(mount.path())), (b"content".to_vec(), vec!["file".to_owned()]));
}

fn key_of_that_name() {
    let server = S3Server::start();
    for key in [".windlass/stats", ".windlass/secret", ".windlassx", "d/.windlass/file", "a"] {
        server.put(key, "of the bucket");
    }
    let mount = Daemon::new(&server).start();
    assert_eq!(entries(mount.path()), [".windlassx", "a", "d"]);
    assert!(look(mount.path())["pid"].as_u64() == Some(mount.pid().into()));
    assert_eq!(entries(&mount.join(".windlass")), ["stats"]);
    assert!(fs::metadata(mount.join(".windlass/secret")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    assert_eq!(fs::read(mount.join("d/.windlass/file")).expect("only the root has one"), b"of the bucket");
    drop(mount);
    // Below a prefix of that name everything is the bucket's, and the mount has one of its own.
    let mount = Daemon::new(&server).prefix(".windlass/").start();
    assert_eq!(entries(mount.path()), ["secret", "stats"]);
    assert_eq!(fs::read(mount.join("secret")).expect("there"), b"of the bucket");
    assert!(look(mount.path())["counters"].is_object());
}

fn read_only() {
    let server = S3Server::start();
    server.put("a", "1");
    let mount = Daemon::new(&server).flag("--read-only").start();
    assert!(look(mount.path())["counters"].is_object());
    let error = fs::write(mount.join(".windlass/stats"), "x").expect_err("it is read-only");
    assert!(matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)), "{error}");
}

fn programs() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let stats = mount.join(".windlass/stats");
    for name in ["cat", "wc", "cp"] {
        let copy = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let mut command = Command::new(name);
        match name {
            "wc" => command.arg("-c").arg(&stats),
            "cp" => command.arg(&stats).arg(copy.path()),
            _ => command.arg(&stats),
        };
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let out = String::from_utf8(output.stdout).expect("text");
        match name {
            "wc" => assert!(out.split(' ').next().and_then(|count| count.parse::<u64>().ok()) > Some(1000), "{out}"),
            "cp" => assert!(serde_json::from_slice::<Value>(&fs::read(copy.path()).expect("ours")).is_ok()),
            _ => assert!(serde_json::from_str::<Value>(&out).is_ok(), "{out}"),
        }
    }
    let script = "import json, sys\nprint(json.load(open(sys.argv[1]))['pid'], json.loads(open(sys.argv[1], 'rb').read())['pid'])";
    assert_eq!(python::run(script, &[&stats]), format!("{0} {0}", mount.pid()));
}

fn unprivileged() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("file", "content");
    let mut command = place.mount(&server);
    command.arg("--allow-other").arg("--log-file").arg(place.beside("log"));
    run(command).succeeds();
    let as_nobody = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--", "sh", "-c", script, "sh"]).arg(&place.at);
        run(command)
    };
    let said = as_nobody("stat -c %a \"$1/.windlass\" && cat \"$1/.windlass/stats\"").succeeds();
    let (mode, text) = said.out.split_once('\n').expect("two lines");
    assert_eq!(mode, "555");
    assert_eq!(serde_json::from_str::<Value>(text).expect("it is JSON")["mountpoint"].as_str(), place.at.to_str());
    for script in ["echo x > \"$1/.windlass/stats\"", "touch \"$1/.windlass/new\"", "rm -f \"$1/.windlass/stats\""] {
        let said = as_nobody(script);
        assert!(said.code != Some(0) && said.err.contains("ermission denied"), "{script}: {}", said.err);
    }
    place.umount().succeeds();
}
