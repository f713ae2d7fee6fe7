//! A spill on a directory of its own, objects with content that tells where it comes from, and what du(1) says.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass::spill::{Bounds, Identity, PIECE_BYTES, Spill, SpillObject};
use windlass::store::{ETag, Key};
use windlass::units::ByteSize;

pub const PIECE: usize = PIECE_BYTES as usize;

pub fn identity() -> Identity {
    Identity { endpoint: "http://127.0.0.1:9000".into(), bucket: "bucket".into() }
}

pub fn open(directory: &Path, bounds: Bounds) -> Spill {
    Spill::open(directory, bounds, identity()).unwrap()
}

pub fn max_mib(mib: u64) -> Bounds {
    Bounds { max: ByteSize::mib(mib), ..Bounds::default() }
}

/// Version 1 of an object.
pub fn object(spill: &Spill, key: &str, size: u64) -> SpillObject {
    spill.object(&Key::from(key), &ETag::from("\"1\""), size)
}

/// What an object has in a range: another number in each 8 bytes, for each key.
pub fn content(key: &str, range: Range<u64>) -> Vec<u8> {
    let seed = key.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let first = range.start / 8;
    let mut bytes = vec![0; (range.end.div_ceil(8) - first) as usize * 8];
    for (word, eight) in (first..).zip(bytes.chunks_exact_mut(8)) {
        eight.copy_from_slice(&(seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes());
    }
    bytes.truncate((range.end - first * 8) as usize);
    bytes.split_off((range.start - first * 8) as usize)
}

/// Adds a range of pieces with the content of `key`.
pub fn fill(object: &SpillObject, key: &str, range: Range<u64>) -> u64 {
    object.add(range.start, &content(key, range)).kept
}

/// How many bytes of a range are on the disk; they have to be the right ones.
pub fn check(object: &SpillObject, key: &str, range: Range<u64>) -> u64 {
    let mut buffer = vec![0xee; (range.end - range.start) as usize];
    let read = object.read(range.start, &mut buffer);
    assert!(buffer[..read] == content(key, range.start..range.start + read as u64)[..], "wrong bytes of {key} in {range:?}");
    read as u64
}

/// Blocks of a directory and all that is in it, as du counts them.
pub fn du(directory: &Path) -> u64 {
    let own = std::fs::symlink_metadata(directory).map_or(0, |found| found.blocks() * 512);
    let Ok(entries) = std::fs::read_dir(directory) else { return own };
    let below = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => du(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    });
    own + below.sum::<u64>()
}

/// The same where at most `max` is allowed. ext4 counts blocks twice while it writes back (see [`free_bytes`]), so what is more is looked at again
/// once the file system has written everything.
pub fn du_within(directory: &Path, max: u64) -> u64 {
    let mut now = du(directory);
    for _ in 0..20 {
        if now <= max {
            break;
        }
        rustix::fs::syncfs(std::fs::File::open(directory).expect("it is there")).expect("it can be written");
        std::thread::sleep(Duration::from_millis(1));
        now = now.min(du(directory));
    }
    now
}

/// All files below `chunks/` with this ending.
pub fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let fans = std::fs::read_dir(directory.join("chunks")).into_iter().flatten().flatten();
    let all = fans.flat_map(|fan| std::fs::read_dir(fan.path()).into_iter().flatten().flatten().map(|entry| entry.path()));
    all.filter(|path| path.extension().is_some_and(|found| found == ending)).collect()
}

/// Bytes of a file system that are free. While ext4 writes back it counts an extent twice for a moment, as promised and as allocated, and on a busy
/// machine the moment is as long as its thread waits for its turn: the best of a few looks is what is true.
pub fn free_bytes(place: &Path) -> u64 {
    let looks = (0..8).map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let found = rustix::fs::statvfs(place).expect("it is mounted");
        found.f_bavail * found.f_frsize
    });
    looks.max().expect("it was looked")
}
