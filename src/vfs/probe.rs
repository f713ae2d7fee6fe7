//! Asks the store what a name stands for: one round trip, single flight, and the answer goes into the stat cache.
//! It knows no inodes. Invariant: only an answer of the store becomes a fact; a request that failed for another
//! reason than absence is returned as it is and leaves nothing behind.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::join;
use tokio::time::Instant;

use super::error::{Error, Result};
use super::fact::{Fact, What};
use super::flight::Flights;
use super::hidden::Hidden;
use super::listing::FileFacts;
use super::posix;
use super::stat_cache::StatCache;
use crate::store::{self, ErrorKind, Key, ListRequest, ObjectMeta, ObjectStore, SYMLINK_SIZE};

type Answers = Flights<Result<Fact>>;

/// The store, seen name by name.
#[derive(Debug)]
pub struct Probe {
    store: Arc<dyn ObjectStore>,
    cache: StatCache,
    hidden: Arc<Hidden>,
    /// Attributes are kept in the metadata of objects.
    posix: bool,
    names: Answers,
    objects: Answers,
    refreshes: Answers,
    directories: Answers,
}

impl Probe {
    /// Asks `store` and fills `cache`.
    pub fn new(store: Arc<dyn ObjectStore>, cache: StatCache, hidden: Arc<Hidden>, posix: bool) -> Self {
        let [names, objects, refreshes, directories] = [(); 4].map(|()| Answers::default());
        Self { store, cache, hidden, posix, names, objects, refreshes, directories }
    }

    /// What `path` stands for: HEAD of the object and LIST of what is below it, side by side.
    pub async fn name(&self, path: &Key) -> Result<Fact> {
        let answer = self.names.join(path, || {
            let (store, cache, hidden, path) = (self.store.clone(), self.cache.clone(), self.hidden.clone(), path.clone());
            let posix = self.posix;
            async move {
                if let Some(fact) = cache.name(path.as_bytes()) {
                    return Ok(fact);
                }
                let directory = path.join(b"/");
                let asked = Instant::now();
                let (object, below) = join!(facts(&*store, &path, posix), first_below(&*store, &directory));
                if let (Ok(_), Ok(Some(_))) = (&object, &below) {
                    hidden.note(&path);
                }
                Ok(cache.learn_name(&path, verdict(object, below, &directory)?, asked))
            }
        });
        answer.await
    }

    /// What the object at `path` is, from the cache while that is believed and names a version. `named_until`: how long a listing lets
    /// the caller believe that no directory hides it.
    pub async fn object(&self, path: &Key, named_until: Option<Instant>) -> Result<Fact> {
        let answer = self.objects.join(path, || {
            let (store, cache, path, posix) = (self.store.clone(), self.cache.clone(), path.clone(), self.posix);
            async move {
                match cache.object(path.as_bytes()) {
                    Some(fact) if matches!(&fact.what, What::File(facts) if facts.names_version()) => Ok(fact),
                    _ => head(&*store, &cache, &path, named_until, posix).await,
                }
            }
        });
        answer.await
    }

    /// What the object at `path` is now, whatever is believed. A flight of its own, so that it never joins a HEAD
    /// that was sent before the caller noticed that the object changed.
    pub async fn refresh(&self, path: &Key) -> Result<Fact> {
        let answer = self.refreshes.join(path, || {
            let (store, cache, path, posix) = (self.store.clone(), self.cache.clone(), path.clone(), self.posix);
            async move { head(&*store, &cache, &path, None, posix).await }
        });
        answer.await
    }

    /// Answers to what is asked of these keys now are not given to those who ask later.
    pub fn abandon(&self, is_one: impl Fn(&Key) -> bool) {
        for flights in [&self.names, &self.objects, &self.refreshes, &self.directories] {
            flights.abandon(&is_one);
        }
    }

    /// Whether there is something at or below `directory` (which ends in `/`): one LIST.
    pub async fn directory(&self, directory: &Key) -> Result<Fact> {
        let answer = self.directories.join(directory, || {
            let (store, cache, directory) = (self.store.clone(), self.cache.clone(), directory.clone());
            async move {
                let bytes = directory.as_bytes();
                let path = Key::from(bytes.strip_suffix(b"/").unwrap_or(bytes));
                let asked = Instant::now();
                match first_below(&*store, &directory).await? {
                    Some(first) => Ok(cache.learn_name(&path, What::Directory(marker_time(&first, &directory)), asked)),
                    None => Ok(cache.learn_object(&path, None, None, asked)),
                }
            }
        });
        answer.await
    }
}

