//! The matrix of endings: a daemon ends in each way, with and without a successor, while programs write, fsync, close, rename and unlink files
//! that stream and files that are staged, or have just done so. Invariant: what returned 0, before the ending or after it, is complete in the
//! bucket; of what is not complete every later write, fsync and close fails; no object is ever a mixture that its file never was.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::program::Supervised;
use crate::sidecar::{Handed, Sidecar};
use crate::support::app::{Answer, App, Expected, Killed};
use crate::support::cgroup::Cgroup;
use crate::support::disturbed::too_old;
use crate::support::keeper::Kept;
use crate::support::mounts::{Daemon, Mount, trial_unless, wait_until};
use crate::support::{Effect, Fault, Kind, S3Server, python};

pub fn trials() -> Vec<Trial> {
    use {Arrangement::*, Ending::*};
    vec![
        matrix("ending_by_sigterm_alone_says_what_is_lost", Sigterm, Alone),
        matrix("ending_by_sigterm_with_successor_says_what_is_lost", Sigterm, Sidecars),
        matrix("ending_by_two_sigterms_alone_says_what_is_lost", TwoSigterms, Alone),
        matrix("ending_by_two_sigterms_with_successor_says_what_is_lost", TwoSigterms, Sidecars),
        matrix("ending_by_drain_timeout_alone_says_what_is_lost", DrainTimeout, Alone),
        matrix("ending_by_drain_timeout_with_successor_says_what_is_lost", DrainTimeout, Sidecars),
        matrix("ending_by_kill_alone_says_what_is_lost", Kill, Alone),
        matrix("ending_by_kill_with_successor_says_what_is_lost", Kill, Sidecars),
        matrix("ending_by_kill_under_a_supervisor_says_what_is_lost", Kill, UnderSupervisor),
        matrix("ending_by_oom_alone_says_what_is_lost", OutOfMemory, Alone),
        matrix("ending_by_oom_with_successor_says_what_is_lost", OutOfMemory, Sidecars),
        matrix("ending_by_oom_under_a_supervisor_says_what_is_lost", OutOfMemory, UnderSupervisor),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Sigterm,
    TwoSigterms,
    /// SIGTERM, and a store that takes nothing until the time is over.
    DrainTimeout,
    Kill,
    /// The kernel kills it for want of memory.
    OutOfMemory,
}

/// What becomes of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrangement {
    /// It ends with its daemon.
    Alone,
    /// Its keeper gives it to the next daemon.
    Sidecars,
    /// Its supervisor starts the next daemon.
    UnderSupervisor,
}

/// Less than the daemon uses for what is being uploaded when it may, which is a quarter of its own limit.
const CGROUP: u64 = 256 << 20;
const FILLERS: usize = 8;
const MEMORY_LIMIT: &str = "--memory-limit=2GiB";

fn matrix(name: &'static str, ending: Ending, arrangement: Arrangement) -> Trial {
    let lacks = move || {
        let no_root = || (!rustix::process::geteuid().is_root()).then(|| "only root may mount for somebody else".to_owned());
        let no_cgroup = || Cgroup::make(CGROUP).err();
        python::lacks("os, select")
            .or_else(|| if arrangement == Arrangement::Alone { None } else { too_old() })
            .or_else(|| if arrangement == Arrangement::Sidecars { no_root() } else { None })
            .or_else(|| if ending == Ending::OutOfMemory { no_cgroup() } else { None })
    };
    trial_unless(lacks, name, move || {
        for round in 0..rounds() {
            eprintln!("{name}: round {round}");
            run(ending, arrangement);
        }
    })
}

