//! What is mounted where, from /proc/self/mountinfo (proc_pid_mountinfo(5)). Never touches the mounts themselves, so it
//! can be asked about dead ones.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The device of a mount, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for Device {
    type Err = ();

    /// Reads `major:minor`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.split_once(':').ok_or(())?;
        let number = |digits: &str| digits.parse().map_err(|_| ());
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the mount, and of the one that it is mounted in.
    id: u32,
    parent: u32,
    pub device: Device,
    /// What of its file system is mounted: `/`, or a directory in it.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// `fuse.windlass`, `ext4`, ...
    pub kind: String,
    /// What was mounted: for our mounts the bucket.
    pub source: String,
    /// The options of its file system.
    pub options: String,
}

impl Entry {
    /// Whose mount it is, when a process in user space answers for it.
    pub fn owner(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }

    /// Whether a process in user space answers for it.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }

    /// Whether that process is one of ours. A descriptor that a parent mounted carries no subtype, only the source.
    pub fn is_ours(&self) -> bool {
        self.kind == "fuse.windlass" || self.is_fuse() && (self.source.starts_with("s3://") || self.source.starts_with("oss://"))
    }
}

/// All mounts this process can see, in the order in which they were stacked.
pub fn read() -> std::io::Result<Vec<Entry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The topmost mount at exactly this path.
pub fn at(path: &Path) -> std::io::Result<Option<Entry>> {
    Ok(read()?.into_iter().rev().find(|entry| entry.mount_point == path))
}

/// The device of what is mounted at exactly this path. Unlike stat(2) it asks no daemon.
pub fn device_at(path: &Path) -> Option<Device> {
    Some(at(path).ok()??.device)
}

/// The mount that a path without links leads to, among those of `table`: from the root down, because what was mounted over hides what was
/// mounted below.
pub fn covering<'a>(table: &'a [Entry], path: &Path) -> Option<&'a Entry> {
    let above: Vec<&Path> = path.ancestors().collect();
    let mut current: Option<&Entry> = None;
    for place in above.into_iter().rev() {
        // More than one can be stacked at a place.
        let on_top = |below: Option<&Entry>| {
            let is_next = |entry: &&Entry| match below {
                Some(below) => entry.parent == below.id && entry.id != below.id,
                // Where the table begins: nothing that it lists holds the first mount.
                None => entry.id == entry.parent || table.iter().all(|other| other.id != entry.parent),
            };
            table.iter().filter(|entry| entry.mount_point == place).find(is_next)
        };
        while let Some(next) = on_top(current) {
            current = Some(next);
        }
    }
    current
}

/// The path as the kernel shows it, without a look at its last component, which may be a mount that no longer answers.
pub fn resolve(path: &Path) -> PathBuf {
    let mut path = crate::started_in::absolute(path).unwrap_or_else(|_| path.to_owned());
    // As many links as the kernel follows would be 40; people nest fewer.
    for _ in 0..8 {
        path = match (path.parent().map(std::fs::canonicalize), path.file_name()) {
            (Some(Ok(parent)), Some(name)) => parent.join(name),
            _ => path.components().collect(),
        };
        let mounted = at(&path).ok().flatten().is_some();
        match std::fs::read_link(&path) {
            Ok(target) if !mounted => path = path.parent().map_or_else(|| target.clone(), |parent| parent.join(&target)),
            _ => break,
        }
    }
    path
}

