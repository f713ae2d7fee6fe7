//! Listings in byte order of a store that has them in none: a directory bucket of S3 Express One Zone. All pages of a listing are collected and sorted
//! before the first of them is returned; until then the caller gets empty pages, one for each request, so that each has the time and the attempts of
//! a request. Invariant: what one listing returns is sorted, and each name is in it once.
//!
//! Such a bucket takes as prefixes only directories (`a/`, not `a/b`) and does not know where to begin (StartAfter). Both are made up for here: the
//! directory is listed, and what is not wanted is left out.
//! <https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-differences.html>
//!
//! A listing stays in memory up to its last page: a mount that listed 200,000 names had 72 MB more, entries of the vfs included.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use tokio::time::Instant;

use super::credentials::Edition;
use super::http_store::Lister;
use super::{Error, ErrorKind, Key, ListPage, ListRequest, ObjectMeta, Op, Polynomial, Result, Tell};

/// A listing without a request for this long is dropped. The next request for it starts over.
const MAX_IDLE: Duration = Duration::from_secs(300);

/// Replaces [`MAX_IDLE`] from [`MANY_LISTINGS`] on. A listing in use is never dropped: two listings that evict each other would not end.
const MAX_IDLE_OF_MANY: Duration = Duration::from_secs(30);

/// Listings in memory from which idle ones are dropped earlier.
const MANY_LISTINGS: usize = 64;

/// Keys of a page that is collected: the most that the store gives.
const COLLECTED_PAGE: u16 = 1000;

/// Lists in byte order what `inner` lists in any.
#[derive(Debug)]
pub(super) struct SortedLister<L> {
    inner: L,
    listings: Mutex<Listings>,
}

#[derive(Debug, Default)]
struct Listings {
    by_id: HashMap<u64, Listing>,
    last_id: u64,
}

/// One listing that is being read.
#[derive(Debug)]
struct Listing {
    entries: Vec<Entry>,
    state: State,
    /// When its first page was asked for: what changed since may be missing in any of its pages.
    began: Instant,
    used: Instant,
}

#[derive(Debug)]
enum State {
    /// The next page of the store.
    Collecting { token: String },
    /// All entries are there, in order.
    Sorted,
}

#[derive(Clone, Debug)]
enum Entry {
    Object(ObjectMeta, Option<Polynomial>),
    Prefix(Key),
}

impl Entry {
    fn key(&self) -> &Key {
        match self {
            Self::Object(meta, _) => &meta.key,
            Self::Prefix(key) => key,
        }
    }
}

/// What a token of this store says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Position {
    /// A page in any order: the token of the store below.
    Unsorted(String),
    /// Behind `after` in the listing `id`. `pages` have been collected, which makes each token of a listing another one than that before.
    Sorted { id: u64, pages: usize, after: Key },
}

impl Position {
    fn parse(token: &str) -> Option<Self> {
        if let Some(token) = token.strip_prefix("unsorted ") {
            return Some(Self::Unsorted(token.to_owned()));
        }
        let mut words = token.strip_prefix("sorted ")?.split(' ');
        let (id, pages, after) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?);
        Some(Self::Sorted { id, pages, after: Key::from(percent_decode_str(after).collect::<Vec<u8>>()) })
    }

    fn token(&self) -> String {
        match self {
            Self::Unsorted(token) => format!("unsorted {token}"),
            Self::Sorted { id, pages, after } => format!("sorted {id} {pages} {}", percent_encode(after.as_bytes(), NON_ALPHANUMERIC)),
        }
    }
}

impl Listings {
    /// Keeps a listing. Returns its number.
    fn insert(&mut self, entries: Vec<Entry>, state: State, (began, now): (Instant, Instant)) -> u64 {
        let max_idle = if self.by_id.len() >= MANY_LISTINGS { MAX_IDLE_OF_MANY } else { MAX_IDLE };
        self.by_id.retain(|_, listing| now.duration_since(listing.used) < max_idle);
        self.last_id += 1;
        self.by_id.insert(self.last_id, Listing { entries, state, began, used: now });
        self.last_id
    }

    /// The store's token for the next page of a listing that is being collected.
    fn next_token(&mut self, id: u64, now: Instant) -> Option<String> {
        let listing = self.by_id.get_mut(&id)?;
        listing.used = now;
        match &listing.state {
            State::Collecting { token } => Some(token.clone()),
            State::Sorted => None,
        }
    }

