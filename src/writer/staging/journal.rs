//! The description of a staged file beside it, for the mount that comes after a killed one. It decides nothing. Invariant: the
//! description is replaced as a whole, so that whoever reads it reads one that was true.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use super::Base;
use super::layout::Layout;
use crate::spill::open_own;
use crate::store::{ETag, Headers, Key, ObjectMeta, Part, PartChecksum, Upload};
use crate::writer::parts::Sizes;

/// Of what this program writes; another number is left alone.
const VERSION: u32 = 1;

/// Present for a stream: a reader of this description that ignores it would take the parts that the store has for zeros.
const STREAM_VERSION: u32 = 2;

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::writer) struct Entry {
    version: u32,
    /// Whose it is: the bucket and prefix that were mounted.
    pub scope: String,
    /// Where it was to go. For people, and for us when it is text.
    key: String,
    /// The same when it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    content_type: Option<String>,
    metadata: std::collections::BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    carried: std::collections::BTreeMap<String, String>,
    pub size: u64,
    /// The version that is there, as far as the writer knows; none: there is no object.
    etag: Option<String>,
    /// The object that bytes are taken from, when that has another key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_key_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_size: Option<u64>,
    base_end: u64,
    present: Vec<Range<u64>>,
    zeros: Vec<Range<u64>>,
    dirty: Vec<Range<u64>>,
    /// The ranges are complete: a commit had begun.
    pub sealed: bool,
    /// Who has it open, as far as another daemon can go on with it, and the version that bytes are taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_etag: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    base_is_temporary: bool,
    /// Nothing may be replaced under its key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must_be_new: bool,
    /// A stream, of which the file has what the store lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamEntry>,
}

/// What the store has of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::writer) struct StreamEntry {
    pub sizes: Sizes,
    upload: Option<UploadEntry>,
    parts: Vec<PartEntry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct UploadEntry {
    key_base64: String,
    id: String,
    checksum: Option<PartChecksum>,
    content_type: Option<String>,
    metadata: std::collections::BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    carried: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PartEntry {
    number: u32,
    etag: String,
    size: u64,
    crc64: Option<u64>,
    crc32c: Option<u32>,
}

impl StreamEntry {
    pub fn new(sizes: Sizes, upload: Option<(&Upload, &Headers)>, parts: &[Part]) -> Self {
        let upload = upload.map(|(upload, headers)| UploadEntry {
            key_base64: BASE64_STANDARD.encode(upload.key.as_bytes()),
            id: upload.id.clone(),
            checksum: upload.checksum,
            content_type: headers.content_type.clone(),
            metadata: headers.metadata.clone(),
            carried: headers.carried.clone(),
        });
        let part = |part: &Part| PartEntry {
            number: part.number,
            etag: part.etag.as_str().to_owned(),
            size: part.size,
            crc64: part.crc64,
            crc32c: part.crc32c,
        };
        Self { sizes, upload, parts: parts.iter().map(part).collect() }
    }

    /// The upload that is under way, and the headers that it was begun with.
    ///
    /// # Errors
    /// Its key cannot be read.
    pub fn upload(&self) -> io::Result<Option<(Upload, Headers)>> {
        let Some(UploadEntry { key_base64, id, checksum, content_type, metadata, carried }) = &self.upload else { return Ok(None) };
        let key = Key::from(BASE64_STANDARD.decode(key_base64).map_err(io::Error::other)?);
        let headers = Headers { content_type: content_type.clone(), metadata: metadata.clone(), carried: carried.clone() };
        let acl = headers.carried.get("acl").cloned();
        Ok(Some((Upload { key, id: id.clone(), checksum: *checksum, acl }, headers)))
    }

    pub fn parts(&self) -> Vec<Part> {
        let part = |part: &PartEntry| Part {
            number: part.number,
            etag: ETag::from(part.etag.as_str()),
            size: part.size,
            crc64: part.crc64,
            crc32c: part.crc32c,
        };
        self.parts.iter().map(part).collect()
    }
}

/// What an entry is made of.
pub(in crate::writer) struct Described<'a> {
    pub scope: &'a str,
    pub key: &'a Key,
    pub headers: &'a Headers,
    pub size: u64,
    pub etag: Option<&'a ETag>,
    pub must_be_new: bool,
    /// The object that is edited.
    pub base: Option<&'a Base>,
    pub layout: &'a Layout,
    pub sealed: bool,
    pub owner: Option<u64>,
    pub stream: Option<StreamEntry>,
}

impl Entry {
    pub fn new(described: Described<'_>) -> Self {
        let Described { scope, key, headers, size, etag, must_be_new, base, layout, sealed, owner, stream } = described;
        let base_meta = base.map(|base| &base.meta);
        let encoded = |key: &Key| BASE64_STANDARD.encode(key.as_bytes());
        Self {
            version: if stream.is_some() { STREAM_VERSION } else { VERSION },
            scope: scope.to_owned(),
            key: key.to_string(),
            key_base64: key.to_str().is_none().then(|| encoded(key)),
            content_type: headers.content_type.clone(),
            metadata: headers.metadata.clone(),
            carried: headers.carried.clone(),
            size,
            etag: etag.map(|etag| etag.as_str().to_owned()),
            base_key_base64: base_meta.filter(|base| base.key != *key).map(|base| encoded(&base.key)),
            base_size: base_meta.map(|base| base.size),
            base_end: layout.base_end(),
            present: layout.present().iter().cloned().collect(),
            zeros: layout.zeros().iter().cloned().collect(),
            dirty: layout.dirty().iter().cloned().collect(),
            sealed,
            owner,
            base_etag: base_meta.map(|base| base.etag.as_str().to_owned()),
            base_is_temporary: base.is_some_and(|base| base.temporary),
            must_be_new,
            stream,
        }
    }

