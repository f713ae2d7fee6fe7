//! Attributes that were set through this mount: mode, owner and times, and the times at which it changed the entries of directories. They
//! are laid over what store and options say, for as long as the mount lives, also under another daemon. Nothing is stored here. Invariant: a time belongs to the version it was set on and goes when another one
//! comes; mode and owner belong to the name and go with it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use super::attr::Attr;
use super::fact::What;
use super::inodes::Kind;
use super::listing::{FileFacts, Posix};
use super::record::Record;
use crate::store::{ETag, Key};

/// What to set; none leaves it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewAttributes {
    /// Permission bits.
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub modified: Option<SystemTime>,
    pub accessed: Option<SystemTime>,
}

/// Everything that was set, by path (a key without the `/` of a directory).
#[derive(Debug, Default)]
pub struct Own {
    set: Mutex<HashMap<Key, Set>>,
    /// Whether there is anything: spares the lock where nobody sets attributes.
    any: AtomicBool,
    /// Directories in which an entry was made, removed or renamed since their own time was set, and when that was for the last time. Apart
    /// from the others, so that files need not look.
    touched: Mutex<HashMap<Key, SystemTime>>,
    /// Where all of it is written down.
    record: Record,
}

/// What was set on a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Set {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub times: Option<Times>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub modified: Option<SystemTime>,
    pub accessed: Option<SystemTime>,
    /// The version they were set on; none while it is not in the store yet, and of directories.
    pub version: Option<ETag>,
}

impl Own {
    /// What another daemon wrote down in `record`, if one did; changes of it are written there.
    pub fn new(record: Record) -> Self {
        let set: HashMap<Key, Set> = record.sets().into_iter().collect();
        let any = AtomicBool::new(!set.is_empty());
        let touched = record.touched().into_iter().collect();
        Self { set: Mutex::new(set), any, touched: Mutex::new(touched), record }
    }

    /// `new` holds for `path` from now on; its times for the version `version`.
    pub fn set(&self, path: &Key, new: NewAttributes, version: Option<ETag>) {
        let mut all = self.set.lock();
        let set = all.entry(path.clone()).or_default();
        set.mode = new.mode.or(set.mode);
        set.uid = new.uid.or(set.uid);
        set.gid = new.gid.or(set.gid);
        if new.modified.is_some() {
            self.untouch(path.as_bytes());
        }
        if new.modified.is_some() || new.accessed.is_some() {
            let before = set.times.take().filter(|times| times.version == version);
            let (modified, accessed) = before.map_or((None, None), |times| (times.modified, times.accessed));
            set.times = Some(Times { modified: new.modified.or(modified), accessed: new.accessed.or(accessed), version });
        }
        self.record.put_set(path, set);
        self.any.store(true, Ordering::Release);
    }

    /// An entry of `directory` was made, removed or renamed.
    pub fn touch(&self, directory: Key) {
        let (mut touched, now) = (self.touched.lock(), SystemTime::now());
        self.record.put_touched(&directory, now);
        touched.insert(directory, now);
    }

    fn untouch(&self, directory: &[u8]) -> Option<SystemTime> {
        let mut touched = self.touched.lock();
        touched.remove(directory).inspect(|_| self.record.drop_touched(directory))
    }

    /// What was set on a directory, or came of changes in it.
    pub fn of_directory(&self, path: &[u8]) -> Posix {
        let touched = self.touched.lock().get(path).copied();
        let set = self.get(path, None);
        Posix { modified: touched.or(set.modified), ..set }
    }

    /// What was set, as far as it holds for `version`.
    pub fn get(&self, path: &[u8], version: Option<&ETag>) -> Posix {
        if !self.any.load(Ordering::Acquire) {
            return Posix::default();
        }
        self.set.lock().get(path).map_or_else(Posix::default, |set| {
            let times = set.times.as_ref().filter(|times| times.version.as_ref() == version);
            let (modified, accessed) = times.map_or((None, None), |times| (times.modified, times.accessed));
            Posix { mode: set.mode, uid: set.uid, gid: set.gid, modified, accessed }
        })
    }

    /// Lays what was set over `attr`, which was made from `what`.
    pub fn apply(&self, path: &[u8], what: &What, attr: &mut Attr) {
        match what {
            What::File(facts) => self.apply_to_file(path, facts, attr),
            What::Directory(_) => {
                self.lay(path, None, attr);
                if let Some(&time) = self.touched.lock().get(path) {
                    attr.modified = time;
                }
            }
            What::Absent => {}
        }
    }

