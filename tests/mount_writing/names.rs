//! Names that are made, removed and changed through a mount: what the bucket has then, and what the next look shows.

use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use libtest_mimic::Trial;

use super::look::Look;
use super::support::mounts::{Daemon, trial};
use super::support::{Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("directories_are_markers_and_go_only_when_empty", directories),
        trial("a_directory_outlives_its_last_file", last_file),
        trial("o_excl_makes_a_file_once", exclusive),
        trial("renames_move_objects_inside_the_store", renames),
        trial("a_directory_is_renamed_with_all_that_is_below", rename_tree),
        trial("more_than_the_limit_is_not_renamed_at_all", rename_limit),
        trial("readers_never_see_bytes_of_another_file_while_all_is_renamed", rename_among_readers),
        trial("links_lead_where_they_were_told_to", links),
        trial("attributes_that_are_not_kept_hold_for_the_life_of_the_mount", attributes),
        trial("a_handle_whose_name_is_gone_sets_nothing_on_who_has_the_name_now", attributes_of_removed),
        trial("attributes_are_kept_in_the_bucket", || KEEPING.iter().for_each(|flags| posix_attributes(flags))),
        trial("access_times_are_kept_in_the_bucket", || KEEPING.iter().for_each(|flags| access_times(flags))),
        trial("a_new_owner_takes_privileges_from_a_program", privileges),
        trial("attributes_of_directories_are_seen_by_another_mount", || KEEPING.iter().for_each(|flags| posix_directories(flags))),
        trial("directories_show_when_their_entries_changed", directory_times),
        trial("an_unlinked_file_is_read_on_by_who_has_it_open", unlink_open),
        trial("a_handle_shows_and_takes_what_it_is_told_after_its_name_is_gone", write_unlinked),
        trial("a_handle_of_what_a_rename_replaced_is_a_file_of_its_own", write_replaced),
        trial("a_handle_does_not_write_to_what_somebody_else_removed", write_removed_elsewhere),
        trial("facts_of_the_object_are_extended_attributes", extended_attributes),
        trial("user_attributes_are_kept_in_the_bucket", || KEEPING.iter().for_each(|flags| user_attributes(flags))),
        trial("user_attributes_are_refused_where_none_are_kept", no_user_attributes),
        trial("what_objects_cannot_be_is_refused", refusals),
    ]
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("it must be refused").raw_os_error().expect("the kernel says why")
}

fn entries(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .expect("it can be listed")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

fn directories() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    fs::create_dir(mount.join("d")).expect("it is new");
    assert_eq!(server.object("d/").expect("the marker is there"), "");
    assert_eq!(errno(fs::create_dir(mount.join("d"))), libc::EEXIST);
    fs::write(mount.join("d/file"), b"x").expect("it is written");
    assert_eq!(errno(fs::remove_dir(mount.join("d"))), libc::ENOTEMPTY);
    fs::remove_file(mount.join("d/file")).expect("it is there");
    fs::remove_dir(mount.join("d")).expect("it is empty");
    assert!(server.object("d/").is_none() && !mount.join("d").exists());
    assert_eq!(entries(mount.path()), Vec::<String>::new());
}

fn last_file() {
    let server = S3Server::start();
    server.put("a/b/file", "x");
    let mount = Daemon::new(&server).start();
    fs::remove_file(mount.join("a/b/file")).expect("it is there");
    assert!(mount.join("a/b").is_dir());
    fs::remove_dir(mount.join("a/b")).expect("it is empty");
    assert_eq!(entries(&mount.join("a")), Vec::<String>::new());
}

fn exclusive() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    // As flock(1) makes its files.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CREATE;
    drop(rustix::fs::open(mount.join("made"), flags, rustix::fs::Mode::from_raw_mode(0o644)).expect("it can be made"));
    drop(File::options().write(true).open(mount.join("made")).expect("it can be opened at once"));
    assert_eq!(server.object("made").expect("it is there"), "");
    let lock = mount.join("lock");
    drop(File::create_new(&lock).expect("nobody has it"));
    assert_eq!(errno(File::create_new(&lock)), libc::EEXIST);
    fs::remove_file(&lock).expect("it is there");
    let mut file = File::create_new(&lock).expect("nobody has it");
    file.write_all(b"mine").expect("it is taken");
    // Somebody else was first, on another machine.
    server.put("lock", "theirs");
    assert_eq!(errno(file.sync_all()), libc::EEXIST);
    drop(file);
    assert_eq!(server.object("lock").expect("it is there"), "theirs");
}

