//! What of a transfer is done, in a file that outlives the process: the transfer in its first line, then a line for each part with its
//! sum. Invariant: a part counts as done only when what is on the disk has that sum, so neither a crash nor a hand in between can make a
//! wrong file.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::{Error, Result};
use crate::store::Polynomial;

/// What must be the same for a transfer to go on where it stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub source: String,
    pub target: PathBuf,
    pub etag: String,
    pub range: Range<u64>,
    pub part_bytes: u64,
    /// Which sums.
    pub ecma: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    part: usize,
    sum: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    file: File,
    /// Sums of the parts that an earlier run says are done.
    pub done: BTreeMap<usize, u64>,
}

/// What a checkpoint and its unfinished file are called: the same for the same place in a bucket and on this machine.
pub(super) fn name_of(source: &str, target: &Path) -> String {
    format!("windlass-{:016x}", XxHash3_64::oneshot(format!("{source}\n{}", target.display()).as_bytes()))
}

impl Checkpoint {
    /// Goes on with what is in `dir`, or begins anew when that is of another version or cut otherwise.
    pub fn open(dir: &Path, identity: &Identity) -> Result<Self> {
        fs::create_dir_all(dir).map_err(Error::local("make", dir))?;
        let path = dir.join(name_of(&identity.source, &identity.target));
        let failed = || Error::local("keep the checkpoint", &path);
        let mut file = File::options().read(true).append(true).create(true).open(&path).map_err(failed())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(failed()(io::Error::other("another transfer to the same target is under way"))),
            Err(TryLockError::Error(error)) => return Err(failed()(error)),
        }
        let mut lines = BufReader::new(&file).lines().map_while(Result::<String, io::Error>::ok);
        let is_same = lines.next().and_then(|line| serde_json::from_str(&line).ok()).is_some_and(|found: Identity| found == *identity);
        // A process that was killed may have left half a line.
        let lines = lines.map_while(|line| serde_json::from_str::<Line>(&line).ok());
        let done: BTreeMap<_, _> = if is_same { lines.map(|line| (line.part, line.sum)).collect() } else { BTreeMap::new() };
        // Written anew, so that the next line begins at the beginning of one.
        file.set_len(0).map_err(failed())?;
        let mut text = serde_json::to_string(identity).map_err(|error| failed()(error.into()))? + "\n";
        done.iter().for_each(|(&part, &sum)| text += &line(part, sum));
        file.write_all(text.as_bytes()).map_err(failed())?;
        Ok(Self { path, file, done })
    }

    /// Leaves only those parts as done whose bytes in `file` have the sum they should have. Reads them all.
    pub fn verify(&mut self, file: &File, origin: u64, parts: &[Range<u64>], polynomial: Polynomial) {
        let mut buffer = vec![0; 1 << 20];
        self.done.retain(|&index, sum| {
            let Some(part) = parts.get(index) else { return false };
            let mut sums = Vec::new();
            let mut at = part.start;
            while at < part.end {
                let len = usize::try_from(part.end - at).unwrap_or(usize::MAX).min(buffer.len());
                if file.read_exact_at(&mut buffer[..len], at - origin).is_err() {
                    return false;
                }
                sums.push(super::landing::piece(len as u64, polynomial.of(&buffer[..len])));
                at += len as u64;
            }
            polynomial.of_parts(&sums) == Some(*sum)
        });
    }

    /// One more part is done.
    pub fn add(&mut self, part: usize, sum: u64) -> Result<()> {
        self.file.write_all(line(part, sum).as_bytes()).map_err(Error::local("keep the checkpoint", &self.path))
    }

    /// Nothing is left to be gone on with.
    pub fn remove(self) {
        // At worst the next run finds a checkpoint without its file, and begins anew.
        let _ = fs::remove_file(&self.path);
    }
}

fn line(part: usize, sum: u64) -> String {
    serde_json::to_string(&Line { part, sum }).expect("two numbers are JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(etag: &str) -> Identity {
        Identity { source: "s3://b/k".into(), target: "/t".into(), etag: etag.into(), range: 0..30, part_bytes: 10, ecma: false }
    }

    #[test]
    fn parts_are_remembered_for_the_same_version_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Checkpoint::open(dir.path(), &identity("1")).unwrap();
        first.add(0, 7).unwrap();
        first.add(2, 9).unwrap();
        // Killed in the middle of a line.
        first.file.write_all(b"{\"part\":1,").unwrap();
        drop(first);
        for _ in 0..2 {
            assert_eq!(Checkpoint::open(dir.path(), &identity("1")).unwrap().done, BTreeMap::from([(0, 7), (2, 9)]));
        }
        assert_eq!(Checkpoint::open(dir.path(), &identity("2")).unwrap().done, BTreeMap::new());
        assert_eq!(Checkpoint::open(dir.path(), &identity("1")).unwrap().done, BTreeMap::new());
    }

    #[test]
    fn a_part_whose_bytes_are_others_is_not_done() {
        let dir = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[5; 25], 0).unwrap();
        let parts = [100..110, 110..120, 120..130];
        let mut checkpoint = Checkpoint::open(dir.path(), &identity("1")).unwrap();
        let sum = Polynomial::Nvme.of(&[5; 10]);
        checkpoint.done = BTreeMap::from([(0, sum), (1, sum ^ 1), (2, sum), (7, sum)]);
        checkpoint.verify(&file, 100, &parts, Polynomial::Nvme);
        assert_eq!(checkpoint.done, BTreeMap::from([(0, sum)]));
    }

    #[test]
    fn two_at_the_same_target_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let first = Checkpoint::open(dir.path(), &identity("1")).unwrap();
        let error = Checkpoint::open(dir.path(), &identity("1")).unwrap_err();
        assert!(error.to_string().contains("under way"), "{error}");
        first.remove();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
