//! The commands that move objects without a mount: the built program against a real S3 server over loopback. What was asked of the
//! server is counted. Invariant: a test leaves nothing behind but what its own directory held.

mod support;

use std::fs;
use std::io::Read;
use std::process::{Command, Output, Stdio};

use support::{BUCKET, Effect, Fault, Kind, S3Server};

/// The program with a server, and nothing else in its environment that could decide anything.
fn command(server: &S3Server, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(args).args(["--endpoint", &server.endpoint()]).env_clear().env("PATH", "/usr/bin:/bin").envs(server.client_env());
    command
}

struct Said {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Said {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("what people read is text")
    }

    #[track_caller]
    fn succeeds(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    /// Ends with this code and one line that has all these words.
    #[track_caller]
    fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}", self.err);
        let last = self.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("windlass: "), "{}", self.err);
        for word in words {
            assert!(last.contains(word), "{word:?} is missing in: {last}");
        }
        self
    }
}

fn said(output: Output) -> Said {
    Said { code: output.status.code().unwrap_or(-1), out: output.stdout, err: String::from_utf8_lossy(&output.stderr).into_owned() }
}

fn run(server: &S3Server, args: &[&str]) -> Said {
    said(command(server, args).stdin(Stdio::null()).output().expect("the program starts"))
}

/// `s3://BUCKET/key`
fn at(key: &str) -> String {
    format!("s3://{BUCKET}/{key}")
}

/// Bytes that tell their place.
fn content(len: usize) -> Vec<u8> {
    (0..len as u64).step_by(8).flat_map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).take(len).collect()
}

fn json(said: &Said) -> Vec<serde_json::Value> {
    said.text().lines().map(|line| serde_json::from_str(line).expect("one JSON value a line")).collect()
}

const MIB: usize = 1 << 20;

