//! Files that are brought to the disk before they are read, and dropped from it on request.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;

use crate::bytes::{KIB, MIB, Through, gets, open, read_and_compare};
use crate::disk::data_files;
use crate::kept::cached;
use crate::support::mounts::{Daemon, trial};
use crate::support::{BUCKET, Effect, Fault, Kind, REGION, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("what_was_warmed_is_read_without_a_request_and_warmed_once", through_a_mount),
        trial("a_bucket_is_warmed_without_a_mount_into_the_disk_that_mounts_read", without_a_mount),
        trial("a_client_that_is_killed_takes_its_warming_along", killed),
        trial("what_was_evicted_is_fetched_again", evicted),
        trial("warming_stops_at_its_bound_and_goes_on_from_a_list", bounded),
        trial("only_names_are_brought_into_memory_when_that_is_asked_for", metadata_only),
        trial("what_cannot_be_warmed_is_named", failures),
        trial("warm_of_a_damaged_object_fails_and_keeps_nothing", damaged),
        trial("a_mount_and_the_commands_follow_redirects", through_redirects),
        trial("a_redirect_to_another_host_names_the_option", to_a_stranger),
    ]
}

fn damaged() {
    let server = S3Server::start();
    for (name, size) in [("small", 300_000), ("large", 10 << 20)] {
        let content: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
        let dir = tempfile::tempdir().expect("a directory can be made");
        let local = dir.path().join("file");
        fs::write(&local, &content).expect("there is room");
        let target = format!("s3://{BUCKET}/{name}");
        windlass(&server, &["put", "--endpoint", &server.endpoint()], &[&local, Path::new(&target)]).succeeds();
        let spill = tempfile::tempdir().expect("a directory can be made");
        let at = spill.path().to_str().expect("it is text");
        let warm = || windlass(&server, &["warm", "--endpoint", &server.endpoint(), "--spill-dir", at, &target], &[]);
        server.spoil(name, size as usize - 5);
        server.reset_log();
        let said = warm();
        assert!(said.code != Some(0) && said.err.contains("CRC-64/NVME"), "{}{}", said.out, said.err);
        // Once more and then no more; the second attempt may find chunks of the first in memory.
        let gets = server.count(Kind::Get);
        assert!(if name == "small" { gets == 2 } else { (4..=6).contains(&gets) }, "{name}: {gets}");
        // Whole again, it is brought anew: nothing wrong was kept.
        server.spoil(name, size as usize - 5);
        server.reset_log();
        warm().succeeds();
        assert_eq!(server.count(Kind::Get), if name == "small" { 1 } else { 3 });
    }
}

/// An endpoint that holds nothing: it redirects every request to `worker`.
fn front_of(worker: &S3Server) -> S3Server {
    let front = S3Server::start();
    front.fault(Fault::new(Effect::Redirect(worker.endpoint())));
    front
}

fn through_redirects() {
    let (worker, dir) = (S3Server::start(), tempfile::tempdir().expect("a directory can be made"));
    let front = front_of(&worker);
    let host = worker.endpoint().replace("http://", "");
    let content: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (local, back, spill) = (dir.path().join("local"), dir.path().join("back"), dir.path().join("spill"));
    fs::write(&local, &content).expect("there is room");
    fs::create_dir(&spill).expect("it is empty");
    let source = format!("s3://{BUCKET}/put");
    let run = |command: &str, more: &[&str], paths: &[&Path]| {
        let common = ["--endpoint", &front.endpoint(), "--redirect-hosts", &host];
        windlass(&front, &[&[command], &common[..], more].concat(), paths).succeeds();
    };
    run("put", &[], &[&local, Path::new(&source)]);
    assert!(worker.stored("put").expect("it was put").0 == content);
    run("get", &[], &[Path::new(&source), &back]);
    assert!(fs::read(&back).expect("it was fetched") == content);
    run("warm", &["--spill-dir", spill.to_str().expect("it is text"), &source], &[]);

    let mount = Daemon::new(&front).arg("--redirect-hosts", &host).start();
    assert!(fs::read(mount.join("put")).expect("it can be read") == content);
    fs::write(mount.join("written"), &content).expect("it can be written");
    fs::rename(mount.join("written"), mount.join("renamed")).expect("it can be renamed");
    assert!(worker.stored("renamed").expect("it was written").0 == content && worker.stored("written").is_none());
    fs::remove_file(mount.join("put")).expect("it can be removed");
    assert!(worker.stored("put").is_none());
}

fn to_a_stranger() {
    let worker = S3Server::start();
    let front = front_of(&worker);
    let text = Daemon::new(&front).refused();
    assert!(text.contains("--redirect-hosts") && text.contains(&worker.port().to_string()), "{text}");
    assert!(!text.contains("needs permission") && !text.contains("region"), "{text}");
    assert_eq!(worker.requests().len(), 0);
}

/// How the program ended and what it said.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    #[track_caller]
    fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self
    }
}

