//! What a drain may give up: nothing that a successor can go on with, nothing that a little more of its time would store, and no staged bytes
//! that the next mount would find.

use std::fs;
use std::process::Command;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::endings::{Call, Column, Content, When, name};
use crate::sidecar::{Handed, Sidecar};
use crate::support::app::Killed;
use crate::support::disturbed::too_old;
use crate::support::keeper::Kept;
use crate::support::mounts::{Daemon, Mount, trial_unless, wait_until};
use crate::support::{Effect, Fault, Kind, S3Server, python};

pub fn trials() -> Vec<Trial> {
    let sidecar = |name, content, disturbed| trial_unless(lacks_sidecars, name, move || sidecar(content, disturbed));
    let alone = |name, test: fn()| trial_unless(|| python::lacks("os, select"), name, test);
    use {Content::*, Disturbed::*};
    vec![
        sidecar("sidecar_sigterm_before_a_quiet_app_is_no_false_ok", Streams, Not),
        sidecar("sidecar_sigterm_before_an_app_that_writes_is_no_false_ok", Streams, ByWrites),
        sidecar("sidecar_sigterm_and_one_failed_commit_is_no_false_ok", Streams, ByFailure),
        sidecar("sidecar_sigterm_to_its_process_group_is_no_false_ok", Streams, ByGroup),
        sidecar("sidecar_sigterm_before_a_replaced_file_mixes_no_versions", Replaces, ByWrites),
        sidecar("sidecar_sigterm_before_a_staged_file_mixes_no_versions", Staged, ByWrites),
        trial_unless(lacks_sidecars, "drain_with_successor_keeps_an_idle_file_that_streams", || idle(Streams)),
        trial_unless(lacks_sidecars, "drain_with_successor_keeps_an_idle_file_that_is_staged", || idle(Staged)),
        alone("drain_after_one_failed_commit_waits_for_other_files", others),
        alone("drain_tries_a_failed_commit_again_within_its_time", tries_again),
        alone("spill_keeps_staged_bytes_of_a_release_that_failed", release_failed),
        alone("spill_keeps_staged_bytes_of_a_release_in_a_drain", release_in_drain),
        alone("spill_keeps_staged_bytes_of_a_release_before_a_kill", release_before_kill),
    ]
}

fn lacks_sidecars() -> Option<String> {
    let no_root = || (!rustix::process::geteuid().is_root()).then(|| "only root may mount for somebody else".to_owned());
    python::lacks("os, select").or_else(too_old).or_else(no_root)
}

/// What happens while the daemon drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbed {
    Not,
    /// The app does not know, and writes.
    ByWrites,
    /// The store refuses one commit.
    ByFailure,
    /// The signal reaches the daemon and what started it, which passes it on.
    ByGroup,
}

/// `windlass sidecar` with its daemon.
fn start_sidecar(handed: &Handed<'_>, kept: &Kept) -> Sidecar {
    let pod = kept.beside("pod");
    fs::create_dir_all(pod.join("data")).expect("it can be made");
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.arg("sidecar").arg("--dir").arg(&pod).arg("--").args(handed.options());
    handed.start_at(&pod.join("data/mount.sock"), command)
}

const WRITTEN: u64 = 60 << 20;

