//! Names that come and go: directories, links, and files that are removed. Invariant: a request that changes the bucket is sent only
//! when what it needs was seen to be true; the answer is told to the caches before it is told to the kernel.

use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use tokio::time::Instant;

use super::attr::Entry;
use super::changes::directory_of;
use super::edits::{Caller, Edits};
use super::fact::{Fact, Marker, What};
use super::inodes::Inode;
use super::listing::{Extra, FileFacts};
use super::probe::first_below;
use super::rename::Held;
use super::{Error, Result, posix};
use crate::store::{Condition, DIRECTORY_TYPE, ErrorKind, Headers, Key, ListRequest, PutRequest};

/// Keys asked for to see whether a directory is empty: its marker, and one more.
const FEW: u16 = 2;

impl Edits {
    /// What `name` in `parent` stands for.
    pub(super) async fn fact(&self, parent: Inode, name: &[u8]) -> Result<(Key, Fact)> {
        let path = self.names.path(parent, name)?;
        let fact = match self.names.known_name(&path) {
            Some(fact) => fact,
            None => self.names.probed(&path).await?,
        };
        Ok((path, fact))
    }

    /// Makes a directory: writes its marker object. Counts as one lookup.
    ///
    /// # Errors
    /// EEXIST, EPERM where there are only buckets, else what the store said.
    pub async fn mkdir(&self, parent: Inode, name: &[u8], mode: u16, caller: Caller) -> Result<Entry> {
        self.names.check_may_change(parent)?;
        let (_, _shared) = self.share_name(|| self.names.path(parent, name)).await?;
        let (path, fact) = self.fact(parent, name).await?;
        if fact.what.kind().is_some() || self.names.dirty.named(path.as_bytes()).is_some() {
            return Err(Error::Exists);
        }
        self.adopt_attributes(&path, mode, self.names.options.dir_mode, caller);
        let marker = match self.put_marker(&path, Condition::Absent).await {
            Ok(marker) => marker,
            Err(error) => {
                self.names.own.forget(path.as_bytes());
                return Err(if is_replaced(&error) { Error::Exists } else { error });
            }
        };
        self.names.on_directory(&path, marker.clone());
        self.names.on_entry_changed(&path);
        // Nothing was below it when its name was free.
        self.names.on_empty(&path.join(b"/"), fact.learnt);
        let fact = self.names.known_name(&path).unwrap_or(fact);
        let what = What::Directory(Some(marker));
        self.entry(parent, &path, &Fact { what, ..fact })
    }

    /// The entry of what was made, whose name is shared so long.
    fn entry(&self, parent: Inode, path: &Key, fact: &Fact) -> Result<Entry> {
        self.names.remember(parent, path, fact).unwrap_or(Err(Error::UnknownInode))
    }

