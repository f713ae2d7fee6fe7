//! Files that will probably be opened next, and for which there was no place yet. Pure: time and the places come as arguments. Invariant: they
//! are offered in their order, each until it is taken, opened, or too old to be next.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::{Key, ObjectMeta};

/// What is announced at once and has no place among those of prefetches, with a little to spare: all of them are looked through at every open.
const MOST: usize = 40;

/// Who has stopped by then does not open them.
const PATIENCE: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Expected(Mutex<VecDeque<(ObjectMeta, Instant)>>);

impl Expected {
    /// `opened` is opened, and the `next` ones probably will be: `take` gets them until it has no place.
    pub fn on_open(&self, opened: &Key, next: Vec<ObjectMeta>, now: Instant, take: impl Fn(&ObjectMeta) -> bool) {
        let mut waiting = self.0.lock();
        waiting.retain(|(file, since)| file.key != *opened && now.duration_since(*since) < PATIENCE);
        waiting.extend(next.into_iter().map(|file| (file, now)));
        while waiting.pop_front_if(|(file, _)| take(file)).is_some() {}
        waiting.truncate(MOST);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::SystemTime;

    use super::*;
    use crate::store::ETag;

    #[tokio::test(start_paused = true)]
    async fn what_has_no_place_is_offered_again_until_it_is_opened_or_old() {
        let (expected, places, taken) = (Expected::default(), Cell::new(2), RefCell::new(Vec::new()));
        let open = |opened: &str, next: &[&str]| {
            let file =
                |key: &&str| ObjectMeta { key: (**key).into(), size: 1, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH };
            expected.on_open(&opened.into(), next.iter().map(file).collect(), Instant::now(), |file| {
                let has_place = places.get() > 0;
                if has_place {
                    places.set(places.get() - 1);
                    taken.borrow_mut().push(file.key.to_string());
                }
                has_place
            });
            std::mem::take(&mut *taken.borrow_mut())
        };
        assert_eq!(open("a", &["b", "c", "d", "e"]), ["b", "c"]);
        places.set(1);
        assert_eq!(open("d", &["f"]), ["e"]);
        tokio::time::advance(PATIENCE).await;
        places.set(9);
        assert_eq!(open("g", &["h"]), ["h"]);
    }
}
