//! Renames. A store has none: objects are copied inside the store and the old ones deleted after all copies are there. Invariants:
//! both names, and all below them, are locked and the turns of their dirty files are taken before the first copy; nothing is deleted before its
//! copy was acknowledged; when a copy fails, the copies made so far are taken back and nothing has moved; when a delete fails, the object is
//! there under both names, and the caches say so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use futures::{FutureExt, StreamExt, stream};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::carrying;
use super::changes::directory_of;
use super::commit::LOOK;
use super::dirty_files::DirtyFile;
use super::edits::Edits;
use super::fact::{Marker, What};
use super::inodes::Inode;
use super::listing::FileFacts;
use super::lookup::object_meta;
use super::options::Conflict;
use super::{Error, Result};
use crate::store::{self, Condition, ErrorKind, Headers, Key, ListRequest, ObjectMeta, Op, PutRequest, RenameRequest, SYMLINK_SIZE};
use crate::writer::Frozen;

/// Copies and deletes in flight of one rename. The store does the work: what bounds them is its patience.
const AT_ONCE: usize = 64;

/// Keys of a page when a directory is listed to be renamed.
const PAGE_KEYS: u16 = 1000;

/// A dirty file that nothing else commits, renames, changes or ends while this lives. What the store has of it stays what it is: a save
/// that a read forces takes no turn, and the frozen content holds it back.
pub(super) struct Held {
    pub file: Arc<DirtyFile>,
    pub content: Frozen,
    pub turn: OwnedMutexGuard<()>,
}

/// What a rename finds under its new name.
enum There {
    Nothing,
    /// The version that the store has; none of a file that is not in it yet.
    File(Option<ObjectMeta>),
    Directory,
}

impl There {
    /// What a file takes the place of.
    ///
    /// # Errors
    /// [`Error::IsADirectory`].
    fn file(self) -> Result<Option<ObjectMeta>> {
        match self {
            Self::Nothing => Ok(None),
            Self::File(meta) => Ok(meta),
            Self::Directory => Err(Error::IsADirectory),
        }
    }
}

/// A rename that the end of the mount waits for: one that is cut off in the middle leaves objects under both names.
struct UnderWay<'a>(&'a Edits, (Key, Key));

impl<'a> UnderWay<'a> {
    fn begin(edits: &'a Edits, from: &Key, to: &Key) -> Self {
        let names = (from.clone(), to.clone());
        edits.renames.lock().push(names.clone());
        Self(edits, names)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut renames = self.0.renames.lock();
        // Both names are locked: there is no other like it.
        renames.retain(|names| *names != self.1);
    }
}

impl Edits {
    /// Waits for what is being renamed, at most for `time`; what is not done by then is named in the log.
    pub(super) async fn end_renames(&self, time: Duration) {
        let began = Instant::now();
        while !self.renames.lock().is_empty() && began.elapsed() < time {
            tokio::time::sleep(LOOK).await;
        }
        for (from, to) in &*self.renames.lock() {
            tracing::error!(%from, %to, "the mount ends in the middle of a rename: objects may be under both names, complete under each");
        }
    }

    /// The dirty file of the name `key`, held.
    ///
    /// # Errors
    /// It was left to another daemon.
    pub(super) async fn hold(&self, key: &Key) -> Result<Option<Held>> {
        match self.names.dirty.turn_of_name(key.as_bytes()).await {
            Some((file, turn)) => self.hold_in_turn(file, turn).await.map(Some),
            None => Ok(None),
        }
    }

    async fn hold_in_turn(&self, file: Arc<DirtyFile>, turn: OwnedMutexGuard<()>) -> Result<Held> {
        let content = file.content.freeze().await;
        // With the content frozen: what is left later is left under the name that this gives it.
        self.check_not_left()?;
        Ok(Held { file, content, turn })
    }

