//! What is published on this node, in a file each: a driver that begins anew finds its volumes by them. It holds no secret. Invariant: a file is whole
//! or not there.

use std::fs;
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::handover::Message;

/// A published volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub volume: String,
    pub target: PathBuf,
    pub pod: String,
    /// Its name in the pod.
    pub name: String,
    pub read_only: bool,
    pub no_exec: bool,
    /// Nobody else on this node may have it (ReadWriteOncePod).
    pub alone: bool,
    /// What its daemon is told.
    pub message: Message,
    /// The device of the mount, `major:minor`.
    #[serde(default)]
    pub device: String,
}

impl Record {
    /// Whether a request asks for what is there.
    pub fn is_same(&self, other: &Self) -> bool {
        Self { device: self.device.clone(), ..other.clone() } == *self
    }
}

/// The directory of the files.
#[derive(Debug)]
pub struct Ledger {
    directory: PathBuf,
}

impl Ledger {
    /// The directory, made where it is missing.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn open(directory: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Self { directory })
    }

    /// All that is written down. What cannot be read is said and left alone.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn records(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)) {
                Ok(record) => records.push(record),
                Err(error) => tracing::warn!(file = %path.display(), %error, "what was published cannot be read"),
            }
        }
        Ok(records)
    }

    /// Writes it down.
    ///
    /// # Errors
    /// When it cannot be; what was there stays.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let (file, draft) = (self.file(&record.target, "json"), self.file(&record.target, "draft"));
        let mut written = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        written.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(&draft, &file)
    }

    /// Strikes it out.
    pub fn remove(&self, target: &Path) {
        if let Err(error) = fs::remove_file(self.file(target, "json"))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(target = %target.display(), %error, "a volume that is not published any more stays written down");
        }
    }

    /// Paths are longer than names of files may be.
    fn file(&self, target: &Path, extension: &str) -> PathBuf {
        let mut hasher = XxHash3_64::new();
        hasher.write(target.as_os_str().as_encoded_bytes());
        self.directory.join(format!("{:016x}.{extension}", hasher.finish()))
    }
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A record of `target`.
    pub fn record(target: &str) -> Record {
        Record {
            volume: "v".into(),
            target: target.into(),
            pod: "1".into(),
            name: "data".into(),
            read_only: false,
            no_exec: false,
            alone: false,
            message: Message { bucket: "s3://data".into(), ..Message::default() },
            device: "0:7".into(),
        }
    }

    #[test]
    fn what_is_written_is_found_until_it_is_struck_out() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path().join("volumes")).unwrap();
        let (one, two) = (record("/one"), record("/two"));
        ledger.write(&one).unwrap();
        ledger.write(&Record { read_only: true, ..two.clone() }).unwrap();
        ledger.write(&two).unwrap();
        fs::write(dir.path().join("volumes/broken.json"), "{").unwrap();
        let mut found = ledger.records().unwrap();
        found.sort_by(|a, b| a.target.cmp(&b.target));
        assert_eq!(found, [one.clone(), two.clone()]);
        ledger.remove(Path::new("/one"));
        ledger.remove(Path::new("/one"));
        assert_eq!(ledger.records().unwrap(), [two]);
        let modes = fs::read_dir(dir.path().join("volumes")).unwrap().map(|entry| entry.unwrap());
        let open = modes.filter(|entry| entry.file_name() != "broken.json" && entry.metadata().unwrap().permissions().mode() & 0o077 != 0);
        assert_eq!(open.count(), 0);
        assert!(one.is_same(&Record { device: String::new(), ..one.clone() }) && !one.is_same(&Record { read_only: true, ..one.clone() }));
    }
}
