//! The answer to a range GET, by whichever client it came. It checks nothing. Invariant: what becomes of it is counted once.

use http::{HeaderMap, StatusCode};

use super::{ERROR_BODY_LIMIT, plain};
use crate::store::Error;
use crate::store::request_log::Sending;

/// An answer.
pub(super) struct Response {
    pub source: Source,
    sending: Sending,
}

/// Who reads its body.
pub(super) enum Source {
    Plain(plain::Response),
    Library(reqwest::Response),
}

impl Response {
    /// The head of the answer to what `sending` sent has come.
    pub fn new(source: Source, mut sending: Sending) -> Self {
        let (status, headers) = match &source {
            Source::Plain(response) => (response.status(), response.headers()),
            Source::Library(response) => (response.status(), response.headers()),
        };
        sending.on_head(status.as_u16(), headers);
        Self { source, sending }
    }

    pub fn status(&self) -> StatusCode {
        match &self.source {
            Source::Plain(response) => response.status(),
            Source::Library(response) => response.status(),
        }
    }

    pub fn headers(&self) -> &HeaderMap {
        match &self.source {
            Source::Plain(response) => response.headers(),
            Source::Library(response) => response.headers(),
        }
    }

    pub fn content_length(&self) -> Option<u64> {
        match &self.source {
            Source::Plain(response) => response.left(),
            Source::Library(response) => response.content_length(),
        }
    }

    /// The body of a refusal, as far as it comes.
    pub async fn document(&mut self) -> Vec<u8> {
        let body = match &mut self.source {
            Source::Plain(response) => response.document(ERROR_BODY_LIMIT).await,
            Source::Library(response) => {
                let mut body = Vec::new();
                while body.len() < ERROR_BODY_LIMIT
                    && let Ok(Some(piece)) = response.chunk().await
                {
                    body.extend_from_slice(&piece);
                }
                body
            }
        };
        self.sending.on_bytes(body.len() as u64);
        body
    }

    /// Bytes of the body that were read from the source.
    pub fn on_bytes(&mut self, bytes: u64) {
        self.sending.on_bytes(bytes);
    }

    /// The rest of the body did not come.
    pub fn on_lost(mut self, error: &Error) {
        self.sending.on_lost(error);
    }

    /// No more is wanted of it: its connection can serve the next request, if the body is at its end.
    pub fn finish(mut self) {
        self.sending.on_end();
        if let Source::Plain(response) = self.source {
            response.finish();
        }
    }
}
