//! CreateSession: keys for the requests to one directory bucket. What they sign, and when others are asked for, is decided elsewhere.

use std::time::SystemTime;

use http::{HeaderMap, HeaderValue, Method};
use reqsign_core::time::Timestamp;
use serde::Deserialize;

use super::documents::trimmed;
use super::{Call, Requests};
use crate::store::{Error, ErrorKind, Key, Op, Result};

/// What the keys of a session may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum SessionMode {
    ReadWrite,
    ReadOnly,
}

impl SessionMode {
    /// The value of x-amz-create-session-mode: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateSession.html>
    fn name(self) -> &'static str {
        match self {
            Self::ReadWrite => "ReadWrite",
            Self::ReadOnly => "ReadOnly",
        }
    }
}

/// The keys of a session. Without `Debug`: they are secrets.
#[derive(PartialEq, Eq)]
pub(in crate::store) struct Session {
    pub id: String,
    pub secret: String,
    pub token: String,
    pub expires: SystemTime,
}

/// The answer to CreateSession.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SessionDocument {
    credentials: SessionKeys,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SessionKeys {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: String,
}

impl Requests {
    /// Opens a session of the bucket.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`] where the account may not open one of this mode; [`ErrorKind::Malformed`]; else what the endpoint answers.
    pub async fn create_session(&self, mode: SessionMode) -> Result<Session> {
        let (root, mut headers) = (Key::root(), HeaderMap::new());
        headers.insert("x-amz-create-session-mode", HeaderValue::from_static(mode.name()));
        let call = Call::new(Op::List, Method::GET, &root).with([("session", String::new())]).headed(headers);
        let reply = self.exchange.send(&call).await?;
        read_session(&reply.body)
            .ok_or_else(|| Error::new(ErrorKind::Malformed, Op::List, &root, "the answer to CreateSession has no keys of a session"))
    }
}

fn read_session(body: &[u8]) -> Option<Session> {
    let document: SessionDocument = quick_xml::de::from_reader(trimmed(body)).ok()?;
    let SessionKeys { access_key_id, secret_access_key, session_token, expiration } = document.credentials;
    let expires = expiration.parse::<Timestamp>().ok()?.as_system_time();
    Some(Session { id: access_key_id, secret: secret_access_key, token: session_token, expires })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn keys_of_a_session_are_read_and_nothing_else_is() {
        let document = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<CreateSessionResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Credentials><SessionToken>t/+=</SessionToken><SecretAccessKey>s</SecretAccessKey><AccessKeyId>ASIA</AccessKeyId>\
             <Expiration>2024-01-29T18:53:01Z</Expiration></Credentials></CreateSessionResult>";
        let session = read_session(document.as_bytes()).unwrap();
        assert_eq!((&*session.id, &*session.secret, &*session.token), ("ASIA", "s", "t/+="));
        assert_eq!(session.expires, SystemTime::UNIX_EPOCH + Duration::from_secs(1_706_554_381));
        for other in ["<html/>", "<CreateSessionResult><Credentials/></CreateSessionResult>", &document.replace("2024-", "then ")] {
            assert!(read_session(other.as_bytes()).is_none(), "{other}");
        }
    }
}
