//! Sixteen readers of one object, who ask for a name besides that no cache knows. Invariant: each byte is compared with the object's.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use windlass::store::memory::Synthetic;

const READERS: usize = 16;
const PIECE: usize = 64 << 10;

/// Readers at work. They stop and are counted by [`stop`](Self::stop).
pub struct Readers {
    stop: Arc<AtomicBool>,
    /// Of each, how often it has read.
    done: Arc<[AtomicUsize; READERS]>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Reads `path`, whose content is `content`, until it is told to stop.
    pub fn start(path: &Path, size: u64, content: Synthetic) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<[AtomicUsize; READERS]>::default());
        let reader = |reader: usize| {
            let (path, stop, done) = (path.to_owned(), stop.clone(), done.clone());
            std::thread::spawn(move || {
                let mut piece = vec![0; PIECE];
                let mut place = (reader as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                for n in 0_u64.. {
                    if stop.load(SeqCst) {
                        break;
                    }
                    // Numbers of Knuth's MMIX.
                    place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let offset = (place >> 16) % (size / PIECE as u64) * PIECE as u64;
                    // Past the kernel's cache, and through a handle that holds nothing yet: each read is a request.
                    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
                    let read = file.and_then(|file| file.read_exact_at(&mut piece, offset));
                    read.unwrap_or_else(|error| panic!("reader {reader} at {offset}: {error}"));
                    assert!(content.matches(offset, &piece), "reader {reader} at {offset}: other bytes");
                    // The bytes of a small object may still be there; a name that is not there is asked for each time.
                    let absent = path.with_file_name(format!("absent-{reader}-{n}"));
                    let found = std::fs::metadata(&absent).expect_err("there is no such object");
                    assert_eq!(found.kind(), ErrorKind::NotFound, "reader {reader}: {found}");
                    done[reader].fetch_add(1, SeqCst);
                }
            })
        };
        let threads = (0..READERS).map(reader).collect();
        Self { stop, done, threads }
    }

    /// Waits until every reader has read a few times since now: what any of them was waiting for is answered then.
    pub fn read_on(&self) {
        let targets: Vec<usize> = self.done.iter().map(|done| done.load(SeqCst) + 3).collect();
        crate::support::mounts::wait_until("the readers read on", || {
            let all_have = self.done.iter().zip(&targets).all(|(done, target)| done.load(SeqCst) >= *target);
            all_have || self.threads.iter().any(JoinHandle::is_finished)
        });
    }

    /// Stops, and fails the test where a reader failed.
    pub fn stop(self) -> usize {
        self.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().expect("no reader met an error");
        }
        self.done.iter().map(|done| done.load(SeqCst)).sum()
    }
}
