//! Keys that a server lets in, which a test changes while it serves. Clones are the same keys. Invariant: who is not in it, or comes with
//! another token than the one it was admitted with, gets no answer but a refusal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};

#[derive(Clone, Debug, Default)]
pub struct Keyring(Arc<Mutex<BTreeMap<String, Held>>>);

#[derive(Clone, Debug)]
pub struct Held {
    pub secret: String,
    /// Must come along.
    pub token: Option<String>,
}

impl Keyring {
    pub fn admit(&self, id: &str, secret: &str, token: Option<&str>) {
        let held = Held { secret: secret.into(), token: token.map(str::to_owned) };
        self.0.lock().expect("no panic while it is held").insert(id.into(), held);
    }

    pub fn forget(&self, id: &str) {
        self.0.lock().expect("no panic while it is held").remove(id);
    }

    pub fn get(&self, id: &str) -> Option<Held> {
        self.0.lock().expect("no panic while it is held").get(id).cloned()
    }
}

#[async_trait::async_trait]
impl S3Auth for Keyring {
    async fn get_secret_key(&self, id: &str) -> S3Result<SecretKey> {
        match self.get(id) {
            Some(held) => Ok(held.secret.into()),
            None => Err(s3_error!(InvalidAccessKeyId, "The AWS Access Key Id you provided does not exist in our records.")),
        }
    }
}

#[async_trait::async_trait]
impl S3Access for Keyring {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = request.credentials() else { return Err(s3_error!(AccessDenied, "Signature is required")) };
        let token = request.headers().get("x-amz-security-token").and_then(|value| value.to_str().ok());
        match self.get(&credentials.access_key) {
            // Only those keys that were given one have a token; others may bring any.
            Some(held) if held.token.is_none() || held.token.as_deref() == token => Ok(()),
            _ => Err(s3_error!(InvalidToken, "The provided token is malformed or otherwise invalid.")),
        }
    }
}
