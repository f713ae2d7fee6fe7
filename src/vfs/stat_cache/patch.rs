//! A listing after one of its entries was changed. Pure. Invariant: the other entries stay what and where they were, and every page keeps
//! the time at which it was learnt.

use std::mem::discriminant;

use crate::store::Key;
use crate::vfs::fact::{Listing, Page};
use crate::vfs::listing::{DirEntry, order};
use crate::vfs::stat_cache::split;

/// What a change copies: pages of more than twice as many entries are cut.
const FEW: usize = 128;

/// What became of a name.
#[derive(Clone, Debug)]
pub enum Change {
    /// It stands for this now.
    Put(DirEntry),
    /// This path stands for nothing any more.
    Gone(Key),
    /// Only the store knows.
    Unknown,
}

/// `listing` after `change`. None: only the store knows.
pub(super) fn patched(listing: &Listing, change: &Change) -> Option<Listing> {
    let (name, new) = match change {
        Change::Put(entry) => (entry.name(), Some(entry)),
        Change::Gone(path) => (split(path.as_bytes()).1, None),
        Change::Unknown => return None,
    };
    let mut pages = listing.pages.clone();
    // What comes after all others goes to the end of the last page.
    let at = pages.partition_point(|page| page.ends_before(name)).min(pages.len().saturating_sub(1));
    let none = (&[][..], listing.learnt, listing.carries);
    let (old, learnt, carries) = pages.get(at).map_or(none, |page| (&page.entries[..], page.learnt, page.carries));
    let (before, there, behind) = match old.binary_search_by(|entry| order(entry.name(), name)) {
        Ok(position) => (&old[..position], Some(&old[position]), &old[position + 1..]),
        Err(position) => (&old[..position], None, &old[position..]),
    };
    // An object and a directory of one name: which of them is seen when one goes is for the store to say.
    if there.zip(new).is_some_and(|(there, new)| discriminant(&there.file) != discriminant(&new.file)) {
        return None;
    }
    let entries: Vec<DirEntry> = before.iter().chain(new).chain(behind).cloned().collect();
    let len = listing.len + entries.len() - old.len();
    let most = if entries.len() > 2 * FEW { FEW } else { 2 * FEW };
    let cut: Vec<Page> = entries.chunks(most).map(|entries| Page { entries: entries.into(), learnt, carries }).collect();
    pages.splice(at..pages.len().min(at + 1), cut);
    Some(Listing { pages, len, learnt: listing.learnt, carries: listing.carries })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::store::ETag;
    use crate::vfs::listing::FileFacts;

    fn file(name: &str, size: u64) -> DirEntry {
        let facts = FileFacts { size, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH, extra: None };
        DirEntry::file(Key::from("d/").join(name.as_bytes()), 2, facts)
    }

    fn entries(listing: &Listing) -> Vec<DirEntry> {
        listing.pages.iter().flat_map(|page| page.entries.iter().cloned()).collect()
    }

    /// A listing in pages of that many entries, each learnt a second after the one before.
    fn listing(entries: &[DirEntry], in_a_page: usize) -> Listing {
        let learnt = Instant::now();
        let page =
            |(n, entries): (u64, &[DirEntry])| Page { entries: entries.into(), learnt: learnt + Duration::from_secs(n), carries: false };
        Listing { pages: (0..).zip(entries.chunks(in_a_page)).map(page).collect(), len: entries.len(), learnt, carries: false }
    }

    proptest! {
        /// Against a map of names.
        #[test]
        fn a_listing_follows_its_changes(
            first in prop::collection::btree_set("[ab./0-]{1,3}", 0..12),
            in_a_page in 1usize..5,
            changes in prop::collection::vec(("[ab.0-]{1,3}", any::<bool>()), 0..40),
        ) {
            let mut expected: BTreeMap<Vec<u8>, DirEntry> = BTreeMap::new();
            let put = |expected: &mut BTreeMap<_, _>, name: &str, size| {
                expected.insert([name.as_bytes(), b"/"].concat(), file(name, size));
            };
            for name in first.iter().map(|name| name.replace('/', "c")) {
                put(&mut expected, &name, 0);
            }
            let all: Vec<_> = expected.values().cloned().collect();
            let mut listing = listing(&all, in_a_page);
            for (size, (name, is_there)) in (1..).zip(&changes) {
                let change = if *is_there { Change::Put(file(name, size)) } else { Change::Gone(Key::from("d/").join(name.as_bytes())) };
                listing = patched(&listing, &change).expect("files only");
                if *is_there {
                    put(&mut expected, name, size);
                } else {
                    expected.remove(&[name.as_bytes(), b"/"].concat());
                }
                prop_assert_eq!(listing.len, expected.len());
                prop_assert_eq!(entries(&listing), expected.values().cloned().collect::<Vec<_>>());
                prop_assert!(listing.pages.iter().all(|page| !page.entries.is_empty()));
                prop_assert!(listing.pages.is_sorted_by_key(|page| page.learnt));
            }
        }
    }

    #[test]
    fn pages_stay_small_and_as_old_as_they_were() {
        let all: Vec<_> = (0..1000).map(|n| file(&format!("f{n:04}"), 0)).collect();
        let mut listing = listing(&all, 1000);
        for n in 0..1000 {
            listing = patched(&listing, &Change::Put(file(&format!("f{n:04}x"), 1))).expect("files only");
            assert!(listing.pages.iter().all(|page| page.entries.len() <= 2 * FEW && page.learnt == listing.learnt));
        }
        assert_eq!((listing.len, listing.pages.len()), (2000, listing.pages.len().clamp(8, 16)));
    }

    #[test]
    fn what_becomes_the_other_kind_is_for_the_store_to_say() {
        let directory = |name: &str| DirEntry::directory(Key::from("d/").join(name.as_bytes()).join(b"/"), 2);
        let listing = listing(&[directory("a"), file("b", 0)], 9);
        assert!(patched(&listing, &Change::Put(file("a", 1))).is_none());
        assert!(patched(&listing, &Change::Put(directory("b"))).is_none());
        assert!(patched(&listing, &Change::Unknown).is_none());
        let both = patched(&listing, &Change::Put(directory("b-"))).expect("a new name");
        assert_eq!(entries(&both), [directory("a"), directory("b-"), file("b", 0)]);
        let without = patched(&both, &Change::Gone(Key::from("d/b-"))).expect("a name that is there");
        assert_eq!(entries(&without), entries(&listing));
    }
}
