//! Every fault at every step of every way to commit: the object is the old or the new version, whoever was told that it is the new
//! one was told the truth, and nothing unfinished is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::store::memory::{Fault, Memory, Rule, Synthetic};
use windlass::store::{Condition, ErrorKind, Headers, ObjectStore, Op, Policy, Retrying};
use windlass::units::ByteSize;
use windlass::writer::{Allocate, Content, Interrupted, Left, Limits, Options, WriteError, Writer, staging};

const FAULTS: [Fault; 8] = [
    Fault::Error(ErrorKind::Throttled),
    Fault::Error(ErrorKind::Unavailable),
    Fault::Error(ErrorKind::Timeout),
    Fault::Error(ErrorKind::AccessDenied),
    Fault::Error(ErrorKind::Invalid),
    Fault::Lost,
    Fault::Truncate { after: 500 },
    Fault::Stall { after: 500, pause: Duration::from_secs(20) },
];

/// The first, the second, the third such request; the first two; all.
const WHEN: [(usize, usize); 5] = [(1, 1), (2, 1), (3, 1), (1, 2), (1, usize::MAX)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Whole,
    Parts,
    /// Renamed while its parts were on their way.
    Aside,
    /// A part that is with the store alone is read.
    Early,
    StagedWhole,
    StagedParts,
    /// Renamed and not changed in its bytes.
    Copied,
}

const WAYS: [Way; 7] = [Way::Whole, Way::Parts, Way::Aside, Way::Early, Way::StagedWhole, Way::StagedParts, Way::Copied];

struct Case {
    store: Arc<Memory>,
    retrying: Arc<Retrying>,
    writer: Writer,
    budget: Arc<Budget>,
    disk: tempfile::TempDir,
    content: Arc<Content>,
    old: Vec<u8>,
    new: Vec<u8>,
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    Synthetic::new(seed).fill(0, &mut buf);
    buf
}

fn case(way: Way, retries: usize) -> Case {
    let store = Arc::new(Memory::default());
    store.set_least_part(1000);
    let policy = Policy { retries, request_timeout: Duration::from_secs(60), attempt_timeout: Duration::from_secs(10) };
    let metrics = Arc::new(Metrics::default());
    let retrying = Arc::new(Retrying::new(store.clone(), policy, metrics.clone()));
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) });
    let disk = tempfile::tempdir().unwrap();
    let limits = Limits { least_part: 1000, copied_part: 2000, ahead: 3000, kept: 1000, ..Limits::default() };
    let staging = staging::Options { dir: Some(disk.path().to_owned()), ..staging::Options::default() };
    let options = Options { part_size: ByteSize::bytes(1000), concurrency: Some(2), limits, staging, ..Options::default() };
    let writer = Writer::new(retrying.clone(), budget.clone(), metrics, options, "faults");
    let old = bytes(1, if way == Way::StagedWhole { 900 } else { 5500 });
    store.put("key", old.clone());
    let base = store.meta("key").unwrap();
    let content = match way {
        Way::Whole | Way::Parts | Way::Early => writer.create("key".into(), Headers::default()),
        Way::Aside => writer.create("before".into(), Headers::default()),
        Way::StagedWhole | Way::StagedParts | Way::Copied => writer.edit(base, Headers::default()),
    };
    Case { store, retrying, writer, budget, disk, content, old: old.clone(), new: old }
}

