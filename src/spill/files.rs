//! Where files are, and the two files of one object version: bytes at their own offsets, and the map that says which of them
//! are there. It decides nothing. Invariant: a file is given a name below `chunks/` here and nowhere else.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use super::format::{CHARGE_AT, Header, Name, SLOT_BYTES};
use super::home::{Home, make_private, open_own};
use super::ledger::Charge;

pub(super) const DATA: &str = "data";
pub(super) const MAP: &str = "map";
/// Behind the charge.
const KEPT_AT: u64 = CHARGE_AT + 16;
const PASSED_AT: u64 = KEPT_AT + 8;

/// The places below one directory, and how many pairs of files this process has open there.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    home: Arc<Home>,
    chunks: PathBuf,
    open: Arc<AtomicUsize>,
}

impl Layout {
    /// Those below `directory`, which is created when it is missing.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let home = Arc::new(Home::open(directory)?);
        Ok(Self { chunks: home.path().join("chunks"), home, open: Arc::default() })
    }

    pub fn open_pairs(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub fn root(&self) -> &Path {
        self.home.path()
    }

    /// `path` as a person finds it.
    pub fn shown(&self, path: &Path) -> PathBuf {
        self.home.shown(path)
    }

    pub fn chunks(&self) -> &Path {
        &self.chunks
    }

    pub fn staging(&self) -> PathBuf {
        self.root().join("staging")
    }

    pub fn ledger(&self) -> PathBuf {
        self.root().join("ledger")
    }

    pub fn daemons(&self) -> PathBuf {
        self.root().join("daemons")
    }

    pub fn fan(&self, fan: u8) -> PathBuf {
        self.chunks.join(format!("{fan:02x}"))
    }

    pub fn file(&self, name: Name, ending: &str) -> PathBuf {
        self.fan(name.fan()).join(format!("{name}.{ending}"))
    }

    /// The directory of the chunks, for us alone.
    pub fn prepare(&self) -> io::Result<()> {
        self.home.private("chunks").map(drop)
    }
}

/// What one file takes of the disk.
pub(super) fn disk_bytes(found: &fs::Metadata) -> u64 {
    // Of 512 bytes, whatever the file system's own blocks are: stat(2).
    found.blocks() * 512
}

/// Takes the lock of a file when nobody else has it.
pub(super) fn try_lock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Letting go cannot fail in a way that anybody could do something about.
pub(super) fn unlock(file: &File) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// None when there is no such file.
pub(super) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    found(fs::remove_file(path)).map(drop)
}

/// The two open files of an object version.
#[derive(Debug)]
pub(super) struct Pair {
    pub data: File,
    pub map: File,
    /// Otherwise they can only be read.
    pub writable: bool,
    open: Arc<AtomicUsize>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pair {
    pub fn new(layout: &Layout, data: File, map: File, writable: bool) -> Self {
        layout.open.fetch_add(1, Ordering::Relaxed);
        Self { data, map, writable, open: layout.open.clone() }
    }

    /// None when there is no such version on the disk.
    pub fn open(layout: &Layout, name: Name) -> io::Result<Option<Self>> {
        match Self::open_for(layout, name, true) {
            Err(error) if [io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::PermissionDenied].contains(&error.kind()) => {
                Self::open_for(layout, name, false)
            }
            other => other,
        }
    }

    fn open_for(layout: &Layout, name: Name, writable: bool) -> io::Result<Option<Self>> {
        let open = |ending| found(open_own(OpenOptions::new().read(true).write(writable), &layout.file(name, ending)));
        let Some(map) = open(MAP)? else { return Ok(None) };
        Ok(open(DATA)?.map(|data| Self::new(layout, data, map, writable)))
    }

    /// The map, made when there is none.
    pub fn make_map(layout: &Layout, name: Name) -> io::Result<File> {
        let path = layout.file(name, MAP);
        match make(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private(&layout.fan(name.fan()))?;
                make(&path)
            }
            other => other,
        }
    }

    /// The data beside a map that we locked.
    pub fn make_data(layout: &Layout, name: Name) -> io::Result<File> {
        make(&layout.file(name, DATA))
    }

