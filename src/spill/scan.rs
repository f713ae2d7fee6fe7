//! Looks through the directory: what lies in it goes to the index, what is of no use goes away, and whoever is alone sets the ledger
//! right. Reads go on meanwhile. Invariant: nothing that a slot names is removed.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::entry::{Entry, Locked, Taken, Turn};
use super::files::{self, DATA, MAP, Pair};
use super::format::{Name, PIECE_BYTES};
use super::ledger::FANS;
use super::{ChunkId, Engine};

/// Data may take so much more than its pieces, for blocks that they share with nobody, before it is looked for pieces that no slot names.
const STRAY_BYTES: u64 = 64 << 10;

/// What files there are of one name.
#[derive(Default)]
struct Files {
    map: bool,
    /// When it was changed.
    data: Option<SystemTime>,
}

impl Engine {
    /// See [`Spill::scan`](super::Spill::scan).
    pub(super) fn scan(&self) {
        let Some(_alone) = self.scanning.try_lock() else { return };
        if let Err(error) = self.try_scan() {
            self.trouble.tell("a look at what is there", self.layout.chunks(), &error);
        }
    }

    fn try_scan(&self) -> io::Result<()> {
        if self.membership.is_out() {
            self.membership.join(&self.layout, &self.ledger, false)?;
        }
        let counting = self.membership.is_counting();
        if counting {
            self.index.lock().clear();
        }
        // What was changed last is evicted last.
        let mut maps = self.list()?;
        maps.sort_unstable_by_key(|(changed, _)| *changed);
        let mut objects = 0;
        for (_, name) in maps {
            match self.inspect(name) {
                Ok(kept) => objects += u64::from(kept),
                Err(error) => self.trouble.tell("what it cannot read", &self.layout.file(name, MAP), &error),
            }
        }
        self.counters.objects.store(objects, Ordering::Relaxed);
        if counting {
            self.membership.settle(&self.ledger)?;
        }
        self.on_scanned();
        Ok(())
    }

    /// The names, and when the data of each was changed. What is not of our format goes.
    fn list(&self) -> io::Result<Vec<(SystemTime, Name)>> {
        let mut maps = Vec::new();
        for fan in 0..FANS {
            let fan = u8::try_from(fan).expect("there are as many as bytes");
            let directory = self.layout.fan(fan);
            let Some(entries) = files::found(fs::read_dir(&directory))? else { continue };
            self.charge_directory(fan)?;
            let mut found: BTreeMap<Name, Files> = BTreeMap::new();
            for entry in entries {
                self.note(&entry?, fan, &mut found)?;
            }
            for (name, files) in found {
                match files.data {
                    Some(changed) if files.map => maps.push((changed, name)),
                    _ => self.remove_useless(name)?,
                }
            }
        }
        for entry in fs::read_dir(self.layout.chunks())? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                files::remove(&entry.path())?;
            }
        }
        Ok(maps)
    }

    fn note(&self, entry: &DirEntry, fan: u8, found: &mut BTreeMap<Name, Files>) -> io::Result<()> {
        let path = entry.path();
        let part = |part: Option<&std::ffi::OsStr>| part.and_then(std::ffi::OsStr::to_str).unwrap_or_default().to_owned();
        let (stem, ending) = (part(path.file_stem()), part(path.extension()));
        let Some(status) = files::found(entry.metadata())? else { return Ok(()) };
        match Name::parse(&stem).filter(|name| name.fan() == fan && status.is_file()) {
            Some(name) if ending == MAP => found.entry(name).or_default().map = true,
            Some(name) if ending == DATA => found.entry(name).or_default().data = Some(status.modified()?),
            _ => remove_foreign(&path, status.is_dir())?,
        }
        Ok(())
    }

    /// One file without the other, data that was cut, or a map that nobody can read. Under its lock, because it may be in the making.
    fn remove_useless(&self, name: Name) -> io::Result<()> {
        let map = Pair::make_map(&self.layout, name)?;
        if !files::try_lock(&map, rustix::fs::FlockOperation::NonBlockingLockExclusive)? || map.metadata()?.nlink() == 0 {
            return Ok(());
        }
        let header = files::read_header(&map)?.filter(|header| header.name() == name);
        if let (Some(header), Some(data)) = (header, Pair::open_data(&self.layout, name)?)
            && data.metadata()?.len() == header.size()
        {
            return Ok(());
        }
        files::remove(&self.layout.file(name, DATA))?;
        files::remove(&self.layout.file(name, MAP))
    }

    /// Puts an object into the index and the ledger; whether there is anything of it.
    fn inspect(&self, name: Name) -> io::Result<bool> {
        let Some(entry) = self.entry_on_disk(name)? else {
            self.remove_useless(name)?;
            return Ok(false);
        };
        let locked = match entry.lock(&self.layout)? {
            Turn::Locked(locked) => locked,
            // Who changes it charges it.
            Turn::Contended => return Ok(true),
            Turn::Gone => {
                self.remove_useless(name)?;
                return Ok(false);
            }
        };
        let weights = weights(&entry, &locked)?;
        if weights.is_empty() {
            self.remove(&entry, locked)?;
            return Ok(false);
        }
        let named: u64 = weights.iter().map(|(_, bytes)| bytes).sum();
        let mut kept = named.next_multiple_of(self.block_bytes);
        let taken = files::disk_bytes(&locked.pair.data.metadata()?);
        if taken > named + STRAY_BYTES {
            let punched = locked.take_data()? == Taken::Free && {
                let punched = punch_strays(&entry, &locked);
                locked.let_data_go();
                punched.is_ok()
            };
            kept = if punched { kept } else { taken };
        }
        locked.recharge(&self.ledger, kept)?;
        drop(locked);
        let mut index = self.index.lock();
        for (chunk, bytes) in weights {
            index.on_found(ChunkId { name, chunk: u32::try_from(chunk).unwrap_or(u32::MAX) }, bytes);
        }
        Ok(true)
    }
}

/// What others put there, by accident. A directory may hold anything and is left.
fn remove_foreign(path: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory { Ok(()) } else { files::remove(path) }
}

/// The chunks of which there is something, and how much.
fn weights(entry: &Entry, locked: &Locked<'_>) -> io::Result<Vec<(u64, u64)>> {
    let mut weights = Vec::new();
    for chunk in entry.mapped_chunks(&locked.pair)? {
        let bytes = locked.kept_in(chunk)?;
        if bytes > 0 {
            weights.push((chunk, bytes));
        }
    }
    Ok(weights)
}

/// Frees what a killed process wrote without getting to its slot.
fn punch_strays(entry: &Entry, locked: &Locked<'_>) -> io::Result<()> {
    let mapped = entry.mapped_chunks(&locked.pair)?;
    for chunk in mapped.clone() {
        let pieces = entry.pieces_of(chunk);
        for (piece, _) in pieces.clone().zip(locked.pair.sums(entry.header(), &pieces)?).filter(|(_, sum)| sum.is_none()) {
            punch(locked, &(piece * PIECE_BYTES..((piece + 1) * PIECE_BYTES).min(entry.header().size())))?;
        }
    }
    let behind = entry.bytes_of(mapped.end).start;
    punch(locked, &(behind..entry.header().size().max(locked.pair.data.metadata()?.len())))
}

fn punch(locked: &Locked<'_>, range: &Range<u64>) -> io::Result<()> {
    if range.is_empty() { Ok(()) } else { locked.pair.punch(range) }
}
