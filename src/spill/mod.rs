//! The disk that the process does not own alone: pieces of object versions are kept there, for itself, for other mounts and for its next
//! life, within bounds. Nothing here fetches or knows what a reader is. Invariant: every byte is reserved before it is written, every byte
//! that is read had the right checksum, and whatever happens to the directory a caller sees a miss, never an error.
//!
//! Below the directory: `chunks/xx/` holds two files of each object version, its bytes at their own offsets with holes between them
//! (`.data`), and which pieces are there with their checksums (`.map`). `ledger` says what all processes use, `daemons` who is there.
//! Pieces are written before their slots and nothing is synced: after a power cut a wrong piece has a wrong checksum.
//!
//! Why not foyer, the well-kept engine: its capacity is fixed when it is built (of the free space at that moment), where ours has to
//! follow statvfs while other programs write; its files belong to one process that lays entries of all objects into blocks of a log, so
//! that mounts cannot share a directory, and no file is an object that the kernel could read past us. cacache shares and
//! verifies, but keeps whole values and has no bounds. Taken over from them: chunks as the unit of eviction and a checksum with each piece
//! (foyer), lookup by the hash of a name with the name compared in full, removal by unlink (cacache), S3-FIFO (quick_cache).

mod adding;
mod entry;
mod eviction;
mod files;
mod format;
mod guard;
mod ledger;
mod membership;
mod object;
mod removal;
mod room;
mod scan;
mod trouble;
mod whole;

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use self::entry::{Entry, Locked, Removed, Turn};
use self::eviction::Eviction;
use self::files::{Layout, MAP, Pair};
use self::format::{Header, Name};
use self::ledger::Ledger;
use self::membership::Membership;
use self::room::Rescan;
use self::trouble::Trouble;
use self::whole::Stamp;
use crate::store::{ETag, Key};

pub use adding::Added;
pub use format::{CHUNK_BYTES, Identity, PIECE_BYTES};
pub use guard::{Bounds, Guard, Reservation};
pub use object::SpillObject;
pub use whole::Whole;

/// What the directory, its files and its list of fan-out directories take, which nobody reserves.
const BASE_BYTES: u64 = 64 << 10;

/// Objects that are remembered to be whole and good: 64 bytes each.
const VERIFIED: usize = 1 << 16;

/// The spill of one directory. Clones are the same spill. All calls block on the disk.
#[derive(Clone, Debug)]
pub struct Spill {
    engine: Arc<Engine>,
}

/// What the spill did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// What all processes on the directory use or reserved for chunks.
    pub bytes: u64,
    /// Object versions, as far as this process knows.
    pub objects: u64,
    /// Bytes that were read from the disk, and bytes that were asked for in vain.
    pub hit_bytes: u64,
    pub missed_bytes: u64,
    /// Chunks that this process evicted.
    pub evictions: u64,
    /// Pieces that were not what had been written.
    pub damaged: u64,
    /// Pieces for which there was no room, or which could not be written.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    objects: AtomicU64,
    hit_bytes: AtomicU64,
    missed_bytes: AtomicU64,
    evictions: AtomicU64,
    damaged: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ChunkId {
    name: Name,
    chunk: u32,
}

#[derive(Debug)]
struct Engine {
    layout: Layout,
    identity: Identity,
    bounds: Bounds,
    base_bytes: u64,
    /// The unit in which the file system gives room away.
    block_bytes: u64,
    ledger: Arc<Ledger>,
    guard: Guard,
    membership: Membership,
    index: Mutex<Eviction<ChunkId>>,
    /// Objects that somebody has open. A name may belong to two of them: see [`Header`].
    entries: Mutex<HashMap<Name, Weak<Entry>>>,
    /// How the data of versions was when all of it was good.
    verified: Mutex<HashMap<Name, Stamp>>,
    counters: Counters,
    trouble: Trouble,
    scanning: Mutex<()>,
    rescan: Mutex<Rescan>,
}

