//! Names and attributes as the kernel asks for them: from memory at once where it can be, else after one round trip
//! of the probe. It reads no file and sends no request itself. Invariants: no lock is held while something is waited
//! for; what is returned as an entry was remembered exactly once; what the kernel may cache is what is left of the
//! deadline of the fact that it was made from.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::ahead::Ahead;
use super::attr::{Attr, Entry};
use super::changes::directory_of;
use super::dirty_files::{DirtyFile, DirtyFiles};
use super::error::{Error, Result};
use super::fact::{Fact, What};
use super::free_names::FreeNames;
use super::hidden::Hidden;
use super::inodes::{Inode, Inodes, Kind, Node};
use super::listing::{FileFacts, check_name};
use super::name_locks::NameLocks;
use super::next_files::Successions;
use super::one_by_one::OneByOne;
use super::options::{Conflict, Options, PosixAttributes, RootNames};
use super::own::Own;
use super::posix;
use super::probe::Probe;
use super::record::Record;
use super::stat_cache::{StatCache, split};
use super::ttl::Ttls;
use super::versions::Versions;
use super::walk::Walk;
use crate::lasting::Log;
use crate::store::{ETag, Key, ObjectMeta, ObjectStore};

/// So much of what is written down of inodes: about 40 million of them. What is not used takes no memory.
const INODES_ROOM: usize = 4 << 30;

/// What was learnt so lately counts as what is there: as long as the absence of a name is believed by default.
const JUST_NOW: Duration = Duration::from_secs(1);

/// The tree of names of one mount.
#[derive(Debug)]
pub struct Names {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) options: Options,
    pub(super) cache: StatCache,
    pub(super) probe: Probe,
    pub(super) hidden: Arc<Hidden>,
    pub(super) inodes: Mutex<Inodes>,
    /// Directories that are being listed, for handles that can share a walk and for lookups of what it has seen.
    pub(super) walks: Mutex<HashMap<Key, Weak<Walk>>>,
    pub(super) successions: Successions,
    pub(super) ahead: Ahead,
    pub(super) one_by_one: OneByOne,
    pub(super) free_names: FreeNames,
    /// Files that this mount is changing.
    pub(super) dirty: DirtyFiles,
    /// Which version of each open file is current.
    pub(super) versions: Versions,
    /// Keys that are being renamed, and those in use.
    pub(super) locks: NameLocks,
    /// Attributes that were set through this mount.
    pub(super) own: Own,
    /// Where what is open is written down.
    pub(super) record: Record,
    /// What directories without a known marker show as their time.
    mounted: SystemTime,
}

impl Names {
    /// The names of `store` under `options.prefix`, which becomes [`Inode::ROOT`].
    pub fn new(store: Arc<dyn ObjectStore>, options: Options) -> Arc<Self> {
        let inodes = Inodes::new(Key::from(options.prefix.as_str()));
        Self::knowing(store, options, inodes, Record::default())
    }

