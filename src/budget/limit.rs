//! How much memory a process may take when nobody said: what the cgroups and the machine leave, divided.

use std::fs;
use std::path::Path;

use crate::units::ByteSize;

use super::SMALLEST_LIMIT;

/// The page cache, the application that reads the mount and the other daemons want memory too.
const SHARE: u64 = 4;

/// No workload we know gains from more; what is beyond it serves better as page cache.
const LARGEST_DEFAULT: ByteSize = ByteSize::gib(4);

/// The default limit of this process: a quarter of the tightest cgroup limit, or of RAM.
pub(super) fn detect() -> ByteSize {
    from_files(Path::new("/"))
}

/// What the cgroups and the machine below `root`, which is `/`, allow.
pub fn available(root: &Path) -> Option<u64> {
    [memory_total(root), cgroup_v2(root), cgroup_v1(root)].into_iter().flatten().min()
}

/// The default limit there.
pub fn from_files(root: &Path) -> ByteSize {
    let share = available(root).map_or(SMALLEST_LIMIT.as_u64(), |bytes| bytes / SHARE);
    ByteSize::bytes(share.clamp(SMALLEST_LIMIT.as_u64(), LARGEST_DEFAULT.as_u64()))
}

/// `MemTotal` of proc_meminfo(5), in bytes.
fn memory_total(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least `memory.max` of our cgroup and all above it: every one of them can kill us.
fn cgroup_v2(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    limits_upwards(&root.join("sys/fs/cgroup"), path, "memory.max")
}

/// The same under the first version of cgroups, where the memory controller has a tree of its own.
fn cgroup_v1(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let path = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let controllers = fields.nth(1)?;
        controllers.split(',').any(|name| name == "memory").then(|| fields.next())?
    })?;
    limits_upwards(&root.join("sys/fs/cgroup/memory"), path, "memory.limit_in_bytes")
}

fn limits_upwards(mount: &Path, path: &str, file: &str) -> Option<u64> {
    let inside = Path::new(path.trim_start_matches('/'));
    // "max" does not parse, and the first version writes a huge number for "no limit": neither is the minimum.
    inside.ancestors().filter_map(|dir| fs::read_to_string(mount.join(dir).join(file)).ok()?.trim().parse().ok()).min()
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

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\n");

    #[test]
    fn without_cgroups_it_is_a_share_of_ram() {
        assert_eq!(from_files(machine(&[MEMINFO]).path()), ByteSize::gib(2));
    }

    #[test]
    fn the_tightest_cgroup_above_us_counts() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/kubepods/pod1/c1\n"),
            ("sys/fs/cgroup/kubepods/pod1/c1/memory.max", "max\n"),
            ("sys/fs/cgroup/kubepods/pod1/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/kubepods/memory.max", "4294967296\n"),
        ]);
        assert_eq!(from_files(root.path()), ByteSize::mib(256));
    }

    #[test]
    fn the_first_version_of_cgroups_counts_too() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n"),
            ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(from_files(root.path()), ByteSize::mib(128));
    }

    #[test]
    fn the_default_is_never_too_small_to_work_nor_all_of_a_large_machine() {
        assert_eq!(from_files(machine(&[]).path()), SMALLEST_LIMIT);
        assert_eq!(from_files(machine(&[("proc/meminfo", "MemTotal: 1073741824 kB")]).path()), LARGEST_DEFAULT);
    }
}
