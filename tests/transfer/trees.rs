//! Many files at once: get and put with --recursive, or with several names.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use super::program::{MIB, Said, at, content, get, json, names_in, run, tree_of};
use super::support::{BUCKET, Effect, Fault, Kind, S3Server};

#[test]
fn get_recursive_brings_odd_names_and_refuses_those_that_lead_elsewhere() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("a/dest");
    let good = ["one", "sub/two", "sub/deep/three", "ä b\n*?[x]", "..dots../x", "-n", "%2e%2e"];
    for name in good {
        server.put(&format!("tree/{name}"), name.as_bytes().to_vec());
    }
    server.put("tree/", "");
    server.put("tree/empty/", "");
    server.put("treehouse", "not below");
    server.put("tree/big", content(5 * MIB));
    let words = ["--recursive", "--json"];
    let said = get(&server, "tree", &dest, &words).succeeds();
    assert_eq!(json(&said).len(), good.len() + 1);
    let mut expected: BTreeMap<String, Vec<u8>> = good.map(|name| (name.to_owned(), name.as_bytes().to_vec())).into();
    expected.insert("big".into(), content(5 * MIB));
    assert!(tree_of(&dest) == expected && dest.join("empty").is_dir());
    // Listings tell what a GET needs. The sum of what is one request comes with it, that of the other is asked for.
    assert_eq!((server.count(Kind::List), server.count(Kind::Get), server.count(Kind::Head)), (1, good.len() + 5, 1));
    let bad = ["../evil", "sub/../../evil", "//etc/evil", "a//evil", "./evil"];
    for name in bad {
        server.put(&format!("tree/{name}"), "evil");
    }
    let again = dir.path().join("a/again");
    let said = get(&server, "tree", &again, &words).fails(1, &["5 names"]);
    assert!(bad.iter().all(|name| said.err.contains(&format!("\"tree/{name}\""))), "{}", said.err);
    assert!(tree_of(&again) == expected);
    assert_eq!((names_in(dir.path()), names_in(&dir.path().join("a"))), (vec!["a".to_owned()], vec!["again".into(), "dest".into()]));
    get(&server, "nothing", &again, &words).fails(4, &["no such object"]);
    get(&server, "tree", &dest.join("one"), &words).fails(2, &["directory"]);
}

#[test]
fn get_recursive_leaves_out_what_no_directory_can_hold_and_brings_the_rest() {
    let server = S3Server::start();
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dest = dir.path().join("dest");
    for name in ["c", "c-1", "c.txt", "c/d", "ok", "ok/", "deep/a", "deep/a/b/c", "rest", "out/x", "in/y", "file"] {
        server.put(&format!("t/{name}"), name.as_bytes().to_vec());
    }
    server.put_synthetic("t/huge", i64::MAX as u64);
    fs::create_dir_all(dest.join("sub")).unwrap();
    fs::write(elsewhere.path().join("secret"), "not ours").unwrap();
    // Links planted in the target.
    symlink(elsewhere.path(), dest.join("out")).unwrap();
    symlink("sub", dest.join("in")).unwrap();
    symlink(elsewhere.path().join("secret"), dest.join("file")).unwrap();
    let said = get(&server, "t", &dest, &["--recursive"]).fails(1, &["5 names"]);
    for (name, why) in [
        ("c", "a directory as well"),
        ("ok", "a directory as well"),
        ("deep/a", "a directory as well"),
        ("out/x", "leads out of"),
        ("huge", "9223372036854775807 bytes"),
    ] {
        let is_told = |line: &str| line.contains(&format!("\"t/{name}\"")) && line.contains(why);
        assert!(said.err.lines().any(is_told), "{name}: {}", said.err);
    }
    for name in ["c-1", "c.txt", "c/d", "deep/a/b/c", "rest", "file"] {
        assert_eq!(fs::read(dest.join(name)).unwrap(), name.as_bytes(), "{name}");
    }
    assert!(dest.join("ok").is_dir() && !dest.join("file").is_symlink());
    assert_eq!(fs::read(dest.join("sub/y")).unwrap(), b"in/y");
    assert_eq!(
        (names_in(elsewhere.path()), fs::read(elsewhere.path().join("secret")).unwrap()),
        (vec!["secret".to_owned()], b"not ours".to_vec())
    );
    // A single get does not trust the size either.
    get(&server, "t/huge", &dest.join("huge"), &[]).fails(1, &["No space left on device"]);
}

