//! Walks through everything below a path, by the listings that the kernel's own would use, and leaves them in the cache. No inode is
//! remembered: nobody forgets it. Invariant: memory holds one page of each directory between the top and the place of the walk.

use std::sync::Arc;

use super::dir_page::DOTS;
use super::directory::DirHandle;
use super::error::{Error, Result};
use super::fact::{Fact, What};
use super::inodes::{Inode, Kind};
use super::lookup::{Names, object_meta};
use super::walk::Slice;
use crate::store::{Key, ObjectMeta};

/// See the module.
#[derive(Debug)]
pub struct Tree {
    names: Arc<Names>,
    /// What is still to be looked at; the last comes first.
    rest: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    /// It is not known yet what that is.
    Path(Key),
    Directory(Box<Level>),
}

/// A directory that is being read.
#[derive(Debug)]
struct Level {
    key: Key,
    handle: DirHandle,
    /// Where the next page begins.
    offset: u64,
    slice: Option<Slice>,
    /// The next entry of the page.
    at: usize,
}

impl Names {
    /// Everything at or below `path`, names below the root of the mount with `/` between them.
    ///
    /// # Errors
    /// When it cannot be a path inside the mount.
    pub fn tree(self: &Arc<Self>, path: &[u8]) -> Result<Tree> {
        let path = self.path_at(path)?;
        let top = if path.as_bytes() == self.root_path() {
            Step::Directory(Level::new(self, Key::from(self.options.prefix.as_str())))
        } else {
            Step::Path(path)
        };
        Ok(Tree { names: Arc::clone(self), rest: vec![top] })
    }

    /// Has what is believed of an object at hand: asks for it when no listing told.
    ///
    /// # Errors
    /// What the store said; [`Error::NotFound`].
    pub async fn object(&self, key: &Key, is_version_needed: bool) -> Result<ObjectMeta> {
        if self.listings_tell_attributes()
            && let Some(Fact { what: What::File(facts), .. }) = self.known_name(key)
            && (facts.names_version() || !is_version_needed)
        {
            return Ok(object_meta(key.clone(), facts));
        }
        self.meta(self.probe.object(key, None).await?, key)
    }

    /// The object as it is now, whatever is believed.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub async fn object_now(&self, key: &Key) -> Result<ObjectMeta> {
        self.meta(self.probe.refresh(key).await?, key)
    }

    fn meta(&self, fact: Fact, key: &Key) -> Result<ObjectMeta> {
        match fact.what {
            What::File(facts) => Ok(object_meta(key.clone(), facts)),
            What::Directory(_) | What::Absent => Err(Error::NotFound),
        }
    }
}

impl Tree {
    /// The next file, with the size that a listing told, or a path of which it cannot be said what it is or what is in it. Symbolic links
    /// are passed over.
    pub async fn next(&mut self) -> Option<(Key, Result<u64>)> {
        loop {
            match self.rest.last_mut()? {
                Step::Path(path) => {
                    let path = path.clone();
                    self.rest.pop();
                    match self.stands_for(&path).await {
                        Ok(What::File(facts)) if facts.kind() == Kind::File => return Some((path, Ok(facts.size))),
                        Ok(What::File(_)) => {}
                        Ok(What::Directory(_)) => self.enter(path.join(b"/")),
                        Ok(What::Absent) => return Some((path, Err(Error::NotFound))),
                        Err(error) => return Some((path, Err(error))),
                    }
                }
                Step::Directory(level) => match level.next().await {
                    Ok(Some((key, Kind::File, size))) => return Some((key, Ok(size))),
                    Ok(Some((_, Kind::Symlink, _))) => {}
                    Ok(Some((key, Kind::Directory, _))) => self.enter(key),
                    Ok(None) => drop(self.rest.pop()),
                    Err(error) => {
                        let key = level.key.clone();
                        self.rest.pop();
                        return Some((key, Err(error)));
                    }
                },
            }
        }
    }

    fn enter(&mut self, directory: Key) {
        self.rest.push(Step::Directory(Level::new(&self.names, directory)));
    }

    async fn stands_for(&self, path: &Key) -> Result<What> {
        match self.names.known_name(path) {
            Some(fact) => Ok(fact.what),
            None => Ok(self.names.probed(path).await?.what),
        }
    }
}

impl Level {
    fn new(names: &Arc<Names>, key: Key) -> Box<Self> {
        // Whose numbers nobody is shown.
        let handle = DirHandle::new(names, Inode::ROOT, Inode::ROOT, key.clone());
        Box::new(Self { key, handle, offset: DOTS, slice: None, at: 0 })
    }

    async fn next(&mut self) -> Result<Option<(Key, Kind, u64)>> {
        loop {
            if let Some(slice) = &self.slice
                && let Some(entry) = slice.entries().get(self.at)
            {
                self.at += 1;
                let size = entry.file.as_ref().map_or(0, |file| file.size);
                return Ok(Some((entry.key.clone(), entry.kind(), size)));
            }
            let page = self.handle.read(self.offset).await?;
            let Some(slice) = page.into_slice() else { return Ok(None) };
            self.offset += slice.entries().len() as u64;
            (self.slice, self.at) = (Some(slice), 0);
        }
    }
}
