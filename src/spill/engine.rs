//! What all parts of a spill share: its places, accounts, index and open objects. Invariant: of an object version this process has one
//! [`Entry`], so that its threads take turns.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::entry::{Entry, Locked, Removed, Turn};
use super::eviction::Eviction;
use super::files::{self, Layout, MAP, Pair};
use super::format::{Header, Identity, Name};
use super::guard::{Bounds, Guard};
use super::ledger::Ledger;
use super::membership::Membership;
use super::room::Rescan;
use super::trouble::Trouble;
use super::whole::Stamp;

/// What the directory, its files and its list of fan-out directories take, which nobody reserves.
const BASE_BYTES: u64 = 64 << 10;

/// Objects that are remembered to be whole and good: 64 bytes each.
const VERIFIED: usize = 1 << 16;

/// Two descriptors for each of one in so many that the process may have open: most are for connections to the store.
const DESCRIPTORS_PER_PAIR: u64 = 8;

/// How many objects may have their files open.
fn most_open() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(most / DESCRIPTORS_PER_PAIR).unwrap_or(usize::MAX).clamp(16, 1 << 16)
}

/// What [`Stats`](super::Stats) tells.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub objects: AtomicU64,
    pub hit_bytes: AtomicU64,
    pub missed_bytes: AtomicU64,
    pub evictions: AtomicU64,
    pub damaged: AtomicU64,
    pub dropped: AtomicU64,
}

/// Unit of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkId {
    pub name: Name,
    pub chunk: u32,
}

/// See [`Spill`](super::Spill).
#[derive(Debug)]
pub(super) struct Engine {
    pub layout: Layout,
    pub identity: Identity,
    pub bounds: Bounds,
    pub base_bytes: u64,
    /// The unit in which the file system gives room away.
    pub block_bytes: u64,
    pub ledger: Arc<Ledger>,
    pub guard: Guard,
    pub membership: Membership,
    pub index: Mutex<Eviction<ChunkId>>,
    /// Objects that somebody has open. A name may belong to two of them: see [`Header`].
    pub entries: Mutex<HashMap<Name, Weak<Entry>>>,
    /// How the data of versions was when all of it was good.
    verified: Mutex<HashMap<Name, Stamp>>,
    most_open: usize,
    pub counters: Counters,
    pub trouble: Trouble,
    pub scanning: Mutex<()>,
    pub rescan: Mutex<Rescan>,
}

impl Engine {
    pub fn open(layout: Layout, bounds: Bounds, identity: Identity) -> io::Result<Self> {
        let ledger = Arc::new(Ledger::shared(layout.ledger()));
        let membership = Membership::default();
        membership.join(&layout, &ledger, true)?;
        let trouble = Trouble::new(layout.clone());
        Ok(Self {
            identity,
            bounds,
            base_bytes: BASE_BYTES,
            block_bytes: rustix::fs::statvfs(layout.root())?.f_frsize.clamp(4096, 64 << 10),
            guard: Guard::shared(bounds, ledger.clone(), BASE_BYTES),
            layout,
            ledger,
            membership,
            index: Mutex::default(),
            entries: Mutex::default(),
            verified: Mutex::default(),
            most_open: most_open(),
            counters: Counters::default(),
            trouble,
            scanning: Mutex::default(),
            rescan: Mutex::default(),
        })
    }

