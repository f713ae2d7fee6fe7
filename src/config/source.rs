//! What is mounted: a bucket, a prefix in it, and the protocol its store speaks. Asks no network; a name that could
//! be a bucket is one. Invariant: the prefix is empty or ends in `/` and does not begin with one.

use std::fmt;

use super::Error;
use super::program::Program;
use crate::store::{Arn, Dialect, arn_len};

/// A bucket, a prefix of one, or the buckets of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub dialect: Dialect,
    /// Empty: the buckets of the account.
    pub bucket: String,
    /// Empty, or ending in `/`.
    pub prefix: String,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.dialect {
            Dialect::S3 => "s3",
            Dialect::Oss => "oss",
        };
        write!(f, "{scheme}://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix.trim_end_matches('/')) }
    }
}

impl Source {
    /// Whether it names no bucket, and so stands for those of the account.
    pub fn is_account(&self) -> bool {
        self.bucket.is_empty()
    }

    /// Reads SOURCE. Without a scheme the endpoint, then the program's name, tell the dialect.
    ///
    /// # Errors
    /// When the text names no bucket, or nothing says which protocol its store speaks.
    pub fn parse(text: &str, endpoint: Option<&str>, program: Program) -> Result<Self, Error> {
        check_words(text)?;
        let (dialect, bucket, prefix) = if let Some((scheme, rest)) = text.split_once("://") {
            let dialect = match scheme {
                "s3" => Dialect::S3,
                "oss" => Dialect::Oss,
                _ => return Err(bad(text, format!("the scheme {scheme}:// is unknown: write s3://bucket or oss://bucket"))),
            };
            let (bucket, prefix) = rest.split_at(bucket_len(rest.as_bytes()));
            (dialect, bucket, prefix)
        } else if let Some(end) = arn_len(text.as_bytes()) {
            let (bucket, prefix) = text.split_at(end);
            (Dialect::S3, bucket, prefix.strip_prefix(':').unwrap_or(prefix))
        } else {
            let (bucket, prefix) = text.split_once(':').unwrap_or((text, ""));
            (guess(text, endpoint, program)?, bucket, prefix)
        };
        if program == Program::Native && text == "s3://" {
            return Ok(Self { dialect, bucket: String::new(), prefix: String::new() });
        }
        if text == "oss://" {
            return Err(bad(text, "the buckets of an account are mounted together for s3:// only: write oss://BUCKET".into()));
        }
        if let Some(arn) = Arn::parse(bucket) {
            check_arn(text, bucket, arn, dialect)?;
        } else {
            check_bucket(text, bucket)?;
        }
        let prefix = prefix.trim_start_matches('/');
        let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        Ok(Self { dialect, bucket: bucket.to_owned(), prefix: format!("{prefix}{slash}") })
    }
}

fn guess(text: &str, endpoint: Option<&str>, program: Program) -> Result<Dialect, Error> {
    let host = endpoint.map(host_of);
    if program.is_for_s3() {
        Ok(Dialect::S3)
    } else if host.is_some_and(|host| host.ends_with(".aliyuncs.com")) || program.is_for_oss() {
        Ok(Dialect::Oss)
    } else if host.is_some() {
        Ok(Dialect::S3)
    } else {
        let plain = text.replacen(":/", "/", 1).replacen(':', "/", 1);
        let plain = plain.trim_end_matches('/');
        Err(bad(text, format!("which store? Write s3://{plain} or oss://{plain}, or add --endpoint")))
    }
}

/// Returns the number of bytes that name the bucket, of a source behind its scheme: all before the key and its slash.
pub fn bucket_len(rest: &[u8]) -> usize {
    arn_len(rest).or_else(|| rest.iter().position(|&byte| byte == b'/')).unwrap_or(rest.len())
}

