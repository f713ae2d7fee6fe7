//! chmod, chown, utimens and truncate. Invariant: what was set is what the next stat shows, whether or not the store keeps it. Only where a
//! file has lost its name through this mount nothing is kept: another one may have the name.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::attr::Attr;
use super::carrying;
use super::changes::directory_of;
use super::edits::{BasedOn, Edits};
use super::fact::{Marker, What};
use super::files::HandleId;
use super::inodes::{Inode, Kind};
use super::listing::{Extra, FileFacts, Posix};
use super::lookup::{object_key, path_of};
use super::options::PosixAttributes;
use super::own::NewAttributes;
use super::rename::Held;
use super::user_attributes::{NamedChange, UserAttributes};
use super::{Error, Result, posix};
use crate::store::{Condition, Details, ErrorKind, Headers, Key, ObjectMeta, SYMLINK_SIZE};

/// Bits of a mode (`inode(7)`).
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const EXECUTABLE_BY_GROUP: u16 = 0o010;

/// What setattr asks for; none leaves it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    pub size: Option<u64>,
    pub own: NewAttributes,
}

impl Edits {
    /// Sets attributes and shows what they are then. `handle`: the one that ftruncate(2) was called on.
    ///
    /// # Errors
    /// ENOENT, EISDIR for the size of a directory, ENOSPC, else what the store said.
    pub async fn set_attributes(&self, ino: Inode, handle: Option<HandleId>, set: SetAttributes) -> Result<(Attr, Duration)> {
        if let Some(size) = set.size {
            self.set_size(ino, handle, size).await?;
        }
        if set.own != NewAttributes::default() && !self.lost_its_name(ino) {
            let own = self.without_privileges(ino, set.own).await?;
            self.set_own(ino, own).await?;
        }
        match self.files.attributes_of_open(ino).or_else(|| self.attributes_of_removed(ino)) {
            Some(attr) => Ok((attr, Duration::ZERO)),
            None => self.names.getattr(ino).await,
        }
    }

    pub(super) fn lost_its_name(&self, ino: Inode) -> bool {
        self.names.is_removed(ino) || self.names.dirty.get(ino).is_some_and(|file| file.is_unwanted())
    }

    async fn set_size(&self, ino: Inode, handle: Option<HandleId>, size: u64) -> Result<()> {
        if let Some(handle) = handle.filter(|&handle| self.knows(handle)) {
            return self.truncate(handle, size).await;
        }
        self.check_change(ino)?;
        // truncate(2) by name: opened, cut and closed.
        self.names.dirty.open_handle(ino, true);
        let cut = self.set_size_of_opened(ino, size).await;
        if let Some(file) = self.names.dirty.close_handle(ino, true) {
            self.end(&file).await;
        }
        cut
    }

    async fn set_size_of_opened(&self, ino: Inode, size: u64) -> Result<()> {
        let file = if size == 0 { self.begin_empty(ino).await? } else { self.begin_edit(ino, BasedOn::Any).await? };
        if size > 0 {
            self.truncate_file(&file, size).await?;
        }
        // With other writers their close commits it.
        if self.names.dirty.writers(ino) > 1 { Ok(()) } else { self.commit(&file).await }
    }

    /// A new owner or group takes setuid and setgid away from what can be run: FUSE_HANDLE_KILLPRIV_V2 leaves that to us. The set-group-id
    /// bit of what the group cannot run means something else (`chown(2)`).
    async fn without_privileges(&self, ino: Inode, new: NewAttributes) -> Result<NewAttributes> {
        if new.uid.is_none() && new.gid.is_none() || new.mode.is_some() {
            return Ok(new);
        }
        let (attr, _) = self.names.getattr(ino).await?;
        let taken = if attr.perm & EXECUTABLE_BY_GROUP != 0 { SETUID | SETGID } else { SETUID };
        let keeps_all = attr.kind != Kind::File || attr.perm & taken == 0;
        Ok(if keeps_all { new } else { NewAttributes { mode: Some(attr.perm & !taken), ..new } })
    }

