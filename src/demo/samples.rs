//! What the demo stores and reads: one large object and many small ones, all of computed content, so that every byte
//! that comes through the mount can be checked without keeping it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures::{TryStreamExt, stream};

use super::server::{Error, Server};
use crate::store::memory::Synthetic;
use crate::units::ByteSize;

/// Bytes asked for at once: what `dd bs=1M` and `cat` of today do.
const READ: usize = 1 << 20;

/// Small objects stored at once; the store is a disk in this machine.
const PUTS: usize = 8;

/// Hears of progress, in bytes or in files; its error ends what is under way.
pub type Watch = Arc<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

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

    /// Stores all objects; `on_bytes` is told of every piece.
    ///
    /// # Errors
    /// The first that the store refuses.
    pub fn store(&self, server: &Server, on_bytes: &Watch) -> Result<(), Error> {
        let all = std::iter::once(&self.large).chain(&self.small);
        let puts = stream::iter(all.map(Ok)).try_for_each_concurrent(PUTS, |sample| {
            let on_bytes = Arc::clone(on_bytes);
            let pieces = sample.content().pieces(0..sample.size).map(move |piece| on_bytes(piece.len() as u64).map(|()| piece));
            async move { server.put(&sample.key, stream::iter(pieces)).await.map(drop) }
        });
        server.block_on(puts)
    }

    /// Reads and checks the large object below `mount`.
    ///
    /// # Errors
    /// When it cannot be read, or a byte is wrong ([`io::ErrorKind::InvalidData`]).
    pub fn read_large(&self, mount: &Path, on_bytes: &Watch) -> io::Result<Reading> {
        let start = Instant::now();
        let bytes = self.large.read(mount, &mut vec![0; READ], &|n| on_bytes(n))?;
        Ok(Reading { files: 1, bytes, took: start.elapsed() })
    }

    /// Lists the directories of the small objects below `mount`, as loaders of data sets do, then reads and checks
    /// every one with `readers` threads.
    ///
    /// # Errors
    /// The first that is missing, cannot be read or is wrong.
    pub fn read_small(&self, mount: &Path, readers: usize, on_file: &Watch) -> io::Result<Reading> {
        let start = Instant::now();
        self.list_small(mount)?;
        let next = AtomicUsize::new(0);
        let read = || {
            let (mut buf, mut bytes) = (vec![0; 64 << 10], 0);
            while let Some(sample) = self.small.get(next.fetch_add(1, Relaxed)) {
                bytes += sample.read(mount, &mut buf, &|_| Ok(()))?;
                on_file(1)?;
            }
            Ok(bytes)
        };
        let sums: io::Result<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..readers.max(1)).map(|_| scope.spawn(read)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a reader panicked")))).collect()
        });
        Ok(Reading { files: self.small.len() as u64, bytes: sums?.iter().sum(), took: start.elapsed() })
    }

    fn list_small(&self, mount: &Path) -> io::Result<()> {
        let mut directories: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (directory, name) in self.small.iter().filter_map(|sample| sample.key.rsplit_once('/')) {
            directories.entry(directory).or_default().insert(name);
        }
        for (directory, stored) in directories {
            let path = mount.join(directory);
            let entries = std::fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(|e| at(&path, e))?;
            let names = entries.iter().map(|entry| entry.file_name().into_string());
            let listed: BTreeSet<String> =
                names.collect::<Result<_, _>>().map_err(|name| wrong(&path, format!("{name:?} was never stored")))?;
            if !listed.iter().map(String::as_str).eq(stored.iter().copied()) {
                return Err(wrong(&path, format!("lists {} names, not the {} that were stored", listed.len(), stored.len())));
            }
        }
        Ok(())
    }
}

impl Sample {
    fn content(&self) -> Synthetic {
        Synthetic::of(&self.key.as_str().into(), 0)
    }

    /// Reads the file to its end and compares it with what was stored.
    fn read(&self, mount: &Path, buf: &mut [u8], on_bytes: &dyn Fn(u64) -> io::Result<()>) -> io::Result<u64> {
        let path = mount.join(&self.key);
        let mut file = File::open(&path).map_err(|e| at(&path, e))?;
        let mut done = 0;
        loop {
            let n = file.read(buf).map_err(|e| at(&path, e))?;
            if n == 0 {
                break;
            }
            let end = done + n as u64;
            if !self.content().matches(done, &buf[..n]) {
                return Err(wrong(&path, format!("bytes {done} to {end} are not those that were stored")));
            }
            done = end;
            on_bytes(n as u64)?;
        }
        if done == self.size { Ok(done) } else { Err(wrong(&path, format!("{done} bytes where {} were stored", self.size))) }
    }
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn wrong(path: &Path, what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn watch() -> Watch {
        Arc::new(|_| Ok(()))
    }

    fn stored() -> (tempfile::TempDir, Samples, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), "demo").unwrap();
        let samples = Samples::new(ByteSize::mib(5), 1003);
        samples.store(&server, &watch()).unwrap();
        let bucket = dir.path().join("buckets/demo");
        (dir, samples, bucket)
    }

    #[test]
    fn what_was_stored_is_read_whole_and_a_changed_byte_is_found() {
        let (_dir, samples, bucket) = stored();
        let large = samples.read_large(&bucket, &watch()).unwrap();
        let small = samples.read_small(&bucket, 4, &watch()).unwrap();
        assert_eq!((large.files, small.files, large.bytes + small.bytes), (1, 1003, samples.bytes()));

        let victim = bucket.join(&samples.small[1002].key);
        let mut bytes = std::fs::read(&victim).unwrap();
        bytes[1] ^= 1;
        std::fs::write(&victim, &bytes).unwrap();
        let error = samples.read_small(&bucket, 4, &watch()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("small/01/0002.bin"), "{error}");

        let file = File::options().write(true).open(bucket.join("large.bin")).unwrap();
        file.set_len(samples.large.size - 1).unwrap();
        assert_eq!(samples.read_large(&bucket, &watch()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_name_that_is_missing_or_was_never_stored_is_found() {
        let (_dir, samples, bucket) = stored();
        std::fs::rename(bucket.join("small/00/0007.bin"), bucket.join("small/00/7.bin")).unwrap();
        let error = samples.read_small(&bucket, 1, &watch()).unwrap_err();
        assert!(error.kind() == io::ErrorKind::InvalidData && error.to_string().contains("small/00"), "{error}");
    }

    #[test]
    fn a_watch_that_has_seen_enough_ends_storing_and_reading() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), "demo").unwrap();
        let samples = Samples::new(ByteSize::mib(5), 10);
        let enough: Watch = Arc::new(|_| Err(io::ErrorKind::Interrupted.into()));
        assert!(samples.store(&server, &enough).is_err());
        samples.store(&server, &watch()).unwrap();
        let bucket = dir.path().join("buckets/demo");
        assert_eq!(samples.read_large(&bucket, &enough).unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(samples.read_small(&bucket, 2, &enough).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}