#[test]
fn get_recursive_takes_what_was_picked_and_leaves_what_is_there() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.bin", "b.txt", "x/c.bin", "x/d.txt"] {
        server.put(&format!("t/{name}"), name.as_bytes().to_vec());
    }
    let names = |dest: &str| tree_of(&dir.path().join(dest)).into_keys().collect::<Vec<_>>();
    let get = |dest: &str, more: &[&str]| get(&server, "t/", &dir.path().join(dest), &[&["--recursive"], more].concat());
    get("bin", &["--include", "*.bin", "--transfers", "1"]).succeeds();
    assert_eq!(names("bin"), ["a.bin", "x/c.bin"]);
    get("flat", &["--exclude", "x/**"]).succeeds();
    assert_eq!(names("flat"), ["a.bin", "b.txt"]);
    let dry = get("dry", &["--dry-run"]).succeeds();
    assert!(dry.text().lines().count() == 4 && !dir.path().join("dry").exists());
    get("all", &["--update"]).succeeds();
    server.reset_log();
    let said = get("all", &["--update"]).succeeds();
    assert!(said.err.contains("4 were there") && server.requests().len() == 1, "{}", said.err);
    fs::write(dir.path().join("all/b.txt"), "other size").unwrap();
    server.reset_log();
    get("all", &["--update"]).succeeds();
    assert_eq!((server.count(Kind::Get), &tree_of(&dir.path().join("all"))["b.txt"][..]), (1, &b"b.txt"[..]));
    get("all", &["--include", "["]).fails(2, &["--include"]);
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::Get).key("t/x/c.bin"));
    get("failed", &[]).fails(3, &["permission"]);
    assert!(!names("failed").iter().any(|name| name.contains(".part") || name == "x/c.bin"));
}

/// `windlass put --recursive` of a directory.
fn put(server: &S3Server, dir: &std::path::Path, dest: &str, more: &[&str]) -> Said {
    let words = ["put", "-r", dir.to_str().unwrap(), &at(dest), "--part-size", "5MiB", "--bigfile-threshold", "8MiB"];
    run(server, &[&words[..], more].concat())
}

#[test]
fn put_recursive_stores_a_tree_that_get_brings_back() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    fs::create_dir_all(tree.join("hollow/empty")).unwrap();
    for name in ["one.json", "sub/two", "sub/deep/three", "ä b\n*?[x]", "..dots..", "-n", "%2e%2e"] {
        fs::write(tree.join(name), name).unwrap();
    }
    fs::write(tree.join("big"), content(12 * MIB)).unwrap();
    fs::write(tree.join("nothing"), "").unwrap();
    symlink("sub/two", tree.join("link")).unwrap();
    symlink("sub", tree.join("linked")).unwrap();
    let said = put(&server, &tree, "t", &["--json"]).succeeds();
    assert_eq!(json(&said).len(), 12);
    let mut expected = tree_of(&tree);
    assert_eq!((&expected["link"][..], &expected["linked/deep/three"][..]), (&b"sub/two"[..], &b"sub/deep/three"[..]));
    for (name, content) in &expected {
        assert!(server.stored(&format!("t/{name}")).unwrap().0 == *content, "{name}");
    }
    assert_eq!(server.stored("t/one.json").unwrap().1.content_type.as_deref(), Some("application/json"));
    let marker = server.stored("t/hollow/empty/").unwrap();
    assert_eq!((marker.0.len(), marker.1.content_type.as_deref()), (0, Some("application/x-directory")));
    assert!(server.stored("t/hollow/").is_none() && server.uploads() == 0);
    put(&server, &tree, "typed", &["--json", "--mime=false", "--content-type=big=application/x-model,.sub/=x/y"])
        .fails(2, &[".sub/=x/y", "EXT=TYPE"]);
    put(&server, &tree, "typed", &["--json", "--mime=false", "--content-type=JSON=application/x-ours"]).succeeds();
    let kind = |name: &str| server.stored(&format!("typed/{name}")).unwrap().1.content_type;
    assert_eq!((kind("one.json").as_deref(), kind("big")), (Some("application/x-ours"), None));
    server.reset_log();
    let back = dir.path().join("back");
    let said = get(&server, "t", &back, &["--recursive", "--json"]).succeeds();
    assert!(tree_of(&back) == expected && back.join("hollow/empty").is_dir());
    // The listing says of which a sum is kept: all but the empty one are checked, each by a HEAD beside its GETs.
    let unchecked = json(&said).into_iter().filter(|facts| facts["is_checked"] != true).count();
    assert_eq!((unchecked, server.count(Kind::Head), server.count(Kind::List)), (1, 11, 1));
    // What cannot be stored is said, and the rest is.
    symlink("nowhere", tree.join("broken")).unwrap();
    symlink("..", tree.join("sub/loop")).unwrap();
    fs::write(tree.join(OsStr::from_bytes(b"raw\xff")), "x").unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let said = put(&server, &tree, "again/", &[]).fails(1, &["5 names"]);
    for word in ["broken", "sub/loop", "linked/loop", "raw", "pipe"] {
        assert!(said.err.lines().any(|line| line.contains(word) && line.contains("left out")), "{word}: {}", said.err);
    }
    expected.retain(|name, _| server.stored(&format!("again/{name}")).is_none());
    assert!(expected.is_empty(), "{:?}", expected.keys());
}