    /// Adds the page that `token` asked for; one that two requests asked for is added once.
    fn add(&mut self, id: u64, token: &str, entries: Vec<Entry>, next: Option<String>) {
        let Some(listing) = self.by_id.get_mut(&id) else { return };
        if !matches!(&listing.state, State::Collecting { token: expected } if expected == token) {
            return;
        }
        listing.entries.extend(entries);
        listing.state = match next {
            Some(token) => State::Collecting { token },
            None => {
                sort(&mut listing.entries);
                State::Sorted
            }
        };
    }

    /// At most `max` entries behind `after`, when the listing is sorted, and what [`hidden`] says of them. It is dropped with its last page.
    fn page(&mut self, id: u64, after: &Key, max: usize, now: Instant) -> Option<(ListPage, Vec<Key>)> {
        let listing = self.by_id.get_mut(&id).filter(|listing| matches!(listing.state, State::Sorted))?;
        listing.used = now;
        let (page, last) = page(&listing.entries, after, max);
        let page = ListPage { asked: Some(listing.began), ..page };
        let hidden = hidden(&listing.entries, &page);
        let next = match last {
            Some(after) => Some(Position::Sorted { id, pages: 0, after }.token()),
            None => {
                self.by_id.remove(&id);
                None
            }
        };
        Some((ListPage { next, ..page }, hidden))
    }
}

/// The common prefixes of `page` that hide an object of their name: of unfinished uploads there are prefixes below which nothing is.
fn hidden(entries: &[Entry], page: &ListPage) -> Vec<Key> {
    let is_object = |prefix: &&Key| {
        let name = Key::from(prefix.as_bytes().strip_suffix(b"/").unwrap_or(prefix.as_bytes()));
        entries.binary_search_by(|entry| entry.key().cmp(&name)).is_ok()
    };
    page.prefixes.iter().filter(is_object).cloned().collect()
}

/// Common prefixes may be in several pages of an unordered listing.
fn sort(entries: &mut Vec<Entry>) {
    entries.sort_unstable_by(|a, b| a.key().cmp(b.key()));
    entries.dedup_by(|a, b| a.key() == b.key());
}

/// The first `max` of the sorted `entries` behind `after`, and the last of them where more follow.
fn page(entries: &[Entry], after: &Key, max: usize) -> (ListPage, Option<Key>) {
    let mut start = entries.partition_point(|entry| entry.key() <= after);
    // A common prefix stands for keys behind `after` too, when `after` is one of its keys.
    if let Some(Entry::Prefix(prefix)) = start.checked_sub(1).map(|last| &entries[last])
        && prefix != after
        && after.as_bytes().starts_with(prefix.as_bytes())
    {
        start -= 1;
    }
    let end = entries.len().min(start + max.max(1));
    let mut page = ListPage::default();
    for entry in &entries[start..end] {
        match entry {
            Entry::Object(meta, sum) => {
                page.objects.push(meta.clone());
                page.sums.push(*sum);
            }
            Entry::Prefix(key) => page.prefixes.push(key.clone()),
        }
    }
    (page, (end < entries.len()).then(|| entries[end - 1].key().clone()))
}

/// What of a page has the prefix.
fn entries(page: ListPage, prefix: &Key) -> Vec<Entry> {
    let mut sums = page.sums.into_iter();
    let objects = page.objects.into_iter().map(|meta| Entry::Object(meta, sums.next().flatten()));
    let all = objects.chain(page.prefixes.into_iter().map(Entry::Prefix));
    all.filter(|entry| entry.key().as_bytes().starts_with(prefix.as_bytes())).collect()
}

/// The directory that holds everything that begins with `prefix`: what such a bucket takes as a prefix.
pub(super) fn directory_of(prefix: &Key) -> Key {
    let bytes = prefix.as_bytes();
    Key::from(&bytes[..bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)])
}

impl<L: Lister> SortedLister<L> {
    pub fn new(inner: L) -> Self {
        Self { inner, listings: Mutex::default() }
    }

    /// One page as the store has it, of what has the prefix.
    async fn unsorted(&self, request: &ListRequest, token: Option<String>, max_keys: u16) -> (Option<Edition>, Result<ListPage>) {
        let request = ListRequest { prefix: directory_of(&request.prefix), after: None, token, max_keys, ..request.clone() };
        // No early token: the tokens of the store below are not those of this lister.
        self.inner.list_page(&request, &|_| {}).await
    }

    /// A page of the listing in any order.
    async fn any(&self, request: &ListRequest, token: Option<String>) -> (Option<Edition>, Result<ListPage>) {
        let (by, page) = self.unsorted(request, token, request.max_keys).await;
        let page = page.map(|mut page| {
            let next = page.next.take().map(|token| Position::Unsorted(token).token());
            let mut found = entries(page, &request.prefix);
            sort(&mut found);
            ListPage { next, ..self::page(&found, &after(request), found.len()).0 }
        });
        (by, page)
    }

