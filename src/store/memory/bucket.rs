//! What the bucket in memory holds and how it changes: objects, their headers, unfinished uploads. No clock but that of the
//! uploads' dates, no network. Invariant: every change gets a version of its own, and a version names one content.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::hold::Hold;
use super::link::Link;
use super::plan::{Plan, Script};
use super::synthetic::Synthetic;
use crate::store::clock::shifted;
use crate::store::{Condition, ETag, Headers, Key, ObjectMeta, Part, RangeSink, pour};

#[derive(Debug)]
pub(super) struct Bucket {
    pub objects: BTreeMap<Key, Object>,
    pub uploads: BTreeMap<(Key, String), Uploading>,
    /// Counts every change, and so names every version.
    version: u64,
    /// Fewer bytes in a part that is not the last are refused.
    pub least_part: u64,
    /// Whether HEAD and parts tell their CRC.
    pub checksums: bool,
    /// Whether objects have the date at which they were written.
    pub has_dates: bool,
    /// When the bucket was made: its clock started then.
    made: Instant,
    pub script: Script,
    /// Requests that are to be stopped.
    pub holds: Vec<Hold>,
    pub down: Link,
    pub up: Link,
}

/// 1,000,000 of these cost about 100 MB, whatever their sizes: etags and content are computed.
#[derive(Clone, Debug)]
pub(super) struct Object {
    version: u64,
    pub content: Content,
    /// Most objects of a simulation have none.
    extra: Option<Arc<Extra>>,
}

/// What few objects have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    headers: Headers,
    /// How many, when it was a multipart upload.
    parts: usize,
    /// When it was written, where the bucket keeps that.
    modified: Option<SystemTime>,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Stored(Bytes),
    Synthetic(u64, Synthetic),
}

#[derive(Debug)]
pub(super) struct Uploading {
    pub headers: Headers,
    pub initiated: SystemTime,
    pub parts: BTreeMap<u32, (ETag, Bytes)>,
}

/// Why parts are not an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incomplete {
    InvalidPart,
    InvalidPartOrder,
    EntityTooSmall,
    MalformedXml,
}

impl Bucket {
    pub fn new(plan: Plan) -> Self {
        Self {
            objects: BTreeMap::new(),
            uploads: BTreeMap::new(),
            version: 0,
            least_part: 0,
            checksums: true,
            has_dates: false,
            made: Instant::now(),
            script: Script::new(plan),
            holds: Vec::new(),
            down: Link::default(),
            up: Link::default(),
        }
    }

    pub fn put(&mut self, key: Key, headers: Headers, content: impl FnOnce(&Key, u64) -> Content) -> ETag {
        self.insert(key, Extra { headers, ..Extra::default() }, content)
    }

    fn insert(&mut self, key: Key, extra: Extra, content: impl FnOnce(&Key, u64) -> Content) -> ETag {
        self.version += 1;
        let extra = Extra { modified: self.has_dates.then(|| self.time_at(Instant::now())), ..extra };
        let extra = (extra != Extra::default()).then(|| Arc::new(extra));
        let object = Object { version: self.version, content: content(&key, self.version), extra };
        let etag = object.etag();
        self.objects.insert(key, object);
        etag
    }

    /// Puts new content of the same size in the place of an object, if it still exists.
    pub fn replace(&mut self, key: &Key) {
        if let Some(size) = self.objects.get(key).map(|object| object.content.size()) {
            self.put(key.clone(), Headers::default(), |key, version| Content::Synthetic(size, Synthetic::of(key, version)));
        }
    }

