//! Looking, reading and deleting: ls, stat, cat, rm.

use std::io::Read;
use std::process::Stdio;

use super::program::{MIB, at, command, content, json, run, said};
use super::support::{Effect, Fault, Habits, Kind, S3Server};

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
    let cat = |args: &[&str]| run(&server, &[&["cat"], args].concat()).succeeds().out;
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

#[test]
fn rm_deletes_a_thousand_objects_with_a_request() {
    for no_deletes_of_many in [false, true] {
        let server = S3Server::start();
        server.behave(Habits { no_deletes_of_many, ..Habits::default() });
        for n in 0..2_500 {
            server.put(&format!("tree/{}/{n}", n % 7), "x");
        }
        server.put("tree/ü & <x>", "x");
        server.put("other", "x");
        let said = run(&server, &["rm", "-r", &at("tree")]).succeeds();
        assert_eq!((said.text().lines().count(), server.stored("other").is_some()), (2_501, true));
        assert!(server.stored("tree/0/0").is_none() && server.stored("tree/ü & <x>").is_none());
        let expected = if no_deletes_of_many { (1, 2_501) } else { (3, 0) };
        assert_eq!((server.count(Kind::DeleteMany), server.count(Kind::Delete)), expected);
    }
}

#[test]
fn rm_names_what_it_could_not_delete() {
    let server = S3Server::start();
    server.behave(Habits { kept: Some("tree/2"), ..Habits::default() });
    for n in 0..4 {
        server.put(&format!("tree/{n}"), "x");
    }
    let said = run(&server, &["rm", "-r", &at("tree")]);
    assert_eq!(said.text().lines().count(), 3);
    said.fails(3, &["tree/2", "AccessDenied"]);
    assert!(server.stored("tree/2").is_some() && server.stored("tree/3").is_none());
    // Refused for the moment: each is asked for again.
    server.behave(Habits { busy: Some("tree/2"), ..Habits::default() });
    run(&server, &["rm", "-r", &at("tree")]).succeeds();
    assert_eq!((server.count(Kind::DeleteMany), server.count(Kind::Delete)), (1, 1));
}
