//! What is mounted where, from /proc/self/mountinfo (proc_pid_mountinfo(5)). Never touches the mounts themselves, so it
//! can be asked about dead ones.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub mount_point: PathBuf,
    /// `fuse.windlass`, `ext4`, ...
    pub kind: String,
    /// What was mounted: for our mounts the bucket.
    pub source: String,
}

impl Entry {
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

/// The path as the kernel shows it, without a look at its last component, which may be a mount that no longer answers.
pub fn resolve(path: &Path) -> PathBuf {
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
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

fn parse(table: &[u8]) -> Vec<Entry> {
    table.split(|&b| b == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|&b| b == b' ');
    let mount_point = fields.nth(4)?;
    // Optional fields end with a lone hyphen; their number varies.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (fields.next()?, fields.next()?);
    Some(Entry {
        mount_point: PathBuf::from(OsString::from_vec(unescape(mount_point))),
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
    fn lines_are_read_with_and_without_optional_fields() {
        let entries = parse(TABLE);
        assert_eq!(entries.len(), 4);
        assert_eq!(entries[1].mount_point, Path::new("/mnt/my data"));
        assert_eq!(entries[1].source, "s3://data/a b");
        assert!(entries[1].is_ours() && entries[1].is_fuse());
        assert!(entries[2].is_fuse() && !entries[2].is_ours());
        assert!(entries[3].is_ours());
        assert!(!entries[0].is_fuse());
    }

    #[test]
    fn the_root_is_always_mounted_and_links_lead_to_their_target() {
        assert!(at(Path::new("/")).unwrap().is_some());
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        assert_eq!(resolve(&dir.path().join("link")), real);
        assert_eq!(resolve(&dir.path().join("./real/")), real);
        assert_eq!(resolve(&dir.path().join("absent")), real.with_file_name("absent"));
    }
}