    /// rename(2); `no_replace`: RENAME_NOREPLACE.
    ///
    /// # Errors
    /// EXDEV from one bucket to another, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL for a directory into itself, EMFILE when too much is below it; else what the
    /// store said: then nothing has moved, or what did is in the log.
    pub async fn rename(&self, parent: Inode, name: &[u8], new_parent: Inode, new_name: &[u8], no_replace: bool) -> Result<()> {
        self.names.check_may_change(parent)?;
        self.names.check_may_change(new_parent)?;
        let (from, to, _locked) = loop {
            let [from, to] = [self.names.path(parent, name)?, self.names.path(new_parent, new_name)?];
            // As directories: that covers a file of that name too.
            let locked = self.names.locks.lock([from.join(b"/"), to.join(b"/")]).await;
            // A rename of a directory above may have come first.
            if self.names.path(parent, name)? == from && self.names.path(new_parent, new_name)? == to {
                break (from, to, locked);
            }
        };
        let root_names = self.names.options.root_names;
        if root_names.bucket_of(&from) != root_names.bucket_of(&to) {
            return Err(Error::OtherBucket);
        }
        let _under_way = UnderWay::begin(self, &from, &to);
        let target = if from == to { None } else { self.hold(&to).await? };
        let there = match &target {
            Some(held) => There::File(held.file.committed()),
            None => match self.fact(new_parent, new_name).await?.1.what {
                What::File(facts) => There::File(Some(object_meta(to.clone(), facts))),
                What::Directory(_) => There::Directory,
                What::Absent => There::Nothing,
            },
        };
        if no_replace && !matches!(there, There::Nothing) {
            return Err(Error::Exists);
        }
        if from == to {
            return Ok(());
        }
        if let Some(held) = self.hold(&from).await? {
            return self.rename_dirty(held, &from, new_parent, &to, there.file()?, target).await;
        }
        let (_, fact) = self.fact(parent, name).await?;
        match fact.what {
            What::Absent => Err(Error::NotFound),
            What::File(facts) => {
                there.file()?;
                self.rename_file((&from, facts), new_parent, &to, no_replace, target).await
            }
            What::Directory(_) => self.rename_directory(&from, new_parent, &to, &there).await,
        }
    }

    async fn rename_file(
        &self,
        (from, facts): (&Key, FileFacts),
        parent: Inode,
        to: &Key,
        no_replace: bool,
        target: Option<Held>,
    ) -> Result<()> {
        let source = self.current(from, facts).await?;
        let extra = match self.names.known_name(from).map(|fact| fact.what) {
            Some(What::File(facts)) => facts.extra,
            _ => None,
        };
        self.mark_for_renamed(from, to).await;
        let (is_moved, (source, written)) = match self.move_at_once(&source, to, no_replace).await? {
            Some(moved) => (true, moved),
            None if no_replace => (false, self.copy_to_free_name(&source, to).await?),
            None => (false, self.copy(&source, to, &Condition::Any).await?),
        };
        let meta = ObjectMeta { key: to.clone(), size: source.size, etag: written, modified: source.modified };
        self.replace_target(target).await;
        let source_is_gone = match is_moved {
            true => true,
            false => match self.delete_source(&source).await {
                Ok(is_gone) => is_gone,
                Err(error) => {
                    self.on_copied(&meta, extra);
                    return Err(error);
                }
            },
        };
        self.names.on_renamed(from, parent, to, Some((&source.etag, &meta.etag)));
        self.names.on_removed(from);
        if !source_is_gone {
            self.names.on_unknown(from);
        }
        self.names.on_file(to, FileFacts { extra, ..FileFacts::from(&meta) });
        if let Some(ino) = self.names.known_inode(to) {
            self.files.on_rename(ino, &source.etag, &meta);
        }
        self.files.on_moved(&source, &meta);
        self.names.on_entry_changed(from);
        self.names.on_entry_changed(to);
        self.keep_directory_of(from).await;
        Ok(())
    }

    /// The object `source` was copied, and goes. False: another client has written a new one under its name meanwhile, which stays, as if it had been
    /// written after the rename.
    async fn delete_source(&self, source: &ObjectMeta) -> Result<bool> {
        let deleted = match self.names.options.conflict {
            Conflict::Overwrite => self.store.delete(&source.key).await,
            Conflict::Fail | Conflict::Save => self.store.delete_version(&source.key, &source.etag).await,
        };
        match deleted {
            Err(error) if error.kind == ErrorKind::Replaced => {
                tracing::warn!(key = %source.key, "another client has written there while the object was renamed: that stays");
                Ok(false)
            }
            deleted => Ok(deleted.map(|()| true)?),
        }
    }

