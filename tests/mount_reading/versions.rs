//! Objects that are replaced or deleted while they are open. Whatever a handle returns is of one version; the kernel's
//! pages, which all handles of a file share, must not let another one in.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

use libtest_mimic::Trial;
use windlass::store::memory::Synthetic;

use crate::bytes::{BOTH, KIB, MIB, Through, open, read_and_compare};
use crate::support::S3Server;
use crate::support::mounts::{Daemon, Mount, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("replaced_during_a_read_is_stale_there_and_new_in_a_new_open", replaced_during_a_read),
        trial("an_old_handle_gets_no_byte_of_the_version_a_new_one_reads", an_old_handle_beside_a_new_one),
        trial("replaced_before_the_first_byte_is_the_new_version", replaced_before_the_first_byte),
        trial("a_new_size_is_seen_to_its_end_through_a_handle_that_had_read_nothing", a_new_size_is_seen),
        trial("pages_of_an_earlier_handle_are_not_continued_with_a_new_version", pages_of_an_earlier_handle),
        trial("pages_of_another_handle_are_not_continued_with_a_new_version", pages_of_another_handle),
        trial("deleted_while_open_is_stale_there_and_absent_in_a_new_open", deleted_while_open),
    ]
}

const SIZE: u64 = 48 * MIB;

/// Far beyond what was fetched ahead of the start.
const FAR: u64 = 40 * MIB;

/// With a window so small that most of the object is asked for only when it is read.
fn mount(server: &S3Server) -> Mount {
    Daemon::new(server).arg("--chunk-size", "1MiB").arg("--prefetch-chunks", "1").start()
}

