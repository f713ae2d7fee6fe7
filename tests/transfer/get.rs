//! `windlass get` of one object.

use std::fs;
use std::process::Stdio;

use super::program::{MIB, at, command, content, get, json, names_in, put, run, said};
use super::support::{Effect, Fault, Habits, Kind, Request, S3Server};

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
fn get_from_a_server_with_weak_tags_brings_one_version() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    server.behave(Habits { weak_tags: true, ..Habits::default() });
    let content = content(5 * MIB);
    server.put("dir/big", content.clone());
    server.put("dir/small", content[..100].to_vec());
    get(&server, "dir/big", dir.path(), &[]).succeeds();
    get(&server, "dir/", &dir.path().join("tree"), &["--recursive"]).succeeds();
    for name in ["big", "tree/big"] {
        assert!(fs::read(dir.path().join(name)).unwrap() == content, "{name}");
    }
    assert!(fs::read(dir.path().join("tree/small")).unwrap() == content[..100]);
}

#[test]
fn get_of_a_damaged_object_fails_after_a_second_try() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    for (name, len) in [("small", MIB / 2), ("big", 6 * MIB)] {
        put(&server, &content(len), name, &[]).succeeds();
        server.spoil(name, len / 2);
        let target = dir.path().join(name);
        for args in [&[][..], &["--parallel", "1"]] {
            server.reset_log();
            get(&server, name, &target, args)
                .fails(1, &[&format!("\"{name}\": the checksum of what arrived is CRC-64/NVME"), "the store's is CRC-64/NVME"]);
            assert!(!target.exists());
            let parts = if name == "small" { 1 } else { 6 };
            assert_eq!(server.count(Kind::Get), 2 * parts, "once more and then no more");
        }
        get(&server, name, std::path::Path::new("-"), &[]).fails(1, &["the checksum of what arrived is CRC-64/NVME"]);
        get(&server, name, &target, &["--verify-reads", "off"]).succeeds();
    }
}

#[test]
fn get_checks_md5_tags_where_there_is_no_checksum() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    server.behave(Habits { silent_checksums: true, ..Habits::default() });
    for (name, len) in [("d/1", MIB), ("d/2", 3 * MIB), ("d/3", 4 * MIB)] {
        put(&server, &content(len), name, &[]).succeeds();
    }
    let whole = json(&get(&server, "d/3", &dir.path().join("one"), &["--json"]).succeeds());
    assert_eq!(whole[0]["is_checked"].as_bool(), Some(true), "its tag is an MD5");
    server.spoil("d/3", 2_000_000);
    // The tags of others, which are fetched before, show what this one is.
    get(&server, "d/", &dir.path().join("tree"), &["--recursive", "--transfers", "1"])
        .fails(1, &["the checksum of what arrived is MD5", "d/3"]);
    // Tags that only look like MD5s: two reads that agree are right.
    server.behave(Habits { silent_checksums: true, odd_tags: true, ..Habits::default() });
    put(&server, &content(3 * MIB), "odd", &[]).succeeds();
    let odd = json(&get(&server, "odd", &dir.path().join("odd"), &["--json"]).succeeds());
    assert_eq!(odd[0]["is_checked"].as_bool(), Some(false));
    assert!(fs::read(dir.path().join("odd")).unwrap() == content(3 * MIB));
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
    let words = ["get", &at("big"), target.to_str().unwrap(), "--part-size", "1MiB", "--bigfile-threshold", "4MiB"];
    let mut child = command(&server, &[&words[..], &more].concat()).stderr(Stdio::null()).spawn().unwrap();
    let parts = || {
        fs::read_dir(&checkpoints)
            .ok()
            .and_then(|mut dir| dir.next())
            .map_or(0, |file| fs::read_to_string(file.unwrap().path()).unwrap_or_default().lines().count().saturating_sub(1))
    };
    // The two that end no more have come too: none of them is seen later.
    let have_come = |requests: &[Request]| requests.iter().filter(|request| request.kind == Kind::Get).count() == 10;
    assert!(server.wait_for(|requests| have_come(requests) && parts() == 8), "{}", parts());
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
