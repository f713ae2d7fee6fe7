//! Addresses and signatures against those of the vendor's client. Nothing is sent.

use aws_credential_types::Credentials;
use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_s3::config::{BehaviorVersion, ConfigBag, Intercept, Region, RuntimeComponents};
use http::{HeaderMap, Method};
use parking_lot::Mutex;

use super::super::address::{Address, Wanted};
use super::super::sign::Signer;
use super::*;
use crate::store::credentials::Keys;
use crate::store::requests::Unsigned;
use crate::store::signing::SignGet;

/// What is compared of a request: URL up to its query, which key signed it for what, and the headers that belong to that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sent {
    url: String,
    /// `AWS4-HMAC-SHA256 AKID/20240129/us-east-1/s3/aws4_request`.
    scope: String,
    region_set: Option<String>,
    session_token: Option<String>,
    security_token: Option<String>,
}

impl Sent {
    fn new<'h>(url: &str, header: impl Fn(&'static str) -> Option<&'h str>) -> Self {
        let authorization = header("authorization").unwrap_or_default();
        let (algorithm, rest) = authorization.split_once(" Credential=").unwrap_or_default();
        let scope = rest.split_once(',').unwrap_or_default().0;
        Self {
            url: url.split('?').next().unwrap_or_default().trim_end_matches('/').to_owned(),
            scope: format!("{algorithm} {scope}"),
            region_set: header("x-amz-region-set").map(str::to_owned),
            session_token: header("x-amz-s3session-token").map(str::to_owned),
            security_token: header("x-amz-security-token").map(str::to_owned),
        }
    }
}

/// Keeps a request of the vendor's client and does not let it go.
#[derive(Clone, Debug, Default)]
struct Capture(Arc<Mutex<Option<Sent>>>);

impl Intercept for Capture {
    fn name(&self) -> &'static str {
        "capture"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let request = context.request();
        *self.0.lock() = Some(Sent::new(request.uri(), |name| request.headers().get(name)));
        Err("it stays here".into())
    }
}

/// A GET or HEAD of an object, a listing, a copy, and the request for a session.
type Compared = [Sent; 4];

async fn theirs(wanted: &Wanted<'_>) -> Option<Compared> {
    let capture = Capture::default();
    let mut config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(wanted.region.to_owned()))
        .credentials_provider(Credentials::new("AKID", "secret", Some("of-sts".into()), None, "test"))
        .express_credentials_provider(Credentials::new("SESSION", "secret", Some("of-session".into()), None, "test"))
        .use_fips(wanted.fips)
        .use_dual_stack(wanted.dual_stack)
        .accelerate(wanted.accelerate)
        .force_path_style(wanted.path_style)
        .interceptor(capture.clone());
    // Without the slash at the end of a path the client puts the bucket right behind it.
    config.set_endpoint_url(wanted.endpoint.map(|endpoint| format!("{}/", endpoint.url().as_str().trim_end_matches('/'))));
    let client = aws_sdk_s3::Client::from_conf(config.build());
    assert!(client.head_object().bucket(wanted.bucket).key("dir/a b+c").send().await.is_err(), "it is not sent");
    let head = capture.0.lock().take()?;
    assert!(client.list_objects_v2().bucket(wanted.bucket).send().await.is_err(), "it is not sent");
    let list = capture.0.lock().take()?;
    assert!(client.copy_object().bucket(wanted.bucket).key("dir/a b+c").copy_source("data/k").send().await.is_err(), "it is not sent");
    let copy = capture.0.lock().take()?;
    assert!(client.create_session().bucket(wanted.bucket).send().await.is_err(), "it is not sent");
    let session = capture.0.lock().take()?;
    Some([head, list, copy, session])
}

fn keys(id: &str, token: &str) -> Arc<Rotating> {
    let token = Some(token.to_owned());
    Rotating::new(Box::new(Keys { id: id.into(), secret: "secret".into(), token, expires: None, from: "a test".into() }))
}

async fn ours(wanted: &Wanted<'_>) -> std::result::Result<Compared, String> {
    let address: Address = wanted.resolve().await.map_err(|error| error.to_string())?;
    let account = keys("AKID", "of-sts");
    let opening = Address { scheme: address.scheme.without_session(), ..address.clone() };
    let opening = Signer::new(opening, Some(Arc::clone(&account)), false);
    let signer = match address.scheme {
        Scheme::Session { .. } => Signer::with_sessions(address, keys("SESSION", "of-session"), account, false),
        Scheme::V4 { .. } | Scheme::V4a { .. } => Signer::new(address, Some(account), false),
    };
    let key = Key::from("dir/a b+c");
    let get = signer.sign_get(&key).await.unwrap();
    let list = signer.sign_list(&Key::root(), &[("list-type", "2")]).await.unwrap();
    let copy = Unsigned { op: Op::Copy, method: Method::PUT, key: &key, query: &[], headers: &HeaderMap::new(), payload: None };
    let copy = signer.sign(&copy).await.unwrap();
    let session = opening.sign_list(&Key::root(), &[("session", "")]).await.unwrap();
    Ok([get, list, copy, session].map(|signed| Sent::new(signed.url.as_str(), |name| signed.headers.get(name)?.to_str().ok())))
}

const ACCESS_POINT: &str = "arn:aws:s3:us-west-2:123456789012:accesspoint/test";
const DIRECTORY: &str = "data--usw2-az1--x-s3";
const MULTI_REGION: &str = "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap";
const OBJECT_LAMBDA: &str = "arn:aws:s3-object-lambda:us-east-1:123456789012:accesspoint/lambda";
const OUTPOST: &str = "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-01ac5d28a6a232904/accesspoint/reports";