    /// The one entry of this version in this process.
    pub(super) fn entry(&self, header: Header) -> Arc<Entry> {
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
    pub(super) fn on_verified(&self, entry: &Entry, stamp: Option<Stamp>) {
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
    pub(super) fn entry_on_disk(&self, name: Name) -> io::Result<Option<Arc<Entry>>> {
        if let Some(entry) = self.entries.lock().get(&name).and_then(Weak::upgrade) {
            return Ok(Some(entry));
        }
        let Some(pair) = Pair::open(&self.layout, name)? else { return Ok(None) };
        let header = files::read_header(&pair.map)?.filter(|header| header.name() == name);
        Ok(header.map(|header| self.entry(header)))
    }

    /// Closes files that nobody is at when too many are open: objects of which a reader has a handle stay entries.
    pub(super) fn make_way(&self) {
        if self.layout.open_pairs() < self.most_open {
            return;
        }
        let open: Vec<_> = self.entries.lock().values().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|entry| entry.close_idle());
    }

    /// Whether the kernel may have one more file: nobody can close those.
    pub(super) fn may_pass(&self) -> bool {
        self.layout.open_pairs() < self.most_open / 2
    }

    /// Closes what others removed, so that its room is free.
    pub(super) fn close_removed(&self) {
        let open: Vec<_> = self.entries.lock().values().filter_map(Weak::upgrade).collect();
        for entry in open {
            entry.close_removed();
        }
    }

    /// The first piece of a version was written. Not under its lock: the other versions have theirs.
    pub(super) fn on_made(&self, entry: &Entry) -> io::Result<()> {
        self.counters.objects.fetch_add(1, Ordering::Relaxed);
        self.charge_directory(entry.name().fan())?;
        self.drop_versions(entry.header(), true);
        Ok(())
    }

    pub(super) fn charge_directory(&self, fan: u8) -> io::Result<()> {
        let bytes = files::disk_bytes(&fs::metadata(self.layout.fan(fan))?);
        self.ledger.change(|account| account.recharge_directory(fan, u32::try_from(bytes).unwrap_or(u32::MAX)))
    }

    /// Removes the versions of the object that `of` is one of, that one perhaps not.
    pub(super) fn drop_versions(&self, of: &Header, but_this: bool) -> u64 {
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
    pub(super) fn versions(&self, key: u64) -> Vec<Name> {
        let fan = Name { key, etag: 0 }.fan();
        let Ok(listed) = fs::read_dir(self.layout.fan(fan)) else { return Vec::new() };
        let name = |entry: fs::DirEntry| Name::parse(entry.file_name().to_str()?.strip_suffix(".map")?);
        listed.filter_map(|entry| name(entry.ok()?)).filter(|name| name.key == key).collect()
    }

    pub(super) fn remove_named(&self, name: Name) -> io::Result<Option<Removed>> {
        let Some(entry) = self.entry_on_disk(name)? else { return Ok(None) };
        match entry.lock(&self.layout)? {
            Turn::Locked(locked) => self.remove(&entry, locked).map(Some),
            Turn::Contended | Turn::Gone => Ok(None),
        }
    }

    pub(super) fn remove(&self, entry: &Entry, locked: Locked<'_>) -> io::Result<Removed> {
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
    pub(super) fn on_opened(&self, entry: &Entry) {
        let mut index = self.index.lock();
        for chunk in 0..entry.chunks() {
            index.on_hit(&ChunkId { name: entry.name(), chunk: u32::try_from(chunk).unwrap_or(u32::MAX) });
        }
    }

    /// A chunk was read. One that another process added is not known yet.
    pub(super) fn on_hit(&self, entry: &Entry, pair: &Pair, chunk: u64) {
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
    pub(super) fn count_read(&self, hit: u64, missed: u64) {
        self.counters.hit_bytes.fetch_add(hit, Ordering::Relaxed);
        self.counters.missed_bytes.fetch_add(missed, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self, pieces: u64) {
        self.counters.dropped.fetch_add(pieces, Ordering::Relaxed);
    }

    pub(super) fn count_damaged(&self, path: &Path) {
        self.counters.damaged.fetch_add(1, Ordering::Relaxed);
        self.trouble.tell_damaged(path);
    }

    pub(super) fn count_evicted(&self, freed: bool) {
        self.counters.evictions.fetch_add(freed.into(), Ordering::Relaxed);
    }

    /// The value; none when the disk had trouble, which is told.
    pub(super) fn quietly<T>(&self, doing: &'static str, entry: &Entry, result: io::Result<T>) -> Option<T> {
        result.inspect_err(|error| self.trouble.tell(doing, &self.layout.file(entry.name(), MAP), error)).ok()
    }
}
