//! Disks that are too small, filled by others, read-only or closed to us, made for each test: a reader sees right bytes or a miss, and the
//! free space stays above its bound at every moment that anybody looks.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use support::{check, content, du_within, fill, free_bytes, max_mib, object, open};
use windlass::spill::{Bounds, Spill};
use windlass::units::ByteSize;

#[path = "support/spill.rs"]
#[allow(dead_code, reason = "each test binary uses a part of the support")]
mod support;

const MIB: u64 = 1 << 20;

/// Names the directory on which this program is started again, to be killed.
const CHILD: &str = "SPILL_DISKS_CHILD";

fn main() -> ExitCode {
    if let Some(directory) = std::env::var_os(CHILD) {
        let spill = open(Path::new(&directory), max_mib(24));
        (0..u64::from(std::process::id())).for_each(|seed| assert!(work(&spill, seed, 10) <= 50 * MIB));
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let trial = |name, needs: &'static [&'static str], test: fn()| {
        Trial::ignorable_test(name, move || {
            if let Some(reason) = why_not(needs) {
                return Ok(Completion::ignored_with(reason));
            }
            test();
            Ok(Completion::Completed)
        })
    };
    let trials = vec![
        trial("a_full_disk_is_no_error", &[], a_full_disk_is_no_error),
        trial("the_free_space_keeps_its_bound_while_two_fill_the_disk", &["mkfs.ext4", "mount"], two_fill_the_disk),
        trial("another_program_that_fills_the_disk_gets_the_room_of_chunks", &["mkfs.ext4", "mount"], another_program_fills_the_disk),
        trial("the_bound_holds_on_the_disk_itself_at_every_moment", &["mkfs.ext4", "mount"], the_bound_holds_at_every_moment),
        trial("a_directory_that_becomes_read_only_is_read_on", &[], a_directory_that_becomes_read_only),
        trial("a_directory_that_nobody_may_enter_is_a_miss", &[], a_directory_that_nobody_may_enter),
        Trial::test("processes_that_are_killed_leave_nothing_wrong", || {
            processes_that_are_killed();
            Ok(())
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Why no disk can be made here.
fn why_not(needs: &[&str]) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if let Some(program) = needs.iter().find(|program| !has(program)) {
        return Some(format!("{program} is not installed"));
    }
    if needs.contains(&"mount") && !Path::new("/dev/loop-control").exists() {
        return Some("there are no loop devices".into());
    }
    let place = tempfile::tempdir().unwrap();
    match mount("none", place.path(), "tmpfs", MountFlags::empty(), c"size=1m") {
        Ok(()) => unmount(place.path(), UnmountFlags::DETACH).err().map(|error| error.to_string()),
        Err(error) => Some(format!("nothing can be mounted here: {error}")),
    }
}

/// A file system of its own. It goes with this.
struct Disk {
    place: PathBuf,
    /// Last: it is empty when the disk is gone.
    _files: tempfile::TempDir,
}

impl Disk {
    fn tmpfs(mib: u64) -> Self {
        let disk = Self::place();
        let size = std::ffi::CString::new(format!("size={mib}m")).unwrap();
        mount("none", &disk.place, "tmpfs", MountFlags::empty(), size.as_c_str()).unwrap();
        disk
    }

    fn ext4(mib: u64) -> Self {
        let disk = Self::place();
        let image = disk.place.with_file_name("image");
        File::create(&image).unwrap().set_len(mib * MIB).unwrap();
        let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&disk.place));
        disk
    }

    fn place() -> Self {
        let files = tempfile::tempdir().unwrap();
        let place = files.path().join("disk");
        fs::create_dir(&place).unwrap();
        Self { place, _files: files }
    }

    fn spill(&self) -> PathBuf {
        self.place.join("spill")
    }

    /// Of how many bytes so many are free.
    fn free(&self) -> (u64, u64) {
        let found = rustix::fs::statvfs(&self.place).unwrap();
        (found.f_blocks * found.f_frsize, free_bytes(&self.place))
    }

    fn used(&self) -> u64 {
        let (total, free) = self.free();
        total - free
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Detached: a test that failed may still have files open. Twice where something was mounted over it.
        while unmount(&self.place, UnmountFlags::DETACH).is_ok() {}
    }
}

/// Adds and reads objects for as many rounds; whatever is read has to be right. How many bytes were kept.
fn work(spill: &Spill, seed: u64, rounds: usize) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut kept = 0;
    for round in 0..rounds {
        let key = format!("key-{}", random.random_range(0..40u32));
        let it = object(spill, &key, 5 * MIB);
        let start = random.random_range(0..5 * MIB);
        let range = start..(5 * MIB).min(start + random.random_range(1..3 * MIB));
        check(&it, &key, range.clone());
        kept += fill(&it, &key, range);
        if round % 10 == 0 {
            spill.on_time(Instant::now());
        }
    }
    kept
}

