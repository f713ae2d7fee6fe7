//! The part of a mount between the kernel's requests and [`Versions`], for one name: the stat cache, the inode table, open handles, one dirty file. It does
//! what files.rs, open_file.rs, lookup.rs and commit.rs do, in their order, with places to be interrupted where they await. Bytes are the number of the
//! content that they belong to.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::yield_now;
use tokio::time::Instant;

use crate::Inode;
use crate::store::{ETag, Key, ObjectMeta};
use crate::sync::Mutex;
use crate::versions::{Opening, Seen, VersionState, Versions};

/// What an object or a dirty file holds; its ETag is the same number.
pub type Content = u32;

/// A fault that is put into the mount, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// An open always lets the kernel keep its pages.
    KeepsPages,
    /// A reply to open counts as proof that the kernel has dropped its pages.
    ProvenByOpen,
    /// The answer of the store that came last counts, not the one that was asked for last.
    OrderOfAnswers,
    /// A read looks whether its version is current before its bytes are there, and not again.
    LooksOnce,
    /// A handle that has returned bytes moves on to the next version, too.
    MovesOn,
    /// A commit does not supersede what readers have.
    CommitIsNotTold,
    /// After a failed commit the kernel's pages count as before.
    TrustsPhantoms,
    /// When one handle moves on to a version, the others of the inode stay behind.
    LeavesBehind,
    /// The first read of a handle that was opened on a dirty file counts as one after a drop of the kernel's pages.
    ProvenByBind,
}

/// Most steps that a thread waits between two acts. A reader takes about a hundred.
const PAUSE: usize = 60;

/// Lets the others go on for some time: what is short would else be over before they have begun.
pub fn pause() {
    (0..thread_rng().gen_range(0..PAUSE)).for_each(|_| yield_now());
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// ESTALE.
    Stale,
    /// ENOENT.
    Absent,
    /// ESTALE of an open: the name has to be looked up again.
    Retired,
    /// The read has to look again: another handle has moved this one on.
    Lost,
}

/// What other clients and this mount have put into the bucket, one after another; None: removed.
#[derive(Debug)]
pub struct Bucket(Mutex<Vec<Option<Content>>>);

impl Bucket {
    pub fn now(&self) -> Option<Content> {
        *self.0.lock().last().expect("it begins with one")
    }

    pub fn put(&self, content: Option<Content>) {
        self.0.lock().push(content);
    }

    /// The last place of `content` in the order of all; a dirty file's comes after all of them.
    pub fn place(&self, content: Content) -> usize {
        self.0.lock().iter().rposition(|&known| known == Some(content)).unwrap_or(usize::MAX)
    }
}

/// A file that this mount is changing.
#[derive(Debug)]
pub struct DirtyFile {
    ino: u64,
    content: Content,
    /// What the bucket has of it, and since when.
    last_version: Mutex<Option<(Content, Instant)>>,
}

/// What a handle reads.
#[derive(Debug)]
struct Version {
    object: Arc<Content>,
    state: Arc<VersionState>,
    ticket: u64,
    has_returned: bool,
}

#[derive(Debug)]
struct OpenFile {
    ino: u64,
    direct: bool,
    version: Mutex<Version>,
}

/// How a handle is bound to a version.
#[derive(Clone, Copy, Debug)]
struct Bind {
    ino: u64,
    direct: bool,
    /// The kernel drops its pages for it.
    proves: bool,
}

/// An answer to open.
#[derive(Debug)]
pub struct Opened {
    pub handle: u64,
    pub keeps_pages: bool,
    pub direct: bool,
}

#[derive(Debug)]
struct Inodes {
    /// The number of the name.
    named: u64,
    /// How many lookups the kernel knows of each.
    known: BTreeMap<u64, u64>,
    next: u64,
}

#[derive(Debug)]
pub struct Mount {
    pub bucket: Bucket,
    fault: Fault,
    versions: Versions,
    /// The fact that is known of the name, and when the store was asked.
    cache: Mutex<Option<(Content, Instant)>>,
    inodes: Mutex<Inodes>,
    open: Mutex<BTreeMap<u64, Arc<OpenFile>>>,
    /// Handles that were opened on a dirty file.
    edits: Mutex<BTreeMap<u64, Arc<DirtyFile>>>,
    dirty: Mutex<Option<Arc<DirtyFile>>>,
    next_handle: Mutex<u64>,
    /// What the reader has in memory.
    memory: Mutex<HashSet<Content>>,
}

