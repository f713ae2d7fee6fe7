//! Asks the store what a name stands for: one request where that can tell, single flight, and the answer goes into the stat cache.
//! It knows no inodes. Invariant: only an answer of the store becomes a fact; a request that failed for another
//! reason than absence is returned as it is and leaves nothing behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::join;
use tokio::time::Instant;

use super::carrying;
use super::changes::directory_of;
use super::error::{Error, Result};
use super::fact::{Fact, Marker, What};
use super::flight::Flights;
use super::hidden::Hidden;
use super::listing::FileFacts;
use super::options::RootNames;
use super::posix;
use super::stat_cache::StatCache;
use crate::store::{self, ErrorKind, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Op, SYMLINK_SIZE};

type Answers = Flights<Result<Fact>>;

/// Keys of the page that tells what a name is. Between `name` and `name/` stand `name-1` and `name.txt`, and a page that is full of
/// these costs another round trip; a longer one costs the store and us little.
const PAGE: u16 = 16;

/// The store, seen name by name.
#[derive(Debug)]
pub struct Probe {
    store: Arc<dyn ObjectStore>,
    cache: StatCache,
    hidden: Arc<Hidden>,
    root_names: RootNames,
    /// Where keys may not be listed by the beginnings of names: in the bucket, or in which of many.
    no_listing: Mutex<HashMap<Key, Arc<AtomicBool>>>,
    names: Answers,
    objects: Answers,
    refreshes: Answers,
    directories: Answers,
    markers: Answers,
    carrying: Flights<store::Result<bool>>,
}

impl Probe {
    /// Asks `store` and fills `cache`.
    pub fn new(store: Arc<dyn ObjectStore>, cache: StatCache, hidden: Arc<Hidden>, root_names: RootNames) -> Self {
        let [names, objects, refreshes, directories, markers] = [(); 5].map(|()| Answers::default());
        let (no_listing, carrying) = (Mutex::default(), Flights::default());
        Self { store, cache, hidden, root_names, no_listing, names, objects, refreshes, directories, markers, carrying }
    }

    /// Whether keys like `path` may not be listed: known once, for each bucket.
    fn no_listing(&self, path: &Key) -> Arc<AtomicBool> {
        Arc::clone(self.no_listing.lock().entry(self.root_names.bucket_of(path)).or_default())
    }

