//! Where a bucket is: under the endpoint of the options, or at the address that AWS has for its region. Pure. Invariant: a bucket of
//! AWS is where the vendor's own SDK looks for it, and a region is one label of a host name and nothing more.

use crate::store::endpoint::{self, Endpoint};

/// What ends the host names of a partition of AWS, by the beginning of its regions. All others are of the first partition.
const PARTITIONS: [(&str, &str); 6] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-iso-", "c2s.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
];

/// Why there is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    #[error("\"{0}\" is not a region: set --region to the region of the bucket, for example us-east-1")]
    Region(String),
}

/// URL of `bucket` without a slash at its end: `http://host/bucket`, or `https://bucket.host`.
pub(super) fn of_bucket(bucket: &str, region: &str, endpoint: Option<&Endpoint>, path_style: bool) -> Result<String, AddressError> {
    let (scheme, authority, path) = match endpoint {
        Some(endpoint) => {
            let url = endpoint.url();
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            let authority = format!("{}{port}", url.host_str().unwrap_or_default());
            (url.scheme(), authority, url.path().trim_end_matches('/'))
        }
        None if !is_label(region) => return Err(AddressError::Region(region.to_owned())),
        None => ("https", format!("s3.{region}.{}", suffix(region)), ""),
    };
    let in_path = path_style || endpoint.is_some_and(|endpoint| endpoint::is_numeric(endpoint.url())) || !is_host(bucket, scheme);
    Ok(if in_path { format!("{scheme}://{authority}{path}/{bucket}") } else { format!("{scheme}://{bucket}.{authority}{path}") })
}

fn suffix(region: &str) -> &'static str {
    PARTITIONS.iter().find(|(start, _)| region.starts_with(start)).map_or("amazonaws.com", |(_, suffix)| suffix)
}

/// Whether the bucket may stand before the host. With dots in it no certificate for `*.host` is valid for it.
fn is_host(bucket: &str, scheme: &str) -> bool {
    match scheme {
        "http" => !bucket.contains(".-") && !bucket.contains("-."),
        _ => !bucket.contains('.'),
    }
}

/// Letters, digits and hyphens: the region is a part of the host name, and whatever else it holds would lead to another host.
fn is_label(region: &str) -> bool {
    let plain = region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    plain && (1..=63).contains(&region.len()) && !region.starts_with('-')
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::config::endpoint::{DefaultResolver, Params, ResolveEndpoint};

    use super::*;

    /// What the SDK says.
    async fn theirs(bucket: &str, region: &str, endpoint: Option<&Endpoint>, path_style: bool) -> Option<String> {
        let params = Params::builder()
            .bucket(bucket)
            .region(region)
            .force_path_style(path_style)
            .set_endpoint(endpoint.map(|endpoint| endpoint.url().as_str().to_owned()));
        let resolved = DefaultResolver::new().resolve_endpoint(&params.build().unwrap()).await;
        resolved.ok().map(|found| found.url().trim_end_matches('/').to_owned())
    }

    #[tokio::test]
    async fn a_bucket_is_where_the_vendors_sdk_looks_for_it() {
        let regions = [
            "us-east-1",
            "us-west-2",
            "eu-west-1",
            "ap-southeast-5",
            "us-gov-west-1",
            "cn-north-1",
            "cn-northwest-1",
            "eusc-de-east-1",
            "us-iso-east-1",
            "us-isob-east-1",
            "us-isof-south-1",
            "eu-isoe-west-1",
            "mars-1",
        ];
        let endpoints = [
            None,
            Some("127.0.0.1:9000"),
            Some("[::1]:9000"),
            Some("localhost:9000"),
            Some("https://s3.example.com"),
            Some("http://s3.example.com:8080"),
        ];
        let buckets = ["data", "a-b-c", "with.dots", "with.-both"];
        for region in regions {
            for endpoint in endpoints {
                let endpoint = endpoint.map(|text| Endpoint::parse(text).unwrap());
                for (bucket, path_style) in buckets.iter().flat_map(|bucket| [(bucket, false), (bucket, true)]) {
                    let ours = of_bucket(bucket, region, endpoint.as_ref(), path_style).ok();
                    let theirs = theirs(bucket, region, endpoint.as_ref(), path_style).await;
                    // To a store of one's own a region is a word that is signed, and nothing else.
                    let any_region = endpoint.is_some() && theirs.is_none();
                    // The SDK puts a bucket with dots before an address too, which leads nowhere.
                    let nowhere = endpoint.as_ref().is_some_and(|e| endpoint::is_numeric(e.url())) && bucket.contains('.');
                    if !any_region && !nowhere {
                        assert_eq!(ours, theirs, "{bucket} {region} {endpoint:?} {path_style}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_endpoint_may_have_a_path() {
        let endpoint = Endpoint::parse("https://s3.example.com:8080/gateway/").unwrap();
        for (path_style, expected) in
            [(true, "https://s3.example.com:8080/gateway/data"), (false, "https://data.s3.example.com:8080/gateway")]
        {
            assert_eq!(of_bucket("data", "r", Some(&endpoint), path_style).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn a_region_never_becomes_another_host() {
        for region in ["", "bad region", "evil.example/", "-x", "a@b"] {
            for path_style in [true, false] {
                assert_eq!(of_bucket("data", region, None, path_style), Err(AddressError::Region(region.into())));
            }
        }
    }
}
