//! One object read front to back: how many requests that costs.

use std::io::Read;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;

use crate::bytes::{BOTH, MIB, assert_each_byte_once, gets, open, read_and_compare};
use crate::support::S3Server;
use crate::support::mounts::{Daemon, Mount, trial, trial_with};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_with(&["dd"], "dd_of_1_gib_is_256_gets", dd_of_1_gib_is_256_gets),
        trial_with(&["fio"], "direct_fio_of_1_gib_is_256_gets", direct_fio_of_1_gib_is_256_gets),
        trial("odd_sizes_are_read_to_their_last_byte", odd_sizes_are_read_to_their_last_byte),
    ]
}

const GIB: u64 = 1 << 30;

fn mount(server: &S3Server) -> Mount {
    // Each request counts: on a machine that is busy enough some would be late.
    let mount = Daemon::new(server).arg("--chunk-size", "4MiB").arg("--prefetch-chunks", "32").flag("--hedge=false").start();
    server.reset_log();
    mount
}

fn dd_of_1_gib_is_256_gets() {
    let server = S3Server::start();
    let content = server.put_synthetic("big", GIB);
    let mount = mount(&server);
    let input = format!("if={}", mount.join("big").display());
    let mut dd = Command::new("dd").args([&input, "bs=1M", "status=none"]).stdout(Stdio::piped()).spawn().expect("dd starts");
    let mut output = dd.stdout.take().expect("it is piped");
    let (mut at, mut buffer) = (0, vec![0; MIB as usize]);
    loop {
        let n = output.read(&mut buffer).expect("a pipe can be read");
        assert!(content.matches(at, &buffer[..n]), "wrong bytes at {at}");
        at += n as u64;
        if n == 0 {
            break;
        }
    }
    assert!(dd.wait().expect("it is our child").success());
    assert_eq!(at, GIB);
    assert_costs_256_gets(&server);
}

fn direct_fio_of_1_gib_is_256_gets() {
    let server = S3Server::start();
    server.put_synthetic("big", GIB);
    let mount = mount(&server);
    let mut fio = Command::new("fio");
    fio.args(["--name=read", "--readonly", "--ioengine=libaio", "--direct=1", "--rw=read", "--bs=1M", "--size=1G"]);
    fio.arg("--filename").arg(mount.join("big"));
    let output = fio.output().expect("fio starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_costs_256_gets(&server);
}

#[track_caller]
fn assert_costs_256_gets(server: &S3Server) {
    assert!(server.wait_for(|requests| requests.iter().all(|request| request.finished)));
    let gets = gets(server, "big");
    assert_each_byte_once(&gets, 0..GIB);
    assert_eq!(gets.len(), 256);
}

fn odd_sizes_are_read_to_their_last_byte() {
    let server = S3Server::start();
    let sizes = [0, 1, 4095, 4 * MIB - 1, 4 * MIB + 1, 33 * MIB + 12_345];
    let contents = sizes.map(|size| server.put_synthetic(&size.to_string(), size));
    for through in BOTH {
        let mount = mount(&server);
        for (size, content) in sizes.into_iter().zip(contents) {
            let file = open(&mount.join(size.to_string()), through);
            read_and_compare(&file, content, 0..size, 300_000);
            let past = std::os::unix::fs::FileExt::read_at(&file, &mut [0; 10], size).expect("past the end is no error");
            assert_eq!(past, 0, "{size} {through:?}");
        }
    }
}