fn renames() {
    let server = S3Server::start();
    server.put("a", "content of a");
    server.put("b", "content of b");
    let mount = Daemon::new(&server).start();
    let ino = fs::metadata(mount.join("a")).expect("it is there").ino();
    let open = File::open(mount.join("a")).expect("it is there");
    fs::rename(mount.join("a"), mount.join("c")).expect("it can be renamed");
    assert_eq!((server.object("a"), server.object("c").expect("it is there")), (None, "content of a".into()));
    assert_eq!(fs::metadata(mount.join("c")).expect("it is there").ino(), ino);
    let mut read = [0; 12];
    open.read_exact_at(&mut read, 0).expect("it is the same file");
    assert_eq!(&read, b"content of a");
    let no_replace = |from: &str, to: &str| {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        renameat_with(CWD, mount.join(from), CWD, mount.join(to), RenameFlags::NOREPLACE)
    };
    assert_eq!(no_replace("c", "b"), Err(rustix::io::Errno::EXIST));
    no_replace("c", "d").expect("there is none");
    fs::rename(mount.join("d"), mount.join("b")).expect("it replaces");
    assert_eq!(server.object("b").expect("it is there"), "content of a");
    assert_eq!(entries(mount.path()), ["b"]);
    let puts: Vec<String> = server.of_kind(Kind::Put).into_iter().map(|request| request.key).collect();
    assert_eq!(puts, ["d"], "the bytes never came here: this one reserves a name");
}

fn rename_tree() {
    let server = S3Server::start();
    for n in 0..300 {
        server.put(&format!("top/d{}/f{n}", n % 7), format!("content {n}"));
    }
    let mount = Daemon::new(&server).start();
    assert_eq!(entries(&mount.join("top")).len(), 7);
    fs::create_dir(mount.join("new")).expect("it is new");
    fs::rename(mount.join("top"), mount.join("new/top")).expect("it can be renamed");
    assert!(!mount.join("top").exists());
    for n in 0..300 {
        let path = format!("new/top/d{}/f{n}", n % 7);
        assert_eq!(fs::read_to_string(mount.join(&path)).expect("it is there"), format!("content {n}"));
        assert!(server.object(&path).is_some() && server.object(&format!("top/d{}/f{n}", n % 7)).is_none());
    }
    assert_eq!(errno(fs::rename(mount.join("new"), mount.join("new/top/inside"))), libc::EINVAL);
}

fn rename_limit() {
    let server = S3Server::start();
    for n in 0..12 {
        server.put(&format!("d/{n}"), "x");
    }
    let mount = Daemon::new(&server).arg("--rename-limit", "10").start();
    assert_eq!(errno(fs::rename(mount.join("d"), mount.join("e"))), libc::EMFILE);
    assert_eq!((entries(&mount.join("d")).len(), mount.join("e").exists()), (12, false));
}

/// Files that say what they are called.
const FILES: usize = 1000;

