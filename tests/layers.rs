//! The direction of imports and the doors of libraries, read from the sources. It knows paths, not macros: what it
//! cannot see, a reviewer must. Invariant: a file belongs to the module that its path names.

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top: a module may name itself and what stands before it. Modules of one line do not know
/// each other.
const LAYERS: &[&[&str]] = &[
    &["started_in"],
    &["units", "sys", "metrics", "logging", "signals", "handover", "mountinfo", "panics", "process"],
    &["budget", "lasting"],
    &["store"],
    &["spill"],
    &["reader"],
    &["writer"],
    &["vfs"],
    &["admin"],
    &["fuse"],
    &["config"],
    &["transfer"],
    &["csi"],
    &["bench"],
    &["mount"],
    &["standin"],
    &["demo"],
    &["cli"],
    // The roots of the two crates.
    &["lib", "main"],
];

/// Libraries and where alone they may be named. Tests may name what they need.
const DOORS: &[(&[&str], &[&str])] = &[
    (&["fuser"], &["fuse/"]),
    (&["nix"], &["handover/peer.rs"]),
    (&["clap", "clap_complete", "clap_mangen", "anyhow", "indicatif"], &["cli/"]),
    (&["reqwest", "quick_xml", "retry_policies"], &["store/"]),
    (&["aws_", "reqsign_"], &["store/"]),
    (&["moka"], &["vfs/stat_cache", "store/"]),
    (&["s3s", "s3s_fs"], &["demo/"]),
    (&["hyper", "hyper_util"], &["store/", "demo/", "admin/"]),
    (&["tower_layer", "tower_service"], &["store/connecting.rs"]),
    (&["rustls"], &["store/reach.rs"]),
    (&["prometheus_client"], &["admin/openmetrics.rs"]),
    (&["httparse"], &["store/plain/"]),
    (&["hdrhistogram"], &["store/", "bench/"]),
    (&["csv", "plotters"], &["bench/"]),
    (&["syslog_tracing", "tracing_subscriber"], &["logging.rs"]),
    (&["toml", "strsim"], &["config/"]),
    (&["sd_notify"], &["cli/"]),
    (&["tonic", "tonic_prost", "prost"], &["csi/"]),
    (&["globset", "leaky_bucket"], &["transfer/"]),
    (&["walkdir"], &["bench/", "transfer/"]),
];

/// Words of the language that belong to one place.
const WORDS: &[(&[&str], &[&str])] = &[
    (&["unsafe"], &["sys/"]),
    // cargo reads what a build script prints.
    (&["println!", "eprintln!", "print!", "eprint!"], &["cli/", "csi/build.rs"]),
];

struct Source {
    /// Below src/, with slashes.
    path: String,
    /// Without comments and texts.
    code: String,
    /// The same, up to the tests at its end.
    product: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(files.len() > 50, "only {} sources were found", files.len());
    let read = |file: PathBuf| {
        let path = file.strip_prefix(&root).expect("it was found there").to_str().expect("our names are UTF-8").to_owned();
        Source::new(path, &fs::read_to_string(&file).expect("it was listed"))
    };
    files.into_iter().map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the sources") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

impl Source {
    fn new(path: String, text: &str) -> Self {
        let code = bare(text);
        let only_tests = path.ends_with("/tests.rs") || path.contains("/tests/");
        let end = if only_tests { 0 } else { code.find("#[cfg(test)]\nmod tests {").unwrap_or(code.len()) };
        let product = code[..end].to_owned();
        Self { path, code, product }
    }

    /// The module of the crate that it belongs to.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_within(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// Modules of the crate named as `crate::module` or inside `crate::{...}`.
    fn imports(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (at, _) in self.code.match_indices("crate::") {
            let rest = &self.code[at + "crate::".len()..];
            match rest.strip_prefix('{') {
                Some(group) => found.extend(heads(group)),
                None => found.push(word(rest).to_owned()),
            }
        }
        found
    }

