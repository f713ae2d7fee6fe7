//! The files that will probably be opened after one that is opened now. It opens and fetches nothing; `succession`
//! judges. Only cached listings are asked: where there is none, nothing is known of what comes next.

use std::collections::HashMap;
use std::ops::Range;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::fact::{Listing, What};
use super::lookup::Names;
use super::succession::Succession;
use crate::store::{Key, ObjectMeta};

/// Directories whose files are opened at one time. With more of them they all begin anew, which costs a few round trips.
const DIRECTORIES: usize = 1024;

/// Where readers are in the directories that they go through.
#[derive(Debug, Default)]
pub(super) struct Successions(Mutex<HashMap<Key, Succession>>);

impl Successions {
    fn on_open(&self, directory: &[u8], position: u64) -> Range<u64> {
        let mut all = self.0.lock();
        if let Some(succession) = all.get_mut(directory) {
            return succession.on_open(position);
        }
        if all.len() >= DIRECTORIES {
            all.clear();
        }
        all.entry(Key::from(directory)).or_default().on_open(position)
    }
}

impl Names {
    /// The file `key` was opened: those that will probably be opened next and were not named before.
    pub fn next_files(&self, key: &Key) -> Vec<ObjectMeta> {
        let path = key.as_bytes();
        let (directory, name) = path.split_at(path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1));
        let Some(listing) = self.cache.listing(directory) else { return Vec::new() };
        let Some(position) = position(&listing, name) else { return Vec::new() };
        let next = self.successions.on_open(directory, position);
        if next.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let entries = listing.pages.iter().flat_map(|page| page.entries.iter().map(|entry| (entry, page.learnt)));
        let next = entries.skip(next.start as usize).take((next.end - next.start) as usize);
        let files = next.filter_map(|(entry, learnt)| {
            let fact = self.cache.entry(entry, learnt);
            match fact.what {
                What::File(facts) if fact.until > now && facts.names_version() => {
                    Some(ObjectMeta { key: entry.key.clone(), size: facts.size, etag: facts.etag, modified: facts.modified })
                }
                _ => None,
            }
        });
        files.collect()
    }
}

/// How many entries come before `name`.
fn position(listing: &Listing, name: &[u8]) -> Option<u64> {
    let page = listing.pages.partition_point(|page| page.ends_before(name));
    let before: usize = listing.pages[..page].iter().map(|page| page.entries.len()).sum();
    let at = listing.pages.get(page)?.position(name)?;
    Some((before + at) as u64)
}

#[cfg(test)]
mod tests;