/// Refuses what looks like a source and is read as another one: credentials in front of the bucket, and the mount
/// point in its place.
fn check_words(text: &str) -> Result<(), Error> {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    // Neither in a bucket's name nor, behind it, in front of the first slash.
    if let Some((_, bucket)) = rest.split('/').next().unwrap_or_default().rsplit_once('@') {
        let colon = if scheme.is_empty() { "" } else { "://" };
        let reason = "must not carry credentials: use --passwd-file, --profile or the environment".to_owned();
        return Err(bad(&format!("{scheme}{colon}********@{bucket}"), reason));
    }
    if scheme.is_empty() && rest.starts_with(['/', '.']) {
        let reason =
            "is a path where s3://BUCKET or oss://BUCKET is expected: it is missing, or the arguments are in the wrong order".to_owned();
        return Err(bad(text, reason));
    }
    if scheme.is_empty() && rest.contains('/') && !rest.contains(':') {
        return Err(bad(text, format!("has no scheme: write s3://{rest} or oss://{rest}")));
    }
    if rest.starts_with("arn:") && arn_len(rest.as_bytes()).is_none() {
        return Err(bad(text, format!("is not a whole ARN: {ARN_FIX}")));
    }
    Ok(())
}

/// How to write what takes the place of a bucket.
const ARN_FIX: &str = "write s3://BUCKET or arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME";

/// Of ARNs only those of access points can take the place of a bucket; that of a bucket says less than its name.
fn check_arn(text: &str, bucket: &str, arn: Arn<'_>, dialect: Dialect) -> Result<(), Error> {
    if dialect == Dialect::Oss {
        return Err(bad(text, format!("is an ARN, which OSS does not have: write s3://{bucket}")));
    }
    if arn.is_access_point() {
        return Ok(());
    }
    Err(bad(
        text,
        match arn.bucket() {
            Some(_) => format!("is an ARN of a bucket: write s3://{}", text.rsplit(":::").next().unwrap_or_default()),
            None => format!("names no access point: {ARN_FIX}"),
        },
    ))
}

/// Names that S3, OSS and the servers that speak their protocols agree on, a little wider than any one of them.
fn check_bucket(text: &str, bucket: &str) -> Result<(), Error> {
    if is_bucket(bucket) {
        return Ok(());
    }
    Err(bad(
        text,
        format!("\"{bucket}\" is not a bucket name: 3 to 63 letters, digits, dots and hyphens, beginning with a letter or digit"),
    ))
}

/// See [`check_bucket`].
pub(super) fn is_bucket(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (3..=63).contains(&name.len()) && name.chars().all(good) && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn bad(text: &str, reason: String) -> Error {
    Error::Source { text: text.to_owned(), reason }
}

fn host_of(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    authority.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())).map_or(authority, |(host, _)| host)
}