impl Case {
    /// What an application does before it closes the file. An error ends it there, as it does applications.
    async fn change(&mut self, way: Way) -> Result<(), WriteError> {
        match way {
            Way::Whole => self.new = bytes(2, 800),
            Way::Parts | Way::Aside | Way::Early => self.new = bytes(2, 5300),
            Way::StagedWhole | Way::StagedParts => {
                self.new[200..250].fill(7);
                self.content.write(200, &[7; 50]).await?;
                return Ok(());
            }
            Way::Copied => {
                let headers = Headers { content_type: Some("text/plain".into()), ..Headers::default() };
                self.content.set_headers(headers);
                return Ok(());
            }
        }
        for (n, data) in self.new.chunks(700).enumerate() {
            self.content.write(n as u64 * 700, data).await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        match way {
            Way::Aside => self.content.set_key("key".into()).await,
            Way::Early => assert_eq!(self.content.read(1500, 100).await?, self.new[1500..1600]),
            _ => {}
        }
        Ok(())
    }

    fn is(&self, expected: &[u8]) -> bool {
        self.store.content("key").is_some_and(|content| content == expected)
    }

    async fn end(self, spoiled: bool, what: &str) {
        drop(self.content);
        self.writer.settle().await;
        self.retrying.settle().await;
        assert!(spoiled || self.store.uploads().is_empty(), "{what}: {:?}", self.store.uploads());
        assert!(spoiled || self.store.content("before").is_none(), "{what}: the old name is still there");
        assert_eq!(std::fs::read_dir(self.disk.path().join("staging")).map_or(0, Iterator::count), 0, "{what}");
        assert_eq!(self.budget.leased_bytes(), 0, "{what}");
    }
}

/// What a way asks the store for when nothing fails, and what it does when something does.
async fn asked(way: Way) -> Vec<Op> {
    let mut case = case(way, 0);
    case.store.reset_log();
    case.change(way).await.unwrap();
    case.content.commit(Condition::Any).await.unwrap();
    let mut ops: Vec<Op> = Vec::new();
    for request in case.store.requests() {
        if !ops.contains(&request.op) {
            ops.push(request.op);
        }
    }
    if ops.contains(&Op::CreateUpload) && !ops.contains(&Op::AbortUpload) {
        ops.push(Op::AbortUpload);
    }
    case.end(false, "nothing failed").await;
    ops
}

/// Whether the fault happened at all.
async fn run(way: Way, op: Op, fault: Fault, when: (usize, usize), retries: usize) -> bool {
    let what = format!("{way:?}, {fault:?} at {op} {when:?}, {retries} retries");
    let mut case = case(way, retries);
    let seen = Arc::new(std::sync::Mutex::new((0, 0)));
    let counts = Arc::clone(&seen);
    let (from, count) = when;
    case.store.fault(Rule::new(fault).when(move |o, _| {
        let (asked, hit) = &mut *counts.lock().unwrap();
        *asked += usize::from(o == op);
        let hits = o == op && *asked >= from && *asked - from < count;
        *hit += usize::from(hits);
        hits
    }));
    if op == Op::AbortUpload {
        // So that there is something to abort.
        case.store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::CompleteUpload).nth(1));
    }
    let changed = case.change(way).await;
    let committed = case.content.commit(Condition::Any).await;
    // An answer that was lost is an error for a commit that did happen; without retries nobody finds out.
    assert!(case.is(&case.old) || case.is(&case.new), "{what}: neither old nor new");
    if changed.is_err() && way != Way::Early {
        assert!(committed.is_err() && case.is(&case.old), "{what}: a write was refused and the rest committed");
    } else if let Ok(Some(meta)) = &committed {
        assert!(case.is(&case.new), "{what}: committed and not there");
        assert_eq!(case.store.meta("key").map(|meta| meta.etag), Some(meta.etag.clone()), "{what}");
    } else {
        assert!(committed.is_err(), "{what}: nothing to commit");
    }
    let hit = seen.lock().unwrap().1;
    let permanent = count == usize::MAX || retries == 0;
    let retryable = match fault {
        Fault::Error(kind) => kind.is_retryable(),
        _ => true,
    };
    // Copies in the store in memory have new tags, from which nobody can tell that they are what the lost answer was about.
    let untold = fault == Fault::Lost && matches!((way, op), (Way::StagedParts, Op::CompleteUpload) | (Way::Copied, Op::Copy));
    if !permanent && retryable && op != Op::AbortUpload && !untold {
        assert!(changed.is_ok() && committed.is_ok(), "{what}: {changed:?} {committed:?}");
    }
    case.store.clear_faults();
    if committed.is_err() && changed.is_ok() {
        match case.content.commit(Condition::Any).await {
            Ok(_) => assert!(case.is(&case.new), "{what}: the second commit"),
            Err(_) => assert!(case.is(&case.old) || case.is(&case.new), "{what}: after the second commit"),
        }
    }
    // What cannot be asked to go away stays: who says so is the log.
    let spoiled = hit > 0 && (permanent || !retryable) && (matches!(op, Op::AbortUpload | Op::Delete) || fault == Fault::Lost);
    case.end(spoiled, &what).await;
    hit > 0
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