impl Spill {
    /// The spill in `directory`, made when it is not there. What is in it can be read at once; something is added as soon as
    /// [`scan`](Self::scan) was through, unless other processes are there already or nothing lies there.
    ///
    /// # Errors
    /// When the directory cannot be made, written or kept from others.
    pub fn open(directory: &Path, bounds: Bounds, identity: Identity) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let layout = Layout::new(directory);
        layout.prepare()?;
        let ledger = Arc::new(Ledger::shared(layout.ledger()));
        let membership = Membership::default();
        membership.join(&layout, &ledger, true)?;
        let engine = Arc::new(Engine {
            identity,
            bounds,
            base_bytes: BASE_BYTES,
            block_bytes: rustix::fs::statvfs(directory)?.f_frsize.clamp(4096, 64 << 10),
            guard: Guard::shared(bounds, ledger.clone(), BASE_BYTES),
            layout,
            ledger,
            membership,
            index: Mutex::default(),
            entries: Mutex::default(),
            verified: Mutex::default(),
            counters: Counters::default(),
            trouble: Trouble::default(),
            scanning: Mutex::default(),
            rescan: Mutex::default(),
        });
        let weak = Arc::downgrade(&engine);
        engine.guard.on_shortage(move |bytes, purpose| weak.upgrade().map_or(0, |engine| engine.make_room(bytes, purpose)));
        Ok(Self { engine })
    }

    /// The guard for other files in the directory: it evicts chunks when it is short of room. The engine has to live as long.
    pub fn guard(&self) -> Guard {
        self.engine.guard.clone()
    }

    /// One version of one object. No file is made before something is added.
    pub fn object(&self, key: &Key, etag: &ETag, size: u64) -> SpillObject {
        // Without an etag nobody can say which version it would be.
        let known = size > 0 && !etag.as_str().is_empty();
        let entry = known.then(|| self.engine.entry(Header::new(&self.engine.identity, key, etag, size)));
        SpillObject { engine: self.engine.clone(), entry }
    }

    /// Removes all versions of an object but the one with `etag`. The first piece of a version does so too.
    pub fn drop_others(&self, key: &Key, etag: &ETag) {
        self.engine.drop_versions(&Header::new(&self.engine.identity, key, etag, 0), true);
    }

    /// Removes all versions of an object, and says how many bytes are free or will be when nobody reads them any more.
    pub fn forget(&self, key: &Key) -> u64 {
        self.engine.drop_versions(&Header::new(&self.engine.identity, key, &ETag::from(""), 0), false)
    }

    /// Looks through the directory: fills the index, removes what is of no use, and sets the accounts right when no other
    /// process is there. In the background after [`open`](Self::open).
    pub fn scan(&self) {
        self.engine.scan();
    }

    /// Whether it is being counted what lies there: nothing is added before that is done.
    pub fn is_counting(&self) -> bool {
        self.engine.membership.is_counting()
    }

    /// About once a second: evicts before the bounds are reached, also when another program fills the disk, and finds its
    /// place again on a directory that was removed or is not shared any more.
    pub fn on_time(&self, now: Instant) {
        self.engine.keep_up(now);
    }

    /// What it did and holds.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.engine.counters;
        Stats {
            bytes: self.engine.ledger.change(|account| account.chunks).unwrap_or(0),
            objects: read(&counters.objects),
            hit_bytes: read(&counters.hit_bytes),
            missed_bytes: read(&counters.missed_bytes),
            evictions: read(&counters.evictions),
            damaged: read(&counters.damaged),
            dropped: read(&counters.dropped),
        }
    }
}