    async fn set_own(&self, ino: Inode, new: NewAttributes) -> Result<()> {
        if let Some(file) = self.names.dirty.get(ino) {
            // After a commit that is under way: what is set belongs to the version that it makes.
            let turn = self.names.dirty.turn(&file).await;
            if turn.is_some() && (file.content.is_dirty() || file.is_new()) {
                self.names.own.set(&file.key(), new, None);
                return Ok(());
            }
        }
        let node = self.names.node(ino)?;
        let path = Key::from(path_of(&node));
        if node.kind() == Kind::Directory {
            self.names.own.set(&path, new, None);
            // The root has no marker, nor has a bucket: its attributes live as long as the mount.
            let stores = self.names.options.posix_attributes != PosixAttributes::Off
                && ino != Inode::ROOT
                && !self.names.is_root_of_bucket(path.as_bytes());
            return if stores { self.store_own_of_directory(&path, None).await } else { Ok(()) };
        }
        let (meta, _) = self.names.fresh_object(ino).await?;
        self.names.own.set(&path, new, Some(meta.etag.clone()));
        if self.names.options.posix_attributes != PosixAttributes::Off {
            self.store_own(&path, &meta, None).await?;
        }
        Ok(())
    }

    /// Writes the attributes of a directory into the metadata of its marker, which is made when there is none: a copy onto itself, so that
    /// what else it has stays. With `change`, that of an attribute of programs is made as well.
    pub(super) async fn store_own_of_directory(&self, path: &Key, change: Option<NamedChange<'_>>) -> Result<()> {
        self.mark_directory_of(path).await;
        let directory = path.join(b"/");
        let mut there = self.store.details_to_keep(&directory).await;
        if change.is_some() && there.as_ref().is_err_and(|error| error.kind == ErrorKind::NotFound) {
            self.put_marker(path, Condition::Any).await?;
            there = self.store.details_to_keep(&directory).await;
        }
        let marker = match there {
            Err(error) if error.kind == ErrorKind::NotFound => self.put_marker(path, Condition::Any).await?,
            Err(error) => return Err(error.into()),
            Ok(mut details) => {
                self.apply(change, &mut details.headers)?;
                let user = UserAttributes::read(&details.headers.metadata);
                let own = posix::over(self.names.own.of_directory(path.as_bytes()), &details);
                let mut modified = details.meta.modified;
                if change.is_some() || own != posix::read(&details.headers.metadata) {
                    let headers = posix::headers(details.headers, &own, &self.names.options, true);
                    crate::store::copy_object(&*self.store, &details.meta, &directory, Some(headers), &Condition::Any).await?;
                    modified = SystemTime::now();
                }
                self.names.own.on_stored(path.as_bytes());
                self.names.cache.learn_carries(&directory, true, Instant::now());
                Marker { modified, posix: own, user }
            }
        };
        self.names.on_directory(path, marker);
        Ok(())
    }

    /// Writes the attributes of a file into its metadata: a copy onto itself. `shown`: what is known of it. With `change`, that of an attribute of
    /// programs is made as well.
    pub(super) async fn store_own(&self, path: &Key, shown: &ObjectMeta, change: Option<NamedChange<'_>>) -> Result<()> {
        let mut details = self.store.details_to_keep(path).await?;
        if details.meta.etag == shown.etag {
            // A HEAD tells whole seconds: a time that nobody set stays what it was.
            details.meta.modified = shown.modified;
        }
        self.apply(change, &mut details.headers)?;
        let set = self.names.own.get(path.as_bytes(), Some(&details.meta.etag));
        if change.is_none() && !self.stores_attributes(&set, &details.headers.metadata, false) {
            return Ok(());
        }
        let own = posix::over(set, &details);
        if let Some(target) = details.symlink.clone() {
            return self.store_own_of_link(path, details, target, own).await;
        }
        self.mark_directory_of(path).await;
        let headers = posix::headers(details.headers, &own, &self.names.options, false);
        let metadata = headers.metadata.clone();
        let written = crate::store::copy_object(&*self.store, &details.meta, path, Some(headers), &Condition::Any).await?;
        let meta = crate::store::ObjectMeta { etag: written.etag, modified: SystemTime::now(), ..details.meta.clone() };
        self.names.own.rename(path.as_bytes(), path, Some((&details.meta.etag, &meta.etag)));
        self.names.on_file(path, posix::with(FileFacts::from(&meta), &own, &self.names.options, &metadata));
        if let Some(ino) = self.names.known_inode(path) {
            self.files.on_rename(ino, &details.meta.etag, &meta);
        }
        self.rebase(path, &details.meta, meta).await
    }

