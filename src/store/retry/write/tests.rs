//! Every write with every ambiguous failure, over the store in memory and under a paused clock: afterwards the write either
//! was done once or is an error, and no upload is left.

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::metrics::Metrics;
use crate::store::memory::{Fault, Memory, Plan, Rule};
use crate::store::{ObjectStore, Policy};

const FAULTS: [Fault; 4] =
    [Fault::Lost, Fault::Error(ErrorKind::Unavailable), Fault::Error(ErrorKind::Throttled), Fault::Error(ErrorKind::Timeout)];

fn retrying(memory: &Memory, retries: usize) -> (Retrying, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::default());
    let policy = Policy { retries, request_timeout: Duration::from_secs(60), attempt_timeout: Duration::from_secs(10) };
    (Retrying::new(Arc::new(memory.clone()), policy, metrics.clone()), metrics)
}

fn put(key: &str, body: &'static str, condition: Condition) -> PutRequest {
    PutRequest { key: key.into(), body: Bytes::from_static(body.as_bytes()), headers: Headers::default(), condition }
}

async fn upload(store: &Retrying, key: &str) -> (Upload, Vec<Part>) {
    let upload = store.create_upload(&UploadRequest::new(&key.into(), &Headers::default())).await.unwrap();
    let mut parts = Vec::new();
    for (number, body) in [(1, "one "), (2, "two")] {
        parts.push(store.upload_part(&upload, number, body.into()).await.unwrap());
    }
    (upload, parts)
}

/// A store whose first two requests of `op` end in `fault`.
fn failing(op: Op, fault: Fault, checksums: bool) -> (Memory, Retrying, Arc<Metrics>) {
    let memory = Memory::new(Plan::default());
    memory.set_checksums(checksums);
    memory.fault(Rule::new(fault).op(op).first(2));
    let (store, metrics) = retrying(&memory, 5);
    (memory, store, metrics)
}