#[test]
fn ls_shows_one_level_or_all_and_says_what_is_missing() {
    let server = S3Server::start();
    for key in ["a/one", "a/b/two", "a/b/c/three", "ab", "odd/ä b\n+&?", "odd/../x"] {
        server.put(key, "12345");
    }
    let names = |args: &[&str]| -> Vec<String> {
        let said = run(&server, &[&["ls"], args].concat()).succeeds();
        said.text().lines().map(|line| line.get(48..).unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names(&[&at("")]), ["a/", "odd/", "ab"]);
    assert_eq!(names(&[&at("a")]), ["b/", "one"]);
    assert_eq!(names(&[&at("a/"), "--recursive"]), ["b/c/three", "b/two", "one"]);
    assert_eq!(names(&[&at("ab")]), ["ab"]);
    assert_eq!(names(&[&at("odd"), "-r"]), ["../x", "ä b\\n+&?"]);
    let said = run(&server, &["ls", "--json", &at("a")]).succeeds();
    let facts = json(&said);
    assert_eq!(facts[0]["prefix"], "a/b/");
    assert_eq!((facts[1]["key"].as_str(), facts[1]["size_bytes"].as_u64()), (Some("a/one"), Some(5)));
    run(&server, &["ls", &at("nothing")]).fails(4, &["nothing", "no such object"]);
    run(&server, &["ls", "s3://another-bucket"]).fails(4, &["another-bucket"]);
    run(&server, &["ls", "nowhere://x"]).fails(2, &["s3://bucket"]);
}

#[test]
fn a_listing_of_many_pages_costs_a_request_a_page() {
    let server = S3Server::start();
    for n in 0..2_500 {
        server.put(&format!("many/{n:05}"), "");
    }
    let said = run(&server, &["ls", &at("many/")]).succeeds();
    assert_eq!((said.text().lines().count(), server.count(Kind::List), server.count(Kind::Head)), (2_500, 3, 0));
}

#[test]
fn stat_tells_what_the_store_tells() {
    let server = S3Server::start();
    let etag = server.put("dir/file", "content");
    let said = run(&server, &["stat", &at("dir/file")]).succeeds();
    assert!(said.text().contains("7 bytes") && said.text().contains(&etag), "{}", said.text());
    let facts = &json(&run(&server, &["stat", "--json", &at("dir/file")]).succeeds())[0];
    assert_eq!((facts["size_bytes"].as_u64(), facts["etag"].as_str()), (Some(7), Some(&*etag)));
    run(&server, &["stat", &at("dir")]).fails(4, &["a directory"]);
    run(&server, &["stat", &at("none")]).fails(4, &["none", "no such object"]);
    server.fault(Fault::new(Effect::Status(403)));
    run(&server, &["stat", &at("dir/file")]).fails(3, &["permission"]);
}

#[test]
fn cat_writes_ranges_as_http_counts_them_and_as_ossutil_does() {
    let server = S3Server::start();
    let content = content(20 * MIB + 17);
    server.put("big", content.clone());
    server.put("empty", "");
    let cat = |args: &[&str]| run(&server, &[&["cat", "--hedge=false"], args].concat()).succeeds().out;
    assert!(cat(&[&at("big")]) == content);
    assert_eq!(server.count(Kind::Get), 3);
    assert!(server.of_kind(Kind::Get).iter().all(|request| request.if_match.is_some()));
    assert_eq!(cat(&[&at("empty")]), b"");
    let end = content.len();
    for (range, expected) in [("3-9", &content[3..10]), ("20971520-", &content[20 * MIB..]), ("-9", &content[end - 9..]), ("-0", &[])] {
        assert_eq!(cat(&["--range", range, &at("big")]), expected, "{range}");
    }
    assert_eq!(cat(&["--range", "-9", "--compat", "ossutil", &at("big")]), &content[..10]);
    run(&server, &["cat", &at("big"), "--range", "99999999-"]).fails(2, &["begins at byte 99999999"]);
    run(&server, &["cat", &at("none")]).fails(4, &["no such object"]);
    assert_eq!(run(&server, &["cat", &at("big"), "--range", "9-3"]).code, 2);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let server = S3Server::start();
    server.put_synthetic("huge", 1 << 30);
    let mut child = command(&server, &["cat", &at("huge")]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let said = said(child.wait_with_output().unwrap()).succeeds();
    assert_eq!(said.err, "");
    // What was under way in front of the reader, not all 128 parts.
    assert!(server.count(Kind::Get) < 40, "{}", server.count(Kind::Get));
}

#[test]
fn cat_goes_on_after_faults_and_notices_another_version() {
    let server = S3Server::start();
    let content = content(20 * MIB);
    server.put("big", content.clone());
    server.fault(Fault::new(Effect::Reset(100_000)).kind(Kind::Get).nth(2));
    server.fault(Fault::new(Effect::Status(503)).kind(Kind::Get).nth(3));
    assert!(run(&server, &["cat", &at("big")]).succeeds().out == content);
    server.clear_faults();
    server.fault(Fault::new(Effect::WrongETag("\"other\"".into())).kind(Kind::Get).nth(2));
    run(&server, &["cat", &at("big")]).fails(1, &["replaced"]);
}

#[test]
fn rm_deletes_what_was_named_and_no_more() {
    let server = S3Server::start();
    let keys = ["a", "a/1", "a/b/2", "a1", "ab/3"];
    let fill = || keys.iter().for_each(|key| drop(server.put(key, "x")));
    let left = || keys.into_iter().filter(|key| server.stored(key).is_some()).collect::<Vec<_>>();
    fill();
    let dry = run(&server, &["rm", "--dry-run", "-r", &at("a")]).succeeds();
    assert_eq!((dry.text().lines().count(), left().len(), server.count(Kind::Delete)), (3, 5, 0));
    run(&server, &["rm", &at("a/b")]).fails(2, &["--recursive"]);
    run(&server, &["rm", &at("none")]).fails(4, &["no such object"]);
    assert_eq!(run(&server, &["rm", &at("a1")]).succeeds().text(), "deleted a1\n");
    assert_eq!(left(), ["a", "a/1", "a/b/2", "ab/3"]);
    run(&server, &["rm", "-r", &at("a/")]).succeeds();
    assert_eq!(left(), ["a", "ab/3"]);
    fill();
    run(&server, &["rm", "-r", &at("a")]).succeeds();
    assert_eq!(left(), ["a1", "ab/3"]);
}

/// What is in a directory, hidden files too.
fn names_in(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// `windlass get` of parts of 1 MiB, with more words.
fn get(server: &S3Server, key: &str, dest: &std::path::Path, more: &[&str]) -> Said {
    let args = ["get", &at(key), dest.to_str().unwrap(), "--part-size", "1MiB", "--bigfile-threshold", "4MiB", "--hedge=false"];
    run(server, &[&args[..], more].concat())
}

#[test]
fn get_brings_parts_above_the_threshold_and_one_request_below() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    for (key, len, requests) in [("empty", 0, 0), ("small", 4 * MIB - 1, 1), ("big", 10 * MIB + 17, 11)] {
        let content = content(len);
        server.put(key, content.clone());
        for parallel in ["auto", "1", "64"] {
            server.reset_log();
            let said = get(&server, key, dir.path(), &["--parallel", parallel]).succeeds();
            assert!(said.err.contains("plan: "), "{}", said.err);
            assert!(fs::read(dir.path().join(key)).unwrap() == content, "{key} by {parallel}");
            let gets = server.of_kind(Kind::Get);
            assert_eq!((gets.len(), server.count(Kind::Head)), (requests, 1), "{key} by {parallel}");
            assert!(gets.iter().all(|request| request.if_match.is_some()));
        }
    }
    assert_eq!(names_in(dir.path()), ["big", "empty", "small"]);
    let facts = &json(&get(&server, "big", &dir.path().join("other"), &["--json", "--range", "-5"]).succeeds())[0];
    assert_eq!((facts["bytes"].as_u64(), facts["is_checked"].as_bool()), (Some(5), Some(false)));
    assert_eq!(fs::read(dir.path().join("other")).unwrap(), content(10 * MIB + 17)[10 * MIB + 12..]);
    server.reset_log();
    let dry = get(&server, "big", &dir.path().join("dry"), &["--dry-run"]).succeeds();
    assert!(dry.text().contains("would write") && !dir.path().join("dry").exists() && server.count(Kind::Get) == 0);
}

#[test]
fn get_writes_to_pipes_and_devices_in_order() {
    let server = S3Server::start();
    let content = content(9 * MIB);
    server.put("big", content.clone());
    server.fault(Fault::new(Effect::Delay(std::time::Duration::from_millis(300))).kind(Kind::Get).nth(1));
    let said = get(&server, "big", std::path::Path::new("-"), &["--json"]).succeeds();
    assert!(said.out == content);
    assert_eq!(server.count(Kind::Get), 9);
    get(&server, "big", std::path::Path::new("/dev/null"), &[]).succeeds();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    get(&server, "big", std::path::Path::new("/dev/full"), &[]).fails(1, &["/dev/full", "No space left"]);
}

#[test]
fn get_goes_on_after_faults_and_leaves_nothing_behind_when_it_cannot() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let content = content(8 * MIB);
    server.put("big", content.clone());
    server.fault(Fault::new(Effect::Reset(300_000)).kind(Kind::Get).nth(2));
    server.fault(Fault::new(Effect::Truncate(500_000)).kind(Kind::Get).nth(4));
    server.fault(Fault::new(Effect::Status(503)).kind(Kind::Get).nth(6));
    get(&server, "big", dir.path(), &[]).succeeds();
    assert!(fs::read(dir.path().join("big")).unwrap() == content);
    server.clear_faults();
    fs::write(dir.path().join("old"), "old").unwrap();
    let old = dir.path().join("old");
    server.fault(Fault::new(Effect::WrongETag("\"other\"".into())).kind(Kind::Get).nth(3));
    get(&server, "big", &old, &[]).fails(1, &["replaced"]);
    server.clear_faults();
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::Get).nth(3));
    get(&server, "big", &old, &[]).fails(3, &["permission"]);
    get(&server, "none", &old, &[]).fails(4, &["no such object"]);
    get(&server, "big", &dir.path().join("no/such/dir"), &[]).fails(1, &["no/such/dir", "No such file"]);
    // Nobody can make a file there, not even root.
    get(&server, "big", std::path::Path::new("/proc/self/here"), &[]).fails(1, &["cannot write /proc/self/here"]);
    // More than any disk of a test has.
    server.put_synthetic("huge", 1 << 50);
    get(&server, "huge", &old, &["--part-size", "1GiB"]).fails(1, &["cannot write", "old", "No space left"]);
    get(&server, "big", &old, &["--max-memory", "1KiB"]).fails(2, &["--max-memory"]);
    assert_eq!(fs::read(&old).unwrap(), b"old");
    assert_eq!(names_in(dir.path()), ["big", "old"]);
}

