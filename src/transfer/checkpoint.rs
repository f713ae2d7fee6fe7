//! What of a transfer is done, in a file that outlives the process: what is transferred in its first line, then a line for each thing that is
//! done. It knows neither direction. Invariant: one process at a time has it, and lines of another transfer are never taken for this one's.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, unlinkat};
use serde::Serialize;
use serde::de::DeserializeOwned;
use twox_hash::XxHash3_64;

use super::resumed::{open_directory, open_or_create};
use super::{Error, Result};

/// See the module. `L` is what a line says.
#[derive(Debug)]
pub(super) struct Checkpoint<L> {
    path: PathBuf,
    directory: OwnedFd,
    file: File,
    lines: PhantomData<L>,
}

/// What an earlier run left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<L> {
    /// Of the same transfer, in their order.
    Same(Vec<L>),
    /// Of another one between the same places: the file changed, or was cut otherwise.
    Other(Vec<L>),
}

/// What a checkpoint and its unfinished file are called: the same for the same place in a bucket and on this machine.
pub(super) fn name_of(remote: &str, local: &Path) -> String {
    let names = [remote.as_bytes(), b"\n", local.as_os_str().as_bytes()].concat();
    format!("windlass-{:016x}", XxHash3_64::oneshot(&names))
}

/// A path as text that is another one for every path, whatever its bytes are.
pub(super) fn text_of(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

impl<L: Serialize + DeserializeOwned> Checkpoint<L> {
    /// Opens `name` in `dir` for the transfer that `identity` tells, and gives what was in it. It holds that still if it is of the same one.
    pub fn open<I>(dir: &Path, name: &str, identity: &I) -> Result<(Self, Found<L>)>
    where
        I: Serialize + DeserializeOwned + PartialEq,
    {
        fs::create_dir_all(dir).map_err(Error::local("make", dir))?;
        let path = dir.join(name);
        let failed = || Error::local("keep the checkpoint", &path);
        let directory = open_directory(dir).map_err(failed())?;
        let mut file = open_or_create(&directory, OsStr::new(name), OFlags::APPEND, Mode::RUSR | Mode::WUSR).map_err(failed())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(failed()(io::Error::other("another transfer between the same places is under way")));
            }
            Err(TryLockError::Error(error)) => return Err(failed()(error)),
        }
        let mut texts = BufReader::new(&file).lines().map_while(Result::<String, io::Error>::ok);
        let is_same = texts.next().and_then(|text| serde_json::from_str(&text).ok()).is_some_and(|found: I| found == *identity);
        // A process that was killed may have left half a line.
        let lines: Vec<L> = texts.map_while(|text| serde_json::from_str(&text).ok()).collect();
        let found = if is_same { Found::Same(lines) } else { Found::Other(lines) };
        // Written anew, so that the next line begins at the beginning of one.
        file.set_len(0).map_err(failed())?;
        let kept = if let Found::Same(lines) = &found { &lines[..] } else { &[] };
        let mut text = text(identity);
        kept.iter().for_each(|line| text += &self::text(line));
        file.write_all(text.as_bytes()).map_err(failed())?;
        Ok((Self { path, directory, file, lines: PhantomData }, found))
    }

    /// One more thing is done.
    pub fn add(&mut self, line: &L) -> Result<()> {
        self.file.write_all(text(line).as_bytes()).map_err(Error::local("keep the checkpoint", &self.path))
    }

    /// Nothing is left to be gone on with.
    pub fn remove(self) {
        // At worst the next run finds a checkpoint of what is not there any more, and begins anew.
        let name = self.path.file_name().expect("it was made of a directory and a name");
        let _ = unlinkat(&self.directory, name, AtFlags::empty());
    }
}

fn text(line: &impl Serialize) -> String {
    serde_json::to_string(line).expect("numbers and text are JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path, identity: &str) -> Result<(Checkpoint<u64>, Found<u64>)> {
        Checkpoint::open(dir, "c", &identity.to_owned())
    }

    #[test]
    fn lines_are_remembered_for_the_same_transfer_only() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, _) = open(dir.path(), "1").unwrap();
        first.add(&7).unwrap();
        first.add(&9).unwrap();
        // Killed in the middle of a line.
        first.file.write_all(b"\"1").unwrap();
        drop(first);
        for _ in 0..2 {
            assert_eq!(open(dir.path(), "1").unwrap().1, Found::Same(vec![7, 9]));
        }
        assert_eq!(open(dir.path(), "2").unwrap().1, Found::Other(vec![7, 9]));
        assert_eq!(open(dir.path(), "1").unwrap().1, Found::Other(vec![]));
    }

    #[test]
    fn two_between_the_same_places_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let (first, _) = open(dir.path(), "1").unwrap();
        let error = open(dir.path(), "1").unwrap_err();
        assert!(error.to_string().contains("under way"), "{error}");
        first.remove();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn every_path_has_its_own_name_and_text() {
        let path = |name: &'static [u8]| Path::new(std::ffi::OsStr::from_bytes(name));
        let (one, other) = (path(b"/\xff"), path(b"/\xfe"));
        assert_ne!(name_of("s3://b/k", one), name_of("s3://b/k", other));
        assert_eq!((text_of(one), text_of(path(b"/a\\"))), ("/\\xff".into(), "/a\\\\".into()));
    }
}
