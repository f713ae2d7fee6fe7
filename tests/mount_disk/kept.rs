//! What the modes keep, and what is not asked of the store again.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::Trial;
use rand::SeedableRng;
use rand::seq::SliceRandom;

use crate::bytes::{BOTH, KIB, MIB, Through, asked_bytes, gets, open, read_and_compare};
use crate::disk::{data_files, end, used_bytes, wait_for_bytes};
use crate::support::mounts::{Daemon, Mount, trial, wait_until};
use crate::support::{Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_second_read_asks_the_store_for_nothing_even_after_a_restart", a_second_read),
        trial("hybrid_holds_its_threshold_and_what_is_kept_is_not_fetched_again", hybrid),
        trial("direct_mode_keeps_nothing", direct),
        trial("a_replaced_object_is_read_anew_and_the_old_one_goes", replaced),
        trial("fifty_processes_that_read_one_cold_file_fetch_it_once", fifty_processes),
        trial("workers_in_random_order_ask_once_a_file_and_never_in_the_second_epoch", epochs),
        trial("two_mounts_share_one_directory", two_mounts),
    ]
}

/// Without hedging, which sends a second GET on a busy machine: these tests count them.
pub fn cached(server: &S3Server, disk: &Path) -> Mount {
    let daemon = Daemon::new(server).flag("--hedge=false").arg("--read-mode", "cached");
    daemon.arg("--spill-dir", disk.to_str().expect("it is text")).start()
}

fn a_second_read() {
    const SIZE: u64 = 96 * MIB + 4321;
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("large", SIZE);
    let mount = cached(&server, disk.path());
    read_and_compare(&open(&mount.join("large"), Through::Pages), content, 0..SIZE, MIB);
    assert_eq!(asked_bytes(&gets(&server, "large")), SIZE);
    wait_for_bytes(disk.path(), SIZE);
    end(mount);
    server.reset_log();
    for through in BOTH {
        let mount = cached(&server, disk.path());
        read_and_compare(&open(&mount.join("large"), through), content, 0..SIZE / MIB * MIB, MIB);
        drop(mount);
    }
    assert_eq!(server.count(Kind::Get), 0);
}

fn hybrid() {
    const THRESHOLD: u64 = 20 * MIB;
    const SIZE: u64 = 80 * MIB;
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("model", SIZE);
    let start = || {
        let daemon = Daemon::new(&server).arg("--read-mode", "hybrid").arg("--hybrid-threshold", "20MiB");
        daemon.arg("--spill-dir", disk.path().to_str().expect("it is text")).start()
    };
    let mount = start();
    read_and_compare(&open(&mount.join("model"), Through::Direct), content, 0..SIZE, MIB);
    wait_for_bytes(disk.path(), THRESHOLD);
    end(mount);
    let held: u64 = data_files(disk.path()).iter().map(|path| used_bytes(path)).sum();
    assert!(held <= THRESHOLD + 4 * MIB + 64 * KIB, "{held} bytes are on the disk");
    server.reset_log();
    let mount = start();
    read_and_compare(&open(&mount.join("model"), Through::Direct), content, 0..SIZE, MIB);
    let asked = asked_bytes(&gets(&server, "model"));
    assert!((SIZE - THRESHOLD - 4 * MIB..=SIZE - THRESHOLD).contains(&asked), "{asked} bytes were fetched");
}

fn direct() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("k", 16 * MIB);
    let mount = Daemon::new(&server).arg("--spill-dir", disk.path().to_str().expect("it is text")).start();
    read_and_compare(&open(&mount.join("k"), Through::Direct), content, 0..16 * MIB, MIB);
    drop(mount);
    assert_eq!(data_files(disk.path()), Vec::<std::path::PathBuf>::new());
}

