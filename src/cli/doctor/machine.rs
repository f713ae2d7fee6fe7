//! What of this machine a mount depends on: the device, the program that mounts for users, the kernel, limits of the process. It asks no
//! network. Invariant: what cannot be looked at is not called wrong.

use std::fs;
use std::path::Path;

use indicatif::HumanBytes;
use rustix::process::Resource;

use super::Finding;
use crate::budget::{self, Allowance, Bound};
use crate::cli::{mountpoint, umount};

/// Descriptors below which a mount gets into trouble with a few hundred files and connections.
const ENOUGH_FILES: u64 = 1024;

/// Descriptors below which it cannot hold its connections.
const FEWEST_FILES: u64 = 256;

/// Pages of the largest READ that the kernel may be raised to: 16 MiB.
const MANY_PAGES: u64 = 256;

/// Everything, in the order of who meets it first.
pub(super) fn look() -> Vec<Finding> {
    let root = rustix::process::geteuid().is_root();
    let conf = fs::read_to_string("/etc/fuse.conf").ok();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let pages = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok().and_then(|text| text.trim().parse().ok());
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    vec![
        Finding::of("fuse device", mountpoint::check_device(), "/dev/fuse can be opened"),
        fusermount(root, umount::fusermount().is_some()),
        Finding::of(
            "privilege",
            mountpoint::check_privilege(false, false),
            if root { "root may mount" } else { "fusermount3 mounts for users" },
        ),
        others(root, conf.as_deref()),
        kernel(&release),
        max_pages(pages),
        read_ahead(root),
        files(limit),
        memory(Path::new("/")),
    ]
}

fn fusermount(root: bool, is_there: bool) -> Finding {
    match (is_there, root) {
        (true, _) => Finding::ok("fusermount3", "it is installed"),
        (false, true) => Finding::warn("fusermount3", "it is missing, and only root can mount without it", "install the package fuse3"),
        (false, false) => Finding::fail(2, "fusermount3", "it is missing, and only root can mount without it", "install the package fuse3"),
    }
}

/// Whether others can be let in by those who are not root.
fn others(root: bool, conf: Option<&str>) -> Finding {
    let allowed = conf.is_some_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    match (allowed, root) {
        (true, _) => Finding::ok("allow-other", "everybody may use it (user_allow_other in /etc/fuse.conf)"),
        (false, true) => Finding::ok("allow-other", "root may use it"),
        (false, false) => {
            Finding::warn("allow-other", "only root may let others into a mount", "add the line user_allow_other to /etc/fuse.conf")
        }
    }
}

/// Major and minor version.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(release: &str) -> Finding {
    match version(release) {
        None => Finding::ok("kernel", release),
        Some(version) if version < (4, 20) => {
            Finding::warn("kernel", format!("{release}: it reads in pieces of 128 KiB"), "4.20 and later read in 1 MiB")
        }
        Some(version) if version < (6, 9) => {
            Finding::ok("kernel", format!("{release}; from 6.9 on what is on the disk is read without the daemon"))
        }
        Some(_) => Finding::ok("kernel", format!("{release}: knows passthrough")),
    }
}

fn max_pages(pages: Option<u64>) -> Finding {
    match pages {
        Some(pages) if pages >= MANY_PAGES => Finding::ok("max pages", format!("fs.fuse.max_pages_limit is {pages}")),
        Some(pages) => {
            Finding::warn("max pages", format!("fs.fuse.max_pages_limit is {pages}: reads are short"), "sysctl fs.fuse.max_pages_limit=256")
        }
        None => Finding::ok("max pages", "256 (before Linux 6.13 it cannot be changed)"),
    }
}

/// The mount raises its own, if it may.
fn read_ahead(root: bool) -> Finding {
    let writable = rustix::fs::access("/sys/class/bdi", rustix::fs::Access::WRITE_OK).is_ok() || is_writable_mount("/sys");
    match (root, writable) {
        (true, true) => Finding::ok("read ahead", "a mount sets it to 1 MiB"),
        (true, false) => {
            Finding::warn("read ahead", "/sys is read-only here: it stays at 128 KiB", "mount /sys writable into the container")
        }
        (false, _) => Finding::warn(
            "read ahead",
            "only root can raise it: programs that do not read with O_DIRECT are sent pieces of 128 KiB",
            "mount as root, or write 1024 to /sys/class/bdi/DEVICE/read_ahead_kb after mounting",
        ),
    }
}

