//! The name space over the in-memory store under a paused clock: which requests a stat, an ls or a poll costs, and
//! what is seen when. Nothing here waits in real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use futures::future::join_all;
use tokio::time::{Instant, advance, sleep, timeout};
use windlass::store::memory::{Fault, Latency, Memory, Outcome, Plan, Rule};
use windlass::store::{ErrorKind, Headers, Key, Op, SYMLINK_SIZE};
use windlass::vfs::{Attr, DirHandle, Entry, Error, Inode, Kind, Names, Options, PosixAttributes};

const RTT: Duration = Duration::from_millis(20);

fn bucket(keys: &[&str]) -> Memory {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(RTT), ..Plan::default() });
    for key in keys {
        store.put(*key, "content");
    }
    store
}

fn numbered(count: usize) -> Memory {
    let store = bucket(&[]);
    for n in 0..count {
        // None of the size that a symbolic link has.
        store.put_synthetic(format!("d/{n:07}"), n as u64 + u64::from(n as u64 == SYMLINK_SIZE));
    }
    store
}

fn names(store: &Memory) -> Arc<Names> {
    names_with(store, Options::default())
}

fn names_with(store: &Memory, options: Options) -> Arc<Names> {
    Names::new(Arc::new(store.clone()), options)
}

/// HEADs and LISTs since the last time.
fn requests(store: &Memory) -> (usize, usize) {
    let counts = (store.count(Op::Head), store.count(Op::List));
    store.reset_log();
    counts
}

async fn ino(names: &Names, path: &str) -> Inode {
    let mut ino = Inode::ROOT;
    for name in path.split('/') {
        ino = names.lookup(ino, name.as_bytes()).await.expect("exists").attr.ino;
    }
    ino
}

/// Reads a directory as readdirplus does, `room` entries a reply, and says what was seen, without `.` and `..`.
async fn list(handle: &DirHandle, room: usize) -> Result<Vec<(String, Entry)>, Error> {
    let mut seen = Vec::new();
    let mut offset = 0;
    loop {
        let page = match handle.try_read_plus(offset) {
            Some(page) => page?,
            None => handle.read_plus(offset).await?,
        };
        if page.is_empty() {
            return Ok(seen);
        }
        let mut left = room;
        page.fill_plus(|item, entry| {
            if left == 0 {
                return true;
            }
            left -= 1;
            offset = item.next_offset;
            if !matches!(item.name, b"." | b"..") {
                seen.push((String::from_utf8_lossy(item.name).into_owned(), entry.clone()));
            }
            false
        });
    }
}

async fn ls(names: &Arc<Names>, directory: Inode) -> Vec<(String, Entry)> {
    list(&names.open_dir(directory).expect("a directory"), 100).await.expect("listed")
}