/// Looks at the disk all the time while `act` runs, and says what the largest and the smallest of it was.
fn watch(look: impl Fn() -> u64 + Sync, act: impl FnOnce()) -> (u64, u64) {
    let (least, most, done) = (AtomicU64::new(look()), AtomicU64::new(look()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let now = look();
                least.fetch_min(now, Ordering::Relaxed);
                most.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // Also when it panics, or the watcher would watch for ever.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _done = Done(&done);
        act();
    });
    (least.into_inner(), most.into_inner())
}

fn a_full_disk_is_no_error() {
    let disk = Disk::tmpfs(8);
    // No bound, and no directory of its own below the free space: the disk itself says no.
    fs::write(disk.place.join("other"), vec![1; 5 << 20]).unwrap();
    let spill = open(&disk.spill(), Bounds::default());
    let it = object(&spill, "a", 9 * MIB);
    let kept = fill(&it, "a", 0..9 * MIB);
    assert!(kept > 0 && kept < 3 * MIB + MIB / 2, "{kept}");
    assert!(check(&it, "a", 0..9 * MIB) <= kept);
    fs::write(disk.place.join("rest"), vec![1; 8 << 20]).unwrap_err();
    assert_eq!(fill(&object(&spill, "b", MIB), "b", 0..MIB), 0);
    assert!(spill.stats().dropped > 0);
    spill.on_time(Instant::now());
    fs::remove_file(disk.place.join("other")).unwrap();
    fs::remove_file(disk.place.join("rest")).unwrap();
    assert_eq!(fill(&object(&spill, "b", MIB), "b", 0..MIB), MIB);
    work(&spill, 3, 40);
}

fn two_fill_the_disk() {
    let disk = Disk::ext4(96);
    let bounds = Bounds { ensure_free: ByteSize::mib(10), free_ratio: 20, ..Bounds::default() };
    let spills = [open(&disk.spill(), bounds), open(&disk.spill(), bounds)];
    let bound = disk.free().0 / 5;
    let (least, _) = watch(
        || disk.free().1,
        || {
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..4).map(|seed| (seed, &spills[seed as usize % 2])).collect();
                for (seed, spill) in workers {
                    scope.spawn(move || assert!(work(spill, seed, 80) > 10 * MIB));
                }
            });
        },
    );
    assert!(least >= bound, "{least} of {bound} were free");
    assert!(least < bound + 30 * MIB, "the room is used: {least} were free");
}

fn another_program_fills_the_disk() {
    let disk = Disk::ext4(96);
    let bounds = Bounds { free_ratio: 10, ..Bounds::default() };
    let spill = open(&disk.spill(), bounds);
    work(&spill, 1, 60);
    let bound = disk.free().0 / 10;
    let before = spill.stats();
    // It takes less at a time than the margin.
    for number in 0..40 {
        fs::write(disk.place.join(format!("other-{number}")), vec![number; MIB as usize]).unwrap();
        spill.on_time(Instant::now());
        assert!(disk.free().1 >= bound, "{:?} after {number}", disk.free());
    }
    assert!(spill.stats().evictions > before.evictions && spill.stats().bytes < before.bytes);
    work(&spill, 1, 10);
}

fn the_bound_holds_at_every_moment() {
    let disk = Disk::ext4(160);
    let spills = [open(&disk.spill(), max_mib(32)), open(&disk.spill(), max_mib(32))];
    // What the empty directory takes is a part of it.
    let before = disk.used() - 16 * 1024;
    let (_, most) = watch(
        || disk.used(),
        || {
            std::thread::scope(|scope| {
                // What is written back takes other blocks than what is only promised.
                let place = File::open(&disk.place).unwrap();
                let sync = move || (0..200).for_each(|_| rustix::fs::syncfs(&place).unwrap());
                scope.spawn(sync);
                for seed in 0..4 {
                    let spill = &spills[seed as usize % 2];
                    scope.spawn(move || work(spill, seed, 60));
                }
            });
        },
    );
    assert!(most - before <= 32 * MIB, "{}", most - before);
    assert!(most - before > 24 * MIB, "the room is used: {}", most - before);
}

