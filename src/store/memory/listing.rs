//! One page of a listing out of a sorted map: pure, and as long as the page, not as the bucket. Behind a common
//! prefix it seeks to the key that follows all keys below it.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::store::{Key, ListRequest};

/// Stores give at most this many entries a page, whatever is asked.
pub const MAX_PAGE: usize = 1000;

/// What a page holds and how the next one starts.
#[derive(Debug, PartialEq, Eq)]
pub struct Page<'a, V> {
    pub objects: Vec<(&'a Key, &'a V)>,
    pub prefixes: Vec<Key>,
    pub next: Option<String>,
}

/// The page that is asked for; none when its token is not one of ours.
pub fn page<'a, V>(keys: &'a BTreeMap<Key, V>, request: &ListRequest) -> Option<Page<'a, V>> {
    let ListRequest { prefix, delimited, after, token, max_keys, any_order: _ } = request;
    let max = usize::from(*max_keys).clamp(1, MAX_PAGE);
    let mut page = Page { objects: Vec::new(), prefixes: Vec::new(), next: None };
    let mut from = match (token, after) {
        (Some(token), _) => parse_token(token)?,
        (None, Some(after)) if after >= prefix => Bound::Excluded(after.clone()),
        (None, _) => Bound::Included(prefix.clone()),
    };
    // How the entry that was taken last is followed; becomes the token when there is more.
    let mut last = String::new();
    loop {
        let mut jump = None;
        for (key, value) in keys.range((from.clone(), Bound::Unbounded)) {
            let Some(rest) = key.as_bytes().strip_prefix(prefix.as_bytes()) else { return Some(page) };
            if page.objects.len() + page.prefixes.len() == max {
                page.next = Some(last);
                return Some(page);
            }
            match rest.iter().position(|&b| b == b'/').filter(|_| *delimited) {
                None => {
                    last = token_after("k", key);
                    page.objects.push((key, value));
                }
                Some(slash) => {
                    let common = prefix.join(&rest[..=slash]);
                    last = token_after("p", &common);
                    jump = Some(Bound::Included(after_prefix(&common)));
                    page.prefixes.push(common);
                    break;
                }
            }
        }
        match jump {
            Some(bound) => from = bound,
            None => return Some(page),
        }
    }
}

/// The smallest key behind all keys that start with `prefix`, which ends in `/`.
fn after_prefix(prefix: &Key) -> Key {
    let mut bytes = prefix.as_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last = b'/' + 1;
    }
    bytes.into()
}

/// Hex, because keys are bytes and tokens are text.
fn token_after(kind: &str, key: &Key) -> String {
    use std::fmt::Write;
    key.as_bytes().iter().fold(String::from(kind), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

fn parse_token(token: &str) -> Option<Bound<Key>> {
    let hex = token.get(1..)?;
    let bytes: Option<Vec<u8>> =
        (0..hex.len()).step_by(2).map(|i| hex.get(i..i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok())).collect();
    let key = Key::from(bytes?);
    match &token[..1] {
        "k" => Some(Bound::Excluded(key)),
        "p" => Some(Bound::Included(after_prefix(&key))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(prefix: &str, delimited: bool, max_keys: u16) -> ListRequest {
        ListRequest { prefix: prefix.into(), delimited, after: None, token: None, max_keys, any_order: false }
    }

    fn all(keys: &BTreeMap<Key, ()>, mut request: ListRequest) -> (Vec<String>, Vec<String>, usize) {
        let (mut objects, mut prefixes, mut pages) = (Vec::new(), Vec::new(), 0);
        loop {
            let page = page(keys, &request).expect("tokens are ours");
            assert!(page.objects.len() + page.prefixes.len() <= usize::from(request.max_keys));
            objects.extend(page.objects.iter().map(|(k, ())| k.to_string()));
            prefixes.extend(page.prefixes.iter().map(ToString::to_string));
            pages += 1;
            request.token = page.next;
            if request.token.is_none() {
                return (objects, prefixes, pages);
            }
        }
    }

    #[test]
    fn a_full_last_page_has_no_next() {
        let keys: BTreeMap<Key, ()> = ["a", "b/1", "b/2", "c"].map(|k| (Key::from(k), ())).into();
        assert_eq!(all(&keys, request("", true, 3)), (vec!["a".into(), "c".into()], vec!["b/".into()], 1));
        assert_eq!(all(&keys, request("", false, 2)).2, 2);
        assert_eq!(all(&keys, request("none", true, 2)), (vec![], vec![], 1));
    }

    #[test]
    fn a_foreign_token_is_refused() {
        for token in ["x00", "kzz", "é"] {
            assert_eq!(page(&BTreeMap::<Key, ()>::new(), &ListRequest { token: Some(token.into()), ..request("", true, 1) }), None);
        }
    }

    proptest! {
        #[test]
        fn pages_of_any_size_add_up_to_what_a_plain_scan_finds(
            names in prop::collection::btree_set("[a/0.]{1,6}", 0..60), prefix in "[a/]{0,2}", max in 1_u16..8, after in "[a/0.]{0,3}",
        ) {
            let keys: BTreeMap<Key, ()> = names.iter().map(|n| (Key::from(n.as_str()), ())).collect();
            let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
            let after = Some(after).filter(|after| !after.is_empty());
            for name in names.iter().filter(|name| name.starts_with(&prefix) && after.as_ref().is_none_or(|after| *name > after)) {
                match name[prefix.len()..].find('/') {
                    None => objects.push(name.clone()),
                    Some(slash) => prefixes.push(name[..=prefix.len() + slash].to_owned()),
                }
            }
            prefixes.dedup();
            let found = all(&keys, ListRequest { after: after.map(Key::from), ..request(&prefix, true, max) });
            prop_assert_eq!((found.0, found.1), (objects, prefixes));
        }
    }
}
