//! How the OSS server is written: objects with headers, uploads, copies, links, all with CRC64 where OSS tells it. It knows no
//! signature and no socket. Invariant: a request that is refused has changed nothing.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderName, Method};
use md5::{Digest, Md5};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use windlass::store::{Op, Polynomial};

use super::oss_read::etag;
use super::oss_server::{Refusal, Setup};

/// Uploads of one page of their list.
const MOST_UPLOADS: usize = 3;

/// What is stored beside objects; those that tests put directly have nothing.
#[derive(Debug, Default)]
pub struct Writes {
    facts: BTreeMap<Vec<u8>, Facts>,
    uploads: BTreeMap<(Vec<u8>, String), Uploading>,
    begun: usize,
    pub faults: Vec<OssFault>,
    /// Answers to and about links have neither tag nor date.
    pub bare_links: bool,
}

/// Of one object. Forgotten when its content is no longer the one it was stored with.
#[derive(Clone, Debug, Default)]
struct Facts {
    content: Vec<u8>,
    headers: BTreeMap<String, String>,
    target: Option<String>,
    /// How many parts it was made of.
    parts: usize,
    modified: Option<SystemTime>,
}

#[derive(Debug)]
struct Uploading {
    headers: BTreeMap<String, String>,
    initiated: SystemTime,
    parts: BTreeMap<u32, Vec<u8>>,
}

/// The document of DeleteMultipleObjects.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Deletion {
    quiet: bool,
    object: Vec<Named>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Named {
    key: String,
}

