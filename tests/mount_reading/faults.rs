//! A store that misbehaves: the reader sees the right bytes all the same.

use std::ops::Range;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::bytes::{BOTH, KIB, MIB, gets, open, read_and_compare};
use crate::support::mounts::{Daemon, trial};
use crate::support::{Effect, Fault, Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_truncated_body_is_read_on_from_where_it_stopped", || {
            read_on(Effect::Truncate(1_234_567), |cut, again| again == (cut.start + 1_234_567..cut.end));
        }),
        trial("a_stalled_body_is_read_on_from_where_it_stopped", || {
            read_on(Effect::Stall(1_234_567, None), |cut, again| again == (cut.start + 1_234_567..cut.end));
        }),
        trial("a_reset_connection_is_read_on", || {
            // A reset may overtake bytes that were sent before it.
            read_on(Effect::Reset(2 * MIB), |cut, again| again.end == cut.end && again.start - cut.start <= 2 * MIB);
        }),
        trial("a_wrong_content_range_is_asked_for_again", || read_on(Effect::WrongRange, |cut, again| cut == again)),
        trial("a_pause_shorter_than_the_stall_timeout_is_waited_for", a_pause_shorter_than_the_stall_timeout_is_waited_for),
        trial("a_burst_of_503_is_outlived", a_burst_of_503_is_outlived),
        trial("a_store_that_fails_every_third_time_is_read_right", a_store_that_fails_every_third_time_is_read_right),
        trial("damaged_object_of_one_chunk_is_eio_unless_off", damaged_object_of_one_chunk),
        trial("a_read_that_failed_after_a_wait_is_not_begun_again_by_the_kernel", a_read_that_failed_after_a_wait),
        trial("data_comes_from_the_read_endpoint_while_that_answers", data_comes_from_the_read_endpoint_while_that_answers),
    ]
}

const SIZE: u64 = 24 * MIB;

/// The GET that comes first is mistreated; `resumes` knows the one that makes it good by the ranges of both.
#[track_caller]
fn read_on(effect: Effect, resumes: impl Fn(Range<u64>, Range<u64>) -> bool) {
    for through in BOTH {
        let server = S3Server::start();
        let content = server.put_synthetic("a", SIZE);
        // Long enough that nothing else stalls on a machine that others keep busy.
        let mount = Daemon::new(&server).arg("--stall-timeout", "5s").start();
        server.fault(Fault::new(effect.clone()).kind(Kind::Get).nth(1));
        server.reset_log();
        read_and_compare(&open(&mount.join("a"), through), content, 0..SIZE, 256 * KIB);
        let ranges: Vec<Range<u64>> = gets(&server, "a").into_iter().filter_map(|get| get.range).collect();
        let (cut, others) = ranges.split_first().expect("it was read");
        let again = others.iter().filter(|other| other.start < cut.end && cut.start < other.end);
        assert!(again.clone().count() == 1 && again.clone().all(|again| resumes(cut.clone(), again.clone())), "{ranges:?}");
        assert_eq!(ranges.len() as u64, SIZE / (4 * MIB) + 1, "nothing else is asked for twice: {ranges:?}");
    }
}

/// The kernel asks a second time for the page of a read-ahead that failed, which would double the longest wait.
fn a_read_that_failed_after_a_wait() {
    let server = S3Server::start();
    server.put("a", vec![b'x'; 4096]);
    for through in BOTH {
        let mount = Daemon::new(&server).arg("--retries", "2").flag("--hedge=false").start();
        server.fault(Fault::new(Effect::Delay(Duration::from_millis(500))).kind(Kind::Get));
        server.fault(Fault::new(Effect::Status(500)).kind(Kind::Get));
        server.reset_log();
        // The content of a small file may be asked for when it is opened.
        let file = open(&mount.join("a"), through);
        let read = || std::os::unix::fs::FileExt::read_at(&file, &mut [0; 4096], 0);
        for times in 1..=2 {
            assert_eq!(read().expect_err("the store fails").raw_os_error(), Some(libc::EIO));
            assert_eq!(gets(&server, "a").len(), 3 * times, "one with two retries for each read of the program");
        }
        server.clear_faults();
        assert_eq!(read().expect("the store is well"), 4096);
    }
}