/// What the object at `path` is: by a HEAD that tells everything where attributes are kept with it, or where its size says that it may be a
/// symbolic link.
async fn facts(store: &dyn ObjectStore, path: &Key, posix: bool) -> store::Result<FileFacts> {
    if posix {
        return store.details(path).await.map(|details| posix::facts(&details, true));
    }
    let meta = store.head(path).await?;
    if meta.size == SYMLINK_SIZE {
        return store.details(path).await.map(|details| posix::facts(&details, false));
    }
    Ok(FileFacts::from(&meta))
}

async fn head(store: &dyn ObjectStore, cache: &StatCache, path: &Key, named_until: Option<Instant>, posix: bool) -> Result<Fact> {
    let asked = Instant::now();
    match facts(store, path, posix).await {
        Ok(facts) => Ok(cache.learn_object(path, Some(facts), named_until, asked)),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(cache.learn_object(path, None, None, asked)),
        Err(error) => Err(error.into()),
    }
}

/// The first object at or below `directory`. A page may be empty and not the last: stores filter after they count.
pub(super) async fn first_below(store: &dyn ObjectStore, directory: &Key) -> store::Result<Option<ObjectMeta>> {
    let mut request = ListRequest { prefix: directory.clone(), delimited: false, token: None, max_keys: 1 };
    loop {
        let page = store.list(&request).await?;
        if let Some(first) = page.objects.into_iter().next() {
            return Ok(Some(first));
        }
        if page.next.is_none() || page.next == request.token {
            return Ok(None);
        }
        request.token = page.next;
    }
}

/// The directory wins. Without the right to list an object can still be served, though a directory may hide it.
fn verdict(object: store::Result<FileFacts>, below: store::Result<Option<ObjectMeta>>, directory: &Key) -> Result<What> {
    match (below, object) {
        (Ok(Some(first)), _) => Ok(What::Directory(marker_time(&first, directory))),
        (Ok(None), Ok(facts)) => Ok(What::File(facts)),
        (Ok(None), Err(error)) if error.kind == ErrorKind::NotFound => Ok(What::Absent),
        (Err(error), Ok(facts)) if error.kind == ErrorKind::AccessDenied => Ok(What::File(facts)),
        (Err(error), _) | (Ok(None), Err(error)) => Err(Error::Store(error)),
    }
}

/// The marker sorts before everything below it, so it comes first when there is one.
fn marker_time(first: &ObjectMeta, directory: &Key) -> Option<SystemTime> {
    (first.key == *directory).then_some(first.modified)
}

#[cfg(test)]
mod tests {
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
        let absent = || failed(ErrorKind::NotFound, Op::Head);
        assert_eq!(verdict(Ok(object()), Ok(None)), Ok(file()));
        assert_eq!(verdict(Ok(object()), Ok(Some(meta("a/b")))), Ok(What::Directory(None)));
        assert_eq!(verdict(absent(), Ok(Some(meta("a/")))), Ok(What::Directory(Some(SystemTime::UNIX_EPOCH))));
        assert_eq!(verdict(absent(), Ok(None)), Ok(What::Absent));
        assert_eq!(verdict(failed(ErrorKind::Timeout, Op::Head), Ok(Some(meta("a/b")))), Ok(What::Directory(None)));
        assert_eq!(verdict(failed(ErrorKind::Timeout, Op::Head), Ok(None)), Err(libc::EIO));
        assert_eq!(verdict(Ok(object()), failed(ErrorKind::AccessDenied, Op::List)), Ok(file()));
        assert_eq!(verdict(absent(), failed(ErrorKind::AccessDenied, Op::List)), Err(libc::EACCES));
        assert_eq!(verdict(Ok(object()), failed(ErrorKind::Timeout, Op::List)), Err(libc::EIO));
        assert_eq!(verdict(absent(), failed(ErrorKind::NoSuchBucket, Op::List)), Err(libc::EIO));
    }
}
