//! Which parts of an object an earlier run has brought. Invariant: a part counts as done only when what is on the disk has the sum it should
//! have, so neither a crash nor a hand in between can make a wrong file.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checkpoint::{Checkpoint, Found, name_of, text_of};
use super::landing::piece;
use super::{Error, Result};
use crate::store::{ObjectMeta, Polynomial};

/// What must be the same for a fetch to go on where it stopped.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    source: String,
    target: String,
    etag: String,
    range: Range<u64>,
    part_bytes: u64,
    /// Which sums.
    ecma: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    part: usize,
    sum: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Fetched {
    checkpoint: Checkpoint<Line>,
    /// Of the unfinished file.
    pub name: String,
    polynomial: Polynomial,
    /// The sums of the parts that are done.
    pub done: BTreeMap<usize, u64>,
}

impl Fetched {
    /// What the checkpoint in `dir` says of that range of that version on its way to `path`.
    pub fn open(
        dir: &Path,
        location: &str,
        meta: &ObjectMeta,
        range: Range<u64>,
        part_bytes: u64,
        polynomial: Polynomial,
        path: &Path,
    ) -> Result<Self> {
        let target: PathBuf = std::path::absolute(path).map_err(Error::local("write", path))?;
        let source = format!("{location}/{}", meta.key.as_bytes().escape_ascii());
        let name = name_of(&source, &target);
        let etag = meta.etag.as_str().to_owned();
        let identity = Identity { source, target: text_of(&target), etag, range, part_bytes, ecma: polynomial == Polynomial::Ecma };
        let (checkpoint, found) = Checkpoint::<Line>::open(dir, &name, &identity)?;
        let done = match found {
            Found::Same(lines) => lines.into_iter().map(|line| (line.part, line.sum)).collect(),
            Found::Other(_) => BTreeMap::new(),
        };
        Ok(Self { checkpoint, name, polynomial, done })
    }

    /// Leaves only those parts as done whose bytes in `file` have the sum they should have. Reads them all.
    pub fn verify(&mut self, file: &File, origin: u64, parts: &[Range<u64>]) {
        let (mut buffer, polynomial) = (vec![0; 1 << 20], self.polynomial);
        self.done.retain(|&index, sum| {
            let Some(part) = parts.get(index) else { return false };
            let mut sums = Vec::new();
            let mut at = part.start;
            while at < part.end {
                let len = usize::try_from(part.end - at).unwrap_or(usize::MAX).min(buffer.len());
                if file.read_exact_at(&mut buffer[..len], at - origin).is_err() {
                    return false;
                }
                sums.push(piece(len as u64, polynomial.of(&buffer[..len])));
                at += len as u64;
            }
            polynomial.of_parts(&sums) == Some(*sum)
        });
    }

    /// One more part is done.
    pub fn add(&mut self, part: usize, sum: u64) -> Result<()> {
        self.checkpoint.add(&Line { part, sum })
    }

    /// Nothing is left to be gone on with.
    pub fn remove(self) {
        self.checkpoint.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_part_whose_bytes_are_others_is_not_done() {
        let dir = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[5; 25], 0).unwrap();
        let parts = [100..110, 110..120, 120..130];
        let meta = ObjectMeta { key: "k".into(), size: 130, etag: "e".into(), modified: SystemTime::UNIX_EPOCH };
        let open = || Fetched::open(dir.path(), "s3://b", &meta, 100..130, 10, Polynomial::Nvme, Path::new("/t")).unwrap();
        let sum = Polynomial::Nvme.of(&[5; 10]);
        let mut first = open();
        for (part, sum) in [(0, sum), (1, sum ^ 1), (2, sum), (7, sum)] {
            first.add(part, sum).unwrap();
        }
        drop(first);
        let mut next = open();
        assert_eq!(next.done.len(), 4);
        next.verify(&file, 100, &parts);
        assert_eq!(next.done, BTreeMap::from([(0, sum)]));
    }
}