/// An endpoint as a URL: with a scheme, without a trailing slash and without the bucket.
///
/// # Errors
/// When it is no http or https address, or carries what does not belong there.
pub fn endpoint(text: &str, bucket: &str) -> Result<String, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let rest = rest.ok_or("must begin with http:// or https://")?;
    let authority = rest.split('/').next().unwrap_or(rest);
    if authority.contains('@') {
        return Err("must not carry a user name or a password: use --passwd-file, --profile or the environment".into());
    }
    if host_of(&url).is_empty() || url.contains(|c: char| c.is_whitespace() || matches!(c, '?' | '#' | '"' | '\\')) {
        return Err("is not the address of a store, for example https://oss-cn-hangzhou.aliyuncs.com or http://127.0.0.1:9000".into());
    }
    let hosted = authority.strip_prefix(bucket).and_then(|rest| rest.strip_prefix('.'));
    if let Some(plain) = hosted.filter(|rest| rest.contains("aliyuncs.com") || rest.contains("amazonaws.com")) {
        return Err(format!("names the bucket, which belongs into SOURCE: write {plain}"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS_POINT: &str = "arn:aws:s3:us-west-2:123456789012:accesspoint/test";

    fn parsed(text: &str, endpoint: Option<&str>, program: Program) -> String {
        Source::parse(text, endpoint, program).map_or_else(|e| e.to_string(), |s| format!("{s} [{}]", s.prefix))
    }

    #[test]
    fn every_spelling_of_a_source_is_understood() {
        let oss = Some("https://oss-cn-hangzhou.aliyuncs.com");
        for (text, endpoint, program, expected) in [
            ("s3://data", None, Program::Native, "s3://data []"),
            ("s3://", None, Program::Native, "s3:// []"),
            ("s3://data/a/b", None, Program::Native, "s3://data/a/b [a/b/]"),
            ("oss://data/a/", None, Program::Native, "oss://data/a [a/]"),
            ("data", oss, Program::Native, "oss://data []"),
            ("data:/a", oss, Program::Native, "oss://data/a [a/]"),
            ("data:/", Some("http://127.0.0.1:9000"), Program::Native, "s3://data []"),
            ("s3://data", oss, Program::Ossfs, "s3://data []"),
            ("data:/a/b/", Some("http://10.0.0.1"), Program::Ossfs, "oss://data/a/b [a/b/]"),
            (ACCESS_POINT, None, Program::Native, "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/test []"),
            (
                &format!("s3://{ACCESS_POINT}/a/b"),
                None,
                Program::Native,
                "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/test/a/b [a/b/]",
            ),
            (&format!("{ACCESS_POINT}:/a/"), oss, Program::Ossfs, "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/test/a [a/]"),
        ] {
            assert_eq!(parsed(text, endpoint, program), expected);
        }
    }

    #[test]
    fn what_is_no_source_says_how_to_write_one() {
        for (text, fix) in [
            ("data", "s3://data or oss://data"),
            ("gs://data", "s3://bucket or oss://bucket"),
            ("oss://", "write oss://BUCKET"),
            ("s3:///prefix", "3 to 63"),
            ("s3://no spaces", "3 to 63"),
            ("oss:///prefix", "3 to 63"),
            ("arn:aws:s3:::data/dir", "write s3://data/dir"),
            ("s3://arn:aws:s3:::data", "write s3://data"),
            ("arn:aws:sqs:eu-west-1:123456789012:queue", "names no access point"),
            (&format!("oss://{ACCESS_POINT}"), &format!("write s3://{ACCESS_POINT}")),
            ("s3://arn:aws:s3", "is not a whole ARN"),
            ("arn:aws:s3", "is not a whole ARN"),
            ("/mnt/data", "in the wrong order"),
            ("./data", "in the wrong order"),
            ("data/dir", "write s3://data/dir or oss://data/dir"),
            ("remote:data/dir", "Write s3://remote/data/dir"),
        ] {
            let error = parsed(text, None, Program::Native);
            assert!(error.contains(fix), "{text}: {error}");
        }
    }

    #[test]
    fn credentials_in_a_source_are_refused_and_not_repeated() {
        for text in ["s3://AKID:hunter2@data/dir", "hunter2@data", "AKID:hunter2@data:/dir", "oss://AKID:hunt@hunter2@data"] {
            let error = parsed(text, Some("http://127.0.0.1:9000"), Program::Native);
            assert!(error.contains("--passwd-file") && error.contains("@data"), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("AKID"), "{error}");
        }
        assert_eq!(parsed("s3://data/a@b", None, Program::Native), "s3://data/a@b [a@b/]");
    }

    #[test]
    fn endpoints_become_urls_and_say_what_does_not_belong_there() {
        for (text, url) in [
            ("oss-cn-hangzhou.aliyuncs.com", "https://oss-cn-hangzhou.aliyuncs.com"),
            ("http://127.0.0.1:9000/", "http://127.0.0.1:9000"),
            ("http://worker:39999/api/v1/s3", "http://worker:39999/api/v1/s3"),
            ("http://[::1]:9000", "http://[::1]:9000"),
        ] {
            assert_eq!(endpoint(text, "data").as_deref(), Ok(url));
        }
        for (text, fix) in [
            ("ftp://x", "http://"),
            ("https://", "is not the address"),
            ("https://user:secret@host", "--passwd-file"),
            ("https://data.oss-cn-hangzhou.aliyuncs.com", "write oss-cn-hangzhou.aliyuncs.com"),
            ("https://host?x=1", "is not the address"),
        ] {
            let error = endpoint(text, "data").unwrap_err();
            assert!(error.contains(fix) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