fn is_writable_mount(path: &str) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|told| !told.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// `ulimit -n`; none: as many as there can be.
fn files(limit: Option<u64>) -> Finding {
    let fix = "raise it: ulimit -n 65536, or LimitNOFILE=65536 in the unit";
    match limit {
        Some(limit) if limit < FEWEST_FILES => {
            Finding::fail(2, "open files", format!("ulimit -n is {limit}: too few for the connections of a mount"), fix)
        }
        Some(limit) if limit < ENOUGH_FILES => {
            Finding::warn("open files", format!("ulimit -n is {limit}: few for connections and files on the disk"), fix)
        }
        Some(limit) => Finding::ok("open files", format!("ulimit -n is {limit}")),
        None => Finding::ok("open files", "ulimit -n is unlimited"),
    }
}

/// What the cgroups and the machine leave, as the default of `memory-limit` goes by it.
fn memory(root: &Path) -> Finding {
    let (limit, least) = (budget::default_limit(root), budget::SMALLEST_LIMIT.as_u64());
    let Some(Allowance { bytes, by }) = budget::available(root) else {
        return Finding::ok("memory", format!("memory-limit=auto is {}", HumanBytes(limit.as_u64())));
    };
    let fix = match by {
        Bound::Cgroup(_) => "give the cgroup",
        Bound::Machine(_) => "free memory on this machine: the mount wants",
    };
    let allowed = format!("{} are left by {by}: memory-limit=auto is {}", HumanBytes(bytes), HumanBytes(limit.as_u64()));
    match bytes {
        bytes if bytes < 2 * least => Finding::fail(2, "memory", allowed, format!("{fix} 256 MiB or more")),
        bytes if bytes < 4 * least => Finding::warn("memory", allowed, format!("{fix} 512 MiB or more for fast reads")),
        _ => Finding::ok("memory", allowed),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn each_finding_of_a_machine_has_its_level() {
        for (finding, level, word) in [
            (fusermount(false, true), Level::Ok, "installed"),
            (fusermount(false, false), Level::Fail, "fuse3"),
            (fusermount(true, false), Level::Warn, "fuse3"),
            (others(false, Some("# x\nuser_allow_other\n")), Level::Ok, "everybody"),
            (others(false, Some("#user_allow_other\n")), Level::Warn, "/etc/fuse.conf"),
            (others(true, None), Level::Ok, "root"),
            (kernel("6.12.1-arch"), Level::Ok, "passthrough"),
            (kernel("5.10.0"), Level::Ok, "6.9"),
            (kernel("4.19"), Level::Warn, "128 KiB"),
            (max_pages(Some(32)), Level::Warn, "sysctl"),
            (max_pages(None), Level::Ok, "6.13"),
            (files(Some(64)), Level::Fail, "ulimit -n 65536"),
            (files(Some(512)), Level::Warn, "few"),
            (files(None), Level::Ok, "unlimited"),
        ] {
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.line().contains(word) && finding.line().ends_with('\n'), "{finding:?}");
        }
    }

    #[test]
    fn a_tiny_cgroup_is_told_with_what_it_would_need() {
        let machine = |bytes: u64| {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in [
                ("proc/meminfo", "MemTotal: 8388608 kB\n".to_owned()),
                ("proc/self/cgroup", "0::/pod\n".to_owned()),
                ("proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".to_owned()),
                ("sys/fs/cgroup/pod/memory.max", format!("{bytes}\n")),
            ] {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, text).unwrap();
            }
            memory(root.path())
        };
        let tiny = machine(100 << 20);
        let words = ["100.00 MiB are left by /sys/fs/cgroup/pod/memory.max", "give the cgroup 256 MiB"];
        assert!(tiny.level == Level::Fail && words.iter().all(|word| tiny.line().contains(word)), "{tiny:?}");
        assert_eq!(machine(200 << 20).level, Level::Warn);
        assert_eq!(machine(4 << 30).level, Level::Ok);
    }
}
