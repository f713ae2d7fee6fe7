//! In which directories entries may have attributes that only a HEAD tells. Invariant: of two answers the one that was asked for later counts.

use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::time::Instant;

use super::later;
use crate::store::Key;
use crate::vfs::PosixAttributes;

/// Of so many directories it is remembered also where nothing else is.
const FEW: u64 = 1000;

/// For so long it is believed at least: another client makes a directory one of those once.
const A_MOMENT: Duration = Duration::from_secs(1);

/// See the module. Clones share their contents.
#[derive(Clone, Debug)]
pub(super) struct Carrying {
    attributes: PosixAttributes,
    /// Whether its entries may have some, and when that was learnt.
    known: Cache<Key, (bool, Instant)>,
}

impl Carrying {
    /// What is known of at least `size` directories.
    pub fn new(attributes: PosixAttributes, size: u64) -> Self {
        let known = Cache::builder().max_capacity(size.max(FEW)).eviction_policy(EvictionPolicy::lru()).build();
        Self { attributes, known }
    }

    /// Whether attributes are kept with objects.
    pub fn is_anywhere(&self) -> bool {
        self.attributes != PosixAttributes::Off
    }

    /// Whether entries of `directory` may have attributes, as far as that is known and believed for `ttl`.
    pub fn get(&self, directory: &[u8], ttl: Duration) -> Option<bool> {
        match self.attributes {
            PosixAttributes::Off => Some(false),
            PosixAttributes::On => Some(true),
            PosixAttributes::Auto => {
                let (carries, learnt) = self.known.get(directory)?;
                (later(learnt, ttl.max(A_MOMENT)) > Instant::now()).then_some(carries)
            }
        }
    }

    /// Whether they do was asked for, or made so, at `learnt`.
    pub fn learn(&self, directory: &Key, carries: bool, learnt: Instant) {
        if self.attributes != PosixAttributes::Auto {
            return;
        }
        let new = (carries, learnt);
        self.known.entry_by_ref(directory).and_upsert_with(|known| match known.map(moka::Entry::into_value) {
            Some(known) if known.1 > learnt => known,
            _ => new,
        });
    }

    /// The directory `from` is called `to` now.
    pub fn on_moved(&self, from: &Key, to: &Key) {
        match self.known.remove(from) {
            Some(known) => self.known.insert(to.clone(), known),
            None => self.known.invalidate(to),
        }
    }

    /// Nothing is known any more.
    pub fn forget_all(&self) {
        self.known.invalidate_all();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn it_is_asked_for_anew_after_some_time_and_the_later_answer_counts() {
        let carrying = Carrying::new(PosixAttributes::Auto, 0);
        let (directory, began) = (Key::from("d/"), Instant::now());
        assert_eq!(carrying.get(b"d/", TTL), None);
        advance(Duration::from_millis(1)).await;
        carrying.learn(&directory, true, Instant::now());
        carrying.learn(&directory, false, began);
        assert_eq!((carrying.get(b"d/", TTL), carrying.get(b"d/", Duration::ZERO)), (Some(true), Some(true)));
        advance(A_MOMENT).await;
        assert_eq!((carrying.get(b"d/", TTL), carrying.get(b"d/", Duration::ZERO)), (Some(true), None));
        advance(TTL).await;
        assert_eq!(carrying.get(b"d/", TTL), None);
        carrying.learn(&directory, false, Instant::now());
        assert_eq!(carrying.get(b"d/", TTL), Some(false));
        carrying.forget_all();
        assert_eq!(carrying.get(b"d/", TTL), None);
    }

    #[tokio::test(start_paused = true)]
    async fn where_it_is_decided_nothing_is_learnt() {
        for (attributes, carries) in [(PosixAttributes::Off, false), (PosixAttributes::On, true)] {
            let carrying = Carrying::new(attributes, 0);
            carrying.learn(&Key::from("d/"), !carries, Instant::now());
            assert_eq!(carrying.get(b"d/", TTL), Some(carries));
        }
    }
}