/// How often each trial is repeated.
pub fn rounds() -> usize {
    std::env::var("WINDLASS_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A new name, front to back.
    Streams,
    /// The same over an object, which is emptied first.
    Replaces,
    /// An object that is edited in place, here and there.
    Staged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Write,
    Fsync,
    Close,
    Rename,
    Unlink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    InProgress,
    JustDone,
}

const COLUMNS: [(Call, When, Content); 23] = {
    use {Call::*, Content::*, When::*};
    [
        (Write, InProgress, Streams),
        (Write, InProgress, Replaces),
        (Write, InProgress, Staged),
        (Write, JustDone, Streams),
        (Write, JustDone, Replaces),
        (Write, JustDone, Staged),
        (Fsync, InProgress, Streams),
        (Fsync, InProgress, Staged),
        (Fsync, JustDone, Streams),
        (Fsync, JustDone, Staged),
        (Close, InProgress, Streams),
        (Close, InProgress, Replaces),
        (Close, InProgress, Staged),
        (Close, JustDone, Streams),
        (Close, JustDone, Staged),
        (Rename, InProgress, Streams),
        (Rename, InProgress, Staged),
        (Rename, JustDone, Streams),
        (Rename, JustDone, Staged),
        (Unlink, InProgress, Streams),
        (Unlink, InProgress, Staged),
        (Unlink, JustDone, Streams),
        (Unlink, JustDone, Staged),
    ]
};

/// In a directory of its own: the kernel lets one call at a time change the names of a directory.
pub fn name((call, when, content): (Call, When, Content)) -> String {
    format!("{call:?}-{when:?}-{content:?}/file").to_lowercase()
}

/// The least that stores take: files of a few MiB have several parts.
const PART: &str = "5MiB";
const SIZE: u64 = 6 << 20;

/// What objects hold before they are written to; no write has this byte.
const OLD: u8 = 255;

/// A file, its program, and what is known of it.
pub struct Column<'a> {
    server: &'a S3Server,
    call: Call,
    when: When,
    content: Content,
    pub name: String,
    app: Option<App>,
    pub expected: Expected,
    /// What the bucket had under the name at first.
    pub before: Option<Vec<u8>>,
    /// What `Call` returned, if that is not a write.
    answer: Option<Answer>,
    /// Whether the last fsync or close was acknowledged, and nothing was written since.
    is_stored: bool,
    next_byte: u8,
    top: PathBuf,
    /// The store refuses the next commit: what is written before that is not lost yet.
    pub is_refused_next: bool,
    /// What is wrong.
    pub wrong: Vec<String>,
}

/// How long a piece of a writer that does not stop is, and how far it goes in an object that is edited in place.
const PIECE: u64 = 16 << 10;

impl<'a> Column<'a> {
    /// Puts into the bucket what is there before.
    pub fn prepare(server: &S3Server, column: (Call, When, Content)) {
        let name = name(column);
        server.put(&format!("{name}-beside"), "keeps the directory");
        if column.2 != Content::Streams {
            server.put(&name, vec![OLD; SIZE as usize]);
        }
    }

    fn app(&mut self) -> &mut App {
        self.app.as_mut().expect("it was not killed")
    }

    /// Kills the app, so that the kernel closes the file.
    pub fn kill_app(&mut self) -> Killed {
        self.app.take().expect("it was not killed").kill()
    }

    /// A write that may be answered by another daemon.
    pub fn begin_write(&mut self) {
        let (at, byte) = (self.next_write(), self.next_byte);
        self.app().begin(&format!("write {at} 1000 {byte}"));
    }

    /// Its answer.
    pub fn finish_write(&mut self) {
        let (at, byte) = (self.next_write(), self.next_byte);
        self.next_byte = byte % 250 + 1;
        let answer = self.app().answer();
        self.expected.on_write(at, 1000, byte, answer);
        self.is_stored = false;
    }

    /// Where the app goes on.
    fn next_write(&self) -> u64 {
        if self.content == Content::Staged { 3 << 20 } else { self.expected.len() }
    }

    /// Opens the file and writes to it, up to the moment before its call.
    pub fn open(server: &'a S3Server, top: PathBuf, (call, when, content): (Call, When, Content)) -> Self {
        let name = name((call, when, content));
        let before = (content != Content::Streams).then(|| vec![OLD; SIZE as usize]);
        let flags = match content {
            Content::Streams => "O_WRONLY|O_CREAT|O_EXCL",
            Content::Replaces => "O_WRONLY|O_TRUNC",
            Content::Staged => "O_RDWR",
        };
        let app = Some(App::open(&top.join(&name), flags));
        let expected = Expected::of(if content == Content::Staged { vec![OLD; SIZE as usize] } else { Vec::new() });
        let (answer, is_stored, is_refused_next, next_byte, wrong) = (None, false, false, 1, Vec::new());
        let mut column =
            Self { server, call, when, content, name, app, expected, before, answer, is_stored, next_byte, top, is_refused_next, wrong };
        let writes = match content {
            Content::Staged => [(1 << 20, 65536), (SIZE - 2_500_000, 100_000), (100, 5)],
            Content::Streams | Content::Replaces => [(0, 3 << 20), (3 << 20, 2 << 20), (5 << 20, 1 << 20)],
        };
        for (at, len) in writes {
            let answer = column.write(at, len);
            assert!(answer.is_ok(), "{}: {answer:?}", column.name);
        }
        column
    }

