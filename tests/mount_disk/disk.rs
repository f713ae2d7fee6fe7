//! The directory of a spill, looked at from outside, and small file systems for it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

use crate::spill::free_bytes;
use crate::support::mounts::{Mount, PATIENCE};

/// All files below `directory`.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else { return all };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all
}

/// Files that hold bytes of objects.
pub fn data_files(directory: &Path) -> Vec<PathBuf> {
    files(directory).into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "data")).collect()
}

/// What `du` says of it.
pub fn used_bytes(directory: &Path) -> u64 {
    usage(directory).iter().map(|(_, bytes)| bytes).sum()
}

/// The same as it was at one moment: between a look at one file and a look at the next, room that one gave up may be taken by the other.
pub fn used_bytes_at_once(directory: &Path) -> u64 {
    loop {
        let (first, second) = (usage(directory), usage(directory));
        if first == second {
            return first.iter().map(|(_, bytes)| bytes).sum();
        }
    }
}

/// What each file, and each directory, takes.
fn usage(directory: &Path) -> Vec<(PathBuf, u64)> {
    let own = (directory.to_owned(), fs::symlink_metadata(directory).map_or(0, |found| found.blocks() * 512));
    let Ok(entries) = fs::read_dir(directory) else { return vec![own] };
    let below = entries.filter_map(Result::ok).flat_map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => usage(&entry.path()),
        _ => vec![(entry.path(), entry.metadata().map_or(0, |found| found.blocks() * 512))],
    });
    [own].into_iter().chain(below).collect()
}

/// Ends a mount as an operator does: what was read last is on the disk then, if that has followed within five seconds.
#[track_caller]
pub fn end(mut mount: Mount) {
    mount.signal(rustix::process::Signal::TERM);
    assert!(mount.wait().success(), "{}", mount.log());
}

/// Waits until the disk holds `bytes` of objects.
#[track_caller]
pub fn wait_for_bytes(directory: &Path, bytes: u64) {
    let end = Instant::now() + PATIENCE;
    let held = || data_files(directory).iter().filter_map(|path| fs::metadata(path).ok()).map(|found| found.blocks() * 512).sum::<u64>();
    while held() < bytes {
        assert!(Instant::now() < end, "{} of {bytes} bytes are on the disk", held());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A file system of its own; gone with the value.
pub struct FileSystem {
    place: tempfile::TempDir,
}

impl FileSystem {
    /// ext4 in a file of `mib`; memory where there is no loop device.
    #[track_caller]
    pub fn new(mib: u64) -> Self {
        let place = tempfile::tempdir().expect("a temporary directory can be made");
        let (image, at) = (place.path().join("image"), place.path().join("mnt"));
        fs::create_dir(&at).expect("it is empty");
        fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("a sparse file takes no room");
        let made = run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))
            .and_then(|()| run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at)));
        if let Err(why) = made {
            eprintln!("no file system in a file ({why}): in memory instead");
            run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"]).arg(&at))
                .expect("root can mount memory");
        }
        Self { place }
    }

    pub fn path(&self) -> PathBuf {
        self.place.path().join("mnt")
    }

    /// Bytes that are free for others.
    pub fn free_bytes(&self) -> u64 {
        free_bytes(&self.path())
    }

    pub fn total_bytes(&self) -> u64 {
        let told = rustix::fs::statvfs(self.path()).expect("it is mounted");
        told.f_blocks * told.f_frsize
    }

    /// From now on nothing can be written to it, as when ext4 has found an error on its disk.
    pub fn make_read_only(&self) {
        run(Command::new("mount").args(["-o", "remount,abort"]).arg(self.path())).expect("ext4 knows this");
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// Looks at `value` every few milliseconds while `work` runs; the smallest and the largest that it saw.
pub fn watch(value: impl Fn() -> u64 + Sync, work: impl FnOnce()) -> (u64, u64) {
    let (done, least, most) = (AtomicBool::new(false), AtomicU64::new(u64::MAX), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let seen = value();
                least.fetch_min(seen, Ordering::Relaxed);
                most.fetch_max(seen, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        // Also when the work panics.
        let _done = Done(&done);
        work();
    });
    (least.into_inner(), most.into_inner())
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
