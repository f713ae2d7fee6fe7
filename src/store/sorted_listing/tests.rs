//! A directory bucket that lists in another order each time, against the listing of a store in order.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::*;
use crate::store::ETag;
use crate::store::memory::listing;

/// Lists in an order that depends on the number of the listing, `page` names at a time, as a directory bucket takes requests.
#[derive(Debug)]
struct Shuffled {
    keys: BTreeMap<Key, ()>,
    page: usize,
    requests: Mutex<usize>,
    /// The next request fails.
    fails: Mutex<bool>,
    /// Common prefixes without objects.
    phantoms: Mutex<Vec<Key>>,
}

impl Shuffled {
    fn new(keys: &[&str], page: usize) -> SortedLister<Self> {
        let keys = keys.iter().map(|key| (Key::from(*key), ())).collect();
        SortedLister::new(Self { keys, page, requests: Mutex::default(), fails: Mutex::default(), phantoms: Mutex::default() })
    }
}

#[async_trait]
impl Lister for Shuffled {
    async fn list_page(&self, request: &ListRequest, _: &Tell<'_>) -> (Option<Edition>, Result<ListPage>) {
        *self.requests.lock() += 1;
        assert!(request.prefix.as_bytes().is_empty() || request.prefix.is_prefix(), "{}", request.prefix);
        assert_eq!(request.after, None);
        if std::mem::take(&mut *self.fails.lock()) {
            return (None, Err(Error::new(ErrorKind::Timeout, Op::List, &request.prefix, "no answer")));
        }
        let all = listing::page(&self.keys, &ListRequest { token: None, max_keys: 1000, ..request.clone() }).unwrap();
        let mut entries: Vec<Entry> = all.objects.iter().map(|(key, ())| Entry::Object(meta(key), None)).collect();
        entries.extend(all.prefixes.iter().cloned().map(Entry::Prefix));
        let is_of_level =
            |prefix: &&Key| request.delimited && prefix.as_bytes().starts_with(request.prefix.as_bytes()) && **prefix != request.prefix;
        entries.extend(self.phantoms.lock().iter().filter(is_of_level).cloned().map(Entry::Prefix));
        // A fixed order that is not that of the bytes.
        entries.sort_by_key(|entry| {
            entry.key().as_bytes().iter().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into())) % 97
        });
        let start: usize = request.token.as_deref().map_or(0, |token| token.parse().unwrap());
        let end = entries.len().min(start + self.page.min(request.max_keys.into()));
        let mut page = ListPage { next: (end < entries.len()).then(|| end.to_string()), ..ListPage::default() };
        for entry in entries.drain(start..end) {
            match entry {
                Entry::Object(meta, sum) => {
                    page.objects.push(meta);
                    page.sums.push(sum);
                }
                Entry::Prefix(key) => page.prefixes.push(key),
            }
        }
        (None, Ok(page))
    }
}

fn meta(key: &Key) -> ObjectMeta {
    ObjectMeta { key: key.clone(), size: 1, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH }
}

fn request(prefix: &str, delimited: bool, max_keys: u16) -> ListRequest {
    ListRequest { prefix: prefix.into(), delimited, after: None, token: None, max_keys, any_order: false }
}

/// All pages: objects and common prefixes together, in the order in which they came.
async fn all(lister: &SortedLister<Shuffled>, mut request: ListRequest) -> Vec<Key> {
    let mut found = Vec::new();
    loop {
        let page = lister.list_page(&request, &|_| {}).await.1.unwrap();
        assert!(page.objects.len() + page.prefixes.len() <= usize::from(request.max_keys));
        assert_eq!(page.sums.len(), page.objects.len());
        let mut keys: Vec<Key> = page.objects.iter().map(|meta| meta.key.clone()).chain(page.prefixes).collect();
        keys.sort();
        found.extend(keys);
        let Some(next) = page.next else { return found };
        assert_ne!(Some(&next), request.token.as_ref(), "a token leads on");
        request.token = Some(next);
    }
}

const KEYS: [&str; 14] = ["a", "a/", "a/b", "a/b/c", "a/b/d", "a/z z", "a-b", "b/x/1", "b/x/2", "b/y", "c%20", "d+", "\u{e9}/1", "z"];

#[tokio::test]
async fn unordered_listing_is_returned_in_order() {
    let ordered: BTreeMap<Key, ()> = KEYS.iter().map(|key| (Key::from(*key), ())).collect();
    for (page, max_keys) in [(1000, 1000), (1, 1000), (2, 3), (3, 1), (1, 2), (1000, 2)] {
        let lister = Shuffled::new(&KEYS, page);
        for (prefix, delimited, after) in [
            ("", false, None),
            ("", true, None),
            ("a/", true, None),
            ("a/", false, Some("a/b")),
            ("a/b", true, None),
            ("a", true, None),
            ("b/x", false, None),
            ("", true, Some("a/z")),
            ("", false, Some("zz")),
            ("nothing/", true, None),
        ] {
            let wanted = ListRequest { after: after.map(Key::from), ..request(prefix, delimited, 1000) };
            let expected = listing::page(&ordered, &wanted).unwrap();
            let mut expected: Vec<Key> = expected.objects.iter().map(|(key, ())| (*key).clone()).chain(expected.prefixes).collect();
            expected.sort();
            let found = all(&lister, ListRequest { max_keys, ..wanted }).await;
            assert_eq!(found, expected, "{prefix:?} {delimited} {after:?}, pages of {page}, at most {max_keys}");
        }
        assert!(lister.listings.lock().by_id.is_empty(), "what is read to its end is kept no longer");
    }
}

