//! Programs that go through trees, in front of a store with small pages.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::SystemTime;

use super::*;
use crate::store::{ETag, ObjectMeta};

const PAGE: usize = 50;

/// A bucket, and what is known of it: the directories that were listed.
struct Sim {
    keys: BTreeSet<String>,
    known: HashSet<String>,
    walkers: Walkers,
    under_way: Option<Ask>,
    /// Requests: of single directories, and pages without delimiter.
    own: usize,
    pages: usize,
}

impl Sim {
    fn new(keys: impl IntoIterator<Item = String>) -> Self {
        let keys = keys.into_iter().collect();
        Self { keys, known: HashSet::new(), walkers: Walkers::new(10_000), under_way: None, own: 0, pages: 0 }
    }

    /// Every directory, each before what is in it, in order.
    fn directories(&self) -> Vec<String> {
        let all: BTreeSet<String> = self.keys.iter().flat_map(|key| key.match_indices('/').map(|(at, _)| key[..=at].to_owned())).collect();
        all.into_iter().collect()
    }

    fn read_all<'a>(&mut self, directories: impl IntoIterator<Item = &'a str>) -> (usize, usize) {
        for directory in directories {
            self.read(directory);
        }
        (self.own, self.pages)
    }

    fn read(&mut self, directory: &str) {
        let advice = self.on_read(directory);
        if advice.wait {
            self.answer();
            self.on_read(directory);
        }
        if !self.known.contains(directory) {
            self.own += 1;
            self.known.insert(directory.to_owned());
            // As long as this took a page takes too.
            self.answer();
        }
    }

    /// Of pages for several who read one comes before the next is asked for.
    fn on_read(&mut self, directory: &str) -> Advice {
        let (keys, known) = (&self.keys, &self.known);
        let left_out = |above: &[u8], from: Option<&[u8]>, to: &[u8]| {
            let text = |bytes| std::str::from_utf8(bytes).unwrap();
            let (above, from, to) = (text(above), from.map_or(text(above), text), text(to));
            if !known.contains(above) {
                return None;
            }
            let below =
                keys.range(from.to_owned()..to.to_owned()).filter(|key| key.starts_with(above) && !key.starts_with(from) | (from == above));
            let names: BTreeSet<&str> = below.filter_map(|key| Some(&key[..above.len() + key[above.len()..].find('/')?])).collect();
            Some(names.len())
        };
        let advice = self.walkers.on_read(&directory.into(), known.contains(directory), Instant::now(), &left_out);
        if let Some(ask) = &advice.ask {
            self.answer();
            self.under_way = Some(ask.clone());
        }
        advice
    }

    /// The page that is under way comes.
    fn answer(&mut self) {
        let Some(Ask { stream, top, after, token }) = self.under_way.take() else { return };
        self.pages += 1;
        let after = token.unwrap_or_else(|| after.to_string());
        let mut keys = self.keys.iter().filter(|key| key.starts_with(&*top.to_string()) && **key > after);
        let object =
            |key: &String| ObjectMeta { key: (**key).into(), size: 1, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH };
        let objects: Vec<_> = keys.by_ref().take(PAGE).map(object).collect();
        let next = keys.next().and_then(|_| objects.last().map(|last| last.key.to_string()));
        let page = ListPage { objects, next: next.clone(), ..ListPage::default() };
        let listed = self.walkers.on_page(stream, page, Instant::now());
        self.known.extend(listed.iter().map(|listed| listed.directory.to_string()));
        self.walkers.on_learnt(stream, next);
    }
}

/// `wide` directories in each of `wide`, with so many files.
fn tree(wide: usize, files: usize) -> Sim {
    let below = move |(a, b)| (0..files).map(move |file| format!("t/d{a:02}/e{b:02}/f{file:03}"));
    Sim::new((0..wide).flat_map(|a| (0..wide).map(move |b| (a, b))).flat_map(below))
}

#[tokio::test(start_paused = true)]
async fn who_goes_through_a_tree_has_it_in_pages() {
    let mut sim = tree(10, 3);
    let directories = sim.directories();
    assert_eq!(directories.len(), 111);
    let (own, pages) = sim.read_all(directories.iter().map(String::as_str));
    // Of 300 keys: six pages of 50, and one more because the first began in the middle.
    assert!(own <= 4 && pages <= 7, "{own}, {pages}");
}

#[tokio::test(start_paused = true)]
async fn level_by_level_too() {
    let mut sim = tree(10, 3);
    let mut directories = sim.directories();
    directories.sort_by_key(|directory| directory.matches('/').count());
    let (own, pages) = sim.read_all(directories.iter().map(String::as_str));
    // Level two is in the pages that level one was for; the third begins anew.
    assert!(own + pages <= 25, "{own}, {pages}");
}

