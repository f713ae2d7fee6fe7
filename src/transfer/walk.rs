//! The names below a prefix, page by page. Invariant: a page is asked for only when the one before has been used, or is: a listing of any
//! length costs the memory of one page, or of two.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::store::{self, Key, ListPage, ListRequest, ObjectStore};

/// A listing under way.
#[derive(Debug)]
pub struct Listing {
    store: Arc<dyn ObjectStore>,
    request: Option<ListRequest>,
}

/// Most names in a page of S3 and OSS.
const PAGE: u16 = 1000;

impl Listing {
    /// Everything below `prefix`, or with `delimited` one level of it.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Key, delimited: bool) -> Self {
        Self { store, request: Some(ListRequest { prefix, delimited, after: None, token: None, max_keys: PAGE, any_order: false }) }
    }

    /// The next page; none after the last.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn next(&mut self) -> store::Result<Option<ListPage>> {
        let Some(request) = &self.request else { return Ok(None) };
        let page = self.store.list(request).await?;
        // A store that repeats a token would be listed for ever.
        let token = page.next.clone().filter(|token| request.token.as_ref() != Some(token));
        self.request = token.map(|token| ListRequest { token: Some(token), ..request.clone() });
        Ok(Some(page))
    }
}

/// A listing whose next page is on its way while the last one is used.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Dropped, it is not wanted any more.
    coming: JoinSet<(Listing, store::Result<Option<ListPage>>)>,
}

impl Ahead {
    pub fn new(listing: Listing) -> Self {
        let mut ahead = Self { coming: JoinSet::new() };
        ahead.ask(listing);
        ahead
    }

    /// The next page; none after the last.
    pub async fn next(&mut self) -> store::Result<Option<ListPage>> {
        let Some(came) = self.coming.join_next().await else { return Ok(None) };
        let (listing, page) = came.expect("a listing does not panic, and nobody else aborts it");
        let page = page?;
        if page.is_some() {
            self.ask(listing);
        }
        Ok(page)
    }

    fn ask(&mut self, mut listing: Listing) {
        self.coming.spawn(async move {
            let page = listing.next().await;
            (listing, page)
        });
    }
}

/// The prefix of what lies in the directory that a person named: with the slash at its end, or without.
pub fn directory_of(key: &Key) -> Key {
    if key.is_prefix() { key.clone() } else { key.join(b"/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_named_with_and_without_its_slash() {
        for (key, directory) in [("", ""), ("a", "a/"), ("a/", "a/"), ("a/b", "a/b/")] {
            assert_eq!(directory_of(&Key::from(key)), Key::from(directory));
        }
    }
}