/// Ends the readers, also when the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn rename_among_readers() {
    let server = S3Server::start();
    for n in 0..FILES {
        server.put(&format!("t/{}/{n}", n % 10), format!("I am file {n}.").repeat(50));
    }
    let mount = Daemon::new(&server).start();
    let (root, done) = (mount.join("t"), AtomicBool::new(false));
    let (mut read, mut failed) = (0, 0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let (root, done) = (&root, &done);
                scope.spawn(move || {
                    let (mut read, mut failed) = (0_usize, 0_usize);
                    let mut n = reader;
                    while !done.load(Ordering::Relaxed) {
                        n = (n + 7) % FILES;
                        // A file is wherever it was moved to; where it is not it must not be somebody else.
                        for place in 0..10 {
                            match fs::read_to_string(root.join(format!("{place}/{n}"))) {
                                Ok(content) => {
                                    assert_eq!(content, format!("I am file {n}.").repeat(50));
                                    read += 1;
                                }
                                Err(_) => failed += 1,
                            }
                        }
                    }
                    (read, failed)
                })
            })
            .collect();
        let ended = Ended(&done);
        for turn in 0..1000 {
            // Files move between directories, and every tenth time a whole directory moves away and back.
            if turn % 10 == 9 {
                let (here, there) = (root.join(format!("{}", turn / 10 % 10)), root.join("elsewhere"));
                fs::rename(&here, &there).expect("it can be renamed");
                fs::rename(&there, &here).expect("it can be renamed back");
            } else {
                let n = turn * 13 % FILES;
                let mut places = (0..10).map(|place| root.join(format!("{place}/{n}")));
                let from = places.find(|path| path.try_exists().expect("it is looked for")).expect("it is somewhere");
                fs::rename(from, root.join(format!("{}/{n}", (n + turn) % 10))).expect("it can be renamed");
            }
        }
        drop(ended);
        for reader in readers {
            let (r, f) = reader.join().expect("no reader saw the bytes of another file");
            (read, failed) = (read + r, failed + f);
        }
    });
    assert!(read > 100, "{read} reads, {failed} did not find the file");
    drop(mount);
    let mount = Daemon::new(&server).flag("--read-only").start();
    let mut found = Vec::new();
    for place in entries(&mount.join("t")) {
        for name in entries(&mount.join(format!("t/{place}"))) {
            let content = fs::read_to_string(mount.join(format!("t/{place}/{name}"))).expect("it is there");
            assert_eq!(content, format!("I am file {name}.").repeat(50));
            found.push(name.parse::<usize>().expect("a number"));
        }
    }
    found.sort_unstable();
    assert_eq!(found, (0..FILES).collect::<Vec<_>>(), "every file is there once");
}

fn links() {
    let server = S3Server::start();
    server.put("dir/file", "content");
    let mount = Daemon::new(&server).start();
    let targets = ["dir/file", "../x/ÿ und mehr", "/absolute/path", "dir"];
    for (n, target) in targets.iter().enumerate() {
        symlink(target, mount.join(format!("link{n}"))).expect("it is new");
    }
    assert_eq!(fs::read_to_string(mount.join("link0")).expect("it leads to a file"), "content");
    assert_eq!(fs::read_to_string(mount.join("link3/file")).expect("it leads to a directory"), "content");
    assert_eq!(errno(symlink("x", mount.join("link0"))), libc::EEXIST);
    drop(mount);
    let mount = Daemon::new(&server).start();
    let kinds = fs::read_dir(mount.path())
        .expect("it can be listed")
        .filter(|entry| entry.as_ref().expect("an entry").file_type().expect("it is told").is_symlink());
    assert_eq!(kinds.count(), 4);
    for (n, target) in targets.iter().enumerate() {
        let link = mount.join(format!("link{n}"));
        assert_eq!(fs::read_link(&link).expect("it is a link"), Path::new(target));
        assert_eq!(fs::symlink_metadata(&link).expect("it is there").len(), target.len() as u64);
    }
    fs::remove_file(mount.join("link0")).expect("it is there");
    assert!(fs::symlink_metadata(mount.join("link0")).is_err() && mount.join("dir/file").exists());
}

fn attributes() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).flag("--posix-attributes=off").start();
    let path = mount.join("file");
    fs::write(&path, b"#!/bin/sh\n").expect("it is written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("it is taken");
    let time = UNIX_EPOCH + Duration::new(1_500_000_000, 5_000_000);
    File::options().write(true).open(&path).expect("it is there").set_modified(time).expect("it is taken");
    let shown = fs::metadata(&path).expect("it is there");
    assert_eq!((shown.mode() & 0o7777, shown.modified().expect("it is told")), (0o750, time));
    fs::rename(&path, mount.join("moved")).expect("it can be renamed");
    let shown = fs::metadata(mount.join("moved")).expect("it is there");
    assert_eq!((shown.mode() & 0o7777, shown.modified().expect("it is told")), (0o750, time));
    fs::write(mount.join("moved"), b"new").expect("it is written");
    let shown = fs::metadata(mount.join("moved")).expect("it is there");
    assert_eq!(shown.mode() & 0o7777, 0o750);
    assert!(shown.modified().expect("it is told") > time, "a time belongs to what was written");
    assert!(server.metadata("moved").is_empty(), "nothing is stored");
}