    fn renamed(&self) -> String {
        format!("{}.new", self.name)
    }

    pub fn write(&mut self, at: u64, len: u64) -> Answer {
        let byte = self.next_byte;
        self.next_byte = byte % 250 + 1;
        let answer = self.app().call(&format!("write {at} {len} {byte}"));
        self.expected.on_write(at, len, byte, answer);
        self.is_stored = false;
        answer
    }

    fn path(&self) -> String {
        self.top.join(&self.name).display().to_string()
    }

    /// fsync, close, or the close of a duplicate, with what has to be so if it succeeds.
    fn sync(&mut self, call: &str) -> Answer {
        let answer = self.app().call(call);
        self.on_sync(call, answer);
        answer
    }

    fn on_sync(&mut self, call: &str, answer: Answer) {
        self.is_stored = answer.is_ok();
        if answer.is_ok() && !self.is_unlinked() && !self.is_whole() {
            self.wrong.push(format!("{call} returned 0, and the object {}", self.describe()));
        }
    }

    fn busy(&self) -> (u64, u64) {
        if self.content == Content::Staged { (0, SIZE) } else { (self.expected.len(), 1 << 40) }
    }

    /// Makes the call, or begins it and waits until it is on its way.
    fn begin(&mut self) {
        let (path, renamed) = (self.path(), self.top.join(self.renamed()).display().to_string());
        let needs_object = matches!(self.call, Call::Rename | Call::Unlink) && self.content == Content::Streams;
        match (self.call, self.when) {
            (Call::Write, When::JustDone) => {}
            (Call::Write, When::InProgress) => {
                let (at, span) = self.busy();
                let call = format!("busy {at} {PIECE} {span} {}", self.next_byte);
                self.app().begin(&call);
                assert!(self.app().answer().is_ok(), "the first of its writes is acknowledged");
            }
            (Call::Fsync, When::JustDone) => assert!(self.sync("fsync").is_ok()),
            (Call::Close, When::JustDone) => {
                let answer = self.sync("close");
                assert!(answer.is_ok(), "{answer:?}");
                self.answer = Some(answer);
            }
            (Call::Fsync | Call::Close, When::InProgress) => {
                for kind in [Kind::Put, Kind::CompleteUpload] {
                    self.server.fault(Fault::new(Effect::Held).kind(kind).key(&self.name));
                }
                let call = if self.call == Call::Fsync { "fsync" } else { "close" };
                self.app().begin(call);
                self.wait_for(&[Kind::Put, Kind::CompleteUpload], &self.name.clone());
            }
            (Call::Rename, When::JustDone) => self.answer = Some(self.app().call(&format!("rename {path} {renamed}"))),
            (Call::Unlink, When::JustDone) => self.answer = Some(self.app().call(&format!("unlink {path}"))),
            (Call::Rename, When::InProgress) => {
                if needs_object {
                    assert!(self.sync("fsync").is_ok());
                }
                self.server.fault(Fault::new(Effect::Held).kind(Kind::Copy).key(&self.renamed()));
                self.app().begin(&format!("rename {path} {renamed}"));
                self.wait_for(&[Kind::Copy], &self.renamed());
            }
            (Call::Unlink, When::InProgress) => {
                if needs_object {
                    assert!(self.sync("fsync").is_ok());
                }
                self.server.fault(Fault::new(Effect::Held).kind(Kind::Delete).key(&self.name));
                self.app().begin(&format!("unlink {path}"));
                self.wait_for(&[Kind::Delete], &self.name.clone());
            }
        }
        if self.when == When::JustDone {
            assert!(self.answer.is_none_or(Answer::is_ok), "{}: {:?}", self.name, self.answer);
        }
    }

    fn wait_for(&self, kinds: &[Kind], key: &str) {
        let is_there = self.server.wait_for(|requests| requests.iter().any(|request| kinds.contains(&request.kind) && request.key == key));
        assert!(is_there, "{}: no request of {kinds:?}", self.name);
    }

