//! Deleting objects, some at a time. Invariant: nothing is deleted that was not named by a listing or by the person.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::walk::{Listing, directory_of};
use crate::store::{Key, ObjectStore, Result};

/// Requests at a time: a store answers a DELETE in tens of milliseconds, and a bucket takes thousands a second.
const AT_ONCE: usize = 32;

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
/// The first that could not be deleted. Others are gone.
pub async fn remove(store: &Arc<dyn ObjectStore>, key: &Key, at: At, dry_run: bool, mut tell: impl FnMut(&Key)) -> Result<u64> {
    let mut count = 0;
    if matches!(at, At::Object | At::Tree { object: true }) {
        delete(store, key, dry_run).await?;
        tell(key);
        count += 1;
    }
    if at == At::Object {
        return Ok(count);
    }
    let mut listing = Listing::new(Arc::clone(store), directory_of(key), false);
    while let Some(page) = listing.next().await? {
        let deleting = page.objects.into_iter().map(|object| async move { delete(store, &object.key, dry_run).await.map(|()| object.key) });
        let mut deleted = stream::iter(deleting).buffered(AT_ONCE);
        while let Some(key) = deleted.try_next().await? {
            tell(&key);
            count += 1;
        }
    }
    Ok(count)
}

async fn delete(store: &Arc<dyn ObjectStore>, key: &Key, dry_run: bool) -> Result<()> {
    if dry_run { Ok(()) } else { store.delete(key).await }
}