fn attributes_of_removed() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let path = mount.join("file");
    fs::write(&path, b"old").expect("it is written");
    let (read, written) = (File::open(&path).expect("it is there"), File::options().write(true).open(&path).expect("it is there"));
    let mut draft = File::create(mount.join("draft")).expect("it can be made");
    draft.write_all(b"begun").expect("it can be written");
    for name in ["file", "draft"] {
        fs::remove_file(mount.join(name)).expect("it is there");
        fs::write(mount.join(name), b"another").expect("it is written");
    }
    let before = fs::metadata(&path).expect("it is there").mode();
    for handle in [read, written, draft] {
        handle.set_permissions(fs::Permissions::from_mode(0o700)).expect("it is taken");
        assert_eq!(handle.metadata().expect("it is open").nlink(), 0);
    }
    for name in ["file", "draft"] {
        let now = fs::metadata(mount.join(name)).expect("it is there");
        assert_eq!((now.mode(), now.len()), (before, 7), "{name}");
    }
}

/// Ways to keep attributes in the bucket.
const KEEPING: [&[&str]; 2] = [&[], &["--posix-attributes"]];

fn posix_attributes(flags: &[&str]) {
    let server = S3Server::start();
    let time = UNIX_EPOCH + Duration::new(1_500_000_000, 0);
    {
        let mount = Daemon::new(&server).flags(flags).start();
        let path = mount.join("file");
        fs::write(&path, b"x").expect("it is written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).expect("it is taken");
        std::os::unix::fs::chown(&path, Some(1234), Some(5678)).expect("it is taken");
        File::options().write(true).open(&path).expect("it is there").set_modified(time).expect("it is taken");
    }
    let stored = server.metadata("file");
    let value = |name: &str| stored.get(name).map(String::as_str);
    assert_eq!(
        (value("mode"), value("uid"), value("gid"), value("mtime")),
        (Some("33257"), Some("1234"), Some("5678"), Some("1500000000"))
    );
    let mount = Daemon::new(&server).flags(flags).start();
    let shown = fs::metadata(mount.join("file")).expect("it is there");
    assert_eq!((shown.mode() & 0o7777, shown.uid(), shown.gid()), (0o751, 1234, 5678));
    assert_eq!(shown.modified().expect("it is told"), time);
}

fn access_times(flags: &[&str]) {
    let server = S3Server::start();
    let [first, second, third] = [1, 2, 3].map(|n| UNIX_EPOCH + Duration::new(1_500_000_000 + n, 120_000_000));
    let shown = |path: &Path| {
        let about = fs::metadata(path).expect("it is there");
        (about.accessed().expect("it is told"), about.modified().expect("it is told"))
    };
    let set = |path: &Path, times| File::open(path).and_then(|file| file.set_times(times)).expect("it is taken");
    let daemon = || Daemon::new(&server).flags(flags);
    {
        let mount = daemon().start();
        fs::write(mount.join("file"), b"x").expect("it is written");
        fs::create_dir(mount.join("directory")).expect("it is new");
        for name in ["file", "directory"] {
            let path = mount.join(name);
            set(&path, FileTimes::new().set_accessed(first).set_modified(second));
            assert_eq!(shown(&path), (first, second), "{name}");
            set(&path, FileTimes::new().set_modified(third));
            assert_eq!(shown(&path), (first, third), "{name}: the other time stays");
            set(&path, FileTimes::new().set_accessed(second));
            assert_eq!(shown(&path), (second, third), "{name}: the other time stays");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("it is taken");
            assert_eq!(shown(&path), (second, third), "{name}: both times stay");
        }
    }
    for key in ["file", "directory/"] {
        assert_eq!(server.metadata(key).get("atime").map(String::as_str), Some("1500000002.120000000"), "{key}");
    }
    let mount = daemon().arg("--stat-cache-ttl", "0s").start();
    for name in ["file", "directory"] {
        assert_eq!(shown(&mount.join(name)), (second, third), "{name} in another mount");
        set(&mount.join(name), FileTimes::new().set_accessed(first));
        assert_eq!(shown(&mount.join(name)), (first, third), "{name} asked of the store");
    }
}

fn privileges() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let path = mount.join("program");
    fs::write(&path, b"x").expect("it is written");
    let mode = || fs::metadata(&path).expect("it is there").mode() & 0o7777;
    for (before, after) in [(0o6755, 0o755), (0o4755, 0o755), (0o6745, 0o2745), (0o1755, 0o1755)] {
        for (uid, gid) in [(Some(1234), None), (None, Some(5678)), (Some(0), Some(0))] {
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).expect("it is taken");
            assert_eq!(mode(), before);
            std::os::unix::fs::chown(&path, uid, gid).expect("it is taken");
            assert_eq!(mode(), after, "{before:o} given to {uid:?} {gid:?}");
        }
    }
    fs::create_dir(mount.join("directory")).expect("it is new");
    fs::set_permissions(mount.join("directory"), fs::Permissions::from_mode(0o2775)).expect("it is taken");
    std::os::unix::fs::chown(mount.join("directory"), Some(1234), Some(5678)).expect("it is taken");
    assert_eq!(fs::metadata(mount.join("directory")).expect("it is there").mode() & 0o7777, 0o2775);
}