fn damaged_object_of_one_chunk() {
    let server = S3Server::start();
    let content: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    {
        let writer = Daemon::new(&server).start();
        for name in ["good", "bad"] {
            std::fs::write(writer.join(name), &content).expect("it can be written");
        }
    }
    server.spoil("bad", 150_000);
    for through in BOTH {
        let mount = Daemon::new(&server).start();
        server.reset_log();
        let read = |name: &str| std::os::unix::fs::FileExt::read_at(&open(&mount.join(name), through), &mut vec![0; 4096], 0);
        assert_eq!(read("good").expect("it is right"), 4096);
        assert_eq!(read("bad").expect_err("it is wrong").raw_os_error(), Some(libc::EIO));
        // The kernel may ask again for pages of its own.
        let asked = gets(&server, "bad").len();
        assert!(asked >= 2 && asked.is_multiple_of(2), "each time twice: {asked}");
        assert_eq!(gets(&server, "good").len(), 1);
    }
    let mount = Daemon::new(&server).arg("--verify-reads", "off").start();
    assert_eq!(std::fs::read(mount.join("bad")).expect("nobody looks").len(), content.len());
}

fn a_pause_shorter_than_the_stall_timeout_is_waited_for() {
    let server = S3Server::start();
    // One each: what is left of the first may still be in memory when it is opened again.
    let content = ["a", "b"].map(|key| server.put_synthetic(key, SIZE));
    let mount = Daemon::new(&server).arg("--stall-timeout", "30s").start();
    server.fault(Fault::new(Effect::Stall(MIB, Some(Duration::from_millis(200)))).kind(Kind::Get));
    server.reset_log();
    for ((key, content), through) in ["a", "b"].into_iter().zip(content).zip(BOTH) {
        read_and_compare(&open(&mount.join(key), through), content, 0..SIZE, 256 * KIB);
        assert_eq!(gets(&server, key).len() as u64, SIZE / (4 * MIB));
    }
}

fn a_burst_of_503_is_outlived() {
    let server = S3Server::start();
    let content = server.put_synthetic("d/a", SIZE);
    let mount = Daemon::new(&server).start();
    // The names are asked for in the burst as well.
    // Fewer than one request may try, whichever of those under way they hit.
    server.reset_log();
    server.fault(Fault::new(Effect::Status(503)).first(10));
    read_and_compare(&open(&mount.join("d/a"), BOTH[0]), content, 0..SIZE, 256 * KIB);
    assert_eq!(server.requests().iter().filter(|request| request.status == 503).count(), 10);
}

fn a_store_that_fails_every_third_time_is_read_right() {
    let server = S3Server::start();
    let content = server.put_synthetic("a", SIZE);
    let mount = Daemon::new(&server).arg("--chunk-size", "1MiB").start();
    let effects = [Effect::Truncate(777_777), Effect::Reset(100_000), Effect::WrongRange, Effect::Status(500)];
    for (seed, effect) in effects.into_iter().enumerate() {
        server.fault(Fault::new(effect).kind(Kind::Get).chance(0.08, seed as u64));
    }
    for through in BOTH {
        read_and_compare(&open(&mount.join("a"), through), content, 0..SIZE, 256 * KIB);
    }
}

fn data_comes_from_the_read_endpoint_while_that_answers() {
    let (near, home) = (S3Server::start(), S3Server::start());
    // One each: what is left of the first may still be in memory when it is opened again.
    let content = ["d/a", "d/b"].map(|key| {
        near.put_synthetic(key, SIZE);
        home.put_synthetic(key, SIZE)
    });
    let mount = Daemon::new(&home).arg("--read-endpoint", &near.endpoint()).start();
    home.reset_log();
    let [first, second] = BOTH;
    read_and_compare(&open(&mount.join("d/a"), first), content[0], 0..SIZE, 256 * KIB);
    assert_eq!((gets(&near, "d/a").len() as u64, gets(&home, "d/a").len()), (SIZE / (4 * MIB), 0));
    assert!(home.count(Kind::List) > 0 && near.requests().iter().all(|request| request.kind == Kind::Get));
    near.fault(Fault::new(Effect::Status(503)));
    read_and_compare(&open(&mount.join("d/b"), second), content[1], 0..SIZE, 256 * KIB);
    assert_eq!(gets(&home, "d/b").len() as u64, SIZE / (4 * MIB));
}
