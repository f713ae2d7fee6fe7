//! How much memory a process may take when nobody said: what the cgroups and the machine leave, divided. It asks once and keeps nothing.
//! Invariant: a limit of a cgroup counts wherever above us it is set, as far as it can be seen from here.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::mountinfo::{self, Entry};
use crate::units::ByteSize;

use super::SMALLEST_LIMIT;

/// What the budget does not count (stacks and buffers of threads, connections, TLS, metadata) takes about as much again in a small
/// container, and the page cache, the application and other daemons want memory too: a container of 256 MiB with 64 streams and 16 writers
/// stays below 192 MiB (`tests/mount_memory`).
const SHARE: u64 = 4;

/// No workload we know gains from more; what is beyond it serves better as page cache.
const LARGEST_DEFAULT: ByteSize = ByteSize::gib(4);

/// The memory that something leaves to this process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allowance {
    pub bytes: u64,
    pub by: Bound,
}

/// What bounds the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// A file of a cgroup, which it takes from a cgroup that may be above ours.
    Cgroup(PathBuf),
    /// A line of proc_meminfo(5).
    Machine(&'static str),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(file) => write!(f, "{}", file.display()),
            Self::Machine(word) => write!(f, "{word} in /proc/meminfo"),
        }
    }
}

/// The default limit of this process.
pub(super) fn detect() -> ByteSize {
    from_files(Path::new("/"))
}

/// The least of what the cgroups and the machine below `root`, which is `/`, allow.
pub fn available(root: &Path) -> Option<Allowance> {
    [meminfo(root), cgroups(root)].into_iter().flatten().min()
}

/// The default limit there.
pub fn from_files(root: &Path) -> ByteSize {
    let share = available(root).map_or(SMALLEST_LIMIT.as_u64(), |allowance| allowance.bytes / SHARE);
    ByteSize::bytes(share.clamp(SMALLEST_LIMIT.as_u64(), LARGEST_DEFAULT.as_u64()))
}

/// The lesser of the memory there is and the memory that could be had without swapping.
fn meminfo(root: &Path) -> Option<Allowance> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = |name: &'static str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let bytes = value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)?;
        Some(Allowance { bytes, by: Bound::Machine(name) })
    };
    [line("MemTotal"), line("MemAvailable")].into_iter().flatten().min()
}

/// The least limit of our cgroups and all above them: every one of them can kill us.
fn cgroups(root: &Path) -> Option<Allowance> {
    let ours = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = mountinfo::parse(&fs::read(root.join("proc/self/mountinfo")).ok()?);
    let trees = mounts.into_iter().filter_map(Tree::of);
    trees.filter_map(|tree| tree.least(root, tree.version.path_in(&ours)?)).min()
}

/// The two interfaces of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The cgroup of this process out of /proc/self/cgroup (cgroups(7)).
    fn path_in(self, ours: &str) -> Option<&Path> {
        let path = ours.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let found = match self {
                Self::One => controllers.split(',').any(|name| name == "memory"),
                Self::Two => number == "0" && controllers.is_empty(),
            };
            found.then_some(path)
        });
        path.map(Path::new)
    }

    /// The files of a cgroup that bound it. Above `memory.high` nobody is killed, but put to sleep until somebody else gives memory back,
    /// and a mount has nobody else.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::One => &["memory.limit_in_bytes"],
            Self::Two => &["memory.max", "memory.high"],
        }
    }
}

/// A hierarchy that is mounted where this process can see it.
#[derive(Debug)]
struct Tree {
    version: Version,
    /// The cgroup that is mounted, which in a container is often its own.
    root: PathBuf,
    mounted_at: PathBuf,
}

impl Tree {
    /// A mount, if it is one of a hierarchy with memory.
    fn of(mount: Entry) -> Option<Self> {
        let version = match mount.kind.as_str() {
            "cgroup2" => Version::Two,
            "cgroup" if mount.options.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Self { version, root: mount.root, mounted_at: mount.mount_point })
    }

    /// The least limit of `ours` and all above it in this hierarchy.
    fn least(&self, root: &Path, ours: &Path) -> Option<Allowance> {
        let top = root.join(self.mounted_at.strip_prefix("/").ok()?);
        // What is mounted is a cgroup above ours, or ours. Where it is neither, as in some containers without a namespace of their own,
        // it is what the container was given.
        let inside = ours.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let limits = inside.ancestors().flat_map(|dir| self.version.files().iter().map(move |file| dir.join(file)));
        let limits = limits.filter_map(|file| {
            // "max" does not parse, and the first version writes a huge number for "no limit": neither is the least.
            let bytes = fs::read_to_string(top.join(&file)).ok()?.trim().parse().ok()?;
            Some(Allowance { bytes, by: Bound::Cgroup(self.mounted_at.join(file)) })
        });
        limits.chain(self.hierarchical(&top.join(inside), inside)).min()
    }