fn posix_directories(flags: &[&str]) {
    let server = S3Server::start();
    server.put("bare/file", "x");
    let time = UNIX_EPOCH + Duration::new(1_500_000_000, 0);
    let set_time = |path: &Path| File::open(path).expect("it is there").set_modified(time).expect("it is taken");
    let shown = |path: &Path| {
        let about = fs::metadata(path).expect("it is there");
        (about.mode() & 0o7777, about.uid(), about.gid(), about.modified().expect("it is told") == time)
    };
    {
        let mount = Daemon::new(&server).flags(flags).start();
        fs::create_dir(mount.join("new")).expect("it is new");
        for (name, mode) in [("new", 0o1751), ("bare", 0o700)] {
            let path = mount.join(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is taken");
            std::os::unix::fs::chown(&path, Some(1234), Some(5678)).expect("it is taken");
            set_time(&path);
            assert_eq!(shown(&path), (mode, 1234, 5678, true));
        }
        fs::create_dir(mount.join("new/below")).expect("it is new");
        fs::set_permissions(mount.join("new/below"), fs::Permissions::from_mode(0o711)).expect("it is taken");
        set_time(&mount.join("new"));
        fs::rename(mount.join("new"), mount.join("moved")).expect("it is moved");
        assert_eq!(shown(&mount.join("moved")), (0o1751, 1234, 5678, true));
        assert_eq!(shown(&mount.join("moved/below")).0, 0o711);
    }
    assert_eq!(server.metadata("moved/").get("mode").map(String::as_str), Some("17385"));
    let mount = Daemon::new(&server).flags(flags).start();
    let listed: Vec<_> = entries(mount.path()).into_iter().map(|name| (shown(&mount.join(&name)), name)).collect();
    assert_eq!(listed, [((0o700, 1234, 5678, true), "bare".into()), ((0o1751, 1234, 5678, true), "moved".into())]);
    assert_eq!(shown(&mount.join("moved/below")).0, 0o711);
    // What one mount sets leaves the rest as another one has set it.
    fs::set_permissions(mount.join("moved"), fs::Permissions::from_mode(0o755)).expect("it is taken");
    assert_eq!(shown(&mount.join("moved")), (0o755, 1234, 5678, true));
    let other = Daemon::new(&server).flags(flags).start();
    assert_eq!(shown(&other.join("moved")), (0o755, 1234, 5678, true));
}

fn directory_times() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let (one, other) = (mount.join("one"), mount.join("other"));
    let time = UNIX_EPOCH + Duration::new(1_500_000_000, 0);
    // Each is given an old time before each change; whose is still that one has not changed.
    let changed = |change: &dyn Fn() -> std::io::Result<()>| {
        for path in [&one, &other] {
            File::open(path).and_then(|directory| directory.set_modified(time)).expect("it is taken");
        }
        change().expect("it can be done");
        [&one, &other].map(|path| {
            let about = fs::metadata(path).expect("it is there");
            let now = about.modified().expect("it is told") != time;
            assert_eq!(about.ctime() != 1_500_000_000, now, "both times change");
            now
        })
    };
    fs::create_dir(&one).and_then(|()| fs::create_dir(&other)).expect("they are new");
    assert_eq!(changed(&|| fs::write(one.join("file"), "content")), [true, false]);
    assert_eq!(changed(&|| fs::write(one.join("file"), "other")), [false, false]);
    assert_eq!(changed(&|| fs::rename(one.join("file"), other.join("file"))), [true, true]);
    assert_eq!(changed(&|| fs::create_dir(one.join("below"))), [true, false]);
    assert_eq!(changed(&|| fs::write(one.join("below/file"), "x")), [false, false]);
    assert_eq!(changed(&|| fs::rename(one.join("below"), other.join("below"))), [true, true]);
    assert_eq!(changed(&|| std::os::unix::fs::symlink("nowhere", one.join("link"))), [true, false]);
    assert_eq!(changed(&|| fs::remove_file(one.join("link"))), [true, false]);
    assert_eq!(changed(&|| fs::remove_file(other.join("below/file"))), [false, false]);
    assert_eq!(changed(&|| fs::remove_dir(other.join("below"))), [false, true]);
}

