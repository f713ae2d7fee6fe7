//! Readers whose daemon is killed: they wait for a moment and get every byte.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use libtest_mimic::Trial;

use crate::program::{Supervised, trial};
use crate::support::S3Server;
use crate::support::disturbed::{SIZE, objects, too_old, while_reading};
use crate::support::mounts::{Daemon, no_filter, trial_unless, wait_until};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("sixteen_readers_get_every_byte_when_their_daemon_is_killed", || readers(0)),
        trial("sixteen_readers_past_the_pages_get_every_byte_when_their_daemon_is_killed", || readers(libc::O_DIRECT)),
        trial("without_another_daemon_readers_get_an_error_and_do_not_hang", no_other_daemon),
        trial("readers_of_files_on_the_disk_go_on", from_the_disk),
        trial_unless(|| too_old().or_else(no_filter), "daemon_that_cannot_read_requests_is_replaced", unreadable),
    ]
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
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("windlass.toml");
    std::fs::write(&config, "").unwrap();
    let mount = Supervised::start(Daemon::new(&server).arg("--config", config.to_str().unwrap()));
    let file = File::open(mount.join("data/0")).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(contents[0].matches(0, &bytes));
    // No other daemon can begin.
    std::fs::write(&config, "what is no option").unwrap();
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

fn unreadable() {
    let server = S3Server::start();
    let contents = objects(&server);
    let mount = Supervised::start(Daemon::new(&server).unreadable());
    let reader = File::open(mount.join("data/0")).unwrap();
    let mut bytes = [0; 4096];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    let first = mount.daemon().expect("one runs");
    let mut written = File::create(mount.join("written")).unwrap();
    // The daemon may end before it answers.
    let refused = written.write_all(&[7; 1 << 20]).err();
    assert!(refused.is_none_or(|error| error.raw_os_error() == Some(libc::EIO)));
    wait_until("another daemon", || mount.daemon().is_some_and(|pid| pid != first));
    let error = written.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "what it was streaming is lost, and the writer is told");
    reader.read_exact_at(&mut bytes, SIZE - 4096).unwrap();
    assert!(contents[0].matches(SIZE - 4096, &bytes));
    let log = mount.mount.log();
    assert!(log.contains("the daemon died") && log.contains("another daemon goes on with it"), "{log}");
}
