//! Programs that go through whole trees, over the in-memory store under a paused clock: `find`, `du` and `rsync` read one directory after
//! another, git and training scripts ask for one name after another. Asserts the requests that it costs, the time, and that what is
//! listed ahead is what would have been listed alone.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use windlass::store::memory::{Fault, Latency, Memory, Plan, Rule};
use windlass::store::{ErrorKind, Op};
use windlass::vfs::{Attr, Inode, Kind, Names, Options};

const RTT: Duration = Duration::from_millis(20);

fn bucket() -> Memory {
    Memory::new(Plan { first_byte: Latency::Fixed(RTT), ..Plan::default() })
}

/// `wide` directories in each of `wide`, with so many files.
fn tree(wide: usize, files: usize) -> Memory {
    let store = bucket();
    for (a, b) in (0..wide).flat_map(|a| (0..wide).map(move |b| (a, b))) {
        for file in 0..files {
            store.put_synthetic(format!("t/d{a:02}/e{b:02}/f{file}"), 100 + file as u64);
        }
    }
    store
}

fn names(store: &Memory) -> Arc<Names> {
    names_with(store, Options::default())
}

fn names_with(store: &Memory, options: Options) -> Arc<Names> {
    Names::new(Arc::new(store.clone()), options)
}

/// Names and attributes of a directory, without `.` and `..`, as readdirplus gives them.
async fn entries(names: &Arc<Names>, directory: Inode) -> Vec<(Vec<u8>, Attr)> {
    let handle = names.open_dir(directory).expect("a directory");
    let (mut offset, mut seen) = (0, Vec::new());
    loop {
        let page = match handle.try_read_plus(offset) {
            Some(page) => page.expect("listed"),
            None => handle.read_plus(offset).await.expect("listed"),
        };
        if page.is_empty() {
            return seen;
        }
        page.fill_plus(|item, entry| {
            offset = item.next_offset;
            if !matches!(item.name, b"." | b"..") {
                seen.push((item.name.to_vec(), entry.attr.clone()));
            }
            false
        });
    }
}

/// Reads `directory` and all below it, each before what is in it, as find does.
async fn find(names: &Arc<Names>, directory: Inode) -> Vec<(Vec<u8>, Attr)> {
    let (mut stack, mut found) = (vec![(directory, Vec::new())], Vec::new());
    while let Some((directory, path)) = stack.pop() {
        let entries = entries(names, directory).await;
        let below = |name: &[u8]| [&path[..], b"/", name].concat();
        let directories = entries.iter().filter(|(_, attr)| attr.kind == Kind::Directory);
        stack.extend(directories.map(|(name, attr)| (attr.ino, below(name))).collect::<Vec<_>>().into_iter().rev());
        found.extend(entries.into_iter().map(|(name, attr)| (below(&name), attr)));
    }
    found
}

async fn ino(names: &Names, path: &str) -> Inode {
    let mut ino = Inode::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        ino = names.lookup(ino, name.as_bytes()).await.expect("exists").attr.ino;
    }
    ino
}

/// LISTs since the last time.
fn lists(store: &Memory) -> usize {
    assert_eq!(store.count(Op::Head), 0);
    let count = store.count(Op::List);
    store.reset_log();
    count
}

#[tokio::test(start_paused = true)]
async fn a_tree_of_1057_directories_is_12_lists() {
    let store = tree(32, 8);
    let names = names(&store);
    let top = ino(&names, "t").await;
    lists(&store);
    let start = Instant::now();
    assert_eq!(find(&names, top).await.len(), 32 + 1024 + 8192);
    // `t`, `d00` and `e00` by themselves, and 8,192 keys in pages of 1,000.
    assert_eq!(lists(&store), 3 + 9);
    // The first page comes with the third directory.
    assert_eq!(start.elapsed(), RTT * (2 + 9));
    assert_eq!(find(&names, top).await.len(), 32 + 1024 + 8192);
    assert_eq!(lists(&store), 0);
}

