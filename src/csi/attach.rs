//! Mounts: opens /dev/fuse, mounts it, and prepares the kernel's side of it so that READs are as large as they can be. Serves nothing. Invariants:
//! what is returned is mounted; on an error nothing is. fs.fuse.max_pages_limit, which holds for the whole machine, is what it was when nobody
//! mounts, and when the process is killed in between, the next one puts it back.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::fuse;
use crate::mountinfo::{self, Device};
use crate::sys;
use crate::units::ByteSize;

/// The kernel's limit of pages in one request. The size of a page is that of every machine that Kubernetes runs this on or a multiple of it.
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
const PAGE: u64 = 4 << 10;

/// What a request takes without a word to the kernel: 256 pages.
const USUAL: ByteSize = ByteSize::mib(1);

/// Descriptors of one connection: as many threads as one daemon serves it with.
const MOST_DESCRIPTORS: usize = 16;

/// What is to be mounted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub target: &'a Path,
    /// The first column of the mount table.
    pub name: &'a str,
    pub read_only: bool,
    pub no_exec: bool,
}

/// A mount that nobody serves yet.
#[derive(Debug)]
pub struct Attached {
    /// All of one connection, the first being the one that was mounted. While one of them is open somewhere, the mount waits for answers.
    pub descriptors: Vec<OwnedFd>,
    pub device: Device,
}

/// How mounts are made on this machine.
#[derive(Debug)]
pub struct Mounts {
    /// The largest READ.
    largest: ByteSize,
    /// Where the limit is written down while it is raised. Who holds the lock mounts.
    note: Mutex<PathBuf>,
}

impl Mounts {
    /// Mounts with READs of up to `largest`; `directory` is kept when the process ends.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn new(largest: ByteSize, directory: &Path) -> io::Result<Self> {
        let note = directory.join("max_pages_limit");
        match fs::read_to_string(&note) {
            Ok(limit) => {
                tracing::warn!(limit = limit.trim(), "a driver was killed while it mounted: fs.fuse.max_pages_limit is put back");
                restore(&note, limit.trim());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Self { largest, note: Mutex::new(note) })
    }

    /// Mounts at a directory.
    ///
    /// # Errors
    /// What the kernel says, and of which step.
    pub fn attach(&self, wanted: Wanted<'_>) -> io::Result<Attached> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|error| during("open /dev/fuse", error))?;
        let first = OwnedFd::from(device);
        {
            let note = self.note.lock();
            let _raised = Raised::to(self.largest, &note);
            mount(&first, wanted)?;
        }
        self.prepare(first, wanted.target).inspect_err(|_| {
            // Nobody would ever answer there.
            let _ = fuse::unmount(wanted.target, UnmountFlags::DETACH);
        })
    }

    fn prepare(&self, first: OwnedFd, target: &Path) -> io::Result<Attached> {
        let device = mountinfo::device_at(target).ok_or_else(|| io::Error::other("the mount is not in the mount table"))?;
        fuse::set_read_ahead(target, u32::try_from(self.largest.as_u64() >> 10).unwrap_or(u32::MAX));
        let cores = thread::available_parallelism().map_or(2, usize::from).clamp(1, MOST_DESCRIPTORS);
        let mut descriptors = vec![first];
        for _ in 1..cores {
            descriptors.push(sys::another_fuse_device(descriptors[0].as_fd()).map_err(|error| during("clone the descriptor", error))?);
        }
        Ok(Attached { descriptors, device })
    }
}

/// mount(2). Type and subtype in one word are understood by every kernel.
fn mount(descriptor: &OwnedFd, wanted: Wanted<'_>) -> io::Result<()> {
    // Whoever the volume is for may enter; owner and mode of its files say what they may do there.
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", descriptor.as_raw_fd());
    let options = CString::new(options).expect("it is a number in a text");
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, wanted.read_only);
    flags.set(MountFlags::NOEXEC, wanted.no_exec);
    rustix::mount::mount(wanted.name, wanted.target, "fuse.windlass", flags, options.as_c_str())
        .map_err(|error| during("mount", error.into()))
}

fn during(step: &str, error: io::Error) -> io::Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => " (modprobe fuse)",
        io::ErrorKind::PermissionDenied => " (the driver's container must be privileged)",
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot {step}: {error}{advice}"))
}

/// The limit of pages while it is raised. A connection takes the one that holds when it is made (fs/fuse/inode.c, Linux 6.12).
#[derive(Debug)]
struct Raised<'a> {
    note: &'a Path,
    before: Option<String>,
}

impl<'a> Raised<'a> {
    fn to(largest: ByteSize, note: &'a Path) -> Self {
        let before = raise(largest, note).unwrap_or_else(|error| {
            tracing::info!(%error, "fs.fuse.max_pages_limit stays as it is: reads are of 1 MiB at most");
            None
        });
        Self { note, before }
    }
}

fn raise(largest: ByteSize, note: &Path) -> io::Result<Option<String>> {
    let before = fs::read_to_string(PAGES_LIMIT)?.trim().to_owned();
    let pages = largest.as_u64() / PAGE;
    if largest <= USUAL || before.parse::<u64>().is_ok_and(|limit| limit >= pages) {
        return Ok(None);
    }
    fs::write(note, &before)?;
    fs::write(PAGES_LIMIT, pages.to_string()).inspect_err(|_| drop(fs::remove_file(note)))?;
    Ok(Some(before))
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            restore(self.note, before);
        }
    }
}

fn restore(note: &Path, limit: &str) {
    if let Err(error) = fs::write(PAGES_LIMIT, limit).and_then(|()| fs::remove_file(note)) {
        tracing::error!(%error, limit, "fs.fuse.max_pages_limit cannot be put back: set it with sysctl");
    }
}
