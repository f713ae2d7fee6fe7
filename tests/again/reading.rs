//! Readers whose daemon is killed: they wait for a moment and get every byte.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use libtest_mimic::Trial;
use windlass::store::memory::Synthetic;

use crate::program::{Supervised, trial};
use crate::support::S3Server;
use crate::support::mounts::{Daemon, wait_until};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("sixteen_readers_get_every_byte_when_their_daemon_is_killed", || readers(0)),
        trial("sixteen_readers_past_the_pages_get_every_byte_when_their_daemon_is_killed", || readers(libc::O_DIRECT)),
        trial("without_another_daemon_readers_get_an_error_and_do_not_hang", no_other_daemon),
        trial("readers_of_files_on_the_disk_go_on", from_the_disk),
    ]
}

pub const READERS: u64 = 16;
pub const SIZE: u64 = 24 << 20;

/// Objects for as many readers.
pub fn objects(server: &S3Server) -> Vec<Synthetic> {
    (0..READERS).map(|number| server.put_synthetic(&format!("data/{number}"), SIZE)).collect()
}

/// Reads all of a file front to back, compares it, and counts along.
pub fn read_all(file: &File, content: Synthetic, counted: &AtomicU64) {
    const PIECE: usize = 128 << 10;
    // What goes past the pages wants aligned memory.
    let mut memory = vec![0; PIECE + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let mut at = 0;
    while at < SIZE {
        let piece = &mut memory[skip..skip + PIECE];
        let len = file.read_at(piece, at).unwrap_or_else(|error| panic!("at {at}: {error}"));
        assert!(len > 0 && content.matches(at, &piece[..len]), "at {at}");
        at += len as u64;
        counted.fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// Has sixteen files read while `disturb` happens in the middle of it, as often as it is told to.
pub fn while_reading(top: &Path, contents: &[Synthetic], flags: i32, disturb: &[&(dyn Fn() + Sync)]) {
    let counted = AtomicU64::new(0);
    let files: Vec<File> = (0..contents.len())
        .map(|number| File::options().read(true).custom_flags(flags).open(top.join(format!("data/{number}"))).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (file, content) in files.iter().zip(contents) {
            let counted = &counted;
            scope.spawn(move || read_all(file, *content, counted));
        }
        let all = SIZE * contents.len() as u64;
        for (number, disturb) in (1..).zip(disturb) {
            // Well before the end.
            let part = all * number / 8;
            wait_until("a part is read", || counted.load(Ordering::Relaxed) >= part);
            disturb();
        }
    });
    assert_eq!(counted.load(Ordering::Relaxed), SIZE * contents.len() as u64);
}

fn readers(flags: i32) {
    let server = S3Server::start();
    let contents = objects(&server);
    let mount = Supervised::start(Daemon::new(&server).arg("--memory-limit", "256MiB"));
    let kill = || {
        mount.kill();
    };
    let replace = || mount.replace();
    while_reading(mount.mount.path(), &contents, flags, &[&replace, &replace, &kill]);
    let log = mount.mount.log();
    assert!(!log.contains(" ERROR windlass::fuse"), "{log}");
}

fn no_other_daemon() {
    let server = S3Server::start();
    let contents = objects(&server);
    let mount = Supervised::start(Daemon::new(&server).arg("--retries", "0").arg("--connect-timeout", "1s"));
    let file = File::open(mount.join("data/0")).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(contents[0].matches(0, &bytes));
    drop(server);
    mount.kill();
    // Waits for the supervisor to give up.
    let error = file.read_exact_at(&mut bytes, SIZE - 4096).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO)), "{error}");
    let mut mount = mount;
    assert_eq!(mount.mount.wait().code(), Some(1));
    assert!(mount.mount.log().contains("no daemon could be started again"), "{}", mount.mount.log());
    let error = std::fs::metadata(mount.join("data/1")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
}

fn from_the_disk() {
    let server = S3Server::start();
    let contents = objects(&server);
    let disk = tempfile::tempdir().unwrap();
    let dir = disk.path().to_str().unwrap();
    let mount = Supervised::start(Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", dir));
    let replace = || mount.replace();
    while_reading(mount.mount.path(), &contents, 0, &[&replace]);
    // By now the kernel may read them by itself.
    while_reading(mount.mount.path(), &contents, 0, &[&replace]);
    while_reading(mount.mount.path(), &contents, 0, &[]);
}
