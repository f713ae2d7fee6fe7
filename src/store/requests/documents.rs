//! The small XML documents of uploads and copies: what is sent and what is read. Invariant: a document with an error in it is an
//! error, whatever the status of its answer was: stores say 200 before they begin to copy.

use std::time::SystemTime;

use percent_encoding::percent_decode_str;
use reqsign_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::headers::in_base64;
use crate::store::{ETag, Key, Part, PartChecksum, PartsPage, Unfinished, UploadsPage};

#[derive(Serialize)]
#[serde(rename = "CompleteMultipartUpload")]
struct Completion<'a> {
    #[serde(rename = "Part")]
    parts: Vec<CompletedPart<'a>>,
}

#[derive(Serialize)]
struct CompletedPart<'a> {
    #[serde(rename = "PartNumber")]
    number: u32,
    #[serde(rename = "ETag")]
    etag: &'a str,
    #[serde(rename = "ChecksumCRC64NVME", skip_serializing_if = "Option::is_none")]
    crc64: Option<String>,
    #[serde(rename = "ChecksumCRC32C", skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
}

/// The body that ends an upload. Tags stand there without the mark of weak ones, which only answers through a proxy have. It names the sums that
/// the parts came with: MinIO and versitygw insist on them.
pub(super) fn completion(parts: &[Part], sums: Option<PartChecksum>) -> String {
    let crc64 = |part: &Part| part.crc64.filter(|_| sums == Some(PartChecksum::Crc64)).map(|crc| in_base64(crc.to_be_bytes()));
    let crc32c = |part: &Part| part.crc32c.filter(|_| sums == Some(PartChecksum::Crc32c)).map(|crc| in_base64(crc.to_be_bytes()));
    let parts = parts
        .iter()
        .map(|part| CompletedPart { number: part.number, etag: part.etag.opaque(), crc64: crc64(part), crc32c: crc32c(part) })
        .collect();
    quick_xml::se::to_string(&Completion { parts }).expect("numbers and text can be written as XML")
}

/// What the answers to create, complete, copy and copy part have between them, and an error has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Outcome {
    pub upload_id: Option<String>,
    #[serde(rename = "ETag")]
    etag: Option<String>,
    #[serde(rename = "ChecksumCRC64NVME")]
    pub crc64: Option<String>,
    /// Of an error.
    code: Option<String>,
}

impl Outcome {
    /// None when the body is no document, or an error.
    pub fn read(body: &[u8]) -> Option<Self> {
        let outcome: Self = quick_xml::de::from_reader(trimmed(body)).ok()?;
        outcome.code.is_none().then_some(outcome)
    }

    pub fn etag(&self) -> Option<ETag> {
        self.etag.as_deref().map(str::trim).filter(|tag| !tag.is_empty()).map(ETag::quoted)
    }
}