fn unlink_open() {
    let server = S3Server::start();
    server.put("old", "12345");
    let mount = Daemon::new(&server).start();
    let mut file = File::options().read(true).write(true).create_new(true).open(mount.join("temporary")).expect("it is new");
    file.write_all(b"some").expect("it is taken");
    fs::remove_file(mount.join("temporary")).expect("it is there");
    assert!(!mount.join("temporary").exists());
    file.write_all(b" content").expect("it is taken");
    let mut read = vec![0; 12];
    file.read_exact_at(&mut read, 0).expect("it is there for us");
    assert_eq!((&read[..], file.metadata().expect("it is open").len()), (&b"some content"[..], 12));
    drop(file);
    assert!(server.object("temporary").is_none());
    assert_eq!(entries(mount.path()), ["old"]);

    // What was in the bucket before shows its attributes too, and a new file of its name is another one.
    let file = File::options().read(true).write(true).open(mount.join("old")).expect("it is there");
    fs::remove_file(mount.join("old")).expect("it is there");
    fs::write(mount.join("old"), b"new").expect("the name is free");
    let shown = file.metadata().expect("it is open");
    assert_eq!((shown.len(), shown.nlink()), (5, 0));
    assert_eq!(fs::metadata(mount.join("old")).expect("it is there").len(), 3);
}

/// How a file can be open for writing.
const WRITING: [(bool, bool); 2] = [(false, true), (true, true)];

/// What is written to `file`, whose name is gone and which had `old`, is there for it alone.
#[track_caller]
fn goes_on_alone(file: &File, readable: bool, old: &[u8]) {
    let about = file.metadata().expect("it is open");
    assert_eq!((about.len(), about.nlink()), (old.len() as u64, 0));
    file.write_all_at(b"WRITTEN", 2).expect("it is a file still");
    file.write_all_at(b"end", old.len() as u64).expect("it is a file still");
    let about = file.metadata().expect("it is open");
    assert_eq!((about.len(), about.nlink()), (old.len() as u64 + 3, 0));
    if readable {
        let mut read = [0; 7];
        file.read_exact_at(&mut read, 2).expect("it was just written");
        assert_eq!(&read, b"WRITTEN");
    }
    file.set_len(5).expect("it is a file still");
    assert_eq!(file.metadata().expect("it is open").len(), 5);
    file.sync_all().expect("there is nothing to put anywhere");
}

fn write_unlinked() {
    for (read, write) in WRITING {
        let server = S3Server::start();
        server.put("file", "what it was");
        let mount = Daemon::new(&server).start();
        let file = File::options().read(read).write(write).open(mount.join("file")).expect("it is there");
        // What was read is in memory, and outlives the object.
        assert!(!read || file.read_exact_at(&mut [0], 0).is_ok());
        let second = File::options().read(read).write(write).open(mount.join("file")).expect("it is there");
        fs::remove_file(mount.join("file")).expect("it is there");
        assert_eq!(second.metadata().expect("it is open").len(), 11);
        goes_on_alone(&file, read, b"what it was");
        // Both are one file, which is another one than what has the name now.
        assert_eq!(second.metadata().expect("it is open").len(), 5);
        fs::write(mount.join("file"), "new").expect("the name is free");
        second.write_all_at(b"x", 0).expect("it is a file still");
        drop(file);
        second.sync_all().expect("there is nothing to put anywhere");
        drop(second);
        assert_eq!(fs::read_to_string(mount.join("file")).expect("it is there"), "new");
        assert_eq!(server.object("file").expect("it is there"), "new");
        fs::remove_file(mount.join("file")).expect("it is there");
        assert_eq!(server.object("file"), None);
    }
}

