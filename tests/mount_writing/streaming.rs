//! What is written from front to back: how many requests it takes, what is in the bucket when, and what errors there are.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use libtest_mimic::Trial;
use rustix::process::Signal;

use super::look::Look;
use super::support::mounts::{Daemon, trial, wait_until};
use super::support::{Habits, Kind, Refusing, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_small_file_is_one_put", small),
        trial("a_small_file_in_a_known_directory_is_one_listing_and_one_put", many_small),
        trial("a_large_file_is_its_parts_and_appears_when_it_is_closed", large),
        trial("a_file_that_is_being_written_can_be_read", read_while_writing),
        trial("replaced_file_shows_its_new_content_to_all_handles", replace),
        trial("second_writer_of_a_stream_shares_its_content", two_writers),
        trial("a_killed_daemon_leaves_the_old_version", killed),
        trial("sigterm_refuses_what_is_new_and_names_what_was_cut", terminated),
        trial("sigterm_stores_what_was_written_to_files_that_are_open", stored_while_open),
        trial("a_refused_upload_is_an_error_of_close_and_leaves_nothing", refused),
        trial("checksums_that_are_refused_late_cost_no_file", refused_late),
        trial("appending_copies_what_is_there_inside_the_store", append),
        trial("a_store_that_wants_equal_parts_gets_them", equal_parts),
        trial("a_file_opened_for_both_is_one_stream_too", both_ways),
        trial("many_large_writes_among_other_things_are_each_what_they_were", among_others),
    ]
}

const MIB: usize = 1 << 20;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(31) >> 3) as u8 ^ seed as u8).collect()
}

fn many_small() {
    const FILES: usize = 50;
    let server = S3Server::start();
    server.put("d/there", "1");
    // On a slow machine absence must not end between the two questions of the kernel.
    let mount = Daemon::new(&server).arg("--negative-ttl", "60s").start();
    assert!(mount.join("d").is_dir());
    server.reset_log();
    for n in 0..FILES {
        fs::write(mount.join(format!("d/{n}")), b"content").expect("it is written");
    }
    let counts = [Kind::List, Kind::Put, Kind::Head, Kind::Get].map(|kind| server.count(kind));
    // Three names that are free, then all names at once.
    assert_eq!((counts, server.requests().len()), ([4, FILES, 0, 0], 4 + FILES));
}

/// A store that begins uploads with a checksum and refuses it later: streams, changed large objects, and a file that is being written when it shows.
fn refused_late() {
    for refusing in [Refusing::Parts, Refusing::Whole, Refusing::Completion] {
        let server = S3Server::start();
        let old = pattern(20 * MIB, 1);
        server.put("old", old.clone());
        server.behave(Habits { refuses_sums: Some(refusing), ..Habits::default() });
        let mount = Daemon::new(&server).start();
        // Of one that is longer than what is kept not all bytes could be sent again.
        let new = pattern(if refusing == Refusing::Whole { 100 * MIB } else { 40 * MIB }, 2);
        fs::write(mount.join("new"), &new).unwrap_or_else(|error| panic!("{refusing:?}: {error}"));
        assert!(*server.object("new").expect("it is there") == *new, "{refusing:?}");
        File::options().append(true).open(mount.join("old")).unwrap().write_all(b"more").unwrap();
        assert!(*server.object("old").expect("it is there") == [&old, &b"more"[..]].concat(), "{refusing:?}");
        wait_until("the uploads that were begun with a checksum are aborted", || server.uploads() == 0);
    }
}

fn small() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    fs::write(mount.join("small.json"), b"{}").expect("it is written");
    assert_eq!(server.object("small.json").expect("it is there when close has returned"), "{}");
    assert_eq!((server.count(Kind::Put), server.count(Kind::CreateUpload)), (1, 0));
    assert_eq!(server.content_type("small.json").as_deref(), Some("application/json"));
    // What was said of an ending counts, and without a guess the store has its own default.
    let typed = Daemon::new(&server).flag("--mime=false").flag("--content-type=parquet=application/x-ours").start();
    for (name, expected) in [("a.json", None), ("a.parquet", Some("application/x-ours"))] {
        fs::write(typed.join(name), b"{}").expect("it is written");
        assert_eq!(server.content_type(name).as_deref(), expected, "{name}");
    }
    drop(typed);
    // Seen at once, without asking: this mount has written it.
    server.reset_log();
    assert_eq!(fs::metadata(mount.join("small.json")).expect("it is there").len(), 2);
    assert_eq!(server.requests().len(), 0);
    // Read back from memory.
    assert_eq!(fs::read(mount.join("small.json")).expect("it is there"), b"{}");
    assert_eq!(server.requests().len(), 0);
    // Also after it got its name, as git and pip do it.
    fs::write(mount.join("temporary"), b"content").expect("it is written");
    fs::rename(mount.join("temporary"), mount.join("final")).expect("it can be renamed");
    server.reset_log();
    assert_eq!(fs::read(mount.join("final")).expect("it is there"), b"content");
    assert_eq!(server.requests().len(), 0);
}