/// The mounts of a table in the form of that file.
pub(crate) fn parse(table: &[u8]) -> Vec<Entry> {
    table.split(|&b| b == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|&b| b == b' ');
    let text = |field: Option<&[u8]>| String::from_utf8(field?.to_vec()).ok();
    let path = |field: Option<&[u8]>| Some(PathBuf::from(OsString::from_vec(unescape(field?))));
    let (id, parent) = (text(fields.next())?.parse().ok()?, text(fields.next())?.parse().ok()?);
    let device = text(fields.next())?.parse().ok()?;
    let (root, mount_point) = (path(fields.next())?, path(fields.next())?);
    // Optional fields end with a lone hyphen; their number varies.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (fields.next()?, fields.next()?);
    let options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
    Some(Entry {
        id,
        parent,
        device,
        root,
        mount_point,
        options,
        kind: String::from_utf8_lossy(&unescape(kind)).into_owned(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
    })
}

/// Space, tab, newline and backslash stand there as `\040` and so on.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
40 22 0:36 / /mnt/my\\040data rw,nosuid,nodev,relatime shared:2 master:1 - fuse.windlass s3://data/a\\040b rw,user_id=0
41 22 0:37 / /mnt/other rw - fuse host:/dir rw
42 22 0:38 / /mnt/passed rw - fuse oss://data rw
garbage
";

    #[test]
    fn a_device_is_read_as_the_mount_table_shows_it() {
        let device: Device = "0:36".parse().unwrap();
        assert_eq!((device, device.to_string()), (Device { major: 0, minor: 36 }, "0:36".to_owned()));
        for odd in ["", "0", "0:", ":1", "a:b", "0:1:2", "-1:2"] {
            assert!(odd.parse::<Device>().is_err(), "{odd}");
        }
    }

    #[test]
    fn lines_are_read_with_and_without_optional_fields() {
        let entries = parse(TABLE);
        assert_eq!(entries.len(), 4);
        assert_eq!(entries[1].mount_point, Path::new("/mnt/my data"));
        assert_eq!(entries[1].source, "s3://data/a b");
        assert!(entries[1].is_ours() && entries[1].is_fuse());
        assert_eq!((entries[1].owner(), entries[2].owner(), entries[1].root.as_path()), (Some(0), None, Path::new("/")));
        assert_eq!(entries[1].device.to_string(), "0:36");
        assert!(entries[2].is_fuse() && !entries[2].is_ours());
        assert!(entries[3].is_ours());
        assert!(!entries[0].is_fuse());
    }

    #[test]
    fn a_path_belongs_to_what_is_on_top() {
        let table = parse(
            b"\
22 1 254:1 / / rw - ext4 /dev/vda1 rw
30 22 0:30 / /mnt/a rw - fuse.windlass s3://a rw,user_id=7
31 30 0:31 / /mnt/a/inside rw - tmpfs tmpfs rw
32 30 0:32 / /mnt/a rw - fuse.windlass s3://over rw
33 22 0:33 / /srv/b rw - fuse.windlass s3://hidden rw
34 22 0:34 / /srv rw - tmpfs tmpfs rw
35 22 0:35 / /mnt/ab rw - tmpfs tmpfs rw
",
        );
        for (path, device) in [
            ("/", "254:1"),
            ("/mnt", "254:1"),
            ("/mnt/a", "0:32"),
            ("/mnt/a/x/y", "0:32"),
            ("/mnt/a/inside", "0:32"),
            ("/srv/b/x", "0:34"),
            ("/mnt/ab", "0:35"),
            ("/mnt/abc", "254:1"),
        ] {
            assert_eq!(covering(&table, Path::new(path)).unwrap().device.to_string(), device, "{path}");
        }
        let in_chroot = parse(b"40 39 0:40 / /mnt rw - fuse.windlass s3://a rw\n41 40 0:41 / /mnt/b rw - tmpfs tmpfs rw\n");
        assert_eq!(covering(&in_chroot, Path::new("/mnt/x")).unwrap().device.to_string(), "0:40");
        assert_eq!(covering(&in_chroot, Path::new("/mnt/b/x")).unwrap().device.to_string(), "0:41");
        assert_eq!(covering(&in_chroot, Path::new("/etc")), None);
        assert!(covering(&read().unwrap(), Path::new("/proc")).is_some_and(|entry| entry.kind == "proc"));
    }

    #[test]
    fn the_root_is_always_mounted_and_links_lead_to_their_target() {
        assert!(device_at(Path::new("/")).is_some());
        assert_eq!(device_at(Path::new("/nowhere/at/all")), None);
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        assert_eq!(resolve(&dir.path().join("link")), real);
        assert_eq!(resolve(&dir.path().join("./real/")), real);
        assert_eq!(resolve(&dir.path().join("absent")), real.with_file_name("absent"));
    }
}
