//! The small XML documents of uploads and copies: what is sent and what is read. Invariant: a document with an error in it is an
//! error, whatever the status of its answer was: stores say 200 before they begin to copy.

use serde::{Deserialize, Serialize};

use super::headers::in_base64;
use super::sdk_client::without_blanks;
use crate::store::{ETag, Part, PartChecksum};

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
        let outcome: Self = quick_xml::de::from_reader(without_blanks(body)).ok()?;
        outcome.code.is_none().then_some(outcome)
    }

    pub fn etag(&self) -> Option<ETag> {
        self.etag.as_deref().map(str::trim).filter(|tag| !tag.is_empty()).map(ETag::quoted)
    }
}

#[cfg(test)]
mod tests {
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
}