fn large() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let content = pattern(40 * MIB + 12_345, 1);
    let mut file = File::create(mount.join("large")).expect("it can be made");
    for piece in content.chunks(MIB) {
        file.write_all(piece).expect("it is taken");
    }
    assert!(server.object("large").is_none(), "it is not there before it is whole");
    assert!(server.wait_for(|requests| requests.iter().filter(|request| request.kind == Kind::UploadPart).count() >= 4), "it streams");
    drop(file);
    assert_eq!(server.object("large").expect("it is there"), content);
    let counts = [Kind::CreateUpload, Kind::UploadPart, Kind::CompleteUpload, Kind::Put].map(|kind| server.count(kind));
    assert_eq!(counts, [1, 6, 1, 0], "parts of 8 MiB, and the rest");
    assert_eq!(fs::read(mount.join("large")).expect("it can be read"), content);
}

fn read_while_writing() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let content = pattern(3 * MIB, 2);
    let mut file = File::create(mount.join("new")).expect("it can be made");
    file.write_all(&content).expect("it is taken");
    assert_eq!(fs::metadata(mount.join("new")).expect("it is there").len(), content.len() as u64);
    assert!(fs::read_dir(mount.path()).expect("it can be listed").any(|entry| entry.expect("an entry").file_name() == "new"));
    assert_eq!(fs::read(mount.join("new")).expect("it can be read"), content);
    assert!(server.object("new").is_none(), "the bucket has nothing of it yet");
    file.write_all(b"more").expect("it is taken");
    assert_eq!(fs::read(mount.join("new")).expect("it can be read").len(), content.len() + 4);
    drop(file);
    assert_eq!(server.object("new").expect("it is there").len(), content.len() + 4);
}

fn replace() {
    let server = S3Server::start();
    let old = pattern(2 * MIB, 3);
    server.put("file", old.clone());
    let mount = Daemon::new(&server).start();
    let mut reader = File::open(mount.join("file")).expect("it is there");
    let mut start = vec![0; MIB];
    std::io::Read::read_exact(&mut reader, &mut start).expect("it can be read");
    let mut writer = File::create(mount.join("file")).expect("it can be replaced");
    // Emptied, and written to, for the handle that was open and for those that come.
    assert_eq!((reader.metadata().expect("it is open").len(), reader.read_at(&mut start, 0).expect("it can be read")), (0, 0));
    writer.write_all(b"the new content").expect("it is taken");
    let mut bytes = vec![0; MIB];
    assert_eq!(reader.read_at(&mut bytes, 4).expect("it can be read"), 11);
    assert_eq!(&bytes[..11], b"new content");
    assert_eq!(fs::read(mount.join("file")).expect("it can be opened"), b"the new content");
    assert_eq!(server.object("file").expect("it is there"), old, "the bucket has the old version until the commit");
    drop(writer);
    assert_eq!(fs::read(mount.join("file")).expect("it can be read"), b"the new content");
    assert_eq!(reader.read_at(&mut bytes, 0).expect("it can be read"), 15, "also through the handle that was open before");
    assert_eq!(server.object("file").expect("it is there"), "the new content");
}

fn two_writers() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let mut first = File::create(mount.join("file")).expect("it can be made");
    first.write_all(b"first").expect("it is taken");
    let second = File::options().write(true).open(mount.join("file")).expect("it can be opened beside the first");
    second.write_all_at(b"second", 10).expect("it is taken");
    first.write_all(b" one ").expect("it is taken");
    drop(first);
    assert_eq!(server.object("file").expect("it is there"), "first one second");
    second.write_all_at(b"F", 0).expect("it is taken");
    drop(second);
    assert_eq!(server.object("file").expect("it is there"), "First one second");
    fs::write(mount.join("file"), b"third").expect("it is replaced");
    assert_eq!(server.object("file").expect("it is there"), "third");
}

