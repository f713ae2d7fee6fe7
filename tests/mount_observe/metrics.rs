//! Metrics over HTTP: what is in them, that parsers of others read them, where they are served, and what refuses to be.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use libtest_mimic::Trial;
use rustix::process::Signal;
use windlass::metrics::{self, Type};

use super::place::{Place, run};
use super::support::mounts::{Daemon, Mount, trial, trial_unless, wait_until};
use super::support::{Effect, Fault, Kind, S3Server, prometheus, python};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("prometheus_gets_every_name_of_the_table", every_name),
        trial("answers_are_counted_by_what_they_were", answers),
        trial("nothing_but_looking_is_served", only_looking),
        trial("a_socket_serves_the_same_and_goes_with_the_mount", socket),
        trial_unless(|| python::lacks("prometheus_client.openmetrics.parser"), "the_parser_of_the_standard_reads_it", parsed),
        trial("a_place_that_cannot_be_listened_at_is_refused_on_one_line", refused),
    ]
}

/// Where a mount serves them, as it says in its log.
fn port(mount: &Mount) -> u16 {
    mount.wait_for_log(|log| log.contains("metrics are served"));
    let log = mount.log();
    let line = log.lines().find(|line| line.contains("metrics are served")).expect("it was just there");
    let digits = line.rsplit("127.0.0.1:").next().expect("an address").trim();
    digits.parse().unwrap_or_else(|_| panic!("no port in {line}"))
}

pub fn exchange(stream: impl Read + Write, method: &str, path: &str) -> (String, String) {
    exchange_with(stream, method, path, "")
}

/// Status line with headers, and body, of /metrics under this Accept header.
fn ask_for(port: u16, accept: &str) -> (String, String) {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    exchange_with(stream, "GET", "/metrics", &format!("accept: {accept}\r\n"))
}

fn exchange_with(mut stream: impl Read + Write, method: &str, path: &str, header: &str) -> (String, String) {
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: test\r\n{header}connection: close\r\n\r\n").expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_owned())
}

fn ask(port: u16, method: &str, path: &str) -> (String, String) {
    exchange(TcpStream::connect(("127.0.0.1", port)).expect("it listens"), method, path)
}

fn listening(server: &S3Server) -> (Mount, u16) {
    let mount = Daemon::new(server).arg("--metrics-listen", "127.0.0.1:0").start();
    let port = port(&mount);
    (mount, port)
}

#[track_caller]
pub fn sample(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    value.parse().unwrap_or_else(|_| panic!("{value} is no number"))
}

