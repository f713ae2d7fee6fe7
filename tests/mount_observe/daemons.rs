//! The two daemons of Kubernetes by themselves: their pages of metrics and the shape of their lines.

use std::io::Read;
use std::net::TcpListener;
use std::process::Stdio;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use super::metrics::{exchange, sample};
use super::place::program;
use super::support::mounts::{trial_unless, wait_until};
use super::support::{KilledAtEnd, prometheus};

pub fn trials() -> Vec<Trial> {
    vec![trial_unless(not_root, "the_driver_and_a_sidecar_serve_their_metrics_and_log_json", pages_and_lines)]
}

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "the driver mounts, as root".into())
}

fn pages_and_lines() {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let at = |name: &str| home.path().join(name).display().to_string();
    let driver = ["csi", "--node-id", "n", "--endpoint", &at("csi.sock"), "--kubelet-dir", &at("kubelet"), "--health-listen"];
    let endpoint = format!("unix://{}", at("csi.sock"));
    let driver = driver.map(|word| if word == at("csi.sock") { endpoint.clone() } else { word.to_owned() });
    let sidecar = ["sidecar", "--dir", &at(""), "--listen"].map(str::to_owned);
    for words in [&driver[..], &sidecar[..]] {
        // Free a moment ago, as neither says which one it has taken.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("loopback has a free port");
        let mut command = program();
        command.args(words).arg(address.to_string()).args(["--log-format", "json", "--log-level", "info"]);
        let mut running =
            KilledAtEnd(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts"));
        wait_until("its pages are there", || std::net::TcpStream::connect(address).is_ok());
        let (head, body) = exchange(std::net::TcpStream::connect(address).expect("it listens"), "GET", "/metrics");
        assert!(head.starts_with("http/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}{body}");
        assert!(sample(&body, "process_open_fds") > 3.0 && sample(&body, "process_start_time_seconds") > 1e9, "{body}");
        prometheus::checks(&body);
        kill_process(Pid::from_child(&running.0), Signal::TERM).expect("it runs");
        let mut lines = String::new();
        running.0.stderr.take().expect("it was piped").read_to_string(&mut lines).expect("it is text");
        for line in lines.lines() {
            let read: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line} is not JSON"));
            assert!(read["level"].is_string() && read["message"].is_string(), "{line}");
        }
        assert!(words[0] == "sidecar" || lines.contains("the driver answers"), "{lines}");
    }
}