fn killed() {
    let server = S3Server::start();
    server.put("file", "old");
    let mut mount = Daemon::new(&server).start();
    let mut file = File::create(mount.join("file")).expect("it can be replaced");
    file.write_all(&pattern(30 * MIB, 4)).expect("it is taken");
    wait_until("an upload was begun", || server.unfinished_uploads() == 1);
    mount.signal(Signal::KILL);
    mount.wait();
    assert_eq!(server.object("file").expect("it is there"), "old");
    drop(file);

    // The parts that it sent are found and removed, when they are as old as was said.
    assert_eq!(server.unfinished_uploads(), 1);
    assert!(mpu(&server, &["list"]).contains("  file\n"));
    mpu(&server, &["abort"]);
    assert_eq!(server.unfinished_uploads(), 1, "it is younger than a day");
    assert!(mpu(&server, &["abort", "--older-than", "0s"]).contains("  file\n"));
    assert_eq!((server.unfinished_uploads(), mpu(&server, &["list"])), (0, String::new()));
}

/// What `windlass mpu` prints.
fn mpu(server: &S3Server, words: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.arg("mpu").args(words).arg("s3://test-bucket").args(["--endpoint", &server.endpoint()]).env_clear().envs(server.client_env());
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn terminated() {
    let server = S3Server::start();
    server.put("file", "old");
    let mut mount = Daemon::new(&server).start();
    let content = pattern(20 * MIB, 5);
    let path = mount.join("file");
    let mut file = File::create(&path).expect("it can be replaced");
    file.write_all(&content[..10 * MIB]).expect("it is taken");
    mount.signal(Signal::TERM);
    let refusal = |error: std::io::Error| error.raw_os_error();
    wait_until("nothing new begins", || {
        File::create(path.with_file_name("late")).is_err_and(|error| refusal(error) == Some(libc::ESHUTDOWN))
    });
    assert_eq!(file.write_all(&content[10 * MIB..]).map_err(refusal), Err(Some(libc::ESHUTDOWN)), "and nothing goes on");
    // A half is not stored as if it were all, and whoever wrote it hears so.
    assert_eq!(file.sync_all().map_err(refusal), Err(Some(libc::ESHUTDOWN)));
    drop(file);
    assert_eq!(mount.wait().code(), Some(5), "{}", mount.log());
    assert!(mount.log().contains("not in the bucket: file;"), "{}", mount.log());
    assert_eq!(server.object("file").expect("it is there"), "old");
    assert_eq!(server.unfinished_uploads(), 0);
}

fn stored_while_open() {
    let server = S3Server::start();
    server.put("file", "old");
    let mut mount = Daemon::new(&server).start();
    let content = pattern(20 * MIB, 6);
    let mut file = File::create(mount.join("file")).expect("it can be replaced");
    file.write_all(&content).expect("it is taken");
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(0), "{}", mount.log());
    assert_eq!(server.object("file").expect("it is there"), content);
    assert_eq!(server.unfinished_uploads(), 0);
    drop(file);
}

fn refused() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).arg("--retries", "1").start();
    server.refuse_writes();
    let file = File::create(mount.join("file")).expect("the name is not asked for");
    (&file).write_all(b"content").expect("it is taken");
    let error = file.sync_all().expect_err("the store refuses it");
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    drop(file);
    // The kernel tells the last close after close(2) has returned.
    wait_until("what did not reach the bucket is not there", || !mount.join("file").exists());
    server.clear_faults();
    fs::write(mount.join("file"), b"content").expect("now it is taken");
    assert_eq!(server.object("file").expect("it is there"), "content");
}

fn append() {
    let server = S3Server::start();
    let content = pattern(20 * MIB, 7);
    server.put("log", content.clone());
    let mount = Daemon::new(&server).start();
    let mut file = File::options().append(true).open(mount.join("log")).expect("it can be appended to");
    file.write_all(b"one more line\n").expect("it is taken");
    drop(file);
    assert_eq!(server.object("log").expect("it is there"), [&content[..], b"one more line\n"].concat());
    assert!(server.count(Kind::CopyPart) > 0);
    let sent: u64 = server.requests().iter().map(|request| request.content_length).sum();
    assert!(sent < 10 * MIB as u64, "{sent} bytes were sent for one line");
}

