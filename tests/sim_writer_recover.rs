//! What a killed mount leaves on the disk, and what the next one makes of it. A kill is a copy of the staging directory as it is at
//! some moment, taken without asking the writer: nothing holds locks on the copy.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::store::memory::{Fault, Memory, Rule, Synthetic};
use windlass::store::{Condition, Headers, Key, Op};
use windlass::units::ByteSize;
use windlass::writer::staging::{self, Outcome, Recovered};
use windlass::writer::{Limits, Options, Writer};

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

fn writer(store: &Arc<Memory>, disk: &Path, scope: &str) -> Writer {
    let limits = Limits { least_part: 1000, copied_part: 4000, ahead: 3000, kept: 2000, ..Limits::default() };
    let staging = staging::Options { dir: Some(disk.to_owned()), ..staging::Options::default() };
    let options = Options { part_size: ByteSize::bytes(1000), limits, staging, ..Options::default() };
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