fn write_replaced() {
    for (read, write) in WRITING {
        let server = S3Server::start();
        server.put("file", "what it was");
        server.put("other", "of the other");
        let mount = Daemon::new(&server).start();
        let file = File::options().read(read).write(write).open(mount.join("file")).expect("it is there");
        assert!(!read || file.read_exact_at(&mut [0], 0).is_ok());
        fs::rename(mount.join("other"), mount.join("file")).expect("it replaces");
        goes_on_alone(&file, read, b"what it was");
        drop(file);
        assert_eq!(fs::read_to_string(mount.join("file")).expect("it is there"), "of the other");
        assert_eq!(server.object("file").expect("it is there"), "of the other");
    }
}

fn write_removed_elsewhere() {
    let server = S3Server::start();
    server.put("file", "what it was");
    let mount = Daemon::new(&server).start();
    let file = File::options().read(true).write(true).open(mount.join("file")).expect("it is there");
    server.delete("file");
    // Nobody here has given it up: what is written must not be dropped as if it had been.
    assert_eq!(errno(file.write_all_at(b"x", 0)), libc::ESTALE);
    assert_eq!(errno(file.sync_all()), libc::ESTALE, "what was not stored says so");
}

fn extended_attributes() {
    let server = S3Server::start();
    let etag = server.put("file.json", "{}");
    let mount = Daemon::new(&server).start();
    let value = |name: &str| {
        let mut value = vec![0; 256];
        let len = rustix::fs::getxattr(mount.join("file.json"), name, &mut value)?;
        value.truncate(len);
        Ok::<_, rustix::io::Errno>(String::from_utf8(value).expect("text"))
    };
    assert_eq!(value("user.windlass.etag"), Ok(etag));
    assert_eq!(value("user.windlass.other"), Err(rustix::io::Errno::NODATA));
    assert_eq!(value("security.capability"), Err(rustix::io::Errno::NODATA));
    fs::write(mount.join("new.json"), b"{}").expect("it is written");
    let mut kind = vec![0; 64];
    let len = rustix::fs::getxattr(mount.join("new.json"), "user.windlass.content-type", &mut kind).expect("it has one");
    assert_eq!(&kind[..len], b"application/json");
}

fn get_attribute(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::getxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
}

fn listed_attributes(path: &Path) -> Vec<String> {
    let len = rustix::fs::listxattr_query(path).expect("their length is told");
    let mut names = vec![0; len];
    assert_eq!(rustix::fs::listxattr(path, &mut names[..]).expect("they are told"), len);
    String::from_utf8(names).expect("text").split_terminator('\0').map(str::to_owned).collect()
}