    /// The copy `meta` has taken the place of what had its name, and its source could not be deleted.
    fn on_copied(&self, meta: &ObjectMeta, extra: Option<Arc<super::listing::Extra>>) {
        tracing::error!(key = %meta.key, "a rename made this copy and could not delete its source: it is there under both names");
        self.names.on_unlinked(&meta.key);
        self.names.on_file(&meta.key, FileFacts { extra, ..FileFacts::from(meta) });
        self.names.on_entry_changed(&meta.key);
    }

    /// The version of `path` to copy: that which is believed, when it is known which that is.
    async fn current(&self, path: &Key, facts: FileFacts) -> Result<ObjectMeta> {
        if facts.names_version() {
            return Ok(object_meta(path.clone(), facts));
        }
        match self.names.probe.object(path, None).await?.what {
            What::File(facts) => Ok(object_meta(path.clone(), facts)),
            What::Directory(_) | What::Absent => Err(Error::NotFound),
        }
    }

    /// Moves `source` by the request that some stores have for that (see [`store::ObjectStore::rename`]): the version that is there now, when it is not the one
    /// that was known. Returns which that was, and the etag of the target; `None` where the store has no such request.
    ///
    /// # Errors
    /// EEXIST with `no_replace` when the name is not free.
    async fn move_at_once(&self, source: &ObjectMeta, to: &Key, no_replace: bool) -> Result<Option<(ObjectMeta, store::ETag)>> {
        let condition = if no_replace { Condition::Absent } else { Condition::Any };
        let error = match self.store.rename(&rename_request(source, to, condition.clone())).await {
            Ok(moved) => return Ok(moved.map(|written| (source.clone(), written.etag))),
            Err(error) => error,
        };
        // It may have been carried out all the same.
        self.on_unclear_rename(&source.key, to);
        if error.kind != ErrorKind::Replaced {
            return Err(error.into());
        }
        let now = self.store.head(&source.key).await?;
        if now.etag == source.etag {
            return Err(if no_replace { Error::Exists } else { error.into() });
        }
        match self.store.rename(&rename_request(&now, to, condition)).await {
            Err(error) if no_replace && error.kind == ErrorKind::Replaced => Err(Error::Exists),
            moved => Ok(moved?.map(|written| (now, written.etag))),
        }
    }

    /// What the caches say of both names may not be true any more.
    fn on_unclear_rename(&self, from: &Key, to: &Key) {
        self.names.on_unknown(from);
        self.names.on_unknown(to);
    }

    /// Copies, and when the version that was known is not there any more, the one that is. Returns which that was, and the etag of the copy.
    async fn copy(&self, source: &ObjectMeta, to: &Key, condition: &Condition) -> Result<(ObjectMeta, store::ETag)> {
        let copied = store::copy_object(&*self.store, source, to, None, condition).await;
        match copied {
            Err(error) if error.kind == ErrorKind::Replaced => {
                let now = self.store.head(&source.key).await?;
                let etag = store::copy_object(&*self.store, &now, to, None, condition).await?.etag;
                Ok((now, etag))
            }
            result => Ok((source.clone(), result?.etag)),
        }
    }

    /// Copies to a name that must be free. It is reserved by a PUT first: many servers compare the condition of that, and ignore the condition of a copy
    /// (MinIO, versitygw, moto), so that of several renames to one name at once all would succeed.
    async fn copy_to_free_name(&self, source: &ObjectMeta, to: &Key) -> Result<(ObjectMeta, store::ETag)> {
        let reserved = self.reserve(to).await?;
        let copied = self.copy(source, to, &Condition::Is(reserved.clone())).await;
        if copied.is_err()
            && let Err(error) = self.give_back_name(to, &reserved).await
        {
            tracing::warn!(key = %to, %error, "a name that was reserved for a rename stays");
        }
        copied
    }