#[test]
fn get_checks_the_sum_that_the_store_keeps() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let content = content(6 * MIB);
    // An object with a sum is one that was written so.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        use windlass::store::{Condition, Headers, ObjectStore, PutRequest};
        let store = windlass::store::open(&server.store_options(), Default::default()).await.unwrap();
        let (headers, condition) = (Headers::default(), Condition::Any);
        store.put(&PutRequest { key: "big".into(), body: content.clone().into(), headers, condition }).await.unwrap();
    });
    let facts = &json(&get(&server, "big", dir.path(), &["--json"]).succeeds())[0];
    assert_eq!(facts["is_checked"], true);
    server.spoil("big", 3 * MIB);
    get(&server, "big", &dir.path().join("bad"), &[]).fails(1, &["checksum", "big"]);
    let checkpoints = dir.path().join("checkpoints");
    get(&server, "big", &dir.path().join("bad"), &["--checkpoint-dir", checkpoints.to_str().unwrap()]).fails(1, &["checksum"]);
    assert_eq!((names_in(dir.path()), names_in(&checkpoints)), (vec!["big".to_owned(), "checkpoints".into()], vec![]));
    assert_eq!(run(&server, &["cat", &at("big")]).code, 1);
}

#[test]
fn get_killed_and_run_again_fetches_what_is_missing() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let content = content(16 * MIB);
    server.put("big", content.clone());
    let (target, checkpoints) = (dir.path().join("file"), dir.path().join("checkpoints"));
    let more = ["--parallel", "2", "--checkpoint-dir", checkpoints.to_str().unwrap(), "--json"];
    // From the ninth part on nothing comes any more.
    for n in 9..=16 {
        server.fault(Fault::new(Effect::Stall(1000, None)).kind(Kind::Get).nth(n));
    }
    let words = ["get", &at("big"), target.to_str().unwrap(), "--part-size", "1MiB", "--bigfile-threshold", "4MiB", "--hedge=false"];
    let mut child = command(&server, &[&words[..], &more].concat()).stderr(Stdio::null()).spawn().unwrap();
    let parts = || {
        fs::read_dir(&checkpoints)
            .ok()
            .and_then(|mut dir| dir.next())
            .map_or(0, |file| fs::read_to_string(file.unwrap().path()).unwrap_or_default().lines().count().saturating_sub(1))
    };
    assert!(server.wait_for(|_| parts() == 8), "{}", parts());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!target.exists());
    server.clear_faults();
    server.reset_log();
    let facts = &json(&get(&server, "big", &target, &more).succeeds())[0];
    assert_eq!((facts["resumed_bytes"].as_u64(), server.count(Kind::Get)), (Some(8 << 20), 8));
    assert!(fs::read(&target).unwrap() == content);
    assert_eq!((names_in(dir.path()), names_in(&checkpoints)), (vec!["checkpoints".to_owned(), "file".into()], vec![]));
}

