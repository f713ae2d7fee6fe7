//! The things, each as a program does it. They share a mount: each works below a directory of its own. What is written is looked at through the
//! other client, and what the other client writes through the mount.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::place::Place;
use super::support::mounts::{lacks as lacks_program, wait_until};
use super::support::python;

pub type Test = fn(&Place);

const MIB: usize = 1 << 20;

/// In the order of the table.
pub const ALL: &[(&str, Test)] = &[
    ("list a directory of 1,100 names", list_many),
    ("look up a name that is not there", absent),
    ("read a small file", read_small),
    ("read 20 MiB in order", read_in_order),
    ("read 20 MiB at random offsets", read_at_random),
    ("write an empty file", write_empty),
    ("write a small file", write_small),
    ("write 40 MiB in parts", write_large),
    ("replace the content of a file", replace),
    ("append to a small file", append_small),
    ("append to 20 MiB", append_large),
    ("change bytes inside 20 MiB", change_inside),
    ("truncate and extend", truncate),
    ("create a name only once (O_EXCL)", exclusive),
    ("fsync stores what is open", fsync),
    ("remove a file", unlink),
    ("make an empty directory that lasts", mkdir),
    ("remove an empty directory, keep a full one", rmdir),
    ("rename a file", rename),
    ("rename over a file", rename_over),
    ("rename 20 MiB", rename_large),
    ("rename a directory with empty ones inside", rename_directory),
    ("make and follow a symbolic link", links),
    ("names with blanks, signs and other scripts", odd_names),
    ("keep mode and time (--posix-attributes)", attributes),
    ("keep extended attributes of programs (user.*)", user_attributes),
    ("see what another client made", made_by_another),
    ("see what another client replaced", replaced_by_another),
    ("replace nothing that another client wrote meanwhile", conflict),
    ("refuse a write to a handle whose object was replaced", conflict_before_the_first_write),
    ("store beside it what is not stored for that (--conflict save)", conflict_saved),
    ("append from two mounts and keep every line", appends_of_two),
    ("append from two mounts to what is read meanwhile", appends_beside_readers),
    ("read what others append while an appender is idle", idle_appender),
    ("never move an append that was read before it was stored", appends_read_before_they_are_stored),
    ("list and rename more names than a page, with blanks", names_with_blanks),
    ("rename from two mounts to one free name, and one wins", renames_of_two),
    ("see what another client removed", removed_by_another),
    ("an object and others below its name", object_above_others),
    ("git: commit, clone, fsck", git),
    ("sqlite: transactions and integrity_check", sqlite),
    ("windlass put and get of 20 MiB", put_and_get),
    ("windlass doctor --write-check", doctor),
    ("list and abort unfinished uploads", uploads),
];

