//! Readers and a writer that go on while something is done to whoever serves them. Invariant: what is done begins while they are at work, and is
//! done before they are at their end.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use windlass::store::memory::Synthetic;

use super::S3Server;
use super::mounts::wait_until;

pub const READERS: u64 = 16;
pub const SIZE: u64 = 24 << 20;

/// Why no daemon can go on for another here: before Linux 6.9 a mount is lost with its daemon.
pub fn too_old() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (version < (6, 9)).then(|| "the kernel does not ask again for what a daemon had taken (6.9)".to_owned())
}

/// Objects for as many readers.
pub fn objects(server: &S3Server) -> Vec<Synthetic> {
    (0..READERS).map(|number| server.put_synthetic(&format!("data/{number}"), SIZE)).collect()
}

/// How far the readers are, and what was done so far.
struct Course {
    counted: AtomicU64,
    done: AtomicUsize,
    disturbances: usize,
}

impl Course {
    /// Parts of a file: one to begin with, and for each disturbance one in which it begins and one after it.
    fn part(&self) -> u64 {
        SIZE / (2 * self.disturbances as u64 + 1)
    }

    /// Who is at `at` waits for what has to be done before.
    fn wait(&self, at: u64) {
        let needed = (at / self.part().max(1)) as usize / 2;
        if self.done.load(Ordering::Acquire) < needed.min(self.disturbances) {
            wait_until("what disturbs the readers is done", || self.done.load(Ordering::Acquire) >= needed.min(self.disturbances));
        }
    }
}

/// Reads all of a file front to back, compares it, and counts along.
fn read_all(file: &File, content: Synthetic, course: &Course) {
    const PIECE: usize = 128 << 10;
    // What goes past the pages wants aligned memory.
    let mut memory = vec![0; PIECE + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let mut at = 0;
    while at < SIZE {
        course.wait(at);
        let piece = &mut memory[skip..skip + PIECE];
        let len = file.read_at(piece, at).unwrap_or_else(|error| panic!("at {at}: {error}"));
        assert!(len > 0 && content.matches(at, &piece[..len]), "at {at}");
        at += len as u64;
        course.counted.fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// Has sixteen files read while `disturb` happens in the middle of it, one after the other.
pub fn while_reading(top: &Path, contents: &[Synthetic], flags: i32, disturb: &[&(dyn Fn() + Sync)]) {
    let course = Course { counted: AtomicU64::new(0), done: AtomicUsize::new(0), disturbances: disturb.len() };
    let files: Vec<File> = (0..contents.len())
        .map(|number| File::options().read(true).custom_flags(flags).open(top.join(format!("data/{number}"))).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (file, content) in files.iter().zip(contents) {
            let course = &course;
            scope.spawn(move || read_all(file, *content, course));
        }
        for (number, disturb) in (0..).zip(disturb) {
            // Half a part behind the end of the one before, and as much ahead of where they would wait.
            let begin = (2 * number + 1) * course.part() + course.part() / 2;
            wait_until("a part is read", || course.counted.load(Ordering::Relaxed) >= begin * contents.len() as u64);
            disturb();
            course.done.fetch_add(1, Ordering::Release);
        }
    });
    assert_eq!(course.counted.load(Ordering::Relaxed), SIZE * contents.len() as u64);
}

/// A file that is written all over through a staging file, and what is to be in it then.
pub struct Scribbled {
    file: File,
    pub expected: Vec<u8>,
}

impl Scribbled {
    /// What is stored under a name before it is written to.
    pub fn before() -> Vec<u8> {
        (0..Self::SIZE).map(|at| (at / 7) as u8).collect()
    }

    const SIZE: usize = 6 << 20;

    pub fn open(path: &Path) -> Self {
        Self { file: File::options().read(true).write(true).open(path).unwrap(), expected: Self::before() }
    }

    /// Pieces all over the file, and over each other; which, is told by their numbers.
    pub fn write(&mut self, from: usize, to: usize) {
        for number in from..to {
            let at = number * 99_991 % (Self::SIZE - 10_000);
            let piece = vec![number as u8; 1 + number * 13 % 10_000];
            self.file.write_all_at(&piece, at as u64).unwrap_or_else(|error| panic!("write {number}: {error}"));
            self.expected[at..at + piece.len()].copy_from_slice(&piece);
        }
    }

    /// [`write`](Self::write) without end while `is_on`; the number that comes next.
    pub fn write_while(&mut self, from: usize, is_on: impl Fn() -> bool) -> usize {
        let mut number = from;
        while is_on() {
            self.write(number, number + 1);
            number += 1;
        }
        number
    }

    /// Whether its writer reads what it wrote.
    pub fn check(&self) {
        let mut bytes = vec![0; Self::SIZE];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == self.expected, "what its writer reads");
    }

    /// Closes it, which must succeed; what is to be stored then.
    pub fn close(self) -> Vec<u8> {
        windlass::sys::close(OwnedFd::from(self.file)).expect("all of it is stored");
        self.expected
    }
}