fn processes_that_are_killed() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(24));
    for round in 0..8 {
        let before = spill.stats().bytes;
        let mut child = Command::new(std::env::current_exe().unwrap()).env(CHILD, disk.path()).spawn().unwrap();
        // Until it is in the middle of its work, which starts over and over.
        while spill.stats().bytes == before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        work(&spill, round, 5);
        child.kill().unwrap();
        child.wait().unwrap();
        work(&spill, round, 5);
        let now = du_within(disk.path(), 24 * MIB);
        assert!(now <= 24 * MIB && spill.stats().damaged == 0, "{now}: {:?}", spill.stats());
    }
    drop(spill);
    let spill = open(disk.path(), max_mib(24));
    spill.scan();
    let said = spill.stats().bytes;
    let there = du_within(&disk.path().join("chunks"), said + 64 * 1024);
    assert!(said + 64 * 1024 >= there && said <= there + there / 10, "{said} of {there}");
    assert!(spill.stats().objects > 0 && work(&spill, 99, 30) > 0);
}

fn a_directory_that_becomes_read_only() {
    let disk = Disk::tmpfs(32);
    let spill = open(&disk.spill(), Bounds::default());
    fill(&object(&spill, "a", 5 * MIB), "a", 0..4 * MIB);
    fill(&object(&spill, "b", MIB), "b", 0..MIB);
    // Over itself: what is opened from now on cannot be written.
    mount_bind(&disk.place, &disk.place).unwrap();
    mount_remount(&disk.place, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    let it = object(&spill, "a", 5 * MIB);
    assert_eq!((check(&it, "a", 0..5 * MIB), fill(&it, "a", 4 * MIB..5 * MIB)), (4 * MIB, 0));
    assert_eq!(fill(&object(&spill, "c", MIB), "c", 0..MIB), 0);
    spill.on_time(Instant::now());
    spill.scan();
    assert_eq!((check(&it, "a", 0..4 * MIB), check(&object(&spill, "b", MIB), "b", 0..MIB)), (4 * MIB, MIB));
    unmount(&disk.place, UnmountFlags::DETACH).unwrap();
    spill.on_time(Instant::now());
    assert_eq!(fill(&it, "a", 4 * MIB..5 * MIB), MIB);
}

fn a_directory_that_nobody_may_enter() {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (place, stranger) = (parent.path().join("spill"), 65534);
    DirBuilder::new().mode(0o700).create(&place).unwrap();
    rustix::fs::chown(&place, Some(rustix::process::Uid::from_raw(stranger)), None).unwrap();
    // Permissions bind everybody but root, and a user is what a thread has.
    std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(
            rustix::process::Uid::from_raw(stranger),
            rustix::process::Uid::from_raw(stranger),
            rustix::process::Uid::from_raw(stranger),
        )
        .unwrap();
        let spill = open(&place, Bounds::default());
        fill(&object(&spill, "a", 5 * MIB), "a", 0..4 * MIB);
        let held = object(&spill, "b", 5 * MIB);
        fill(&held, "b", 0..4 * MIB);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o000)).unwrap();
        File::open(place.join("ledger")).unwrap_err();
        let it = object(&spill, "a", 5 * MIB);
        let mut buffer = vec![0; MIB as usize];
        assert_eq!((it.read(0, &mut buffer), it.present(&(0..MIB)), fill(&it, "a", 4 * MIB..5 * MIB)), (0, vec![], 0));
        assert_eq!(check(&held, "b", 0..4 * MIB), 4 * MIB, "it was open");
        assert_eq!((it.is_whole(), it.bytes_on_disk(), it.verify(), it.whole().is_none()), (false, 0, false, true));
        spill.on_time(Instant::now());
        spill.scan();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
        spill.on_time(Instant::now());
        assert_eq!((check(&it, "a", 0..4 * MIB), it.add(4 * MIB, &content("a", 4 * MIB..5 * MIB)).kept), (4 * MIB, MIB));
    })
    .join()
    .unwrap();
}