/// Which program is needed, and not there.
pub fn lacks(thing: &str) -> Option<String> {
    match thing {
        "git: commit, clone, fsck" => lacks_program("git"),
        "sqlite: transactions and integrity_check" => python::lacks("sqlite3"),
        _ => None,
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let word = |n: usize| (n as u64 ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).to_le_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

#[track_caller]
fn same(found: &[u8], expected: &[u8]) {
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    assert!(found == expected, "{} bytes instead of {}, first difference {at:?}", found.len(), expected.len());
}

#[track_caller]
fn stored(place: &Place, key: &str, expected: &[u8]) {
    same(&place.get(key).unwrap_or_else(|| panic!("there is no {key}")), expected);
}

pub fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).expect("it can be listed").map(|entry| entry.expect("it is told").file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn kind(result: io::Result<impl Sized>) -> Option<io::ErrorKind> {
    result.err().map(|error| error.kind())
}

/// What the other client wrote, once the mount sees it: a listing is believed for a while.
#[track_caller]
fn given(place: &Place, key: &str, content: &[u8]) {
    place.put(key, content);
    wait_until("the mount sees it", || fs::metadata(place.at(key)).is_ok_and(|found| found.len() == content.len() as u64));
}

fn directory(place: &Place, name: &str) {
    fs::create_dir(place.at(name)).expect("a directory can be made");
}

fn list_many(place: &Place) {
    let expected: Vec<String> = (0..1_100).map(|n| format!("name-{n:04}")).collect();
    expected.iter().for_each(|name| place.put(&format!("many/{name}"), b""));
    wait_until("all are listed", || fs::metadata(place.at("many")).is_ok() && names(&place.at("many")) == expected);
}

fn absent(place: &Place) {
    assert_eq!(kind(fs::metadata(place.at("no-such-name"))), Some(io::ErrorKind::NotFound));
    assert_eq!(kind(File::open(place.at("no-such-directory/name"))), Some(io::ErrorKind::NotFound));
}

fn read_small(place: &Place) {
    given(place, "read/small", b"hello");
    assert_eq!(fs::metadata(place.at("read/small")).expect("it is there").len(), 5);
    same(&fs::read(place.at("read/small")).expect("it can be read"), b"hello");
    if let Some(files) = &place.files {
        // A file that lies below the gateway has no ETag.
        fs::create_dir_all(files.join("lying")).expect("there is a disk");
        fs::write(files.join("lying/file"), pattern(3 * MIB, 1)).expect("there is room");
        wait_until("the mount sees it", || place.at("lying/file").exists());
        same(&fs::read(place.at("lying/file")).expect("it can be read"), &pattern(3 * MIB, 1));
        fs::rename(place.at("lying/file"), place.at("lying/renamed")).expect("it can be renamed");
        OpenOptions::new().append(true).open(place.at("lying/renamed")).expect("it can be opened").write_all(b"more").expect("it is taken");
        stored(place, "lying/renamed", &[&pattern(3 * MIB, 1), &b"more"[..]].concat());
    }
}

fn read_in_order(place: &Place) {
    given(place, "read/large", &pattern(20 * MIB, 2));
    same(&fs::read(place.at("read/large")).expect("it can be read"), &pattern(20 * MIB, 2));
}

fn read_at_random(place: &Place) {
    let content = pattern(20 * MIB, 3);
    given(place, "read/random", &content);
    let file = File::open(place.at("read/random")).expect("it can be opened");
    for n in 0_usize..200 {
        let (at, mut piece) = (n.wrapping_mul(7_368_787) % (20 * MIB - 128 * 1024), vec![0; 128 * 1024]);
        file.read_exact_at(&mut piece, at as u64).expect("it can be read");
        same(&piece, &content[at..at + piece.len()]);
    }
}

fn write_empty(place: &Place) {
    File::create(place.at("empty")).expect("it can be made");
    stored(place, "empty", b"");
}

fn write_small(place: &Place) {
    fs::write(place.at("small.txt"), b"hello").expect("it is taken");
    stored(place, "small.txt", b"hello");
}

fn write_large(place: &Place) {
    fs::write(place.at("large"), pattern(40 * MIB, 4)).expect("it is taken");
    stored(place, "large", &pattern(40 * MIB, 4));
}

fn replace(place: &Place) {
    given(place, "replaced", &pattern(100_000, 5));
    fs::write(place.at("replaced"), b"new").expect("it is taken");
    stored(place, "replaced", b"new");
    assert_eq!(fs::read(place.at("replaced")).expect("it can be read"), b"new");
}

fn append(place: &Place, key: &str, content: &[u8]) {
    given(place, key, content);
    OpenOptions::new().append(true).open(place.at(key)).expect("it can be opened").write_all(b"and more").expect("it is taken");
    stored(place, key, &[content, b"and more"].concat());
}

fn append_small(place: &Place) {
    append(place, "appended-small", b"one line\n");
}

fn append_large(place: &Place) {
    append(place, "appended-large", &pattern(20 * MIB, 6));
}

fn change_inside(place: &Place) {
    let mut content = pattern(20 * MIB, 7);
    given(place, "changed", &content);
    let file = OpenOptions::new().read(true).write(true).open(place.at("changed")).expect("it can be opened");
    for at in [100, 9 * MIB, 20 * MIB - 7] {
        file.write_all_at(b"changed", at as u64).expect("it is taken");
        content[at..at + 7].copy_from_slice(b"changed");
    }
    drop(file);
    stored(place, "changed", &content);
}

fn truncate(place: &Place) {
    given(place, "cut", b"0123456789");
    let file = OpenOptions::new().write(true).open(place.at("cut")).expect("it can be opened");
    file.set_len(4).expect("it can be cut");
    file.set_len(6).expect("it can grow");
    drop(file);
    stored(place, "cut", b"0123\0\0");
}

fn exclusive(place: &Place) {
    File::create_new(place.at("once")).expect("the name is free").write_all(b"mine").expect("it is taken");
    assert_eq!(kind(File::create_new(place.at("once"))), Some(io::ErrorKind::AlreadyExists));
    given(place, "theirs", b"theirs");
    assert_eq!(kind(File::create_new(place.at("theirs"))), Some(io::ErrorKind::AlreadyExists));
    stored(place, "theirs", b"theirs");
}

fn fsync(place: &Place) {
    let mut file = File::create(place.at("synced")).expect("it can be made");
    file.write_all(b"first").expect("it is taken");
    file.sync_all().expect("it is stored");
    stored(place, "synced", b"first");
    file.write_all(b", second").expect("it is taken");
    drop(file);
    stored(place, "synced", b"first, second");
}

fn unlink(place: &Place) {
    given(place, "removed", b"x");
    fs::remove_file(place.at("removed")).expect("it can be removed");
    assert_eq!((place.get("removed"), kind(File::open(place.at("removed")))), (None, Some(io::ErrorKind::NotFound)));
}

fn mkdir(place: &Place) {
    directory(place, "lasting");
    assert!(place.mount_again(&[]).join("lasting").is_dir(), "another mount sees it");
}

fn rmdir(place: &Place) {
    directory(place, "full");
    fs::write(place.at("full/file"), b"x").expect("it is taken");
    assert_eq!(kind(fs::remove_dir(place.at("full"))), Some(io::ErrorKind::DirectoryNotEmpty));
    fs::remove_file(place.at("full/file")).expect("it can be removed");
    fs::remove_dir(place.at("full")).expect("it is empty");
    assert_eq!(place.keys("full"), [""; 0]);
}

fn rename(place: &Place) {
    given(place, "before", b"content");
    fs::rename(place.at("before"), place.at("after")).expect("it can be renamed");
    stored(place, "after", b"content");
    assert_eq!(place.get("before"), None);
}

fn rename_over(place: &Place) {
    given(place, "over", b"old");
    fs::write(place.at("over.tmp"), b"new").expect("it is taken");
    fs::rename(place.at("over.tmp"), place.at("over")).expect("it can be renamed");
    stored(place, "over", b"new");
    assert_eq!((fs::read(place.at("over")).expect("it can be read"), place.get("over.tmp")), (b"new".to_vec(), None));
}

fn rename_large(place: &Place) {
    given(place, "large-before", &pattern(20 * MIB, 8));
    fs::rename(place.at("large-before"), place.at("large-after")).expect("it can be renamed");
    stored(place, "large-after", &pattern(20 * MIB, 8));
}

fn rename_directory(place: &Place) {
    directory(place, "tree");
    directory(place, "tree/empty");
    directory(place, "tree/below");
    for n in 0..20 {
        fs::write(place.at(&format!("tree/below/{n:02}")), n.to_string()).expect("it is taken");
    }
    fs::rename(place.at("tree"), place.at("moved")).expect("it can be renamed");
    assert_eq!(names(&place.at("moved")), ["below", "empty"]);
    (0..20).for_each(|n| stored(place, &format!("moved/below/{n:02}"), n.to_string().as_bytes()));
    assert_eq!(place.keys("tree/"), [""; 0]);
    assert!(place.mount_again(&[]).join("moved/empty").is_dir(), "another mount sees it");
}

fn links(place: &Place) {
    given(place, "target", b"content");
    symlink("target", place.at("link")).expect("it can be made");
    assert_eq!(fs::read(place.at("link")).expect("it can be read"), b"content");
    assert_eq!(fs::read_link(place.mount_again(&[]).join("link")).expect("it is one"), Path::new("target"));
}

fn odd_names(place: &Place) {
    directory(place, "odd");
    let long = "n".repeat(200);
    let mut odd = ["a b", "a+b", "100%", "a&b=c?d#e", "quote\"'", "ä", "中文", "emoji 🦀", "tilde~", &long];
    for name in odd {
        fs::write(place.at("odd").join(name), name).unwrap_or_else(|error| panic!("{name}: {error}"));
        stored(place, &format!("odd/{name}"), name.as_bytes());
    }
    odd.sort_unstable();
    assert_eq!(names(&place.at("odd")), odd);
    assert_eq!(names(&place.mount_again(&[]).join("odd")), odd);
}

fn attributes(place: &Place) {
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    {
        let mount = place.mount_again(&["--posix-attributes"]);
        let file = File::create(mount.join("kept")).expect("it can be made");
        file.set_permissions(fs::Permissions::from_mode(0o750)).expect("it can be set");
        file.set_modified(modified).expect("it can be set");
    }
    let mount = place.mount_again(&["--posix-attributes"]);
    let found = fs::metadata(mount.join("kept")).expect("it is there");
    assert_eq!((found.mode() & 0o777, found.modified().expect("it is told")), (0o750, modified));
}

fn user_attributes(place: &Place) {
    let set = |path: &Path, name, value: &[u8]| rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty());
    {
        let mount = place.mount_again(&[]);
        fs::write(mount.join("with-attributes"), b"content").expect("it can be written");
        set(&mount.join("with-attributes"), "user.kind", b"\0 \xff").expect("it can be set");
        // What is taken is taken by the server, too.
        set(&mount.join("with-attributes"), "user.large", &[0xff; 1200]).expect("it can be set");
        let too_large = set(&mount.join("with-attributes"), "user.larger", &[0xff; 6000]);
        assert_eq!(too_large, Err(rustix::io::Errno::NOSPC));
    }
    let mount = place.mount_again(&[]);
    let mut value = [0; 9];
    let len = rustix::fs::getxattr(mount.join("with-attributes"), "user.kind", &mut value).expect("it is there");
    assert_eq!(&value[..len], b"\0 \xff");
    assert_eq!(fs::read(mount.join("with-attributes")).expect("it is there"), b"content");
}

fn made_by_another(place: &Place) {
    directory(place, "shared");
    assert_eq!(kind(File::open(place.at("shared/new"))), Some(io::ErrorKind::NotFound));
    place.put("shared/new", b"theirs");
    wait_until("it is seen", || fs::read(place.at("shared/new")).is_ok_and(|content| content == b"theirs"));
    wait_until("it is listed", || names(&place.at("shared")) == ["new"]);
}

fn replaced_by_another(place: &Place) {
    given(place, "shared-replaced", b"the first version");
    assert_eq!(fs::read(place.at("shared-replaced")).expect("it can be read"), b"the first version");
    place.put("shared-replaced", b"the second");
    wait_until("it is seen", || fs::read(place.at("shared-replaced")).is_ok_and(|content| content == b"the second"));
}

fn conflict(place: &Place) {
    let mount = place.mount_again(&[]);
    // In one request, and in parts.
    for size in [10, 12 << 20] {
        for is_new in [true, false] {
            let name = format!("conflict-{size}-{is_new}");
            if !is_new {
                given(place, &name, b"before");
            }
            let mut file = File::create(mount.join(&name)).expect("it can be made");
            file.write_all(&vec![1; size]).expect("it can be written");
            place.put(&name, b"theirs");
            let error = file.sync_all().expect_err("another client has written there");
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{name}: {error}");
            drop(file);
            wait_until("it is theirs", || fs::read(place.at(&name)).is_ok_and(|content| content == b"theirs"));
            // Who opens it now changes that.
            wait_until("it is seen", || fs::read(mount.join(&name)).is_ok_and(|content| content == b"theirs"));
            let mut file = File::options().append(true).open(mount.join(&name)).expect("it can be opened");
            file.write_all(b" and ours").expect("it can be written");
            file.sync_all().expect("nobody else has written");
            wait_until("it has both", || fs::read(place.at(&name)).is_ok_and(|content| content == b"theirs and ours"));
        }
    }
}

/// A handle that another client outruns before its first write.
fn conflict_before_the_first_write(place: &Place) {
    let (mount, other) = (place.mount_again(&[]), place.mount_again(&[]));
    for (read, was_read) in [(false, false), (true, false), (true, true)] {
        let name = format!("outrun-{read}-{was_read}");
        given(place, &name, b"before");
        let file = File::options().read(read).write(true).open(mount.join(&name)).expect("it can be opened");
        assert!(!was_read || file.read_exact_at(&mut [0; 6], 0).is_ok());
        fs::write(other.join(&name), b"theirs").expect("it can be replaced");
        for result in [file.write_all_at(b"ours", 0), file.sync_all(), file.write_all_at(b"ours", 0), file.set_len(2), file.sync_all()] {
            let error = result.expect_err("another client has written there");
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{name}: {error}");
        }
        drop(file);
        stored(place, &name, b"theirs");
        // Opened now, it is theirs that is changed; and the mode that this mount sets is no other client's version.
        let file = File::options().write(true).open(mount.join(&name)).expect("it can be opened");
        file.set_permissions(fs::Permissions::from_mode(0o755)).expect("it can be changed");
        file.write_all_at(b"ours", 0).expect("nobody else has written");
        file.sync_all().expect("it is stored");
        stored(place, &name, b"oursrs");
    }
}

fn conflict_saved(place: &Place) {
    let mount = place.mount_again(&["--conflict=save"]);
    for size in [10, 12 << 20] {
        let name = format!("saved-{size}");
        given(place, &name, b"before");
        let mut file = File::create(mount.join(&name)).expect("it can be made");
        let ours = pattern(size, 1);
        file.write_all(&ours).expect("it can be written");
        place.put(&name, b"theirs");
        assert_eq!(file.sync_all().expect_err("another client has written there").raw_os_error(), Some(libc::ESTALE));
        stored(place, &name, b"theirs");
        let start = format!("{name}.conflict-");
        let beside = names(mount.path()).into_iter().find(|name| name.starts_with(&start)).expect("it is listed");
        stored(place, &beside, &ours);
    }
}

/// RENAME_NOREPLACE at the same time, where the server compares and writes in one step; else one after the other. No content is lost.
fn renames_of_two(place: &Place) {
    let mounts = [place.mount_again(&[]), place.mount_again(&[])];
    for round in 0..8 {
        let name = |what: &str| format!("free-{round}-{what}");
        for source in ["0", "1"] {
            given(place, &name(source), source.as_bytes());
        }
        for (n, mount) in mounts.iter().enumerate() {
            wait_until("the source is seen", || mount.join(name(&n.to_string())).exists());
            // The mount knows that it is free.
            assert!(!mount.join(name("target")).exists());
        }
        let rename = |n: usize| {
            let (from, to) = (mounts[n].join(name(&n.to_string())), mounts[n].join(name("target")));
            rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, rustix::fs::RenameFlags::NOREPLACE)
        };
        let results = if place.compares_and_writes() {
            std::thread::scope(|threads| {
                [0, 1].map(|n| threads.spawn(move || rename(n))).map(|thread| thread.join().expect("it does not panic"))
            })
        } else {
            [rename(0), rename(1)]
        };
        let winner = results.iter().position(Result::is_ok).expect("one wins");
        assert_eq!(results[1 - winner], Err(rustix::io::Errno::EXIST));
        stored(place, &name("target"), winner.to_string().as_bytes());
        stored(place, &name(&(1 - winner).to_string()), (1 - winner).to_string().as_bytes());
        assert_eq!(kind(File::open(mounts[winner].join(name(&winner.to_string())))), Some(io::ErrorKind::NotFound));
    }
}

