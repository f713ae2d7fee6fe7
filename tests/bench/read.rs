//! `bench read` and `bench latency`.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::program::{Said, at, run};
use crate::support::{Effect, Fault, Kind, Request, S3Server};
use crate::{keys, report, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("read asks for every byte once, in chunks of its size", reads_every_byte_once),
        trial("a sweep shows the vendor's table and draws it", sweeps),
        trial("text, JSON and CSV of a bench have the same fields", has_three_forms),
        trial("latency asks one after the other, and shows who was late", times_gets),
        trial("what cannot be read or is not understood is one line", refuses),
    ]
}

const MIB: u64 = 1 << 20;

fn bench(server: &S3Server, args: &[&str]) -> Said {
    run(server, &[&["bench"], args].concat())
}

fn ports(requests: &[Request]) -> BTreeSet<u16> {
    requests.iter().map(|request| request.remote_port).collect()
}

fn reads_every_byte_once() {
    let server = S3Server::start();
    server.put_synthetic("big", 33 * MIB);
    let json = report(&bench(&server, &["read", &at("big"), "--parallel", "8", "--chunk-size", "4MiB", "--discard", "--json"]));
    assert_eq!(
        (json["bench"].as_str(), json["source"].as_str(), json["bytes"].as_u64()),
        (Some("read"), Some(&*at("big")), Some(33 * MIB))
    );
    assert_eq!(
        (json["concurrency"].as_u64(), json["requests_in_flight"].as_u64(), json["chunk_bytes"].as_u64()),
        (Some(8), Some(8), Some(4 * MIB))
    );
    let number = |key: &str| json[key].as_f64().unwrap();
    let mean = 33.0 * MIB as f64 * 8.0 / 1e9 / number("end_to_end_seconds");
    // Both were rounded to three decimals.
    assert!((number("end_to_end_gbit_per_second") / mean - 1.0).abs() < 0.05, "{json}");
    assert!(number("peak_gbit_per_second") >= number("end_to_end_gbit_per_second"), "{json}");
    assert!(json["ceiling_gbit_per_second"].is_null() && json["ceiling_share_percent"].is_null());
    let gets = server.of_kind(Kind::Get);
    let mut ranges: Vec<_> = gets.iter().map(|get| get.range.clone().unwrap()).collect();
    ranges.sort_by_key(|range| range.start);
    let expected: Vec<_> = (0..9).map(|n| 4 * n * MIB..(4 * (n + 1)).min(33) * MIB).collect();
    assert_eq!(ranges, expected);
    assert!(gets.iter().all(|get| get.if_match.is_some()) && ports(&gets).len() <= 8);
    assert!(json["compared_with"].is_null(), "{json}");
    // What the store has a sum of is compared with it.
    let content: Vec<u8> = (0..3 * MIB).map(|at| (at % 251) as u8).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), content).unwrap();
    run(&server, &["put", file.path().to_str().unwrap(), &at("small")]).succeeds();
    for (how, compared) in [(&[][..], Some("CRC-64/NVME")), (&["--discard"], None)] {
        let small = at("small");
        let args = [&["read", &small, "--chunk-size", "1MiB", "--json"][..], how].concat();
        assert_eq!(report(&bench(&server, &args))["compared_with"].as_str(), compared);
    }
    // An object that has fewer chunks than there may be requests.
    let json = report(&bench(&server, &["read", &at("big"), "--json"]));
    assert_eq!((json["concurrency"].as_u64(), json["requests_in_flight"].as_u64()), (Some(32), Some(3)));
}

fn sweeps() {
    let server = S3Server::start();
    server.put_synthetic("big", 32 * MIB);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sweep.svg");
    let file = file.to_str().unwrap();
    let told = bench(&server, &["read", &at("big"), "--sweep", "2x16,4x8,8x256KiB", "--plot", file]).succeeds();
    let table: Vec<Vec<&str>> =
        told.text().lines().filter(|line| line.contains('|')).map(|line| line.split('|').map(str::trim).collect()).collect();
    assert_eq!(table[0], ["concurrency", "chunk MB", "peak Gbit/s", "end to end s"]);
    let loads: Vec<&[&str]> = table[1..].iter().map(|row| &row[..2]).collect();
    assert_eq!(loads, [["2", "16"], ["4", "8"], ["8", "0.2500"]]);
    assert!(table[1..].iter().flat_map(|row| &row[2..]).all(|number| number.parse::<f64>().is_ok_and(|number| number > 0.0)), "{table:?}");
    let gets = server.of_kind(Kind::Get);
    assert_eq!(gets.len(), 2 + 4 + 128);
    let (first, second, third) = (ports(&gets[..2]), ports(&gets[2..6]), ports(&gets[6..]));
    assert!(
        first.is_disjoint(&second) && second.is_disjoint(&third) && first.is_disjoint(&third),
        "a load used the connections of another"
    );
    let svg = fs::read_to_string(file).unwrap();
    for text in ["2x16MiB", "4x8MiB", "8x256KiB", "peak", "end to end", "Gbit/s"] {
        assert!(svg.contains(text), "{text} is missing in the drawing");
    }
}

