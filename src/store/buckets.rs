//! Many buckets as one store: the first component of a key names the bucket, the rest is the key in it (`photos/2024/a.jpg` is `2024/a.jpg` of
//! `photos`). A bucket is opened when it is first used, at its own region. Invariant: what a bucket answers is what it would answer to a store
//! of its own; only names of buckets are decided here, and none is created, removed or renamed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::open::check_bucket;
use super::{
    Body, Condition, CopyRequest, Details, ETag, Error, ErrorKind, Headers, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Op, Part,
    PartCopy, PartsPage, PutRequest, RangeRequest, RangeSink, RenameRequest, Result, StoreTime, Tell, Unfinished, Upload, UploadRequest,
    UploadsPage, Written,
};

/// What a mount of one bucket keeps in it for itself: it is shown by no mount.
const OWN_DIRECTORY: &[u8] = b".windlass/";

/// Where a mount of one bucket keeps what other directories say in their marker, which a bucket does not have.
const OWN_MARKER: &[u8] = b".windlass/attributes";

/// Which buckets the keys of a store begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// All that the account may use: those that ListBuckets shows, and others by their names.
    All,
    /// These and no others.
    Named(Vec<String>),
}

/// Where buckets come from.
#[async_trait]
pub(super) trait Account: fmt::Debug + Send + Sync + 'static {
    /// The names of the buckets of the account.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`] when they may not be listed; else what the endpoint answers.
    async fn list_buckets(&self) -> Result<Vec<String>>;

    /// A store for the bucket `name`, at its region. A bucket that may not be read is opened too.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchBucket`]; else what the endpoint answers.
    async fn open_bucket(&self, name: &str) -> Result<Arc<dyn ObjectStore>>;
}

type Opened = Arc<OnceCell<Arc<dyn ObjectStore>>>;

/// See the module.
#[derive(Debug)]
pub(super) struct BucketRouter<A> {
    account: A,
    buckets: Buckets,
    opened: Mutex<HashMap<String, Opened>>,
    /// What directories that are buckets show as their time.
    began: SystemTime,
}

/// A key, or the prefix of a listing, as its bucket has it.
struct Routed<'k> {
    bucket: &'k str,
    /// Behind the bucket and its slash.
    rest: &'k [u8],
}

impl<'k> Routed<'k> {
    /// None: there is no slash, so that it may name a bucket and nothing in it.
    fn of(key: &'k Key) -> Option<Self> {
        let bytes = key.as_bytes();
        let slash = bytes.iter().position(|&byte| byte == b'/')?;
        // What is no text is the name of no bucket.
        Some(Self { bucket: std::str::from_utf8(&bytes[..slash]).unwrap_or_default(), rest: &bytes[slash + 1..] })
    }

    /// The object in the bucket.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when a mount of the bucket would not show it.
    fn object(&self, op: Op, key: &Key) -> Result<Key> {
        match self.rest {
            b"" => Ok(Key::from(OWN_MARKER)),
            rest if is_own(rest) => {
                Err(Error::new(ErrorKind::Invalid, op, key, ".windlass and names below it are kept for windlass itself"))
            }
            rest => Ok(Key::from(rest)),
        }
    }
}

/// Whether `key` of a bucket is the directory that a mount keeps for itself, a file in its place, or below it.
fn is_own(key: &[u8]) -> bool {
    key.starts_with(OWN_DIRECTORY) || OWN_DIRECTORY.strip_suffix(b"/") == Some(key)
}

/// `key` of `bucket` as a key of the whole store.
fn outer_key(bucket: &str, key: &Key) -> Key {
    Key::from([bucket.as_bytes(), b"/", key.as_bytes()].concat())
}

/// `error` of `bucket` as one of the whole store, where what is in a bucket that does not exist is absent. Of a write it stays an error of its own:
/// "not found" may be a success there, as of a deletion.
fn outer_error(bucket: &str, error: Error) -> Error {
    let reads = matches!(error.op, Op::Head | Op::Get | Op::List);
    let kind = if reads && error.kind == ErrorKind::NoSuchBucket { ErrorKind::NotFound } else { error.kind };
    Error { key: outer_key(bucket, &error.key), kind, ..error }
}

/// Whether the error shows that the bucket exists and that the credentials do not give access to it.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::AccessDenied | ErrorKind::BadCredentials | ErrorKind::NoCredentials)
}

/// An object of which the store and the key are known.
struct Target {
    bucket: String,
    store: Arc<dyn ObjectStore>,
    key: Key,
}

impl Target {
    fn told<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| outer_error(&self.bucket, error))
    }

    fn upload(&self, upload: &Upload) -> Upload {
        Upload { key: self.key.clone(), ..upload.clone() }
    }
}