#[tokio::test(start_paused = true)]
async fn a_conditional_put_is_done_once_whatever_its_answers() {
    for fault in FAULTS {
        for checksums in [true, false] {
            let (memory, store, metrics) = failing(Op::Put, fault, checksums);
            let written = store.put(&put("a", "body", Condition::Absent)).await.unwrap();
            assert_eq!((written.etag.clone(), memory.content("a").unwrap()), (memory.meta("a").unwrap().etag, "body".into()), "{fault:?}");
            assert_eq!(memory.count(Op::Get), usize::from(fault == Fault::Lost && !checksums), "read back only when nothing else tells");
            // A lost answer is noticed at the second attempt, whose own answer is not lost: it is a refusal.
            assert_eq!(metrics.retries.get(), 2, "{fault:?}");
            memory.clear_faults();
            memory.fault(Rule::new(fault).op(Op::Put).first(1));
            store.put(&put("a", "next", Condition::Is(written.etag))).await.unwrap();
            assert_eq!(memory.content("a").unwrap(), "next");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_one_wrote_is_not_taken_for_ours() {
    for (theirs, checksums) in [("other", true), ("othe", true), ("othe", false)] {
        let memory = Memory::default();
        memory.set_checksums(checksums);
        memory.put("a", theirs);
        memory.fault(Rule::new(Fault::Error(ErrorKind::Timeout)).op(Op::Put).nth(1));
        let (store, _) = retrying(&memory, 5);
        let error = store.put(&put("a", "body", Condition::Absent)).await.unwrap_err();
        assert_eq!((error.kind, memory.content("a").unwrap()), (ErrorKind::Replaced, theirs.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_condition_is_not_looked_into_without_doubt() {
    let memory = Memory::default();
    memory.put("a", "body");
    let (store, _) = retrying(&memory, 5);
    assert_eq!(store.put(&put("a", "body", Condition::Absent)).await.unwrap_err().kind, ErrorKind::Replaced);
    memory.fault(Rule::new(Fault::Error(ErrorKind::Throttled)).op(Op::Put).nth(1));
    assert_eq!(store.put(&put("a", "body", Condition::Absent)).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(memory.count(Op::Head), 0);
}

#[tokio::test(start_paused = true)]
async fn an_upload_survives_a_fault_at_each_of_its_steps_and_leaves_nothing() {
    let mut combinations = 0;
    for op in [Op::CreateUpload, Op::UploadPart, Op::CompleteUpload] {
        for fault in FAULTS {
            let (memory, store, _) = failing(op, fault, true);
            let (upload, parts) = upload(&store, "a").await;
            let written = store.complete_upload(&upload, &parts, &Condition::Absent).await.unwrap();
            assert_eq!((memory.content("a").unwrap(), memory.meta("a").unwrap().etag), ("one two".into(), written.etag), "{op} {fault:?}");
            store.settle().await;
            assert_eq!(memory.uploads(), [], "{op} {fault:?}");
            combinations += 1;
        }
    }
    assert_eq!(combinations, 12);
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_another_one_ended_is_an_error() {
    let memory = Memory::default();
    let (store, _) = retrying(&memory, 5);
    let (upload, parts) = upload(&store, "a").await;
    memory.put("a", "something");
    store.abort_upload(&upload).await.unwrap();
    memory.fault(Rule::new(Fault::Error(ErrorKind::Timeout)).op(Op::CompleteUpload).nth(1));
    let error = store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap_err();
    assert_eq!((error.kind, memory.content("a").unwrap()), (ErrorKind::NotFound, "something".into()));
}

#[tokio::test(start_paused = true)]
async fn a_lost_create_is_cleaned_up_also_when_all_attempts_are_lost_or_the_caller_left() {
    let memory = Memory::default();
    memory.fault(Rule::new(Fault::Lost).op(Op::CreateUpload));
    let (store, _) = retrying(&memory, 2);
    assert_eq!(store.create_upload(&UploadRequest::new(&"a".into(), &Headers::default())).await.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(memory.count(Op::CreateUpload), 3);
    store.settle().await;
    assert_eq!((memory.uploads(), memory.count(Op::AbortUpload)), (vec![], 3));
    let (key, headers) = ("a".into(), Headers::default());
    assert!(tokio::time::timeout(Duration::from_nanos(1), store.create_upload(&UploadRequest::new(&key, &headers))).await.is_err());
    store.settle().await;
    assert_eq!(memory.uploads(), []);
}

#[tokio::test(start_paused = true)]
async fn uploads_of_others_are_not_touched_by_the_clean_up() {
    let memory = Memory::default();
    let (store, _) = retrying(&memory, 2);
    let (ours, _) = upload(&store, "a").await;
    let old = memory.create_upload(&UploadRequest::new(&"a".into(), &Headers::default())).await.unwrap();
    memory.age_uploads(Duration::from_secs(10));
    let again = store.create_upload(&UploadRequest::new(&"a".into(), &Headers::default())).await.unwrap();
    let longer = memory.create_upload(&UploadRequest::new(&"ab".into(), &Headers::default())).await.unwrap();
    memory.fault(Rule::new(Fault::Lost).op(Op::CreateUpload).nth(1));
    let last = store.create_upload(&UploadRequest::new(&"a".into(), &Headers::default())).await.unwrap();
    store.settle().await;
    let left: Vec<String> = memory.uploads().into_iter().map(|upload| upload.id).collect();
    assert_eq!(left, [ours.id, old.id, again.id, last.id, longer.id]);
}

/// Another host begins an upload of the key at the time of the lost attempt. Its upload must never be aborted.
#[tokio::test(start_paused = true)]
async fn an_upload_of_another_host_is_not_aborted_after_a_lost_create() {
    let (key, headers) = (Key::from("a"), Headers::default());
    let begin = UploadRequest::new(&key, &headers);
    let seconds = Duration::from_secs;
    // The upload that the lost attempt left behind is there as well, or not: the attempt may not have arrived.
    for (fault, when_it_sends) in [
        (Fault::Lost, None),
        (Fault::Lost, Some(Duration::ZERO)),
        (Fault::Lost, Some(seconds(5))),
        (Fault::Error(ErrorKind::Timeout), Some(Duration::ZERO)),
        (Fault::Error(ErrorKind::Timeout), Some(seconds(5))),
    ] {
        let memory = Memory::default();
        memory.fault(Rule::new(fault).op(Op::CreateUpload).nth(2));
        let (store, _) = retrying(&memory, 2);
        let theirs = memory.create_upload(&begin).await.unwrap();
        let sends = async {
            if let Some(when) = when_it_sends {
                tokio::time::sleep(when).await;
                memory.upload_part(&theirs, 1, "part".into()).await.unwrap();
            }
        };
        let (_, ours) = tokio::join!(sends, store.create_upload(&begin));
        store.settle().await;
        let left: Vec<String> = memory.uploads().into_iter().map(|upload| upload.id).collect();
        assert!(left.contains(&theirs.id) && left.contains(&ours.unwrap().id), "{fault:?} {when_it_sends:?}");
    }
}

/// Uploads from before and after the lost attempt are those of others, however close they are.
#[tokio::test(start_paused = true)]
async fn a_lost_create_is_looked_for_in_its_own_time() {
    let begin = UploadRequest::new(&"a".into(), &Headers::default());
    let memory = Memory::default();
    let (store, _) = retrying(&memory, 2);
    let before = memory.create_upload(&begin).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    memory.fault(Rule::new(Fault::Lost).op(Op::CreateUpload).nth(1));
    let ours = store.create_upload(&begin).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let after = memory.create_upload(&begin).await.unwrap();
    store.settle().await;
    let left: Vec<String> = memory.uploads().into_iter().map(|upload| upload.id).collect();
    assert_eq!(left, [before.id, ours.id, after.id]);
}

/// Two creates of one key at the same time, both with a lost answer: neither is taken for that of another host.
#[tokio::test(start_paused = true)]
async fn lost_creates_of_one_key_are_all_cleaned_up() {
    let begin = UploadRequest::new(&"a".into(), &Headers::default());
    let memory = Memory::default();
    memory.fault(Rule::new(Fault::Lost).op(Op::CreateUpload).first(3));
    let (store, _) = retrying(&memory, 5);
    let (one, other) = tokio::join!(store.create_upload(&begin), store.create_upload(&begin));
    tokio::time::sleep(Duration::from_secs(3)).await;
    memory.clear_faults();
    memory.fault(Rule::new(Fault::Lost).op(Op::CreateUpload).first(1));
    let last = store.create_upload(&begin).await.unwrap();
    store.settle().await;
    let left: Vec<String> = memory.uploads().into_iter().map(|upload| upload.id).collect();
    let mut known = [one.unwrap().id, other.unwrap().id, last.id];
    known.sort();
    assert_eq!(left, known);
}

/// A store that dates its objects, and a client of it.
fn dated() -> (Memory, Retrying) {
    let memory = Memory::default();
    memory.keep_dates();
    let (store, _) = retrying(&memory, 5);
    (memory, store)
}

const LONG: Duration = Duration::from_secs(5);

/// An unconditional write of `a` whose first attempt ends without an answer.
async fn write_of(how: &str, memory: &Memory, store: &Retrying) -> Result<()> {
    let headers = Headers::default();
    match how {
        "put" => store.put(&put("a", "ours", Condition::Any)).await.map(drop),
        "link" => store.put_symlink(&"a".into(), b"../ours", &headers, &Condition::Any).await.map(drop),
        "copy" => {
            let etag = memory.meta("source").unwrap().etag;
            let (source, target) = ("source".into(), "a".into());
            store.copy(&CopyRequest { source, etag, target, headers: None, condition: Condition::Any }).await.map(drop)
        }
        "delete" => store.delete(&"a".into()).await,
        _ => store.delete_many(&["a".into(), "b".into()]).await.map(|left| assert!(left.is_empty(), "{left:?}")),
    }
}

const WRITES: [(&str, Op); 5] = [("put", Op::Put), ("link", Op::Put), ("copy", Op::Copy), ("delete", Op::Delete), ("deletes", Op::Delete)];

#[tokio::test(start_paused = true)]
async fn a_later_write_of_another_client_is_not_undone_by_a_repeated_one() {
    for (how, op) in WRITES {
        // Whether the first attempt was carried out before the other client wrote.
        for arrived in [true, false] {
            let (memory, store) = dated();
            memory.put("source", "ours");
            memory.put("a", "before");
            memory.put("b", "before");
            tokio::time::sleep(LONG).await;
            let mut held = match arrived {
                true => memory.hold_answer(op, "a"),
                false => memory.hold(op, "a"),
            };
            memory.fault(Rule::new(if arrived { Fault::Lost } else { Fault::Error(ErrorKind::Timeout) }).op(op).nth(1));
            let other = async {
                held.reached().await;
                tokio::time::sleep(LONG).await;
                memory.put("a", "theirs");
                held.release();
            };
            let (written, ()) = tokio::join!(write_of(how, &memory, &store), other);
            assert_eq!(memory.content("a").unwrap(), "theirs", "{how} {arrived}");
            match op {
                // It was done before they wrote, or need not be done any more.
                Op::Delete => written.unwrap(),
                // Content that is not there is not acknowledged.
                _ => assert!(matches!(written.unwrap_err().kind, ErrorKind::Replaced | ErrorKind::Unavailable), "{how}"),
            }
            assert!(how != "deletes" || memory.meta("b").is_none());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unconditional_write_is_done_whatever_its_answers() {
    for (how, op) in WRITES {
        for fault in FAULTS {
            for late in [false, true] {
                let (memory, store) = dated();
                memory.put("source", "ours");
                memory.put("a", "before");
                memory.put("b", "before");
                if late {
                    let held = memory.hold(op, "a");
                    tokio::spawn(async move {
                        tokio::time::sleep(LONG).await;
                        held.release();
                    });
                }
                memory.fault(Rule::new(fault).op(op).first(2));
                write_of(how, &memory, &store).await.unwrap_or_else(|error| panic!("{how} {fault:?}: {error}"));
                let there = memory.content("a");
                match op {
                    Op::Delete => assert_eq!(there, None, "{how} {fault:?}"),
                    _ => assert_ne!(there.unwrap(), "before", "{how} {fault:?}"),
                }
                // A refusal that leaves no doubt costs no HEAD.
                assert_eq!(memory.count(Op::Head) == 0, matches!(fault, Fault::Error(ErrorKind::Throttled)), "{how} {fault:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_that_has_arrived_is_not_sent_twice() {
    let (memory, store) = dated();
    let held = memory.hold(Op::Put, "a");
    tokio::spawn(async move {
        tokio::time::sleep(LONG).await;
        held.release();
    });
    memory.fault(Rule::new(Fault::Lost).op(Op::Put).nth(1));
    let written = store.put(&put("a", "ours", Condition::Any)).await.unwrap();
    assert_eq!((memory.count(Op::Put), memory.meta("a").unwrap().etag), (1, written.etag));
}

#[tokio::test(start_paused = true)]
async fn keys_that_may_only_write_repeat_without_a_look() {
    for (how, op) in WRITES {
        let (memory, store) = dated();
        memory.put("source", "ours");
        memory.put("a", "before");
        memory.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::Head));
        memory.fault(Rule::new(Fault::Error(ErrorKind::Timeout)).op(op).nth(1));
        write_of(how, &memory, &store).await.unwrap();
        assert_ne!(memory.content("a"), Some("before".into()), "{how}");
    }
}

/// Nothing tells whose copy is there: it is not acknowledged, and not reported as a conflict either.
#[tokio::test(start_paused = true)]
async fn a_copy_without_proof_is_neither_done_nor_refused() {
    let (memory, store) = dated();
    memory.set_checksums(false);
    let etag = memory.put("source", "ours");
    memory.fault(Rule::new(Fault::Lost).op(Op::Copy).nth(1));
    let copy = CopyRequest { source: "source".into(), etag, target: "a".into(), headers: None, condition: Condition::Absent };
    let error = store.copy(&copy).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert!(error.message.contains("cannot be found out whether it was done"), "{error}");
}

/// The id of an upload is its client's alone: without any sum it shows what became of it.
#[tokio::test(start_paused = true)]
async fn an_upload_that_is_gone_became_the_object_of_its_time() {
    let (memory, store) = dated();
    memory.set_checksums(false);
    let (ours, parts) = upload(&store, "a").await;
    memory.fault(Rule::new(Fault::Lost).op(Op::CompleteUpload).nth(1));
    let written = store.complete_upload(&ours, &parts, &Condition::Any).await.unwrap();
    assert_eq!(memory.meta("a").unwrap().etag, written.etag);
}

/// Another client's object of the same size and number of parts came during the attempt, which did not arrive.
#[tokio::test(start_paused = true)]
async fn an_upload_that_is_still_there_was_not_completed() {
    let (memory, store) = dated();
    memory.set_checksums(false);
    let (ours, parts) = upload(&store, "a").await;
    let (theirs, their_parts) = upload(&store, "a").await;
    let mut held = memory.hold(Op::CompleteUpload, "a");
    memory.fault(Rule::new(Fault::Error(ErrorKind::Timeout)).op(Op::CompleteUpload).nth(1));
    let other = async {
        held.reached().await;
        tokio::time::sleep(LONG).await;
        memory.complete_upload(&theirs, &their_parts, &Condition::Any).await.unwrap();
        held.release();
    };
    let (completed, ()) = tokio::join!(store.complete_upload(&ours, &parts, &Condition::Absent), other);
    assert_eq!(completed.unwrap_err().kind, ErrorKind::Replaced);
}

#[tokio::test(start_paused = true)]
async fn a_conditional_copy_is_done_once_whatever_its_answers() {
    for fault in FAULTS {
        let (memory, store, _) = failing(Op::Copy, fault, true);
        let etag = memory.put("a", "body");
        let request = CopyRequest { source: "a".into(), etag, target: "b".into(), headers: None, condition: Condition::Absent };
        let written = store.copy(&request).await.unwrap();
        assert_eq!((memory.content("b").unwrap(), memory.meta("b").unwrap().etag), ("body".into(), written.etag), "{fault:?}");
        assert_eq!(store.copy(&request).await.unwrap_err().kind, ErrorKind::Replaced);
    }
}

#[tokio::test(start_paused = true)]
async fn links_and_deletes_are_done_once_whatever_their_answers() {
    for fault in FAULTS {
        let (memory, store, _) = failing(Op::Put, fault, true);
        memory.fault(Rule::new(fault).op(Op::Delete).first(2));
        store.put_symlink(&"l".into(), b"../t", &Headers::default(), &Condition::Absent).await.unwrap();
        assert_eq!(store.details(&"l".into()).await.unwrap().symlink.unwrap(), b"../t", "{fault:?}");
        let other = store.put_symlink(&"l".into(), b"../u", &Headers::default(), &Condition::Absent).await;
        assert_eq!(other.unwrap_err().kind, ErrorKind::Replaced);
        store.delete(&"l".into()).await.unwrap();
        assert_eq!(memory.keys(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_is_not_cut_by_the_limits_of_small_requests() {
    use crate::store::memory::Bandwidth;
    let bandwidth = Bandwidth { per_connection: Some(256 << 10), total: None };
    let memory = Memory::new(Plan { bandwidth, ..Plan::default() });
    let (store, metrics) = retrying(&memory, 0);
    let upload = store.create_upload(&UploadRequest::new(&"a".into(), &Headers::default())).await.unwrap();
    // 128 seconds, where an attempt of a small request may take 10 and all of them 60.
    store.upload_part(&upload, 1, vec![1; 32 << 20].into()).await.unwrap();
    assert_eq!(metrics.retries.get(), 0);
}
