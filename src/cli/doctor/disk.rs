//! The directory where chunks and staged writes lie: whether it can be written, and how much room it has. It writes nothing. Invariant: a
//! directory that is not there yet is judged by the one that it would be made in.

use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use rustix::fs::Access;

use super::Finding;
use crate::config::Place;

/// Below this not even a large chunk and a staged part find room side by side.
const FEWEST_BYTES: u64 = 64 << 20;

/// Below this a disk is of little use.
const FEW_BYTES: u64 = 1 << 30;

/// The directory of `place`, or that of temporary files.
pub(super) fn look(place: &Place) -> Vec<Finding> {
    match &place.spill_dir {
        None => {
            vec![Finding::ok("disk", "no spill-dir: nothing that is read is kept, and staged writes lie below TMPDIR until the mount ends")]
        }
        Some(directory) => vec![of(directory)],
    }
}

fn of(directory: &Path) -> Finding {
    let shown = directory.display();
    let Some(there) = directory.ancestors().find(|path| path.exists()).map(PathBuf::from) else {
        return Finding::fail(2, "disk", format!("{shown}: there is no such place"), "name another --spill-dir");
    };
    if !there.is_dir() || rustix::fs::access(&there, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Finding::fail(
            2,
            "disk",
            format!("{} cannot be written to", there.display()),
            "give it to this user, or name another --spill-dir",
        );
    }
    match rustix::fs::statvfs(&there).map(|told| told.f_bavail.saturating_mul(told.f_frsize)) {
        Err(error) => {
            Finding::warn("disk", format!("{shown}: how much is free cannot be told: {error}"), "name a --spill-dir on a local disk")
        }
        Ok(free) if free < FEWEST_BYTES => Finding::fail(
            2,
            "disk",
            format!("{shown}: {} free: it is full", HumanBytes(free)),
            "free some of it, or name another --spill-dir",
        ),
        Ok(free) if free < FEW_BYTES => {
            Finding::warn("disk", format!("{shown}: only {} free", HumanBytes(free)), "free some of it, or name another --spill-dir")
        }
        Ok(free) => Finding::ok("disk", format!("{shown}: {} free", HumanBytes(free))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_judged_by_what_it_would_be_made_in() {
        let home = tempfile::tempdir().unwrap();
        assert_ne!(of(&home.path().join("a/b/c")).level, Level::Fail);
        let file = home.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(of(&file.join("below")).level, Level::Fail);
    }
}