    /// Whether `path`, as all that is in its directory, may have attributes in its metadata.
    fn carries(&self, path: &Key) -> impl Future<Output = store::Result<bool>> + Send + 'static + use<> {
        let directory = directory_of(path);
        let known = self.cache.carries(directory.as_bytes());
        let asked = known.is_none().then(|| {
            let (store, cache, of) = (self.store.clone(), self.cache.clone(), directory.clone());
            self.carrying.join(&directory, move || async move { carrying::in_directory(&*store, &cache, &of).await })
        });
        async move {
            match asked {
                Some(asked) => asked.await,
                None => Ok(known == Some(true)),
            }
        }
    }

    /// What `path` stands for: one LIST of the keys that begin with it. What that does not tell, a HEAD of the object and a LIST of
    /// what is below it do, side by side. `is_free_likely`: a HEAD is sent only after the LIST showed the name.
    pub async fn name(&self, path: &Key, is_free_likely: bool) -> Result<Fact> {
        let answer = self.names.join(path, || {
            let (store, cache, hidden, path) = (self.store.clone(), self.cache.clone(), self.hidden.clone(), path.clone());
            let (carries, no_listing) = (self.carries(&path), self.no_listing(&path));
            async move {
                if let Some(fact) = cache.name(path.as_bytes()) {
                    return Ok(fact);
                }
                let directory = path.join(b"/");
                let asked = Instant::now();
                let listing = async {
                    match no_listing.load(Relaxed) {
                        true => Ok(Told::default()),
                        false => told(&*store, &path, &directory, &no_listing).await,
                    }
                };
                let (told, carries, seen) = if !is_free_likely && cache.carries(directory_of(&path).as_bytes()) == Some(true) {
                    // Attributes are kept where only a HEAD sees them.
                    let (told, object) = told_and_seen(listing, store.clone(), &path).await?;
                    (told, true, object)
                } else {
                    let (told, carries) = join!(listing, carries);
                    (told?, carries?, None)
                };
                let object = async {
                    match (told.object, seen) {
                        (Some(None), _) => Ok(None),
                        (_, Some(object)) => there(object),
                        // Who asks for one name wants to open it or to change it: that takes its version, which some stores do not list.
                        (Some(Some(meta)), _) if !carries && !meta.etag.as_str().is_empty() => there(more(&*store, &cache, meta).await),
                        (None | Some(Some(_)), None) => there(facts(&*store, &cache, &path, carries).await),
                    }
                };
                let below = async {
                    match told.below {
                        None => first_below(&*store, &directory).await,
                        Some(first) => Ok(first),
                    }
                };
                let (object, below) = join!(object, below);
                if let (Ok(Some(_)), Ok(Some(_))) = (&object, &below) {
                    hidden.note(&path);
                }
                let mut what = verdict(object, below, &directory)?;
                match what {
                    What::Directory(Some(seen)) if carries => {
                        what = What::Directory(Some(marker(&*store, &cache, &directory).await?.unwrap_or(seen)));
                    }
                    // What was listed below it would have begun with its marker.
                    What::Directory(None) => cache.learn_carries(&directory, false, asked),
                    _ => {}
                }
                Ok(cache.learn_name(&path, what, asked))
            }
        });
        answer.await
    }

    /// What the object at `path` is, from the cache while that is believed and names a version. `named_until`: how long a listing lets
    /// the caller believe that no directory hides it.
    pub async fn object(&self, path: &Key, named_until: Option<Instant>) -> Result<Fact> {
        let answer = self.objects.join(path, || {
            let (store, cache, path, carries) = (self.store.clone(), self.cache.clone(), path.clone(), self.carries(path));
            async move {
                match cache.object(path.as_bytes()) {
                    Some(fact) if matches!(&fact.what, What::File(facts) if facts.names_version()) => Ok(fact),
                    _ => head(&*store, &cache, &path, named_until, carries).await,
                }
            }
        });
        answer.await
    }

    /// What the object at `path` is now, whatever is believed. A flight of its own, so that it never joins a HEAD
    /// that was sent before the caller noticed that the object changed.
    pub async fn refresh(&self, path: &Key) -> Result<Fact> {
        let answer = self.refreshes.join(path, || {
            let (store, cache, path, carries) = (self.store.clone(), self.cache.clone(), path.clone(), self.carries(path));
            async move { head(&*store, &cache, &path, None, carries).await }
        });
        answer.await
    }

    /// Answers to what is asked of these keys now are not given to those who ask later.
    pub fn abandon(&self, is_one: impl Fn(&Key) -> bool) {
        for flights in [&self.names, &self.objects, &self.refreshes, &self.directories, &self.markers] {
            flights.abandon(&is_one);
        }
    }

    /// The marker of `directory` (which ends in `/`), of which a listing says until `named_until` that it is there: one HEAD.
    pub async fn marker(&self, directory: &Key, named_until: Instant) -> Result<Fact> {
        let answer = self.markers.join(directory, || {
            let (store, cache, directory) = (self.store.clone(), self.cache.clone(), directory.clone());
            async move {
                let asked = Instant::now();
                let marker = marker(&*store, &cache, &directory).await?;
                Ok(cache.learn_directory(&without_slash(&directory), marker, named_until, asked))
            }
        });
        answer.await
    }

    /// Whether there is something at or below `directory` (which ends in `/`): one LIST, or a HEAD of its marker where that tells more.
    pub async fn directory(&self, directory: &Key) -> Result<Fact> {
        let answer = self.directories.join(directory, || {
            let (store, cache, directory) = (self.store.clone(), self.cache.clone(), directory.clone());
            let carries = self.carries(&directory);
            async move {
                let path = without_slash(&directory);
                let asked = Instant::now();
                if carries.await?
                    && let Some(marker) = marker(&*store, &cache, &directory).await?
                {
                    return Ok(cache.learn_name(&path, What::Directory(Some(marker)), asked));
                }
                match first_below(&*store, &directory).await? {
                    Some(first) => Ok(cache.learn_name(&path, What::Directory(marker_in(&first, &directory)), asked)),
                    None => Ok(cache.learn_object(&path, None, None, asked)),
                }
            }
        });
        answer.await
    }
}

/// What the object at `path` is: by a HEAD that tells everything where attributes are kept with it, or where its size says that it may be a
/// symbolic link.
async fn facts(store: &dyn ObjectStore, cache: &StatCache, path: &Key, carries: bool) -> store::Result<FileFacts> {
    if carries {
        return store.details(path).await.map(|details| posix::facts(&details, true));
    }
    more(store, cache, store.head(path).await?).await
}

/// What is to be known of an object whose size, version and date are.
async fn more(store: &dyn ObjectStore, cache: &StatCache, meta: ObjectMeta) -> store::Result<FileFacts> {
    if meta.size == SYMLINK_SIZE {
        return store.details(&meta.key).await.map(|details| posix::facts(&details, details.symlink.is_some() && cache.keeps_attributes()));
    }
    Ok(FileFacts::from(&meta))
}