    /// The time of the store's clock: in 2033, later than any version is dated, and far from the clock of any machine that runs the tests.
    pub fn time_at(&self, at: Instant) -> SystemTime {
        shifted(SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000), self.made, at)
    }

    /// Whether a write of `key` may go on.
    pub fn allows(&self, key: &Key, condition: &Condition) -> bool {
        let there = self.objects.get(key);
        match condition {
            Condition::Any => true,
            Condition::Absent => there.is_none(),
            Condition::Is(etag) => there.is_some_and(|object| object.etag() == *etag),
        }
    }

    pub fn begin(&mut self, key: &Key, headers: Headers) -> String {
        self.version += 1;
        let id = format!("u{:012}", self.version);
        let uploading = Uploading { headers, initiated: self.time_at(Instant::now()), parts: BTreeMap::new() };
        self.uploads.insert((key.clone(), id.clone()), uploading);
        id
    }

    /// The etag of the part; none when there is no such upload.
    pub fn add_part(&mut self, upload: &(Key, String), number: u32, content: Bytes) -> Option<ETag> {
        let uploading = self.uploads.get_mut(upload)?;
        self.version += 1;
        let etag = ETag::from(&*format!("\"p{}\"", self.version));
        uploading.parts.insert(number, (etag.clone(), content));
        Some(etag)
    }

    /// Makes the object and ends the upload, which must exist.
    pub fn complete(&mut self, upload: &(Key, String), parts: &[Part]) -> Result<ETag, Incomplete> {
        let uploading = &self.uploads[upload];
        let content = uploading.whole(parts, self.least_part)?;
        let extra = Extra { headers: uploading.headers.clone(), parts: parts.len(), modified: None };
        self.uploads.remove(upload);
        Ok(self.insert(upload.0.clone(), extra, |_, _| Content::Stored(content)))
    }

    pub fn change(&mut self, key: &Key, change: impl FnOnce(&mut Headers)) {
        if let Some(object) = self.objects.get_mut(key) {
            let mut extra = object.extra.as_deref().cloned().unwrap_or_default();
            change(&mut extra.headers);
            object.extra = Some(Arc::new(extra));
        }
    }
}

impl Default for Bucket {
    fn default() -> Self {
        Self::new(Plan::default())
    }
}

impl Uploading {
    fn whole(&self, parts: &[Part], least: u64) -> Result<Bytes, Incomplete> {
        let Some((last, others)) = parts.split_last() else { return Err(Incomplete::MalformedXml) };
        if !parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(Incomplete::InvalidPartOrder);
        }
        let content = |part: &Part| match self.parts.get(&part.number) {
            Some((etag, content)) if *etag == part.etag => Ok(content),
            _ => Err(Incomplete::InvalidPart),
        };
        let mut whole = BytesMut::new();
        for part in others {
            let content = content(part)?;
            if (content.len() as u64) < least {
                return Err(Incomplete::EntityTooSmall);
            }
            whole.extend_from_slice(content);
        }
        if whole.is_empty() {
            return content(last).cloned();
        }
        whole.extend_from_slice(content(last)?);
        Ok(whole.freeze())
    }
}

impl Object {
    /// Like a real store's, that of an object out of parts ends in their number.
    pub fn etag(&self) -> ETag {
        let tag = match self.extra.as_ref().map_or(0, |extra| extra.parts) {
            0 => format!("\"v{}\"", self.version),
            parts => format!("\"v{}-{parts}\"", self.version),
        };
        ETag::from(&*tag)
    }

    /// Without a date of its own one version a second from a fixed date, so that runs repeat.
    pub fn meta(&self, key: &Key) -> ObjectMeta {
        let by_version = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + self.version);
        let modified = self.extra.as_ref().and_then(|extra| extra.modified).unwrap_or_else(by_version);
        ObjectMeta { key: key.clone(), size: self.content.size(), etag: self.etag(), modified }
    }

    pub fn headers(&self) -> Headers {
        self.extra.as_ref().map(|extra| extra.headers.clone()).unwrap_or_default()
    }

    pub fn storage_class(&self) -> Option<String> {
        self.extra.as_ref().and_then(|extra| extra.headers.carried.get("storage-class").cloned())
    }
}

impl Content {
    pub fn size(&self) -> u64 {
        match self {
            Self::Stored(bytes) => bytes.len() as u64,
            Self::Synthetic(size, _) => *size,
        }
    }

    pub fn copy(&self, from: u64, n: u64, sink: &mut dyn RangeSink) {
        match self {
            Self::Stored(bytes) => pour(&bytes[from as usize..(from + n) as usize], sink),
            Self::Synthetic(_, content) => content.pieces(from..from + n).for_each(|piece| pour(&piece, sink)),
        }
    }

    /// A range of it, which must lie inside; what is computed is written out.
    pub fn bytes(&self, range: std::ops::Range<u64>) -> Bytes {
        match self {
            Self::Stored(bytes) => bytes.slice(range.start as usize..range.end as usize),
            Self::Synthetic(_, content) => {
                let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
                content.pieces(range).for_each(|piece| bytes.extend_from_slice(&piece));
                bytes.freeze()
            }
        }
    }
}