async fn ls_names(names: &Arc<Names>, directory: Inode) -> Vec<String> {
    ls(names, directory).await.into_iter().map(|(name, _)| name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_stat_of_a_missing_name_is_one_list() {
    let store = bucket(&["other"]);
    let names = names(&store);
    let start = Instant::now();
    assert!(matches!(names.lookup(Inode::ROOT, b"missing").await, Err(Error::NotFound)));
    assert_eq!((start.elapsed(), requests(&store)), (RTT, (0, 1)));
    assert!(matches!(names.try_lookup(Inode::ROOT, b"missing"), Some(Err(Error::NotFound))));
    // What was true when it was asked.
    assert_eq!(names.absent_for(Inode::ROOT, b"missing"), Duration::from_secs(1) - RTT);
    assert_eq!(requests(&store), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stat_is_one_list_whatever_the_name_is_and_two_among_many_longer_names() {
    let store = bucket(&["file", "file.txt", "file1", "d-1", "d.x", "d/", "d/x", "both", "both-1", "both/x", "m", "n/x"]);
    for n in 0..100 {
        // Between `m` and `m/`, as between `n` and `n/`.
        store.put(format!("m-{n}"), "content");
        store.put(format!("n.{n}/y"), "content");
    }
    let marker = store.meta("d/").expect("put").modified;
    for (name, kind, lists) in [
        ("file", Some(Kind::File), 1),
        ("file1", Some(Kind::File), 1),
        ("fil", None, 1),
        ("d", Some(Kind::Directory), 1),
        ("both", Some(Kind::Directory), 1),
        ("m", Some(Kind::File), 2),
        ("n", Some(Kind::Directory), 2),
        // Longer names are there, and the page of them is full, but all of them are past it.
        ("m-", None, 1),
    ] {
        // Each by itself: names that are asked for one after another have their directory listed.
        let names = names(&store);
        let start = Instant::now();
        let found = names.lookup(Inode::ROOT, name.as_bytes()).await;
        assert_eq!(found.as_ref().ok().map(|entry| entry.attr.kind), kind, "{name}");
        assert_eq!((start.elapsed(), requests(&store)), (RTT * lists, (0, lists as usize)), "{name}");
        assert!(name != "d" || found.is_ok_and(|entry| entry.attr.modified == marker), "the marker is seen");
        assert_eq!(names.hidden_objects(), usize::from(name == "both"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_be_a_link_and_what_has_attributes_of_its_own_is_asked_for() {
    let store = bucket(&["file"]);
    store.put("link", vec![0; SYMLINK_SIZE as usize]);
    let plain = names(&store);
    plain.lookup(Inode::ROOT, b"link").await.expect("there");
    assert_eq!(requests(&store), (1, 1));
    let start = Instant::now();
    names_with(&store, Options { posix_attributes: PosixAttributes::On, ..Options::default() })
        .lookup(Inode::ROOT, b"file")
        .await
        .expect("there");
    assert_eq!((start.elapsed(), requests(&store)), (RTT, (1, 1)), "side by side");
}

#[tokio::test(start_paused = true)]
async fn attributes_of_a_directory_are_those_of_its_marker_for_one_head_where_they_are_kept() {
    let store = bucket(&["marked/", "marked/x", "bare/x"]);
    let pairs = [("mode", "16872"), ("uid", "7"), ("gid", "8"), ("mtime", "1500000000.5")];
    let metadata = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    store.set_headers("marked/", Headers { metadata, ..Headers::default() });
    let modified = UNIX_EPOCH + Duration::from_millis(1_500_000_000_500);
    let options = Options { posix_attributes: PosixAttributes::On, uid: 1, gid: 2, dir_mode: 0o755, ..Options::default() };
    let shown = |attr: &Attr| (attr.perm, attr.uid, attr.gid, attr.modified == modified);
    let (kept, default) = ((0o750, 7, 8, true), (0o755, 1, 2, false));

    // By name, and again when that is over. What lies below is looked for first: it is the directory for most names that are one.
    let names = names_with(&store, options.clone());
    for (name, expected, by_name, again) in [("marked", kept, (2, 1), (1, 0)), ("bare", default, (1, 1), (1, 1))] {
        let entry = names.lookup(Inode::ROOT, name.as_bytes()).await.expect("there");
        assert_eq!((shown(&entry.attr), requests(&store)), (expected, by_name), "{name}");
        let (attr, _) = names.getattr(entry.attr.ino).await.expect("there");
        assert_eq!((shown(&attr), requests(&store)), (expected, (0, 0)), "{name}");
        advance(options.stat_cache_ttl).await;
        let (attr, _) = names.getattr(entry.attr.ino).await.expect("there");
        assert_eq!((shown(&attr), requests(&store)), (expected, again), "{name}");
    }

    // In a listing: one HEAD for each, and none as long as that is believed.
    let names = names_with(&store, options.clone());
    for expected in [(2, 1), (0, 0)] {
        let entries = list(&names.open_dir(Inode::ROOT).expect("a directory"), 100).await.expect("it is listed");
        let seen: Vec<_> = entries.iter().map(|(name, entry)| (name.as_str(), shown(&entry.attr), entry.ttl.is_zero())).collect();
        assert_eq!(seen, [("bare", default, false), ("marked", kept, false)]);
        assert_eq!(requests(&store), expected);
    }
    for name in ["bare", "marked"] {
        names.lookup(Inode::ROOT, name.as_bytes()).await.expect("there");
    }
    // Its own listing shows the marker too, which tells no more than the date.
    let marked = ino(&names, "marked").await;
    requests(&store);
    list(&names.open_dir(marked).expect("a directory"), 100).await.expect("it is listed");
    assert_eq!(shown(&names.getattr(marked).await.expect("there").0), kept);
    assert_eq!(requests(&store), (1, 1), "its file, and the listing");

    // Where they are not kept nobody asks for them.
    let plain = names_with(&store, Options { posix_attributes: PosixAttributes::Off, ..options });
    let entries = list(&plain.open_dir(Inode::ROOT).expect("a directory"), 100).await.expect("it is listed");
    assert!(entries.iter().all(|(_, entry)| shown(&entry.attr) == default), "{entries:?}");
    assert_eq!(requests(&store), (0, 1));
}

/// What each file of `directories` shows as its mode: listed first, or each by its name.
async fn modes(names: &Arc<Names>, directories: &[&str], listed: bool) -> Vec<u16> {
    let mut modes = Vec::new();
    for directory in directories {
        let parent = if directory.is_empty() { Inode::ROOT } else { ino(names, directory).await };
        if listed {
            let entries = list(&names.open_dir(parent).expect("a directory"), 100).await.expect("it is listed");
            modes.extend(entries.iter().filter(|(_, entry)| entry.attr.kind == Kind::File).map(|(_, entry)| entry.attr.perm));
        } else {
            for name in ["x", "y"] {
                modes.push(names.lookup(parent, name.as_bytes()).await.expect("there").attr.perm);
            }
        }
    }
    modes
}

#[tokio::test(start_paused = true)]
async fn objects_are_asked_for_attributes_only_in_directories_that_say_that_they_have_some() {
    let store = bucket(&[
        "bare/x", "bare/y", "empty/", "empty/x", "empty/y", "marked/", "marked/x", "marked/y", "s3fs/", "s3fs/x", "s3fs/y", "x", "y",
    ]);
    let metadata = |pairs: &[(&str, &str)]| {
        let metadata = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Headers { metadata, ..Headers::default() }
    };
    for name in ["bare/x", "empty/x", "marked/x", "s3fs/x", "x"] {
        store.set_headers(name, metadata(&[("mode", "33261")]));
    }
    store.set_headers("marked/", metadata(&[("windlass-entries", "attributes")]));
    store.set_headers("s3fs/", metadata(&[("mode", "16877"), ("mtime", "1500000000")]));
    let options = Options { posix_attributes: PosixAttributes::Auto, ..Options::default() };
    let (with, without) = ([0o755, 0o644], [0o644, 0o644]);
    // The HEADs and LISTs of a first look, with that for the directory itself.
    for (directory, expected, listed, by_name) in [
        // No HEAD but for what takes the place of the bucket's marker.
        ("", without, (0, 1), (1, 2)),
        ("bare", without, (1, 2), (1, 3)),
        // One for its marker.
        ("empty", without, (2, 2), (2, 3)),
        ("marked", with, (4, 2), (4, 3)),
        ("s3fs", with, (4, 2), (4, 3)),
    ] {
        for (is_listed, cost) in [(true, listed), (false, by_name)] {
            let names = names_with(&store, options.clone());
            requests(&store);
            assert_eq!(modes(&names, &[directory], is_listed).await, expected, "{directory}, listed: {is_listed}");
            assert_eq!(requests(&store), cost, "{directory}, listed: {is_listed}");
            assert_eq!(modes(&names, &[directory], is_listed).await, expected, "{directory}, listed: {is_listed}, again");
            assert_eq!(requests(&store), (0, 0), "{directory}, listed: {is_listed}, again");
        }
    }
    // What says so of the bucket is in the mount's own directory, which its listing shows.
    store.put(".windlass/attributes", "");
    store.set_headers(".windlass/attributes", metadata(&[("windlass-entries", "attributes")]));
    for is_listed in [true, false] {
        assert_eq!(modes(&names_with(&store, options.clone()), &[""], is_listed).await, with, "listed: {is_listed}");
    }
    // Another client marks it: seen when what is known is not believed any more.
    let names = names_with(&store, options.clone());
    assert_eq!(modes(&names, &["empty"], true).await, without);
    store.set_headers("empty/", metadata(&[("windlass-entries", "attributes")]));
    assert_eq!(modes(&names, &["empty"], true).await, without);
    advance(options.stat_cache_ttl).await;
    assert_eq!(modes(&names, &["empty"], true).await, with);
}

/// Creating a file begins with a lookup of its name, and the kernel serializes creates in a directory.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_not_listed_is_absent_before_the_head_for_its_attributes_is_answered() {
    let store = bucket(&["marked/", "marked/x"]);
    let metadata = [("windlass-entries".to_owned(), "attributes".to_owned())].into();
    store.set_headers("marked/", Headers { metadata, ..Headers::default() });
    let names = names_with(&store, Options { posix_attributes: PosixAttributes::Auto, ..Options::default() });
    let marked = ino(&names, "marked").await;
    assert_eq!(names.lookup(marked, b"x").await.expect("there").attr.kind, Kind::File);
    store.set_plan(Plan { first_byte: Latency::Fixed(Duration::from_millis(10)), ..Plan::default() });
    let _never_answered = store.hold(Op::Head, "marked/y");
    requests(&store);
    let looked_up = timeout(Duration::from_secs(1), names.lookup(marked, b"y")).await.expect("the listing is enough");
    assert!(matches!(looked_up, Err(Error::NotFound)));
    assert_eq!(requests(&store), (1, 1));
    // Of the names after a free one most are free.
    assert!(matches!(names.lookup(marked, b"z").await, Err(Error::NotFound)));
    assert_eq!(requests(&store), (0, 1));
    store.put("marked/w", "x");
    assert_eq!(names.lookup(marked, b"w").await.expect("there").attr.kind, Kind::File);
    assert_eq!(requests(&store), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn attributes_of_programs_come_with_what_shows_the_file_and_cost_no_request_of_their_own() {
    let store = bucket(&["bare/x", "bare/y", "marked/", "marked/sub/", "marked/x", "marked/y"]);
    let metadata = |pairs: &[(&str, &str)]| {
        let metadata = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Headers { metadata, ..Headers::default() }
    };
    // {"user.kind":"YQ=="}
    let kind = ("xattr", "%7B%22user.kind%22%3A%22YQ%3D%3D%22%7D");
    store.set_headers("bare/x", metadata(&[kind]));
    store.set_headers("marked/x", metadata(&[kind, ("mode", "33261")]));
    store.set_headers("marked/sub/", metadata(&[kind, ("mode", "16877")]));
    store.set_headers("marked/", metadata(&[("windlass-entries", "attributes")]));
    let options = Options { posix_attributes: PosixAttributes::Auto, ..Options::default() };
    for is_listed in [true, false] {
        let names = names_with(&store, options.clone());
        for (path, expected) in
            [("bare/x", ""), ("bare/y", ""), ("marked/x", "user.kind\0"), ("marked/y", ""), ("marked/sub", "user.kind\0")]
        {
            let (directory, name) = path.split_once('/').expect("in a directory");
            let parent = ino(&names, directory).await;
            if is_listed {
                list(&names.open_dir(parent).expect("a directory"), 100).await.expect("it is listed");
            }
            let found = names.lookup(parent, name.as_bytes()).await.expect("there").attr.ino;
            requests(&store);
            let all = names.user_attributes(found).await.expect("it is there");
            assert_eq!(all.names(), expected.as_bytes(), "{path}, listed: {is_listed}");
            let value = names.extended_attribute(found, b"user.kind").await.ok();
            assert_eq!(value.as_deref(), (!expected.is_empty()).then_some(&b"a"[..]), "{path}, listed: {is_listed}");
            assert_eq!(names.extended_attribute(found, b"security.capability").await.ok(), None);
            assert_eq!(requests(&store), (0, 0), "{path}, listed: {is_listed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_created_elsewhere_is_seen_after_the_negative_ttl_though_it_is_polled_for() {
    let store = bucket(&["other"]);
    let names = names(&store);
    let mut created = None;
    for poll in 0..100 {
        let found = names.lookup(Inode::ROOT, b"late").await.is_ok();
        match created {
            Some(at) if found => {
                let waited = Instant::now() - at;
                assert!(waited <= Duration::from_secs(1) + RTT, "{waited:?}");
                return;
            }
            None if poll == 25 => {
                store.put("late", "content");
                created = Some(Instant::now());
            }
            _ => assert!(!found),
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("never seen");
}

#[tokio::test(start_paused = true)]
async fn an_ls_of_100_000_keys_is_100_lists_and_none_within_the_ttl() {
    let store = numbered(100_000);
    let names = names(&store);
    let directory = ino(&names, "d").await;
    requests(&store);
    assert_eq!(ls(&names, directory).await.len(), 100_000);
    assert_eq!(requests(&store), (0, 100));
    assert_eq!(ls(&names, directory).await.len(), 100_000);
    let file = names.lookup(directory, b"0054321").await.expect("listed");
    assert_eq!((file.attr.size, file.attr.kind), (54_321, Kind::File));
    let (object, _) = names.fresh_object(file.attr.ino).await.expect("listed");
    assert_eq!(Some(object), store.meta("d/0054321"));
    assert_eq!(requests(&store), (0, 0));
    advance(Duration::from_secs(60)).await;
    assert_eq!(ls(&names, directory).await.len(), 100_000);
    assert_eq!(requests(&store), (0, 100));
}

#[tokio::test(start_paused = true)]
async fn a_million_keys_pass_through_bounded_memory() {
    let store = numbered(1_000_000);
    let names = names(&store);
    let directory = ino(&names, "d").await;
    requests(&store);
    let handle = names.open_dir(directory).expect("a directory");
    let (mut offset, mut next, mut most) = (0, 0, 0);
    loop {
        let page = handle.read(offset).await.expect("listed");
        if page.is_empty() {
            break;
        }
        page.fill(|item| {
            offset = item.next_offset;
            if item.name.len() == 7 {
                assert_eq!(item.name, format!("{next:07}").as_bytes());
                next += 1;
            }
            false
        });
        most = most.max(handle.held_entries());
    }
    assert_eq!((next, requests(&store)), (1_000_000, (0, 1000)));
    assert!((100_000..=102_000).contains(&most), "{most} entries held");
    assert_eq!(names.known_inodes(), 2, "readdir makes the kernel remember nothing");
    // The last ones are still there for who opens what it has just seen.
    names.try_lookup(directory, b"0999000").expect("known").expect("there");
    assert!(names.try_lookup(directory, b"0000001").is_none());
}

#[tokio::test(start_paused = true)]
async fn the_next_page_is_fetched_while_one_is_read_and_no_further() {
    let store = numbered(3500);
    let names = names(&store);
    let handle = names.open_dir(ino(&names, "d").await).expect("a directory");
    requests(&store);
    let start = Instant::now();
    handle.read(0).await.expect("page 1");
    sleep(RTT * 10).await;
    assert_eq!(requests(&store), (0, 2));
    assert!(handle.try_read(500).is_some() && handle.try_read(999).is_some());
    assert!(handle.try_read(1001).is_none(), "page 2 is there, but reading it begins page 3");
    let before = Instant::now();
    handle.read(1001).await.expect("page 2");
    assert_eq!((before.elapsed(), start.elapsed()), (Duration::ZERO, RTT * 11));
    sleep(RTT).await;
    assert_eq!(requests(&store), (0, 1));
    assert_eq!(list(&handle, 7).await.expect("listed").len(), 3500);
    assert_eq!(requests(&store), (0, 1), "no page is fetched twice");
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_directory_share_its_pages() {
    let store = numbered(5000);
    let names = names(&store);
    let directory = ino(&names, "d").await;
    requests(&store);
    let seen = join_all((0..8).map(|_| ls(&names, directory))).await;
    assert!(seen.iter().all(|entries| entries.len() == 5000));
    assert_eq!(requests(&store), (0, 5));
}

#[tokio::test(start_paused = true)]
async fn seeking_back_to_what_memory_gave_up_walks_again_and_finds_the_same() {
    let store = numbered(10_000);
    let names = names_with(&store, Options { stat_cache_size: 2000, ..Options::default() });
    let handle = names.open_dir(ino(&names, "d").await).expect("a directory");
    let first = list(&handle, 100).await.expect("listed");
    // Three pages, and the entry that each holds back for the next.
    assert!(handle.held_entries() <= 3001, "{}", handle.held_entries());
    let mut name = None;
    handle.read(5002).await.expect("listed").fill(|item| {
        name = Some(item.name.to_vec());
        true
    });
    assert_eq!(name.as_deref(), Some(&b"0005000"[..]));
    let again = list(&handle, 100).await.expect("rewound");
    assert_eq!(again.len(), first.len());
}

#[tokio::test(start_paused = true)]
async fn an_error_in_the_middle_is_an_error_and_the_next_read_goes_on() {
    let store = numbered(3000);
    store.fault(Rule::new(Fault::Error(ErrorKind::Timeout)).op(Op::List).key("d/").nth(3));
    let names = names(&store);
    // The lookup asks for what begins with d; of the pages of d/ the third fails.
    let handle = names.open_dir(ino(&names, "d").await).expect("a directory");
    requests(&store);
    let error = list(&handle, 100).await.expect_err("page 3 failed");
    assert_eq!(error.errno(), libc::EIO);
    let mut last = Vec::new();
    handle.read(2002).await.expect("asked again").fill(|item| {
        last = item.name.to_vec();
        false
    });
    assert_eq!(last, b"0002999");
    assert_eq!(requests(&store), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn closing_the_last_handle_cancels_the_page_that_was_fetched_ahead() {
    let store = numbered(3000);
    let names = names(&store);
    let handle = names.open_dir(ino(&names, "d").await).expect("a directory");
    store.reset_log();
    handle.read(0).await.expect("page 1");
    sleep(RTT / 2).await;
    assert_eq!(store.in_flight(), 1);
    drop(handle);
    sleep(RTT * 2).await;
    let outcomes: Vec<_> = store.requests().iter().map(|request| request.outcome).collect();
    assert_eq!(outcomes, [Outcome::Finished, Outcome::Cancelled]);
}

#[tokio::test(start_paused = true)]
async fn a_directory_wins_and_odd_names_are_hidden_in_lookup_as_in_ls() {
    let long = format!("d/{}", "x".repeat(256));
    let keys = ["d/foo", "d/foo-bar", "d/foo/x", "d/a//b", "d/./y", "d/../z", "d/n\0l", "d//", "d/empty/", "plain", &long];
    let store = bucket(&keys);
    let names = names(&store);
    let directory = ino(&names, "d").await;
    assert_eq!(ls_names(&names, directory).await, ["a", "empty", "foo-bar", "foo"]);
    assert_eq!(names.hidden_objects(), 1);
    for fresh in [&names, &self::names(&store)] {
        let directory = ino(fresh, "d").await;
        assert_eq!(fresh.lookup(directory, b"foo").await.expect("there").attr.kind, Kind::Directory);
        assert_eq!(fresh.lookup(directory, b"empty").await.expect("there").attr.kind, Kind::Directory);
        assert_eq!(fresh.hidden_objects(), 1, "counted once, though met twice");
        requests(&store);
        for odd in [&b"."[..], b"..", b"", b"n\0l", b"a/b"] {
            assert!(matches!(fresh.lookup(directory, odd).await, Err(Error::NotFound)));
        }
        assert!(matches!(fresh.lookup(directory, &[b'x'; 256]).await, Err(Error::NameTooLong)));
        assert_eq!(requests(&store), (0, 0));
    }
    let plain = ino(&names, "plain").await;
    assert!(matches!(names.lookup(plain, b"x").await, Err(Error::NotADirectory)));
    assert!(matches!(names.open_dir(plain), Err(Error::NotADirectory)));
}

#[tokio::test(start_paused = true)]
async fn a_marker_tells_the_time_of_its_directory() {
    let store = bucket(&["with/", "with/x", "without/x"]);
    let names = names(&store);
    let marker = store.meta("with/").expect("put").modified;
    assert_eq!(names.lookup(Inode::ROOT, b"with").await.expect("there").attr.modified, marker);
    let (root, _) = names.getattr(Inode::ROOT).await.expect("always there");
    let without = names.lookup(Inode::ROOT, b"without").await.expect("there").attr;
    assert_eq!(without.modified, root.modified);
    let listed: Vec<_> = ls(&names, Inode::ROOT).await.into_iter().map(|(_, entry)| entry.attr.modified).collect();
    assert_eq!(listed, [marker, root.modified], "a listing does not make the time jump");
}

#[tokio::test(start_paused = true)]
async fn sixty_four_lookups_of_one_name_are_one_request() {
    let store = bucket(&["a"]);
    let names = names(&store);
    let mut first = Box::pin(names.lookup(Inode::ROOT, b"a"));
    assert!(futures::poll!(&mut first).is_pending());
    let start = Instant::now();
    let mut others = Box::pin(join_all((0..64).map(|_| names.lookup(Inode::ROOT, b"a"))));
    assert!(futures::poll!(&mut others).is_pending());
    drop(first);
    let entries = others.await;
    let ino = entries[0].as_ref().expect("there").attr.ino;
    assert!(entries.iter().all(|entry| entry.as_ref().is_ok_and(|entry| entry.attr.ino == ino)));
    assert_eq!((start.elapsed(), requests(&store)), (RTT, (0, 1)));
    names.forget(ino, 63);
    assert_eq!(names.known_inodes(), 2);
    names.forget(ino, 1);
    assert_eq!(names.known_inodes(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_entries_that_fitted_into_a_reply_are_remembered() {
    let store = numbered(300);
    let names = names(&store);
    let directory = ino(&names, "d").await;
    let seen = list(&names.open_dir(directory).expect("a directory"), 7).await.expect("listed");
    assert_eq!((seen.len(), names.known_inodes()), (300, 302));
    for (_, entry) in &seen {
        names.forget(entry.attr.ino, 1);
    }
    assert_eq!(names.known_inodes(), 2);
    assert!(matches!(names.getattr(seen[0].1.attr.ino).await, Err(Error::UnknownInode)));
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_list_objects_are_served_and_faults_are_never_absence() {
    let store = bucket(&["a"]);
    let names = names(&store);
    store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::List));
    assert_eq!(names.lookup(Inode::ROOT, b"a").await.expect("HEAD tells").attr.kind, Kind::File);
    requests(&store);
    assert_eq!(names.lookup(Inode::ROOT, b"b").await.expect_err("unknown").errno(), libc::EACCES);
    assert_eq!(requests(&store), (1, 1), "names are not listed again where that is refused");
    store.clear_faults();
    store.fault(Rule::new(Fault::Error(ErrorKind::Timeout)).first(2));
    assert_eq!(names.lookup(Inode::ROOT, b"c").await.expect_err("unknown").errno(), libc::EIO);
    store.put("c", "content");
    assert!(names.lookup(Inode::ROOT, b"c").await.is_ok(), "the fault was not cached");
}

#[tokio::test(start_paused = true)]
async fn attributes_last_for_the_ttl_and_a_refresh_sees_through_it() {
    let store = bucket(&["a", "d/x"]);
    let names = names(&store);
    let (a, d) = (ino(&names, "a").await, ino(&names, "d").await);
    requests(&store);
    let (old, _) = names.fresh_object(a).await.expect("there");
    store.put("a", "longer content");
    assert_eq!(names.getattr(a).await.expect("there").0.size, 7);
    assert_eq!((names.fresh_object(a).await.expect("there").0, requests(&store)), (old.clone(), (0, 0)));
    let (new, _) = names.refresh(a).await.expect("there");
    assert_ne!(new.etag, old.etag);
    assert_eq!(names.getattr(a).await.expect("there").0.size, 14);
    assert_eq!(requests(&store), (1, 0));
    advance(Duration::from_secs(61)).await;
    assert!(names.try_getattr(a).is_none() && names.try_getattr(d).is_none() && names.file(a).is_none());
    names.getattr(a).await.expect("there");
    names.getattr(d).await.expect("there");
    assert_eq!(requests(&store), (1, 1));
    store.delete("a");
    store.delete("d/x");
    for path in ["a", "d"] {
        names.expire_path(path.as_bytes(), false).expect("a path");
    }
    assert!(matches!(names.fresh_object(a).await, Err(Error::NotFound)));
    assert!(matches!(names.getattr(d).await, Err(Error::NotFound)));
    assert!(matches!(names.fresh_object(d).await, Err(Error::IsADirectory)));
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_expired_is_asked_for_again_though_an_older_question_is_under_way() {
    let store = bucket(&["d/a"]);
    let names = names(&store);
    let d = ino(&names, "d").await;
    requests(&store);
    let asking = tokio::spawn({
        let names = Arc::clone(&names);
        async move { names.lookup(d, b"a").await }
    });
    sleep(RTT / 2).await;
    names.expire_path(b"d/a", false).expect("a path");
    sleep(RTT / 4).await;
    names.lookup(d, b"a").await.expect("there");
    assert_eq!(requests(&store), (0, 2), "it does not join who asked before");
    assert_eq!(asking.await.expect("it ends").expect("there").ttl, Duration::ZERO, "what was asked before is not to be believed");
    names.lookup(d, b"a").await.expect("there");
    assert_eq!(requests(&store), (0, 0), "what was asked after is");
}

#[tokio::test(start_paused = true)]
async fn a_listing_is_read_again_after_a_path_in_it_was_expired() {
    let store = bucket(&["d/a", "d/sub/x"]);
    let names = names(&store);
    let (d, sub) = (ino(&names, "d").await, ino(&names, "d/sub").await);
    assert_eq!((ls_names(&names, d).await, ls_names(&names, sub).await), (vec!["a".into(), "sub".into()], vec!["x".into()]));
    store.put("d/b", "content");
    store.put("d/sub/y", "content");
    sleep(RTT).await;
    requests(&store);
    names.expire_path(b"d/b", false).expect("a path");
    sleep(RTT).await;
    assert_eq!((ls_names(&names, d).await, ls_names(&names, sub).await), (vec!["a".into(), "b".into(), "sub".into()], vec!["x".into()]));
    assert_eq!(requests(&store), (0, 1), "only the one listing");
    names.expire_path(b"", true).expect("the root");
    assert_eq!(ls_names(&names, sub).await, ["x", "y"]);
}

#[tokio::test(start_paused = true)]
async fn the_kernel_is_told_of_every_name_it_may_believe() {
    let store = bucket(&["p/d/a", "p/d/sub/x"]);
    let names = names_with(&store, Options { prefix: "p/".into(), ..Options::default() });
    let (d, a, sub, x) = (ino(&names, "d").await, ino(&names, "d/a").await, ino(&names, "d/sub").await, ino(&names, "d/sub/x").await);
    assert!(names.lookup(sub, b"absent").await.is_err());
    let told = |path: &str, below| {
        let mut told = names.expire_path(path.as_bytes(), below).expect("a path");
        told.inodes.sort();
        told.entries.sort();
        told
    };
    let sorted = |mut inodes: Vec<Inode>| {
        inodes.sort();
        inodes
    };
    let one = told("d/a", false);
    assert_eq!((one.inodes, one.entries), (vec![a], vec![(d, b"a".to_vec())]));
    let new = told("d/sub/new", false);
    assert_eq!((new.inodes, new.entries), (vec![], vec![(sub, b"new".to_vec())]), "it may believe that there is none");
    let all = told("", true);
    assert_eq!(all.inodes, sorted(vec![Inode::ROOT, d, a, sub, x]));
    let mut entries = vec![(d, b"a".to_vec()), (sub, b"x".to_vec()), (sub, b"absent".to_vec())];
    entries.sort();
    assert_eq!(all.entries, entries, "never the names of directories");
    assert_eq!(told("nowhere/at/all", false), windlass::vfs::Expired::default());
    for path in ["../d", "a/./b", "a\0b"] {
        assert!(matches!(names.expire_path(path.replace("\\0", "\0").as_bytes(), false), Err(Error::Invalid)), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listing_older_than_a_refresh_does_not_tell_the_kernel_the_old_size() {
    let store = bucket(&["a"]);
    let names = names(&store);
    let handle = names.open_dir(Inode::ROOT).expect("a directory");
    let before = list(&handle, 10).await.expect("listed");
    store.put("a", "longer content");
    advance(Duration::from_secs(1)).await;
    names.refresh(before[0].1.attr.ino).await.expect("there");
    assert_eq!(list(&handle, 10).await.expect("cached")[0].1.attr.size, 14);
}

#[tokio::test(start_paused = true)]
async fn without_readdir_optimize_attributes_come_by_head() {
    let store = bucket(&["d/a", "d/b", "d/c", "d/sub/x"]);
    let names = names_with(&store, Options { readdir_optimize: false, ..Options::default() });
    let directory = ino(&names, "d").await;
    requests(&store);
    store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::Head).key("d/b"));
    let start = Instant::now();
    let entries = ls(&names, directory).await;
    assert_eq!((entries.len(), requests(&store)), (4, (3, 1)));
    assert_eq!(start.elapsed(), RTT * 2, "side by side");
    let ttls: Vec<_> = entries.iter().map(|(_, entry)| !entry.ttl.is_zero()).collect();
    assert_eq!(ttls, [true, false, true, true], "what could not be asked for is not believed");
    assert!(names.try_lookup(directory, b"a").is_some());
    assert!(names.try_lookup(directory, b"b").is_none());
    assert_eq!(requests(&store), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_gone_when_asked_for_do_not_end_the_directory() {
    let store = numbered(100);
    let names = names_with(&store, Options { readdir_optimize: false, ..Options::default() });
    let handle = names.open_dir(ino(&names, "d").await).expect("a directory");
    handle.read(0).await.expect("listed before they go");
    for n in 0..80 {
        store.delete(format!("d/{n:07}"));
    }
    assert_eq!(list(&handle, 100).await.expect("listed").len(), 20);
}

#[tokio::test(start_paused = true)]
async fn files_are_opened_without_a_head_while_their_directory_is_still_being_read() {
    let store = numbered(5000);
    let names = names(&store);
    let directory = ino(&names, "d").await;
    let handle = names.open_dir(directory).expect("a directory");
    requests(&store);
    handle.read(0).await.expect("page 1");
    for n in 0..500 {
        let entry = names.lookup(directory, format!("{n:07}").as_bytes()).await.expect("listed");
        let size = n + u64::from(n == SYMLINK_SIZE);
        assert_eq!(names.fresh_object(entry.attr.ino).await.expect("listed").0.size, size);
        assert_eq!(names.getattr(entry.attr.ino).await.expect("listed").0.size, size);
    }
    sleep(RTT).await;
    assert_eq!(requests(&store), (0, 2));
    assert!(names.try_lookup(directory, b"absent").is_none(), "half a listing knows no absence");
}

#[tokio::test(start_paused = true)]
async fn without_a_cache_every_question_goes_to_the_store() {
    let store = bucket(&["a", "b"]);
    for options in [Options { stat_cache_size: 0, ..Options::default() }, Options { stat_cache_ttl: Duration::ZERO, ..Options::default() }]
    {
        let names = names_with(&store, options);
        for _ in 0..2 {
            assert_eq!(names.lookup(Inode::ROOT, b"a").await.expect("there").ttl, Duration::ZERO);
            assert!(names.lookup(Inode::ROOT, b"c").await.is_err());
            assert_eq!(ls(&names, Inode::ROOT).await.len(), 2);
            assert_eq!(requests(&store), (0, 3));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_prefix_is_the_root_and_names_below_it_keep_their_numbers() {
    let store = bucket(&["pre/fix/a", "pre/fix/d/x", "pre/other"]);
    let options = || Options { prefix: "pre/fix/".into(), ..Options::default() };
    let (one, two) = (names_with(&store, options()), names_with(&store, options()));
    assert_eq!(ls_names(&one, Inode::ROOT).await, ["a", "d"]);
    let x = ino(&one, "d/x").await;
    assert_eq!(one.key(x).expect("known"), Key::from("pre/fix/d/x"));
    assert_eq!(ino(&two, "d/x").await, x);
    assert!(one.lookup(Inode::ROOT, b"other").await.is_err());
}

/// On real threads and in real time, but only counts are looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_that_race_for_ten_names_ask_for_each_once() {
    let store = Memory::new(Plan::default());
    for n in 0..10 {
        store.put(format!("{n}"), "content");
    }
    let names = names(&store);
    let racers = (0..1000).map(|n| {
        let names = names.clone();
        tokio::spawn(async move { names.lookup(Inode::ROOT, format!("{}", n % 10).as_bytes()).await.map(|entry| entry.attr.ino) })
    });
    let inos: Vec<_> = join_all(racers).await.into_iter().map(|ino| ino.expect("no panic").expect("there")).collect();
    // And two pages of the listing at most, behind their backs.
    let (heads, lists) = requests(&store);
    assert!(heads == 0 && lists <= 12, "{lists}");
    assert_eq!(names.known_inodes(), 11);
    for ino in inos {
        names.forget(ino, 1);
    }
    assert_eq!(names.known_inodes(), 1);
}

/// Has every request panic as long as what it returns is true.
fn panics(store: &Memory) -> Arc<AtomicBool> {
    let panics = Arc::new(AtomicBool::new(true));
    let is_on = Arc::clone(&panics);
    store.fault(Rule::new(Fault::Lost).when(move |_, _| {
        if is_on.load(Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("a defect"));
        }
        false
    }));
    panics
}

#[tokio::test(start_paused = true)]
async fn panicking_list_fails_the_readdir_and_is_asked_anew() {
    let store = bucket(&["d/a", "d/b"]);
    let names = names(&store);
    let directory = ino(&names, "d").await;
    let panics = panics(&store);
    let handle = names.open_dir(directory).expect("it is a directory");
    let listed = tokio::time::timeout(Duration::from_secs(60), list(&handle, 100)).await.expect("no reader waits for ever");
    assert!(matches!(&listed, Err(Error::Store(error)) if error.kind == ErrorKind::Unavailable), "{listed:?}");
    panics.store(false, Ordering::SeqCst);
    assert_eq!(list(&handle, 100).await.expect("it is asked anew").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn panicking_lookup_ends_all_that_wait_for_it() {
    let store = bucket(&["a"]);
    let names = names(&store);
    let panics = panics(&store);
    let lookups = [0; 3].map(|_| {
        let names = Arc::clone(&names);
        tokio::spawn(async move { names.lookup(Inode::ROOT, b"a").await })
    });
    for lookup in lookups {
        let ended = tokio::time::timeout(Duration::from_secs(60), lookup).await.expect("none waits for ever");
        assert!(ended.is_err_and(|error| error.is_panic()));
    }
    panics.store(false, Ordering::SeqCst);
    names.lookup(Inode::ROOT, b"a").await.expect("it is asked anew");
}
