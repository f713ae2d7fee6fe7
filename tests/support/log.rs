//! What the server was asked and how each answer ended.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use hyper::header::{HeaderMap, IF_MATCH, RANGE, USER_AGENT};
use hyper::{Method, Uri};

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: Kind,
    pub method: Method,
    /// Path without the query, still percent-encoded.
    pub path: String,
    pub query: String,
    /// The object, decoded; of a listing its prefix.
    pub key: String,
    /// The Range header, when it is one of `bytes=a-b`.
    pub range: Option<Range<u64>>,
    pub if_match: Option<String>,
    pub user_agent: Option<String>,
    pub authorization: Option<String>,
    pub content_md5: Option<String>,
    /// The vendor's headers, by name.
    pub amz: std::collections::BTreeMap<String, String>,
    /// Bytes of the body that came with it.
    pub content_length: u64,
    /// Tells connections apart.
    pub remote_port: u16,
    pub at: Instant,
    /// 0 until the head of the answer was sent, and when the connection was cut before.
    pub status: u16,
    /// Bytes of the body handed to the socket so far.
    pub bytes_sent: u64,
    /// The whole body was handed to the socket.
    pub finished: bool,
    /// The client closed before that, and no fault of ours cut it.
    pub aborted: bool,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Get,
    Head,
    List,
    Put,
    Copy,
    Delete,
    DeleteMany,
    CreateUpload,
    UploadPart,
    CopyPart,
    CompleteUpload,
    AbortUpload,
    ListUploads,
    ListParts,
    /// HEAD of the bucket, and whatever else there is.
    Other,
}

impl Request {
    pub fn new(method: &Method, uri: &Uri, headers: &HeaderMap, remote_port: u16) -> Self {
        let text = |name| headers.get(name).and_then(|v: &hyper::header::HeaderValue| v.to_str().ok()).map(str::to_owned);
        let query = uri.query().unwrap_or_default().to_owned();
        let key = uri.path().trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
        let (upload, copied) = (query.contains("uploadId="), headers.contains_key("x-amz-copy-source"));
        let kind = match (method, key) {
            (&Method::GET, "") if query.contains("list-type=2") => Kind::List,
            (&Method::GET, "") if query.starts_with("uploads") => Kind::ListUploads,
            (&Method::POST, "") if query.starts_with("delete") => Kind::DeleteMany,
            (_, "") => Kind::Other,
            (&Method::GET, _) if upload => Kind::ListParts,
            (&Method::GET, _) => Kind::Get,
            (&Method::HEAD, _) => Kind::Head,
            (&Method::PUT, _) if upload && copied => Kind::CopyPart,
            (&Method::PUT, _) if upload => Kind::UploadPart,
            (&Method::PUT, _) if copied => Kind::Copy,
            (&Method::PUT, _) => Kind::Put,
            (&Method::DELETE, _) if upload => Kind::AbortUpload,
            (&Method::DELETE, _) => Kind::Delete,
            (&Method::POST, _) if upload => Kind::CompleteUpload,
            (&Method::POST, _) if query.starts_with("uploads") => Kind::CreateUpload,
            _ => Kind::Other,
        };
        let key = match kind {
            Kind::List | Kind::ListUploads => query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).unwrap_or_default(),
            _ => key,
        };
        Self {
            kind,
            method: method.clone(),
            path: uri.path().to_owned(),
            key: percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned(),
            query,
            range: text(RANGE).as_deref().and_then(parse_range),
            if_match: text(IF_MATCH),
            user_agent: text(USER_AGENT),
            content_md5: text(hyper::header::HeaderName::from_static("content-md5")),
            authorization: text(hyper::header::AUTHORIZATION),
            amz: headers
                .iter()
                .filter(|(name, _)| name.as_str().starts_with("x-amz-"))
                .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
                .collect(),
            content_length: text(hyper::header::CONTENT_LENGTH).and_then(|text| text.parse().ok()).unwrap_or(0),
            remote_port,
            at: Instant::now(),
            status: 0,
            bytes_sent: 0,
            finished: false,
            aborted: false,
        }
    }
}

impl Request {
    /// The key that signed it.
    pub fn key_id(&self) -> Option<&str> {
        self.authorization.as_deref()?.split_once("Credential=")?.1.split('/').next()
    }
}

fn parse_range(header: &str) -> Option<Range<u64>> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
}

/// All requests, in the order their heads arrived. Clones are the same log.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    requests: Vec<Request>,
    /// How many were forgotten by `reset`, so that those still open find their place.
    forgotten: usize,
}

impl Log {
    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    pub fn reset(&self) {
        let mut entries = self.lock();
        entries.forgotten += entries.requests.len();
        entries.requests.clear();
    }

    pub fn open(&self, request: Request) -> Entry {
        let mut entries = self.lock();
        entries.requests.push(request);
        Entry { log: self.clone(), id: entries.forgotten + entries.requests.len() - 1, ours: false }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().expect("no panic while it is held")
    }
}

/// A request being answered; dropped when its answer was sent or the connection is gone.
#[derive(Debug)]
pub struct Entry {
    log: Log,
    id: usize,
    ours: bool,
}

impl Entry {
    pub fn update(&self, change: impl FnOnce(&mut Request)) {
        let mut entries = self.log.lock();
        let index = self.id.checked_sub(entries.forgotten);
        if let Some(request) = index.and_then(|i| entries.requests.get_mut(i)) {
            change(request);
        }
    }

    /// A fault ends this answer, not the client.
    pub fn cut_by_us(&mut self) {
        self.ours = true;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let ours = self.ours;
        self.update(|request| request.aborted = !request.finished && !ours);
    }
}