    /// What the first version has worked out of all above, also of those that cannot be seen from a container.
    fn hierarchical(&self, dir: &Path, inside: &Path) -> Option<Allowance> {
        let stat = fs::read_to_string(dir.join("memory.stat")).ok()?;
        let bytes = stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?.trim().parse().ok()?;
        Some(Allowance { bytes, by: Bound::Cgroup(self.mounted_at.join(inside).join("memory.stat")) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n");
    const V2: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      36 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const NO_LIMIT: &str = "9223372036854771712\n";

    /// What a machine leaves and by which word, with `proc/self/cgroup`, the table of mounts and files of cgroups.
    fn allows(ours: &str, mounts: &str, files: &[(&str, &str)]) -> (u64, String) {
        let all = [&[MEMINFO, ("proc/self/cgroup", ours), ("proc/self/mountinfo", mounts)], files].concat();
        let Allowance { bytes, by } = available(machine(&all).path()).unwrap();
        let by = match by {
            Bound::Cgroup(path) => path.display().to_string(),
            Bound::Machine(word) => word.to_owned(),
        };
        (bytes, by)
    }

    #[test]
    fn without_cgroups_it_is_a_share_of_what_the_machine_has_left() {
        let total = ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\n");
        assert_eq!(from_files(machine(&[total]).path()), ByteSize::gib(2));
        let used = ("proc/meminfo", "MemTotal:        8388608 kB\nMemAvailable:    2097152 kB\n");
        assert_eq!(from_files(machine(&[used]).path()), ByteSize::mib(512));
        assert_eq!(allows("", "", &[]), (8_000_000 << 10, "MemAvailable".into()));
    }

    #[test]
    fn the_tightest_cgroup_above_us_counts() {
        let files = [
            ("sys/fs/cgroup/kubepods/pod1/c1/memory.max", "max\n"),
            ("sys/fs/cgroup/kubepods/pod1/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/kubepods/memory.max", "4294967296\n"),
        ];
        let found = allows("0::/kubepods/pod1/c1\n", V2, &files);
        assert_eq!(found, (1 << 30, "/sys/fs/cgroup/kubepods/pod1/memory.max".into()));
        let slowed = [&files[..], &[("sys/fs/cgroup/kubepods/memory.high", "536870912\n")]].concat();
        assert_eq!(allows("0::/kubepods/pod1/c1\n", V2, &slowed), (512 << 20, "/sys/fs/cgroup/kubepods/memory.high".into()));
    }

    #[test]
    fn in_a_namespace_of_its_own_the_container_is_the_root() {
        let own = [("sys/fs/cgroup/memory.max", "268435456\n")];
        assert_eq!(allows("0::/\n", V2, &own), (256 << 20, "/sys/fs/cgroup/memory.max".into()));
        // A process that was moved out of the namespace's root.
        assert_eq!(allows("0::/../other\n", V2, &own).0, 256 << 20);
    }

    #[test]
    fn the_first_version_of_cgroups_counts_too() {
        let files = [
            ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", NO_LIMIT),
        ];
        let found = allows("5:cpu:/x\n4:memory:/docker/abc\n0::/\n", V1, &files);
        assert_eq!(found, (512 << 20, "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes".into()));
        let without = [("sys/fs/cgroup/memory/memory.limit_in_bytes", NO_LIMIT)];
        assert_eq!(allows("4:memory:/\n", V1, &without).1, "MemAvailable");
    }

    #[test]
    fn a_container_of_the_first_version_sees_its_own_cgroup_at_the_mount_and_what_is_above_in_its_statistics() {
        let mounts = "36 31 0:32 /docker/a\\134x2db /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let ours = "4:memory:/docker/a\\x2db\n";
        let files = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/memory.stat", "cache 1\nhierarchical_memory_limit 268435456\nrss 2\n"),
        ];
        assert_eq!(allows(ours, mounts, &files), (256 << 20, "/sys/fs/cgroup/memory/memory.stat".into()));
        assert_eq!(allows(ours, mounts, &files[..1]).0, 512 << 20);
        let inner = [files[0], ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "134217728\n")];
        assert_eq!(allows("4:memory:/docker/a\\x2db/inner\n", mounts, &inner).0, 128 << 20);
        // Named without a namespace and mounted from elsewhere: the mount is what the container was given.
        assert_eq!(allows("4:memory:/elsewhere\n", mounts, &files[..1]).0, 512 << 20);
    }

    #[test]
    fn the_default_is_never_too_small_to_work_nor_all_of_a_large_machine() {
        assert_eq!(from_files(machine(&[]).path()), SMALLEST_LIMIT);
        assert_eq!(from_files(machine(&[("proc/meminfo", "MemTotal: 1073741824 kB")]).path()), LARGEST_DEFAULT);
    }
}