fn command(server: &S3Server, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(server.client_env());
    // Requests are counted: on a machine that is busy enough some are late, and would be sent twice.
    command.env("WINDLASS_HEDGE", "false").env("WINDLASS_STALL_TIMEOUT", "60s").stdin(Stdio::null());
    command
}

#[track_caller]
fn windlass(server: &S3Server, args: &[&str], paths: &[&Path]) -> Said {
    let output = command(server, args).args(paths).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("it speaks UTF-8");
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

const SIZES: [(&str, u64); 4] = [("set/a", 9 * MIB + 13), ("set/sub/b", 5 * MIB), ("set/sub/deep/c", 100 * KIB), ("set/empty", 0)];

fn put_set(server: &S3Server) {
    for (key, size) in SIZES {
        server.put_synthetic(key, size);
    }
    server.put_synthetic("other", 3 * MIB);
}

/// Reads the set past the kernel's pages, and how many GETs that took.
fn read_set(server: &S3Server, root: &Path) -> usize {
    server.reset_log();
    for (key, size) in SIZES {
        let content = server.synthetic(key).expect("it was put");
        read_and_compare(&open(&root.join(key), Through::Direct), content, 0..size, MIB);
    }
    server.count(Kind::Get)
}

fn through_a_mount() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    put_set(&server);
    let mount = cached(&server, disk.path());
    let said = windlass(&server, &["warm"], &[&mount.join("set")]).succeeds();
    assert!(said.out.contains("4 objects, 14.10 MiB on the disk, of which 0 B were there"), "{}", said.out);
    assert!(gets(&server, "other").is_empty());
    assert_eq!(read_set(&server, mount.path()), 0);
    server.reset_log();
    let said = windlass(&server, &["warm"], &[&mount.join("set/sub"), &mount.join("set/a")]).succeeds();
    assert_eq!(server.count(Kind::Get), 0, "it is all there");
    assert!(said.out.contains("3 objects, 14.10 MiB on the disk, of which 14.10 MiB were there"), "{}", said.out);
    // Begun by a reader, ended by the warming: nothing twice.
    server.put_synthetic("half", 16 * MIB);
    let half = mount.join("half");
    let content = server.synthetic("half").expect("it was put");
    let file = open(&half, Through::Direct);
    read_and_compare(&file, content, 0..4 * MIB, MIB);
    windlass(&server, &["warm"], &[&half]).succeeds();
    let asked: u64 = gets(&server, "half").iter().map(|request| request.bytes_sent).sum();
    assert!(asked <= 16 * MIB, "{asked} bytes were sent");
}

fn without_a_mount() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    put_set(&server);
    let (endpoint, dir) = (server.endpoint(), disk.path().to_str().expect("it is text").to_owned());
    let (set, one) = (format!("s3://{BUCKET}/set/"), format!("s3://{BUCKET}/other"));
    let words = ["warm", "--endpoint", &endpoint, "--region", REGION, "--path-style", "--spill-dir", &dir, &set, &one];
    let said = windlass(&server, &words, &[]).succeeds();
    assert!(said.out.starts_with("windlass: 5 objects"), "{}", said.out);
    server.reset_log();
    let again = windlass(&server, &words, &[]).succeeds();
    assert_eq!(server.count(Kind::Get), 0, "{}", again.out);
    let mount = cached(&server, disk.path());
    assert_eq!(read_set(&server, mount.path()), 0);
    let no_disk = windlass(&server, &["warm", "--endpoint", &endpoint, "--region", REGION, "--path-style", &set], &[]);
    assert!(no_disk.code == Some(2) && no_disk.err.contains("--spill-dir"), "{}", no_disk.err);
}

/// A store that sends a MiB a second keeps the first object busy for much longer than a kill takes.
fn killed() {
    const OBJECTS: usize = 6;
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    for n in 0..OBJECTS {
        server.put_synthetic(&format!("d/{n}"), 12 * MIB);
    }
    let last = server.put_synthetic("large", 96 * MIB);
    let mount = cached(&server, disk.path());
    server.fault(Fault::new(Effect::Bandwidth(1 << 20)).kind(Kind::Get));
    let mut client = command(&server, &["warm", "--parallel", "1"]).arg(mount.join("d")).stdout(Stdio::null()).spawn().expect("it starts");
    assert!(server.wait_for(|requests| requests.iter().any(|request| request.key == "d/0" && request.kind == Kind::Get)));
    client.kill().expect("it is our child");
    client.wait().expect("it is our child");
    server.clear_faults();
    // Takes as long as the rest of the warming would.
    read_and_compare(&open(&mount.join("large"), Through::Direct), last, 0..96 * MIB, MIB);
    let began: Vec<usize> = (0..OBJECTS).filter(|n| !gets(&server, &format!("d/{n}")).is_empty()).collect();
    assert_eq!(began, [0], "objects that were asked for");
    // What it left is no hindrance.
    windlass(&server, &["warm"], &[&mount.join("d")]).succeeds();
    server.reset_log();
    for n in 0..OBJECTS {
        let content = server.synthetic(&format!("d/{n}")).expect("it was put");
        read_and_compare(&open(&mount.join(format!("d/{n}")), Through::Direct), content, 0..12 * MIB, MIB);
    }
    assert_eq!(server.count(Kind::Get), 0);
}