fn user_attributes(flags: &[&str]) {
    let server = S3Server::start();
    server.put("there", "what was there");
    server.put("plain", "what has none");
    let files = ["there", "new", "open", "directory"];
    {
        let mount = Daemon::new(&server).flags(flags).start();
        fs::write(mount.join("new"), b"x").expect("it is written");
        fs::create_dir(mount.join("directory")).expect("it is new");
        let mut open = File::create(mount.join("open")).expect("it is new");
        for name in files {
            set_attribute(&mount.join(name), "user.kind", b"\0 any \xff byte").expect("it is taken");
            set_attribute(&mount.join(name), "user.empty", b"").expect("it is taken");
            set_attribute(&mount.join(name), "user.gone", b"for a moment").expect("it is taken");
            rustix::fs::removexattr(mount.join(name), "user.gone").expect("it is there");
        }
        // What is being written keeps its attributes over a commit, and gets more after it.
        open.write_all(b"first").and_then(|()| open.sync_all()).expect("it is stored");
        rustix::fs::fsetxattr(&open, "user.late", b"1", rustix::fs::XattrFlags::empty()).expect("it is taken");
        assert!(server.metadata("open")["xattr"].contains("user.late"), "it is stored when the call returns");
        open.write_all(b", second").expect("it is written");
        drop(open);
        rustix::fs::removexattr(mount.join("open"), "user.late").expect("it is there");
        fs::rename(mount.join("new"), mount.join("directory/renamed")).expect("it is renamed");
        File::options().append(true).open(mount.join("there")).and_then(|mut file| file.write_all(b"!")).expect("it is written");

        let path = mount.join("there");
        let flagged = |name, flags| rustix::fs::setxattr(&path, name, b"x", flags);
        assert_eq!(flagged("user.kind", rustix::fs::XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
        assert_eq!(flagged("user.other", rustix::fs::XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
        assert_eq!(rustix::fs::removexattr(&path, "user.other"), Err(rustix::io::Errno::NODATA));
        assert_eq!(set_attribute(&path, "user.big", &[1; 2000]), Err(rustix::io::Errno::NOSPC));
        assert_eq!(set_attribute(&path, "user.windlass.etag", b"x"), Err(rustix::io::Errno::OPNOTSUPP));
        assert_eq!(set_attribute(&path, "trusted.x", b"x"), Err(rustix::io::Errno::OPNOTSUPP));
        assert_eq!(set_attribute(&mount.join(""), "user.x", b"x"), Err(rustix::io::Errno::OPNOTSUPP), "the bucket has no metadata");
        assert_eq!(rustix::fs::listxattr(&path, &mut [0_u8; 5][..]), Err(rustix::io::Errno::RANGE));
        assert!(listed_attributes(&mount.join(".windlass/stats")).is_empty());
    }
    assert_eq!(server.object("there").as_deref(), Some(&b"what was there!"[..]));
    assert_eq!(server.object("open").as_deref(), Some(&b"first, second"[..]));
    for key in ["there", "open", "directory/renamed", "directory/"] {
        assert!(server.metadata(key)["xattr"].contains("user.kind"), "{key}");
    }
    let mount = Daemon::new(&server).flags(flags).start();
    for name in ["there", "directory/renamed", "open", "directory"] {
        let path = mount.join(name);
        assert_eq!(listed_attributes(&path), ["user.empty", "user.kind"], "{name}");
        assert_eq!(get_attribute(&path, "user.kind").expect("it is there"), b"\0 any \xff byte", "{name}");
        assert_eq!(get_attribute(&path, "user.gone"), Err(rustix::io::Errno::NODATA), "{name}");
    }
    assert!(listed_attributes(&mount.join("plain")).is_empty());
    assert!(listed_attributes(&mount.join("")).is_empty());
    // The last one goes with its metadata.
    for name in ["user.empty", "user.kind"] {
        rustix::fs::removexattr(mount.join("there"), name).expect("it is there");
    }
    assert!(!server.metadata("there").contains_key("xattr"));
    // What has no name any more.
    let file = File::options().read(true).write(true).open(mount.join("open")).expect("it is there");
    fs::remove_file(mount.join("open")).expect("it is there");
    assert_eq!(rustix::fs::fsetxattr(&file, "user.x", b"", rustix::fs::XattrFlags::empty()), Err(rustix::io::Errno::STALE));
}

fn no_user_attributes() {
    let server = S3Server::start();
    server.put("file", "x");
    let mount = Daemon::new(&server).flags(&["--posix-attributes=false"]).start();
    let path = mount.join("file");
    assert_eq!(set_attribute(&path, "user.a", b"1"), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(get_attribute(&path, "user.a"), Err(rustix::io::Errno::NODATA));
    assert_eq!(rustix::fs::removexattr(&path, "user.a"), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(server.count(Kind::Put), 0);
}

fn refusals() {
    let server = S3Server::start();
    server.put("file", "x");
    let mount = Daemon::new(&server).start();
    assert!(matches!(errno(fs::hard_link(mount.join("file"), mount.join("other"))), libc::EOPNOTSUPP | libc::EPERM));
    let fifo = rustix::fs::mknodat(rustix::fs::CWD, mount.join("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0);
    assert_eq!(fifo, Err(rustix::io::Errno::PERM));
    assert_eq!(errno(fs::write(mount.join("x".repeat(256)), b"")), libc::ENAMETOOLONG);
    let exchange = rustix::fs::renameat_with(
        rustix::fs::CWD,
        mount.join("file"),
        rustix::fs::CWD,
        mount.join("file2"),
        rustix::fs::RenameFlags::EXCHANGE,
    );
    assert!(exchange.is_err());
    assert_eq!(server.count(Kind::Put), 0);
}
