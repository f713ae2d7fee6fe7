//! Facts of an object as extended attributes, to be read: `user.windlass.etag`, `.storage-class`, `.version-id` and `.content-type`.
//! They are asked for when somebody
//! wants them and are not listed, so that programs which copy all attributes do not. Invariant: nothing is kept here.

use super::Result;
use super::error::Error;
use super::inodes::{Inode, Kind};
use super::lookup::Names;
use crate::store::Details;

/// What goes before all of them.
const PREFIX: &str = "user.windlass.";

impl Names {
    /// The value of the extended attribute `name` of `ino`.
    ///
    /// # Errors
    /// ENODATA when there is none of that name.
    pub async fn extended_attribute(&self, ino: Inode, name: &[u8]) -> Result<Vec<u8>> {
        if !self.may_have_attribute(ino, name) {
            return Err(Error::NoAttribute);
        }
        let attributes = self.extended_attributes(ino).await?;
        attributes.into_iter().find(|(known, _)| known.as_bytes() == name).map(|(_, value)| value).ok_or(Error::NoAttribute)
    }

    /// Whether it takes a request to know: the kernel asks for attributes of its own again and again.
    pub fn may_have_attribute(&self, ino: Inode, name: &[u8]) -> bool {
        name.starts_with(PREFIX.as_bytes()) && self.node(ino).is_ok_and(|node| node.kind() != Kind::Directory)
    }

    /// Names and values of the extended attributes of `ino`. A file that is not in the bucket yet has none.
    async fn extended_attributes(&self, ino: Inode) -> Result<Vec<(String, Vec<u8>)>> {
        let node = self.node(ino)?;
        if node.kind() == Kind::Directory || self.dirty.get(ino).is_some_and(|file| file.is_new()) {
            return Ok(Vec::new());
        }
        let Details { meta, headers, storage_class, version_id, .. } = self.store.details(&node.key).await?;
        let values = [
            ("etag", Some(meta.etag.as_str().to_owned())),
            ("storage-class", storage_class),
            ("version-id", version_id),
            ("content-type", headers.content_type),
        ];
        Ok(values.into_iter().filter_map(|(name, value)| Some((format!("{PREFIX}{name}"), value?.into_bytes()))).collect())
    }
}