fn replaced() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    server.put("k", vec![1; 8 << 20]);
    let mount = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", disk.path().to_str().expect("it is text"));
    let mount = mount.arg("--stat-cache-ttl", "0").start();
    assert!(fs::read(mount.join("k")).expect("it is there").iter().all(|&byte| byte == 1));
    wait_for_bytes(disk.path(), 8 << 20);
    server.put("k", vec![2; 9 << 20]);
    let now = fs::read(mount.join("k")).expect("it is there");
    assert!(now.len() == 9 << 20 && now.iter().all(|&byte| byte == 2));
    let is_all_there_is = || matches!(&data_files(disk.path())[..], [one] if used_bytes(one) >= 9 << 20);
    wait_until("the new version is kept and the old one is gone", is_all_there_is);
    server.reset_log();
    assert_eq!(fs::read(mount.join("k")).expect("it is there"), now);
    assert_eq!(server.count(Kind::Get), 0);
}

fn fifty_processes() {
    const SIZE: u64 = 128 * MIB;
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    server.put_synthetic("cold", SIZE);
    let mount = cached(&server, disk.path());
    let path = mount.join("cold");
    // Past the kernel's pages: each process asks for every byte.
    let sum =
        || Command::new("sh").args(["-c", "dd if=\"$0\" bs=1M iflag=direct 2>/dev/null | cksum"]).arg(&path).stdout(Stdio::piped()).spawn();
    let all: Vec<_> = (0..50).map(|_| sum().expect("sh is there")).collect();
    let said: Vec<_> = all.into_iter().map(|child| child.wait_with_output().expect("it ends").stdout).collect();
    assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "they read different bytes");
    let asked = asked_bytes(&gets(&server, "cold"));
    assert!(asked <= SIZE * 105 / 100, "{asked} bytes were fetched");
}

fn epochs() {
    const FILES: usize = 2_000;
    const SIZE: usize = 100 << 10;
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    for n in 0..FILES {
        server.put(&format!("set/{n:05}"), vec![n as u8; SIZE]);
    }
    let mount = cached(&server, disk.path());
    let listed = fs::read_dir(mount.join("set")).expect("it is there").count();
    assert_eq!(listed, FILES);
    let epoch = |seed| {
        let mut order: Vec<usize> = (0..FILES).collect();
        order.shuffle(&mut rand::rngs::StdRng::seed_from_u64(seed));
        let (order, next) = (Arc::new(order), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    while let Some(&n) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let content = fs::read(mount.join(format!("set/{n:05}"))).expect("it is there");
                        assert!(content.len() == SIZE && content.iter().all(|&byte| byte == n as u8), "file {n}");
                    }
                });
            }
        });
    };
    server.reset_log();
    epoch(1);
    assert_eq!((server.count(Kind::Get), server.count(Kind::Head)), (FILES, 0));
    wait_for_bytes(disk.path(), (FILES * SIZE) as u64);
    server.reset_log();
    // Past what the kernel has kept.
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap_or_else(|error| eprintln!("the kernel keeps its pages: {error}"));
    epoch(2);
    assert_eq!((server.count(Kind::Get), server.count(Kind::Head)), (0, 0));
}

fn two_mounts() {
    const SIZE: u64 = 24 * MIB;
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let contents: Vec<_> = (0..6).map(|n| server.put_synthetic(&n.to_string(), SIZE)).collect();
    let mounts = [cached(&server, disk.path()), cached(&server, disk.path())];
    std::thread::scope(|scope| {
        for mount in &mounts {
            for (n, &content) in contents.iter().enumerate() {
                let path = mount.join(n.to_string());
                scope.spawn(move || read_and_compare(&open(&path, Through::Direct), content, 0..SIZE, MIB));
            }
        }
    });
    wait_for_bytes(disk.path(), 6 * SIZE);
    server.reset_log();
    // What one fetched the other reads.
    for mount in &mounts {
        for (n, &content) in contents.iter().enumerate() {
            read_and_compare(&open(&mount.join(n.to_string()), Through::Direct), content, 0..SIZE, MIB);
        }
    }
    assert_eq!(server.count(Kind::Get), 0);
}