#[test]
fn every_fault_at_every_step_leaves_the_old_or_the_new_version() {
    let (mut runs, mut hits) = (0, 0);
    for way in WAYS {
        for op in block_on(asked(way)) {
            for fault in FAULTS {
                for when in WHEN {
                    for retries in [0, 5] {
                        hits += usize::from(block_on(run(way, op, fault, when, retries)));
                        runs += 1;
                    }
                }
            }
        }
    }
    println!("{runs} combinations of ways, operations, faults and steps, {hits} of them with a fault that happened");
    assert!(hits > 1000, "only {hits} faults happened");
}

async fn is_lost_in_every_way(content: &Content) {
    for _ in 0..2 {
        assert!(content.is_lost() && content.is_dirty());
        assert!(matches!(content.write(0, b"x").await, Err(WriteError::Lost)));
        assert!(matches!(content.write(0, b"").await, Err(WriteError::Lost)));
        assert!(matches!(content.try_write(5, b"x", || {}), Some(Err(WriteError::Lost))));
        assert!(matches!(content.try_write(5, b"", || {}), Some(Err(WriteError::Lost))));
        for size in [0, 3, 100_000] {
            assert!(matches!(content.truncate(size).await, Err(WriteError::Lost)));
        }
        for how in [Allocate::Extend, Allocate::KeepSize, Allocate::Punch, Allocate::Zero { keep_size: false }] {
            assert!(matches!(content.allocate(0, 10, how).await, Err(WriteError::Lost)));
        }
        assert!(matches!(content.read(0, 10).await, Err(WriteError::Lost)));
        for condition in [Condition::Any, Condition::Absent] {
            assert!(matches!(content.commit(condition).await, Err(WriteError::Lost)));
        }
    }
}

#[test]
fn content_given_up_refuses_everything_every_time() {
    for way in WAYS {
        block_on(async {
            let mut case = case(way, 0);
            case.change(way).await.unwrap();
            // Early is in the bucket, and was not told.
            if way == Way::Early {
                case.content.write(0, b"changed again").await.unwrap();
            }
            case.content.give_up().await;
            is_lost_in_every_way(&case.content).await;
            case.content.discard().await;
            is_lost_in_every_way(&case.content).await;
            if way != Way::Early {
                assert!(case.is(&case.old), "{way:?}");
            }
            case.end(false, "given up").await;
        });
    }
}

#[test]
fn lost_content_of_a_dead_daemon_refuses_everything_every_time() {
    block_on(async {
        let case = case(Way::Whole, 0);
        let lost = case.writer.lost("lost".into(), Headers::default());
        is_lost_in_every_way(&lost).await;
        drop(lost);
        assert_eq!(case.store.content("lost"), None);
        case.end(false, "lost").await;
    });
}

#[test]
fn give_up_of_stored_content_loses_nothing() {
    for way in WAYS {
        block_on(async {
            let mut case = case(way, 0);
            case.change(way).await.unwrap();
            // Also when the commit is still under way.
            let commit = case.content.commit(Condition::Any);
            let (committed, ()) = tokio::join!(commit, case.content.give_up());
            assert!(committed.is_ok() && !case.content.is_lost() && !case.content.is_dirty(), "{way:?}");
            assert!(case.is(&case.new));
            assert_eq!(case.content.commit(Condition::Any).await.unwrap(), None);
            case.end(false, "stored").await;
        });
    }
}

