//! What the demo stores and reads: one large object and many small ones, all of computed content, so that every byte
//! that comes through the mount can be checked without keeping it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};

use super::server::{Error, Server};
use crate::store::memory::Synthetic;
use crate::units::ByteSize;

/// Bytes asked for at once: what `dd bs=1M` and `cat` of today do.
const READ: usize = 1 << 20;

/// Small objects stored at once; the store is a disk in this machine.
const PUTS: usize = 8;

/// One object.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its key, which is its path below the mount point too.
    pub key: String,
    /// Its size.
    pub size: u64,
}

/// The objects of the demo.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Read from front to back.
    pub large: Sample,
    /// Read whole, several at once.
    pub small: Vec<Sample>,
}

/// What a reading of samples came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub files: u64,
    pub bytes: u64,
    pub took: Duration,
}

impl Samples {
    /// A large object of `large` bytes and `count` small ones of 1 to 64 KiB, in directories of 1000.
    pub fn new(large: ByteSize, count: usize) -> Self {
        let small = (0..count).map(|i| {
            // Sizes that no block size divides, spread evenly and the same on every run.
            let size = 1024 + (i as u64 * 7919) % (63 * 1024);
            Sample { key: format!("small/{:02}/{:04}.bin", i / 1000, i % 1000), size }
        });
        Self { large: Sample { key: "large.bin".into(), size: large.as_u64() }, small: small.collect() }
    }

    /// Bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.large.size + self.small.iter().map(|sample| sample.size).sum::<u64>()
    }

    /// Stores all objects; `on_bytes` hears of progress.
    ///
    /// # Errors
    /// The first that the store refuses.
    pub fn store(&self, server: &Server, on_bytes: impl Fn(u64) + Clone + Send + Sync + 'static) -> Result<(), Error> {
        let all = std::iter::once(&self.large).chain(&self.small);
        let puts = stream::iter(all.map(Ok)).try_for_each_concurrent(PUTS, |sample| {
            let on_bytes = on_bytes.clone();
            let pieces = sample.content().pieces(0..sample.size);
            async move { server.put(&sample.key, stream::iter(pieces).inspect(move |piece| on_bytes(piece.len() as u64))).await.map(drop) }
        });
        server.block_on(puts)
    }

    /// Reads and checks the large object below `mount`.
    ///
    /// # Errors
    /// When it cannot be read, or a byte is wrong ([`io::ErrorKind::InvalidData`]).
    pub fn read_large(&self, mount: &Path, on_bytes: &(dyn Fn(u64) + Sync)) -> io::Result<Reading> {
        let start = Instant::now();
        let bytes = self.large.read(mount, &mut vec![0; READ], on_bytes)?;
        Ok(Reading { files: 1, bytes, took: start.elapsed() })
    }

    /// Reads and checks every small object below `mount`, with `readers` threads.
    ///
    /// # Errors
    /// The first that cannot be read or is wrong.
    pub fn read_small(&self, mount: &Path, readers: usize, on_file: &(dyn Fn(u64) + Sync)) -> io::Result<Reading> {
        let start = Instant::now();
        let next = AtomicUsize::new(0);
        let read = || {
            let (mut buf, mut bytes) = (vec![0; 64 << 10], 0);
            while let Some(sample) = self.small.get(next.fetch_add(1, Relaxed)) {
                bytes += sample.read(mount, &mut buf, &|_| {})?;
                on_file(1);
            }
            Ok(bytes)
        };
        let sums: io::Result<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..readers.max(1)).map(|_| scope.spawn(read)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a reader panicked")))).collect()
        });
        Ok(Reading { files: self.small.len() as u64, bytes: sums?.iter().sum(), took: start.elapsed() })
    }
}

impl Sample {
    fn content(&self) -> Synthetic {
        Synthetic::of(&self.key.as_str().into(), 0)
    }

    /// Reads the file to its end and compares it with what was stored.
    fn read(&self, mount: &Path, buf: &mut [u8], on_bytes: &dyn Fn(u64)) -> io::Result<u64> {
        let path = mount.join(&self.key);
        let name = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let mut file = File::open(&path).map_err(name)?;
        let mut at = 0;
        loop {
            let n = file.read(buf).map_err(name)?;
            if n == 0 {
                break;
            }
            if !self.content().matches(at, &buf[..n]) {
                return Err(wrong(&path, format!("bytes {at} to {} are not those that were stored", at + n as u64)));
            }
            at += n as u64;
            on_bytes(n as u64);
        }
        if at == self.size { Ok(at) } else { Err(wrong(&path, format!("{at} bytes where {} were stored", self.size))) }
    }
}

fn wrong(path: &PathBuf, what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> (tempfile::TempDir, Samples, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), "demo").unwrap();
        let samples = Samples::new(ByteSize::mib(5), 1003);
        samples.store(&server, |_| {}).unwrap();
        let bucket = dir.path().join("buckets/demo");
        (dir, samples, bucket)
    }

    #[test]
    fn what_was_stored_is_read_whole_and_a_changed_byte_is_found() {
        let (_dir, samples, bucket) = stored();
        let large = samples.read_large(&bucket, &|_| {}).unwrap();
        let small = samples.read_small(&bucket, 4, &|_| {}).unwrap();
        assert_eq!((large.files, small.files, large.bytes + small.bytes), (1, 1003, samples.bytes()));

        let victim = bucket.join(&samples.small[1002].key);
        let mut bytes = std::fs::read(&victim).unwrap();
        bytes[1] ^= 1;
        std::fs::write(&victim, &bytes).unwrap();
        let error = samples.read_small(&bucket, 4, &|_| {}).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("small/01/0002.bin"), "{error}");

        let file = File::options().write(true).open(bucket.join("large.bin")).unwrap();
        file.set_len(samples.large.size - 1).unwrap();
        assert_eq!(samples.read_large(&bucket, &|_| {}).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