    /// Takes the answer to what was in progress.
    fn finish(&mut self) {
        if self.when != When::InProgress {
            return;
        }
        if self.call == Call::Write {
            let (at, span) = self.busy();
            self.app().begin("stop");
            let answer = self.app().answer();
            self.expected.on_busy(at, PIECE, span, self.next_byte.into(), answer);
            self.is_stored = false;
            return;
        }
        let answer = self.app().answer();
        self.answer = Some(answer);
        match self.call {
            Call::Fsync => self.on_sync("fsync in progress", answer),
            Call::Close => self.on_sync("close in progress", answer),
            Call::Write | Call::Rename | Call::Unlink => {}
        }
    }

    fn is_unlinked(&self) -> bool {
        self.call == Call::Unlink && self.answer.is_some_and(Answer::is_ok)
    }

    /// Names under which the file may be found: both as long as it is not known whether it was renamed.
    fn names(&self) -> Vec<String> {
        match (self.call, self.answer) {
            (Call::Rename, Some(answer)) if answer.is_ok() => vec![self.renamed()],
            (Call::Rename, _) => vec![self.name.clone(), self.renamed()],
            _ => vec![self.name.clone()],
        }
    }

    fn objects(&self) -> Vec<bytes::Bytes> {
        self.names().iter().filter_map(|name| Some(self.server.stored(name)?.0)).collect()
    }

    /// Whether the bucket has all that was acknowledged.
    pub fn is_whole(&self) -> bool {
        self.objects().iter().any(|object| self.expected.is_whole(object))
    }

    /// What the bucket has, for people.
    pub fn describe(&self) -> String {
        let describe = |object: &bytes::Bytes| {
            let mut runs: Vec<(u8, usize)> = Vec::new();
            for &byte in object {
                match runs.last_mut() {
                    Some((last, count)) if *last == byte => *count += 1,
                    _ => runs.push((byte, 1)),
                }
            }
            let shown: Vec<String> = runs.iter().take(12).map(|(byte, count)| format!("{count} x {byte}")).collect();
            format!("has {} bytes: {}{}", object.len(), shown.join(", "), if runs.len() > 12 { ", ..." } else { "" })
        };
        let found: Vec<String> = self.objects().iter().map(describe).collect();
        if found.is_empty() { "is not there".to_owned() } else { found.join("; ") }
    }

    /// Goes on with the file: all of it succeeds, or all of it fails.
    pub fn go_on(&mut self) -> Vec<(&'static str, Answer)> {
        if self.call == Call::Close {
            return Vec::new();
        }
        let write = |column: &mut Self| {
            let at = column.next_write();
            ("write", column.write(at, 1000))
        };
        let mut calls = vec![write(self)];
        calls.extend(["fsync", "fsync"].map(|call| (call, self.sync(call))));
        calls.push(write(self));
        calls.extend(["spare", "fsync", "close"].map(|call| (call, self.sync(call))));
        // Staged content that cannot be stored, since its object is another one, may go on: its fsync and close say so.
        let counts = |call: &str| call != "write" || self.content != Content::Staged;
        let judged = if self.is_refused_next { &calls[1..] } else { &calls };
        let succeeded: Vec<&str> = judged.iter().filter(|(call, answer)| answer.is_ok() && counts(call)).map(|(call, _)| *call).collect();
        if !self.is_unlinked() && !self.is_whole() && !succeeded.is_empty() {
            let what = format!("after the ending {} returned 0, and the object {}", succeeded.join(", "), self.describe());
            self.wrong.push(what);
        }
        calls
    }

    /// What has to be so at the end, when no daemon is there any more.
    pub fn check(&mut self) {
        let names = [self.name.clone(), self.renamed()];
        let is_there = |name: &str| self.server.stored(name).is_some();
        let mut wrong = Vec::new();
        if self.is_unlinked() {
            wrong.extend(names.iter().filter(|name| is_there(name)).map(|name| format!("unlink returned 0, and {name} is there")));
        }
        if self.call == Call::Rename && self.answer.is_some_and(Answer::is_ok) && is_there(&self.name) {
            wrong.push("rename returned 0, and the old name is there".into());
        }
        let was_stored = self.before.is_some() || matches!((self.call, self.when), (Call::Rename, When::InProgress));
        if was_stored && self.call != Call::Unlink && self.objects().is_empty() {
            wrong.push("nothing is there any more, neither old nor new".into());
        }
        if self.is_stored && !self.is_unlinked() && !self.is_whole() {
            wrong.push(format!("was acknowledged and not written to since, and the object {}", self.describe()));
        }
        let is_some_state = |object: &[u8]| self.before.as_deref() == Some(object) || self.expected.is_some_state(object);
        if !self.objects().iter().all(|object| is_some_state(object)) {
            wrong.push(format!("the file never was what the object is: it {}", self.describe()));
        }
        self.wrong.append(&mut wrong);
    }
}