    /// Deletes the object `reserved`, unless another client has written there since: not every store compares the version of a DELETE (MinIO).
    async fn give_back_name(&self, key: &Key, reserved: &store::ETag) -> store::Result<()> {
        match self.store.head(key).await {
            Ok(there) if there.etag == *reserved => self.store.delete_version(key, reserved).await,
            Err(error) if error.kind != ErrorKind::NotFound => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Makes a small object at `key` that no other client can have made.
    ///
    /// # Errors
    /// EEXIST when the name is not free.
    async fn reserve(&self, key: &Key) -> Result<store::ETag> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let text = format!("reserved for a rename by {host}, process {}, {}\n", std::process::id(), jiff::Timestamp::now());
        let request = PutRequest { key: key.clone(), body: text.into(), headers: Headers::default(), condition: Condition::Absent };
        match self.store.put(&request).await {
            Ok(written) => Ok(written.etag),
            Err(error) if error.kind == ErrorKind::Replaced => {
                self.names.on_unknown(key);
                Err(Error::Exists)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Renames a file that is being written: from now on it is committed under the new name. What the store has of it moves along. `there` is what
    /// the store has under the new one: it stays until the commit.
    async fn rename_dirty(
        &self,
        Held { file, content, turn: _turn }: Held,
        from: &Key,
        parent: Inode,
        to: &Key,
        there: Option<ObjectMeta>,
        target: Option<Held>,
    ) -> Result<()> {
        let (mut moved, mut source, mut source_is_gone) = (None, None, true);
        if let Some(committed) = file.committed().filter(|committed| committed.key == *from) {
            self.mark_for_renamed(from, to).await;
            // This version or none: what was written is a change of it.
            let at_once = self.store.rename(&rename_request(&committed, to, Condition::Any)).await;
            if at_once.is_err() {
                self.on_unclear_rename(from, to);
            }
            let at_once = at_once?;
            let is_moved = at_once.is_some();
            let etag = match at_once {
                Some(written) => written.etag,
                None => store::copy_object(&*self.store, &committed, to, None, &Condition::Any).await?.etag,
            };
            let meta = ObjectMeta { key: to.clone(), etag, ..committed.clone() };
            if !is_moved {
                match self.delete_source(&committed).await {
                    Ok(is_gone) => source_is_gone = is_gone,
                    Err(error) => {
                        self.replace_target(target).await;
                        self.on_copied(&meta, None);
                        return Err(error);
                    }
                }
            }
            source = Some(committed);
            moved = Some(meta);
        }
        self.replace_target(target).await;
        content.rename(to.clone(), moved.clone()).await;
        self.names.on_renamed(from, parent, to, None);
        self.names.dirty.rename(&file, to.clone(), moved.clone().or(there));
        self.names.on_removed(from);
        if !source_is_gone {
            self.names.on_unknown(from);
        }
        if let (Some(meta), Some(source)) = (&moved, &source) {
            self.names.on_file(to, FileFacts::from(meta));
            self.files.on_rename(file.ino, &source.etag, meta);
        }
        self.names.on_entry_changed(from);
        self.names.on_entry_changed(to);
        self.keep_directory_of(from).await;
        Ok(())
    }

    /// What may have attributes where it is has them where it comes to.
    async fn mark_for_renamed(&self, from: &Key, to: &Key) {
        let (before, after) = (directory_of(from), directory_of(to));
        // Where the store does not tell it is as if they had some.
        if before != after && carrying::in_directory(&*self.store, &self.names.cache, &before).await.unwrap_or(true) {
            self.mark_directory_of(to).await;
        }
    }

    /// What is being written under a name that another file has taken goes on for its open handles, and no further.
    async fn replace_target(&self, target: Option<Held>) {
        if let Some(Held { file, content, turn: _turn }) = target {
            self.names.dirty.unlink(&file);
            content.discard().await;
        }
    }

    async fn rename_directory(&self, from: &Key, parent: Inode, to: &Key, there: &There) -> Result<()> {
        let (source, target) = (from.join(b"/"), to.join(b"/"));
        if target.as_bytes().starts_with(source.as_bytes()) {
            return Err(Error::Invalid);
        }
        match there {
            There::File(_) => return Err(Error::NotADirectory),
            There::Directory if self.names.dirty.any_below(&target) || self.has_keys(&target).await? => return Err(Error::NotEmpty),
            There::Directory | There::Nothing => {}
        }
        let has_marker = matches!(there, There::Directory);
        // Nothing below it is begun, committed or ended in the meantime: the names are locked.
        let mut dirty = Vec::new();
        for file in self.names.dirty.below(&source) {
            if let Some(turn) = self.names.dirty.turn(&file).await {
                dirty.push(self.hold_in_turn(file, turn).await?);
            }
        }
        let objects = self.all_below(&source).await?;
        self.mark_for_renamed(from, to).await;
        let (objects, etags): (Vec<_>, Vec<_>) = self.copy_all(&objects, &source, (&target, has_marker)).await?.into_iter().unzip();
        let left = self.delete_all(&objects.iter().map(|object| object.key.clone()).collect::<Vec<_>>()).await;
        if objects.is_empty() {
            // It was there for the kernel only, or for what is being written.
            self.put_marker(to, Condition::Absent).await?;
        }
        let moved: Vec<_> = objects.iter().zip(etags).map(|(object, etag)| moved(object, etag, &source, &target)).collect();
        self.names.on_tree_renamed(&source, parent, &target, &objects, &moved);
        self.move_along(dirty, (&source, &objects), (&target, &moved)).await;
        for key in &left {
            tracing::error!(%key, "the directory was renamed, but this object could not be deleted and is there twice");
            self.names.on_unknown(key);
            self.names.on_unknown(from);
        }
        self.names.on_entry_changed(from);
        self.names.on_entry_changed(to);
        self.keep_directory_of(from).await;
        match left.first() {
            None => Ok(()),
            Some(key) => Err(store::Error::new(ErrorKind::Unavailable, Op::Delete, key, "the copy is there, the original too").into()),
        }
    }

    /// What is open below a directory that was renamed goes on under the new names.
    async fn move_along(&self, dirty: Vec<Held>, (source, objects): (&Key, &[ObjectMeta]), (target, moved): (&Key, &[ObjectMeta])) {
        for (object, meta) in objects.iter().zip(moved) {
            if let Some(ino) = self.names.known_inode(&meta.key) {
                self.files.on_rename(ino, &object.etag, meta);
            }
        }
        for Held { file, content, turn: _turn } in dirty {
            let key = target.join(&file.key().as_bytes()[source.as_bytes().len()..]);
            let before = file.committed();
            let there = objects.iter().zip(moved).find(|(_, meta)| before.is_some() && meta.key == key);
            // What is a change of another version stays that, and its commit says so.
            let base = there.filter(|(object, _)| before.is_some_and(|before| before.etag == object.etag));
            content.rename(key.clone(), base.map(|(_, meta)| meta.clone())).await;
            self.names.dirty.rename(&file, key, there.map(|(_, meta)| meta.clone()));
        }
    }

    /// Every object at or below `directory`.
    async fn all_below(&self, directory: &Key) -> Result<Vec<ObjectMeta>> {
        let limit = self.names.options.rename_limit;
        let mut request =
            ListRequest { prefix: directory.clone(), delimited: false, after: None, token: None, max_keys: PAGE_KEYS, any_order: true };
        let mut objects = Vec::new();
        loop {
            let page = self.store.list(&request).await?;
            objects.extend(page.objects);
            if objects.len() > limit {
                return Err(Error::TooMany(limit));
            }
            if page.next.is_none() || page.next == request.token {
                break;
            }
            request.token = page.next;
        }
        // The marker is the first to be copied and the last to be deleted, whatever the order of the store.
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    /// Copies side by side; what was copied and the etags of the copies, in order. `has_marker`: the target may have had a marker before.
    async fn copy_all(
        &self,
        objects: &[ObjectMeta],
        source: &Key,
        (target, has_marker): (&Key, bool),
    ) -> Result<Vec<(ObjectMeta, store::ETag)>> {
        let moved = |key: &Key| target.join(&key.as_bytes()[source.as_bytes().len()..]);
        let failed = AtomicBool::new(false);
        let copies = objects.iter().map(|object| {
            let (failed, to) = (&failed, moved(&object.key));
            async move {
                if failed.load(Relaxed) {
                    return None;
                }
                let copied = self.copy_to(object, to).await;
                failed.fetch_or(copied.is_err(), Relaxed);
                Some(copied)
            }
            .boxed()
        });
        // To the end of those that have begun, also after one has failed: what was dropped would arrive after it was taken back.
        let begun: Vec<_> = stream::iter(copies.collect::<Vec<_>>()).buffered(AT_ONCE).collect().await;
        // What has not begun has put nothing there: an object that is there is somebody else's.
        let made = objects.iter().zip(&begun).filter(|(_, copy)| copy.is_some()).map(|(object, _)| moved(&object.key));
        let made: Vec<_> = made.filter(|key| !has_marker || key != target).collect();
        let error = match begun.into_iter().flatten().collect() {
            Ok(copied) => return Ok(copied),
            Err(error) => error,
        };
        let left = self.delete_all(&made).await;
        for key in &left {
            tracing::error!(%key, "a rename failed and this copy could not be taken back");
        }
        Err(error)
    }

    /// Returns what could not be deleted.
    async fn delete_all(&self, keys: &[Key]) -> Vec<Key> {
        let left = store::delete_all(&*self.store, keys).await;
        left.iter().for_each(|error| tracing::warn!(%error, "could not delete"));
        left.into_iter().map(|error| error.key).collect()
    }

    async fn copy_to(&self, source: &ObjectMeta, to: Key) -> Result<(ObjectMeta, store::ETag)> {
        self.copy(source, &to, &Condition::Any).await
    }
}

/// A request of its own to move the version `source`.
fn rename_request(source: &ObjectMeta, to: &Key, condition: Condition) -> RenameRequest {
    let token = format!("{:032x}", rand::random::<u128>());
    RenameRequest { source: source.clone(), target: to.clone(), condition, token }
}

impl super::Names {
    /// `from` is called `to` in `parent` now, for the inode table and for what was set on it.
    fn on_renamed(&self, from: &Key, parent: Inode, to: &Key, versions: Option<(&store::ETag, &store::ETag)>) {
        self.inodes.lock().rename(from, parent, to);
        self.own.rename(from.as_bytes(), to, versions);
    }

    /// The directory `from` is called `to` now, and each of `objects` moved along, in the same order.
    fn on_tree_renamed(&self, from: &Key, parent: Inode, to: &Key, objects: &[ObjectMeta], moved: &[ObjectMeta]) {
        self.inodes.lock().rename(from, parent, to);
        let bare = |key: &Key| Key::from(key.as_bytes().strip_suffix(b"/").unwrap_or(key.as_bytes()));
        let posix = self.cache.carries(directory_of(from).as_bytes()) != Some(false);
        let marker = match self.known_name(&bare(from)).map(|fact| fact.what) {
            Some(What::Directory(marker)) if posix => marker,
            _ => Some(Marker::from(SystemTime::now())).filter(|_| !posix),
        };
        self.own.rename(bare(from).as_bytes(), &bare(to), None);
        let mut directories = BTreeSet::new();
        for (object, moved) in objects.iter().zip(moved) {
            if !object.key.is_prefix() {
                let extra =
                    self.known_name(&object.key).and_then(|fact| if let What::File(facts) = fact.what { facts.extra } else { None });
                self.own.rename(object.key.as_bytes(), &moved.key, Some((&object.etag, &moved.etag)));
                self.on_removed(&object.key);
                // What only a HEAD tells of it may not have been asked for.
                let carries = self.cache.carries(directory_of(&object.key).as_bytes()) != Some(false);
                if extra.is_none() && (carries || moved.size == SYMLINK_SIZE) {
                    self.on_unknown(&moved.key);
                } else {
                    self.on_file(&moved.key, FileFacts { extra, ..FileFacts::from(moved) });
                }
            }
            let mut directory = if object.key.is_prefix() { object.key.clone() } else { directory_of(&object.key) };
            while directory.as_bytes().len() > from.as_bytes().len() && directories.insert(directory.clone()) {
                directory = directory_of(&directory);
            }
        }
        for directory in directories {
            let moved = to.join(&directory.as_bytes()[from.as_bytes().len()..]);
            self.own.rename(bare(&directory).as_bytes(), &bare(&moved), None);
            self.on_removed(&bare(&directory));
            self.cache.forget(bare(&moved).as_bytes());
            self.cache.on_moved(&directory, &moved);
            self.on_entries(&directory);
            self.on_entries(&moved);
        }
        self.on_removed(&bare(from));
        self.on_entries(from);
        self.on_entries(to);
        match marker {
            Some(marker) => self.on_directory(&bare(to), marker),
            None => self.on_unknown(&bare(to)),
        }
    }
}

/// `object` after its directory was renamed.
fn moved(object: &ObjectMeta, etag: store::ETag, source: &Key, target: &Key) -> ObjectMeta {
    ObjectMeta { key: target.join(&object.key.as_bytes()[source.as_bytes().len()..]), etag, ..object.clone() }
}
