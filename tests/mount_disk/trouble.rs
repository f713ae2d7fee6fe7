//! What can happen to a disk while it is in use: readers get the right bytes, at worst from the store.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use libtest_mimic::Trial;

use crate::bytes::{MIB, Through, open, read_and_compare};
use crate::disk::{FileSystem, data_files, end, files};
use crate::kept::cached;
use crate::support::S3Server;
use crate::support::mounts::{Daemon, Mount, trial, trial_as_root};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_directory_that_is_deleted_meanwhile_costs_requests_and_nothing_else", || {
            during(|directory, _| {
                // Not at the first try when the daemon makes a file in the moment in between.
                assert!((0..1000).any(|_| fs::remove_dir_all(directory).is_ok()), "it cannot be removed");
            });
        }),
        trial("flipped_bytes_are_fetched_again", || {
            during(|directory, _| {
                for path in data_files(directory) {
                    let file = File::options().write(true).open(path).expect("it can be written");
                    for at in (0..SIZE).step_by(3 * MIB as usize) {
                        file.write_all_at(&[0xA5; 100], at + 777).expect("it can be written");
                    }
                }
            });
        }),
        trial("damaged_maps_are_not_believed", || {
            during(|directory, _| {
                for path in files(directory).into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "map")) {
                    let file = File::options().write(true).open(path).expect("it can be written");
                    file.write_all_at(&[0xA5; 64], file.metadata().expect("it is there").len() / 2).expect("it can be written");
                }
            });
        }),
        trial("files_cut_short_are_not_believed", || {
            during(|directory, _| {
                for path in files(directory) {
                    let file = File::options().write(true).open(path).expect("it can be written");
                    file.set_len(file.metadata().expect("it is there").len() / 2).expect("it can be cut");
                }
            });
        }),
        trial("permissions_that_are_taken_away_cost_requests_and_nothing_else", || {
            during(|directory, _| {
                for path in [directory.to_owned(), directory.join("chunks")] {
                    fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("it is ours");
                }
            });
        }),
        trial_as_root("a_disk_that_becomes_read_only_goes_on_being_read", || {
            let disk = FileSystem::new(512);
            during_at(&disk.path().join("spill"), |_, _| disk.make_read_only());
        }),
        trial("a_spill_directory_that_cannot_be_used_is_one_clear_line", refused),
    ]
}

const SIZE: u64 = 40 * MIB;

fn during(harm: impl FnOnce(&Path, &Mount)) {
    let disk = tempfile::tempdir().expect("it can be made");
    during_at(&disk.path().join("spill"), harm);
}

/// Reads what is on the disk, and what is not, while `harm` is done to it.
fn during_at(directory: &Path, harm: impl FnOnce(&Path, &Mount)) {
    let server = S3Server::start();
    let (old, new) = (server.put_synthetic("old", SIZE), server.put_synthetic("new", SIZE));
    let mount = cached(&server, directory);
    read_and_compare(&open(&mount.join("old"), Through::Direct), old, 0..SIZE, MIB);
    // A second process that has nothing of it in its memory, and passes no file to the kernel yet.
    end(mount);
    let mount = cached(&server, directory);
    let (first, second) = (open(&mount.join("old"), Through::Direct), open(&mount.join("new"), Through::Direct));
    read_and_compare(&first, old, 0..8 * MIB, MIB);
    read_and_compare(&second, new, 0..8 * MIB, MIB);
    harm(directory, &mount);
    read_and_compare(&first, old, 8 * MIB..SIZE, MIB);
    read_and_compare(&second, new, 8 * MIB..SIZE, MIB);
    drop((first, second));
    for _ in 0..2 {
        read_and_compare(&open(&mount.join("new"), Through::Direct), new, 0..SIZE, MIB);
        read_and_compare(&open(&mount.join("old"), Through::Direct), old, 0..SIZE, MIB);
    }
    assert!(!mount.log().contains("ERROR"), "{}", mount.log());
}

fn refused() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let file = disk.path().join("file");
    fs::write(&file, "").expect("it can be written");
    let said = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", file.to_str().expect("it is text")).refused();
    assert!(said.contains("spill-dir") && said.contains(file.to_str().expect("it is text")), "{said}");
}