#[test]
fn put_recursive_from_a_directory_whose_name_is_no_text() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join(OsStr::from_bytes(b"raw\xff"));
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/file"), content(9 * MIB)).unwrap();
    let word = |text: &str| std::ffi::OsString::from(text);
    let checkpoints = dir.path().join("checkpoints");
    let limits = ["--part-size", "5MiB", "--bigfile-threshold", "8MiB", "--checkpoint-dir"].map(word);
    let with = |words: [std::ffi::OsString; 4]| run(&server, &[&words, &limits[..], &[checkpoints.clone().into()]].concat()).succeeds();
    with([word("put"), word("-r"), tree.into(), word(&at("t/"))]);
    assert!(server.stored("t/sub/file").unwrap().0 == content(9 * MIB));
    let back = dir.path().join(OsStr::from_bytes(b"back\xff"));
    with([word("get"), word("-r"), word(&at("t")), back.clone().into()]);
    assert!(fs::read(back.join("sub/file")).unwrap() == content(9 * MIB));
    assert_eq!(names_in(&checkpoints), Vec::<String>::new());
}

#[test]
fn put_recursive_takes_what_was_picked_and_leaves_what_is_there() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("x")).unwrap();
    let old = SystemTime::now() - Duration::from_secs(3600);
    for name in ["a.bin", "b.txt", "x/c.bin", "x/d.txt"] {
        fs::write(dir.path().join(name), name).unwrap();
        File::options().write(true).open(dir.path().join(name)).unwrap().set_modified(old).unwrap();
    }
    let count = || server.count(Kind::Put);
    put(&server, dir.path(), "bin/", &["--include", "*.bin", "--transfers", "1"]).succeeds();
    assert!(count() == 2 && server.stored("bin/x/c.bin").is_some());
    let dry = put(&server, dir.path(), "dry/", &["--exclude", "x/**", "--dry-run"]).succeeds();
    assert!(dry.text().lines().count() == 2 && count() == 2 && dry.text().contains("would store dry/a.bin"), "{}", dry.text());
    put(&server, dir.path(), "all", &["--update"]).succeeds();
    assert_eq!(count(), 6);
    let said = put(&server, dir.path(), "all", &["--update"]).succeeds();
    assert!(said.err.contains("4 were there") && count() == 6, "{}", said.err);
    // Another size; then the same size, but younger.
    fs::write(dir.path().join("b.txt"), "other size").unwrap();
    File::options().write(true).open(dir.path().join("b.txt")).unwrap().set_modified(old).unwrap();
    let young = SystemTime::now() + Duration::from_secs(3600);
    File::options().write(true).open(dir.path().join("a.bin")).unwrap().set_modified(young).unwrap();
    put(&server, dir.path(), "all", &["--update"]).succeeds();
    assert_eq!((count(), server.stored("all/b.txt").unwrap().0), (8, "other size".into()));
    run(&server, &["put", dir.path().join("b.txt").to_str().unwrap(), &at("all/"), "--update"]).succeeds();
    assert_eq!(count(), 8);
}

