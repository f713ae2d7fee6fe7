//! The files that will probably be opened after one that is opened now. It opens and fetches nothing; `succession`
//! judges. Only cached listings are asked: where there is none, nothing is known of what comes next.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::fact::{Listing, Page, What};
use super::lookup::Names;
use super::succession::Succession;
use crate::store::{Key, ObjectMeta};

/// Directories whose files are opened at one time. With more of them they all begin anew, which costs a few round trips.
const DIRECTORIES: usize = 1024;

/// Where readers are in the directories that they go through.
#[derive(Debug, Default)]
pub(super) struct Successions(Mutex<HashMap<Key, Succession>>);

impl Successions {
    fn on_open(&self, directory: &[u8], position: u64, len: u64) -> Vec<u64> {
        let mut all = self.0.lock();
        if let Some(succession) = all.get_mut(directory) {
            return succession.on_open(position, len);
        }
        if all.len() >= DIRECTORIES {
            all.clear();
        }
        all.entry(Key::from(directory)).or_default().on_open(position, len)
    }
}

impl Names {
    /// The file `key` was opened: those that will probably be opened next and were not named before.
    pub fn next_files(&self, key: &Key) -> Vec<ObjectMeta> {
        let path = key.as_bytes();
        let (directory, name) = path.split_at(path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1));
        let Some(listing) = self.cache.listing(directory) else { return Vec::new() };
        let Some(position) = position(&listing, name) else { return Vec::new() };
        let next = self.successions.on_open(directory, position, listing.len as u64);
        let now = Instant::now();
        let files = next.into_iter().filter_map(|position| {
            let (page, at) = entry_at(&listing, position)?;
            let entry = &page.entries[at];
            let fact = self.cache.entry(entry, page.learnt);
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

/// The page that holds the entry at `position`, and where in it.
fn entry_at(listing: &Listing, position: u64) -> Option<(&Page, usize)> {
    let mut left = position as usize;
    for page in &listing.pages {
        if left < page.entries.len() {
            return Some((page, left));
        }
        left -= page.entries.len();
    }
    None
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