/// The marker of `directory` with its attributes. None also where objects may be listed and not be looked at.
async fn marker(store: &dyn ObjectStore, cache: &StatCache, directory: &Key) -> store::Result<Option<Marker>> {
    let asked = Instant::now();
    let marker = store.details(directory).await;
    carrying::learn(cache, directory, &marker, asked)?;
    match marker {
        Ok(details) => Ok(Some(Marker::from(&details))),
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::AccessDenied) => Ok(None),
        Err(error) => Err(error),
    }
}

fn without_slash(directory: &Key) -> Key {
    let bytes = directory.as_bytes();
    Key::from(bytes.strip_suffix(b"/").unwrap_or(bytes))
}

/// Absence is an answer.
fn there(answer: store::Result<FileFacts>) -> store::Result<Option<FileFacts>> {
    match answer {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

/// What a page of keys tells of a name; outer None: it does not.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    /// The object of the name.
    object: Option<Option<ObjectMeta>>,
    /// The first object at or below the directory of the name.
    below: Option<Option<ObjectMeta>>,
}

impl Told {
    /// `page` is the first of the keys that begin with `path`. They come in byte order, so that what was passed is not there.
    fn by(page: ListPage, path: &Key, directory: &Key) -> Self {
        // A store that does not keep the order says nothing by leaving something out.
        if !page.objects.is_sorted_by(|a, b| a.key < b.key) {
            return Self::default();
        }
        let is_last = page.next.is_none();
        let passed = |key: &Key| is_last || page.objects.last().is_some_and(|last| last.key > *key);
        let passed = (passed(path), passed(directory));
        let (mut object, mut below) = (None, None);
        for meta in page.objects {
            if meta.key == *path {
                object = Some(meta);
            } else if below.is_none() && meta.key.as_bytes().starts_with(directory.as_bytes()) {
                below = Some(meta);
            }
        }
        let known = |found: Option<ObjectMeta>, passed| (passed || found.is_some()).then_some(found);
        Self { object: known(object, passed.0), below: known(below, passed.1) }
    }
}

/// Sends `listing` and a HEAD of the object in parallel. Creating a file begins with a lookup of its name: a listing without the name is answer
/// enough, and the HEAD is not awaited. It still runs to its end, because a dropped request closes its connection.
async fn told_and_seen(
    listing: impl Future<Output = store::Result<Told>>,
    store: Arc<dyn ObjectStore>,
    path: &Key,
) -> store::Result<(Told, Option<store::Result<FileFacts>>)> {
    let key = path.clone();
    let head = tokio::spawn(async move { store.details(&key).await });
    let told = listing.await?;
    if told.object == Some(None) {
        return Ok((told, None));
    }
    let details = head.await.unwrap_or_else(|_| Err(store::Error::panicked(Op::Head, path)));
    Ok((told, Some(details.map(|details| posix::facts(&details, true)))))
}

async fn told(store: &dyn ObjectStore, path: &Key, directory: &Key, no_listing: &AtomicBool) -> store::Result<Told> {
    if !store.lists_in_order(path) {
        return Ok(Told::default());
    }
    match store
        .list(&ListRequest { prefix: path.clone(), delimited: false, after: None, token: None, max_keys: PAGE, any_order: false })
        .await
    {
        Ok(page) => Ok(Told::by(page, path, directory)),
        // Nothing may be listed, or only below some directories.
        Err(error) if error.kind == ErrorKind::AccessDenied => {
            no_listing.store(true, Relaxed);
            Ok(Told::default())
        }
        Err(error) => Err(error),
    }
}

async fn head(
    store: &dyn ObjectStore,
    cache: &StatCache,
    path: &Key,
    named_until: Option<Instant>,
    carries: impl Future<Output = store::Result<bool>>,
) -> Result<Fact> {
    let asked = Instant::now();
    let facts = match cache.carries(directory_of(path).as_bytes()) {
        Some(carries) => facts(store, cache, path, carries).await,
        None => {
            let (details, carries) = join!(store.details(path), carries);
            let carries = carries?;
            details.map(|details| posix::facts(&details, carries || details.symlink.is_some() && cache.keeps_attributes()))
        }
    };
    match facts {
        Ok(facts) => Ok(cache.learn_object(path, Some(facts), named_until, asked)),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(cache.learn_object(path, None, None, asked)),
        Err(error) => Err(error.into()),
    }
}

/// The first object at or below `directory`. A page may be empty and not the last: stores filter after they count.
pub(super) async fn first_below(store: &dyn ObjectStore, directory: &Key) -> store::Result<Option<ObjectMeta>> {
    let mut request = ListRequest { prefix: directory.clone(), delimited: false, after: None, token: None, max_keys: 1, any_order: true };
    loop {
        let page = store.list(&request).await?;
        if let Some(first) = page.objects.into_iter().next() {
            if first.key == *directory || store.lists_in_order(directory) {
                return Ok(Some(first));
            }
            // Any of them came; the marker, which is the first, may be there as well.
            return match store.head(directory).await {
                Ok(marker) => Ok(Some(marker)),
                Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::AccessDenied) => Ok(Some(first)),
                Err(error) => Err(error),
            };
        }
        if page.next.is_none() || page.next == request.token {
            return Ok(None);
        }
        request.token = page.next;
    }
}

