//! Checks signatures of Amazon in headers, of Version 4 and 4A, of any service and region: signs the request again with the vendor's library and
//! compares. s3s checks those of the service `s3` alone.

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningParams, SigningSettings, UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::{v4, v4a};
use http::request::Parts;

use super::keyring::Held;

/// Status, code and message of a refusal.
pub type Refusal = (u16, &'static str, &'static str);

const MALFORMED: Refusal = (400, "AuthorizationHeaderMalformed", "The authorization header cannot be read.");

/// What a right signature says.
pub struct Signed {
    pub by: Held,
    pub service: String,
    /// Of Version 4A the set of them.
    pub region: String,
}

/// `session_token`: the header of the token, where that is not x-amz-security-token.
///
/// # Errors
/// Why the request is refused.
pub fn check(request: &Parts, session_token: Option<&'static str>, held: impl Fn(&str) -> Option<Held>) -> Result<Signed, Refusal> {
    let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let sent = header("authorization").ok_or((403, "AccessDenied", "Signature is required"))?;
    let field = |name: &str| sent.split([' ', ',']).find_map(|field| field.strip_prefix(name)).ok_or(MALFORMED);
    let scope: Vec<&str> = field("Credential=")?.split('/').collect();
    let is_asymmetric = sent.starts_with("AWS4-ECDSA-P256-SHA256 ");
    let (id, region, service) = match (is_asymmetric, &scope[..]) {
        (false, [id, _, region, service, "aws4_request"]) => (*id, *region, *service),
        (true, [id, _, service, "aws4_request"]) => (*id, header("x-amz-region-set").ok_or(MALFORMED)?, *service),
        _ => return Err(MALFORMED),
    };
    let by = held(id).ok_or((403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."))?;
    let time = header("x-amz-date").and_then(|text| jiff::fmt::strtime::parse("%Y%m%dT%H%M%SZ", text).ok()?.to_datetime().ok());
    let time = time.ok_or(MALFORMED)?.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| MALFORMED)?.timestamp().into();
    let payload = match header("x-amz-content-sha256").ok_or(MALFORMED)? {
        "UNSIGNED-PAYLOAD" => SignableBody::UnsignedPayload,
        hash => SignableBody::Precomputed(hash.to_owned()),
    };
    // The library adds these by itself.
    let token = session_token.unwrap_or("x-amz-security-token");
    let added = ["host", "x-amz-date", "x-amz-content-sha256", "x-amz-region-set", token];
    let signed = field("SignedHeaders=")?.split(';').filter(|name| !added.contains(name));
    let headers: Vec<(&str, &str)> = signed.filter_map(|name| Some((name, header(name)?))).collect();
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    settings.session_token_name_override = session_token;
    let identity = Credentials::new(id, &by.secret, by.token.clone(), None, "test").into();
    let params: SigningParams<'_> = if is_asymmetric {
        let params = v4a::SigningParams::builder().identity(&identity).region_set(region).name(service).time(time).settings(settings);
        params.build().expect("every field is set").into()
    } else {
        let params = v4::SigningParams::builder().identity(&identity).region(region).name(service).time(time).settings(settings);
        params.build().expect("every field is set").into()
    };
    let url = format!("http://{}{}", header("host").unwrap_or_default(), request.uri);
    let signable = SignableRequest::new(request.method.as_str(), url, headers.into_iter(), payload).map_err(|_| MALFORMED)?;
    let (own, _) = sign(signable, &params).map_err(|_| MALFORMED)?.into_parts().0.into_parts();
    match own.iter().any(|own| own.name() == "authorization" && own.value() == sent) {
        true => Ok(Signed { by, service: service.to_owned(), region: region.to_owned() }),
        false => Err((403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")),
    }
}