    /// Whether the product names `name` as the first part of a path; a trailing `_` stands for any ending.
    fn names(&self, name: &str) -> bool {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        self.product.match_indices(name).any(|(at, _)| {
            let before = self.product[..at].chars().next_back();
            let rest = &self.product[at + name.len()..];
            let after = if name.ends_with('_') { &rest[word(rest).len()..] } else { rest };
            !before.is_some_and(|c| is_part(c) || c == ':' || c == '.') && after.starts_with("::")
                || self.product[..at].ends_with("use ") && after.starts_with(';')
        })
    }
}

/// The identifier at the beginning of a text.
fn word(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

/// The first identifiers of a `{a, b::c, d::{e, f}}` whose opening brace is gone.
fn heads(group: &str) -> Vec<String> {
    let (mut depth, mut start, mut found) = (0, true, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            c if start && !c.is_whitespace() => {
                found.push(word(&group[at..]).to_owned());
                start = false;
            }
            _ => {}
        }
    }
    found
}

/// Code without comments and without what stands in quotes.
fn bare(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(quotes) = raw_opening(&code, rest) {
            let closing = format!("\"{}", "#".repeat(quotes));
            let body = quotes + 2;
            rest[body..].find(&closing).map_or(rest.len(), |end| body + end + closing.len())
        } else if c == '"' {
            quoted(rest)
        } else if let Some(length) = character(rest) {
            length
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        rest = &rest[skipped..];
    }
    code
}

/// How many `#` a raw string that begins here has.
fn raw_opening(before: &str, rest: &str) -> Option<usize> {
    let ends_word = before.chars().next_back().is_some_and(|c| c.is_alphanumeric() && c != 'b' || c == '_');
    let hashes = rest.strip_prefix('r').filter(|_| !ends_word)?;
    let count = hashes.chars().take_while(|&c| c == '#').count();
    hashes[count..].starts_with('"').then_some(count)
}

fn quoted(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a character literal; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    if let Some(escape) = body.strip_prefix('\\') {
        return escape.get(1..)?.find('\'').map(|end| end + 4);
    }
    let c = body.chars().next()?;
    body[c.len_utf8()..].starts_with('\'').then_some(c.len_utf8() + 2)
}

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// `crate::module` of `source` if it points up or sideways.
fn wrong_imports(source: &Source) -> Vec<String> {
    let own = source.module();
    let rank_of_own = rank(own).unwrap_or_else(|| panic!("{}: its module has no place in LAYERS", source.path));
    let points_down = |import: &str| import == own || rank(import).is_some_and(|rank| rank < rank_of_own);
    source.imports().into_iter().filter(|import| !points_down(import)).map(|import| format!("{} imports {import}", source.path)).collect()
}

fn wrong_doors(source: &Source) -> Vec<String> {
    let libraries = DOORS.iter().filter(|(_, places)| !source.is_within(places)).flat_map(|(names, _)| names.iter());
    let libraries = libraries.filter(|name| source.names(name)).map(|name| format!("{} names {name}", source.path));
    let words = WORDS.iter().filter(|(_, places)| !source.is_within(places)).flat_map(|(words, _)| words.iter());
    let is_word = |code: &str, at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let words = words.filter(|word| source.product.match_indices(**word).any(|(at, _)| is_word(&source.product, at)));
    libraries.chain(words.map(|word| format!("{} says {word}", source.path))).collect()
}

#[test]
fn imports_point_down() {
    let wrong: Vec<_> = sources().iter().flat_map(wrong_imports).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_library_has_one_door() {
    let wrong: Vec<_> = sources().iter().flat_map(wrong_doors).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_source_opens_with_what_it_is() {
    // The tests of a module say no more than the module above them.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let silent = |source: &Source| !fs::read_to_string(root.join(&source.path)).is_ok_and(|text| text.starts_with("//! "));
    let product = sources().into_iter().filter(|source| !source.path.ends_with("/tests.rs"));
    let wrong: Vec<_> = product.filter(silent).map(|source| source.path).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_wrong_import_is_seen_in_every_form() {
    for text in ["use crate::vfs::Names;", "use crate::{budget, vfs::{Names, store}};", "fn f() -> crate::vfs::Result {}"] {
        let source = Source::new("reader/mod.rs".into(), text);
        assert_eq!(wrong_imports(&source), ["reader/mod.rs imports vfs"], "{text}");
    }
    let inside = Source::new(
        "reader/mod.rs".into(),
        "// crate::vfs\nlet a = \"crate::vfs\"; use crate::store::{self, Key};\nlet c = '\"'; let d = r#\"crate::vfs\"#;",
    );
    assert_eq!(wrong_imports(&inside), Vec::<String>::new());
    assert_eq!(inside.imports(), ["store"]);
}

#[test]
fn a_library_outside_its_door_is_seen() {
    for (text, seen) in [
        ("use fuser::Config;", "vfs/mod.rs names fuser"),
        ("use aws_sdk_s3::Client;", "vfs/mod.rs names aws_"),
        ("use moka;", "vfs/mod.rs names moka"),
        ("fn f() { unsafe { g() } }", "vfs/mod.rs says unsafe"),
        ("fn f() { eprintln!(\"\") }", "vfs/mod.rs says eprintln!"),
    ] {
        assert_eq!(wrong_doors(&Source::new("vfs/mod.rs".into(), text)), [seen], "{text}");
    }
    for text in ["#[cfg(test)]\nmod tests { use moka::A; }", "use super::fuser::A;", "let x = my_moka::y;", "// fuser::Config"] {
        assert_eq!(wrong_doors(&Source::new("vfs/mod.rs".into(), text)), Vec::<String>::new(), "{text}");
    }
}
