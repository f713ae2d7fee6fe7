//! A mount in a cgroup of 256 MiB, as a small container has it: 64 streams and 16 writers at once, and nobody is killed. The cgroup is a
//! real one, made below the one that the test runs in and removed again. Invariant: the daemon chooses its memory limit by itself.

#[path = "support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::thread;

use support::S3Server;
use support::cgroup::Cgroup;
use support::mounts::{Daemon, Mount, trial_unless};
use windlass::store::memory::Synthetic;

const LIMIT: u64 = 256 << 20;
const STREAMS: usize = 64;
const WRITERS: usize = 16;
const SIZE: u64 = 12 << 20;

/// What a container must have left of its memory at the worst moment: page cache is given back, this is not.
const SPARE: u64 = 64 << 20;

fn main() -> std::process::ExitCode {
    let trial = |name, test: fn(&Cgroup)| {
        trial_unless(|| Cgroup::make(LIMIT).err(), name, move || test(&Cgroup::make(LIMIT).expect("it could be made")))
    };
    support::mounts::run(vec![
        trial("sixty_four_streams_in_a_container_of_256_mib_are_read_without_a_kill", streams),
        trial("sixty_four_streams_and_sixteen_writers_in_a_container_of_256_mib_are_served_without_a_kill", writers),
        trial("what_is_kept_on_the_disk_does_not_get_a_container_of_256_mib_killed", disk),
    ])
}

/// Names and contents of the streams' objects.
fn objects(server: &S3Server) -> Vec<(String, Synthetic)> {
    (0..STREAMS).map(|n| format!("stream-{n}")).map(|name| (name.clone(), server.put_synthetic(&name, SIZE))).collect()
}

fn check(path: &Path, content: Synthetic) {
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut offset, mut piece) = (0, vec![0; 1 << 20]);
    loop {
        let n = file.read(&mut piece).unwrap_or_else(|error| panic!("{} at {offset}: {error}", path.display()));
        if n == 0 {
            break;
        }
        assert!(content.matches(offset, &piece[..n]), "{} at {offset}: other bytes", path.display());
        offset += n as u64;
    }
    assert_eq!(offset, SIZE, "{}", path.display());
}

fn write(path: &Path, content: Synthetic) {
    let mut file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for piece in content.pieces(0..SIZE) {
        file.write_all(&piece).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    file.sync_all().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Reads all streams at once, and writes so many files meanwhile. Returns the most memory that could not be given back.
fn work(cgroup: &Cgroup, mount: &Mount, objects: &[(String, Synthetic)], writers: usize) -> u64 {
    let written = |n: usize| (mount.join(format!("written-{n}")), Synthetic::new(n as u64));
    thread::scope(|scope| {
        let readers = objects.iter().map(|(name, content)| {
            let path = mount.join(name);
            scope.spawn(move || check(&path, *content))
        });
        let mut all: Vec<_> = readers.collect();
        all.extend((0..writers).map(|n| scope.spawn(move || write(&written(n).0, written(n).1))));
        let mut most = 0;
        while !all.iter().all(thread::ScopedJoinHandle::is_finished) {
            most = most.max(cgroup.anonymous());
            thread::sleep(std::time::Duration::from_millis(5));
        }
        for done in all {
            done.join().expect("everybody is served");
        }
        for n in 0..writers {
            check(&written(n).0, written(n).1);
        }
        most
    })
}

fn start(cgroup: &Cgroup, daemon: Daemon<'_>) -> Mount {
    let mount = daemon.in_cgroup(&cgroup.path).start();
    let stats = fs::read_to_string(mount.join(".windlass/stats")).expect("every mount has it");
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
    let limit = stats.to_string();
    assert!(limit.contains(&format!("\"budget_limit_bytes\":{}", LIMIT / 4)), "a quarter of the cgroup is expected: {limit}");
    mount
}

#[track_caller]
fn unharmed(cgroup: &Cgroup, mut mount: Mount, most: u64, spare: u64) {
    assert_eq!(cgroup.kills(), 0, "something was killed:\n{}", mount.log());
    assert!(mount.is_mounted(), "the daemon is gone:\n{}", mount.log());
    println!("at most {} MiB of {} in use, {} MiB ever resident", most >> 20, LIMIT >> 20, mount.peak_rss_bytes() >> 20);
    assert!(most < LIMIT - spare, "{} MiB of {} were in use", most >> 20, LIMIT >> 20);
    mount.signal(rustix::process::Signal::TERM);
    assert!(mount.wait().success(), "{}", mount.log());
}

fn streams(cgroup: &Cgroup) {
    let server = S3Server::start();
    let objects = objects(&server);
    let mount = start(cgroup, Daemon::new(&server));
    let most = work(cgroup, &mount, &objects, 0);
    unharmed(cgroup, mount, most, SPARE);
}

fn writers(cgroup: &Cgroup) {
    let server = S3Server::start();
    let objects = objects(&server);
    let mount = start(cgroup, Daemon::new(&server));
    let most = work(cgroup, &mount, &objects, WRITERS);
    unharmed(cgroup, mount, most, SPARE);
}

fn disk(cgroup: &Cgroup) {
    let server = S3Server::start();
    let objects = objects(&server);
    let spill = tempfile::tempdir().expect("a temporary directory can be made");
    let spill = spill.path().to_str().expect("the test names it");
    let mount = start(cgroup, Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", spill));
    let most = work(cgroup, &mount, &objects, WRITERS);
    // What waits for a slow disk stands beside the budget.
    unharmed(cgroup, mount, most, SPARE / 2);
}