impl<A: Account> BucketRouter<A> {
    /// Routes to the buckets of `account`. Sends no request.
    pub fn new(account: A, buckets: Buckets) -> Self {
        Self { account, buckets, opened: Mutex::default(), began: SystemTime::now() }
    }

    fn may_exist(&self, name: &str) -> bool {
        let is_shown = match &self.buckets {
            Buckets::All => true,
            Buckets::Named(names) => names.iter().any(|named| named == name),
        };
        is_shown && check_bucket(true, name).is_ok()
    }

    /// Returns the store of one bucket, which the first call opens.
    async fn bucket(&self, name: &str) -> Result<Arc<dyn ObjectStore>> {
        if !self.may_exist(name) {
            return Err(Error::new(ErrorKind::NoSuchBucket, Op::Head, &Key::root(), "there is no bucket of this name"));
        }
        let cell = Arc::clone(self.opened.lock().entry(name.to_owned()).or_default());
        let opened = cell.get_or_try_init(|| self.account.open_bucket(name)).await.cloned();
        if opened.is_err() {
            // A lookup of a name that is no bucket must not use memory for good.
            self.opened.lock().retain(|other, cell| other != name || cell.initialized());
        }
        opened
    }

    async fn target(&self, op: Op, key: &Key) -> Result<Target> {
        let Some(routed) = Routed::of(key) else {
            let (kind, message) = match op {
                Op::Head | Op::Get => (ErrorKind::NotFound, "there are only buckets here"),
                _ => (ErrorKind::Invalid, "there are only buckets here: objects are written into one of them"),
            };
            return Err(Error::new(kind, op, key, message));
        };
        let inner = routed.object(op, key)?;
        match self.bucket(routed.bucket).await {
            Ok(store) => Ok(Target { bucket: routed.bucket.to_owned(), store, key: inner }),
            Err(error) => Err(Error { key: key.clone(), ..outer_error(routed.bucket, Error { op, ..error }) }),
        }
    }

    /// The buckets that the root shows. Of those that the options name, all but the ones that turn out not to exist.
    async fn names(&self) -> Result<Vec<String>> {
        let mut names = match &self.buckets {
            Buckets::All => self.account.list_buckets().await?,
            Buckets::Named(names) => {
                let there = join_all(names.iter().map(|name| self.exists(name))).await;
                names.iter().zip(there).filter(|(_, there)| !matches!(there, Ok(false))).map(|(name, _)| name.clone()).collect()
            }
        };
        names.retain(|name| self.may_exist(name));
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Whether the bucket exists, as far as that can be found out: one that may not be read does.
    async fn exists(&self, name: &str) -> Result<bool> {
        let question = ListRequest { prefix: Key::root(), delimited: false, after: None, token: None, max_keys: 1, any_order: true };
        let answered = match self.bucket(name).await {
            Ok(store) => store.list(&question).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match answered {
            Ok(()) => Ok(true),
            Err(error) if is_refusal(error.kind) => Ok(true),
            Err(error) if error.kind == ErrorKind::NoSuchBucket => {
                self.opened.lock().remove(name);
                Ok(false)
            }
            Err(error) => Err(outer_error(name, error)),
        }
    }

    /// Directories of the root, which are buckets.
    async fn list_root(&self, request: &ListRequest) -> Result<ListPage> {
        let prefix = request.prefix.as_bytes();
        if request.delimited {
            let keys = self.names().await?.into_iter().map(|name| Key::from(format!("{name}/")));
            let is_shown = |key: &Key| key.as_bytes().starts_with(prefix) && request.after.as_ref().is_none_or(|after| *after < *key);
            return Ok(ListPage { prefixes: keys.filter(is_shown).collect(), ..ListPage::default() });
        }
        if prefix.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, Op::List, &request.prefix, "buckets are not listed into: name one"));
        }
        // The question what one name stands for.
        let is_there = match request.prefix.to_str() {
            Some(name) => self.exists(name).await?,
            None => false,
        };
        let objects = if is_there { vec![self.marker(&request.prefix.join(b"/"))] } else { Vec::new() };
        Ok(ListPage { objects, ..ListPage::default() })
    }

    /// What shows that a bucket is there, also when nothing is in it: a marker as other directories have one.
    fn marker(&self, key: &Key) -> ObjectMeta {
        ObjectMeta { key: key.clone(), size: 0, etag: ETag::from(""), modified: self.began }
    }

    /// `page` of the listing of `routed` as a page of the whole store.
    fn outer_page(&self, routed: &Routed<'_>, request: &ListRequest, page: ListPage) -> ListPage {
        let hides = OWN_DIRECTORY.starts_with(routed.rest) || routed.rest.starts_with(OWN_DIRECTORY);
        let is_shown = |key: &Key| !hides || !is_own(key.as_bytes());
        let mut sums = page.sums.into_iter();
        let mut outer = ListPage { next: page.next, asked: page.asked, ..ListPage::default() };
        let begins = request.token.is_none() && request.after.as_ref().is_none_or(|after| *after < request.prefix);
        if routed.rest.is_empty() && begins {
            outer.objects.push(self.marker(&request.prefix));
            outer.sums.push(None);
        }
        for object in page.objects {
            let sum = sums.next().flatten();
            if is_shown(&object.key) {
                outer.objects.push(ObjectMeta { key: outer_key(routed.bucket, &object.key), ..object });
                outer.sums.push(sum);
            }
        }
        outer.prefixes = page.prefixes.iter().filter(|key| is_shown(key)).map(|key| outer_key(routed.bucket, key)).collect();
        outer
    }

    /// The stores that have been opened.
    fn open_stores(&self) -> Vec<Arc<dyn ObjectStore>> {
        self.opened.lock().values().filter_map(|cell| cell.get().cloned()).collect()
    }
}