fn every_name() {
    let server = S3Server::start();
    server.put_synthetic("file", 3 << 20);
    let (mount, port) = listening(&server);
    fs::read(mount.join("file")).expect("there");
    let (head, body) = ask(port, "GET", "/metrics");
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(!body.contains("# EOF") && !body.contains("# UNIT"), "{body}");
    prometheus::checks(&body);
    let (head, open) = ask_for(port, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0") && open.ends_with("# EOF\n"), "{head}");
    // What is of the disk is told where there is one.
    let rows: Vec<_> =
        metrics::rows().filter(|row| !metrics::DiskNow::ROWS.contains(row) && !metrics::DiskCounts::ROWS.contains(row)).collect();
    assert!(rows.len() > 30, "{}", rows.len());
    for row in rows {
        let family = format!("windlass_{}", row.name);
        let kind = match row.kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        assert!(open.contains(&format!("# TYPE {family} {kind}\n")), "{family}");
        assert!(open.contains(&format!("# HELP {family} {}", row.help)), "{family}");
        assert!(row.unit().is_none_or(|unit| open.contains(&format!("# UNIT {family} {unit}\n"))), "{family}");
        let family = row.in_prometheus();
        assert!(
            body.contains(&format!("# TYPE {family} {kind}\n# ")) || body.contains(&format!("# TYPE {family} {kind}\n{family}")),
            "{family}"
        );
        assert!(body.contains(&format!("# HELP {family} {}", row.help)), "{family}");
        assert!(body.lines().any(|line| line.starts_with(&row.in_prometheus())), "{family}");
    }
    assert_eq!(sample(&body, "windlass_read_bytes_total"), f64::from(3 << 20));
    assert_eq!(sample(&body, "windlass_read_seconds_bucket{le=\"+Inf\"}"), sample(&body, "windlass_read_seconds_count"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later").as_secs_f64();
    let started = sample(&body, "process_start_time_seconds");
    assert!(started <= now && now - started < 3600.0, "{started} {now}");
    assert!(sample(&body, "process_resident_memory_bytes") > 1e6 && sample(&body, "process_open_fds") > 3.0);
    assert!(sample(&body, "process_cpu_seconds_total") >= 0.0 && sample(&body, "process_max_fds") > 3.0);
    assert!(body.contains(&format!("mountpoint=\"{}\"", mount.path().display())), "{body}");
    let limit = sample(&body, "windlass_budget_limit_bytes");
    assert!(limit > 0.0 && sample(&body, "windlass_budget_peak_bytes") <= limit);
}

fn answers() {
    let server = S3Server::start();
    server.put_synthetic("file", 1 << 20);
    let (mount, port) = listening(&server);
    server.fault(Fault::new(Effect::Status(503)).kind(Kind::Get).nth(1));
    server.fault(Fault::new(Effect::Truncate(1000)).kind(Kind::Get).nth(2));
    assert_eq!(fs::read(mount.join("file")).expect("after two retries").len(), 1 << 20);
    let in_flight = |body: &str| sample(body, "windlass_requests_in_flight");
    // Whoever brings the last bytes answers the reader first, and is done with its request then.
    wait_until("the requests are over", || in_flight(&ask(port, "GET", "/metrics").1) == 0.0);
    let body = ask(port, "GET", "/metrics").1;
    let ended = |status| sample(&body, &format!("windlass_answered_requests_total{{kind=\"get\",status=\"{status}\"}}"));
    assert_eq!(["2xx", "5xx", "none", "4xx"].map(ended), [1.0, 1.0, 1.0, 0.0], "{body}");
    assert_eq!(sample(&body, "windlass_get_requests_total"), server.count(Kind::Get) as f64);
    assert_eq!((sample(&body, "windlass_retries_total"), sample(&body, "windlass_throttled_total")), (2.0, 1.0));
}

fn only_looking() {
    let server = S3Server::start();
    let (_mount, port) = listening(&server);
    let (head, _) = ask(port, "GET", "/other");
    assert!(head.starts_with("http/1.1 404"), "{head}");
    let (head, _) = ask(port, "DELETE", "/metrics");
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head"), "{head}");
    let (head, body) = ask(port, "HEAD", "/metrics");
    assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{head}");
    let mut garbage = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    garbage.write_all(b"\xff\x00nonsense\r\n\r\n").expect("it listens");
    let _ = garbage.read_to_end(&mut Vec::new());
    assert!(ask(port, "GET", "/metrics").0.starts_with("http/1.1 200"));
}

fn socket() {
    let (server, home) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    let path = home.path().join("metrics.sock");
    let mut mount = Daemon::new(&server).arg("--metrics-listen", &format!("unix:{}", path.display())).start();
    let (head, body) = exchange(UnixStream::connect(&path).expect("it listens"), "GET", "/metrics");
    assert!(head.starts_with("http/1.1 200") && sample(&body, "windlass_uptime_seconds") >= 0.0, "{head}");
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(0));
    assert!(!path.exists());
}

fn parsed() {
    let server = S3Server::start();
    server.put_synthetic("file", 3 << 20);
    let (mount, port) = listening(&server);
    fs::read(mount.join("file")).expect("there");
    let _ = fs::metadata(mount.join("absent"));
    let script = r#"
import sys, urllib.request
from prometheus_client.openmetrics.parser import text_string_to_metric_families
request = urllib.request.Request(f'http://127.0.0.1:{sys.argv[1]}/metrics', headers={'Accept': 'application/openmetrics-text'})
with urllib.request.urlopen(request) as answer:
    families = list(text_string_to_metric_families(answer.read().decode()))
samples = {s.name: s.value for f in families for s in f.samples}
assert samples['windlass_read_bytes_total'] == 3 << 20, samples
kinds = {f.type for f in families}
assert {'counter', 'gauge', 'histogram', 'info'} <= kinds, kinds
print(len(families))
"#;
    let families: usize = python::run(script, &[std::path::Path::new(&port.to_string())]).parse().expect("a number");
    assert!(families > 30, "{families}");
}

fn refused() {
    let (server, place) = (S3Server::start(), Place::new());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let file = place.write("file", "mine", 0o600);
    let unix = format!("unix:{}", file.display());
    for (text, words) in [
        ("nonsense", &["metrics-listen=nonsense", "ADDRESS:PORT"][..]),
        ("host.example:9100", &["metrics-listen=host.example:9100", "unix:/absolute/path"]),
        (&address, &["cannot serve metrics at", &address, "in use", "--metrics-listen"]),
        (&unix, &["cannot serve metrics at", "there is a file that is no socket"]),
    ] {
        let mut command = place.mount(&server);
        command.args(["--metrics-listen", text]).arg("--log-file").arg(place.beside("log"));
        let said = run(command);
        assert_eq!((said.code, said.err.lines().count()), (Some(2), 1), "{}", said.err);
        assert!(words.iter().all(|word| said.err.contains(word)), "{text}: {}", said.err);
        assert!(!place.is_mounted() && place.pids().is_empty());
    }
    assert_eq!(fs::read_to_string(&file).expect("ours"), "mine");
    // As ossfs spells it: a port alone is one of this machine only.
    drop(taken);
    let port = address.rsplit(':').next().expect("a port");
    let mut command = place.mount(&server);
    command.args(["-o", &format!("metrics_port={port}")]).arg("--log-file").arg(place.beside("log"));
    run(command).succeeds();
    assert!(ask(port.parse().expect("a port"), "GET", "/metrics").0.starts_with("http/1.1 200"));
    place.umount().succeeds();
}
