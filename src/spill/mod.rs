//! The disk that the process does not own alone: pieces of object versions are kept there, for itself, for other mounts and for its next
//! life, within bounds. Nothing here fetches or knows what a reader is. Invariant: every byte is reserved before it is written, every byte
//! that is read had the right checksum, and whatever happens to the directory a caller sees a miss, never an error.
//!
//! Below the directory: `chunks/xx/` holds two files of each object version, its bytes at their own offsets with holes between them
//! (`.data`), and which pieces are there with their checksums (`.map`). `ledger` says what all processes use, `daemons` who is there, and `members/`
//! what each of them has reserved and not written yet.
//! Pieces are written before their slots and nothing is synced: after a power cut a wrong piece has a wrong checksum.
//!
//! Why not foyer, the well-kept engine: its capacity is fixed when it is built (of the free space at that moment), where ours has to
//! follow statvfs while other programs write; its files belong to one process that lays entries of all objects into blocks of a log, so
//! that mounts cannot share a directory, and no file is an object that the kernel could read past us. cacache shares and
//! verifies, but keeps whole values and has no bounds. Taken over from them: chunks as the unit of eviction and a checksum with each piece
//! (foyer), lookup by the hash of a name with the name compared in full, removal by unlink (cacache), S3-FIFO (quick_cache).

mod adding;
mod engine;
mod entry;
mod eviction;
mod files;
mod format;
mod guard;
mod home;
mod ledger;
mod membership;
mod object;
mod removal;
mod room;
mod scan;
mod summing;
mod trouble;
mod whole;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use self::engine::{ChunkId, Engine};
use self::files::Layout;
use self::format::Header;
use crate::store::{ETag, Key};

pub use adding::{Added, Addition, Way};
pub use format::{CHUNK_BYTES, Identity, PIECE_BYTES};
pub use guard::{Bounds, Guard, Reservation};
pub use home::{Home, open_own};
pub use object::SpillObject;
pub use summing::Summing;
pub use whole::Whole;

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

impl Spill {
    /// The spill in `directory`, made when it is not there. What is in it can be read at once; something is added as soon as
    /// [`scan`](Self::scan) was through, unless other processes are there already or nothing lies there.
    ///
    /// # Errors
    /// When the directory cannot be made, written or kept from others. See [`Home`].
    pub fn open(directory: &Path, bounds: Bounds, identity: Identity) -> io::Result<Self> {
        let layout = Layout::open(directory)?;
        layout.prepare()?;
        let engine = Arc::new(Engine::open(layout, bounds, identity)?);
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