/// The mount and the daemon that serves it.
enum Served<'a> {
    Alone(Mount),
    Sidecars { handed: Handed<'a>, daemon: Sidecar },
    UnderSupervisor { mount: Supervised, daemon: u32 },
}

impl<'a> Served<'a> {
    fn top(&self) -> PathBuf {
        match self {
            Self::Alone(mount) => mount.path().to_owned(),
            Self::Sidecars { handed, .. } => handed.path().to_owned(),
            Self::UnderSupervisor { mount, .. } => mount.mount.path().to_owned(),
        }
    }

    fn log(&self) -> String {
        match self {
            Self::Alone(mount) => mount.log(),
            Self::Sidecars { handed, .. } => handed.log(),
            Self::UnderSupervisor { mount, .. } => mount.mount.log(),
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = match self {
            Self::Alone(mount) => Pid::from_raw(mount.pid().cast_signed()).expect("it runs"),
            Self::Sidecars { daemon, .. } => daemon.pid(),
            Self::UnderSupervisor { daemon, .. } => Pid::from_raw(daemon.cast_signed()).expect("it runs"),
        };
        kill_process(pid, signal).expect("it is a process of ours");
    }

    /// Waits until the daemon has ended; its exit code is known only where no other process waits for it.
    fn wait(&mut self) -> Option<ExitStatus> {
        match self {
            Self::Alone(mount) => Some(mount.wait()),
            Self::Sidecars { daemon, .. } => Some(daemon.wait()),
            Self::UnderSupervisor { mount, daemon } => {
                wait_until("the daemon has ended", || mount.daemon() != Some(*daemon));
                None
            }
        }
    }

    /// Has the next daemon serve, where there is one.
    fn succeed(&mut self) {
        match self {
            Self::Alone(_) => {}
            Self::Sidecars { handed, daemon } => *daemon = handed.start(),
            Self::UnderSupervisor { mount, daemon } => {
                wait_until("another daemon", || mount.daemon().is_some_and(|pid| pid != *daemon));
                *daemon = mount.daemon().expect("it was there just now");
            }
        }
    }

    /// Ends the mount.
    fn end(self) -> String {
        match self {
            Self::Alone(mount) => mount.log(),
            Self::Sidecars { handed, mut daemon } => {
                kill_process(daemon.pid(), Signal::TERM).expect("it runs");
                daemon.wait();
                handed.log()
            }
            Self::UnderSupervisor { mut mount, .. } => {
                mount.mount.signal(Signal::TERM);
                mount.mount.wait();
                mount.mount.log()
            }
        }
    }
}

/// Everything from the mount to the last look into the bucket.
fn run(ending: Ending, arrangement: Arrangement) {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    COLUMNS.into_iter().for_each(|column| Column::prepare(&server, column));
    let cgroup = (ending == Ending::OutOfMemory).then(|| Arc::new(Cgroup::make(CGROUP).expect("it could be made")));
    let kept = (arrangement == Arrangement::Sidecars).then(Kept::mount);
    let time = if ending == Ending::DrainTimeout { "--drain-timeout=3s" } else { "--drain-timeout=25s" };
    let words = [&format!("--upload-part-size={PART}"), time, "--retries=2", MEMORY_LIMIT];
    let mut served = match &kept {
        Some(kept) => {
            let mut handed = Handed::new(&server, kept).with(&words);
            if let Some(cgroup) = &cgroup {
                handed = handed.in_cgroup(&cgroup.path);
            }
            let daemon = handed.start();
            Served::Sidecars { handed, daemon }
        }
        None => {
            let mut daemon = Daemon::new(&server).arg("--spill-dir", disk.path().to_str().expect("it is text"));
            daemon = words.iter().fold(daemon, |daemon, word| daemon.flag(word));
            if let Some(cgroup) = &cgroup {
                daemon = daemon.in_cgroup(&cgroup.path);
            }
            if arrangement == Arrangement::Alone {
                Served::Alone(daemon.start())
            } else {
                let mount = Supervised::start(daemon);
                let daemon = mount.daemon().expect("it answers");
                Served::UnderSupervisor { mount, daemon }
            }
        }
    };
    let top = served.top();
    let mut columns: Vec<Column<'_>> = std::thread::scope(|scope| {
        let open = |column| {
            let (server, top) = (&server, top.clone());
            scope.spawn(move || Column::open(server, top, column))
        };
        let opened: Vec<_> = COLUMNS.into_iter().map(open).collect();
        opened.into_iter().map(|column| column.join().expect("it is opened")).collect()
    });
    // Those that are in progress at last, so that few of their faults meet others.
    for when in [When::JustDone, When::InProgress] {
        std::thread::scope(|scope| {
            for column in columns.iter_mut().filter(|column| column.when == when) {
                scope.spawn(|| column.begin());
            }
        });
    }

    let status = end(ending, &server, &mut served, &top);
    // Of an ending with a drain: it was asked what is lost.
    let code = status.and_then(|status| status.code());
    let log = served.log();
    served.succeed();
    columns.iter_mut().for_each(Column::finish);
    if arrangement == Arrangement::Alone {
        columns.iter_mut().for_each(|column| is_named(column, code, &log));
    }
    std::thread::scope(|scope| {
        for column in &mut columns {
            scope.spawn(|| {
                let answers = column.go_on();
                // Staged bytes are on the disk: none of them are lost with the daemon.
                let survives = matches!(ending, Ending::Kill | Ending::OutOfMemory) && arrangement != Arrangement::Alone;
                let is_staged = column.content == Content::Staged && column.when == When::JustDone && column.call != Call::Unlink;
                if survives && is_staged && !answers.iter().all(|(_, answer)| answer.is_ok()) {
                    column.wrong.push(format!("it was staged, and its successor lost it: {answers:?}"));
                }
            });
        }
    });
    let log = served.end();
    columns.iter_mut().for_each(Column::check);
    let wrong: Vec<String> =
        columns.iter().flat_map(|column| column.wrong.iter().map(|wrong| format!("{}: {wrong}", column.name))).collect();
    assert!(wrong.is_empty(), "{ending:?}, {arrangement:?}, exit code {code:?}:\n  {}\n{log}", wrong.join("\n  "));
}