    /// [`apply`](Self::apply) to a file.
    pub fn apply_to_file(&self, path: &[u8], facts: &FileFacts, attr: &mut Attr) {
        // A draft has no version.
        self.lay(path, Some(&facts.etag).filter(|tag| !tag.as_str().is_empty()), attr);
    }

    fn lay(&self, path: &[u8], version: Option<&ETag>, attr: &mut Attr) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let all = self.set.lock();
        let Some(set) = all.get(path) else { return };
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        if attr.kind != Kind::Symlink {
            attr.perm = set.mode.unwrap_or(attr.perm);
        }
        if let Some(times) = set.times.as_ref().filter(|times| times.version.as_ref() == version) {
            attr.modified = times.modified.unwrap_or(attr.modified);
            attr.accessed = times.accessed.unwrap_or(attr.accessed);
        }
    }

    /// The content is written on: a time that was set before counts no more. The kernel takes setuid and setgid away as well.
    pub fn on_write(&self, path: &Key) {
        if self.any.load(Ordering::Acquire)
            && let Some(set) = self.set.lock().get_mut(path)
        {
            let mode = set.mode.map(|mode| mode & !0o6000);
            if set.times.is_some() || set.mode != mode {
                (set.times, set.mode) = (None, mode);
                self.record.put_set(path, set);
            }
        }
    }

    /// What was set on the content being written belongs to `version` now.
    pub fn on_commit(&self, path: &Key, version: &ETag) {
        if self.any.load(Ordering::Acquire)
            && let Some(set) = self.set.lock().get_mut(path)
            && let Some(times) = &mut set.times
            && times.version.is_none()
        {
            times.version = Some(version.clone());
            self.record.put_set(path, set);
        }
    }

    /// What was set on the directory `path` is in the metadata of its marker, where another mount may change it.
    pub fn on_stored(&self, path: &[u8]) {
        self.forget(path);
    }

    /// `from` is called `to` now; `versions`: its content has got another name as well.
    pub fn rename(&self, from: &[u8], to: &Key, versions: Option<(&ETag, &ETag)>) {
        let time = self.untouch(from);
        self.untouch(to.as_bytes());
        if let Some(time) = time {
            let mut touched = self.touched.lock();
            self.record.put_touched(to, time);
            touched.insert(to.clone(), time);
        }
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut all = self.set.lock();
        if all.remove(to.as_bytes()).is_some() {
            self.record.drop_set(to.as_bytes());
        }
        let Some(mut set) = all.remove(from) else { return };
        self.record.drop_set(from);
        if let (Some(times), Some((before, after))) = (&mut set.times, versions)
            && times.version.as_ref() == Some(before)
        {
            times.version = Some(after.clone());
        }
        self.record.put_set(to, &set);
        all.insert(to.clone(), set);
    }

    /// The name is gone.
    pub fn forget(&self, path: &[u8]) {
        self.untouch(path);
        if self.any.load(Ordering::Acquire) && self.set.lock().remove(path).is_some() {
            self.record.drop_set(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::vfs::{Inode, Options};

    fn shown(own: &Own, path: &str, etag: &str) -> Attr {
        let facts = FileFacts { size: 1, etag: ETag::from(etag), modified: SystemTime::UNIX_EPOCH, extra: None };
        let what = What::File(facts.clone());
        let mut attr = Attr::file(&Options::default(), Inode(2), &facts);
        own.apply(path.as_bytes(), &what, &mut attr);
        attr
    }

    #[test]
    fn times_belong_to_a_version_and_modes_to_the_name() {
        let own = Own::default();
        let (path, time) = (Key::from("a"), SystemTime::UNIX_EPOCH + Duration::from_secs(9));
        own.set(&path, NewAttributes { mode: Some(0o4755), modified: Some(time), ..NewAttributes::default() }, None);
        own.on_commit(&path, &ETag::from("1"));
        assert_eq!((shown(&own, "a", "1").modified, shown(&own, "a", "1").perm), (time, 0o4755));
        assert_eq!((shown(&own, "a", "2").modified, shown(&own, "a", "2").perm), (SystemTime::UNIX_EPOCH, 0o4755));
        own.rename(b"a", &Key::from("b"), Some((&ETag::from("1"), &ETag::from("3"))));
        assert_eq!((shown(&own, "b", "3").modified, shown(&own, "a", "1").perm), (time, 0o644));
        own.on_write(&Key::from("b"));
        assert_eq!((shown(&own, "b", "3").modified, shown(&own, "b", "3").perm), (SystemTime::UNIX_EPOCH, 0o755));
        own.forget(b"b");
        assert_eq!(shown(&own, "b", "3").perm, 0o644);
    }
}
