//! Deleting objects, a page of a listing at a time. Invariant: nothing is deleted that was not named by a listing or by the person.

use std::collections::HashSet;
use std::sync::Arc;

use super::walk::{Listing, directory_of};
use crate::store::{Key, ObjectStore, Result, delete_all};

/// What is there under a name: as an object, as a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Object,
    /// The object of that name, if `object`, and everything below.
    Tree {
        object: bool,
    },
}

/// Deletes what is there under `key` and tells each key when it is gone; with `dry_run` only tells. How many that were.
///
/// # Errors
/// The first that could not be deleted. Others of its page are gone.
pub async fn remove(store: &Arc<dyn ObjectStore>, key: &Key, at: At, dry_run: bool, mut tell: impl FnMut(&Key)) -> Result<u64> {
    let mut count = 0;
    if matches!(at, At::Object | At::Tree { object: true }) {
        if !dry_run {
            store.delete(key).await?;
        }
        tell(key);
        count += 1;
    }
    if at == At::Object {
        return Ok(count);
    }
    let mut listing = Listing::new(Arc::clone(store), directory_of(key), false);
    while let Some(page) = listing.next().await? {
        let keys: Vec<Key> = page.objects.into_iter().map(|object| object.key).collect();
        let left = if dry_run { Vec::new() } else { delete_all(&**store, &keys).await };
        let is_left: HashSet<&Key> = left.iter().map(|error| &error.key).collect();
        for key in keys.iter().filter(|key| !is_left.contains(key)) {
            tell(key);
            count += 1;
        }
        if let Some(error) = left.into_iter().next() {
            return Err(error);
        }
    }
    Ok(count)
}
