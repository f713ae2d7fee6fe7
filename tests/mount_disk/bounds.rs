//! The bounds of the disk, watched from outside while readers and others fill it.

use std::fs::{self, File};
use std::io::Write;

use libtest_mimic::Trial;

use crate::bytes::{MIB, Through, open, read_and_compare};
use crate::disk::{FileSystem, used_bytes_at_once, watch};
use crate::support::S3Server;
use crate::support::mounts::{Daemon, trial, trial_as_root};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("spill_max_holds_at_every_moment", spill_max),
        trial("spill_max_holds_for_two_mounts_together", two_mounts),
        trial_as_root("what_is_to_be_kept_free_is_free_at_every_moment", free_space),
        trial_as_root("another_program_that_fills_the_disk_gets_its_room_and_readers_go_on", filled_by_others),
    ]
}

fn spill_max() {
    const SIZE: u64 = 40 * MIB;
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let contents: Vec<_> = (0..6).map(|n| server.put_synthetic(&n.to_string(), SIZE)).collect();
    let mount = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", disk.path().to_str().expect("it is text"));
    let mount = mount.arg("--spill-max", "64MiB").start();
    let (_, most) = watch(
        || used_bytes_at_once(disk.path()),
        || {
            for _ in 0..2 {
                for (n, &content) in contents.iter().enumerate() {
                    read_and_compare(&open(&mount.join(n.to_string()), Through::Direct), content, 0..SIZE, MIB);
                }
            }
        },
    );
    assert!((32 * MIB..=64 * MIB).contains(&most), "{most} bytes were on the disk");
}

fn two_mounts() {
    const SIZE: u64 = 40 * MIB;
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let contents: Vec<_> = (0..6).map(|n| server.put_synthetic(&n.to_string(), SIZE)).collect();
    let start = || {
        let daemon = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", disk.path().to_str().expect("it is text"));
        daemon.arg("--spill-max", "80MiB").start()
    };
    let mounts = [start(), start()];
    let (_, most) = watch(
        || used_bytes_at_once(disk.path()),
        || {
            std::thread::scope(|scope| {
                for (m, mount) in mounts.iter().enumerate() {
                    for (n, &content) in contents.iter().enumerate().filter(|(n, _)| n % 3 != m) {
                        let path = mount.join(n.to_string());
                        scope.spawn(move || {
                            for _ in 0..2 {
                                read_and_compare(&open(&path, Through::Direct), content, 0..SIZE, MIB);
                            }
                        });
                    }
                }
            });
        },
    );
    assert!((40 * MIB..=80 * MIB).contains(&most), "{most} bytes were on the disk");
}

fn free_space() {
    const SIZE: u64 = 64 * MIB;
    let (server, disk) = (S3Server::start(), FileSystem::new(256));
    let contents: Vec<_> = (0..12).map(|n| server.put_synthetic(&n.to_string(), SIZE)).collect();
    let directory = disk.path().join("spill");
    let mount = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", directory.to_str().expect("it is text"));
    let mount = mount.arg("--free-space-ratio", "20").arg("--ensure-diskfree", "40").start();
    let keep = (disk.total_bytes() / 5).max(40 * MIB);
    let before = disk.free_bytes();
    let (least, _) = watch(
        || disk.free_bytes(),
        || {
            for (n, &content) in contents.iter().enumerate() {
                read_and_compare(&open(&mount.join(n.to_string()), Through::Direct), content, 0..SIZE, MIB);
            }
        },
    );
    assert!(least >= keep, "{least} bytes were free, {keep} were to be kept");
    assert!(least < before - 64 * MIB, "nothing was kept on the disk");
    drop(mount);
}

fn filled_by_others() {
    const SIZE: u64 = 64 * MIB;
    let (server, disk) = (S3Server::start(), FileSystem::new(256));
    let contents: Vec<_> = (0..6).map(|n| server.put_synthetic(&n.to_string(), SIZE)).collect();
    let directory = disk.path().join("spill");
    let mount = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", directory.to_str().expect("it is text"));
    let mount = mount.arg("--ensure-diskfree", "32").start();
    let read_all = || {
        for (n, &content) in contents.iter().enumerate() {
            read_and_compare(&open(&mount.join(n.to_string()), Through::Direct), content, 0..SIZE, MIB);
        }
    };
    read_all();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // More than is free beside the spill: it has to give way.
            let mut file = File::create(disk.path().join("of-another-program")).expect("it can be made");
            for _ in 0..150 {
                let piece = vec![1; MIB as usize];
                while let Err(error) = file.write_all(&piece).and_then(|()| file.flush()) {
                    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
        });
        read_all();
    });
    read_all();
    let left = disk.free_bytes();
    assert!(left >= 32 * MIB, "{left} bytes are free");
    assert_eq!(fs::metadata(disk.path().join("of-another-program")).expect("it is there").len(), 150 * MIB);
    drop(mount);
}