impl Engine {
    /// The one entry of this version in this process.
    fn entry(&self, header: Header) -> Arc<Entry> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&header.name()).and_then(Weak::upgrade)
            && *entry.header() == header
        {
            return entry;
        }
        let entry = Arc::new(Entry::new(header));
        *entry.verified.lock() = self.verified.lock().get(&entry.name()).copied();
        entries.insert(entry.name(), Arc::downgrade(&entry));
        // Amortized: what was closed since is swept when it may be half of it all.
        if entries.len() >= 64 && entries.len().is_power_of_two() {
            entries.retain(|_, entry| entry.strong_count() > 0);
        }
        entry
    }

    /// Remembers beyond the last use of `entry` how its data was when all of it was good.
    fn on_verified(&self, entry: &Entry, stamp: Option<Stamp>) {
        *entry.verified.lock() = stamp;
        let mut verified = self.verified.lock();
        match stamp {
            None => drop(verified.remove(&entry.name())),
            Some(stamp) => {
                if verified.len() >= VERIFIED {
                    // Whoever is forgotten here is looked through once more.
                    let mut keep = false;
                    verified.retain(|_, _| {
                        keep = !keep;
                        keep
                    });
                }
                verified.insert(entry.name(), stamp);
            }
        }
    }

    /// The version that has this name on the disk.
    fn entry_on_disk(&self, name: Name) -> io::Result<Option<Arc<Entry>>> {
        if let Some(entry) = self.entries.lock().get(&name).and_then(Weak::upgrade) {
            return Ok(Some(entry));
        }
        let Some(pair) = Pair::open(&self.layout, name)? else { return Ok(None) };
        let header = files::read_header(&pair.map)?.filter(|header| header.name() == name);
        Ok(header.map(|header| self.entry(header)))
    }

    /// Closes what others removed, so that its room is free.
    fn close_removed(&self) {
        let open: Vec<_> = self.entries.lock().values().filter_map(Weak::upgrade).collect();
        for entry in open {
            entry.close_removed();
        }
    }

    /// The first piece of a version was written. Not under its lock: the other versions have theirs.
    fn on_made(&self, entry: &Entry) -> io::Result<()> {
        self.counters.objects.fetch_add(1, Ordering::Relaxed);
        self.charge_directory(entry.name().fan())?;
        self.drop_versions(entry.header(), true);
        Ok(())
    }

    fn charge_directory(&self, fan: u8) -> io::Result<()> {
        let bytes = files::disk_bytes(&fs::metadata(self.layout.fan(fan))?);
        self.ledger.change(|account| account.recharge_directory(fan, u32::try_from(bytes).unwrap_or(u32::MAX)))
    }

    /// Removes the versions of the object that `of` is one of, that one perhaps not.
    fn drop_versions(&self, of: &Header, but_this: bool) -> u64 {
        let mut freed = 0;
        for name in self.versions(of.name().key) {
            if but_this && name == of.name() {
                continue;
            }
            let removed = self.entry_on_disk(name).and_then(|entry| match entry {
                Some(entry) if entry.header().is_version_of(of) => self.remove_named(name),
                _ => Ok(None),
            });
            match removed {
                Ok(Some(Removed::Freed(bytes) | Removed::Lingers(bytes))) => freed += bytes,
                Ok(None) => (),
                Err(error) => self.trouble.tell("removing", &self.layout.file(name, MAP), &error),
            }
        }
        freed
    }

    /// The names on the disk with this hash of a key.
    fn versions(&self, key: u64) -> Vec<Name> {
        let fan = Name { key, etag: 0 }.fan();
        let Ok(listed) = fs::read_dir(self.layout.fan(fan)) else { return Vec::new() };
        let name = |entry: fs::DirEntry| Name::parse(entry.file_name().to_str()?.strip_suffix(".map")?);
        listed.filter_map(|entry| name(entry.ok()?)).filter(|name| name.key == key).collect()
    }

    fn remove_named(&self, name: Name) -> io::Result<Option<Removed>> {
        let Some(entry) = self.entry_on_disk(name)? else { return Ok(None) };
        match entry.lock(&self.layout)? {
            Turn::Locked(locked) => self.remove(&entry, locked).map(Some),
            Turn::Contended | Turn::Gone => Ok(None),
        }
    }

    fn remove(&self, entry: &Entry, locked: Locked<'_>) -> io::Result<Removed> {
        let mapped = entry.mapped_chunks(&locked.pair)?;
        let removed = locked.remove(&self.layout, &self.ledger)?;
        let mut index = self.index.lock();
        for chunk in mapped {
            index.on_gone(&ChunkId { name: entry.name(), chunk: u32::try_from(chunk).unwrap_or(u32::MAX) });
        }
        let _ = self.counters.objects.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |objects| objects.checked_sub(1));
        Ok(removed)
    }

    /// Somebody reads all of it without us.
    fn on_opened(&self, entry: &Entry) {
        let mut index = self.index.lock();
        for chunk in 0..entry.chunks() {
            index.on_hit(&ChunkId { name: entry.name(), chunk: u32::try_from(chunk).unwrap_or(u32::MAX) });
        }
    }

    /// A chunk was read. One that another process added is not known yet.
    fn on_hit(&self, entry: &Entry, pair: &Pair, chunk: u64) {
        if !entry.is_new_hit(chunk) {
            return;
        }
        let id = ChunkId { name: entry.name(), chunk: u32::try_from(chunk).unwrap_or(u32::MAX) };
        let mut index = self.index.lock();
        if index.contains(&id) {
            index.on_hit(&id);
            return;
        }
        drop(index);
        let pieces = entry.pieces_of(chunk);
        let sums = pair.sums(entry.header(), &pieces).unwrap_or_default();
        let kept = pieces.zip(sums).filter(|(_, sum)| sum.is_some());
        let bytes: u64 = kept.map(|(piece, _)| entry.header().piece_len(piece) as u64).sum();
        if bytes > 0 {
            self.index.lock().on_found(id, bytes);
        }
    }
}

impl Engine {
    fn count_read(&self, hit: u64, missed: u64) {
        self.counters.hit_bytes.fetch_add(hit, Ordering::Relaxed);
        self.counters.missed_bytes.fetch_add(missed, Ordering::Relaxed);
    }

    fn count_dropped(&self, pieces: u64) {
        self.counters.dropped.fetch_add(pieces, Ordering::Relaxed);
    }

    fn count_damaged(&self, path: &Path) {
        self.counters.damaged.fetch_add(1, Ordering::Relaxed);
        self.trouble.tell_damaged(path);
    }

    fn count_evicted(&self, freed: bool) {
        self.counters.evictions.fetch_add(freed.into(), Ordering::Relaxed);
    }

    /// The value; none when the disk had trouble, which is told.
    fn quietly<T>(&self, doing: &'static str, entry: &Entry, result: io::Result<T>) -> Option<T> {
        result.inspect_err(|error| self.trouble.tell(doing, &self.layout.file(entry.name(), MAP), error)).ok()
    }
}