fn malformed() -> Refusal {
    (400, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema.".into())
}

/// What happens to the next requests of an operation.
#[derive(Clone, Debug)]
pub struct OssFault {
    pub op: Op,
    pub effect: OssEffect,
    pub times: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OssEffect {
    /// Refused with this status and code.
    Status(u16, &'static str),
    /// Not done, and the connection closed.
    Broken,
    /// Done, and the connection closed.
    Lost,
    /// Done, and the checksum that is told is another.
    WrongSum,
}

/// A write as it was received.
pub struct Change<'a> {
    pub method: &'a Method,
    pub key: &'a [u8],
    pub query: &'a [(String, String)],
    pub headers: &'a HeaderMap,
    pub body: Vec<u8>,
}

pub type Done = (u16, Vec<(HeaderName, String)>, Vec<u8>);

impl Change<'_> {
    fn parameter(&self, wanted: &str) -> Option<&str> {
        self.query.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// What it is; none for what only reads.
    pub fn op(&self) -> Option<Op> {
        let (upload, copied) = (self.parameter("uploadId").is_some(), self.header("x-oss-copy-source").is_some());
        Some(match (self.method, upload, copied) {
            (&Method::PUT, true, true) => Op::CopyPart,
            (&Method::PUT, true, false) => Op::UploadPart,
            (&Method::PUT, false, true) => Op::Copy,
            (&Method::PUT, false, false) => Op::Put,
            (&Method::POST, true, _) => Op::CompleteUpload,
            (&Method::POST, false, _) if self.parameter("uploads").is_some() => Op::CreateUpload,
            (&Method::GET, true, _) => Op::ListParts,
            (&Method::DELETE, true, _) => Op::AbortUpload,
            (&Method::DELETE, false, _) => Op::Delete,
            (&Method::POST, false, _) if self.parameter("delete").is_some() => Op::Delete,
            (&Method::GET, false, _) if self.parameter("uploads").is_some() => Op::ListUploads,
            _ => return None,
        })
    }

    /// The headers that stay with the object.
    fn kept(&self) -> BTreeMap<String, String> {
        let stays = |name: &str| {
            matches!(name, "content-type" | "cache-control" | "content-disposition" | "content-encoding" | "content-language" | "expires")
                || is_of_store(name)
                || name.starts_with("x-oss-meta-")
        };
        let kept = self.headers.iter().filter(|(name, _)| stays(name.as_str()));
        kept.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
    }

    fn may_overwrite(&self, setup: &Setup) -> Result<(), Refusal> {
        if self.header("x-oss-forbid-overwrite") == Some("true") && setup.objects.contains_key(self.key) {
            return Err((409, "FileAlreadyExists", "The object you specified already exists and can not be overwritten.".into()));
        }
        Ok(())
    }
}

/// What a copy does not take along by itself; tags it does.
fn is_of_store(name: &str) -> bool {
    const NAMES: [&str; 5] =
        ["x-oss-object-acl", "x-oss-storage-class", "x-oss-server-side-encryption", "x-oss-server-side-encryption-key-id", "x-oss-tagging"];
    NAMES.contains(&name)
}

fn tagged(content: &[u8]) -> Vec<(HeaderName, String)> {
    vec![(ETAG, etag(content)), (HeaderName::from_static("x-oss-hash-crc64ecma"), Polynomial::Ecma.of(content).to_string())]
}

fn document(body: String) -> Done {
    (200, vec![(CONTENT_TYPE, "application/xml".into())], format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{body}").into_bytes())
}

fn multipart_tag(content: &[u8], parts: usize) -> String {
    format!("{}-{parts}\"", etag(content).trim_end_matches('"'))
}

fn no_upload() -> Refusal {
    (404, "NoSuchUpload", "The specified upload does not exist.".into())
}

impl Writes {
    /// What a HEAD tells besides size, tag and date.
    pub fn told(&self, key: &[u8], content: &[u8]) -> Vec<(HeaderName, String)> {
        let mut headers = self.headers(key, content);
        let tags = headers.iter().find(|(name, _)| name == "x-oss-tagging").map_or(0, |(_, tags)| tags.split('&').count());
        headers.retain(|(name, _)| name != "x-oss-tagging" && name != "x-oss-object-acl");
        headers.extend((tags > 0).then(|| (HeaderName::from_static("x-oss-tagging-count"), tags.to_string())));
        headers
    }

    /// The access list of an object, as `GET ?acl` tells it.
    pub fn acl(&self, key: &[u8], content: &[u8]) -> String {
        let word = self.facts(key, content).and_then(|facts| facts.headers.get("x-oss-object-acl"));
        format!(
            "<AccessControlPolicy><Owner><ID>1</ID><DisplayName>1</DisplayName></Owner><AccessControlList><Grant>{}</Grant></AccessControlList></AccessControlPolicy>",
            word.map_or("default", String::as_str)
        )
    }

    /// Its tags, as `GET ?tagging` tells them.
    pub fn tags(&self, key: &[u8], content: &[u8]) -> String {
        let pairs = self.facts(key, content).and_then(|facts| facts.headers.get("x-oss-tagging")).map(String::as_str).unwrap_or_default();
        let decoded =
            |text: &str| percent_decode_str(text).decode_utf8().expect("tags are text").replace('&', "&amp;").replace('<', "&lt;");
        let tags = pairs.split('&').filter_map(|pair| pair.split_once('='));
        let tags = tags.map(|(name, value)| format!("<Tag><Key>{}</Key><Value>{}</Value></Tag>", decoded(name), decoded(value)));
        format!("<Tagging><TagSet>{}</TagSet></Tagging>", tags.collect::<String>())
    }

    /// What is stored beside an object.
    pub fn headers(&self, key: &[u8], content: &[u8]) -> Vec<(HeaderName, String)> {
        let mut headers = vec![(HeaderName::from_static("x-oss-hash-crc64ecma"), Polynomial::Ecma.of(content).to_string())];
        if let Some(facts) = self.facts(key, content) {
            headers.extend(facts.headers.iter().map(|(name, value)| (name.parse().unwrap(), value.clone())));
            let kind = if facts.target.is_some() { "Symlink" } else { "Normal" };
            headers.push((HeaderName::from_static("x-oss-object-type"), kind.to_owned()));
        }
        headers
    }

    fn facts(&self, key: &[u8], content: &[u8]) -> Option<&Facts> {
        self.facts.get(key).filter(|facts| facts.content == content)
    }

    /// The tag of an object; that of one out of parts ends in their number.
    pub fn tag(&self, key: &[u8], content: &[u8]) -> String {
        match self.facts(key, content).map_or(0, |facts| facts.parts) {
            0 => etag(content),
            parts => multipart_tag(content, parts),
        }
    }

    /// When it was written; what tests put directly is old.
    pub fn modified(&self, key: &[u8], content: &[u8]) -> SystemTime {
        let old = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_330_063_668);
        self.facts(key, content).and_then(|facts| facts.modified).unwrap_or(old)
    }

    /// Where a link leads, as it was written.
    pub fn target(&self, key: &[u8], content: &[u8]) -> Option<&str> {
        self.facts(key, content)?.target.as_deref()
    }

    pub fn uploads(&self) -> usize {
        self.uploads.len()
    }

    /// Key and content that a copy takes.
    fn source(&self, change: &Change<'_>, setup: &Setup) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
        let path: Vec<u8> = percent_decode_str(change.header("x-oss-copy-source").unwrap()).collect();
        let key = path.strip_prefix(format!("/{}/", setup.bucket).as_bytes()).expect("copies stay in the bucket").to_vec();
        let content = setup.objects.get(&key).ok_or((404, "NoSuchKey", "The specified key does not exist.".to_owned()))?.clone();
        match change.header("x-oss-copy-source-if-match") {
            Some(wanted) if wanted != self.tag(&key, &content) => Err((412, "PreconditionFailed", "The source is another version.".into())),
            _ => Ok((key, content)),
        }
    }

    /// The fault for this request, if there is one.
    pub fn fault(&mut self, op: Op) -> Option<OssEffect> {
        let fault = self.faults.iter_mut().find(|fault| fault.op == op && fault.times > 0)?;
        fault.times -= 1;
        Some(fault.effect)
    }

    fn store(&mut self, setup: &mut Setup, key: &[u8], facts: Facts) {
        setup.objects.insert(key.to_vec(), facts.content.clone());
        self.facts.insert(key.to_vec(), Facts { modified: Some(SystemTime::now()), ..facts });
    }

    /// Carries out `change`, which is an `op`.
    pub fn serve(&mut self, op: Op, setup: &mut Setup, change: &Change<'_>) -> Result<Done, Refusal> {
        let name = (change.key.to_vec(), change.parameter("uploadId").unwrap_or_default().to_owned());
        let sent = change.header("content-md5").map(str::to_owned);
        if sent.is_some_and(|sent| sent != BASE64_STANDARD.encode(Md5::digest(&change.body))) {
            return Err((400, "InvalidDigest", "The Content-MD5 you specified did not match what we received.".into()));
        }
        let number = || change.parameter("partNumber").unwrap().parse::<u32>().unwrap();
        match op {
            Op::Put => {
                change.may_overwrite(setup)?;
                let target = change.parameter("symlink").map(|_| change.header("x-oss-symlink-target").unwrap().to_owned());
                // Links differ by where they lead.
                let content = target.as_ref().map_or_else(|| change.body.clone(), |target| format!("link to {target}").into_bytes());
                let answer = if self.bare_links && target.is_some() { Vec::new() } else { tagged(&content) };
                self.store(setup, change.key, Facts { content, headers: change.kept(), target, ..Facts::default() });
                Ok((200, answer, Vec::new()))
            }
            Op::Rename => unreachable!("OSS has no such request"),
            Op::Copy => {
                let (source, content) = self.source(change, setup)?;
                change.may_overwrite(setup)?;
                let before = self.facts.get(&source).cloned().unwrap_or_default();
                let mut headers = change.kept();
                if change.header("x-oss-metadata-directive") != Some("REPLACE") {
                    headers.retain(|name, _| is_of_store(name));
                    headers.extend(before.headers.clone().into_iter().filter(|(name, _)| !is_of_store(name)));
                }
                headers.remove("x-oss-tagging");
                headers.extend(before.headers.get("x-oss-tagging").map(|tags| ("x-oss-tagging".to_owned(), tags.clone())));
                let answer = document(format!("<CopyObjectResult><ETag>{}</ETag></CopyObjectResult>", etag(&content)));
                self.store(setup, change.key, Facts { content, headers, target: before.target, ..Facts::default() });
                Ok(answer)
            }
            Op::Delete if *change.method == Method::POST => {
                let sent = change.header("content-md5").is_some();
                let deletion: Deletion = quick_xml::de::from_reader(&change.body[..]).map_err(|_| malformed())?;
                if !sent || !deletion.quiet || deletion.object.len() > 1000 {
                    return Err(malformed());
                }
                for named in deletion.object {
                    setup.objects.remove(named.key.as_bytes());
                }
                Ok((200, Vec::new(), Vec::new()))
            }
            Op::Delete => {
                setup.objects.remove(change.key);
                Ok((204, Vec::new(), Vec::new()))
            }
            Op::CreateUpload => {
                self.begun += 1;
                let id = format!("UPLOAD{:06}", self.begun);
                let uploading = Uploading { headers: change.kept(), initiated: SystemTime::now(), parts: BTreeMap::new() };
                self.uploads.insert((change.key.to_vec(), id.clone()), uploading);
                Ok(document(format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>")))
            }
            Op::UploadPart => {
                let answer = tagged(&change.body);
                self.uploads.get_mut(&name).ok_or_else(no_upload)?.parts.insert(number(), change.body.clone());
                Ok((200, answer, Vec::new()))
            }
            Op::CopyPart => {
                let (_, content) = self.source(change, setup)?;
                let (first, last) = change.header("x-oss-copy-source-range").unwrap()["bytes=".len()..].split_once('-').unwrap();
                let part = content[first.parse().unwrap()..=last.parse().unwrap()].to_vec();
                let answer = document(format!("<CopyPartResult><ETag>{}</ETag></CopyPartResult>", etag(&part)));
                self.uploads.get_mut(&name).ok_or_else(no_upload)?.parts.insert(number(), part);
                Ok(answer)
            }
            Op::CompleteUpload => self.complete(setup, change, &name),
            Op::AbortUpload => self.uploads.remove(&name).map(|_| (204, Vec::new(), Vec::new())).ok_or_else(no_upload),
            Op::ListUploads => Ok(self.list(change)),
            Op::ListParts => self.list_parts(change, &name),
            Op::Head | Op::List | Op::Get => unreachable!("these read"),
        }
    }

    fn complete(&mut self, setup: &mut Setup, change: &Change<'_>, name: &(Vec<u8>, String)) -> Result<Done, Refusal> {
        let uploading = self.uploads.get(name).ok_or_else(no_upload)?;
        change.may_overwrite(setup)?;
        let body = std::str::from_utf8(&change.body).unwrap();
        let (mut whole, mut parts) = (Vec::new(), 0);
        for part in body.split("<Part>").skip(1) {
            let text = |tag: &str| part.split_once(&format!("<{tag}>")).unwrap().1.split_once("</").unwrap().0.replace("&quot;", "\"");
            let content = uploading.parts.get(&text("PartNumber").parse().unwrap()).filter(|content| etag(content) == text("ETag"));
            parts += 1;
            whole.extend_from_slice(content.ok_or((
                400,
                "InvalidPart",
                "One or more of the specified parts could not be found.".to_owned(),
            ))?);
        }
        let mut headers = uploading.headers.clone();
        // Of an upload it is said at its end.
        headers.extend(change.header("x-oss-object-acl").map(|acl| ("x-oss-object-acl".to_owned(), acl.to_owned())));
        self.uploads.remove(name);
        let (status, mut answer, body) = document(format!(
            "<CompleteMultipartUploadResult><ETag>{}</ETag></CompleteMultipartUploadResult>",
            multipart_tag(&whole, parts)
        ));
        answer.push((HeaderName::from_static("x-oss-hash-crc64ecma"), Polynomial::Ecma.of(&whole).to_string()));
        self.store(setup, &name.0, Facts { content: whole, headers, parts, ..Facts::default() });
        Ok((status, answer, body))
    }

    fn list_parts(&self, change: &Change<'_>, name: &(Vec<u8>, String)) -> Result<Done, Refusal> {
        let uploading = self.uploads.get(name).ok_or_else(no_upload)?;
        let after: u32 = change.parameter("part-number-marker").map_or(0, |marker| marker.parse().unwrap());
        let mut rest = uploading.parts.range(after + 1..);
        let mut body = String::from("<ListPartsResult>");
        let mut last = after;
        for (number, content) in rest.by_ref().take(MOST_UPLOADS) {
            let (tag, size) = (etag(content), content.len());
            body += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag><Size>{size}</Size></Part>");
            last = *number;
        }
        let more = rest.next().is_some();
        body += &format!("<IsTruncated>{more}</IsTruncated><NextPartNumberMarker>{last}</NextPartNumberMarker></ListPartsResult>");
        Ok(document(body))
    }

    fn list(&self, change: &Change<'_>) -> Done {
        assert_eq!(change.parameter("encoding-type"), Some("url"));
        let prefix = change.parameter("prefix").unwrap_or_default().as_bytes();
        let after =
            change.parameter("key-marker").map(|key| (key.as_bytes().to_vec(), change.parameter("upload-id-marker").unwrap().to_owned()));
        let mut rest =
            self.uploads.iter().filter(|(name, _)| name.0.starts_with(prefix) && after.as_ref().is_none_or(|after| *name > after));
        let page: Vec<_> = rest.by_ref().take(MOST_UPLOADS).collect();
        let encode = |key: &[u8]| percent_encode(key, NON_ALPHANUMERIC).to_string();
        let mut body = String::from("<ListMultipartUploadsResult><EncodingType>url</EncodingType>");
        for ((key, id), uploading) in &page {
            let initiated = iso(uploading.initiated);
            body += &format!("<Upload><Key>{}</Key><UploadId>{id}</UploadId><Initiated>{initiated}</Initiated></Upload>", encode(key));
        }
        body += &match (rest.next(), page.last()) {
            (Some(_), Some(((key, id), _))) => {
                let key = encode(key);
                format!("<IsTruncated>true</IsTruncated><NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>")
            }
            _ => "<IsTruncated>false</IsTruncated>".to_owned(),
        };
        document(body + "</ListMultipartUploadsResult>")
    }
}

/// `2012-02-24T06:07:48.000Z`: whole seconds, as OSS tells.
pub fn iso(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let stamp = reqsign_core::time::Timestamp::from_second(seconds.cast_signed()).unwrap();
    stamp.format_rfc3339_zulu().replace('Z', ".000Z")
}