#[test]
fn give_up_keeps_on_disk_what_was_left_there() {
    for leaves in [false, true] {
        block_on(async {
            let mut case = case(Way::StagedParts, 0);
            case.change(Way::StagedParts).await.unwrap();
            if leaves {
                assert!(matches!(case.content.leave_on_disk(false, Duration::from_secs(1)).await, Left::Kept(_)));
            }
            case.content.give_up().await;
            assert!(matches!(case.content.commit(Condition::Any).await, Err(WriteError::Lost)));
            drop(case.content);
            case.writer.settle().await;
            let files = std::fs::read_dir(case.disk.path().join("staging")).unwrap().count();
            assert_eq!(files, if leaves { 2 } else { 0 });
        });
    }
}

#[test]
fn refused_write_fails_each_commit_until_the_file_is_emptied() {
    block_on(async {
        let case = case(Way::Parts, 0);
        case.store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::UploadPart).nth(1));
        let content = &case.content;
        content.write(0, &bytes(2, 2500)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(content.write(2500, b"more").await.is_err());
        for _ in 0..3 {
            let error = content.commit(Condition::Any).await.unwrap_err();
            assert!(matches!(error, WriteError::Store(error) if error.kind == ErrorKind::AccessDenied));
            assert!(content.is_dirty() && !content.is_lost());
            // Cut, not emptied.
            content.truncate(100).await.unwrap();
        }
        content.truncate(0).await.unwrap();
        content.commit(Condition::Any).await.unwrap().unwrap();
        assert!(case.is(b""));
        case.end(false, "emptied").await;
    });
}

/// Whether the panic happened at all.
async fn run_panic(way: Way, op: Op, nth: usize) -> bool {
    let what = format!("{way:?}, a panic at {op} {nth}");
    let mut case = case(way, 0);
    let seen = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&seen);
    case.store.fault(Rule::new(Fault::Lost).when(move |o, _| {
        if o == op && counts.fetch_add(1, Ordering::Relaxed) + 1 == nth {
            // Without the hook, which would print all of them.
            std::panic::resume_unwind(Box::new("as no store should"));
        }
        false
    }));
    if op == Op::AbortUpload {
        case.store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::CompleteUpload).nth(1));
    }
    let limit = Duration::from_secs(1000);
    let content = Arc::clone(&case.content);
    // A read asks the store in the task of its caller, where the panic is the caller's.
    let changed = std::panic::AssertUnwindSafe(case.change(way)).catch_unwind();
    let changed = tokio::time::timeout(limit, changed).await.expect("no write waits for ever");
    let changed = changed.unwrap_or_else(|_| Err(Interrupted::Panicked.into()));
    let committed = tokio::time::timeout(limit, content.commit(Condition::Any)).await.expect("no commit waits for ever");
    let hit = seen.load(Ordering::Relaxed) >= nth;
    case.store.clear_faults();
    // Removing what is not needed any more is no part of what a commit promises; the log names what stays.
    let clears_up = matches!(op, Op::AbortUpload | Op::Delete | Op::Head);
    if hit && changed.is_ok() && !clears_up {
        let error = committed.expect_err(&what);
        assert!(matches!(error, WriteError::Interrupted(Interrupted::Panicked)), "{what}: {error}");
    }
    let again = tokio::time::timeout(limit, content.commit(Condition::Any)).await.expect("neither does the next one");
    if changed.is_ok() && again.is_ok() {
        assert!(case.is(&case.new), "{what}");
    } else {
        // What is read early is stored before it is read.
        assert!(case.is(&case.old) || way == Way::Early && case.is(&case.new), "{what}");
    }
    drop(content);
    case.end(hit && clears_up, &what).await;
    hit
}

