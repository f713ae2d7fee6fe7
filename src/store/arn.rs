//! Amazon Resource Names in the place of a bucket's name: access points and what is reached through them. Pure. It finds out which text is one and
//! where it ends; which host it has, and what it cannot be combined with, the vendor's endpoint rules say (see `s3::address`).

/// The parts of an ARN, `arn:PARTITION:SERVICE:REGION:ACCOUNT:RESOURCE`.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-points-alias.html>
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arn<'a> {
    service: &'a str,
    /// Empty for Multi-Region Access Points.
    region: &'a str,
    account: &'a str,
    resource: &'a str,
}

impl<'a> Arn<'a> {
    /// Parses `text`; none for what is no ARN.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let fields: Vec<&str> = text.splitn(6, ':').collect();
        let ["arn", _, service, region, account, resource] = fields[..] else { return None };
        Some(Self { service, region, account, resource })
    }

    /// Returns the region, where it names one.
    #[must_use]
    pub fn region(&self) -> Option<&'a str> {
        Some(self.region).filter(|region| !region.is_empty())
    }

    /// Whether it names what takes the place of a bucket: an access point, one of Object Lambda or of Outposts.
    #[must_use]
    pub fn is_access_point(&self) -> bool {
        let mut words = self.resource.split(['/', ':']);
        let (kind, name) = (words.next(), words.next());
        let is_known = match self.service {
            "s3" | "s3-object-lambda" => kind == Some("accesspoint"),
            "s3-outposts" => kind == Some("outpost"),
            _ => false,
        };
        is_known && !self.account.is_empty() && name.is_some_and(|name| !name.is_empty())
    }

    /// Whether it is reached through an Outpost, whose buckets are no general purpose buckets.
    #[must_use]
    pub fn is_of_outposts(&self) -> bool {
        self.service == "s3-outposts"
    }

    /// Returns the bucket, where it is the ARN of one.
    #[must_use]
    pub fn bucket(&self) -> Option<&'a str> {
        (self.service == "s3" && self.region.is_empty() && self.account.is_empty()).then_some(self.resource)
    }

    /// Returns the part of the resource that stands in the ARN of an object: that of Outposts leaves the access point out.
    /// <https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html> (x-amz-copy-source)
    fn without_access_point(&self) -> &'a str {
        match self.service {
            "s3-outposts" => {
                let end = self.resource.match_indices(['/', ':']).nth(1).map_or(self.resource.len(), |(at, _)| at);
                &self.resource[..end]
            }
            _ => self.resource,
        }
    }
}

/// Returns the number of bytes of the ARN that `text` begins with, where a slash and a key may follow: `arn:aws:s3:eu-west-1:123456789012:accesspoint/name`
/// of that and `/dir/file`. None for text that does not begin with one.
#[must_use]
pub fn arn_len(text: &[u8]) -> Option<usize> {
    let mut colons = text.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
    let (arn, partition, resource) = (colons.next()?, colons.next()?, colons.nth(2)? + 1);
    if &text[..arn] != b"arn" {
        return None;
    }
    // `accesspoint/NAME`, and in `outpost/ID/accesspoint/NAME` of the service s3-outposts.
    let names = if text[partition + 1..].starts_with(b"s3-outposts:") { 4 } else { 2 };
    let mut ends = text[resource..].iter().enumerate().filter(|(_, byte)| matches!(byte, b'/' | b':')).map(|(at, _)| resource + at);
    Some(ends.nth(names - 1).unwrap_or(text.len()))
}

/// Returns how the source of a copy is named: the bucket, or of an ARN that of the object, up to the slash before the key.
pub(super) fn copy_source(bucket: &str) -> String {
    match Arn::parse(bucket) {
        Some(arn) => format!("{}{}/object", &bucket[..bucket.len() - arn.resource.len()], arn.without_access_point()),
        None => format!("/{bucket}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS_POINT: &str = "arn:aws:s3:us-west-2:123456789012:accesspoint/test";
    const MULTI_REGION: &str = "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap";
    const OBJECT_LAMBDA: &str = "arn:aws:s3-object-lambda:us-east-1:123456789012:accesspoint/lambda";
    const OUTPOST: &str = "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-01ac5d28a6a232904/accesspoint/reports";

    #[test]
    fn an_arn_ends_where_the_key_begins() {
        for arn in [ACCESS_POINT, MULTI_REGION, OBJECT_LAMBDA, OUTPOST, "arn:aws:s3:us-west-2:123456789012:accesspoint:test"] {
            for key in ["", "/", "/dir/file", "//a:b"] {
                assert_eq!(arn_len(format!("{arn}{key}").as_bytes()), Some(arn.len()), "{arn}{key}");
            }
            assert!(Arn::parse(arn).unwrap().is_access_point(), "{arn}");
        }
        for other in ["data", "data:/a:b:c:d:e", "arn", "arn:aws:s3", "arn:aws:s3:us-west-2"] {
            assert_eq!(arn_len(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn buckets_and_other_resources_are_no_access_points() {
        for text in [
            "arn:aws:s3:::data",
            "arn:aws:s3:::data/dir",
            "arn:aws:s3:us-west-2::accesspoint/test",
            "arn:aws:s3:us-west-2:123456789012:accesspoint/",
            "arn:aws:s3:us-west-2:123456789012:accesspoint",
            "arn:aws:sqs:us-west-2:123456789012:accesspoint/test",
        ] {
            assert!(!Arn::parse(text).unwrap().is_access_point(), "{text}");
        }
    }

    #[test]
    fn a_copy_names_its_source_by_the_arn_of_the_object() {
        for (bucket, source) in [
            ("data", "/data"),
            (ACCESS_POINT, "arn:aws:s3:us-west-2:123456789012:accesspoint/test/object"),
            (OUTPOST, "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-01ac5d28a6a232904/object"),
        ] {
            assert_eq!(copy_source(bucket), source);
        }
    }
}
