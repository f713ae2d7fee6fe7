//! `bench net`, and what the other benches make of its result.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use libtest_mimic::Trial;

use crate::program::{at, command};
use crate::support::mounts::{self, Daemon};
use crate::support::{KilledAtEnd, S3Server};
use crate::{report, said, trial, windlass};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("net measures what another one sends, and the other benches show their share of it", is_remembered),
        mounts::trial("the ceiling of the host behind a mount is known to the benches of directories", is_known_behind_a_mount),
        trial("net without a home remembers nothing and works", needs_no_home),
        trial("net says in one line what is wrong with an address", refuses),
    ]
}

/// The other side, until it is dropped.
struct Listener {
    _running: KilledAtEnd,
    address: String,
}

impl Listener {
    fn start() -> Self {
        let mut child = windlass(&["bench", "net", "--listen", "127.0.0.1:0", "--duration", "60"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening at ").and_then(|rest| rest.strip_suffix(" for 60 s\n"));
        Self { _running: KilledAtEnd(child), address: address.unwrap_or_else(|| panic!("{line}")).to_owned() }
    }
}

fn is_remembered() {
    let (listener, state, server) = (Listener::start(), tempfile::tempdir().unwrap(), S3Server::start());
    let mut asking = windlass(&["bench", "net", &listener.address, "--streams", "3", "--duration", "1", "--json"]);
    asking.env("XDG_STATE_HOME", state.path());
    let json = report(&said(asking));
    assert_eq!((json["address"].as_str(), json["streams"].as_u64()), (Some(&*listener.address), Some(3)));
    let (bytes, seconds) = (json["bytes"].as_f64().unwrap(), json["end_to_end_seconds"].as_f64().unwrap());
    let mean = json["end_to_end_gbit_per_second"].as_f64().unwrap();
    assert!(bytes > 0.0 && seconds >= 1.0 && (mean / (bytes * 8.0 / 1e9 / seconds) - 1.0).abs() < 0.05, "{json}");
    let kept: serde_json::Value = serde_json::from_slice(&fs::read(state.path().join("windlass/net.json")).unwrap()).unwrap();
    assert_eq!(kept["127.0.0.1"]["streams"].as_u64(), Some(3));

    server.put_synthetic("big", 8 << 20);
    let source = at("big");
    for bench in ["read", "latency"] {
        let mut asking = command(&server, &["bench", bench, &source, "--json"]);
        asking.env("XDG_STATE_HOME", state.path());
        let json = report(&said(asking));
        assert_eq!(json["ceiling_gbit_per_second"].as_f64(), Some(mean), "{bench}");
        let share = 100.0 * json["end_to_end_gbit_per_second"].as_f64().unwrap() / mean;
        assert!((json["ceiling_share_percent"].as_f64().unwrap() - share).abs() <= 0.06 + share / 10.0, "{json}");
    }
}

fn is_known_behind_a_mount() {
    let (listener, state, server) = (Listener::start(), tempfile::tempdir().unwrap(), S3Server::start());
    server.put("file", vec![7; 100_000]);
    let mount = Daemon::new(&server).start();
    let read = |path: &Path| {
        let mut command = windlass(&["bench", "files", "--dir", path.to_str().unwrap(), "--json"]);
        command.env("XDG_STATE_HOME", state.path());
        report(&said(command))
    };
    assert!(read(mount.path())["ceiling_gbit_per_second"].is_null());
    let mut measuring = windlass(&["bench", "net", &listener.address, "--streams", "2", "--duration", "1", "--json"]);
    measuring.env("XDG_STATE_HOME", state.path());
    let ceiling = report(&said(measuring))["end_to_end_gbit_per_second"].clone();
    let json = read(mount.path());
    assert!(json["ceiling_gbit_per_second"] == ceiling && json["ceiling_share_percent"].is_number(), "{json}");
    // No host is behind a directory of this machine.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "content").unwrap();
    assert!(read(dir.path())["ceiling_gbit_per_second"].is_null());
}

fn needs_no_home() {
    let listener = Listener::start();
    let told = said(windlass(&["bench", "net", &listener.address, "--streams", "1", "--duration", "1"])).succeeds();
    assert_eq!(told.err, "");
    for name in ["address", "streams", "bytes", "end to end s", "peak Gbit/s", "end to end Gbit/s"] {
        assert!(told.text().lines().any(|line| line.starts_with(name)), "{name} is missing in\n{}", told.text());
    }
}

fn refuses() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    said(windlass(&["bench", "net", &closed])).fails(4, &["cannot reach", &closed]);
    said(windlass(&["bench", "net", "host"])).fails(2, &["HOST:PORT"]);
    said(windlass(&["bench", "net", "--listen", "nowhere"])).fails(2, &["cannot listen at nowhere"]);
    assert_eq!(said(windlass(&["bench", "net"])).code, 2);
    assert_eq!(said(windlass(&["bench", "net", "--listen", "127.0.0.1:0", "--streams", "3"])).code, 2);
    // A store is no other side.
    let server = S3Server::start();
    let address = format!("127.0.0.1:{}", server.port());
    said(windlass(&["bench", "net", &address])).fails(4, &[&address, "bench net --listen"]);
}
