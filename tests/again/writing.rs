//! Writers whose daemon is killed: what is staged is complete after close, what was streaming fails from then on, at every fsync and close.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use libtest_mimic::Trial;

use crate::program::{Supervised, trial};
use crate::support::S3Server;
use crate::support::disturbed::{Scribbled, objects, while_reading};
use crate::support::mounts::{Daemon, wait_until};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_staged_file_is_complete_after_close_and_readers_beside_it_go_on", staged),
        trial("a_staged_file_keeps_its_length_and_its_holes", lengths),
        trial("a_lost_streaming_file_fails_and_the_old_version_stays", streaming),
        trial("a_file_that_was_made_and_not_written_to_is_as_good_as_new", made),
        trial("what_fsync_said_is_stored_stays_stored", after_fsync),
        trial("attributes_of_what_is_being_written_hold_on", user_attributes),
    ]
}

fn supervised(server: &S3Server, disk: &tempfile::TempDir) -> Supervised {
    Supervised::start(Daemon::new(server).arg("--spill-dir", disk.path().to_str().unwrap()))
}

fn stored(server: &S3Server, key: &str) -> Vec<u8> {
    server.stored(key).unwrap_or_else(|| panic!("there is no {key}")).0.to_vec()
}

/// close(2) with what it says.
fn close(file: File) -> Option<i32> {
    windlass::sys::close(OwnedFd::from(file)).err().and_then(|error| error.raw_os_error())
}

fn staged() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().unwrap());
    let contents = objects(&server);
    server.put("doc", Scribbled::before());
    let mount = supervised(&server, &disk);
    let mut doc = Scribbled::open(&mount.join("doc"));
    doc.write(0, 300);
    let replace = || mount.replace();
    std::thread::scope(|scope| {
        scope.spawn(|| doc.write(300, 1500));
        while_reading(mount.mount.path(), &contents, 0, &[&replace, &replace]);
    });
    doc.check();
    doc.write(1500, 1600);
    let expected = doc.close();
    assert!(stored(&server, "doc") == expected, "what is stored");
    assert!(fs::read(mount.join("doc")).unwrap() == expected);
    // The file on the disk goes when the kernel tells the last close, after close(2).
    wait_until("nothing stays behind", || fs::read_dir(disk.path().join("staging")).expect("it is used").count() == 0);
}

fn lengths() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().unwrap());
    server.put("cut", vec![1; 10_000]);
    server.put("grown", vec![2; 10_000]);
    let mount = supervised(&server, &disk);
    let open = |name| File::options().read(true).write(true).open(mount.join(name)).unwrap();
    let (cut, grown) = (open("cut"), open("grown"));
    // Nothing but a length: no byte of it is on the disk.
    cut.set_len(5000).unwrap();
    grown.set_len(20_000).unwrap();
    mount.replace();
    assert_eq!((cut.metadata().unwrap().len(), grown.metadata().unwrap().len()), (5000, 20_000));
    cut.write_all_at(&[3; 10], 8000).unwrap();
    mount.replace();
    assert_eq!((close(cut), close(grown)), (None, None));
    let expected = [vec![1; 5000], vec![0; 3000], vec![3; 10]].concat();
    assert!(stored(&server, "cut") == expected);
    assert!(stored(&server, "grown") == [vec![2; 10_000], vec![0; 10_000]].concat());
}

fn user_attributes() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().unwrap());
    server.put("edited", vec![1; 10_000]);
    let mount = supervised(&server, &disk);
    let edited = File::options().write(true).open(mount.join("edited")).unwrap();
    edited.write_all_at(b"new", 100).unwrap();
    rustix::fs::fsetxattr(&edited, "user.kind", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    mount.replace();
    let mut value = [0; 9];
    assert_eq!(rustix::fs::fgetxattr(&edited, "user.kind", &mut value), Ok(1));
    assert_eq!(close(edited), None);
    assert_eq!(&stored(&server, "edited")[100..103], b"new");
    let (_, headers) = server.stored("edited").unwrap();
    assert!(headers.metadata["xattr"].contains("user.kind"));
}

fn streaming() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().unwrap());
    server.put("old", "the version from before");
    server.put("other", "untouched");
    let mount = supervised(&server, &disk);
    let other = File::open(mount.join("other")).unwrap();
    let (mut synced, mut closed) = (File::create(mount.join("old")).unwrap(), File::create(mount.join("new")).unwrap());
    for file in [&mut synced, &mut closed] {
        file.write_all(&vec![7; 20 << 20]).unwrap();
    }
    mount.replace();
    let mut bytes = [0; 9];
    other.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"untouched");
    let error = synced.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert!(synced.write_all(b"more").is_err(), "nothing is taken that would be dropped");
    for _ in 0..2 {
        let error = synced.sync_all().expect_err("it is not stored by being asked again");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    }
    assert_eq!(close(synced), Some(libc::EIO), "it is not stored by being asked again");
    assert_eq!(close(closed), Some(libc::EIO));
    assert_eq!(stored(&server, "old"), b"the version from before");
    assert!(server.stored("new").is_none());
    assert_eq!(fs::read(mount.join("old")).unwrap(), b"the version from before");
    fs::write(mount.join("old"), "written again").unwrap();
    assert_eq!(stored(&server, "old"), b"written again");
}

fn made() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().unwrap());
    server.put("old", "the version from before");
    let mount = supervised(&server, &disk);
    let mut new = File::options().write(true).create_new(true).open(mount.join("new")).unwrap();
    let mut old = File::create(mount.join("old")).unwrap();
    mount.replace();
    for file in [&mut new, &mut old] {
        file.write_all(b"content").unwrap();
    }
    assert_eq!((close(new), close(old)), (None, None));
    assert_eq!((stored(&server, "new"), stored(&server, "old")), (b"content".to_vec(), b"content".to_vec()));
}

fn after_fsync() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().unwrap());
    let mount = supervised(&server, &disk);
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(mount.join("log")).unwrap();
    file.write_all(b"one ").unwrap();
    file.sync_all().unwrap();
    mount.replace();
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"one ");
    file.write_all(b"two").unwrap();
    assert_eq!(close(file), None);
    assert_eq!(stored(&server, "log"), b"one two");
}
