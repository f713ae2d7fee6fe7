//! CreateSession: keys for the requests to one directory bucket. What they sign, and when others are asked for, is decided elsewhere.

use std::time::SystemTime;

use aws_sdk_s3::Client;
use http::{HeaderMap, HeaderValue};

use super::Requests;
use super::sdk_client::PLACEHOLDER;
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

impl Requests {
    /// Opens a session of the bucket.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`] where the account may not open one of this mode; [`ErrorKind::Malformed`]; else what the endpoint answers.
    pub async fn create_session(&self, mode: SessionMode) -> Result<Session> {
        let (root, mut headers) = (Key::root(), HeaderMap::new());
        headers.insert("x-amz-create-session-mode", HeaderValue::from_static(mode.name()));
        let create = |client: &Client| client.create_session().bucket(PLACEHOLDER).send();
        let (created, _) = self.sdk.send(Op::List, &root, headers, create).await?;
        let malformed = || Error::new(ErrorKind::Malformed, Op::List, &root, "the answer to CreateSession has no keys of a session");
        let keys = created.credentials.ok_or_else(malformed)?;
        let expires = SystemTime::try_from(keys.expiration).map_err(|_| malformed())?;
        Ok(Session { id: keys.access_key_id, secret: keys.secret_access_key, token: keys.session_token, expires })
    }
}
