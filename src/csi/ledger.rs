//! What is published on this node, in a file each: a driver that begins anew finds its volumes by them. It holds no secret. Invariant: a file is whole
//! or not there.

use std::collections::BTreeMap;
use std::fs;
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::handover::Message;

/// Options that drivers which did not keep the request have set by themselves.
const DEFAULTS: [&str; 5] = ["read-only", "gid", "file-mode", "dir-mode", "passwd-file"];

/// What a publish request says of its volume, in the caller's words. The other fields of a [`Record`] follow from it by the rules and defaults of one version of the
/// driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requested {
    /// Attributes of the volume, without those that Kubernetes adds.
    pub attributes: BTreeMap<String, String>,
    pub mount_flags: Vec<String>,
    /// The pod's fsGroup.
    pub group: String,
    /// As the CSI names it.
    pub access_mode: String,
    pub read_only: bool,
    /// Whether it came with keys, which the daemon has to be told of.
    pub has_keys: bool,
}

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
    /// None: written by a driver that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Requested>,
}

impl Record {
    /// Whether `request` asks for this volume. What the caller has said is compared, and not what this driver makes of it: a record may have been written by a driver
    /// with other defaults, and a volume stays what it is until it is unpublished.
    pub fn is_same(&self, request: &Self) -> bool {
        let is_same_place =
            self.volume == request.volume && self.target == request.target && self.pod == request.pod && self.name == request.name;
        if !is_same_place {
            return false;
        }
        match (&self.requested, &request.requested) {
            (Some(stored), Some(requested)) => stored == requested,
            _ => self.is_same_without_defaults(request),
        }
    }

    /// The same for a record that does not say what was requested.
    fn is_same_without_defaults(&self, request: &Self) -> bool {
        let flags = |record: &Self| (record.read_only, record.no_exec, record.alone);
        let options = |record: &Self| {
            let mut options = record.message.options.clone();
            options.retain(|name, _| !DEFAULTS.contains(&name.as_str()));
            options
        };
        let (stored, asked) = (&self.message, &request.message);
        flags(self) == flags(request)
            && (&stored.bucket, &stored.prefix, &stored.args) == (&asked.bucket, &asked.prefix, &asked.args)
            && options(self) == options(request)
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
            requested: Some(requested()),
        }
    }

    fn requested() -> Requested {
        Requested { attributes: [("bucket".to_owned(), "data".to_owned())].into(), ..Requested::default() }
    }

    /// What the driver tells a daemon besides.
    fn with_option(record: &Record, name: &str, value: &str) -> Record {
        let mut message = record.message.clone();
        message.options.insert(name.to_owned(), value.into());
        Record { message, ..record.clone() }
    }

    #[test]
    fn record_with_other_defaults_is_of_the_same_request() {
        let stored = with_option(&record("/one"), "default-of-yesterday", "1");
        let request = Record { device: String::new(), ..with_option(&record("/one"), "default-of-today", "2") };
        assert!(stored.is_same(&request));
        for other in [
            Requested { read_only: true, ..requested() },
            Requested { has_keys: true, ..requested() },
            Requested { mount_flags: vec!["uid=7".into()], ..requested() },
            Requested { attributes: [("bucket".to_owned(), "other".to_owned())].into(), ..requested() },
        ] {
            assert!(!stored.is_same(&Record { requested: Some(other.clone()), ..request.clone() }), "{other:?}");
        }
        assert!(!stored.is_same(&Record { volume: "w".into(), ..request.clone() }));
        assert!(!stored.is_same(&Record { target: "/two".into(), ..request }));
    }

    #[test]
    fn record_of_an_earlier_driver_is_compared_without_its_defaults() {
        let mut written = serde_json::to_value(with_option(&record("/one"), "file-mode", "0600")).unwrap();
        written.as_object_mut().unwrap().remove("requested");
        let stored: Record = serde_json::from_value(written).unwrap();
        assert_eq!(stored.requested, None);
        let request = with_option(&record("/one"), "file-mode", "0664");
        assert!(stored.is_same(&request));
        assert!(stored.is_same(&with_option(&request, "passwd-file", "/windlass/data/credentials")));
        assert!(!stored.is_same(&with_option(&request, "chunk-size", "8MiB")));
        assert!(!stored.is_same(&Record { read_only: true, ..request.clone() }));
        let other = Message { bucket: "s3://other".into(), ..request.message.clone() };
        assert!(!stored.is_same(&Record { message: other, ..request }));
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
        assert!(one.is_same(&Record { device: String::new(), ..one.clone() }));
    }
}