fn has_three_forms() {
    let server = S3Server::start();
    server.put_synthetic("big", 8 * MIB);
    for args in [
        &["read", &at("big")][..],
        &["read", &at("big"), "--sweep", "2x1,4x1"],
        &["latency", &at("big"), "--size", "64KiB", "--count", "5"],
    ] {
        let json = report(&bench(&server, &[args, &["--json"]].concat()));
        let csv = bench(&server, &[args, &["--csv"]].concat()).succeeds();
        let mut reader = csv::Reader::from_reader(&csv.out[..]);
        let heading: BTreeSet<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(heading, keys(&json));
        assert_eq!(reader.records().count(), json["rows"].as_array().map_or(1, Vec::len));
        let text = bench(&server, args).succeeds();
        let known = json.as_object().unwrap().iter().filter(|(key, value)| *key != "bench" && *key != "rows" && !value.is_null()).count();
        let rows = json["rows"].as_array().map_or(0, |rows| rows.len() + 2);
        assert_eq!(text.text().lines().count(), known + rows, "{}", text.text());
    }
}

fn times_gets() {
    let server = S3Server::start();
    server.put_synthetic("big", 5 * MIB);
    server.fault(Fault::new(Effect::Delay(Duration::from_millis(300))).kind(Kind::Get).nth(3));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("latency.svg");
    let args = ["latency", &at("big"), "--size", "2MiB", "--count", "6", "--json", "--plot", file.to_str().unwrap()];
    let json = report(&bench(&server, &args));
    assert_eq!((json["gets"].as_u64(), json["get_bytes"].as_u64(), json["bytes"].as_u64()), (Some(6), Some(2 * MIB), Some(12 * MIB)));
    let gets: Vec<_> = server.of_kind(Kind::Get).into_iter().map(|get| get.range.unwrap().start / MIB).collect();
    assert_eq!(gets, [0, 2, 0, 2, 0, 2]);
    assert_eq!(ports(&server.of_kind(Kind::Get)).len(), 1);
    let rows = json["rows"].as_array().unwrap();
    let parts = ["p50_milliseconds", "p90_milliseconds", "p99_milliseconds", "p99_9_milliseconds", "max_milliseconds"];
    for (row, name) in rows.iter().zip(["first byte", "last byte"]) {
        let times: Vec<f64> = parts.iter().map(|part| row[part].as_f64().unwrap()).collect();
        assert!(row["until"] == name && times.is_sorted() && times[4] >= 300.0, "{row}");
    }
    assert!(parts.iter().all(|part| rows[0][part].as_f64() <= rows[1][part].as_f64()), "{json}");
    assert!(fs::read_to_string(file).unwrap().contains("p99.9"));
}

fn refuses() {
    let server = S3Server::start();
    server.put("empty", "");
    server.put("dir/file", "x");
    bench(&server, &["read", &at("none")]).fails(4, &["none", "no such object"]);
    bench(&server, &["latency", &at("none")]).fails(4, &["none", "no such object"]);
    bench(&server, &["read", &at("dir/")]).fails(2, &["name an object"]);
    bench(&server, &["read", &at("empty")]).fails(2, &["is empty"]);
    bench(&server, &["read", &at("dir/file"), "--parallel", "0"]).fails(2, &["1 to 10000", "not 0"]);
    bench(&server, &["read", &at("dir/file"), "--chunk-size", "1K"]).fails(2, &["at least 64KiB"]);
    bench(&server, &["latency", &at("dir/file"), "--size", "0"]).fails(2, &["at least 1"]);
    let plot = bench(&server, &["latency", &at("dir/file"), "--count", "1", "--plot", "/nowhere/x.svg"]);
    plot.fails(2, &["cannot write /nowhere/x.svg"]);
    // In the form of clap.
    for args in [&["--sweep", "4y8"][..], &["--sweep", "4x8", "--parallel", "3"], &["--json", "--csv"], &["--plot", "x.svg"]] {
        assert_eq!(bench(&server, &[&["read", &at("dir/file")], args].concat()).code, 2, "{args:?}");
    }
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::Get));
    bench(&server, &["read", &at("dir/file")]).fails(3, &["permission"]);
}