/// The object with that content.
pub fn meta(content: Content) -> ObjectMeta {
    ObjectMeta { key: Key::from("a"), size: 1, etag: ETag::from(content.to_string().as_str()), modified: SystemTime::UNIX_EPOCH }
}

fn content(meta: &ObjectMeta) -> Content {
    meta.etag.as_str().parse().expect("it was made of a number")
}

impl Version {
    fn is_bound(&self, direct: bool) -> bool {
        self.has_returned || !direct && self.state.has_returned()
    }
}

impl Mount {
    pub fn new(first: Content, fault: Fault) -> Self {
        Self {
            bucket: Bucket(Mutex::new(vec![Some(first)])),
            fault,
            versions: Versions::default(),
            cache: Mutex::default(),
            inodes: Mutex::new(Inodes { named: 100, known: BTreeMap::new(), next: 101 }),
            open: Mutex::default(),
            edits: Mutex::default(),
            dirty: Mutex::default(),
            next_handle: Mutex::default(),
            memory: Mutex::default(),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// LOOKUP: the inode of the name.
    pub fn lookup(&self) -> Result<u64, Refused> {
        if let Some(file) = self.dirty.lock().clone() {
            let mut inodes = self.inodes.lock();
            *inodes.known.entry(file.ino).or_default() += 1;
            return Ok(file.ino);
        }
        let (content, learnt) = self.fresh_object()?;
        let mut inodes = self.inodes.lock();
        let ino = inodes.named;
        let is_known = inodes.known.contains_key(&ino);
        if is_known && self.versions.is_read_in_another(Inode(ino), &meta(content).etag, learnt) && !self.is_being_written(ino) {
            inodes.retire(ino);
        }
        let named = inodes.named;
        *inodes.known.entry(named).or_default() += 1;
        Ok(named)
    }

    /// FORGET.
    pub fn forget(&self, ino: u64, n: u64) {
        let mut inodes = self.inodes.lock();
        let known = inodes.known.get_mut(&ino).expect("the kernel knows it");
        *known -= n;
        if *known == 0 {
            inodes.known.remove(&ino);
            self.versions.forget(Inode(ino));
        }
    }

    fn is_being_written(&self, ino: u64) -> bool {
        self.dirty_of(ino).is_some()
    }

    fn dirty_of(&self, ino: u64) -> Option<Arc<DirtyFile>> {
        self.dirty.lock().clone().filter(|file| file.ino == ino)
    }

    /// What the bucket has now, and when it was asked.
    fn ask(&self) -> Result<(Content, Instant), Refused> {
        let asked = Instant::now();
        yield_now();
        let content = self.bucket.now();
        self.wait_for_answer();
        let mut cache = self.cache.lock();
        let learnt = if self.has(Fault::OrderOfAnswers) { Instant::now() } else { asked };
        match content {
            Some(content) => {
                if cache.is_none_or(|(_, known)| known <= learnt) {
                    *cache = Some((content, learnt));
                }
                Ok((content, learnt))
            }
            None => {
                if cache.is_none_or(|(_, known)| known <= learnt) {
                    *cache = None;
                }
                Err(Refused::Absent)
            }
        }
    }

    /// Some answers take long.
    fn wait_for_answer(&self) {
        if thread_rng().gen_bool(0.1) { (0..3).for_each(|_| pause()) } else { yield_now() }
    }

    fn fresh_object(&self) -> Result<(Content, Instant), Refused> {
        let known = *self.cache.lock();
        match known {
            // Else its time is over.
            Some(known) if thread_rng().gen_bool(0.5) => Ok(known),
            _ => self.ask(),
        }
    }

    fn new_handle(&self) -> u64 {
        let mut next = self.next_handle.lock();
        *next += 1;
        *next
    }

    /// OPEN for reading.
    pub fn open(&self, ino: u64, direct: bool) -> Result<Opened, Refused> {
        if let Some(file) = self.dirty_of(ino) {
            let handle = self.new_handle();
            self.edits.lock().insert(handle, file);
            return Ok(Opened { handle, keeps_pages: false, direct: true });
        }
        let handle = self.new_handle();
        let (content, learnt) = self.fresh_object()?;
        let Some(opening) = self.open_as(handle, Bind { ino, direct, proves: true }, content, learnt) else {
            self.inodes.lock().retire(ino);
            return Err(Refused::Retired);
        };
        Ok(Opened { handle, keeps_pages: opening.keeps_pages || self.has(Fault::KeepsPages), direct })
    }

    fn open_as(&self, handle: u64, bind: Bind, content: Content, learnt: Instant) -> Option<Opening> {
        let Bind { ino, direct, proves } = bind;
        // Until the handle can be found: what is current may else change in between, and leave it behind.
        let mut versions = self.versions.lock();
        let seen = versions.see(Inode(ino), &meta(content), learnt);
        let Seen::Current(mut opening) = seen else { return None };
        let ticket = match proves {
            true if self.has(Fault::ProvenByOpen) => u64::MAX,
            true => opening.ticket,
            false => 0,
        };
        opening.keeps_pages &= !direct;
        let (object, state) = (Arc::new(self::content(&opening.meta)), Arc::clone(&opening.state));
        let file = OpenFile { ino, direct, version: Mutex::new(Version { object, state, ticket, has_returned: false }) };
        if self.has(Fault::LeavesBehind) {
            drop(versions);
            self.open.lock().insert(handle, Arc::new(file));
        } else {
            self.open.lock().insert(handle, Arc::new(file));
            self.move_all(ino, &opening);
        }
        Some(opening)
    }

    /// READ of one page.
    pub fn read(&self, handle: u64, ino: u64) -> Result<Content, Refused> {
        if let Some(file) = self.dirty_of(ino) {
            return Ok(file.content);
        }
        let open = self.open.lock().get(&handle).cloned();
        let file = match open {
            Some(file) => file,
            None => self.bind_reader(handle, ino)?,
        };
        loop {
            let object = Arc::clone(&file.version.lock().object);
            let was_current = !file.version.lock().state.is_superseded();
            let is_there = self.memory.lock().contains(&*object) || {
                yield_now();
                let is_there = self.bucket.now() == Some(*object);
                if is_there && thread_rng().gen_bool(0.5) {
                    self.memory.lock().insert(*object);
                }
                is_there
            };
            self.wait_for_answer();
            if is_there && self.returns(&file, &object, was_current) {
                return Ok(*object);
            }
            self.move_on(&file, &object)?;
        }
    }

    fn returns(&self, file: &OpenFile, object: &Arc<Content>, was_current: bool) -> bool {
        let mut version = file.version.lock();
        if self.has(Fault::LooksOnce) {
            version.has_returned = true;
            version.state.returns(version.ticket);
            return was_current;
        }
        if !Arc::ptr_eq(&version.object, object) || !version.state.returns(version.ticket) {
            return false;
        }
        version.has_returned = true;
        true
    }

    fn bind_reader(&self, handle: u64, ino: u64) -> Result<Arc<OpenFile>, Refused> {
        let dirty = self.edits.lock().get(&handle).cloned().expect("it is open");
        let (content, since) = dirty.last_version.lock().ok_or(Refused::Lost)?;
        if let Some(file) = self.open.lock().get(&handle) {
            return Ok(Arc::clone(file));
        }
        // The kernel has dropped its pages when the handle was opened, and not now.
        let proves = self.has(Fault::ProvenByBind);
        let opening = self.open_as(handle, Bind { ino, direct: true, proves }, content, since);
        match opening {
            Some(opening) if opening.meta.etag == meta(content).etag => self.open.lock().get(&handle).cloned().ok_or(Refused::Stale),
            opening => {
                if opening.is_some() {
                    self.open.lock().remove(&handle);
                }
                Err(Refused::Stale)
            }
        }
    }

    fn move_on(&self, file: &OpenFile, gone: &Arc<Content>) -> Result<(), Refused> {
        if !Arc::ptr_eq(&file.version.lock().object, gone) {
            return Ok(());
        }
        let fresh = self.ask();
        // The next version may be shorter, which the kernel could not be told.
        let stays = fresh.is_err() || !file.direct && thread_rng().gen_bool(0.2);
        // Notify the kernel.
        yield_now();
        let mut versions = self.versions.lock();
        let mut version = file.version.lock();
        if !Arc::ptr_eq(&version.object, gone) {
            return Ok(());
        }
        let Ok((content, learnt)) = fresh else {
            versions.on_gone(Inode(file.ino), &version.state);
            return Err(Refused::Stale);
        };
        let is_same = content == **gone;
        let is_bound = version.is_bound(file.direct) && !self.has(Fault::MovesOn);
        if stays || is_bound || is_same && !version.state.is_superseded() {
            if !is_same {
                versions.on_gone(Inode(file.ino), &version.state);
            }
            return Err(Refused::Stale);
        }
        match versions.see_for(Inode(file.ino), &meta(content), learnt, Some(&version.state)) {
            Seen::Retire => return Err(Refused::Stale),
            Seen::Current(opening) => {
                version.object = Arc::new(self::content(&opening.meta));
                version.state = Arc::clone(&opening.state);
                drop(version);
                if !self.has(Fault::LeavesBehind) {
                    self.move_all(file.ino, &opening);
                }
            }
        }
        Ok(())
    }

    /// Under the lock of versions: all that go through the pages of `ino` may be given bytes of the version of `opening`.
    fn move_all(&self, ino: u64, opening: &Opening) {
        let open: Vec<_> = self.open.lock().values().filter(|open| open.ino == ino && !open.direct).cloned().collect();
        for open in open {
            let mut version = open.version.lock();
            if !Arc::ptr_eq(&version.state, &opening.state) && !version.is_bound(false) {
                version.object = Arc::new(content(&opening.meta));
                version.state = Arc::clone(&opening.state);
            }
        }
    }

    /// RELEASE of a handle that only read.
    pub fn release(&self, handle: u64) {
        let file = self.open.lock().remove(&handle);
        yield_now();
        drop(file);
        self.edits.lock().remove(&handle);
    }

    /// OPEN with O_TRUNC, and the content that is then written: for one writer at a time.
    pub fn begin(&self, ino: u64, content: Content) -> Result<Arc<DirtyFile>, Refused> {
        if self.inodes.lock().named != ino {
            return Err(Refused::Retired);
        }
        let base = self.fresh_object()?;
        let since = Instant::now();
        let file = Arc::new(DirtyFile { ino, content, last_version: Mutex::new(Some((base.0, since))) });
        *self.dirty.lock() = Some(Arc::clone(&file));
        Ok(file)
    }

    /// FLUSH.
    pub fn commit(&self, file: &DirtyFile) {
        self.bucket.put(Some(file.content));
        yield_now();
        *self.cache.lock() = Some((file.content, Instant::now()));
        if !self.has(Fault::CommitIsNotTold) {
            let mut versions = self.versions.lock();
            let open: Vec<_> = self.open.lock().values().filter(|open| open.ino == file.ino).cloned().collect();
            let state = versions.on_commit(Inode(file.ino), &meta(file.content), !open.is_empty());
            for open in open {
                let mut version = open.version.lock();
                version.object = Arc::new(file.content);
                version.state = Arc::clone(&state);
                version.has_returned = true;
            }
        }
        *file.last_version.lock() = Some((file.content, Instant::now()));
    }

    /// RELEASE of the writer.
    pub fn end(&self) {
        *self.dirty.lock() = None;
    }

    /// The same after a commit that failed. The kernel drops its pages afterwards.
    pub fn give_up(&self, ino: u64) {
        *self.dirty.lock() = None;
        if !self.has(Fault::TrustsPhantoms) {
            self.versions.lock().on_unproven(Inode(ino));
        }
    }
}

impl Inodes {
    fn retire(&mut self, ino: u64) {
        if self.named == ino {
            self.named = self.next;
            self.next += 1;
        }
    }
}
