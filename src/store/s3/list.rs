//! ListObjectsV2. Keys are asked for as plain XML text; only when a page holds a key that XML cannot say is it asked for
//! again in URL encoding, and from then on every page. Not at once, because there are servers that confirm
//! `encoding-type=url` and leave the keys as they are, so that `a+b` would be read as `a b`.
//!
//! Sent and parsed without the SDK: its pipeline, its tokenizer and its strings were half of the daemon's CPU of a listing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;

use super::sign::Signer;
use super::{failure, text};
use crate::store::credentials::Edition;
use crate::store::http_store::Lister;
use crate::store::page::{Answered, PageClient};
use crate::store::signing::SignedGet;
use crate::store::{Error, ErrorKind, ListPage, ListRequest, Op, Result, Tell};

/// How S3 lists.
#[derive(Debug)]
pub(super) struct S3Lister {
    pages: PageClient,
    signer: Arc<Signer>,
    /// Set once a listing came that XML could not say.
    url_encoded: AtomicBool,
}

#[async_trait]
impl Lister for S3Lister {
    /// One page, in a second request when the first could not be read.
    async fn list_page(&self, request: &ListRequest, tell: &Tell<'_>) -> (Option<Edition>, Result<ListPage>) {
        let url_encoded = self.url_encoded.load(Relaxed);
        match self.send_list(request, url_encoded, tell).await {
            (_, Err(error)) if !url_encoded && error.kind == ErrorKind::Malformed && error.status.is_some() => {}
            answered => return answered,
        }
        let answered = self.send_list(request, true, tell).await;
        if answered.1.is_ok() {
            self.url_encoded.store(true, Relaxed);
        }
        answered
    }
}

impl S3Lister {
    pub fn new(pages: PageClient, signer: Arc<Signer>) -> Self {
        Self { pages, signer, url_encoded: AtomicBool::new(false) }
    }

    async fn send_list(&self, request: &ListRequest, url_encoded: bool, tell: &Tell<'_>) -> (Option<Edition>, Result<ListPage>) {
        match self.sign_list(request, url_encoded).await {
            Ok(signed) => (signed.by, self.ask(&signed, request, tell).await),
            Err(error) => (None, Err(error)),
        }
    }

    async fn sign_list(&self, request: &ListRequest, url_encoded: bool) -> Result<SignedGet> {
        let prefix = text(Op::List, &request.prefix)?;
        let max_keys = request.max_keys.to_string();
        let mut query = vec![("list-type", "2"), ("max-keys", &max_keys)];
        // Signatures of parameters without a value are read in more than one way: nothing empty is sent.
        query.extend((!prefix.is_empty()).then_some(("prefix", prefix)));
        query.extend(request.delimited.then_some(("delimiter", "/")));
        match (&request.token, &request.after) {
            (Some(token), _) => query.push(("continuation-token", token)),
            (None, Some(after)) => query.push(("start-after", text(Op::List, after)?)),
            (None, None) => {}
        }
        query.extend(url_encoded.then_some(("encoding-type", "url")));
        self.signer.sign_list(&request.prefix, &query).await
    }

    async fn ask(&self, signed: &SignedGet, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        match self.pages.get(&*self.signer, signed, &request.prefix, tell).await? {
            Answered::Page(page) => Ok(page),
            Answered::Unreadable(status, headers, error) if error.is_unreadable() => {
                let found = failure::unreadable(Op::List, &request.prefix, status.as_u16(), &headers);
                Err(Error { message: error.to_string(), ..found })
            }
            Answered::Unreadable(_, _, error) => Err(Error::new(ErrorKind::Malformed, Op::List, &request.prefix, error.to_string())),
            Answered::Refused(status, headers, body) => {
                Err(failure::refused(Op::List, &request.prefix, self.signer.scheme.region(), status.as_u16(), &headers, &body))
            }
        }
    }
}