/// An app writes 60 MiB and pauses; the sidecar gets one SIGTERM; the next one goes on with the mount, and the app with its file.
fn sidecar(content: Content, disturbed: Disturbed) {
    let (server, kept) = (S3Server::start(), Kept::mount());
    let shape = (Call::Write, When::JustDone, content);
    Column::prepare(&server, shape);
    let handed = Handed::new(&server, &kept).with(&["--retries=0"]);
    let mut daemon = start_sidecar(&handed, &kept);
    let mut file = Column::open(&server, kept.path().to_owned(), shape);
    if content != Content::Staged {
        for at in (file.expected.len()..WRITTEN).step_by(1 << 20) {
            assert!(file.write(at, 1 << 20).is_ok());
        }
    }
    if disturbed == Disturbed::ByFailure {
        server.fault(Fault::new(Effect::Status(403)).kind(Kind::CompleteUpload).first(1));
        file.is_refused_next = true;
    }
    if disturbed == Disturbed::ByGroup {
        // The daemon first, so that it has heard one signal when the other one comes.
        let log = handed.log();
        let pid = log.lines().rev().find_map(|line| line.split_once("a daemon begins")?.1.rsplit_once("pid=")?.1.trim().parse().ok());
        kill_process(pid.and_then(Pid::from_raw).expect("it is in the log"), Signal::TERM).expect("it runs");
        wait_until("the daemon drains", || handed.log().contains("ending reason="));
    }
    kill_process(daemon.pid(), Signal::TERM).expect("it runs");
    if disturbed == Disturbed::ByWrites {
        wait_until("the daemon drains", || handed.log().contains("ending reason="));
        // Refused by the daemon that drains, or answered by the next one.
        file.begin_write();
    }
    let status = daemon.wait();
    let mut next = start_sidecar(&handed, &kept);
    if disturbed == Disturbed::ByWrites {
        file.finish_write();
    }
    let answers = file.go_on();
    kill_process(next.pid(), Signal::TERM).expect("it runs");
    next.wait();
    file.check();
    assert!(file.wrong.is_empty(), "{status:?}, {answers:?}:\n  {}\n{}", file.wrong.join("\n  "), handed.log());
}

/// An open file that is not written to at the moment is not finished, and not lost either: the successor has all of it.
fn idle(content: Content) {
    let (server, kept) = (S3Server::start(), Kept::mount());
    let shape = (Call::Write, When::JustDone, content);
    Column::prepare(&server, shape);
    let handed = Handed::new(&server, &kept).with(&["--retries=0", "--drain-timeout=25s", "--upload-part-size=5MiB"]);
    let mut daemon = handed.start();
    let mut file = Column::open(&server, kept.path().to_owned(), shape);
    for kind in [Kind::Put, Kind::CompleteUpload] {
        server.fault(Fault::new(Effect::Status(403)).kind(kind).key(&file.name).first(1));
    }
    kill_process(daemon.pid(), Signal::TERM).expect("it runs");
    let status = daemon.wait();
    server.clear_faults();
    let mut next = handed.start();
    let answers = file.go_on();
    kill_process(next.pid(), Signal::TERM).expect("it runs");
    next.wait();
    file.check();
    assert!(file.wrong.is_empty(), "{status:?}, {answers:?}:\n  {}\n{}", file.wrong.join("\n  "), handed.log());
    assert!(answers.iter().all(|(_, answer)| answer.is_ok()), "it is lost: {status:?}, {answers:?}\n{}", handed.log());
}

/// Files that are open and idle when their daemon is asked to end: the first commit is refused once, that of the second is held up.
fn drain_of_three(server: &S3Server) -> (Mount, Vec<Column<'_>>) {
    let shapes = [Call::Write, Call::Fsync, Call::Rename].map(|call| (call, When::JustDone, Content::Streams));
    shapes.iter().for_each(|shape| Column::prepare(server, *shape));
    let mount = Daemon::new(server).arg("--retries", "0").arg("--upload-part-size", "5MiB").start();
    let files: Vec<_> = shapes.into_iter().map(|shape| Column::open(server, mount.path().to_owned(), shape)).collect();
    let keys = shapes.map(name);
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::CompleteUpload).key(&keys[0]).first(1));
    server.fault(Fault::new(Effect::Held).kind(Kind::CompleteUpload).key(&keys[1]));
    mount.signal(Signal::TERM);
    let asked = |key: &str| server.wait_for(|requests| requests.iter().any(|r| r.kind == Kind::CompleteUpload && r.key == key));
    assert!(keys.iter().all(|key| asked(key)), "all are committed");
    let refused = |requests: &[crate::support::Request]| requests.iter().any(|request| request.key == keys[0] && request.status == 403);
    assert!(server.wait_for(refused));
    (mount, files)
}

fn others() {
    let server = S3Server::start();
    let (mut mount, files) = drain_of_three(&server);
    mount.wait_for_log(|log| log.contains("a file that is open could not be stored"));
    server.clear_faults();
    let code = mount.wait().code();
    for file in &files[1..] {
        assert!(file.is_whole(), "{}: exit code {code:?}, and the object {}", file.name, file.describe());
    }
}

