//! The files that will probably be opened after one that is opened now. It opens and fetches nothing; `succession`
//! judges. Only cached listings are asked: where there is none, nothing is known of what comes next.

use std::sync::Arc;

use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::fact::{Listing, What};
use super::lookup::Names;
use super::succession::Succession;
use crate::store::{Key, ObjectMeta};

/// Directories whose files are opened at one time.
const DIRECTORIES: u64 = 64;

/// Where readers are in the directories that they go through.
#[derive(Debug)]
pub(super) struct Successions(Cache<Key, Arc<Mutex<Succession>>>);

impl Successions {
    pub fn new() -> Self {
        Self(Cache::builder().max_capacity(DIRECTORIES).build())
    }
}

impl Names {
    /// The file `key` was opened: those that will probably be opened next and were not named before.
    pub fn next_files(&self, key: &Key) -> Vec<ObjectMeta> {
        let path = key.as_bytes();
        let (directory, name) = path.split_at(path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1));
        let Some(listing) = self.cache.listing(directory) else { return Vec::new() };
        let Some(position) = position(&listing, name) else { return Vec::new() };
        let succession = match self.successions.0.get(directory) {
            Some(succession) => succession,
            None => self.successions.0.get_with(Key::from(directory), Arc::default),
        };
        let next = succession.lock().on_open(position);
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
