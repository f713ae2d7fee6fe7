//! Removes on request what the disk has of the objects below a prefix: by their headers, so that no store is asked and what is gone from
//! the bucket is found too. Objects of other buckets in the same directory stay.

use std::fs;

use super::entry::Removed;
use super::format::{Header, Name};
use super::ledger::FANS;
use super::{Engine, Spill, files};
use crate::store::{ETag, Key};

impl Spill {
    /// Removes all versions of all objects whose keys begin with `prefix`, and says how many bytes are free or will be when nobody reads
    /// them any more. Opens every object in the directory.
    pub fn forget_below(&self, prefix: &Key) -> u64 {
        let wanted = Header::new(&self.engine.identity, prefix, &ETag::from(""), 0);
        let names: Vec<Name> = self.engine.all_names();
        names.into_iter().map(|name| self.engine.remove_below(name, &wanted)).sum()
    }
}

impl Engine {
    fn all_names(&self) -> Vec<Name> {
        let fans = (0..FANS).filter_map(|fan| u8::try_from(fan).ok());
        let listed = fans.filter_map(|fan| fs::read_dir(self.layout.fan(fan)).ok()).flatten();
        let name = |entry: fs::DirEntry| Name::parse(entry.file_name().to_str()?.strip_suffix(".map")?);
        listed.filter_map(|entry| name(entry.ok()?)).collect()
    }

    fn remove_below(&self, name: Name, wanted: &Header) -> u64 {
        let removed = self.entry_on_disk(name).and_then(|entry| match entry {
            Some(entry) if entry.header().is_below(wanted) => self.remove_named(name),
            _ => Ok(None),
        });
        match removed {
            Ok(Some(Removed::Freed(bytes) | Removed::Lingers(bytes))) => bytes,
            Ok(None) => 0,
            Err(error) => {
                self.trouble.tell("removing", &self.layout.file(name, files::MAP), &error);
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::{Bounds, Identity, PIECE_BYTES};

    fn spill(directory: &std::path::Path, bucket: &str) -> Spill {
        let identity = Identity { endpoint: "e".into(), bucket: bucket.into() };
        let spill = Spill::open(directory, Bounds::default(), identity).unwrap();
        spill.scan();
        spill
    }

    #[test]
    fn what_is_below_a_prefix_goes_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, other) = (spill(directory.path(), "ours"), spill(directory.path(), "other"));
        let bytes = vec![7; PIECE_BYTES as usize];
        let object = |spill: &Spill, key: &str| spill.object(&Key::from(key), &ETag::from("\"e\""), PIECE_BYTES);
        let keys = ["d/a", "d/sub/b", "da", "e"];
        for (spill, key) in [&ours, &other].into_iter().flat_map(|spill| keys.map(|key| (spill, key))) {
            assert_eq!(object(spill, key).add(0, &bytes).kept, PIECE_BYTES, "{key}");
        }
        let there = |spill: &Spill| keys.map(|key| object(spill, key).is_whole());
        assert!(ours.forget_below(&Key::from("d/")) >= 2 * PIECE_BYTES);
        assert_eq!((there(&ours), there(&other)), ([false, false, true, true], [true; 4]));
        assert_eq!(ours.forget_below(&Key::from("d/")), 0);
        assert!(ours.forget_below(&Key::root()) >= 2 * PIECE_BYTES);
        assert_eq!((there(&ours), there(&other)), ([false; 4], [true; 4]));
    }
}