    fn apply(&self, change: Option<NamedChange<'_>>, headers: &mut Headers) -> Result<()> {
        change.map_or(Ok(()), |(name, change)| change.apply(name, &mut headers.metadata, self.store.most_metadata()))
    }

    /// Writes the attributes of a symbolic link, all but its mode: with the link itself, which some stores cannot copy. One that another client has
    /// made in its own way stays as it is.
    async fn store_own_of_link(&self, path: &Key, details: Details, target: Vec<u8>, own: Posix) -> Result<()> {
        if details.meta.size != SYMLINK_SIZE {
            return Ok(());
        }
        let mut headers = posix::headers(details.headers, &own, &self.names.options, false);
        headers.metadata.remove("mode");
        let written = self.store.put_symlink(path, &target, &headers, &Condition::Is(details.meta.etag.clone())).await?;
        self.names.own.rename(path.as_bytes(), path, Some((&details.meta.etag, &written.etag)));
        let posix = Posix { mode: None, ..own };
        let extra = Some(Arc::new(Extra { link: Some(target), posix, ..Extra::default() }));
        self.names.on_file(path, FileFacts { size: SYMLINK_SIZE, etag: written.etag, modified: SystemTime::now(), extra });
        Ok(())
    }

    /// The directory that `path` is in says from now on that its entries may have attributes: before the first one gets some, so that no mount
    /// takes it for one that has none. What cannot be marked is logged once for each bucket, and the change goes on: `--posix-attributes on` asks for
    /// every object.
    pub(super) async fn mark_directory_of(&self, path: &Key) {
        let directory = directory_of(path);
        if self.names.options.posix_attributes != PosixAttributes::Auto || self.names.cache.carries(directory.as_bytes()) == Some(true) {
            return;
        }
        // Of many files that are stored at the same time one marks the directory.
        let marked = self.marks.join(&directory, || {
            let (store, cache, directory) = (self.store.clone(), self.names.cache.clone(), directory.clone());
            async move { carrying::mark(&*store, &cache, &directory).await }
        });
        let marked = marked.await;
        if let Err(error) = marked
            && self.cannot_mark.lock().insert(self.names.options.root_names.bucket_of(path))
        {
            tracing::warn!(%directory, %error, "other mounts need --posix-attributes=on to see mode, owner and times of what is in this directory");
        }
    }

    /// A file that is open for changes is based on `after` from now on, which has the bytes of `before`.
    async fn rebase(&self, path: &Key, before: &ObjectMeta, after: ObjectMeta) -> Result<()> {
        if let Some(Held { file, content, turn: _turn }) = self.hold(path).await?
            && file.committed().is_some_and(|committed| committed.etag == before.etag)
        {
            content.rename(path.clone(), Some(after.clone())).await;
            self.names.dirty.rename(&file, path.clone(), Some(after));
        }
        Ok(())
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// EINVAL when it is none.
    pub async fn read_link(&self, ino: Inode) -> Result<Vec<u8>> {
        self.names.read_link(ino).await
    }
}

impl super::Names {
    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// EINVAL when it is none.
    pub async fn read_link(&self, ino: Inode) -> Result<Vec<u8>> {
        self.settled(ino, |node| async move {
            let key = object_key(node)?;
            let fact = match self.cache.object(key.as_bytes()) {
                Some(fact) if matches!(&fact.what, What::File(facts) if facts.extra.is_some()) => fact,
                _ => self.probe.refresh(&key).await?,
            };
            match fact.what {
                What::File(facts) => facts.link().map(<[u8]>::to_vec).ok_or(Error::Invalid),
                What::Directory(_) | What::Absent => Err(Error::NotFound),
            }
        })
        .await
    }
}