#[tokio::test(start_paused = true)]
async fn threads_that_share_a_tree_are_each_followed() {
    let mut sim = tree(16, 3);
    let directories = sim.directories();
    sim.read("t/");
    let halves = directories[1..].split_at(directories.len() / 2);
    for (one, other) in halves.0.iter().zip(halves.1) {
        sim.read(one);
        sim.read(other);
    }
    assert!(sim.own <= 8 && sim.pages <= 22, "{}, {}", sim.own, sim.pages);
}

#[tokio::test(start_paused = true)]
async fn directories_here_and_there_have_next_to_nothing_asked_for() {
    let mut sim = Sim::new((0..9973).map(|n| format!("t/d{n:04}/f")));
    sim.read("t/");
    let order: Vec<String> = (1..=300).map(|n| format!("t/d{:04}/", n * 3877 % 9973)).collect();
    let (own, pages) = sim.read_all(order.iter().map(String::as_str));
    assert!(own == 301 && pages <= 3, "{own}, {pages}");
}

#[tokio::test(start_paused = true)]
async fn pages_in_vain_are_few() {
    // Directories of which what is below them is left out, and directories that are larger than a page.
    let deep = (0..100).flat_map(|n| (0..200).map(move |file| format!("t/d{n:02}/below/f{file:03}")));
    let large = (0..100).flat_map(|n| (0..3 * PAGE).map(move |file| format!("t/d{n:02}/f{file:03}")));
    for keys in [deep.collect::<Vec<_>>(), large.collect()] {
        let mut sim = Sim::new(keys);
        let order: Vec<String> = (0..100).map(|n| format!("t/d{n:02}/")).collect();
        sim.read("t/");
        let (own, pages) = sim.read_all(order.iter().map(String::as_str));
        assert!(own == 101 && pages <= 2, "{own}, {pages}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_stops_has_cost_no_more_than_was_spared() {
    for reads in 1..111 {
        let mut sim = tree(10, 3);
        let directories = sim.directories();
        sim.read_all(directories[..reads].iter().map(String::as_str));
        sim.answer();
        assert!(sim.own + sim.pages <= reads + 1, "{reads}: {}, {}", sim.own, sim.pages);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_or_keeps_no_order_is_left_alone() {
    let mut sim = tree(10, 3);
    for directory in ["t/", "t/d00/"] {
        sim.read(directory);
    }
    let ask = sim.on_read("t/d00/e00/").ask.expect("the third in a row");
    sim.under_way = None;
    sim.walkers.on_failed(ask.stream);
    assert_eq!(sim.on_read("t/d00/e01/"), Advice::default());

    let mut sim = tree(10, 3);
    for directory in ["t/", "t/d00/"] {
        sim.read(directory);
    }
    let ask = sim.on_read("t/d00/e00/").ask.expect("the third in a row");
    let object = |key: &str| ObjectMeta { key: key.into(), size: 1, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH };
    let page = ListPage { objects: vec![object("t/d00/e01/b"), object("t/d00/e01/a")], ..ListPage::default() };
    assert!(sim.walkers.on_page(ask.stream, page, Instant::now()).is_empty());
    sim.walkers.on_learnt(ask.stream, None);
    let rest: Vec<Advice> = sim.directories()[3..].iter().map(|directory| sim.on_read(directory)).collect();
    assert!(rest.iter().all(|advice| *advice == Advice::default()));
}

#[tokio::test(start_paused = true)]
async fn neighbours_are_known_by_their_names_alone() {
    let now = Instant::now();
    let leads = |last: &str, to: &str| {
        let mut walkers = Walkers::new(100);
        walkers.on_read(&last.into(), false, now, &|_, _, _| None);
        walkers.all[0].leads_to(&to.into(), &|_, _, _| None)
    };
    let table: BTreeMap<(&str, &str), bool> = [
        (("t/", "t/a/"), true),
        (("t/a/", "t/b/"), true),
        (("t/a/x/y/", "t/b/"), true),
        (("", "a/"), true),
        (("t/b/", "t/a/"), false),
        (("t/a/", "t/"), false),
        (("t/a/", "t/b/c/"), false),
        (("t/a/", "u/"), true),
        (("t/a/", "u/v/"), false),
    ]
    .into();
    for ((last, to), expected) in table {
        assert_eq!(leads(last, to), expected, "{last} to {to}");
    }
}