#[test]
fn put_recursive_that_fails_leaves_no_upload() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    for n in 0..4 {
        fs::write(dir.path().join(format!("file{n}")), content(12 * MIB)).unwrap();
    }
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::UploadPart).nth(7));
    put(&server, dir.path(), "t", &[]).fails(3, &["permission"]);
    assert_eq!(server.uploads(), 0);
}

#[test]
fn several_objects_go_to_a_directory_or_after_one_another() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (key, content) in [("a/one", "1"), ("b/two", "22"), ("b/one", "11"), ("c/d/x", "xx")] {
        server.put(key, content);
    }
    let run = |args: &[&str]| run(&server, args);
    run(&["get", &at("a/one"), &at("b/two"), &path("new/")]).succeeds();
    assert_eq!(tree_of(&dir.path().join("new")), BTreeMap::from([("one".into(), b"1".to_vec()), ("two".into(), b"22".to_vec())]));
    run(&["get", "-r", &at("a"), &at("c/d/"), &path("new")]).succeeds();
    assert!(fs::read(path("new/a/one")).unwrap() == b"1" && fs::read(path("new/d/x")).unwrap() == b"xx");
    run(&["get", &at("a/one"), &at("b/two"), &path("none")]).fails(2, &["none", "several SOURCEs need a directory"]);
    run(&["get", &at("a/one"), &at("b/two"), "-"]).fails(2, &["several SOURCEs need a directory"]);
    run(&["get", &at("a/one"), &at("b/one"), &path("new")]).fails(2, &["b/one", "no name of its own"]);
    run(&["get", &at("a/one"), &at("b/gone"), &path("new")]).fails(4, &["b/gone", "no such object"]);
    run(&["get", "-r", &at("a"), &at("gone"), &path("new")]).fails(4, &["gone", "no such object"]);
    run(&["get", "-r", &at("a"), &at("b"), &path("new"), "--range", "0-1"]).fails(2, &["--range"]);
    assert_eq!(run(&["cat", &at("a/one"), &at("b/two")]).succeeds().out, b"122");
    let said = run(&["cat", &at("a/one"), &at("gone"), &at("b/two")]).fails(4, &["gone"]);
    assert_eq!(said.out, b"1");
    assert_eq!(run(&["ls", &at("a/"), &at("b")]).succeeds().text().lines().count(), 3);
    let said = run(&["stat", "--json", &at("a/one"), &at("gone"), &at("b/two")]).fails(4, &["gone", "no such object"]);
    assert_eq!(json(&said).iter().map(|facts| facts["size_bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    let said = run(&["rm", &at("a/one"), &at("gone"), &at("b")]).fails(4, &["directory"]);
    assert!(said.text() == "deleted a/one\n" && said.err.lines().count() == 2, "{}", said.err);
    // One bucket, one store: what it takes to reach it is not asked for each of them.
    server.reset_log();
    run(&["ls", &at("b"), &format!("s3://{BUCKET}")]).succeeds();
    assert!(server.requests().len() <= 3, "{:?}", server.requests());
}

#[test]
fn several_files_go_below_a_prefix() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir_all(path("d/sub")).unwrap();
    fs::create_dir_all(path("e")).unwrap();
    for name in ["one", "two", "d/x", "d/sub/y", "e/one"] {
        fs::write(path(name), name).unwrap();
    }
    let run = |args: &[&str]| run(&server, args);
    run(&["put", &path("one"), &path("two"), &at("p/")]).succeeds();
    run(&["put", "-r", &path("d"), &path("two"), &at("q/")]).succeeds();
    for (key, content) in [("p/one", "one"), ("p/two", "two"), ("q/d/x", "d/x"), ("q/d/sub/y", "d/sub/y"), ("q/two", "two")] {
        assert_eq!(server.stored(key).map(|stored| stored.0), Some(content.into()), "{key}");
    }
    run(&["put", &path("one"), &path("two"), &at("p")]).fails(2, &["several FILEs need a DEST that ends in a slash"]);
    run(&["put", &path("one"), &path("e/one"), &at("p/")]).fails(2, &["another FILE becomes"]);
    run(&["put", &path("one"), &path("d"), &at("p/")]).fails(2, &["--recursive"]);
    run(&["put", &path("one"), "-", &at("p/")]).fails(2, &["standard input"]);
    run(&["put", &path("one"), &path("gone"), &at("p/")]).fails(2, &["gone", "No such file"]);
}
