//! ListObjectsV2 of OSS, whose keys come percent-encoded. Invariant: a page is in one request, or an error.

use std::sync::Arc;

use async_trait::async_trait;
use http::Method;

use super::sign::OssSigner;
use crate::store::answer::Answer;
use crate::store::credentials::Edition;
use crate::store::http_store::Lister;
use crate::store::page::{Answered, PageClient};
use crate::store::signing::SignedGet;
use crate::store::{Error, ErrorKind, Key, ListPage, ListRequest, Op, Result, Tell};

/// How OSS lists.
#[derive(Debug)]
pub(super) struct OssLister {
    pub pages: PageClient,
    pub signer: Arc<OssSigner>,
}

#[async_trait]
impl Lister for OssLister {
    async fn list_page(&self, request: &ListRequest, tell: &Tell<'_>) -> (Option<Edition>, Result<ListPage>) {
        match self.sign_list(request).await {
            Ok(signed) => (signed.by, self.ask(&signed, request, tell).await),
            Err(error) => (None, Err(error)),
        }
    }
}

impl OssLister {
    async fn sign_list(&self, request: &ListRequest) -> Result<SignedGet> {
        let max_keys = request.max_keys.to_string();
        let mut query: Vec<(&str, &[u8])> = vec![("encoding-type", b"url"), ("list-type", b"2"), ("max-keys", max_keys.as_bytes())];
        // A query parameter without a value is signed without its `=`: nothing empty is sent.
        if !request.prefix.as_bytes().is_empty() {
            query.push(("prefix", request.prefix.as_bytes()));
        }
        if request.delimited {
            query.push(("delimiter", b"/"));
        }
        match (&request.token, &request.after) {
            (Some(token), _) => query.push(("continuation-token", token.as_bytes())),
            (None, Some(after)) => query.push(("start-after", after.as_bytes())),
            (None, None) => {}
        }
        let signed = self.signer.sign(Op::List, Method::GET, &Key::root(), &query).await;
        signed.map_err(|error| Error { key: request.prefix.clone(), ..error })
    }

    async fn ask(&self, signed: &SignedGet, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        let prefix = &request.prefix;
        match self.pages.get(&*self.signer, signed, prefix, tell).await? {
            Answered::Page(page) => Ok(page),
            Answered::Unreadable(_, _, error) => Err(Error::new(ErrorKind::Malformed, Op::List, prefix, error.to_string())),
            Answered::Refused(status, headers, body) => Err(Answer::new(status.as_u16(), &headers, &body).into_error(Op::List, prefix)),
        }
    }
}
