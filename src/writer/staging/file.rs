//! The private sparse file of one content on the disk, and the room that it takes there. It does not know what its bytes mean.
//! Invariant: nothing grows without a reservation, and the file and its description are gone with their owner, unless
//! it said that they stay; a process that was killed leaves them too.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation};

use super::Options;
use super::changes::{Change, Changes};
use super::journal::{self, Entry};
use crate::spill::{Bounds, Guard, Home, open_own};

/// Ends of names: of a staged file, of its description, and of what has changed since.
pub(super) const DATA: &str = "data";
pub(super) const ENTRY: &str = "json";
pub(super) const CHANGES: &str = "changes";

/// The directory of staged files in that of the spill.
const NAME: &str = "staging";

/// Where staged files are.
#[derive(Debug)]
pub(in crate::writer) struct Area {
    /// The directory that was named, or the default.
    parent: PathBuf,
    /// The same, once it was opened.
    home: OnceLock<Arc<Home>>,
    /// Of this process alone.
    own: Guard,
    /// Of all that use the directory that this one is in.
    shared: OnceLock<Guard>,
    names: AtomicU64,
    /// Another daemon may go on with what is here.
    is_written_down: AtomicBool,
    /// A person named the directory: it is there for the next daemon.
    is_named: bool,
}

impl Area {
    /// Touches nothing: a mount that stages nothing needs no disk.
    pub fn new(options: &Options) -> Self {
        let parent = options.dir.clone().unwrap_or_else(default_directory);
        let bounds = Bounds { max: options.max, ensure_free: options.ensure_free, free_ratio: options.free_ratio };
        Self {
            parent,
            home: OnceLock::new(),
            own: Guard::new(bounds),
            shared: OnceLock::new(),
            names: AtomicU64::new(0),
            is_written_down: AtomicBool::new(false),
            is_named: options.dir.is_some(),
        }
    }

    /// Takes room of `guard` from now on. For before the first file.
    pub fn share(&self, guard: Guard) {
        // A second one would be of the same directory.
        let _ = self.shared.set(guard);
    }

    /// See [`Writer::write_down_changes`](crate::writer::Writer::write_down_changes). For before the first file.
    pub fn write_down_changes(&self) {
        self.is_written_down.store(true, Ordering::Relaxed);
    }

    pub fn is_written_down(&self) -> bool {
        self.is_written_down.load(Ordering::Relaxed)
    }

    /// Whether another daemon finds what this one leaves when it ends as it should.
    pub fn is_found(&self) -> bool {
        self.is_named && self.is_written_down()
    }

    fn guard(&self) -> &Guard {
        self.shared.get().unwrap_or(&self.own)
    }

    /// The data files that are there; none when nothing was ever staged.
    ///
    /// # Errors
    /// When their directory cannot be read, or other users can change it: what they put there is not to be uploaded.
    pub fn data_files(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match self.existing().and_then(fs::read_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found?,
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(paths.filter(|path| path.extension() == Some(OsStr::new(DATA))).collect())
    }

    /// The directory of staged files, where there is one.
    fn existing(&self) -> io::Result<PathBuf> {
        let home = Home::existing(&self.parent)?;
        let home = self.home.get_or_init(|| Arc::new(home));
        let directory = home.path().join(NAME);
        home.check_private(&directory)?;
        Ok(directory)
    }

    /// `path` as a person finds it.
    pub fn shown(&self, path: &Path) -> PathBuf {
        self.home.get().map_or_else(|| path.to_owned(), |home| home.shown(path))
    }

    /// Whether `bytes` more would find room; nothing is kept for them.
    pub fn check(&self, bytes: u64) -> io::Result<()> {
        let directory = self.prepare()?;
        self.guard().reserve(&directory, bytes).map(drop)
    }

    /// The directory, for us alone.
    fn prepare(&self) -> io::Result<PathBuf> {
        // Each time: it may have been removed meanwhile.
        let home = Home::open(&self.parent)?;
        self.home.get_or_init(|| Arc::new(home)).private(NAME)
    }

    /// A new, empty, locked file.
    pub fn create(&self) -> io::Result<StagedFile> {
        let directory = self.prepare()?;
        loop {
            let number = self.names.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!("{}-{number}-{:08x}.{DATA}", std::process::id(), rand::random::<u32>()));
            let opened = open_own(OpenOptions::new().read(true).write(true).create_new(true), &path);
            let file = match opened {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            // A daemon that clears up takes a file without lock and description for one that was left.
            if lock(&file).is_ok() && file.metadata()?.nlink() > 0 {
                return self.staged(file, path);
            }
        }
    }

    fn staged(&self, file: File, path: PathBuf) -> io::Result<StagedFile> {
        let changes = self.is_written_down().then(|| Changes::open(&path.with_extension(CHANGES))).transpose()?;
        let shown = self.shown(&path);
        Ok(StagedFile::new(file, path, shown, self.guard().clone(), changes))
    }

    /// A file that a killed daemon left; none when its owner lives.
    pub fn adopt(&self, path: &Path) -> io::Result<Option<StagedFile>> {
        let file = open_own(OpenOptions::new().read(true).write(true), path)?;
        if lock(&file).is_err() || file.metadata()?.nlink() == 0 {
            return Ok(None);
        }
        let staged = self.staged(file, path.to_owned())?;
        *staged.described.lock() = Described::Sealed;
        Ok(Some(staged))
    }
}

/// One name for all mounts of a user, so that the next mount finds what a killed one left.
fn default_directory() -> PathBuf {
    std::env::temp_dir().join(format!("windlass-{}", rustix::process::geteuid().as_raw()))
}

fn lock(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

/// What the description beside the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::writer) enum Described {
    /// There is none: the file holds nothing that the store does not have.
    Not,
    /// That the file is being changed.
    Open,
    /// All that is needed to upload it.
    Sealed,
}

/// See the module.
#[derive(Debug)]
pub(in crate::writer) struct StagedFile {
    file: File,
    path: PathBuf,
    shown: PathBuf,
    guard: Guard,
    /// What was reserved for it.
    taken: AtomicU64,
    described: Mutex<Described>,
    /// What has changed since it was described. None: nobody goes on after this process.
    changes: Option<Changes>,
    /// Somebody shall find it.
    stays: Mutex<bool>,
}

impl StagedFile {
    fn new(file: File, path: PathBuf, shown: PathBuf, guard: Guard, changes: Option<Changes>) -> Self {
        let (taken, described, stays) = (AtomicU64::new(0), Mutex::new(Described::Not), Mutex::new(false));
        Self { file, path, shown, guard, taken, described, changes, stays }
    }