/// The directory wins. Without the right to list an object can still be served, though a directory may hide it.
fn verdict(object: store::Result<Option<FileFacts>>, below: store::Result<Option<ObjectMeta>>, directory: &Key) -> Result<What> {
    match (below, object) {
        (Ok(Some(first)), _) => Ok(What::Directory(marker_in(&first, directory))),
        (Ok(None), Ok(object)) => Ok(object.map_or(What::Absent, What::File)),
        (Err(error), Ok(Some(facts))) if error.kind == ErrorKind::AccessDenied => Ok(What::File(facts)),
        (Err(error), _) | (Ok(None), Err(error)) => Err(Error::Store(error)),
    }
}

/// The marker sorts before everything below it, so it comes first when there is one.
fn marker_in(first: &ObjectMeta, directory: &Key) -> Option<Marker> {
    (first.key == *directory).then(|| Marker::from(first.modified))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::store::{ETag, Op};

    fn meta(key: &str) -> ObjectMeta {
        ObjectMeta { key: Key::from(key), size: 1, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH }
    }

    fn failed<T>(kind: ErrorKind, op: Op) -> store::Result<T> {
        Err(store::Error::new(kind, op, &Key::from("a"), "failed"))
    }

    #[test]
    fn the_two_answers_make_one_verdict() {
        let file = || What::File(FileFacts::from(&meta("a")));
        let directory = Key::from("a/");
        let object = || FileFacts::from(&meta("a"));
        let verdict = |object, below| verdict(object, below, &directory).map_err(|e| e.errno());
        let absent = || there(failed(ErrorKind::NotFound, Op::Head));
        assert_eq!(verdict(there(Ok(object())), Ok(None)), Ok(file()));
        assert_eq!(verdict(there(Ok(object())), Ok(Some(meta("a/b")))), Ok(What::Directory(None)));
        assert_eq!(verdict(absent(), Ok(Some(meta("a/")))), Ok(What::Directory(Some(Marker::from(SystemTime::UNIX_EPOCH)))));
        assert_eq!(verdict(absent(), Ok(None)), Ok(What::Absent));
        assert_eq!(verdict(failed(ErrorKind::Timeout, Op::Head), Ok(Some(meta("a/b")))), Ok(What::Directory(None)));
        assert_eq!(verdict(failed(ErrorKind::Timeout, Op::Head), Ok(None)), Err(libc::EIO));
        assert_eq!(verdict(there(Ok(object())), failed(ErrorKind::AccessDenied, Op::List)), Ok(file()));
        assert_eq!(verdict(absent(), failed(ErrorKind::AccessDenied, Op::List)), Err(libc::EACCES));
        assert_eq!(verdict(there(Ok(object())), failed(ErrorKind::Timeout, Op::List)), Err(libc::EIO));
        assert_eq!(verdict(absent(), failed(ErrorKind::NoSuchBucket, Op::List)), Err(libc::EIO));
    }

    #[test]
    fn a_page_tells_what_it_has_and_what_it_has_passed() {
        let (path, directory) = (Key::from("a"), Key::from("a/"));
        // What it has, whether more follows, the object, what is below; None: not told.
        let there = |key: &str| Some(Some(meta(key)));
        let (absent, unknown) = (Some(None), None::<Option<ObjectMeta>>);
        for (keys, truncated, object, below) in [
            (&[][..], false, &absent, &absent),
            (&["a"], false, &there("a"), &absent),
            (&["a", "a/"], false, &there("a"), &there("a/")),
            (&["a-b", "a.b", "a/x", "a/y"], true, &absent, &there("a/x")),
            (&["a", "a0"], true, &there("a"), &absent),
            // More may follow that begins with `a/`.
            (&["a", "a-b", "a.b"], true, &there("a"), &unknown),
            (&["a.b"], true, &absent, &unknown),
            (&["a"], true, &there("a"), &unknown),
            // Stores filter after they count.
            (&[], true, &unknown, &unknown),
            // Not in order.
            (&["a0", "a"], true, &unknown, &unknown),
        ] {
            let objects = keys.iter().map(|key| meta(key)).collect();
            let page = ListPage { objects, next: truncated.then(|| "more".into()), ..ListPage::default() };
            let told = Told::by(page, &path, &directory);
            assert_eq!((&told.object, &told.below), (object, below), "{keys:?} {truncated}");
        }
    }
}