fn evicted() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    put_set(&server);
    let mount = cached(&server, disk.path());
    windlass(&server, &["warm"], &[&mount.join("set"), &mount.join("other")]).succeeds();
    let before = data_files(disk.path()).len();
    assert_eq!(before, 4, "one for each that is not empty");
    let said = windlass(&server, &["evict"], &[&mount.join("set/a")]).succeeds();
    assert!(said.out.contains("MiB freed"), "{}", said.out);
    assert_eq!(data_files(disk.path()).len(), 3);
    assert!(read_set(&server, mount.path()) > 0);
    assert!(!gets(&server, "set/a").is_empty() && gets(&server, "set/sub/b").is_empty());
    windlass(&server, &["evict"], &[&mount.join("set")]).succeeds();
    assert_eq!(data_files(disk.path()).len(), 1, "what is elsewhere stays");
    read_set(&server, mount.path());
    assert!(!gets(&server, "set/sub/b").is_empty());
    let none = windlass(&server, &["evict"], &[&mount.join("nothing/here")]).succeeds();
    assert!(none.out.contains("0 B freed"), "{}", none.out);
}

fn bounded() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    for n in 0..6 {
        server.put_synthetic(&format!("d/{n}"), 2 * MIB);
    }
    let mount = cached(&server, disk.path());
    let fetched = || (0..6).filter(|n| !gets(&server, &format!("d/{n}")).is_empty()).collect::<Vec<_>>();
    let said = windlass(&server, &["warm", "--max-bytes", "5MiB"], &[&mount.join("d")]).succeeds();
    assert!(said.out.contains("2 objects") && said.out.contains("stopped at --max-bytes"), "{}", said.out);
    assert_eq!(fetched(), [0, 1]);
    let list = disk.path().join("list");
    let lines = [1, 4, 3].map(|n| format!("{}\n", mount.join(format!("d/{n}")).display())).concat();
    fs::write(&list, format!("{lines}\n")).expect("it can be written");
    let said = windlass(&server, &["warm", "--from-file", list.to_str().expect("text"), "--parallel", "2"], &[]).succeeds();
    assert!(said.out.contains("3 objects, 6.00 MiB on the disk, of which 2.00 MiB were there"), "{}", said.out);
    assert_eq!(fetched(), [0, 1, 3, 4]);
    let absent = windlass(&server, &["warm", "--from-file", "/nowhere/list"], &[]);
    assert!(absent.code == Some(2) && absent.err.contains("/nowhere/list"), "{}", absent.err);
}

fn metadata_only() {
    let server = S3Server::start();
    put_set(&server);
    let mount = Daemon::new(&server).start();
    let refused = windlass(&server, &["warm"], &[&mount.join("set")]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("--read-mode") && refused.err.contains("--metadata-only"), "{}", refused.err);
    let said = windlass(&server, &["warm", "--metadata-only"], &[&mount.join("set")]).succeeds();
    assert!(said.out.contains("4 objects known"), "{}", said.out);
    server.reset_log();
    for (key, size) in SIZES {
        assert_eq!(fs::metadata(mount.join(key)).expect("there").len(), size);
    }
    assert_eq!(fs::read_dir(mount.join("set/sub")).expect("there").count(), 2);
    let asked: Vec<_> = server.requests().iter().map(|request| (request.kind, request.key.clone())).collect();
    // Only what the directory itself is was not in a listing.
    assert!(asked.iter().all(|(_, key)| matches!(key.as_str(), "set" | "set/" | "")), "{asked:?}");
    assert_eq!(server.count(Kind::Get), 0);
    let evict = windlass(&server, &["evict"], &[&mount.join("set")]);
    assert!(evict.code == Some(1) && evict.err.contains("keeps nothing on a disk"), "{}", evict.err);
}

fn failures() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    put_set(&server);
    let mount = cached(&server, disk.path());
    assert_eq!(fs::read_dir(mount.join("set")).expect("there").count(), 3);
    server.delete("set/a");
    let said = windlass(&server, &["warm"], &[&mount.join("set"), &mount.join("nowhere")]);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    for word in ["set/a", "nowhere", "2 of what was asked for"] {
        assert!(said.err.contains(word), "{word:?} is missing in {}", said.err);
    }
    assert!(said.out.contains("3 objects"), "{}", said.out);
    let content = server.synthetic("set/sub/b").expect("it was put");
    server.reset_log();
    read_and_compare(&open(&mount.join("set/sub/b"), Through::Direct), content, 0..5 * MIB, MIB);
    assert_eq!(server.count(Kind::Get), 0, "the others are there");
    let flag = windlass(&server, &["warm", "--spill-dir", "/x"], &[&mount.join("set")]);
    assert!(flag.code == Some(2) && flag.err.contains("--spill-dir goes with a SOURCE"), "{}", flag.err);
}
