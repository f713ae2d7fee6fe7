//! Which parts of a file an earlier run has sent: the upload and its parts, as the store has them. Invariant: a part counts as sent when this
//! file, unchanged, was its source and the store still says that it has it; and an upload that nobody will go on with is aborted.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checkpoint::{Checkpoint, Found, name_of, text_of};
use super::source::Version;
use super::{Error, Result};
use crate::store::{self, ErrorKind, Key, ObjectStore, Part, PartChecksum, Upload};

/// What must be the same for an upload to go on where it stopped.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    source: String,
    target: String,
    version: Version,
    part_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Begun { id: String, checksum: Option<PartChecksum> },
    Sent { number: u32, etag: String, size: u64, crc64: Option<u64>, crc32c: Option<u32> },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sent {
    checkpoint: Checkpoint<Line>,
    found: Found<Line>,
}

impl Sent {
    /// What the checkpoint in `dir` says of that version of `path` on its way to `key`.
    pub fn open(dir: &Path, location: &str, key: &Key, version: Version, part_bytes: u64, path: &Path) -> Result<Self> {
        let source: PathBuf = std::path::absolute(path).map_err(Error::local("read", path))?;
        let target = format!("{location}/{}", key.as_bytes().escape_ascii());
        let name = format!("{}-put", name_of(&target, &source));
        let identity = Identity { source: text_of(&source), target, version, part_bytes };
        let (checkpoint, found) = Checkpoint::open(dir, &name, &identity)?;
        Ok(Self { checkpoint, found })
    }

    /// The upload to go on with and those of its parts that the store has. None: there is none, or not any more.
    pub async fn resume(&mut self, store: &dyn ObjectStore, key: &Key) -> store::Result<Option<(Upload, Vec<Part>)>> {
        let (lines, is_same) = match std::mem::replace(&mut self.found, Found::Same(Vec::new())) {
            Found::Same(lines) => (lines, true),
            Found::Other(lines) => (lines, false),
        };
        let Some(upload) = lines.iter().rev().find_map(|line| line.upload(key)) else { return Ok(None) };
        if !is_same {
            // Nobody will go on with it, and the store charges for its parts. What is not aborted is in `mpu list`.
            let _ = store.abort_upload(&upload).await;
            return Ok(None);
        }
        let begun = lines.iter().rposition(|line| line.upload(key).is_some()).unwrap_or_default();
        let mut parts: Vec<Part> = lines[begun..].iter().filter_map(Line::part).collect();
        match list(store, &upload).await {
            Ok(there) => {
                parts.retain(|part| {
                    there.iter().any(|there| (there.number, &there.etag, there.size) == (part.number, &part.etag, part.size))
                });
            }
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            // Who may not ask learns at the end whether it was all there.
            Err(error) if error.kind == ErrorKind::AccessDenied => {}
            Err(error) => return Err(error),
        }
        parts.sort_by_key(|part| part.number);
        parts.dedup_by_key(|part| part.number);
        Ok(Some((upload, parts)))
    }

    /// This upload is what is gone on with.
    pub fn begin(&mut self, upload: &Upload) -> Result<()> {
        self.checkpoint.add(&Line::Begun { id: upload.id.clone(), checksum: upload.checksum })
    }

    /// One more part is there.
    pub fn add(&mut self, part: &Part) -> Result<()> {
        let etag = part.etag.as_str().to_owned();
        self.checkpoint.add(&Line::Sent { number: part.number, etag, size: part.size, crc64: part.crc64, crc32c: part.crc32c })
    }

    /// Nothing is left to be gone on with.
    pub fn remove(self) {
        self.checkpoint.remove();
    }
}

impl Line {
    fn upload(&self, key: &Key) -> Option<Upload> {
        match self {
            Self::Begun { id, checksum } => Some(Upload { key: key.clone(), id: id.clone(), checksum: *checksum, acl: None }),
            Self::Sent { .. } => None,
        }
    }

    fn part(&self) -> Option<Part> {
        match self {
            Self::Begun { .. } => None,
            Self::Sent { number, etag, size, crc64, crc32c } => {
                Some(Part { number: *number, etag: etag.as_str().into(), size: *size, crc64: *crc64, crc32c: *crc32c })
            }
        }
    }
}

/// All parts that the store has.
async fn list(store: &dyn ObjectStore, upload: &Upload) -> store::Result<Vec<Part>> {
    let (mut parts, mut after) = (Vec::new(), 0);
    loop {
        let page = store.list_parts(upload, after).await?;
        parts.extend(page.parts);
        match page.next {
            // A store that repeats itself would be asked for ever.
            Some(next) if next > after => after = next,
            _ => return Ok(parts),
        }
    }
}