/// Of each bucket: with which of fips, dual-stack, accelerate and path-style.
const CHOICES: [(bool, bool, bool, bool); 8] = [
    (false, false, false, false),
    (true, false, false, false),
    (false, true, false, false),
    (false, false, true, false),
    (false, false, false, true),
    (true, true, false, false),
    (false, true, true, false),
    (true, false, true, false),
];

#[tokio::test]
async fn requests_go_and_are_signed_as_those_of_the_vendors_client() {
    let plain = [
        "data",
        "with.dots",
        "my-ap-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias",
        "olap-acc-1a4n8yjrb3kda96f67zwrwiiuse1a--ol-s3",
        DIRECTORY,
        "data--usw2-az1--xa-s3",
    ];
    let arns = [
        ACCESS_POINT,
        MULTI_REGION,
        OBJECT_LAMBDA,
        OUTPOST,
        "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint:test",
        "arn:aws-us-gov:s3-object-lambda:us-gov-west-1:123456789012:accesspoint/lambda",
        "arn:aws:s3:us-west-2:123456789012:accesspoint/test/more",
        "arn:aws:s3:us-west-2:123456789012:accesspoint/te_st",
        "arn:aws:s3:us-west-2::accesspoint/test",
    ];
    let regions = ["us-east-1", "us-west-2", "us-gov-west-1", "cn-north-1", "aws-global", "eusc-de-east-1", "us-isob-east-1", "mars-1"];
    let (mut same, mut refused) = (0, 0);
    for (bucket, region) in plain.iter().chain(&arns).flat_map(|bucket| regions.map(|region| (*bucket, region))) {
        for (fips, dual_stack, accelerate, path_style) in CHOICES {
            let wanted = Wanted { bucket, region, endpoint: None, path_style, fips, dual_stack, accelerate };
            match (ours(&wanted).await, theirs(&wanted).await) {
                (Ok(ours), Some(theirs)) => {
                    assert_eq!(ours, theirs, "{wanted:?}");
                    same += 1;
                }
                (Err(_), None) => refused += 1,
                (ours, theirs) => panic!("{wanted:?}: {ours:?}, the client {theirs:?}"),
            }
        }
    }
    assert!(same >= 60 && refused >= 60, "{same} {refused}");
}

/// Regions that only the store knows are left out: the client refuses them.
#[tokio::test]
async fn requests_to_other_endpoints_are_those_of_the_vendors_client() {
    let endpoints = [
        "127.0.0.1:9000",
        "[::1]:9000",
        "localhost:9000",
        "https://s3.example.com",
        "http://s3.example.com:8080",
        "https://x.example/gate",
    ];
    for endpoint in endpoints {
        let parsed = Endpoint::parse(endpoint).unwrap();
        let is_named = !parsed.wants_path_style();
        let buckets = ["data", "a-b-c", "with.dots", "with.-both", DIRECTORY];
        for bucket in buckets.into_iter().chain([ACCESS_POINT].into_iter().filter(|_| is_named)) {
            for path_style in [false, true] {
                // The client puts a bucket with dots before a number too, which leads nowhere.
                if bucket.contains('.') && !is_named && !path_style {
                    continue;
                }
                let (region, endpoint) = ("us-west-2", Some(&parsed));
                let wanted = Wanted { bucket, region, endpoint, path_style, fips: false, dual_stack: false, accelerate: false };
                assert_eq!(ours(&wanted).await.ok(), theirs(&wanted).await, "{wanted:?}");
            }
        }
    }
}

/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-points-alias.html>,
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/MultiRegionAccessPointRequests.html>,
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-Regions-and-Zones.html>
#[tokio::test]
async fn arns_of_the_documents_have_the_hosts_of_the_documents() {
    for (bucket, host, scope, region_set) in [
        (ACCESS_POINT, "test-123456789012.s3-accesspoint.us-west-2.amazonaws.com", "AWS4-HMAC-SHA256 us-west-2/s3/aws4_request", None),
        (MULTI_REGION, "mfzwi23gnjvgw.mrap.accesspoint.s3-global.amazonaws.com", "AWS4-ECDSA-P256-SHA256 s3/aws4_request", Some("*")),
        (
            DIRECTORY,
            "data--usw2-az1--x-s3.s3express-usw2-az1.us-west-2.amazonaws.com",
            "AWS4-HMAC-SHA256 us-west-2/s3express/aws4_request",
            None,
        ),
        (
            OBJECT_LAMBDA,
            "lambda-123456789012.s3-object-lambda.us-east-1.amazonaws.com",
            "AWS4-HMAC-SHA256 us-east-1/s3-object-lambda/aws4_request",
            None,
        ),
    ] {
        let (region, endpoint) = ("us-west-2", None);
        let wanted = Wanted { bucket, region, endpoint, path_style: false, fips: false, dual_stack: false, accelerate: false };
        let [get, ..] = ours(&wanted).await.unwrap();
        assert_eq!(get.url, format!("https://{host}/dir/a%20b%2Bc"));
        assert!(
            get.scope.split_once(' ').is_some_and(|(algorithm, rest)| {
                scope.split_once(' ').is_some_and(|(same, end)| algorithm == same && rest.ends_with(end))
            }),
            "{get:?}"
        );
        assert_eq!(get.region_set.as_deref(), region_set);
    }
}
