//! What a killed mount leaves on the disk, and what the next one makes of it. A kill is a copy of the staging directory as it is at
//! some moment, taken without asking the writer: nothing holds locks on the copy.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::spill::{Bounds, Identity, Spill};
use windlass::store::memory::{Fault, Memory, Rule, Synthetic};
use windlass::store::{Condition, ErrorKind, Headers, Key, Op};
use windlass::units::ByteSize;
use windlass::writer::staging::{self, Outcome, Recovered};
use windlass::writer::{Content, Interrupted, Left, Limits, Options, WriteError, Writer};

struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn files(&self) -> Vec<String> {
        let Ok(directory) = fs::read_dir(self.0.path().join("staging")) else { return Vec::new() };
        directory.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// As it would be found after a kill now.
    fn killed(&self) -> Self {
        let copy = Self::new();
        let to = copy.0.path().join("staging");
        fs::create_dir(&to).unwrap();
        fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        for name in self.files() {
            fs::copy(self.0.path().join("staging").join(&name), to.join(&name)).unwrap();
        }
        copy
    }
}

fn options(disk: &Path) -> Options {
    let limits = Limits { least_part: 1000, copied_part: 4000, ahead: 3000, kept: 2000, ..Limits::default() };
    let staging = staging::Options { dir: Some(disk.to_owned()), ..staging::Options::default() };
    Options { part_size: ByteSize::bytes(1000), limits, staging, ..Options::default() }
}

fn writer(store: &Arc<Memory>, disk: &Path, scope: &str) -> Writer {
    writer_with(store, options(disk), scope)
}

fn writer_with(store: &Arc<Memory>, options: Options, scope: &str) -> Writer {
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) });
    Writer::new(store.clone(), budget, Arc::new(Metrics::default()), options, scope)
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    Synthetic::new(seed).fill(0, &mut buf);
    buf
}

async fn recover(store: &Arc<Memory>, disk: &Disk) -> Vec<Recovered> {
    let writer = writer(store, disk.0.path(), "bucket");
    let recovered = writer.recover().await;
    writer.settle().await;
    recovered
}

fn kept(recovered: &[Recovered], why: &str) {
    let [one] = recovered else { panic!("{recovered:?}") };
    assert!(matches!(&one.outcome, Outcome::Kept(said) if said.contains(why)), "{one:?}");
    assert!(one.path.exists() && one.path.with_extension("json").exists());
}

