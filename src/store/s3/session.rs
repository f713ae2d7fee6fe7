//! Sessions of a directory bucket: short-lived keys that the account's keys are exchanged for. `Rotating` keeps and renews them, as it does other keys.
//! Invariant: the keys of the account sign what opens a session and copies, and nothing else.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;

use super::address::Address;
use super::sign::Signer;
use crate::metrics::Metrics;
use crate::store::credentials::{Keys, Missing, Rotating, Source};
use crate::store::leave::Clients;
use crate::store::requests::{Requests, Session, SessionMode, Tags};
use crate::store::{ErrorKind, Options, Result};

/// Pauses between attempts at a session. The layer that sends other requests again does not see this one; the vendor's SDK also tries three times.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// What signs the requests for a directory bucket at `address`. Nothing is sent yet.
pub(super) fn signer(options: &Options, address: Address, account: Arc<Rotating>, http: &Clients, metrics: &Arc<Metrics>) -> Signer {
    let opening = Address { scheme: address.scheme.without_session(), ..address.clone() };
    let opening = Arc::new(Signer::new(opening, Some(Arc::clone(&account)), false));
    let requests = Requests::new(http.clone(), options, opening, Arc::new(Tags::default()), Arc::clone(metrics));
    let sessions = Sessions { bucket: options.bucket.clone(), requests, is_read_only: AtomicBool::new(false) };
    Signer::with_sessions(address, Rotating::new(Box::new(sessions)), account, options.requester_pays)
}

/// Where the keys of sessions come from.
struct Sessions {
    bucket: String,
    requests: Requests,
    /// The account was refused a session that may write; the log has said so.
    is_read_only: AtomicBool,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl Sessions {
    /// Opens a session with mode ReadWrite; after a refusal, one with mode ReadOnly. Each call begins with ReadWrite, because permissions change.
    async fn open(&self) -> Result<Session> {
        let refused = match self.requests.create_session(SessionMode::ReadWrite).await {
            Err(refused) if refused.kind == ErrorKind::AccessDenied => refused,
            opened => {
                if opened.is_ok() {
                    self.is_read_only.store(false, Relaxed);
                }
                return opened;
            }
        };
        // Of an account that may open none at all the first refusal is reported: the permission it lacks is s3express:CreateSession.
        let session = self.requests.create_session(SessionMode::ReadOnly).await.map_err(|error| match error.kind {
            ErrorKind::AccessDenied => refused,
            _ => error,
        })?;
        if !self.is_read_only.swap(true, Relaxed) {
            tracing::warn!(bucket = self.bucket, "the account may only read this directory bucket: writes will be refused");
        }
        Ok(session)
    }
}

#[async_trait]
impl Source for Sessions {
    async fn fetch(&self) -> Result<Keys, Missing> {
        let mut pauses = PAUSES.iter();
        let opened = loop {
            match (self.open().await, pauses.next()) {
                (Err(error), Some(pause)) if error.kind.is_retryable() => tokio::time::sleep(*pause).await,
                (opened, _) => break opened,
            }
        };
        let session = opened.map_err(|error| {
            let message =
                format!("cannot open a session of the directory bucket {} (s3express:CreateSession): {}", self.bucket, error.message);
            // What passes is waited for, as for any other request.
            let stays = error.kind == ErrorKind::NoSuchBucket || error.kind.is_retryable();
            let kind = if stays { error.kind } else { ErrorKind::NoCredentials };
            Missing { message, kind }
        })?;
        let Session { id, secret, token, expires } = session;
        Ok(Keys { id, secret, token: Some(token), expires: Some(expires), from: format!("a session of {}", self.bucket) })
    }
}

#[cfg(test)]
mod tests;