/// Appends at the same time, where the server compares and writes in one step; else in turns, each to a file that both have open.
fn appends_of_two(place: &Place) {
    const LINES: usize = 20;
    let mounts = [place.mount_again(&[]), place.mount_again(&[])];
    let append = |mount: usize| File::options().append(true).create(true).open(mounts[mount].join("log")).expect("it can be opened");
    let write = |mut file: File, line: String| {
        file.write_all(line.as_bytes()).expect("it can be written");
        file.sync_all().expect("it is appended to what is there");
    };
    if place.compares_and_writes() {
        std::thread::scope(|threads| {
            for writer in 0..10 {
                threads.spawn(move || (0..LINES).for_each(|line| write(append(writer % 2), format!("{writer} {line}\n"))));
            }
        });
    } else {
        for line in 0..LINES {
            let files = [append(0), append(1)];
            files.into_iter().enumerate().for_each(|(writer, file)| write(file, format!("{writer} {line}\n")));
        }
    }
    let writers = if place.compares_and_writes() { 10 } else { 2 };
    let mut expected: Vec<_> = (0..writers).flat_map(|writer| (0..LINES).map(move |line| format!("{writer} {line}"))).collect();
    let content = String::from_utf8(place.get("log").expect("it is there")).expect("it is text");
    let mut found: Vec<_> = content.lines().map(str::to_owned).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

/// A program follows a file (`tail -f`) and another has it open as `a+` while two mounts append to it: they read on in each new version, and a version
/// that does not begin with what they read refuses the append.
fn appends_beside_readers(place: &Place) {
    let mounts = [place.mount_again(&[]), place.mount_again(&[])];
    let lines = |range: std::ops::Range<usize>| range.map(|n| format!("{n:04}\n")).collect::<String>();
    // The last page of the kernel is not full.
    let mut expected = lines(0..999);
    given(place, "followed", expected.as_bytes());
    let paths = mounts.each_ref().map(|mount| mount.join("followed"));
    let reader = File::open(&paths[0]).expect("it can be opened");
    let mut both = File::options().read(true).append(true).open(&paths[0]).expect("it can be opened");
    let read = |file: &File, len: usize| {
        let mut content = vec![0; len];
        file.read_exact_at(&mut content, 0).map(|()| String::from_utf8_lossy(&content).into_owned())
    };
    assert_eq!(read(&reader, expected.len()).expect("it can be read"), expected);
    let mut end = expected.len() as u64;
    for n in (999..1029).step_by(3) {
        let append = |mut file: &File, n: usize| {
            file.write_all(lines(n..n + 1).as_bytes()).expect("it can be written");
            file.sync_all().expect("it is appended to what is there");
        };
        let open = |mount: usize| File::options().append(true).open(&paths[mount]).expect("it can be opened");
        let (here, there) = (open(0), open(1));
        append(&there, n);
        append(&here, n + 1);
        assert_eq!(read(&both, 10).expect("it can be read"), expected[..10]);
        append(&both, n + 2);
        expected += &lines(n..n + 3);
        stored(place, "followed", expected.as_bytes());
        let mut more = vec![0; 2 * expected.len()];
        let len = reader.read_at(&mut more, end).expect("it reads on");
        assert_eq!(String::from_utf8_lossy(&more[..len]), expected[end as usize..], "{n}");
        end += len as u64;
        assert_eq!(read(&both, expected.len()).expect("it can be read"), expected);
    }
    let other = lines(5000..6100);
    place.put("followed", other.as_bytes());
    let appended = both.write_all(b"lost").and_then(|()| both.sync_all());
    assert_eq!(appended.expect_err("it has other lines").raw_os_error(), Some(libc::ESTALE));
    stored(place, "followed", other.as_bytes());
}

/// A program reads what was appended before it is stored: that stays at its offset, or the append is refused. Without such a reader it is stored.
fn appends_read_before_they_are_stored(place: &Place) {
    let mounts = [place.mount_again(&[]), place.mount_again(&[])];
    for (base, is_closed) in [(&b"base\n"[..], false), (b"", false), (b"base\n", true)] {
        let name = format!("read-early-{}-{is_closed}", base.len());
        let (here, there) = (mounts[0].join(&name), mounts[1].join(&name));
        if !base.is_empty() {
            given(place, &name, base);
        }
        let mut writer = File::options().append(true).create(true).open(&here).expect("it can be opened");
        writer.write_all(b"ours\n").expect("it can be written");
        let reader = File::open(&here).expect("it can be opened");
        let ours = [base, b"ours\n"].concat();
        let mut read = vec![0; ours.len()];
        reader.read_exact_at(&mut read, 0).expect("the mount shows it");
        assert_eq!(read, ours);
        let reader = Some(reader).filter(|_| !is_closed);
        let mut other = File::options().append(true).create(true).open(&there).expect("it can be opened");
        other.write_all(b"theirs\n").expect("it can be written");
        other.sync_all().expect("it is stored");
        let theirs = [base, b"theirs\n"].concat();
        match writer.sync_all() {
            Ok(()) => {
                assert!(reader.is_none(), "the reader would go on at an offset of other bytes");
                stored(place, &name, &[&theirs[..], b"ours\n"].concat());
            }
            Err(error) => {
                assert!(reader.is_some() && error.raw_os_error() == Some(libc::ESTALE), "{name}: {error}");
                stored(place, &name, &theirs);
            }
        }
    }
}

/// A handle that appended, and is idle and open, neither hides what another mount appends nor keeps it from being read.
fn idle_appender(place: &Place) {
    let mounts = [place.mount_again(&["--stat-cache-ttl=1s"]), place.mount_again(&[])];
    let [here, there] = mounts.each_ref().map(|mount| mount.join("idle"));
    let mut expected = b"first\n".to_vec();
    given(place, "idle", &expected);
    for is_readable in [false, true] {
        let mut idle = File::options().append(true).read(is_readable).open(&here).expect("it can be opened");
        for line in [&b"second\n"[..], b"third\n"] {
            idle.write_all(line).expect("it can be written");
            idle.sync_all().expect("it is appended to what is there");
            expected.extend(line);
            let mut other = File::options().append(true).open(&there).expect("it can be opened");
            other.write_all(b"theirs\n").expect("it can be written");
            other.sync_all().expect("it is stored");
            expected.extend(b"theirs\n");
            wait_until("it is seen", || fs::read(&here).expect("it can be read") == expected);
        }
        drop(idle);
        stored(place, "idle", &expected);
    }
}

/// More names than a page has, of which the one at its end begins with a blank.
fn names_with_blanks(place: &Place) {
    const FILES: usize = 1_010;
    for (n, directory) in [" blank before", "blank behind "].into_iter().enumerate() {
        let key = |n: usize| if directory.ends_with(' ') { format!("{directory}/{n:04} ") } else { format!("{directory}/ {n:04}") };
        (0..FILES).for_each(|n| place.put(&key(n), b"x"));
        wait_until("it is seen", || place.at(directory).is_dir());
        let expected: Vec<String> = (0..FILES).map(|n| key(n)[directory.len() + 1..].to_owned()).collect();
        // s3s-fs fails some listings of more than a page; each that succeeds has all names.
        let is_all = |directory: &str| {
            let listed = fs::read_dir(place.at(directory)).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let Ok(entries) = listed else { return false };
            let mut found: Vec<_> = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            found.sort();
            assert_eq!(found, expected, "{directory}");
            true
        };
        wait_until("it is listed", || is_all(directory));
        let renamed = format!("renamed {n}");
        fs::rename(place.at(directory), place.at(&renamed)).expect("it can be renamed");
        wait_until("it is listed again", || is_all(&renamed));
        assert!(!place.at(directory).exists());
    }
}

fn removed_by_another(place: &Place) {
    given(place, "shared-removed", b"x");
    assert!(place.at("shared-removed").exists());
    place.delete("shared-removed");
    wait_until("it is not there any more", || !place.at("shared-removed").exists());
}

fn object_above_others(place: &Place) {
    place.put("nested/above", b"an object");
    place.put("nested/above/below", b"another");
    wait_until("the mount sees it", || place.at("nested").is_dir());
    let mut content = Vec::new();
    File::open(place.at("nested/above/below")).expect("it can be opened").read_to_end(&mut content).expect("it can be read");
    assert_eq!(content, b"another");
}

#[track_caller]
fn shell(directory: &Path, script: &str) {
    let output = Command::new("sh").args(["-e", "-c", script]).current_dir(directory).env("HOME", directory).output().expect("sh starts");
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}

fn git(place: &Place) {
    directory(place, "git");
    let script = "git init -q a && cd a && git config user.email a@b && git config user.name n && echo one > f && git add f && \
                  git commit -qm one && mkdir d && echo two > d/g && git add d && git commit -qm two && git gc -q && git fsck --strict && \
                  cd .. && git clone -q --no-hardlinks a b && cd b && git fsck --strict && test \"$(cat d/g)\" = two";
    shell(&place.at("git"), script);
}

fn sqlite(place: &Place) {
    directory(place, "sqlite");
    let script = "import sqlite3, sys\n\
                  for n in range(3):\n\
                  \tdb = sqlite3.connect(sys.argv[1])\n\
                  \tdb.execute('create table if not exists t (n integer, text text)')\n\
                  \tfor k in range(20):\n\
                  \t\twith db: db.executemany('insert into t values (?, ?)', [(n * 20 + k, 'x' * 500)] * 5)\n\
                  \tdb.close()\n\
                  db = sqlite3.connect(sys.argv[1])\n\
                  print(db.execute('pragma integrity_check').fetchone()[0], db.execute('select count(*) from t').fetchone()[0])";
    assert_eq!(python::run(script, &[&place.at("sqlite/db")]), "ok 300");
}

fn put_and_get(place: &Place) {
    let home = tempfile::tempdir().expect("there is a disk");
    let [from, to] = ["from", "to"].map(|name| home.path().join(name));
    fs::write(&from, pattern(20 * MIB, 9)).expect("there is room");
    for words in [["put", from.to_str().unwrap(), "bucket:/put"], ["get", "bucket:/put", to.to_str().unwrap()]] {
        let output = place.windlass(&words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    stored(place, "put", &pattern(20 * MIB, 9));
    same(&fs::read(&to).expect("it is there"), &pattern(20 * MIB, 9));
}

fn doctor(place: &Place) {
    let output = place.windlass(&["doctor", "bucket:", "--write-check"]);
    let said = String::from_utf8_lossy(&output.stdout);
    for step in ["LIST", "PUT", "multipart", "DELETE"] {
        assert!(said.lines().any(|line| line.contains(step) && line.trim_start().starts_with("ok")), "{step}:\n{said}");
    }
}

fn uploads(place: &Place) {
    let mut file = File::create(place.at("unfinished")).expect("it can be made");
    file.write_all(&pattern(20 * MIB, 10)).expect("it is taken");
    let listed = || {
        let output = place.windlass(&["mpu", "list", "bucket:"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).contains("unfinished")
    };
    wait_until("it is begun", listed);
    drop(file);
    wait_until("it is not listed any more", || !listed());
}
