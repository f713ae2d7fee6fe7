//! What files look like and how long facts about them are believed.

use std::time::Duration;

use crate::store::{ContentTypes, Key};

/// What a close does when the name stands for another version than the one that was opened: somebody has written there through another mount, or
/// through the store's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// It fails with ESTALE, and the bucket keeps what is there.
    Fail,
    /// As `Fail`; what was written is stored beside it, as `NAME.conflict-HOST-TIME`.
    Save,
    /// It replaces what is there.
    Overwrite,
}

/// Whether mode, owner and times are kept in the metadata of objects, which only a HEAD shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PosixAttributes {
    /// They live as long as the mount.
    Off,
    /// Where they differ from what a listing would have shown, or were set. Objects are asked for them in directories that say that they are kept there.
    Auto,
    /// With all that is written, and every object is asked for them.
    On,
}

/// What the names in the root of the mount stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootNames {
    /// Objects and directories.
    #[default]
    Objects,
    /// Buckets: none is created, removed or renamed.
    Buckets {
        /// The listing shows every bucket that there is for this mount. If not, those whose names are known can be used too.
        all_listed: bool,
    },
}

impl RootNames {
    /// Returns the bucket that `path` is in, which is its first component. The root where all of the mount is one bucket, and of a name in the root,
    /// which may be no bucket: what is remembered for each bucket must not grow with such names.
    pub(super) fn bucket_of(self, path: &Key) -> Key {
        let slash = path.as_bytes().iter().position(|&byte| byte == b'/');
        match (self, slash) {
            (Self::Buckets { .. }, Some(end)) => Key::from(&path.as_bytes()[..end]),
            (Self::Buckets { .. } | Self::Objects, _) => Key::root(),
        }
    }
}

/// Attributes that all files have from the options, also where the bucket keeps others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forced {
    pub uid: bool,
    pub gid: bool,
    pub mode: bool,
}

/// Options of the name space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Key prefix that is the root of the mount: empty, or ending in `/`.
    pub prefix: String,
    /// What is in the root of the mount.
    pub root_names: RootNames,
    /// Entries of the metadata cache; 0 disables it.
    pub stat_cache_size: u64,
    /// How long attributes and listings are believed; 0 disables the cache.
    pub stat_cache_ttl: Duration,
    /// How long absence is believed.
    pub negative_ttl: Duration,
    /// Each open asks the store which version the file has.
    pub close_to_open: bool,
    /// Take attributes from the listing; off: one HEAD per entry.
    pub readdir_optimize: bool,
    /// Owner, mode and times in the metadata of objects.
    pub posix_attributes: PosixAttributes,
    /// Most objects that are renamed with a directory.
    pub rename_limit: usize,
    /// What becomes of changes to a file that somebody else has replaced meanwhile; what was only appended is appended to the new version first.
    pub conflict: Conflict,
    pub uid: u32,
    pub gid: u32,
    /// Permission bits of files, before `umask`.
    pub file_mode: u16,
    /// Permission bits of directories, before `umask`.
    pub dir_mode: u16,
    /// Bits taken away from both.
    pub umask: u16,
    /// Permission bits of the root of the mount, before `umask`; none: those of directories.
    pub root_mode: Option<u16>,
    /// Attributes that are not shown as the bucket keeps them, or as they were set.
    pub forced: Forced,
    /// What type new objects say that they have.
    pub content_types: ContentTypes,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            root_names: RootNames::default(),
            stat_cache_size: 100_000,
            stat_cache_ttl: Duration::from_secs(60),
            negative_ttl: Duration::from_secs(1),
            close_to_open: false,
            readdir_optimize: true,
            posix_attributes: PosixAttributes::Off,
            rename_limit: 100_000,
            conflict: Conflict::Fail,
            uid: 0,
            gid: 0,
            file_mode: 0o644,
            dir_mode: 0o755,
            umask: 0,
            root_mode: None,
            forced: Forced::default(),
            content_types: ContentTypes::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_of_a_path_is_its_first_component_where_the_root_has_buckets() {
        let buckets = RootNames::Buckets { all_listed: true };
        for (path, bucket) in [("one/a/b", "one"), ("one/", "one"), ("name", ""), ("", "")] {
            assert_eq!(buckets.bucket_of(&path.into()), Key::from(bucket));
            assert_eq!(RootNames::Objects.bucket_of(&path.into()), Key::root());
        }
    }
}