/// As Cloudflare R2 does: what is copied counts, too.
fn equal_parts() {
    let server = S3Server::start();
    let content = pattern(32 * MIB + 5, 9);
    server.put("old", content.clone());
    server.behave(Habits { equal_parts: true, ..Habits::default() });
    let mount = Daemon::new(&server).arg("--provider", "r2").arg("--upload-part-size", "5MiB").start();
    let file = File::options().write(true).open(mount.join("old")).expect("it can be opened");
    file.write_all_at(b"changed", 17 * MIB as u64).expect("it is taken");
    drop(file);
    let changed = [&content[..17 * MIB], b"changed", &content[17 * MIB + 7..]].concat();
    assert!(*server.object("old").expect("it is there") == changed);
    assert!(server.count(Kind::CopyPart) > 1, "it is copied, part by part");
    fs::write(mount.join("new"), &content).expect("it is stored");
    assert!(*server.object("new").expect("it is there") == content);
}

fn both_ways() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let content = pattern(24 * MIB, 8);
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT).open(mount.join("file")).expect("it can be made");
    let mut aligned = vec![0; MIB + 4096];
    let start = aligned.as_ptr().align_offset(4096);
    for (n, piece) in content.chunks(MIB).enumerate() {
        aligned[start..start + MIB].copy_from_slice(piece);
        file.write_all_at(&aligned[start..start + MIB], (n * MIB) as u64).expect("it is taken");
    }
    file.sync_all().expect("it is in the store");
    assert_eq!(server.object("file").expect("it is there"), content);
    assert_eq!(server.count(Kind::UploadPart), 3);
    file.read_exact_at(&mut aligned[start..start + MIB], 5 * MIB as u64).expect("it can be read");
    assert_eq!(aligned[start..start + MIB], content[5 * MIB..6 * MIB]);
}

/// Several files in blocks of several sizes, some of which do not end where parts do, and everything else that comes by the same descriptor.
fn among_others() {
    const SIZE: usize = 40 * MIB + 12_345;
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let blocks = [MIB, 300_000, 768 << 10, 64 << 10];
    let long = |kind: &str, n: usize| mount.join(format!("{kind}-{n}-{}", "n".repeat(200)));
    std::thread::scope(|scope| {
        for (n, block) in blocks.into_iter().enumerate() {
            let (path, long) = (mount.join(format!("file-{n}")), &long);
            scope.spawn(move || {
                let content = pattern(SIZE, n);
                let mut file = File::create(path).expect("it can be made");
                for (at, piece) in content.chunks(block).enumerate() {
                    file.write_all(piece).expect("it is taken");
                    if at % 8 == n {
                        let name = long("small", n * 1000 + at);
                        fs::write(&name, name.as_os_str().as_encoded_bytes()).expect("it is written");
                        fs::rename(&name, long("moved", n * 1000 + at)).expect("it is renamed");
                        // Not what was written last.
                        file.write_all_at(&content[10..5000], 10).expect("the beginning is written again");
                    }
                }
                file.sync_all().expect("it is in the store");
            });
        }
    });
    for (n, block) in blocks.iter().enumerate() {
        assert!(server.object(&format!("file-{n}")).expect("it is there") == pattern(SIZE, n), "blocks of {block}");
        assert!(fs::read(mount.join(format!("file-{n}"))).expect("it can be read") == pattern(SIZE, n));
    }
    let moved: Vec<_> = fs::read_dir(mount.path()).expect("it is listed").map(|entry| entry.expect("it is").path()).collect();
    let moved = moved.iter().filter(|path| path.to_string_lossy().contains("moved-"));
    for path in moved.clone() {
        assert_eq!(fs::read_to_string(path).expect("it can be read"), path.to_string_lossy().replace("moved-", "small-"));
    }
    assert_eq!(
        moved.count(),
        blocks.iter().enumerate().map(|(n, &block)| (0..SIZE.div_ceil(block)).filter(|at| at % 8 == n).count()).sum::<usize>()
    );
}
