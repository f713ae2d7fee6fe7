//! What is known of the stores that speak S3: one line for each provider, with the source of each fact. Pure. Invariant: what a line leaves at
//! [`Quirks::LEARNED`] is found out from answers, as for a store without `--provider`.

use super::Dialect;
use super::endpoint::Endpoint;

/// Whether a store supports a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Support {
    /// Used until the store refuses it.
    #[default]
    Learned,
    /// Always used: a refusal comes from a proxy, or from one server of a cluster, and is an error.
    Yes,
    /// Never used, because the store refuses it, or ignores it without a word.
    No,
}

/// How a store differs from what is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// `endpoint/bucket/key` instead of `bucket.endpoint/key`, where the options do not say. None: as the endpoint suggests.
    pub path_style: Option<bool>,
    /// The region that requests are signed for, where neither options nor environment name one.
    pub region: Option<&'static str>,
    /// Whether names of buckets may have dots.
    pub dotted_buckets: bool,
    /// Whether `x-amz-checksum-crc64nvme` is sent with bodies under [`UploadChecksum::Auto`](super::UploadChecksum::Auto).
    pub crc64nvme: bool,
    /// `If-None-Match` and `If-Match` of PutObject and CompleteMultipartUpload.
    pub conditional_writes: Support,
    /// `If-Match` of DeleteObject.
    pub conditional_deletes: Support,
    /// `x-amz-copy-source-if-match` of UploadPartCopy. Where it is not supported the version of the source is read after each part.
    pub conditional_part_copies: bool,
    /// Whether objects have access lists of their own.
    pub object_acls: bool,
    /// Whether objects have tags.
    pub object_tags: bool,
    /// All parts of an upload but the last must have one size.
    pub equal_parts: bool,
    /// Whether Content-MD5 is sent where no other checksum is.
    pub content_md5: bool,
    /// Whether objects and uploads are listed in the order of their keys, for prefixes of any kind.
    pub ordered_listings: bool,
    /// Whether RenameObject moves an object to another key.
    pub renames: bool,
}

impl Quirks {
    /// Of a store of which nothing is known.
    pub const LEARNED: Self = Self {
        path_style: None,
        region: None,
        dotted_buckets: true,
        crc64nvme: true,
        conditional_writes: Support::Learned,
        conditional_deletes: Support::Learned,
        conditional_part_copies: true,
        object_acls: true,
        object_tags: true,
        equal_parts: false,
        content_md5: true,
        ordered_listings: true,
        renames: false,
    };

    /// The same store's quirks in a directory bucket of S3 Express One Zone:
    /// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-differences.html>
    pub(super) fn of_directory_bucket(self) -> Self {
        Self { object_acls: false, object_tags: false, content_md5: false, ordered_listings: false, renames: true, ..self }
    }

    /// The quirks of the provider `name` ([`AUTO`], or one of [`PROVIDERS`]). With [`AUTO`] a well-known host of the endpoint names the provider.
    ///
    /// # Errors
    /// Why the provider does not go with the protocol or the endpoint.
    pub fn of(name: &str, dialect: Dialect, endpoint: Option<&str>) -> Result<Self, String> {
        match (dialect, PROVIDERS.iter().find(|provider| provider.name == name)) {
            (Dialect::Oss, None) => Ok(Self::LEARNED),
            // The line is about the endpoint of OSS that speaks S3.
            (Dialect::Oss, Some(provider)) if provider.name == OSS => Ok(Self::LEARNED),
            (Dialect::Oss, Some(_)) => {
                Err(format!("does not go with oss://, which is the protocol of OSS alone: write s3://BUCKET for {name}"))
            }
            (Dialect::S3, Some(provider)) if endpoint.is_none() && provider.name != AWS => {
                Err(format!("needs the address of the store: add --endpoint, without which s3:// is {AWS}"))
            }
            (Dialect::S3, Some(provider)) => Ok(provider.quirks),
            (Dialect::S3, None) => Ok(recognised(endpoint).map_or(Self::LEARNED, |provider| provider.quirks)),
        }
    }
}

impl Default for Quirks {
    fn default() -> Self {
        Self::LEARNED
    }
}