    /// The first page of a listing, of which entries behind `after` are wanted.
    async fn begin(&self, request: &ListRequest, after: Key) -> (Option<Edition>, Result<ListPage>) {
        let (began, max) = (Instant::now(), usize::from(request.max_keys));
        let (by, page) = self.unsorted(request, None, COLLECTED_PAGE).await;
        let mut page = match page {
            Ok(page) => page,
            Err(error) => return (by, Err(error)),
        };
        let token = page.next.take();
        let mut found = entries(page, &request.prefix);
        let state = match token {
            Some(token) => State::Collecting { token },
            None => {
                sort(&mut found);
                State::Sorted
            }
        };
        let sorted = {
            let (mut listings, now) = (self.listings.lock(), Instant::now());
            let id = listings.insert(found, state, (began, now));
            listings.page(id, &after, max, now).ok_or(Position::Sorted { id, pages: 1, after })
        };
        match sorted {
            Ok((page, hidden)) => self.without_phantoms(request, page, hidden, by).await,
            Err(position) => (by, Ok(empty(position))),
        }
    }

    /// The page behind `after` in the listing `id`, or one step towards it.
    async fn go_on(&self, request: &ListRequest, id: u64, pages: usize, after: Key) -> (Option<Edition>, Result<ListPage>) {
        let max = usize::from(request.max_keys);
        let (sorted, token) = {
            let (mut listings, now) = (self.listings.lock(), Instant::now());
            (listings.page(id, &after, max, now), listings.next_token(id, now))
        };
        if let Some((page, hidden)) = sorted {
            return self.without_phantoms(request, page, hidden, None).await;
        }
        let Some(token) = token else { return self.begin(request, after).await };
        let (by, page) = self.unsorted(request, Some(token.clone()), COLLECTED_PAGE).await;
        let mut page = match page {
            Ok(page) => page,
            Err(error) => return (by, Err(error)),
        };
        let next = page.next.take();
        if next.as_ref() == Some(&token) {
            let words = "the store names the same page as the next one";
            return (by, Err(Error::new(ErrorKind::Malformed, Op::List, &request.prefix, words)));
        }
        let sorted = {
            let (mut listings, now) = (self.listings.lock(), Instant::now());
            listings.add(id, &token, entries(page, &request.prefix), next);
            listings.page(id, &after, max, now)
        };
        match sorted {
            Some((page, hidden)) => self.without_phantoms(request, page, hidden, by).await,
            None => (by, Ok(empty(Position::Sorted { id, pages: pages + 1, after }))),
        }
    }

    /// `page` without those of the prefixes `hidden` below which there is nothing: they would hide objects of their names.
    async fn without_phantoms(
        &self,
        request: &ListRequest,
        mut page: ListPage,
        hidden: Vec<Key>,
        mut by: Option<Edition>,
    ) -> (Option<Edition>, Result<ListPage>) {
        for prefix in hidden {
            let below = ListRequest { prefix: prefix.clone(), delimited: false, after: None, token: None, max_keys: 1, any_order: true };
            let (signed_by, found) = self.any(&below, None).await;
            by = signed_by.or(by);
            match found {
                Ok(found) if found.objects.is_empty() && found.next.is_none() => page.prefixes.retain(|other| *other != prefix),
                Ok(_) => {}
                Err(error) => return (by, Err(Error { key: request.prefix.clone(), ..error })),
            }
        }
        (by, Ok(page))
    }
}

/// A page without entries, and where the next one is.
fn empty(next: Position) -> ListPage {
    ListPage { next: Some(next.token()), ..ListPage::default() }
}

/// Where a request begins.
fn after(request: &ListRequest) -> Key {
    request.after.clone().unwrap_or_else(Key::root)
}

#[async_trait]
impl<L: Lister> Lister for SortedLister<L> {
    async fn list_page(&self, request: &ListRequest, _: &Tell<'_>) -> (Option<Edition>, Result<ListPage>) {
        let position = match request.token.as_deref().map(Position::parse) {
            Some(None) => return (None, Err(Error::new(ErrorKind::Invalid, Op::List, &request.prefix, "the token is none of this store"))),
            Some(Some(position)) => Some(position),
            None => None,
        };
        match position {
            None if request.any_order => self.any(request, None).await,
            None => self.begin(request, after(request)).await,
            Some(Position::Unsorted(token)) => self.any(request, Some(token)).await,
            Some(Position::Sorted { id, pages, after }) => self.go_on(request, id, pages, after).await,
        }
    }
}

#[cfg(test)]
mod tests;