#[tokio::test]
async fn failed_page_of_unordered_listing_is_asked_for_again() {
    let lister = Shuffled::new(&KEYS, 4);
    let first = lister.list_page(&request("", false, 1000), &|_| {}).await.1.unwrap();
    assert!(first.objects.is_empty());
    *lister.inner.fails.lock() = true;
    let second = ListRequest { token: first.next, ..request("", false, 1000) };
    assert_eq!(lister.list_page(&second, &|_| {}).await.1.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(all(&lister, second).await.len(), KEYS.len());
    // 14 names in pages of 4, and the request that failed.
    assert_eq!(*lister.inner.requests.lock(), 4 + 1);
}

#[tokio::test]
async fn forgotten_unordered_listing_goes_on_where_it_was() {
    let lister = Shuffled::new(&KEYS, 4);
    let mut request = request("", false, 5);
    let mut found = Vec::new();
    loop {
        let page = lister.list_page(&request, &|_| {}).await.1.unwrap();
        found.extend(page.objects.iter().map(|meta| meta.key.clone()));
        if !page.objects.is_empty() {
            // As after MAX_IDLE.
            lister.listings.lock().by_id.clear();
        }
        let Some(next) = page.next else { break };
        request.token = Some(next);
    }
    let mut expected: Vec<Key> = KEYS.iter().map(|key| Key::from(*key)).collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn listing_in_any_order_costs_a_request_a_page() {
    let lister = Shuffled::new(&KEYS, 1000);
    let mut any = ListRequest { any_order: true, ..request("a/", false, 1) };
    let mut found = Vec::new();
    loop {
        let page = lister.list_page(&any, &|_| {}).await.1.unwrap();
        found.extend(page.objects.into_iter().map(|meta| meta.key));
        let Some(next) = page.next else { break };
        any.token = Some(next);
    }
    found.sort();
    assert_eq!(found, ["a/", "a/b", "a/b/c", "a/b/d", "a/z z"].map(Key::from));
    assert_eq!(*lister.inner.requests.lock(), 5);
}

#[tokio::test(start_paused = true)]
async fn unordered_listings_that_wait_are_given_up_and_no_others() {
    let lister = Shuffled::new(&KEYS, 4);
    for _ in 0..MANY_LISTINGS + 3 {
        lister.list_page(&request("", false, 1000), &|_| {}).await.1.unwrap();
    }
    assert_eq!(lister.listings.lock().by_id.len(), MANY_LISTINGS + 3);
    tokio::time::advance(MAX_IDLE_OF_MANY).await;
    lister.list_page(&request("", false, 1000), &|_| {}).await.1.unwrap();
    assert_eq!(lister.listings.lock().by_id.len(), 1);
    let odd = ListRequest { token: Some("of another store".into()), ..request("", false, 1) };
    assert_eq!(lister.list_page(&odd, &|_| {}).await.1.unwrap_err().kind, ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn pages_of_unordered_listing_say_when_it_began() {
    let lister = Shuffled::new(&KEYS, 4);
    let (began, step) = (Instant::now(), Duration::from_secs(7));
    let mut request = request("", false, 5);
    let mut asked = Vec::new();
    loop {
        let page = lister.list_page(&request, &|_| {}).await.1.unwrap();
        asked.extend(page.asked.filter(|_| !page.objects.is_empty()));
        tokio::time::advance(step).await;
        let Some(next) = page.next else { break };
        request.token = Some(next);
    }
    assert_eq!(asked, [began; 3]);
}

#[tokio::test]
async fn prefix_without_objects_hides_no_object() {
    let lister = Shuffled::new(&["a", "a/b", "c", "d"], 2);
    // Directories of uploads that were begun.
    lister.inner.phantoms.lock().extend(["c/", "e/"].map(Key::from));
    let mut request = request("", true, 1000);
    let page = loop {
        let page = lister.list_page(&request, &|_| {}).await.1.unwrap();
        match page.next {
            Some(next) => request.token = Some(next),
            None => break page,
        }
    };
    assert_eq!(page.objects.iter().map(|meta| meta.key.clone()).collect::<Vec<_>>(), ["a", "c", "d"].map(Key::from));
    assert_eq!(page.prefixes, ["a/", "e/"].map(Key::from));
}