/// A store that many people use.
#[derive(Debug)]
pub struct Provider {
    /// The value of `--provider`.
    pub name: &'static str,
    /// Domains that its endpoints are in.
    pub domains: &'static [&'static str],
    /// How it differs.
    pub quirks: Quirks,
}

/// In place of a provider's name: to be found out.
pub const AUTO: &str = "auto";

const AWS: &str = "aws";
const OSS: &str = "oss";

/// The providers that are known by name.
pub static PROVIDERS: &[Provider] = &[
    Provider {
        name: AWS,
        domains: &["amazonaws.com", "amazonaws.com.cn"],
        quirks: Quirks {
            // https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html
            conditional_writes: Support::Yes,
            conditional_deletes: Support::Yes,
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: OSS,
        domains: &["aliyuncs.com"],
        quirks: Quirks {
            // https://www.alibabacloud.com/help/en/oss/developer-reference/compatibility-with-amazon-s3
            path_style: Some(false),
            // https://www.alibabacloud.com/help/en/oss/user-guide/bucket-naming-conventions
            dotted_buckets: false,
            // The headers of requests have no condition but x-oss-forbid-overwrite:
            // https://www.alibabacloud.com/help/en/oss/developer-reference/putobject
            conditional_writes: Support::No,
            // https://www.alibabacloud.com/help/en/oss/developer-reference/deleteobject
            conditional_deletes: Support::No,
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "minio",
        domains: &[],
        quirks: Quirks {
            // Without MINIO_DOMAIN it knows no other: https://github.com/minio/minio/pull/5705
            path_style: Some(true),
            // Tried with its community edition: docs/servers.md
            conditional_deletes: Support::No,
            // https://docs.min.io/enterprise/aistor-object-store/developers/s3-api-compatibility
            object_acls: false,
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "r2",
        domains: &["r2.cloudflarestorage.com"],
        quirks: Quirks {
            // https://github.com/rclone/rclone/blob/master/backend/s3/provider/Cloudflare.yaml
            path_style: Some(true),
            // https://developers.cloudflare.com/r2/api/s3/api/
            region: Some("auto"),
            object_acls: false,
            object_tags: false,
            // Of PutObject and CompleteMultipartUpload, and not of DeleteObject: https://developers.cloudflare.com/r2/api/s3/conditional-operations/
            conditional_writes: Support::Yes,
            conditional_deletes: Support::No,
            // UploadPartCopy is there without its conditions: https://developers.cloudflare.com/r2/api/s3/api/
            conditional_part_copies: false,
            // https://developers.cloudflare.com/r2/objects/multipart-objects/
            equal_parts: true,
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "b2",
        domains: &["backblazeb2.com"],
        quirks: Quirks {
            // https://rdrr.io/cran/backblazer/man/b2CreateBucket.html, after the vendor's b2_create_bucket
            dotted_buckets: false,
            // https://github.com/sathinduga/obsidian-s3-sync-and-backup/issues/78
            conditional_writes: Support::No,
            // An object has that of its bucket: https://www.backblaze.com/docs/cloud-storage-s3-compatible-api
            object_acls: false,
            // https://www.backblaze.com/apidocs/s3-copy-object
            object_tags: false,
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "gcs",
        domains: &["storage.googleapis.com"],
        quirks: Quirks {
            // It has none of the x-amz-checksum headers: https://cloud.google.com/storage/docs/xml-api/reference-headers
            crc64nvme: false,
            // If-Match and If-None-Match are for requests that retrieve data: https://cloud.google.com/storage/docs/request-preconditions
            conditional_writes: Support::No,
            conditional_deletes: Support::No,
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "ceph",
        domains: &[],
        quirks: Quirks {
            // Others have to be set up: https://docs.ceph.com/en/latest/radosgw/s3/commons/
            path_style: Some(true),
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "wasabi",
        domains: &["wasabisys.com"],
        quirks: Quirks {
            // Recommended: https://docs.wasabi.com/docs/rest-api-introduction
            path_style: Some(true),
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "cos",
        domains: &["myqcloud.com"],
        quirks: Quirks {
            // https://www.tencentcloud.com/document/product/436/57456
            path_style: Some(false),
            // https://www.tencentcloud.com/document/product/436/13312
            dotted_buckets: false,
            // https://github.com/rclone/rclone/blob/master/backend/s3/provider/TencentCOS.yaml (use_data_integrity_protections)
            crc64nvme: false,
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "obs",
        domains: &["myhuaweicloud.com"],
        quirks: Quirks {
            // https://support.huaweicloud.com/intl/en-us/api-obs/obs_04_0007.html
            path_style: Some(false),
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "tos",
        domains: &["volces.com", "ivolces.com"],
        quirks: Quirks {
            // https://www.volcengine.com/docs/6349/651319
            path_style: Some(false),
            // https://www.volcengine.com/docs/6349/107405
            dotted_buckets: false,
            ..Quirks::LEARNED
        },
    },
    Provider {
        name: "versitygw",
        domains: &[],
        quirks: Quirks {
            // Others take --virtual-domain: https://github.com/versity/versitygw/blob/main/cmd/versitygw/main.go
            path_style: Some(true),
            ..Quirks::LEARNED
        },
    },
];

/// The provider that an endpoint belongs to; none is AWS.
fn recognised(endpoint: Option<&str>) -> Option<&'static Provider> {
    let Some(text) = endpoint else { return PROVIDERS.iter().find(|provider| provider.name == AWS) };
    let endpoint = Endpoint::parse(text).ok()?;
    let host = endpoint.url().host_str()?.trim_end_matches('.');
    let is_in = |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    PROVIDERS.iter().find(|provider| provider.domains.iter().any(|domain| is_in(domain)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quirks(name: &str) -> Quirks {
        PROVIDERS.iter().find(|provider| provider.name == name).unwrap().quirks
    }

    #[test]
    fn auto_recognises_well_known_hosts_and_learns_the_rest() {
        for (endpoint, name) in [
            (None, "aws"),
            (Some("https://s3.eu-west-1.amazonaws.com"), "aws"),
            (Some("https://s3.cn-north-1.amazonaws.com.cn"), "aws"),
            (Some("https://s3.oss-cn-hangzhou.aliyuncs.com"), "oss"),
            (Some("https://0123abcd.r2.cloudflarestorage.com"), "r2"),
            (Some("https://0123abcd.eu.R2.cloudflarestorage.com:443/"), "r2"),
            (Some("s3.us-west-001.backblazeb2.com"), "b2"),
            (Some("https://storage.googleapis.com"), "gcs"),
            (Some("https://s3.eu-central-1.wasabisys.com"), "wasabi"),
            (Some("https://cos.ap-beijing.myqcloud.com"), "cos"),
            (Some("https://obs.cn-north-4.myhuaweicloud.com"), "obs"),
            (Some("https://tos-s3-cn-beijing.volces.com"), "tos"),
        ] {
            assert_eq!(Quirks::of(AUTO, Dialect::S3, endpoint), Ok(quirks(name)), "{endpoint:?}");
        }
        for endpoint in
            ["http://127.0.0.1:9000", "https://minio.example.com", "https://notwasabisys.com", "https://wasabisys.com.example.org"]
        {
            assert_eq!(Quirks::of(AUTO, Dialect::S3, Some(endpoint)), Ok(Quirks::LEARNED), "{endpoint}");
        }
    }

    #[test]
    fn a_name_wins_over_the_host_and_must_go_with_the_scheme() {
        assert_eq!(Quirks::of("minio", Dialect::S3, Some("https://s3.wasabisys.com")), Ok(quirks("minio")));
        assert_eq!(Quirks::of("aws", Dialect::S3, None), Ok(quirks("aws")));
        // With oss:// all is known: it has its own code.
        for name in [AUTO, "oss"] {
            assert_eq!(Quirks::of(name, Dialect::Oss, Some("https://oss-cn-hangzhou.aliyuncs.com")), Ok(Quirks::LEARNED), "{name}");
        }
        assert!(Quirks::of("minio", Dialect::Oss, None).unwrap_err().contains("s3://BUCKET"));
        assert!(Quirks::of("r2", Dialect::S3, None).unwrap_err().contains("--endpoint"));
    }

    #[test]
    fn each_provider_differs_from_a_store_of_which_nothing_is_known() {
        for provider in PROVIDERS {
            assert_ne!(provider.quirks, Quirks::LEARNED, "{}", provider.name);
        }
    }
}
