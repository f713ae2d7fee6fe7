//! Directories whose entries may have attributes in their metadata, which no listing shows. Each says so in the metadata of its marker: so a HEAD
//! for a directory spares one for each of its entries. Invariant: what a store did not say is not remembered.

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::OWN_DIRECTORY;
use super::listing::Posix;
use super::posix;
use super::stat_cache::StatCache;
use crate::store::{self, Condition, DIRECTORY_TYPE, Details, ErrorKind, Headers, Key, ListPage, ObjectStore, PutRequest};

/// Metadata of the marker of a directory whose entries may have attributes.
const MARK: &str = "windlass-entries";
const MARKED: &str = "attributes";

/// The bucket itself has no marker. This takes its place, where no mount shows it.
const OF_BUCKET: &[u8] = b".windlass/attributes";

/// HEADs in flight for the markers of a page.
const MARKERS_AT_ONCE: usize = 32;

/// The object that says what `directory` (which ends in `/`, or is the bucket) is like.
pub(super) fn marker_of(directory: &Key) -> Key {
    if directory.as_bytes().is_empty() { Key::from(OF_BUCKET) } else { directory.clone() }
}

/// `headers` of a marker, which says from now on that entries of its directory may have attributes.
pub(super) fn marked(mut headers: Headers) -> Headers {
    headers.metadata.insert(MARK.into(), MARKED.into());
    headers
}

/// Whether a marker says that. One with attributes of its own was written by a client that gives them to files as well (s3fs, ossfs).
pub(super) fn is_marked(headers: &Headers) -> bool {
    headers.metadata.contains_key(MARK) || posix::read(&headers.metadata) != Posix::default()
}

/// What the HEAD of the marker of `directory`, asked for at `asked`, told of its entries is remembered.
pub(super) fn learn(cache: &StatCache, directory: &Key, marker: &store::Result<Details>, asked: Instant) -> store::Result<bool> {
    let carries = match marker {
        Ok(details) => is_marked(&details.headers),
        // As where objects may be listed and not be looked at: attributes of entries could not be asked for either.
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::AccessDenied) => false,
        Err(error) => return Err(error.clone()),
    };
    cache.learn_carries(directory, carries, asked);
    Ok(carries)
}

/// Marks `directory` as one whose entries may have attributes.
///
/// # Errors
/// What the store said.
pub(super) async fn mark(store: &dyn ObjectStore, cache: &StatCache, directory: &Key) -> store::Result<()> {
    match mark_once(store, cache, directory).await {
        // Another client has made the marker meanwhile, or changed it.
        Err(error) if error.kind == ErrorKind::Replaced => mark_once(store, cache, directory).await,
        marked => marked,
    }
}

async fn mark_once(store: &dyn ObjectStore, cache: &StatCache, directory: &Key) -> store::Result<()> {
    let asked = Instant::now();
    let marker = marker_of(directory);
    let details = store.details_to_keep(&marker).await;
    if learn(cache, directory, &details, asked)? {
        return Ok(());
    }
    match details {
        Ok(details) => {
            let headers = marked(details.headers);
            store::copy_object(store, &details.meta, &marker, Some(headers), &Condition::Any).await?;
        }
        Err(_) => {
            let headers = marked(Headers { content_type: Some(DIRECTORY_TYPE.into()), ..Headers::default() });
            store.put(&PutRequest { key: marker, body: Bytes::new(), headers, condition: Condition::Absent }).await?;
        }
    }
    cache.learn_carries(directory, true, Instant::now());
    Ok(())
}

/// Whether entries of `directory` may have attributes.
///
/// # Errors
/// What the store said of its marker.
pub(super) async fn in_directory(store: &dyn ObjectStore, cache: &StatCache, directory: &Key) -> store::Result<bool> {
    if let Some(known) = cache.carries(directory.as_bytes()) {
        return Ok(known);
    }
    let asked = Instant::now();
    learn(cache, directory, &store.details(&marker_of(directory)).await, asked)
}

/// The same where a page of its listing came, which was asked for at `asked`: the first one shows whether it has a marker.
///
/// # Errors
/// As [`in_directory`].
pub(super) async fn in_listed(
    store: &dyn ObjectStore,
    cache: &StatCache,
    directory: &Key,
    (page, is_first, asked): (&ListPage, bool, Instant),
) -> store::Result<bool> {
    let has_marker = match directory.as_bytes() {
        // Of the bucket the listing shows the directory that the object is in.
        b"" => page.prefixes.iter().any(|prefix| prefix.as_bytes().strip_suffix(b"/") == Some(OWN_DIRECTORY)),
        _ => page.objects.first().is_some_and(|first| first.key == *directory),
    };
    let is_whole = page.objects.len() + page.prefixes.len() > 0 || page.next.is_none();
    if is_first && is_whole && !has_marker && cache.carries(directory.as_bytes()).is_none() {
        cache.learn_carries(directory, false, asked);
        return Ok(false);
    }
    in_directory(store, cache, directory).await
}

/// Asks for all markers in a page of keys. One that cannot be asked for is asked for again when its directory is read.
pub(super) async fn of_markers(store: &dyn ObjectStore, cache: &StatCache, page: &ListPage) {
    let unknown = |key: &Key| key.is_prefix() && cache.carries(key.as_bytes()).is_none();
    let markers: Vec<Key> = page.objects.iter().filter(|object| unknown(&object.key)).map(|object| object.key.clone()).collect();
    let asked = stream::iter(markers).map(|directory| async move { in_directory(store, cache, &directory).await.is_ok() });
    asked.buffer_unordered(MARKERS_AT_ONCE).for_each(|_| async {}).await;
}
