//! `bench get`.

use std::collections::BTreeSet;
use std::fs;

use libtest_mimic::Trial;

use crate::program::{Said, at, run};
use crate::support::{BUCKET, Effect, Fault, Kind, Request, S3Server};
use crate::{report, said, trial, windlass};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("get asks for every object below a prefix in turn, and counts connections", asks_below_a_prefix),
        trial("get follows redirects of addresses and keeps the connections", follows_redirects),
        trial("failures are counted and told, and the end when all fail", tells_failures),
        trial("what cannot be asked for is one line", refuses),
    ]
}

fn ports(requests: &[Request]) -> BTreeSet<u16> {
    requests.iter().map(|request| request.remote_port).collect()
}

/// A file of addresses.
fn list(lines: &[String]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("# addresses\n\n{}\n", lines.join("\n"))).unwrap();
    file
}

fn of_urls(lines: &[String], args: &[&str]) -> Said {
    let file = list(lines);
    said(windlass(&[&["bench", "get", "--urls", file.path().to_str().unwrap()], args].concat()))
}

fn asks_below_a_prefix() {
    let server = S3Server::start();
    let objects: Vec<String> = (0..5).map(|n| format!("set/{n}")).collect();
    objects.iter().for_each(|key| drop(server.put(key, vec![7; 100_000])));
    server.put("set/empty", "");
    server.put("other", "x");
    let prefix = at("set/");
    let args = ["bench", "get", "--prefix", &prefix, "--concurrency", "4", "--duration", "1", "--json"];
    let json = report(&run(&server, &args));
    let number = |key: &str| json[key].as_u64().unwrap();
    let gets = server.of_kind(Kind::Get);
    assert_eq!((number("objects"), number("concurrency"), number("failed")), (5, 4, 0));
    // Those that were under way at the end are no GETs, but some of their bytes had come.
    assert!(number("gets") > 0 && (number("gets")..=number("gets") + 4).contains(&(gets.len() as u64)), "{json}, {}", gets.len());
    assert!(number("bytes") >= number("gets") * 100_000 && number("bytes") <= gets.len() as u64 * 100_000, "{json}");
    assert_eq!(number("new_connections"), ports(&gets).len() as u64);
    let keys: BTreeSet<String> = gets.iter().map(|get| get.key.clone()).collect();
    assert_eq!(keys, objects.into_iter().collect());
    let seconds = json["end_to_end_seconds"].as_f64().unwrap();
    let rate = json["operations_per_second"].as_f64().unwrap() * seconds / number("gets") as f64;
    assert!((rate - 1.0).abs() < 0.02, "{json}");
    let times = ["p50_milliseconds", "p90_milliseconds", "p99_milliseconds", "p99_9_milliseconds", "max_milliseconds"];
    assert!(times.map(|part| json[part].as_f64().unwrap()).is_sorted() && json["average_milliseconds"].as_f64().unwrap() > 0.0, "{json}");
}

fn follows_redirects() {
    let (near, far) = (S3Server::start_anonymous(), S3Server::start_anonymous());
    let keys: Vec<String> = (0..3).map(|n| format!("img/{n}.jpg")).collect();
    keys.iter().for_each(|key| drop(far.put(key, vec![1; 50_000])));
    near.fault(Fault::new(Effect::Redirect(far.endpoint())));
    let urls: Vec<String> = keys.iter().map(|key| format!("{}/{BUCKET}/{key}", near.endpoint())).collect();
    let json = report(&of_urls(&urls, &["--concurrency", "4", "--duration", "1", "--json"]));
    let (asked, answered) = (near.of_kind(Kind::Get), far.of_kind(Kind::Get));
    let number = |key: &str| json[key].as_u64().unwrap();
    assert!(number("gets") > 0 && number("failed") == 0 && answered.len() as u64 >= number("gets"), "{json}");
    assert!(asked.len() >= answered.len() && answered.iter().all(|get| get.range.is_none() && get.authorization.is_none()));
    // As many connections as GETs at a time, at each side.
    assert_eq!(number("new_connections"), (ports(&asked).len() + ports(&answered).len()) as u64);
    assert!(number("new_connections") <= 8, "{json}");
}

fn tells_failures() {
    let server = S3Server::start_anonymous();
    server.put("there", "content");
    let url = |key: &str| format!("{}/{BUCKET}/{key}?token=secret", server.endpoint());
    let told = of_urls(&[url("there"), url("gone")], &["--concurrency", "2", "--duration", "1"]).succeeds();
    let failed = told.text().lines().find_map(|line| line.strip_prefix("failed ")).unwrap().trim().parse::<u64>().unwrap();
    assert!(failed > 0 && told.err.contains(&format!("{failed} of")) && told.err.contains("gone"), "{}{}", told.text(), told.err);
    assert!(!told.err.contains("secret"));
    of_urls(&[url("gone")], &["--duration", "86400"]).fails(4, &["gone"]);
}

fn refuses() {
    let server = S3Server::start();
    server.put("set/empty", "");
    let urls = ["http://host/k".to_owned(), "s3://bucket/k?sig=secret".to_owned()];
    let told = of_urls(&urls, &[]).fails(2, &["2. address", "http://"]);
    assert!(!told.err.contains("secret"));
    of_urls(&urls[..1], &["--region", "x"]).fails(2, &["as they stand"]);
    of_urls(&[], &[]).fails(2, &["no address"]);
    said(windlass(&["bench", "get", "--urls", "/nowhere"])).fails(2, &["cannot read /nowhere"]);
    assert_eq!(said(windlass(&["bench", "get"])).code, 2);
    for prefix in ["set/", "nothing/"] {
        let prefix = at(prefix);
        run(&server, &["bench", "get", "--prefix", &prefix]).fails(4, &[&prefix, "no object"]);
    }
}