#[async_trait]
impl<A: Account> ObjectStore for BucketRouter<A> {
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let target = self.target(Op::Head, key).await?;
        let meta = target.told(target.store.head(&target.key).await)?;
        Ok(ObjectMeta { key: key.clone(), ..meta })
    }

    /// Of a bucket that has not been opened it is not known.
    fn lists_in_order(&self, prefix: &Key) -> bool {
        let Some(routed) = Routed::of(prefix) else { return true };
        let store = self.opened.lock().get(routed.bucket).and_then(|cell| cell.get().cloned());
        store.is_none_or(|store| store.lists_in_order(&Key::from(routed.rest)))
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.list_telling(request, &|_| {}).await
    }

    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        let Some(routed) = Routed::of(&request.prefix) else { return self.list_root(request).await };
        // One key asks whether the bucket exists, and not what is in it: one that may not be read is a directory all the same.
        let asks_existence = routed.rest.is_empty() && !request.delimited && request.max_keys == 1;
        let after = match &request.after {
            Some(after) if *after <= request.prefix => None,
            Some(after) => match Routed::of(after).filter(|after| after.bucket == routed.bucket) {
                Some(after) => Some(Key::from(after.rest)),
                // All of the bucket comes before it.
                None => return Ok(ListPage::default()),
            },
            None => None,
        };
        let inner = ListRequest { prefix: Key::from(routed.rest), after, ..request.clone() };
        let listed = match self.bucket(routed.bucket).await {
            Ok(store) => store.list_telling(&inner, tell).await,
            Err(error) => Err(error),
        };
        match listed {
            Ok(page) => Ok(self.outer_page(&routed, request, page)),
            Err(error) if asks_existence && error.kind == ErrorKind::NoSuchBucket => Ok(ListPage::default()),
            Err(error) if asks_existence && is_refusal(error.kind) => Ok(self.outer_page(&routed, request, ListPage::default())),
            Err(error) => Err(outer_error(routed.bucket, Error { op: Op::List, ..error })),
        }
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let target = self.target(Op::Get, &request.key).await?;
        let inner = RangeRequest { key: target.key.clone(), ..request.clone() };
        target.told(target.store.get_range(&inner, sink).await)
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        let target = self.target(Op::Head, key).await?;
        let details = target.told(target.store.details(&target.key).await)?;
        Ok(Details { meta: ObjectMeta { key: key.clone(), ..details.meta }, ..details })
    }

    async fn details_to_keep(&self, key: &Key) -> Result<Details> {
        let target = self.target(Op::Head, key).await?;
        let details = target.told(target.store.details_to_keep(&target.key).await)?;
        Ok(Details { meta: ObjectMeta { key: key.clone(), ..details.meta }, ..details })
    }

    async fn put(&self, request: &PutRequest) -> Result<Written> {
        let target = self.target(Op::Put, &request.key).await?;
        let inner = PutRequest { key: target.key.clone(), ..request.clone() };
        target.told(target.store.put(&inner).await)
    }

    async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        let target = self.target(Op::CreateUpload, &request.key).await?;
        let inner = UploadRequest { key: target.key.clone(), ..request.clone() };
        let upload = target.told(target.store.create_upload(&inner).await)?;
        Ok(Upload { key: request.key.clone(), ..upload })
    }

    async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        let target = self.target(Op::UploadPart, &upload.key).await?;
        target.told(target.store.upload_part(&target.upload(upload), number, body).await)
    }

    async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        let target = self.target(Op::CopyPart, &upload.key).await?;
        let from = source_in(&target, Op::CopyPart, &source.source)?;
        target.told(target.store.copy_part(&target.upload(upload), number, &PartCopy { source: from, ..source.clone() }).await)
    }

    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        let target = self.target(Op::CompleteUpload, &upload.key).await?;
        target.told(target.store.complete_upload(&target.upload(upload), parts, condition).await)
    }

    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        let target = self.target(Op::AbortUpload, &upload.key).await?;
        target.told(target.store.abort_upload(&target.upload(upload)).await)
    }

    async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        let Some(routed) = Routed::of(prefix) else {
            return Err(Error::new(ErrorKind::Invalid, Op::ListUploads, prefix, "uploads are listed bucket by bucket: name one"));
        };
        let store = self.bucket(routed.bucket).await.map_err(|error| Error { op: Op::ListUploads, key: prefix.clone(), ..error })?;
        let after = after.and_then(|(key, id)| Some((Key::from(Routed::of(key)?.rest), id.clone())));
        let page = store.list_uploads(&Key::from(routed.rest), after.as_ref()).await.map_err(|error| outer_error(routed.bucket, error))?;
        let uploads = page.uploads.into_iter().map(|upload| Unfinished { key: outer_key(routed.bucket, &upload.key), ..upload });
        let next = page.next.map(|(key, id)| (outer_key(routed.bucket, &key), id));
        Ok(UploadsPage { uploads: uploads.collect(), next })
    }

    async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        let target = self.target(Op::ListParts, &upload.key).await?;
        target.told(target.store.list_parts(&target.upload(upload), after).await)
    }

    async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        let target = self.target(Op::Copy, &request.target).await?;
        let source = source_in(&target, Op::Copy, &request.source)?;
        target.told(target.store.copy(&CopyRequest { source, target: target.key.clone(), ..request.clone() }).await)
    }

    async fn rename(&self, request: &RenameRequest) -> Result<Option<Written>> {
        let target = self.target(Op::Rename, &request.target).await?;
        let key = source_in(&target, Op::Rename, &request.source.key)?;
        let source = ObjectMeta { key, ..request.source.clone() };
        let inner = RenameRequest { source, target: target.key.clone(), ..request.clone() };
        target.told(target.store.rename(&inner).await)
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        let target = self.target(Op::Delete, key).await?;
        target.told(target.store.delete(&target.key).await)
    }

    async fn delete_version(&self, key: &Key, etag: &ETag) -> Result<()> {
        let target = self.target(Op::Delete, key).await?;
        target.told(target.store.delete_version(&target.key, etag).await)
    }

    async fn delete_many(&self, keys: &[Key]) -> Result<Vec<Error>> {
        let mut by_bucket: BTreeMap<&str, Vec<Key>> = BTreeMap::new();
        let mut left = Vec::new();
        for key in keys {
            let routed = Routed::of(key).ok_or_else(|| Error::new(ErrorKind::Invalid, Op::Delete, key, "buckets are not deleted here"));
            match routed.and_then(|routed| Ok((routed.object(Op::Delete, key)?, routed.bucket))) {
                Ok((inner, bucket)) => by_bucket.entry(bucket).or_default().push(inner),
                Err(error) => left.push(error),
            }
        }
        for (bucket, keys) in by_bucket {
            let deleted = match self.bucket(bucket).await {
                Ok(store) => store.delete_many(&keys).await,
                Err(error) => Err(error),
            };
            match deleted {
                Ok(errors) => left.extend(errors.into_iter().map(|error| outer_error(bucket, error))),
                Err(error) => left.extend(keys.iter().map(|key| Error { op: Op::Delete, key: outer_key(bucket, key), ..error.clone() })),
            }
        }
        Ok(left)
    }

    async fn settle(&self) {
        for store in self.open_stores() {
            store.settle().await;
        }
    }

    /// Buckets of one account have one clock, as far as dates of seconds go.
    fn time_at(&self, at: Instant) -> Option<StoreTime> {
        self.open_stores().iter().find_map(|store| store.time_at(at))
    }

    async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        let place = self.target(Op::Put, key).await?;
        place.told(place.store.put_symlink(&place.key, target, headers, condition).await)
    }
}

/// The source of a copy, which is in the bucket of its target: a copy from another bucket needs rights and, in another region, requests that a
/// rename does not have. A rename is refused before (EXDEV), so that programs copy.
fn source_in(target: &Target, op: Op, source: &Key) -> Result<Key> {
    match Routed::of(source) {
        Some(routed) if routed.bucket == target.bucket => routed.object(op, source),
        _ => Err(Error::new(ErrorKind::Invalid, op, source, "objects are not copied from one bucket to another inside the store")),
    }
}

#[cfg(test)]
mod tests;