#[test]
fn panicked_request_at_each_step_leaves_no_waiter() {
    let mut hits = 0;
    for way in WAYS {
        for op in block_on(asked(way)) {
            for nth in 1..4 {
                hits += usize::from(block_on(run_panic(way, op, nth)));
            }
        }
    }
    assert!(hits > 30, "only {hits} panics happened");
}

/// The runtime of the writer ends while threads of another one write and commit.
#[test]
fn end_of_the_runtime_ends_every_waiter() {
    for way in [Way::Whole, Way::Parts, Way::StagedParts] {
        let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (ending, other) = (runtime(), runtime());
        let mut case = {
            let _entered = ending.enter();
            case(way, 0)
        };
        let stall = Fault::Stall { after: 0, pause: Duration::from_secs(1000) };
        case.store.fault(Rule::new(stall).when(|op, _| matches!(op, Op::Put | Op::UploadPart)));
        let (content, store) = (Arc::clone(&case.content), Arc::clone(&case.store));
        let waits = other.spawn(async move {
            // More parts than may be on their way: a write waits as well.
            let changed = case.change(way).await;
            (changed, case.content.commit(Condition::Any).await, case)
        });
        let waits_for = |what: &dyn Fn() -> bool| (0..1000).any(|_| what() || (std::thread::sleep(Duration::from_millis(10)), false).1);
        assert!(waits_for(&|| store.in_flight() > 0), "{way:?}");
        ending.shutdown_background();
        let ended = other.block_on(async { tokio::time::timeout(Duration::from_secs(60), waits).await });
        let (changed, committed, case) = ended.expect("all of them have ended").unwrap();
        let ending = |error: &WriteError| matches!(error, WriteError::Interrupted(Interrupted::Ending));
        assert!(changed.is_ok() || changed.as_ref().is_err_and(ending), "{way:?}: {changed:?}");
        assert!(committed.as_ref().is_err_and(ending), "{way:?}: {committed:?}");
        let again = other.block_on(async { tokio::time::timeout(Duration::from_secs(60), content.commit(Condition::Any)).await });
        assert!(again.unwrap().as_ref().is_err_and(ending), "{way:?}");
        assert!(case.is(&case.old), "{way:?}");
    }
}

/// With one thread for all that may block, what is asked for first is done first.
#[test]
fn file_that_is_emptied_while_it_is_left_is_not_left() {
    for truncates_first in [true, false] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let mut case = case(Way::StagedParts, 0);
            case.change(Way::StagedParts).await.unwrap();
            let (release, released) = std::sync::mpsc::channel::<()>();
            let blocker = tokio::task::spawn_blocking(move || released.recv().is_err());
            let turn = async || {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            };
            let content = Arc::clone(&case.content);
            let truncate = async move { content.truncate(0).await };
            let content = Arc::clone(&case.content);
            let leave = async move { content.leave_on_disk(false, Duration::from_secs(60)).await };
            let (emptied, left) = if truncates_first {
                let emptied = tokio::spawn(truncate);
                turn().await;
                (emptied, tokio::spawn(leave))
            } else {
                let left = tokio::spawn(leave);
                turn().await;
                (tokio::spawn(truncate), left)
            };
            turn().await;
            drop(release);
            assert!(blocker.await.unwrap());
            emptied.await.unwrap().unwrap();
            let left = left.await.unwrap();
            assert_eq!(left == Left::Nothing, truncates_first, "{left:?}");
            assert!(!case.content.stays() && !case.content.is_staged());
            assert_eq!(std::fs::read_dir(case.disk.path().join("staging")).unwrap().count(), 0, "old bytes stay");
            case.content.write(0, b"anew").await.unwrap();
            case.content.commit(Condition::Any).await.unwrap();
            assert!(case.is(b"anew"));
            case.end(false, "emptied").await;
        });
    }
}