/// Ends the daemon.
fn end(ending: Ending, server: &S3Server, served: &mut Served<'_>, top: &std::path::Path) -> Option<ExitStatus> {
    let is_asked = |served: &Served<'_>| wait_until("it has heard", || served.log().contains("ending reason="));
    match ending {
        Ending::Sigterm => {
            served.signal(Signal::TERM);
            is_asked(served);
            server.clear_faults();
            served.wait()
        }
        Ending::TwoSigterms => {
            served.signal(Signal::TERM);
            is_asked(served);
            served.signal(Signal::TERM);
            let status = served.wait();
            server.clear_faults();
            status
        }
        Ending::DrainTimeout => {
            for kind in [Kind::Put, Kind::CreateUpload, Kind::UploadPart, Kind::CompleteUpload] {
                server.fault(Fault::new(Effect::Held).kind(kind));
            }
            served.signal(Signal::TERM);
            let status = served.wait();
            server.clear_faults();
            status
        }
        Ending::Kill => {
            served.signal(Signal::KILL);
            let status = served.wait();
            server.clear_faults();
            status
        }
        Ending::OutOfMemory => {
            // Files whose parts do not arrive fill the memory; of one alone a few parts are on their way.
            let open = |number: usize| {
                let name = format!("filler-{number}");
                server.fault(Fault::new(Effect::Held).kind(Kind::UploadPart).key(&name));
                App::open(&top.join(&name), "O_WRONLY|O_CREAT")
            };
            let mut fillers: Vec<App> = (0..FILLERS).map(open).collect();
            fillers.iter_mut().for_each(|filler| filler.begin(&format!("busy 0 {} {} 1", 1 << 20, 1_u64 << 40)));
            let status = served.wait();
            server.clear_faults();
            status
        }
    }
}

/// What a daemon that ended in order could not store it names, and its exit code says so.
fn is_named(column: &mut Column<'_>, code: Option<i32>, log: &str) {
    if column.call == Call::Unlink || column.is_whole() {
        return;
    }
    let names = column.names();
    let is_named = |line: &str| line.contains("not in the bucket") && names.iter().any(|name| line.contains(&format!("key={name}")));
    match code {
        Some(0) => column.wrong.push(format!("the exit code is 0, and the object {}", column.describe())),
        Some(5) if !log.lines().any(is_named) => column.wrong.push("is not in the bucket, and is not named".into()),
        _ => {}
    }
}