/// An edit of `a` and a new file `b`, killed while both are being committed, before the store has either.
async fn killed_in_commit() -> (Arc<Memory>, Disk, Vec<u8>, Vec<u8>) {
    let store = Arc::new(Memory::default());
    store.set_least_part(1000);
    let mut a = bytes(1, 9500);
    store.put("a", a.clone());
    let disk = Disk::new();
    let writer = writer(&store, disk.0.path(), "bucket");
    let edit = writer.edit(store.meta("a").unwrap(), Headers::default());
    edit.write(4200, &[7; 300]).await.unwrap();
    edit.truncate(9000).await.unwrap();
    edit.allocate(8000, 500, windlass::writer::Allocate::Punch).await.unwrap();
    a[4200..4500].fill(7);
    a[8000..8500].fill(0);
    a.truncate(9000);
    let headers = Headers { content_type: Some("text/plain".into()), ..Headers::default() };
    let new = writer.create("b".into(), headers);
    new.write(50_000, b"far").await.unwrap();
    let mut b = vec![0; 50_003];
    b[50_000..].copy_from_slice(b"far");
    store.fault(Rule::new(Fault::Stall { after: 0, pause: Duration::from_secs(1000) }).op(Op::UploadPart));
    let commits = futures::future::join(edit.commit(Condition::Any), new.commit(Condition::Any));
    assert!(tokio::time::timeout(Duration::from_secs(100), commits).await.is_err());
    let killed = disk.killed();
    assert_eq!(killed.files().len(), 4);
    store.clear_faults();
    // The bucket as it is now, without what the first writer goes on to do.
    let bucket = Arc::new(Memory::default());
    bucket.set_least_part(1000);
    bucket.put("a", store.content("a").unwrap());
    assert_eq!(bucket.meta("a").unwrap().etag, store.meta("a").unwrap().etag);
    drop((edit, new));
    writer.settle().await;
    (bucket, killed, a, b)
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_was_killed_is_finished_by_the_next_mount() {
    let (store, disk, a, b) = killed_in_commit().await;
    let recovered = recover(&store, &disk).await;
    assert!(recovered.iter().all(|one| matches!(one.outcome, Outcome::Uploaded(_))), "{recovered:?}");
    let mut keys: Vec<_> = recovered.into_iter().filter_map(|one| one.key).collect();
    keys.sort();
    assert_eq!(keys, [Key::from("a"), Key::from("b")]);
    assert!(store.content("a").unwrap() == a && store.content("b").unwrap() == b);
    assert_eq!(store.headers("b").unwrap().content_type.as_deref(), Some("text/plain"));
    assert!(disk.files().is_empty() && store.uploads().is_empty());
    assert!(recover(&store, &disk).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_newer_object_is_never_overwritten() {
    let (store, disk, ..) = killed_in_commit().await;
    store.put("a", "newer");
    store.put("b", "newer");
    for _ in 0..2 {
        let recovered = recover(&store, &disk).await;
        assert_eq!(recovered.len(), 2);
        for one in &recovered {
            kept(std::slice::from_ref(one), "was written meanwhile");
        }
    }
    assert!(store.content("a").unwrap() == "newer" && store.content("b").unwrap() == "newer");
    store.delete("a");
    let recovered = recover(&store, &disk).await;
    assert!(recovered.iter().any(|one| matches!(&one.outcome, Outcome::Kept(why) if why.contains("deleted meanwhile"))));
}

#[tokio::test(start_paused = true)]
async fn what_the_store_refuses_is_kept_for_another_time() {
    let (store, disk, a, _) = killed_in_commit().await;
    store.fault(Rule::new(Fault::Error(windlass::store::ErrorKind::AccessDenied)).op(Op::CompleteUpload));
    let recovered = recover(&store, &disk).await;
    assert!(recovered.len() == 2 && disk.files().len() == 4, "{recovered:?}");
    store.clear_faults();
    recover(&store, &disk).await;
    assert!(store.content("a").unwrap() == a && disk.files().is_empty() && store.uploads().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_closed_is_reported_and_kept() {
    let store = Arc::new(Memory::default());
    store.put("a", bytes(1, 9500));
    let disk = Disk::new();
    let live = writer(&store, disk.0.path(), "bucket");
    let edit = live.edit(store.meta("a").unwrap(), Headers::default());
    edit.write(10, b"x").await.unwrap();
    let killed = disk.killed();
    kept(&recover(&store, &killed).await, "still being written");
    assert!(store.content("a").unwrap() == bytes(1, 9500));
    // Written again after a commit: the description of that commit does not stand for it.
    edit.commit(Condition::Any).await.unwrap();
    assert_eq!(disk.files().len(), 1);
    edit.write(20, b"y").await.unwrap();
    kept(&recover(&store, &disk.killed()).await, "still being written");
}

#[tokio::test(start_paused = true)]
async fn files_of_live_mounts_and_of_other_buckets_are_left_alone() {
    let store = Arc::new(Memory::default());
    store.put("a", bytes(1, 9500));
    let disk = Disk::new();
    let live = writer(&store, disk.0.path(), "bucket");
    let edit = live.edit(store.meta("a").unwrap(), Headers::default());
    edit.write(10, b"x").await.unwrap();
    assert!(recover(&store, &disk).await.is_empty());
    let killed = disk.killed();
    let other = writer(&store, killed.0.path(), "another bucket");
    assert!(other.recover().await.is_empty());
    assert_eq!(killed.files().len(), 2);
    edit.write(20, b"y").await.unwrap();
    edit.commit(Condition::Any).await.unwrap();
    let content = store.content("a").unwrap();
    assert!(content[10] == b'x' && content[20] == b'y');
}

#[tokio::test(start_paused = true)]
async fn what_holds_nothing_new_goes_without_a_word() {
    let store = Arc::new(Memory::default());
    store.put("a", bytes(1, 9500));
    let disk = Disk::new();
    let live = writer(&store, disk.0.path(), "bucket");
    let edit = live.edit(store.meta("a").unwrap(), Headers::default());
    edit.write(10, b"x").await.unwrap();
    edit.commit(Condition::Any).await.unwrap();
    let killed = disk.killed();
    assert_eq!(killed.files().len(), 1);
    assert!(recover(&store, &killed).await.is_empty() && killed.files().is_empty());
    // Neither does a description that cannot be read lose what it is about.
    edit.write(10, b"z").await.unwrap();
    let damaged = disk.killed();
    let name = damaged.files().into_iter().find(|name| name.ends_with("json")).unwrap();
    fs::write(damaged.0.path().join("staging").join(name), b"{").unwrap();
    kept(&recover(&store, &damaged).await, "EOF");
}

const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon whose changes are written down, and a bucket.
fn kept_daemon() -> (Arc<Memory>, Disk, Writer) {
    let store = Arc::new(Memory::default());
    store.set_least_part(1000);
    let disk = Disk::new();
    let daemon = next_daemon(&store, &disk);
    (store, disk, daemon)
}

fn next_daemon(store: &Arc<Memory>, disk: &Disk) -> Writer {
    let daemon = writer(store, disk.0.path(), "bucket");
    daemon.write_down_changes();
    daemon
}

/// A new file of the inode 7, three parts and a half of which were written.
async fn half_written(daemon: &Writer) -> Arc<Content> {
    let headers = Headers { content_type: Some("text/plain".into()), ..Headers::default() };
    let content = daemon.create("a".into(), headers);
    content.belong_to(7);
    content.write(0, &bytes(1, 3500)).await.unwrap();
    content
}

/// The file of the inode 7 in the hands of the daemon after the one that has it.
async fn taken_over(store: &Arc<Memory>, disk: &Disk, content: Arc<Content>, daemon: Writer) -> (Writer, Arc<Content>) {
    assert!(content.hand_over(PATIENCE).await && content.stays());
    let before = (store.uploads().len(), store.count(Op::AbortUpload));
    drop(content);
    daemon.settle().await;
    assert_eq!((store.uploads().len(), store.count(Op::AbortUpload)), before);
    let next = next_daemon(store, disk);
    let content = next.take_over(&[7, 8].into()).await.remove(&7).expect("it was left for the next daemon");
    assert!(disk.files().is_empty(), "what it says is wrong after the next write");
    (next, content)
}

async fn assert_nothing_is_left(store: &Memory, disk: &Disk, daemon: Writer, content: Arc<Content>) {
    drop(content);
    daemon.settle().await;
    assert!(store.uploads().is_empty() && disk.files().is_empty() && store.in_flight() == 0);
}

#[tokio::test(start_paused = true)]
async fn stream_goes_on_in_the_next_daemon() {
    let (store, disk, daemon) = kept_daemon();
    let content = half_written(&daemon).await;
    let (next, content) = taken_over(&store, &disk, content, daemon).await;
    assert_eq!((content.size(), content.is_dirty(), content.is_staged()), (3500, true, false));
    // What memory had is there again.
    assert_eq!(content.read(3100, 1000).await.unwrap(), bytes(1, 3500)[3100..]);
    content.write(3500, &bytes(1, 6200)[3500..]).await.unwrap();
    // And once more.
    let (next, content) = taken_over(&store, &disk, content, next).await;
    content.commit(Condition::Any).await.unwrap().unwrap();
    assert_eq!(store.content("a").unwrap(), bytes(1, 6200));
    assert_eq!(store.headers("a").unwrap().content_type.as_deref(), Some("text/plain"));
    assert_eq!((store.count(Op::CreateUpload), store.count(Op::UploadPart), store.count(Op::Put)), (1, 7, 0));
    assert_nothing_is_left(&store, &disk, next, content).await;
}

#[tokio::test(start_paused = true)]
async fn stream_is_committed_by_the_next_daemon_at_once() {
    // Nothing sent, and nothing written at all.
    for size in [3500, 500, 0] {
        let (store, disk, daemon) = kept_daemon();
        let content = daemon.create("a".into(), Headers::default());
        content.belong_to(7);
        content.write(0, &bytes(1, size)).await.unwrap();
        let (next, content) = taken_over(&store, &disk, content, daemon).await;
        content.commit(Condition::Any).await.unwrap().unwrap();
        assert_eq!(store.content("a").unwrap(), bytes(1, size));
        assert_eq!((store.count(Op::CreateUpload), store.count(Op::Put)), if size > 1000 { (1, 0) } else { (0, 1) });
        assert_nothing_is_left(&store, &disk, next, content).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sent_bytes_are_read_and_changed_in_the_next_daemon() {
    for writes in [false, true] {
        let (store, disk, daemon) = kept_daemon();
        let content = half_written(&daemon).await;
        let (next, content) = taken_over(&store, &disk, content, daemon).await;
        let mut expected = bytes(1, 3500);
        if writes {
            content.write(1500, b"changed").await.unwrap();
            expected[1500..1507].copy_from_slice(b"changed");
        }
        assert_eq!(content.read(0, 10_000).await.unwrap(), expected);
        content.commit(Condition::Any).await.unwrap().unwrap();
        assert_eq!(store.content("a").unwrap(), expected);
        assert_nothing_is_left(&store, &disk, next, content).await;
    }
}

#[tokio::test(start_paused = true)]
async fn staged_file_and_new_headers_go_on_in_the_next_daemon() {
    for size in [0, 9500] {
        let (store, disk, daemon) = kept_daemon();
        store.put("a", bytes(1, size));
        let content = daemon.edit(store.meta("a").unwrap(), Headers::default());
        content.belong_to(7);
        assert!(content.hand_over(PATIENCE).await && !content.stays() && disk.files().is_empty(), "there is nothing to leave");
        content.set_headers(Headers { content_type: Some("text/plain".into()), ..Headers::default() });
        let mut expected = bytes(1, size);
        if size > 0 {
            content.write(100, b"changed").await.unwrap();
            expected[100..107].copy_from_slice(b"changed");
        }
        assert!(content.hand_over(PATIENCE).await && content.stays());
        assert!(content.hand_over(PATIENCE).await, "again is no harm");
        drop(content);
        let next = next_daemon(&store, &disk);
        let content = next.take_over(&[7].into()).await.remove(&7).unwrap();
        content.commit(Condition::Any).await.unwrap().unwrap();
        assert_eq!(store.content("a").unwrap(), expected);
        assert_eq!(store.headers("a").unwrap().content_type.as_deref(), Some("text/plain"));
        assert_nothing_is_left(&store, &disk, next, content).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stream_that_no_daemon_goes_on_with_is_aborted_and_reported() {
    let (store, disk, daemon) = kept_daemon();
    let content = half_written(&daemon).await;
    assert!(content.hand_over(PATIENCE).await);
    // While the daemon lives the file is its own.
    assert!(next_daemon(&store, &disk).take_over(&[7].into()).await.is_empty());
    assert!(recover(&store, &disk).await.is_empty());
    drop(content);
    daemon.settle().await;
    assert!(next_daemon(&store, &disk).take_over(&[8].into()).await.is_empty());
    assert_eq!(store.uploads().len(), 1);
    store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::AbortUpload));
    kept(&recover(&store, &disk).await, "stays in the bucket");
    store.clear_faults();
    for _ in 0..2 {
        kept(&recover(&store, &disk).await, "still being written");
        assert!(store.uploads().is_empty() && store.keys().is_empty());
    }
    // A late commit fails: nothing shorter is made of it.
    let next = next_daemon(&store, &disk);
    let content = next.take_over(&[7].into()).await.remove(&7).unwrap();
    assert!(content.commit(Condition::Any).await.is_err() && content.commit(Condition::Any).await.is_err());
    assert!(store.keys().is_empty());
    assert_nothing_is_left(&store, &disk, next, content).await;
}

#[tokio::test(start_paused = true)]
async fn content_that_no_daemon_would_find_is_not_handed_over() {
    let (store, disk, daemon) = kept_daemon();
    let not_written_down = writer(&store, disk.0.path(), "bucket");
    let not_named = writer_with(&store, Options { staging: staging::Options::default(), ..options(disk.0.path()) }, "bucket");
    not_named.write_down_changes();
    for (daemon, owner) in [(&daemon, None), (&not_written_down, Some(7)), (&not_named, Some(7))] {
        let content = daemon.create("a".into(), Headers::default());
        content.write(0, &bytes(1, 3500)).await.unwrap();
        if let Some(owner) = owner {
            content.belong_to(owner);
        }
        assert!(!content.hand_over(PATIENCE).await);
        // It goes on as if it had not been asked.
        content.write(3500, &bytes(1, 4500)[3500..]).await.unwrap();
        content.commit(Condition::Any).await.unwrap().unwrap();
        assert_eq!(store.content("a").unwrap(), bytes(1, 4500));
        assert_nothing_is_left(&store, &disk, daemon.clone(), content).await;
    }
    for is_lost in [false, true] {
        let content = half_written(&daemon).await;
        if is_lost {
            content.give_up().await
        } else {
            content.discard().await
        }
        assert!(!content.hand_over(PATIENCE).await);
        assert_nothing_is_left(&store, &disk, daemon.clone(), content).await;
    }
}

#[tokio::test(start_paused = true)]
async fn hand_over_waits_for_parts_no_longer_than_it_may() {
    let (store, disk, daemon) = kept_daemon();
    store.fault(Rule::new(Fault::Stall { after: 0, pause: Duration::from_secs(20) }).op(Op::UploadPart).first(3));
    let content = half_written(&daemon).await;
    let began = tokio::time::Instant::now();
    assert!(!content.hand_over(Duration::from_secs(5)).await && disk.files().is_empty());
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    content.write(3500, b"more").await.unwrap();
    let (next, content) = taken_over(&store, &disk, content, daemon).await;
    assert_eq!(content.size(), 3504);
    content.commit(Condition::Any).await.unwrap();
    assert_eq!(store.content("a").unwrap()[..3500], bytes(1, 3500));
    assert_nothing_is_left(&store, &disk, next, content).await;
}

#[tokio::test(start_paused = true)]
async fn content_handed_over_takes_nothing_and_may_be_given_up() {
    for is_lost in [false, true] {
        let (store, disk, daemon) = kept_daemon();
        let content = half_written(&daemon).await;
        assert!(content.hand_over(PATIENCE).await && content.is_dirty());
        let left = |result: Result<(), WriteError>| matches!(result, Err(WriteError::Interrupted(Interrupted::HandedOver)));
        assert!(left(content.write(3500, b"x").await) && left(content.truncate(0).await) && left(content.truncate(10).await));
        assert!(left(content.read(0, 1).await.map(drop)) && left(content.commit(Condition::Any).await.map(drop)));
        assert_eq!((store.uploads().len(), disk.files().len()), (1, 3));
        assert_eq!(content.leave_on_disk(false, PATIENCE).await, Left::Nothing);
        if is_lost {
            content.give_up().await
        } else {
            content.discard().await
        }
        assert_eq!(content.is_lost(), is_lost);
        assert_nothing_is_left(&store, &disk, daemon, content).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stream_keeps_its_parts_and_conditions_in_the_next_daemon() {
    let (store, disk, daemon) = kept_daemon();
    let content = half_written(&daemon).await;
    content.require_absent();
    assert!(content.hand_over(PATIENCE).await);
    drop(content);
    // The next daemon cuts files otherwise.
    let next = writer_with(&store, Options { part_size: ByteSize::bytes(3000), ..options(disk.0.path()) }, "bucket");
    next.write_down_changes();
    let content = next.take_over(&[7].into()).await.remove(&7).unwrap();
    content.write(3500, &bytes(1, 9999)[3500..]).await.unwrap();
    store.put("a", "by another client");
    let error = content.commit(Condition::Any).await.unwrap_err();
    assert!(matches!(error, WriteError::Store(error) if error.kind == ErrorKind::Replaced));
    assert_eq!(store.content("a").unwrap(), "by another client");
    drop(content);
    next.settle().await;

    store.delete("a");
    let content = half_written(&next).await;
    content.write(3500, &bytes(1, 9999)[3500..]).await.unwrap();
    let (last, content) = taken_over(&store, &disk, content, next).await;
    content.commit(Condition::Any).await.unwrap().unwrap();
    assert_eq!(store.content("a").unwrap(), bytes(1, 9999));
    assert_nothing_is_left(&store, &disk, last, content).await;
}

/// A description of parts that cannot be is refused, and found again by what clears up.
#[tokio::test(start_paused = true)]
async fn damaged_description_of_a_stream_is_not_taken_over() {
    for (from, to) in [("\"number\": 2", "\"number\": 1"), ("\"number\": 2", "\"number\": 0"), ("\"first\": 1000", "\"first\": 0")] {
        let (store, disk, daemon) = kept_daemon();
        let content = half_written(&daemon).await;
        assert!(content.hand_over(PATIENCE).await);
        drop(content);
        let name = disk.files().into_iter().find(|name| name.ends_with("json")).unwrap();
        let path = disk.0.path().join("staging").join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        assert!(next_daemon(&store, &disk).take_over(&[7].into()).await.is_empty());
        kept(&recover(&store, &disk).await, "still being written");
        assert!(store.uploads().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn staged_files_that_another_user_may_have_put_there_are_not_uploaded() {
    let (store, killed, ..) = killed_in_commit().await;
    let planted = Disk::new();
    std::os::unix::fs::symlink(killed.0.path().join("staging"), planted.0.path().join("staging")).unwrap();
    let before = (store.content("a"), store.content("b"), killed.files());
    assert!(recover(&store, &planted).await.is_empty());
    assert_eq!((store.content("a"), store.content("b"), killed.files()), before);
    // Nothing is written there either.
    let error =
        writer(&store, planted.0.path(), "bucket").edit(store.meta("a").unwrap(), Headers::default()).write(1, b"x").await.unwrap_err();
    let why = std::error::Error::source(&error).expect("the disk said why").to_string();
    assert!(why.contains("staging") && why.contains("remove it"), "{why}");
    assert_eq!(killed.files(), before.2);
}

#[tokio::test(start_paused = true)]
async fn what_holds_nothing_new_gives_its_room_back() {
    let (store, disk) = (Arc::new(Memory::default()), Disk::new());
    let staging = disk.0.path().join("staging");
    fs::create_dir(&staging).unwrap();
    fs::set_permissions(&staging, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(staging.join("1-1-00000001.data"), bytes(1, 1 << 20)).unwrap();
    let identity = Identity { endpoint: "http://127.0.0.1:9000".into(), bucket: "bucket".into() };
    let spill = Spill::open(disk.0.path(), Bounds::default(), identity).unwrap();
    assert!(spill.guard().reserved_bytes() >= 1 << 20);
    let writer = writer(&store, disk.0.path(), "bucket");
    writer.share_room(spill.guard());
    assert!(writer.recover().await.is_empty() && disk.files().is_empty());
    assert_eq!(spill.guard().reserved_bytes(), 0);
}