/// Blanks that kept the connection alive may stand before the document.
pub(super) fn trimmed(body: &[u8]) -> &[u8] {
    body.trim_ascii_start()
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Uploads {
    encoding_type: Option<String>,
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
    upload: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    key: String,
    upload_id: String,
    #[serde(default)]
    initiated: String,
}

/// The page of uploads that `body` is, or why it is none.
pub(super) fn uploads(body: &[u8]) -> Result<UploadsPage, String> {
    let page: Uploads = quick_xml::de::from_reader(trimmed(body)).map_err(|error| format!("the answer cannot be read: {error}"))?;
    let encoded = page.encoding_type.is_some_and(|encoding| encoding.eq_ignore_ascii_case("url"));
    let key = |text: &str| match encoded {
        // As in listings: a literal plus comes as %2B.
        true => Key::from(percent_decode_str(&text.replace('+', " ")).collect::<Vec<u8>>()),
        false => Key::from(text),
    };
    let date = |text: &str| match text.trim() {
        // Servers exist that leave it out; such an upload is as old as can be.
        "" => Ok(SystemTime::UNIX_EPOCH),
        text => {
            text.parse::<Timestamp>().map(Timestamp::as_system_time).map_err(|_| format!("an upload says \"{text}\" where a date belongs"))
        }
    };
    let mut uploads = Vec::with_capacity(page.upload.len());
    for Entry { key: name, upload_id, initiated } in page.upload {
        uploads.push(Unfinished { key: key(&name), id: upload_id, initiated: date(&initiated)? });
    }
    let next = match (page.is_truncated, page.next_key_marker) {
        (false, _) => None,
        (true, Some(marker)) => Some((key(&marker), page.next_upload_id_marker.unwrap_or_default())),
        (true, None) => return Err("the list of uploads is not complete and does not say how to go on".into()),
    };
    Ok(UploadsPage { uploads, next })
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Parts {
    is_truncated: bool,
    next_part_number_marker: Option<u32>,
    part: Vec<ListedPart>,
}

#[derive(Debug, Deserialize)]
struct ListedPart {
    #[serde(rename = "PartNumber")]
    number: u32,
    /// Servers exist that leave it out; such a part is none that anybody knows.
    #[serde(rename = "ETag", default)]
    etag: String,
    #[serde(rename = "Size")]
    size: u64,
}

/// The page of parts that `body` is, or why it is none.
pub(super) fn parts(body: &[u8]) -> Result<PartsPage, String> {
    let page: Parts = quick_xml::de::from_reader(trimmed(body)).map_err(|error| format!("the answer cannot be read: {error}"))?;
    let part =
        |part: ListedPart| Part { number: part.number, etag: ETag::quoted(part.etag.trim()), size: part.size, crc64: None, crc32c: None };
    let next = match (page.is_truncated, page.next_part_number_marker) {
        (false, _) => None,
        (true, Some(marker)) => Some(marker),
        (true, None) => return Err("the list of parts is not complete and does not say how to go on".into()),
    };
    Ok(PartsPage { parts: page.part.into_iter().map(part).collect(), next })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn parts_are_written_in_their_order_and_escaped() {
        let part = |number, etag: &str| Part { number, etag: etag.into(), size: 1, crc64: None, crc32c: None };
        let text = completion(&[part(1, "\"a\""), part(7, "<&>")], Some(PartChecksum::Crc64));
        let expected = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part>\
                        <Part><PartNumber>7</PartNumber><ETag>&lt;&amp;&gt;</ETag></Part></CompleteMultipartUpload>";
        assert_eq!(text, expected);
        let summed = [Part { crc64: Some(0xae8b_1486_0a79_9888), crc32c: Some(0xe306_9283), ..part(1, "a") }];
        let with = |sums| completion(&summed, sums);
        assert!(with(Some(PartChecksum::Crc64)).contains("</ETag><ChecksumCRC64NVME>rosUhgp5mIg=</ChecksumCRC64NVME></Part>"));
        assert!(with(Some(PartChecksum::Crc32c)).contains("</ETag><ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part>"));
        assert!(!with(None).contains("Checksum"));
    }

    #[test]
    fn an_error_that_came_with_success_is_no_outcome() {
        let copied = b"  \n\n<?xml version=\"1.0\"?>\n   <CopyObjectResult xmlns=\"x\"><LastModified>y</LastModified><ETag>&quot;e&quot;</ETag></CopyObjectResult>";
        assert_eq!(Outcome::read(copied).unwrap().etag(), Some("\"e\"".into()));
        let created =
            b"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>id</UploadId></InitiateMultipartUploadResult>";
        assert_eq!(Outcome::read(created).unwrap().upload_id.as_deref(), Some("id"));
        assert!(Outcome::read(b"<?xml version=\"1.0\"?>\n <Error><Code>InternalError</Code></Error>").is_none());
        assert!(Outcome::read(b"<html>").is_none() && Outcome::read(b"").is_none());
    }

    #[test]
    fn uploads_are_read_with_keys_and_dates_of_both_dialects() {
        let upload = |key: &str| {
            format!(
                "<Upload><Key>{key}</Key><UploadId>i</UploadId><Initiated>2024-02-29T00:00:01.000Z</Initiated><Owner><ID>o</ID></Owner></Upload>"
            )
        };
        let initiated = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_164_801);
        let plain = format!(
            "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{}{}</ListMultipartUploadsResult>",
            upload("a+b&amp;"),
            upload("c")
        );
        let page = uploads(plain.as_bytes()).unwrap();
        assert_eq!(page.uploads[0], Unfinished { key: "a+b&".into(), id: "i".into(), initiated });
        assert_eq!((page.uploads.len(), page.next), (2, None));
        let encoded = format!(
            "<ListMultipartUploadsResult><EncodingType>url</EncodingType>{}<IsTruncated>true</IsTruncated><NextKeyMarker>a%2Bb</NextKeyMarker>\
             <NextUploadIdMarker>i</NextUploadIdMarker></ListMultipartUploadsResult>",
            upload("a%2Bb%20")
        );
        let page = uploads(encoded.as_bytes()).unwrap();
        assert_eq!((page.uploads[0].key.clone(), page.next), ("a+b ".into(), Some(("a+b".into(), "i".into()))));
        assert!(uploads(b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated></ListMultipartUploadsResult>").is_err());
        assert_eq!(uploads(b"<ListMultipartUploadsResult/>").unwrap().uploads, []);
    }

    #[test]
    fn parts_are_read_up_to_the_marker_of_the_next_page() {
        let body = b"<?xml version=\"1.0\"?>\n<ListPartsResult><UploadId>i</UploadId><PartNumberMarker>0</PartNumberMarker>\
            <NextPartNumberMarker>7</NextPartNumberMarker><MaxParts>2</MaxParts><IsTruncated>true</IsTruncated>\
            <Part><PartNumber>1</PartNumber><LastModified>x</LastModified><ETag>&quot;a&quot;</ETag><Size>5</Size></Part>\
            <Part><ETag>b</ETag><Size>6</Size><PartNumber>7</PartNumber></Part></ListPartsResult>";
        let part = |number, etag: &str, size| Part { number, etag: etag.into(), size, crc64: None, crc32c: None };
        let page = parts(body).unwrap();
        assert_eq!((page.parts, page.next), (vec![part(1, "\"a\"", 5), part(7, "\"b\"", 6)], Some(7)));
        assert_eq!(parts(b"<ListPartsResult/>").unwrap().next, None);
        assert!(parts(b"<ListPartsResult><IsTruncated>true</IsTruncated></ListPartsResult>").is_err());
    }
}