    /// Writes the marker of the directory `path` (without `/`).
    pub(super) async fn put_marker(&self, path: &Key, condition: Condition) -> Result<Marker> {
        let mut headers = Headers { content_type: Some(DIRECTORY_TYPE.into()), ..Headers::default() };
        let mut marker = Marker::from(std::time::SystemTime::now());
        let keeps_attributes = self.stores_attributes(&self.names.own.get(path.as_bytes(), None), &headers.metadata, true);
        if keeps_attributes {
            self.mark_directory_of(path).await;
            headers = posix::headers(headers, &self.names.own.of_directory(path.as_bytes()), &self.names.options, true);
            marker.posix = posix::read(&headers.metadata);
        }
        let directory = path.join(b"/");
        self.store.put(&PutRequest { key: directory.clone(), body: Bytes::new(), headers, condition }).await?;
        if keeps_attributes {
            self.names.own.on_stored(path.as_bytes());
        }
        self.names.cache.learn_carries(&directory, keeps_attributes, Instant::now());
        Ok(marker)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOTEMPTY, ENOTDIR, ENOENT.
    pub async fn rmdir(&self, parent: Inode, name: &[u8]) -> Result<()> {
        self.names.check_may_change(parent)?;
        let (path, _shared) = self.share_name(|| self.names.path(parent, name)).await?;
        let marker = path.join(b"/");
        // Believed or not: a directory of which only the kernel knew that it is there is removed by finding nothing in it.
        if let Some(Fact { what: What::File(_), .. }) = self.names.known_name(&path) {
            return Err(Error::NotADirectory);
        }
        if self.names.dirty.any_below(&marker) || self.has_keys(&marker).await? {
            return Err(Error::NotEmpty);
        }
        self.store.delete(&marker).await?;
        self.names.on_unlinked(&marker);
        self.names.cache.learn_carries(&marker, false, Instant::now());
        self.names.on_entries(&marker);
        self.names.on_removed(&path);
        self.names.on_entry_changed(&path);
        self.keep_directory_of(&path).await;
        Ok(())
    }

    /// Whether anything but its marker is below `directory`.
    pub(super) async fn has_keys(&self, directory: &Key) -> Result<bool> {
        match self.names.cache.listing(directory.as_bytes()) {
            Some(listing) if listing.len > 0 => return Ok(true),
            Some(_) if self.names.cache.is_empty(directory.as_bytes()) => return Ok(false),
            _ => {}
        }
        let mut request =
            ListRequest { prefix: directory.clone(), delimited: false, after: None, token: None, max_keys: FEW, any_order: true };
        loop {
            let page = self.store.list(&request).await?;
            if page.objects.iter().any(|object| object.key != *directory) {
                return Ok(true);
            }
            if page.next.is_none() || page.next == request.token {
                return Ok(false);
            }
            request.token = page.next;
        }
    }

    /// Removes a file or a symbolic link. Whoever has it open reads on while the store or the window has its bytes.
    ///
    /// # Errors
    /// ENOENT, EISDIR, else what the store said.
    pub async fn unlink(&self, parent: Inode, name: &[u8]) -> Result<()> {
        self.names.check_may_change(parent)?;
        let (path, _shared) = self.share_name(|| self.names.path(parent, name)).await?;
        if let Some(held) = self.hold(&path).await? {
            return self.unlink_dirty(held).await;
        }
        // A file that the kernel knows it has just looked up.
        if self.names.known_name(&path).is_some() || self.names.known_inode(&path).is_none() {
            match self.fact(parent, name).await?.1.what {
                What::Absent => return Err(Error::NotFound),
                What::Directory(_) => return Err(Error::IsADirectory),
                What::File(_) => {}
            }
        }
        self.store.delete(&path).await?;
        self.names.on_unlinked(&path);
        // A handle that was open may have begun to change it while the request was under way.
        if let Some(held) = self.hold(&path).await? {
            return self.unlink_dirty(held).await;
        }
        self.after_unlink(&path).await;
        Ok(())
    }

    /// Removes a file that is being written. It goes on for its open handles, and is never committed.
    async fn unlink_dirty(&self, Held { file, content, turn: _turn }: Held) -> Result<()> {
        let path = file.key();
        if let Some(committed) = file.committed() {
            self.store.delete(&committed.key).await?;
        }
        self.names.dirty.unlink(&file);
        content.discard().await;
        self.names.on_unlinked(&path);
        self.after_unlink(&path).await;
        Ok(())
    }

    async fn after_unlink(&self, path: &Key) {
        self.names.on_removed(path);
        self.names.on_entry_changed(path);
        self.keep_directory_of(path).await;
    }

    /// A directory that only existed because of the keys in it would go with the last of them, and `rmdir` would not find it.
    /// Best effort: when it fails the bucket is as other clients leave it.
    pub(super) async fn keep_directory_of(&self, path: &Key) {
        let directory = directory_of(path);
        let Some(name) = directory.as_bytes().strip_suffix(b"/") else { return };
        if directory.as_bytes().len() <= self.names.options.prefix.len() || self.names.is_root_of_bucket(name) {
            return;
        }
        let name = Key::from(name);
        if let Some(Fact { what: What::Directory(Some(_)), .. }) = self.names.known_name(&name) {
            return;
        }
        if self.names.cache.listing(directory.as_bytes()).is_some_and(|listing| listing.len > 0) {
            return;
        }
        let asked = Instant::now();
        let emptied = match self.is_gone(&directory).await {
            Ok(emptied) => emptied,
            Err(error) => return tracing::debug!(%directory, %error, "cannot tell whether a directory became empty"),
        };
        if emptied {
            match self.put_marker(&name, Condition::Absent).await {
                Ok(marker) => {
                    self.names.on_directory(&name, marker);
                    self.names.on_empty(&directory, asked);
                }
                Err(error) if is_replaced(&error) => self.names.on_unknown(&name),
                Err(error) => tracing::warn!(%directory, %error, "a directory went with its last file"),
            }
        }
    }

    /// Whether there is nothing at or below `directory`.
    async fn is_gone(&self, directory: &Key) -> Result<bool> {
        let Some(first) = first_below(&*self.store, directory).await? else { return Ok(true) };
        if first.key == *directory {
            // The marker is there: it is remembered, so that the next file removed needs not ask.
            let name = Key::from(directory.as_bytes().strip_suffix(b"/").unwrap_or_default());
            self.names.cache.learn_marker(&name, first.modified, Instant::now());
        } else {
            // Somebody else has put something there.
            self.names.cache.forget_dir(directory.as_bytes());
        }
        Ok(false)
    }

    /// Makes a symbolic link. Counts as one lookup.
    ///
    /// # Errors
    /// EEXIST, ENAMETOOLONG when the store cannot keep so long a target.
    pub async fn symlink(&self, parent: Inode, name: &[u8], target: &std::path::Path) -> Result<Entry> {
        self.names.check_may_change(parent)?;
        let (_, _shared) = self.share_name(|| self.names.path(parent, name)).await?;
        let (path, fact) = self.fact(parent, name).await?;
        if fact.what.kind().is_some() || self.names.dirty.named(path.as_bytes()).is_some() {
            return Err(Error::Exists);
        }
        let target = target.as_os_str().as_bytes();
        let written = self.store.put_symlink(&path, target, &Headers::default(), &Condition::Absent).await;
        let written = written.map_err(|error| match error.kind {
            ErrorKind::Replaced => Error::Exists,
            ErrorKind::Invalid if error.status.is_none() => Error::NameTooLong,
            _ => error.into(),
        })?;
        let extra = Extra { link: Some(target.to_owned()), ..Extra::default() };
        let facts = FileFacts {
            size: crate::store::SYMLINK_SIZE,
            etag: written.etag,
            modified: std::time::SystemTime::now(),
            extra: Some(std::sync::Arc::new(extra)),
        };
        self.names.on_file(&path, facts.clone());
        self.names.on_entry_changed(&path);
        let fact = self.names.known_name(&path).unwrap_or(fact);
        self.entry(parent, &path, &Fact { what: What::File(facts), ..fact })
    }
}

pub(super) fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Store(error) if error.kind == ErrorKind::Replaced)
}