    /// Where it was to go; none when nobody can tell.
    pub fn key(&self) -> Option<Key> {
        match &self.key_base64 {
            None => Some(Key::from(self.key.as_str())),
            Some(encoded) => Some(Key::from(BASE64_STANDARD.decode(encoded).ok()?)),
        }
    }

    pub fn etag(&self) -> Option<ETag> {
        self.etag.as_deref().map(ETag::from)
    }

    /// The object that bytes are taken from, in the version that they were taken from so far. Its date is not known.
    pub fn base(&self) -> Option<Base> {
        let key = match &self.base_key_base64 {
            None => self.key()?,
            Some(encoded) => Key::from(BASE64_STANDARD.decode(encoded).ok()?),
        };
        let etag = ETag::from(self.base_etag.as_deref()?);
        let meta = ObjectMeta { key, size: self.base_size?, etag, modified: SystemTime::now() };
        Some(Base { meta, temporary: self.base_is_temporary })
    }

    /// Whether bytes are taken from an object.
    pub fn has_base(&self) -> bool {
        self.base_size.is_some()
    }

    /// Whether bytes are taken from an object of another name.
    pub fn is_moved(&self) -> bool {
        self.base_key_base64.is_some()
    }

    pub fn headers(&self) -> Headers {
        Headers { content_type: self.content_type.clone(), metadata: self.metadata.clone(), carried: self.carried.clone() }
    }

    pub fn layout(&self) -> Layout {
        let set = |ranges: &[Range<u64>]| ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
        Layout::from_parts(set(&self.present), set(&self.zeros), set(&self.dirty), self.base_end)
    }
}

/// Replaces the description at `path`. With `durable` it survives a power cut too.
pub(super) fn write(path: &Path, entry: &Entry, durable: bool) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(entry).map_err(io::Error::other)?;
    let aside = path.with_extension("tmp");
    let mut file = open_own(OpenOptions::new().write(true).create(true).truncate(true), &aside)?;
    file.write_all(&text)?;
    if durable {
        file.sync_all()?;
    }
    fs::rename(&aside, path)?;
    if durable && let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// The description at `path`.
pub(super) fn read(path: &Path) -> io::Result<Entry> {
    let mut text = Vec::new();
    open_own(OpenOptions::new().read(true), path)?.read_to_end(&mut text)?;
    let entry: Entry = serde_json::from_slice(&text).map_err(io::Error::other)?;
    let known = if entry.stream.is_some() { STREAM_VERSION } else { VERSION };
    if entry.version == known { Ok(entry) } else { Err(io::Error::other(format!("version {} of the journal", entry.version))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let mut layout = Layout::of_object(100);
        layout.on_write(&(10..20));
        layout.on_zero(&(30..40));
        layout.on_fetched(&(50..60));
        layout.on_cut(90);
        layout
    }

    fn entry(key: &Key, base: Option<(&Key, u64)>) -> Entry {
        let carried = [("cache-control".into(), "no-store".into())].into();
        let headers = Headers { content_type: Some("text/plain".into()), metadata: [("mode".into(), "33188".into())].into(), carried };
        let etag = ETag::from("\"e\"");
        let meta = |(key, size): (&Key, u64)| ObjectMeta { key: key.clone(), size, etag: etag.clone(), modified: SystemTime::now() };
        let base = base.map(|base| Base { meta: meta(base), temporary: true });
        let (layout, etag, base) = (layout(), base.as_ref().map(|_| &etag), base.as_ref());
        let scope = "s3://b/p";
        Entry::new(Described {
            scope,
            key,
            headers: &headers,
            size: 95,
            etag,
            must_be_new: true,
            base,
            layout: &layout,
            sealed: true,
            owner: Some(7),
            stream: None,
        })
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.json");
        for key in [Key::from("a/b \"c\""), Key::from(&b"\xff\x00"[..])] {
            for base in [None, Some((&key, 100)), Some((&Key::from("other"), 100))] {
                let entry = entry(&key, base);
                write(&path, &entry, base.is_some()).unwrap();
                let read = read(&path).unwrap();
                assert_eq!((read.key(), read.layout(), read.headers()), (Some(key.clone()), layout(), entry.headers()));
                assert_eq!((read.size, read.etag(), read.has_base()), (95, base.map(|_| ETag::from("\"e\"")), base.is_some()));
                assert_eq!((read.sealed, read.must_be_new, read.is_moved()), (true, true, base.is_some_and(|(base, _)| *base != key)));
                let from = read.base().map(|base| (base.meta.key, base.meta.size, base.meta.etag, base.temporary));
                assert_eq!((read.owner, from), (Some(7), base.map(|(base, size)| (base.clone(), size, ETag::from("\"e\""), true))));
            }
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_version_and_half_an_entry_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.json");
        let mut newer = entry(&Key::from("k"), None);
        // Also that of a stream, which is not one.
        for version in [STREAM_VERSION, STREAM_VERSION + 1] {
            newer.version = version;
            write(&path, &newer, false).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains(&format!("version {version}")));
        }
        fs::write(&path, b"{\"version\":1,").unwrap();
        assert!(read(&path).is_err());
    }
}