#[track_caller]
fn assert_stale(file: &File, at: u64) {
    match file.read_at(&mut [0; 4096], at) {
        Ok(n) => panic!("read {n} bytes at {at}"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
    }
}

/// One version or an error, wherever it is read.
#[track_caller]
fn assert_stale_or(file: &File, version: Synthetic, at: u64) {
    let mut buffer = [0; 4096];
    match file.read_exact_at(&mut buffer, at) {
        Ok(()) => assert!(version.matches(at, &buffer), "another version at {at}"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
    }
}

fn replaced_during_a_read() {
    // To another size each time: what the kernel believes of the size must not outlive the version.
    for (through, new_size) in
        [(Through::Direct, SIZE + 999), (Through::Pages, SIZE + 999), (Through::Direct, 9_999_999), (Through::Pages, 9_999_999)]
    {
        let server = S3Server::start();
        let old = server.put_synthetic("a", SIZE);
        let mount = mount(&server);
        let reader = open(&mount.join("a"), through);
        read_and_compare(&reader, old, 0..MIB, 256 * KIB);
        let new = server.put_synthetic("a", new_size);
        assert_stale(&reader, FAR);
        let second = open(&mount.join("a"), through);
        read_and_compare(&second, new, 0..new_size, 256 * KIB);
        assert_eq!(second.read_at(&mut [0; 10], new_size).expect("past the end is no error"), 0);
        assert_eq!(second.metadata().expect("it is open").len(), new_size);
        assert_stale(&reader, FAR);
    }
}

fn an_old_handle_beside_a_new_one() {
    for through in BOTH {
        let server = S3Server::start();
        let old = server.put_synthetic("a", SIZE);
        let mount = mount(&server);
        let reader = open(&mount.join("a"), through);
        read_and_compare(&reader, old, 0..4 * MIB, 256 * KIB);
        let new = server.put_synthetic("a", SIZE);
        assert_stale(&reader, FAR);
        let second = open(&mount.join("a"), Through::Pages);
        let third = open(&mount.join("a"), Through::Pages);
        // Both at once, so that each meets pages that the other one asked for.
        std::thread::scope(|scope| {
            scope.spawn(|| read_and_compare(&second, new, 0..SIZE, 256 * KIB));
            scope.spawn(|| (0..SIZE).step_by(64 << 10).for_each(|at| assert_stale_or(&reader, old, at)));
        });
        (0..SIZE).step_by(64 << 10).for_each(|at| assert_stale_or(&reader, old, at));
        read_and_compare(&third, new, 0..SIZE, 256 * KIB);
        drop((reader, second, third));
        read_and_compare(&open(&mount.join("a"), through), new, 0..SIZE, 256 * KIB);
    }
}

fn replaced_before_the_first_byte() {
    for through in BOTH {
        let server = S3Server::start();
        server.put_synthetic("a", SIZE);
        let mount = mount(&server);
        let reader = open(&mount.join("a"), through);
        let new = server.put_synthetic("a", SIZE);
        read_and_compare(&reader, new, 0..SIZE, 256 * KIB);
    }
}

fn a_new_size_is_seen() {
    for through in BOTH {
        let server = S3Server::start();
        let sizes = [(5 * MIB, 7 * MIB + 13), (7 * MIB + 13, 5 * MIB), (20 * MIB, 100), (2 * MIB, 20 * MIB)];
        // The small ones often: what the kernel believes must have been put right before the first read is answered.
        let sizes: Vec<(u64, u64)> = sizes.into_iter().chain(std::iter::repeat_n((100, 300), 50)).collect();
        for (i, &(old_size, _)) in sizes.iter().enumerate() {
            server.put_synthetic(&i.to_string(), old_size);
        }
        let mount = mount(&server);
        // The listing tells the kernel the old sizes.
        let names: Vec<_> = std::fs::read_dir(mount.path()).expect("it is a directory").collect();
        assert_eq!(names.len(), sizes.len());
        // From the end: files that are read in the order of their names are fetched before they are opened, in the version that
        // was listed.
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(i.to_string()));
        for i in order {
            let (old_size, new_size) = sizes[i];
            let new = server.put_synthetic(&i.to_string(), new_size);
            let mut reader = open(&mount.join(i.to_string()), through);
            let (mut all, mut piece) = (Vec::new(), vec![0; 300_000]);
            if matches!(through, Through::Pages) && new_size < old_size {
                // The kernel would make up what is missing.
                let error = reader
                    .read(&mut piece)
                    .expect_err("a shorter version cannot be read through pages that were asked for with the old size");
                assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
                reader = open(&mount.join(i.to_string()), through);
            }
            loop {
                let n = reader.read(&mut piece).expect("the new version can be read");
                all.extend_from_slice(&piece[..n]);
                if n == 0 {
                    break;
                }
            }
            assert_eq!(all.len() as u64, new_size, "{through:?} {:?}", sizes[i]);
            assert!(new.matches(0, &all), "{through:?} {:?}", sizes[i]);
        }
    }
}

fn pages_of_an_earlier_handle() {
    let server = S3Server::start();
    let old = server.put_synthetic("a", SIZE);
    let mount = mount(&server);
    read_and_compare(&open(&mount.join("a"), Through::Pages), old, 0..MIB, 256 * KIB);
    let reader = open(&mount.join("a"), Through::Pages);
    server.put_synthetic("a", SIZE);
    read_and_compare(&reader, old, 0..MIB, 256 * KIB);
    assert_stale(&reader, FAR);
}

fn pages_of_another_handle() {
    let server = S3Server::start();
    let old = server.put_synthetic("a", SIZE);
    let mount = mount(&server);
    let reader = open(&mount.join("a"), Through::Pages);
    read_and_compare(&open(&mount.join("a"), Through::Pages), old, 0..MIB, 256 * KIB);
    let new = server.put_synthetic("a", SIZE);
    read_and_compare(&reader, old, 0..MIB, 256 * KIB);
    assert_stale(&reader, FAR);
    // A handle that reads past the pages has returned nothing yet.
    read_and_compare(&open(&mount.join("a"), Through::Direct), new, 0..SIZE, 256 * KIB);
}

fn deleted_while_open() {
    for through in BOTH {
        let server = S3Server::start();
        let old = server.put_synthetic("a", SIZE);
        let mount = mount(&server);
        let reader = open(&mount.join("a"), through);
        read_and_compare(&reader, old, 0..MIB, 256 * KIB);
        assert!(server.delete("a"));
        assert_stale(&reader, FAR);
        let error = File::open(mount.join("a")).expect_err("it is gone");
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
    }
}