#[test]
fn get_that_is_interrupted_takes_its_file_away() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    server.put("big", content(8 * MIB));
    server.fault(Fault::new(Effect::Stall(1000, None)).kind(Kind::Get));
    let words = ["get", &at("big"), dir.path().to_str().unwrap(), "--part-size", "1MiB", "--bigfile-threshold", "4MiB"];
    let child = command(&server, &words).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert!(server.wait_for(|requests| requests.iter().any(|request| request.kind == Kind::Get)));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    said(child.wait_with_output().unwrap()).fails(130, &["interrupted"]);
    assert_eq!(names_in(dir.path()), Vec::<String>::new());
}

/// Every file below a directory, by its path there.
fn tree_of(dir: &std::path::Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap());
            }
        }
    }
    found
}

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
    let mut expected: std::collections::BTreeMap<String, Vec<u8>> = good.map(|name| (name.to_owned(), name.as_bytes().to_vec())).into();
    expected.insert("big".into(), content(5 * MIB));
    assert!(tree_of(&dest) == expected && dest.join("empty").is_dir());
    assert_eq!((server.count(Kind::List), server.count(Kind::Get)), (1, good.len() + 5));
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

#[test]
fn memory_stays_inside_what_was_allowed() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    for n in 0..4 {
        server.put_synthetic(&format!("m/{n}"), 64 << 20);
    }
    // Slow enough to be looked at, and as many requests as there may be.
    server.fault(Fault::new(Effect::Bandwidth(8 << 20)).kind(Kind::Get));
    let words =
        ["get", "-r", &at("m"), dir.path().to_str().unwrap(), "--parallel", "200", "--part-size", "1MiB", "--bigfile-threshold", "1MiB"];
    let mut child = command(&server, &[&words[..], &["--max-memory", "16MiB", "--hedge=false"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut peak_kib = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).and_then(|text| text.trim().split(' ').next()?.parse().ok());
        peak_kib = peak_kib.max(rss.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(child.wait().unwrap().success() && server.count(Kind::Get) == 256);
    assert!(peak_kib > 0 && peak_kib < (16 + 96) << 10, "{peak_kib} KiB");
}

/// `windlass put` of a file of this content, with more words.
fn put(server: &S3Server, content: &[u8], dest: &str, more: &[&str]) -> Said {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file.json");
    fs::write(&file, content).unwrap();
    let args = ["put", file.to_str().unwrap(), &at(dest), "--part-size", "5MiB", "--bigfile-threshold", "8MiB"];
    run(server, &[&args[..], more].concat())
}

#[test]
fn put_stores_one_request_below_the_threshold_and_parts_above() {
    let server = S3Server::start();
    for (len, puts, parts) in [(0, 1, 0), (8 * MIB - 1, 1, 0), (17 * MIB + 3, 0, 4)] {
        let content = content(len);
        for parallel in ["auto", "1", "16"] {
            server.reset_log();
            let said = put(&server, &content, "dir/object.txt", &["--parallel", parallel, "--json"]).succeeds();
            assert!(said.err.contains("plan: "), "{}", said.err);
            let facts = &json(&said)[0];
            assert_eq!((facts["bytes"].as_u64(), facts["parts"].as_u64()), (Some(len as u64), Some(parts as u64)));
            let (stored, about) = server.stored("dir/object.txt").unwrap();
            assert!(stored == content && about.content_type.as_deref() == Some("text/plain"), "{about:?}");
            assert_eq!((server.count(Kind::Put), server.count(Kind::UploadPart)), (puts, parts));
        }
    }
    put(&server, b"{}", "dir/", &[]).succeeds();
    assert_eq!(server.stored("dir/file.json").unwrap().0, "{}");
    put(&server, b"{}", "dry", &["--dry-run"]).succeeds();
    assert!(server.stored("dry").is_none() && server.uploads() == 0);
    run(&server, &["put", "/no/such/file", &at("x")]).fails(2, &["/no/such/file"]);
    run(&server, &["put", "/tmp", &at("x")]).fails(2, &["directory"]);
    run(&server, &["put", "-", &at("dir/")]).fails(2, &["name the object"]);
    put(&server, b"", "x", &["--part-size", "1MiB"]).fails(2, &["5MiB"]);
}

#[test]
fn put_takes_standard_input_of_any_length() {
    let server = S3Server::start();
    for (len, parts) in [(0, 0), (5 * MIB - 1, 0), (5 * MIB, 1), (12 * MIB, 3)] {
        let content = content(len);
        server.reset_log();
        let mut command = command(&server, &["put", "-", &at("stream"), "--part-size", "5MiB"]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), &content).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(server.stored("stream").unwrap().0 == content);
        assert_eq!(server.count(Kind::UploadPart), parts, "{len}");
    }
}

#[test]
fn put_that_fails_or_is_stopped_leaves_nothing_in_the_bucket() {
    let server = S3Server::start();
    let content = content(20 * MIB);
    server.put("object", "old");
    server.fault(Fault::new(Effect::Status(503)).kind(Kind::UploadPart).nth(2));
    server.fault(Fault::new(Effect::Broken).kind(Kind::UploadPart).nth(4));
    put(&server, &content, "new", &[]).succeeds();
    assert!(server.stored("new").unwrap().0 == content);
    server.clear_faults();
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::UploadPart).nth(3));
    put(&server, &content, "object", &[]).fails(3, &["permission"]);
    server.clear_faults();
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::CompleteUpload));
    put(&server, &content, "object", &[]).fails(3, &["permission"]);
    server.clear_faults();
    // Stopped while it waits for more of a pipe that is silent.
    server.reset_log();
    let mut command = command(&server, &["put", "-", &at("object"), "--part-size", "5MiB"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut pipe, &content[..6 * MIB]).unwrap();
    assert!(server.wait_for(|requests| requests.iter().any(|request| request.kind == Kind::UploadPart)));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    said(child.wait_with_output().unwrap()).fails(130, &["interrupted"]);
    drop(pipe);
    assert_eq!((server.uploads(), server.stored("object").unwrap().0), (0, "old".into()));
}

#[test]
fn put_stays_inside_its_memory() {
    let server = S3Server::start();
    let words = ["put", "-", &at("large"), "--part-size", "5MiB", "--parallel", "100", "--max-memory", "32MiB"];
    let mut child = command(&server, &words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let piece = content(8 * MIB);
    for _ in 0..32 {
        std::io::Write::write_all(&mut pipe, &piece).unwrap();
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak_kib: u64 = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().split(' ').next()?.parse().ok()).unwrap();
    drop(pipe);
    assert!(child.wait().unwrap().success());
    assert_eq!(server.stored("large").unwrap().0.len(), 256 * MIB);
    assert!(peak_kib < (32 + 96) << 10, "{peak_kib} KiB");
}