#[tokio::test(start_paused = true)]
async fn threads_that_share_a_tree_ask_for_little_more() {
    let store = tree(32, 8);
    let names = names(&store);
    let top = ino(&names, "t").await;
    let directories = entries(&names, top).await;
    lists(&store);
    let queue = Arc::new(parking_lot::Mutex::new(directories.into_iter().map(|(_, attr)| attr.ino).rev().collect::<Vec<_>>()));
    let start = Instant::now();
    let threads = (0..4).map(|_| {
        let (queue, names) = (queue.clone(), names.clone());
        async move {
            let mut found = 0;
            loop {
                let Some(next) = queue.lock().pop() else { return found };
                found += find(&names, next).await.len();
            }
        }
    });
    assert_eq!(join_all(threads).await.into_iter().sum::<usize>(), 1024 + 8192);
    assert!(lists(&store) <= 60 && start.elapsed() <= RTT * 30, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_ahead_is_what_is_listed_alone() {
    let store = tree(6, 4);
    for n in 0..40 {
        // Markers, objects that a directory hides, names around the byte of '/', and empty directories.
        let directory = format!("t/d{:02}/e{:02}", n % 6, n % 5);
        store.put(format!("{directory}/"), "");
        store.put(format!("{directory}-{n}"), "x");
        store.put(format!("{directory}.{n}/x"), "x");
        store.put(format!("{directory}0/{n}/deep/er"), "x");
        store.put(format!("{directory}/f0/hides"), "x");
        store.put(format!("t/d{:02}/none{n}/", n % 6), "");
        store.put(format!("{directory}//odd"), "x");
    }
    let ahead = names(&store);
    let found = find(&ahead, ino(&ahead, "t").await).await;
    let listed = store.count(Op::List);
    let alone = Options { stat_cache_size: 0, ..Options::default() };
    let alone = names_with(&store, alone);
    let expected = find(&alone, ino(&alone, "t").await).await;
    assert!(store.count(Op::List) - listed > 2 * listed, "one for each directory, and {listed}");
    // Of directories without a marker the time is that of the mount.
    let time = |attr: &Attr| (attr.kind == Kind::File).then_some(attr.modified);
    let facts =
        |found: &[(Vec<u8>, Attr)]| found.iter().map(|(path, attr)| (path.clone(), attr.kind, attr.size, time(attr))).collect::<Vec<_>>();
    assert_eq!(facts(&found), facts(&expected));
    assert_eq!((ahead.hidden_objects(), alone.hidden_objects()), (30, 30));
}

#[tokio::test(start_paused = true)]
async fn a_page_that_cannot_be_had_is_no_error_for_anybody() {
    let store = tree(8, 8);
    let names = names(&store);
    let top = ino(&names, "t").await;
    lists(&store);
    // The first is of the directory, the second of all that is below it.
    store.fault(Rule::new(Fault::Error(ErrorKind::Timeout)).op(Op::List).key("t/").nth(2));
    assert_eq!(find(&names, top).await.len(), 8 + 64 + 512);
    // Whoever goes on by himself is helped as those are who have an order of their own: each of the first directories, and pages of the rest.
    let asked = lists(&store);
    assert!(asked > 12 && asked < 1 + 8 + 64 + 1, "{asked}");
}

#[tokio::test(start_paused = true)]
async fn what_is_expired_while_a_page_is_under_way_is_asked_for_again() {
    let store = tree(8, 8);
    let names = names(&store);
    let top = ino(&names, "t").await;
    entries(&names, top).await;
    let first = ino(&names, "t/d00").await;
    entries(&names, first).await;
    let (handle, third) = (names.open_dir(ino(&names, "t/d00/e00").await).unwrap(), names.clone());
    lists(&store);
    let mut reading = pin!(handle.read_plus(0));
    assert!(timeout(RTT / 2, &mut reading).await.is_err(), "its own request and the page are under way");
    store.put("t/d00/e01/new", "content");
    names.expire_path(b"t/d00/e01", true).unwrap();
    reading.await.unwrap();
    sleep(RTT).await;
    assert_eq!(lists(&store), 2);
    let found = entries(&third, ino(&third, "t/d00/e01").await).await;
    assert_eq!(found.len(), 9);
}

#[tokio::test(start_paused = true)]
async fn files_of_a_manifest_are_found_in_pages_of_their_directory() {
    let store = bucket();
    for n in 0..10_000 {
        store.put_synthetic(format!("d/{n:05}"), 100);
    }
    for step in [1, 7919] {
        let names = names(&store);
        let directory = ino(&names, "d").await;
        lists(&store);
        let start = Instant::now();
        for n in 0..2000 {
            names.lookup(directory, format!("{:05}", n * step % 10_000).as_bytes()).await.expect("there");
        }
        // In order: three by themselves, one or two while each of the first pages is under way, and a page ahead. At random those that no page
        // has told of yet, of which every third asks for one more.
        let (most, asked) = (if step == 1 { 10 } else { 70 }, lists(&store));
        assert!(asked <= most && start.elapsed() <= RTT * most as u32, "{step}: {asked}, {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn files_of_an_index_are_found_in_pages_of_the_tree() {
    let store = tree(16, 8);
    let names = names(&store);
    let start = Instant::now();
    for (a, b, file) in (0..16).flat_map(|a| (0..16).flat_map(move |b| (0..8).map(move |file| (a, b, file)))) {
        let found = ino(&names, &format!("t/d{a:02}/e{b:02}/f{file}")).await;
        assert!(found != Inode::ROOT);
    }
    let asked = lists(&store);
    // One for each of 2,048 files otherwise, and one for each of 272 directories.
    assert!(asked <= 40 && start.elapsed() <= RTT * 40, "{asked}, {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn names_that_are_free_have_their_directory_listed_once_when_it_is_small() {
    for files in [999, 1001] {
        let store = bucket();
        (0..files).for_each(|n| drop(store.put(format!("d/known{n:04}").as_str(), "content")));
        let names = names(&store);
        let directory = ino(&names, "d").await;
        lists(&store);
        let start = Instant::now();
        for n in 0..100 {
            assert!(names.lookup(directory, format!("free{n}").as_bytes()).await.is_err());
        }
        sleep(RTT).await;
        // Three names and a page. Where that is not all of the directory it reaches past these names.
        let asked = 3 + 1;
        assert_eq!((lists(&store), start.elapsed()), (asked, RTT * (asked as u32 + 1)));
        // What others make is seen when absence is not believed any more.
        store.put("d/free7", "content");
        sleep(Duration::from_secs(1)).await;
        assert!(names.lookup(directory, b"free7").await.is_ok());
    }
}
