use std::cell::RefCell;
use std::collections::HashMap;

use super::*;
use crate::store::{ETag, ErrorKind, Key, ListPage, ObjectMeta, Op};

/// A walk without a store: what it asks for is written down, what it is told comes from the test.
struct Paper {
    state: State,
    asked: RefCell<Vec<(Id, Option<String>)>>,
}

impl Paper {
    fn new() -> Self {
        Self { state: State::new(Merge::new(Key::root())), asked: RefCell::default() }
    }

    /// Whether a reader finds entries at `position`, or the end; None: it waits.
    fn read(&mut self, position: u64) -> Option<Result<bool, Error>> {
        let found = self.state.step(position, |id, token| ask(&self.asked, id, token));
        found.map(|found| found.map(|found| matches!(found, Found::Entries(_))))
    }

    fn tell(&mut self, request: usize, token: &str) {
        let id = self.asked.borrow()[request].0;
        self.state.on_token(id, token, |id, token| ask(&self.asked, id, token));
    }

    /// The answer to the request: one object, and the token of the next page.
    fn answer(&mut self, request: usize, name: &str, next: Option<&str>) {
        let modified = std::time::SystemTime::UNIX_EPOCH;
        let object = ObjectMeta { key: Key::from(name), size: 1, etag: ETag::from("\"e\""), modified };
        let id = self.asked.borrow()[request].0;
        let page = ListPage { objects: vec![object], prefixes: vec![], next: next.map(Into::into), sums: vec![], asked: None };
        let mut turn = self.state.on_answer(id, Ok(Came { page, asked: Instant::now(), links: HashMap::new(), carries: false }));
        while let Some((Came { page, .. }, mut merge)) = turn {
            let token = page.next.clone();
            let entries = merge.on_page(page).into();
            turn = self.state.on_merged(Page { entries, learnt: Instant::now(), carries: false }, 1000, token, merge);
        }
    }

    fn asked(&self) -> Vec<Option<String>> {
        self.asked.borrow().iter().map(|(_, token)| token.clone()).collect()
    }

    fn names(&self) -> Vec<String> {
        let names = self.state.pages.iter().flat_map(|page| page.entries.iter());
        names.map(|entry| String::from_utf8_lossy(entry.name()).into_owned()).collect()
    }
}

fn ask(asked: &RefCell<Vec<(Id, Option<String>)>>, id: Id, token: Option<String>) -> AbortHandle {
    asked.borrow_mut().push((id, token));
    tokio::spawn(std::future::pending::<()>()).abort_handle()
}

fn tokens(tokens: &[&str]) -> Vec<Option<String>> {
    std::iter::once(None).chain(tokens.iter().map(|token| Some((*token).to_owned()))).collect()
}

#[tokio::test]
async fn the_next_page_is_asked_for_when_its_token_is_known_and_a_reader_waits() {
    let mut walk = Paper::new();
    assert!(walk.read(0).is_none());
    walk.tell(0, "b");
    assert_eq!(walk.asked(), tokens(&["b"]), "before the page itself has come");
    walk.tell(1, "c");
    assert_eq!(walk.asked(), tokens(&["b"]), "never two pages ahead");
    walk.answer(0, "a", Some("b"));
    walk.answer(1, "b", Some("c"));
    assert_eq!(walk.names(), ["a"], "b may be the name of a directory that is still to come");
    assert!(walk.read(1).is_none());
    assert_eq!(walk.asked(), tokens(&["b", "c"]));
    walk.answer(2, "c", None);
    assert_eq!(walk.names(), ["a", "b", "c"]);
    assert!(walk.read(3).is_some_and(|end| matches!(end, Ok(false))));
}

#[tokio::test]
async fn a_page_that_is_fetched_while_another_is_read_asks_for_nothing_yet() {
    let mut walk = Paper::new();
    walk.read(0);
    walk.answer(0, "a", Some("b"));
    walk.read(0);
    walk.answer(1, "b", Some("c"));
    assert!(walk.read(0).is_some(), "a is read, and the page after it is under way or there");
    assert_eq!(walk.asked(), tokens(&["b", "c"]));
    walk.tell(2, "d");
    assert!(walk.read(0).is_some());
    assert_eq!(walk.asked(), tokens(&["b", "c"]), "nobody has come to the end of what there is");
    assert!(walk.read(1).is_none());
    assert_eq!(walk.asked(), tokens(&["b", "c", "d"]));
}

#[tokio::test]
async fn pages_are_taken_in_one_after_the_other_whatever_comes_first() {
    let mut walk = Paper::new();
    walk.read(0);
    walk.tell(0, "b");
    walk.answer(1, "b", None);
    assert!(walk.names().is_empty() && walk.read(0).is_none());
    walk.answer(0, "a", Some("b"));
    assert_eq!(walk.names(), ["a", "b"]);
    assert!(walk.read(2).is_some_and(|end| matches!(end, Ok(false))));
    assert_eq!(walk.asked(), tokens(&["b"]));
}

#[tokio::test]
async fn a_page_asked_for_with_another_token_than_the_page_ends_with_is_not_taken() {
    let mut walk = Paper::new();
    walk.read(0);
    walk.tell(0, "wrong");
    walk.answer(1, "x", None);
    walk.answer(0, "a", Some("b"));
    assert!(walk.read(1).is_none());
    walk.answer(2, "b", None);
    assert_eq!((walk.names(), walk.asked()), (vec!["a".to_owned(), "b".to_owned()], tokens(&["wrong", "b"])));
}

#[tokio::test]
async fn an_error_waits_for_its_reader_and_the_page_is_asked_for_again() {
    let mut walk = Paper::new();
    walk.read(0);
    walk.tell(0, "b");
    let id = walk.asked.borrow()[0].0;
    let error = store::Error::new(ErrorKind::Timeout, Op::List, &Key::root(), "late");
    assert!(walk.state.on_answer(id, Err(error)).is_none());
    walk.answer(1, "b", None);
    assert!(walk.names().is_empty(), "a page whose predecessor failed is no page");
    assert!(walk.read(0).is_some_and(|result| result.is_err()));
    assert!(walk.read(0).is_none());
    assert_eq!(walk.asked(), [None, Some("b".to_owned()), None]);
}