fn tries_again() {
    let server = S3Server::start();
    let (mut mount, files) = drain_of_three(&server);
    server.clear_faults();
    let code = mount.wait().code();
    for file in &files {
        assert!(file.is_whole(), "{}: exit code {code:?}, and the object {}\n{}", file.name, file.describe(), mount.log());
    }
    assert_eq!(code, Some(0), "{}", mount.log());
}

/// Requests by which content gets into the bucket.
const STORES: [Kind; 5] = [Kind::Put, Kind::CreateUpload, Kind::UploadPart, Kind::CopyPart, Kind::CompleteUpload];

/// A staged file whose app was killed: no close hears what becomes of it.
struct Orphan {
    server: S3Server,
    disk: tempfile::TempDir,
}

impl Orphan {
    fn new() -> Self {
        Self { server: S3Server::start(), disk: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    fn mount(&self, time: &str) -> Mount {
        let disk = self.disk.path().to_str().expect("it is text");
        Daemon::new(&self.server).arg("--spill-dir", disk).arg("--retries", "0").arg("--drain-timeout", time).start()
    }

    /// Writes to a file of `mount` and kills the app, while the store does `effect` to all that would store it.
    fn write<'a>(&'a self, mount: &Mount, effect: &Effect) -> (Column<'a>, Killed) {
        let shape = (Call::Write, When::JustDone, Content::Staged);
        let mut file = Column::open(&self.server, mount.path().to_owned(), shape);
        for kind in STORES {
            self.server.fault(Fault::new(effect.clone()).kind(kind));
        }
        let killed = file.kill_app();
        assert!(self.server.wait_for(|requests| requests.iter().any(|request| STORES.contains(&request.kind))), "it is committed");
        (file, killed)
    }

    /// Whether the next mount has stored the file, or names it and keeps its bytes.
    fn check(&self, file: &Column<'_>, before: &str) {
        self.server.clear_faults();
        let staging = self.disk.path().join("staging");
        let files = || -> Vec<String> {
            let entries = fs::read_dir(&staging).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let left = files();
        let is_stored = file.is_whole();
        assert!(is_stored || left.iter().any(|name| name.ends_with(".data")), "its bytes are gone: {left:?}\n{before}");
        let mut mount = self.mount("25s");
        let is_named = |log: &str| log.lines().any(|line| line.contains("its bytes are kept") && line.contains(&file.name));
        wait_until("it is stored or named", || file.is_whole() || is_named(&mount.log()));
        mount.signal(Signal::TERM);
        mount.wait();
        let is_kept = files().iter().any(|name| name.ends_with(".data"));
        assert!(file.is_whole() || is_kept, "named, and its bytes are gone\n{}", mount.log());
        let object = self.server.stored(&file.name).expect("it was there from the beginning").0;
        assert!(file.is_whole() || file.before.as_deref() == Some(&object[..]), "the object {}", file.describe());
    }
}

fn release_failed() {
    let orphan = Orphan::new();
    Column::prepare(&orphan.server, (Call::Write, When::JustDone, Content::Staged));
    let mut mount = orphan.mount("25s");
    let (file, killed) = orphan.write(&mount, &Effect::Status(503));
    killed.wait();
    let refused = |requests: &[crate::support::Request]| requests.iter().any(|request| request.status == 503);
    assert!(orphan.server.wait_for(refused));
    // The kernel says that it is released without waiting: answers to what is asked later come when it was heard.
    for name in ["a", "b", "c", "d"] {
        assert!(fs::metadata(mount.join(name)).is_err());
    }
    mount.signal(Signal::TERM);
    mount.wait();
    orphan.check(&file, &mount.log());
}

fn release_in_drain() {
    let orphan = Orphan::new();
    Column::prepare(&orphan.server, (Call::Write, When::JustDone, Content::Staged));
    let mut mount = orphan.mount("2s");
    let (file, _killed) = orphan.write(&mount, &Effect::Held);
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(5), "{}", mount.log());
    orphan.check(&file, &mount.log());
}

fn release_before_kill() {
    let orphan = Orphan::new();
    Column::prepare(&orphan.server, (Call::Write, When::JustDone, Content::Staged));
    let mut mount = orphan.mount("25s");
    let (file, _killed) = orphan.write(&mount, &Effect::Held);
    mount.signal(Signal::KILL);
    mount.wait();
    let log = mount.log();
    drop(mount);
    orphan.check(&file, &log);
}