    /// Names that are written down, with what is open, for a daemon that goes on after this one.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn lasting(store: Arc<dyn ObjectStore>, options: Options) -> io::Result<Arc<Self>> {
        let mut inodes = Inodes::new(Key::from(options.prefix.as_str()));
        inodes.write_to(Log::new(INODES_ROOM)?);
        Ok(Self::knowing(store, options, inodes, Record::new()?))
    }

    /// Goes on from what another daemon wrote down: the [`memory`](Self::memory) of its names.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(store: Arc<dyn ObjectStore>, options: Options, memory: [OwnedFd; 2]) -> io::Result<Arc<Self>> {
        let [inodes, record] = memory;
        let inodes = Inodes::load(Key::from(options.prefix.as_str()), inodes)?;
        Ok(Self::knowing(store, options, inodes, Record::load(record)?))
    }

    /// Where names and what is open are written down; none: nowhere.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn memory(&self) -> io::Result<Option<[OwnedFd; 2]>> {
        let inodes = self.inodes.lock().log().map(|log| log.try_clone_to_owned()).transpose()?;
        Ok(inodes.zip(self.record.file()?).map(|(inodes, record)| [inodes, record]))
    }

    fn knowing(store: Arc<dyn ObjectStore>, options: Options, inodes: Inodes, record: Record) -> Arc<Self> {
        let cache = StatCache::new(&options);
        let hidden = Arc::new(Hidden::default());
        Arc::new(Self {
            probe: Probe::new(store.clone(), cache.clone(), hidden.clone(), options.root_names),
            inodes: Mutex::new(inodes),
            walks: Mutex::default(),
            successions: Successions::default(),
            one_by_one: OneByOne::default(),
            free_names: FreeNames::default(),
            ahead: Ahead::new(store.clone(), cache.clone(), hidden.clone()),
            dirty: DirtyFiles::new(record.clone(), options.conflict),
            versions: Versions::default(),
            locks: NameLocks::default(),
            own: Own::new(record.clone()),
            mounted: record.began(),
            record,
            store,
            options,
            cache,
            hidden,
        })
    }

    /// The entry `name` of `parent`; counts as one lookup for [`forget`](Self::forget).
    ///
    /// # Errors
    /// [`Error::NotFound`] when the store says that there is none, otherwise why it could not say.
    pub async fn lookup(&self, parent: Inode, name: &[u8]) -> Result<Entry> {
        loop {
            if let Some(known) = self.try_lookup(parent, name) {
                return known;
            }
            let path = self.path(parent, name)?;
            if let Some(found) = self.ask(parent, name, &path).await? {
                return found;
            }
            // Its directory is renamed: afterwards the name has another key.
            drop(self.locks.share(&path).await);
        }
    }

    /// [`lookup`](Self::lookup) where it takes a request. None: a rename has come in between, and this is of the key from before.
    async fn ask(&self, parent: Inode, name: &[u8], path: &Key) -> Result<Option<Result<Entry>>> {
        let directory = directory_of(path);
        if self.cache.tells_attributes(directory.as_bytes()) && self.ahead.is_next(&directory) {
            self.ahead.before(&directory).await;
            if let Some(known) = self.try_lookup(parent, name) {
                return Ok(Some(known));
            }
        }
        if self.list_instead(&directory, path).await
            && let Some(known) = self.try_lookup(parent, name)
        {
            return Ok(Some(known));
        }
        let fact = self.probed(path).await?;
        match fact.what {
            What::Absent => self.on_free_alone(&directory),
            What::File(_) | What::Directory(_) => self.on_found_alone(&directory),
        }
        Ok(self.remember(parent, path, &fact))
    }

    /// [`lookup`](Self::lookup) when that takes no request.
    pub fn try_lookup(&self, parent: Inode, name: &[u8]) -> Option<Result<Entry>> {
        match self.path(parent, name) {
            Ok(path) => {
                if let Some(file) = self.dirty.named(path.as_bytes()) {
                    return self.remember_dirty(parent, &path, &file).map(Ok);
                }
                let fact = self.known_name(&path)?;
                self.ahead.on_name(&path);
                if matches!(fact.what, What::Absent) {
                    self.refresh_pages(&path);
                }
                self.remember(parent, &path, &fact)
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// For how long the kernel may believe that `parent` has no entry `name`.
    pub fn absent_for(&self, parent: Inode, name: &[u8]) -> Duration {
        let Ok(path) = self.path(parent, name) else { return Duration::ZERO };
        if self.dirty.named(path.as_bytes()).is_some() || self.locks.is_renamed(&path) {
            return Duration::ZERO;
        }
        match self.known_name(&path) {
            Some(Fact { what: What::Absent, until, .. }) => self.cache.remaining(until),
            _ => Duration::ZERO,
        }
    }

    /// The attributes of `ino`, and how long the kernel may believe them.
    ///
    /// # Errors
    /// [`Error::UnknownInode`] when the kernel forgot it, [`Error::NotFound`] when it is gone from the store.
    pub async fn getattr(&self, ino: Inode) -> Result<(Attr, Duration)> {
        self.settled(ino, |node| async move {
            if let Some(known) = self.try_getattr(ino) {
                return known;
            }
            let fact = match node.kind() {
                Kind::File | Kind::Symlink => self.probe.object(&node.key, None).await?,
                Kind::Directory => self.probe.directory(&node.key).await?,
            };
            self.attributes(ino, &node, &fact)
        })
        .await
    }

    /// What `ask` tells of `ino`. Absence is asked for again when a rename came in between: the object may have been looked for at its key from before.
    pub(super) async fn settled<T, A>(&self, ino: Inode, ask: impl Fn(Node) -> A) -> Result<T>
    where
        A: Future<Output = Result<T>>,
    {
        loop {
            let node = self.node(ino)?;
            let key = node.key.clone();
            match ask(node).await {
                Err(Error::NotFound) if self.is_moving(ino, &key) => drop(self.locks.share(&key).await),
                answer => return answer,
            }
        }
    }

    /// Whether `ino`, which had the key `key`, is being renamed or has been.
    pub(super) fn is_moving(&self, ino: Inode, key: &Key) -> bool {
        self.locks.is_renamed(key) || self.node(ino).is_ok_and(|node| node.key != *key)
    }

    /// [`getattr`](Self::getattr) when that takes no request.
    pub fn try_getattr(&self, ino: Inode) -> Option<Result<(Attr, Duration)>> {
        if let Some(file) = self.dirty.get(ino) {
            return Some(Ok((self.attr_of_dirty(&file), Duration::ZERO)));
        }
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(error) => return Some(Err(error)),
        };
        if ino == Inode::ROOT {
            // The mount is there as long as it is mounted, whatever is in the bucket.
            let ttl = self.cache.remaining(self.cache.believed_until(Instant::now()));
            let attr = self.attr(ino, path_of(&node), &What::Directory(None))?;
            return Some(Ok((attr, ttl)));
        }
        let fact = self.known_object(path_of(&node))?;
        match self.attributes(ino, &node, &fact) {
            Err(_) if self.is_moving(ino, &node.key) => None,
            known => Some(known),
        }
    }

    /// The object behind `ino` as the cache has it, and when the store was asked for that. None also when it was only
    /// seen in the listing of a store that lists no etags: what cannot be named as a version cannot be opened.
    pub fn file(&self, ino: Inode) -> Option<(ObjectMeta, Instant)> {
        let node = self.node(ino).ok().filter(|node| node.kind() == Kind::File)?;
        match self.known_object(node.key.as_bytes())? {
            Fact { what: What::File(facts), learnt, .. } if facts.names_version() => Some((object_meta(node.key, facts), learnt)),
            _ => None,
        }
    }

    /// The object behind `ino`: as the cache has it, else as a HEAD tells; and when the store was asked.
    ///
    /// # Errors
    /// [`Error::IsADirectory`], [`Error::NotFound`] when it is gone, otherwise why the store could not say.
    pub async fn fresh_object(&self, ino: Inode) -> Result<(ObjectMeta, Instant)> {
        if let Some(known) = self.file(ino) {
            return Ok(known);
        }
        self.settled(ino, |node| async move {
            let key = object_key(node)?;
            file_in(self.probe.object(&key, None).await?, key)
        })
        .await
    }

    /// The object behind `ino` that an open reads, and when the store returned it. With `close_to_open` it comes from a HEAD: the GET that
    /// follows would notice another version too, but only after the kernel has used the size.
    ///
    /// # Errors
    /// As [`fresh_object`](Self::fresh_object).
    pub(super) async fn object_to_open(&self, ino: Inode) -> Result<(ObjectMeta, Instant)> {
        if self.options.close_to_open { self.refresh(ino).await } else { self.fresh_object(ino).await }
    }

    /// The object behind `ino` as it is now, and when the store was asked: for a handle that noticed that it was replaced.
    ///
    /// # Errors
    /// As [`fresh_object`](Self::fresh_object).
    pub async fn refresh(&self, ino: Inode) -> Result<(ObjectMeta, Instant)> {
        self.settled(ino, |node| async move {
            let key = object_key(node)?;
            file_in(self.probe.refresh(&key).await?, key)
        })
        .await
    }

    /// The object behind `ino` whose place a new content is to take, and when the store was asked for it. Where nothing else may be overwritten
    /// it is what is there now, or has been within [`JUST_NOW`].
    ///
    /// # Errors
    /// As [`fresh_object`](Self::fresh_object).
    pub(super) async fn object_to_replace(&self, ino: Inode) -> Result<(ObjectMeta, Instant)> {
        if self.options.conflict == Conflict::Overwrite {
            return self.fresh_object(ino).await;
        }
        match self.file(ino) {
            Some((meta, learnt)) if learnt.elapsed() < JUST_NOW => Ok((meta, learnt)),
            _ => self.refresh(ino).await,
        }
    }

    /// The key of `ino`.
    ///
    /// # Errors
    /// [`Error::UnknownInode`].
    pub fn key(&self, ino: Inode) -> Result<Key> {
        self.node(ino).map(|node| node.key)
    }

    /// The kernel forgets `n` of the lookups of `ino`, and with the last of them its pages.
    pub fn forget(&self, ino: Inode, n: u64) {
        let mut inodes = self.inodes.lock();
        inodes.forget(ino, n);
        if !inodes.knows(ino) {
            // Under the lock of the table: an open of the same number that comes next must find its version there.
            self.versions.forget(ino);
        }
    }

    /// The next lookup of the name of `ino` gives another inode.
    pub(super) fn retire(&self, ino: Inode) {
        self.inodes.lock().retire(ino);
    }

    /// Whether the name of `ino` is gone, or stands for another inode.
    pub(super) fn is_nameless(&self, ino: Inode) -> bool {
        let inodes = self.inodes.lock();
        inodes.knows(ino) && inodes.is_retired(ino)
    }

    /// Whether this mount has removed the name of `ino`, or given it to another file.
    pub(super) fn is_removed(&self, ino: Inode) -> bool {
        self.inodes.lock().is_removed(ino)
    }

    /// Whether the content of `ino` is being changed through this mount.
    pub fn is_being_written(&self, ino: Inode) -> bool {
        self.dirty.get(ino).is_some()
    }

    /// Whether listings give attributes without a further request, but for directories that say otherwise.
    pub fn listings_tell_attributes(&self) -> bool {
        self.options.readdir_optimize && self.options.posix_attributes != PosixAttributes::On
    }

    /// How many objects were found that a directory of the same name hides.
    pub fn hidden_objects(&self) -> usize {
        self.hidden.count()
    }

    /// The directory that holds `ino`; the root, and what is not known, hold themselves.
    pub fn parent_of(&self, ino: Inode) -> Inode {
        self.inodes.lock().get(ino).map_or(ino, |node| node.parent)
    }

    /// For how long what is learnt from now on is believed; none when nothing is.
    pub fn ttls(&self) -> Option<&Ttls> {
        self.cache.is_enabled().then(|| self.cache.ttls())
    }

    /// How many inodes the kernel knows, the root included.
    pub fn known_inodes(&self) -> usize {
        self.inodes.lock().len()
    }

    pub(super) fn node(&self, ino: Inode) -> Result<Node> {
        self.inodes.lock().get(ino).ok_or(Error::UnknownInode)
    }

    /// Attributes out of a fact. A directory of which no marker is known shows the time of the mount.
    pub(super) fn attr(&self, ino: Inode, path: &[u8], what: &What) -> Option<Attr> {
        let mut attr = match what {
            What::File(facts) => Attr::file(&self.options, ino, facts),
            What::Directory(marker) => Attr::directory(&self.options, ino, marker.as_ref(), self.mounted),
            What::Absent => return None,
        };
        self.own.apply(path, what, &mut attr);
        attr.impose(&self.options);
        Some(attr)
    }

    /// What stat shows of a file that is being changed.
    pub(super) fn attr_of_dirty(&self, file: &DirtyFile) -> Attr {
        let facts = match self.options.posix_attributes {
            PosixAttributes::Off => file.facts(),
            PosixAttributes::Auto | PosixAttributes::On => posix::being_written(file.facts(), &file.content.headers().metadata),
        };
        let what = What::File(facts);
        let attr = self.attr(file.ino, file.key().as_bytes(), &what).expect("a file has attributes");
        Attr { nlink: u32::from(!file.is_unwanted()), ..attr }
    }

    pub(super) fn path(&self, parent: Inode, name: &[u8]) -> Result<Key> {
        let parent = self.node(parent)?;
        if parent.kind() != Kind::Directory {
            return Err(Error::NotADirectory);
        }
        check_name(name)?;
        Ok(parent.key.join(name))
    }

    /// Refuses to create, remove or rename what is in `parent` where that holds buckets.
    ///
    /// # Errors
    /// [`Error::RootOfBuckets`].
    pub(super) fn check_may_change(&self, parent: Inode) -> Result<()> {
        match self.options.root_names {
            RootNames::Buckets { .. } if parent == Inode::ROOT => Err(Error::RootOfBuckets),
            RootNames::Buckets { .. } | RootNames::Objects => Ok(()),
        }
    }

    /// Whether the directory `path`, without its slash, is one of many buckets: it has no marker, as the root of a mount has none.
    pub(super) fn is_root_of_bucket(&self, path: &[u8]) -> bool {
        matches!(self.options.root_names, RootNames::Buckets { .. }) && !path.contains(&b'/')
    }

    pub(super) fn known_name(&self, path: &Key) -> Option<Fact> {
        let now = Instant::now();
        self.cache.name(path.as_bytes()).or_else(|| self.walked(path.as_bytes()).filter(|fact| fact.entry_until() > now))
    }

    pub(super) fn known_object(&self, path: &[u8]) -> Option<Fact> {
        let now = Instant::now();
        self.cache.object(path).or_else(|| self.walked(path).filter(|fact| fact.until > now))
    }

    /// What a walk that is still under way has seen of `path`, if nothing newer is known of it.
    fn walked(&self, path: &[u8]) -> Option<Fact> {
        let (directory, name) = split(path);
        let walk = self.walks.lock().get(directory)?.upgrade()?;
        let (entry, page) = walk.find(name)?;
        (!self.cache.learnt_after(path, page.learnt)).then(|| self.cache.listed(&entry, &page))
    }

    /// An entry of a file that is being changed. The kernel is to believe it for no time at all: it changes with every write. None: as
    /// [`remember`](Self::remember).
    fn remember_dirty(&self, parent: Inode, path: &Key, file: &DirtyFile) -> Option<Entry> {
        let ino = self.inodes.lock().of_parent(parent, path)?.remember(parent, path);
        if ino != file.ino {
            tracing::debug!(key = %path, ino = ino.0, dirty = file.ino.0, "the dirty file of a name has another inode");
        }
        Some(Entry { attr: Attr { ino, ..self.attr_of_dirty(file) }, ttl: Duration::ZERO })
    }

    /// The entry of `path`, which is in `parent`, counted as one lookup. None: `parent` has another key by now, or is getting one, so that
    /// `path` is not its entry: the kernel would know a file by its key from before, and by that take what comes there next for this file.
    pub(super) fn remember(&self, parent: Inode, path: &Key, fact: &Fact) -> Option<Result<Entry>> {
        let ino = match fact.what {
            What::File(ref facts) => {
                let mut inodes = self.inodes.lock();
                self.remember_file(inodes.of_parent(parent, path)?, parent, path, &facts.etag, fact.learnt)
            }
            What::Directory(_) => self.inodes.lock().of_parent(parent, path)?.remember(parent, &path.join(b"/")),
            What::Absent => {
                let is_settled = !self.locks.is_renamed(path) && self.inodes.lock().of_parent(parent, path).is_some();
                return is_settled.then_some(Err(Error::NotFound));
            }
        };
        let attr = self.attr(ino, path.as_bytes(), &fact.what).expect("it is there");
        Some(Ok(Entry { attr, ttl: self.cache.remaining(fact.entry_until()) }))
    }

    /// The number of the file `path`, of which the version `etag` was learnt then: another one than before while handles read another version under
    /// that.
    pub(super) fn remember_file(&self, inodes: &mut Inodes, parent: Inode, path: &Key, etag: &ETag, learnt: Instant) -> Inode {
        let ino = inodes.number(path);
        if !etag.as_str().is_empty()
            && inodes.knows(ino)
            && self.versions.is_read_in_another(ino, etag, learnt)
            && !self.is_being_written(ino)
        {
            inodes.retire(ino);
        }
        inodes.remember(parent, path)
    }

    /// A name that has become the other kind is another inode: this one is gone.
    fn attributes(&self, ino: Inode, node: &Node, fact: &Fact) -> Result<(Attr, Duration)> {
        let is_directory = node.kind() == Kind::Directory;
        let attr = self.attr(ino, path_of(node), &fact.what);
        let attr = attr.filter(|attr| (attr.kind == Kind::Directory) == is_directory).ok_or(Error::NotFound)?;
        Ok((attr, self.cache.remaining(fact.until)))
    }
}

/// The key without the `/` of a directory: what the stat cache calls it.
pub(super) fn path_of(node: &Node) -> &[u8] {
    let key = node.key.as_bytes();
    key.strip_suffix(b"/").unwrap_or(key)
}

/// The key of a file or a symbolic link.
pub(super) fn object_key(node: Node) -> Result<Key> {
    match node.kind() {
        Kind::File | Kind::Symlink => Ok(node.key),
        Kind::Directory => Err(Error::IsADirectory),
    }
}

fn file_in(fact: Fact, key: Key) -> Result<(ObjectMeta, Instant)> {
    match fact.what {
        What::File(facts) => Ok((object_meta(key, facts), fact.learnt)),
        What::Directory(_) | What::Absent => Err(Error::NotFound),
    }
}

pub(super) fn object_meta(key: Key, facts: FileFacts) -> ObjectMeta {
    ObjectMeta { key, size: facts.size, etag: facts.etag, modified: facts.modified }
}