    /// The data that somebody made; none when there is none.
    pub fn open_data(layout: &Layout, name: Name) -> io::Result<Option<File>> {
        found(open_own(OpenOptions::new().read(true).write(true), &layout.file(name, DATA)))
    }

    /// Whether both still have their names, and nobody cut the data of this `size`.
    pub fn is_intact(&self, size: u64) -> io::Result<bool> {
        let data = self.data.metadata()?;
        Ok(self.map.metadata()?.nlink() > 0 && data.nlink() > 0 && data.len() == size)
    }

    /// The checksums of `pieces`.
    pub fn sums(&self, header: &Header, pieces: &Range<u64>) -> io::Result<Vec<Option<u64>>> {
        let mut slots = vec![0; ((pieces.end - pieces.start) * SLOT_BYTES) as usize];
        // The map ends behind the last slot that was ever written.
        read_most(&self.map, &mut slots, header.slot_at(pieces.start))?;
        Ok(header.sums(pieces.start, &slots))
    }

    /// Publishes pieces whose bytes are in the data.
    pub fn set_slots(&self, header: &Header, first: u64, sums: &[u64]) -> io::Result<()> {
        let slots: Vec<u8> = (first..).zip(sums).flat_map(|(piece, sum)| header.slot(piece, *sum)).collect();
        self.map.write_all_at(&slots, header.slot_at(first))
    }

    /// Takes pieces back.
    pub fn clear_slots(&self, header: &Header, pieces: &Range<u64>) -> io::Result<()> {
        let end = header.slot_at(pieces.end).min(self.map.metadata()?.len());
        let zeros = vec![0; end.saturating_sub(header.slot_at(pieces.start)) as usize];
        self.map.write_all_at(&zeros, header.slot_at(pieces.start))
    }

    /// Gives the room of a range back to the disk.
    pub fn punch(&self, range: &Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.data, flags, range.start, range.end - range.start)?)
    }

    pub fn charge(&self) -> io::Result<Charge> {
        read_charge(&self.map)
    }

    pub fn set_charge(&self, charge: Charge) -> io::Result<()> {
        write_charge(&self.map, charge)
    }

    /// What the pieces take of the disk.
    pub fn kept_bytes(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.map.read_exact_at(&mut bytes, KEPT_AT)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub fn set_kept_bytes(&self, bytes: u64) -> io::Result<()> {
        self.map.write_all_at(&bytes.to_le_bytes(), KEPT_AT)
    }

    /// Whether the kernel was ever given the data, and may have mapped it for somebody since.
    pub fn was_passed(&self) -> io::Result<bool> {
        let mut bytes = [0; 8];
        self.map.read_exact_at(&mut bytes, PASSED_AT)?;
        Ok(bytes != [0; 8])
    }

    pub fn set_passed(&self, passed: bool) -> io::Result<()> {
        self.map.write_all_at(&u64::from(passed).to_le_bytes(), PASSED_AT)
    }
}

fn make(path: &Path) -> io::Result<File> {
    open_own(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

/// The header of a map; none when it is not one of ours.
pub(super) fn read_header(map: &File) -> io::Result<Option<Header>> {
    let mut start = [0; 512];
    let filled = read_most(map, &mut start, 0)?;
    let Some(length) = Header::length(&start[..filled]) else { return Ok(None) };
    let mut bytes = vec![0; length];
    read_most(map, &mut bytes, 0)?;
    Ok(Header::parse(&bytes))
}

pub(super) fn read_charge(map: &File) -> io::Result<Charge> {
    let mut bytes = [0; 16];
    map.read_exact_at(&mut bytes, CHARGE_AT)?;
    let (bytes, epoch) = bytes.split_at(8);
    let number = |eight: &[u8]| u64::from_le_bytes(eight.try_into().expect("eight bytes"));
    Ok(Charge { bytes: number(bytes), epoch: number(epoch) })
}

pub(super) fn write_charge(map: &File, charge: Charge) -> io::Result<()> {
    map.write_all_at(&[charge.bytes.to_le_bytes(), charge.epoch.to_le_bytes()].concat(), CHARGE_AT)
}

/// Reads until the end of the file or of `into`.
pub(super) fn read_most(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match file.read_at(&mut into[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
