//! Every fault at every step of every way to commit: the object is the old or the new version, whoever was told that it is the new
//! one was told the truth, and nothing unfinished is left.

use std::sync::Arc;
use std::time::Duration;

use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::store::memory::{Fault, Memory, Rule, Synthetic};
use windlass::store::{Condition, ErrorKind, Headers, ObjectStore, Op, Policy, Retrying};
use windlass::units::ByteSize;
use windlass::writer::{Content, Limits, Options, WriteError, Writer, staging};

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