    /// Writes `data` at `offset`; `growth` bytes of it were not in the file before.
    pub fn write(&self, offset: u64, data: &[u8], growth: u64) -> io::Result<()> {
        let directory = self.path.parent().expect("it is in the directory of the area");
        let room = self.guard.reserve(directory, growth)?;
        self.file.write_all_at(data, offset)?;
        room.written();
        self.taken.fetch_add(growth, Ordering::Relaxed);
        Ok(())
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    /// Gives the room of `range`, of which `held` bytes were used, back to the disk where that can be done.
    pub fn punch(&self, range: &Range<u64>, held: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if held > 0 && rustix::fs::fallocate(&self.file, flags, range.start, range.end - range.start).is_ok() {
            self.give_back(held);
        }
    }

    /// Cuts the file, of which `held` bytes behind `size` were used.
    pub fn cut(&self, size: u64, held: u64) -> io::Result<()> {
        if self.file.metadata()?.len() > size {
            self.file.set_len(size)?;
            self.give_back(held);
        }
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        let before = self.taken.load(Ordering::Relaxed);
        let bytes = bytes.min(before);
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        self.guard.release(bytes);
    }

    /// Counts what an adopted file takes on the disk.
    pub fn count(&self, bytes: u64) {
        self.guard.adopt(bytes);
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts all that an adopted file takes on the disk, so that its removal gives the room back.
    pub fn count_disk(&self) -> io::Result<()> {
        // Of 512 bytes, whatever the file system's own blocks are: stat(2).
        self.count(self.file.metadata()?.blocks() * 512);
        Ok(())
    }

    pub fn described(&self) -> Described {
        *self.described.lock()
    }

    /// Writes the description.
    pub fn describe(&self, entry: &Entry, sealed: bool) -> io::Result<()> {
        let mut described = self.described.lock();
        if sealed {
            // The data first: a description must not say more than a power cut leaves.
            self.file.sync_data()?;
        }
        journal::write(&self.path.with_extension(ENTRY), entry, sealed)?;
        // Read again on top of what they are a part of they change nothing.
        self.changes.as_ref().map_or(Ok(()), Changes::clear)?;
        *described = if sealed { Described::Sealed } else { Described::Open };
        Ok(())
    }

    /// Writes down what has just been done to it, or its size; for who holds the content's `io` lock.
    pub fn note(&self, change: &Change) -> io::Result<()> {
        self.changes.as_ref().map_or(Ok(()), |changes| changes.append(change))
    }

    /// The store has everything.
    pub fn undescribe(&self) -> io::Result<()> {
        let mut described = self.described.lock();
        if *described != Described::Not {
            fs::remove_file(self.path.with_extension(ENTRY))?;
            *described = Described::Not;
        }
        Ok(())
    }

    /// Whether it is left where it is, for somebody to look at, when it is dropped.
    pub fn stay(&self, stays: bool) {
        *self.stays.lock() = stays;
    }

    /// Whether somebody shall find it, and there is something to find.
    pub fn stays(&self) -> bool {
        *self.stays.lock()
    }

    /// The path by which it is opened, for this process.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a person finds its bytes.
    pub fn shown(&self) -> &Path {
        &self.shown
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        // Without a description it holds nothing that the store lacks, whoever was to find it.
        if !*self.stays.get_mut() || *self.described.get_mut() == Described::Not {
            // The description first: without it the data means nothing to anybody.
            let _ = fs::remove_file(self.path.with_extension(ENTRY));
            let _ = fs::remove_file(self.path.with_extension(CHANGES));
            let _ = fs::remove_file(&self.path);
            self.guard.release(*self.taken.get_mut());
        }
    }
}
