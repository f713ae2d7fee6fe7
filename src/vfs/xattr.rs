//! Extended attributes: those that programs set (`user.*`), and facts of an object to be read: `user.windlass.etag`, `.storage-class`, `.version-id`
//! and `.content-type`, which are asked for when somebody wants them and are not listed, so that programs which copy all attributes do not.
//! Invariant: where no entry of a directory can have attributes, no request tells that.

use std::sync::Arc;

use super::dirty_files::DirtyFile;
use super::edits::Edits;
use super::error::{Error, Result};
use super::fact::{Fact, What};
use super::inodes::{Inode, Kind};
use super::lookup::{Names, object_key, path_of};
use super::options::PosixAttributes;
use super::stat_cache::split;
use super::user_attributes::{NamedChange, UserAttributes};
use crate::store::{Details, Key};

/// What goes before the names of all facts.
const PREFIX: &[u8] = b"user.windlass.";

/// The class of names that this is about.
const USER: &[u8] = b"user.";

impl Names {
    /// Whether attributes of programs are kept.
    pub fn keeps_user_attributes(&self) -> bool {
        self.options.posix_attributes != PosixAttributes::Off
    }

    /// The value of the extended attribute `name` of `ino`.
    ///
    /// # Errors
    /// ENODATA when there is none of that name.
    pub async fn extended_attribute(&self, ino: Inode, name: &[u8]) -> Result<Vec<u8>> {
        if !name.starts_with(PREFIX) {
            return self.user_attributes(ino).await?.get(name).map(<[u8]>::to_vec).ok_or(Error::NoAttribute);
        }
        let facts = self.facts_of_object(ino).await?;
        facts.into_iter().find(|(known, _)| known.as_bytes() == name).map(|(_, value)| value).ok_or(Error::NoAttribute)
    }

    /// [`extended_attribute`](Self::extended_attribute) when that takes no request: the kernel asks for attributes of its own again and again.
    pub fn try_extended_attribute(&self, ino: Inode, name: &[u8]) -> Option<Result<Vec<u8>>> {
        if !name.starts_with(USER) {
            return Some(Err(Error::NoAttribute));
        }
        if name.starts_with(PREFIX) {
            let is_directory = self.node(ino).is_ok_and(|node| node.kind() == Kind::Directory);
            return is_directory.then_some(Err(Error::NoAttribute));
        }
        let all = self.try_user_attributes(ino)?;
        Some(all.and_then(|all| all.get(name).map(<[u8]>::to_vec).ok_or(Error::NoAttribute)))
    }

    /// The attributes that programs gave to `ino`.
    ///
    /// # Errors
    /// ENOENT, else what the store said.
    pub async fn user_attributes(&self, ino: Inode) -> Result<UserAttributes> {
        self.settled(ino, |node| async move {
            if let Some(known) = self.try_user_attributes(ino) {
                return known;
            }
            let fact = match node.kind() {
                Kind::File | Kind::Symlink => self.probe.object(&object_key(node)?, None).await?,
                Kind::Directory => self.probe.directory(&node.key).await?,
            };
            of_fact(fact)
        })
        .await
    }

    /// [`user_attributes`](Self::user_attributes) when that takes no request.
    pub fn try_user_attributes(&self, ino: Inode) -> Option<Result<UserAttributes>> {
        if !self.keeps_user_attributes() || ino == Inode::ROOT {
            return Some(Ok(UserAttributes::default()));
        }
        if let Some(file) = self.dirty.get(ino) {
            return Some(Ok(UserAttributes::read(&file.content.headers().metadata)));
        }
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(error) => return Some(Err(error)),
        };
        if self.is_removed(ino) {
            return Some(Ok(UserAttributes::default()));
        }
        let path = path_of(&node);
        match self.known_object(path) {
            Some(fact) => match of_fact(fact) {
                Err(_) if self.is_moving(ino, &node.key) => None,
                known => Some(known),
            },
            None => (self.cache.carries(split(path).0) == Some(false)).then(|| Ok(UserAttributes::default())),
        }
    }

    /// Names and values of what the store tells of the object of `ino`. A file that is not in the bucket yet has none.
    async fn facts_of_object(&self, ino: Inode) -> Result<Vec<(String, Vec<u8>)>> {
        let node = self.node(ino)?;
        if node.kind() == Kind::Directory || self.dirty.get(ino).is_some_and(|file| file.is_new()) {
            return Ok(Vec::new());
        }
        let Details { meta, headers, storage_class, version_id, .. } = self.store.details(&node.key).await?;
        let values = [
            ("user.windlass.etag", Some(meta.etag.as_str().to_owned())),
            ("user.windlass.storage-class", storage_class),
            ("user.windlass.version-id", version_id),
            ("user.windlass.content-type", headers.content_type),
        ];
        Ok(values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into_bytes()))).collect())
    }
}

/// Those of what is there.
fn of_fact(fact: Fact) -> Result<UserAttributes> {
    match fact.what {
        What::File(facts) => Ok(facts.extra.map(|extra| extra.user.clone()).unwrap_or_default()),
        What::Directory(marker) => Ok(marker.map(|marker| marker.user).unwrap_or_default()),
        What::Absent => Err(Error::NotFound),
    }
}

impl Edits {
    /// Sets or removes an attribute of programs. What is being written has it from its next commit on, everything else when this returns.
    ///
    /// # Errors
    /// EOPNOTSUPP where none are kept, EEXIST, ENODATA, ENOSPC above what an object may have of metadata, else what the store said.
    pub async fn change_user_attribute(&self, ino: Inode, change: NamedChange<'_>) -> Result<()> {
        if !self.names.keeps_user_attributes() || ino == Inode::ROOT || change.0.starts_with(PREFIX) {
            return Err(Error::Unsupported);
        }
        if let Some(file) = self.names.dirty.get(ino)
            && self.change_in_dirty(&file, change).await?
        {
            return Ok(());
        }
        if self.lost_its_name(ino) {
            return Err(Error::Unlinked);
        }
        let node = self.names.node(ino)?;
        let path = Key::from(path_of(&node));
        if node.kind() == Kind::Directory {
            if self.names.is_root_of_bucket(path.as_bytes()) {
                return Err(Error::Unsupported);
            }
            return self.store_own_of_directory(&path, Some(change)).await;
        }
        let (meta, _) = self.names.fresh_object(ino).await?;
        self.store_own(&path, &meta, Some(change)).await
    }

    /// The same for a file that is open for writing. False: it is not any more.
    async fn change_in_dirty(&self, file: &Arc<DirtyFile>, change: NamedChange<'_>) -> Result<bool> {
        loop {
            let key = file.key();
            let _shared = self.names.locks.share(&key).await;
            let Some(_turn) = self.names.dirty.turn(file).await else { return Ok(false) };
            if file.key() != key && !file.is_unwanted() {
                continue;
            }
            let is_committed_later = file.content.is_dirty() || file.is_new() || file.is_unwanted();
            let mut headers = file.content.headers();
            change.1.apply(change.0, &mut headers.metadata, self.store.most_metadata())?;
            file.content.freeze().await.set_headers(headers).await;
            if !is_committed_later {
                self.commit_in_turn(file).await?;
            }
            return Ok(true);
        }
    }
}
