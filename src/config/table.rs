//! The one table of options: file, environment, flags, `-o`, help and `--print-config` all read it, so that nothing
//! is listed twice. Holds no values and decides nothing. Invariant: no word names two options.

use std::time::Duration;

use super::program::Program;
use super::value::Kind;
use crate::units::ByteSize;

mod rows;

pub use rows::OPTIONS;

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Canonical name, as in the file and after `--`.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Native default; none: not set.
    pub default: Option<&'static str>,
    /// Default under the name of ossfs (version 1), where it differs.
    pub ossfs: Option<&'static str>,
    /// Default under the name of ossfs2, where it differs.
    pub ossfs2: Option<&'static str>,
    /// Default under the name of s3fs, where it differs.
    pub s3fs: Option<&'static str>,
    /// Default under the name of Mountpoint, where it differs.
    pub mountpoint: Option<&'static str>,
    /// Other spellings.
    pub aliases: &'static [Alias],
    /// Whether `mount` has a flag of this name; the others are positional, or must not be seen in a process list.
    pub has_flag: bool,
    /// One letter for the flag.
    pub short: Option<char>,
    /// Why it cannot be changed while it is mounted; none: it can.
    pub fixed: Option<&'static str>,
    /// Which group of the help it belongs to.
    pub group: &'static str,
    pub help: &'static str,
}

/// Another spelling of an option.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    pub word: &'static str,
    pub rule: Rule,
}

/// How the value of an alias becomes the value of the option.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// As it is.
    Same,
    /// A bare number counts in this unit.
    Unit(&'static str),
    /// A switch: on means this value, off means nothing.
    Sets(&'static str),
    /// A switch with the opposite meaning.
    Opposite,
    /// These words become those; others stay as they are.
    Words(&'static [(&'static str, &'static str)]),
    /// A directory: the option is this file in it. The standard streams are files already.
    FileIn(&'static str),
    /// Without a value it means this one.
    OrElse(&'static str),
    /// As it is, but these values set nothing: they are how another program writes that it is off.
    Unless(&'static [&'static str]),
    /// This value, whatever stands behind the word.
    Always(&'static str),
    /// The value behind this text.
    Behind(&'static str),
    /// The permission bits that an umask leaves.
    Unmasked,
}

impl Rule {
    /// Whether the word stands alone on a command line.
    pub fn is_switch(self, spec: &Spec) -> bool {
        match self {
            Self::Sets(_) | Self::Opposite | Self::OrElse(_) => true,
            Self::Always(_) => false,
            _ => spec.kind.is_flag(),
        }
    }
}

impl Spec {
    /// Name of its environment variable.
    pub fn variable(&self) -> String {
        format!("WINDLASS_{}", self.name.replace('-', "_").to_ascii_uppercase())
    }

    /// Whether values of it must not be shown.
    pub fn is_secret(&self) -> bool {
        self.kind == Kind::Secret
    }

    /// Its default under the name of another program, where it differs.
    pub fn default_of(&self, program: Program) -> Option<&'static str> {
        match program {
            Program::Native => None,
            Program::Ossfs => self.ossfs,
            Program::Ossfs2 => self.ossfs2,
            Program::S3fs => self.s3fs,
            Program::Mountpoint => self.mountpoint,
        }
    }
}

/// The option a word names, and how its value is read.
pub fn find(word: &str) -> Option<(&'static Spec, Rule)> {
    let canonical = word.replace('_', "-");
    if let Some(spec) = OPTIONS.iter().find(|spec| spec.name == canonical) {
        return Some((spec, Rule::Same));
    }
    let plain = word.replace('-', "_");
    OPTIONS.iter().find_map(|spec| spec.aliases.iter().find(|alias| alias.word == plain).map(|alias| (spec, alias.rule)))
}

/// The option of this canonical name.
pub fn named(name: &str) -> &'static Spec {
    OPTIONS.iter().find(|spec| spec.name == name).expect("code names only options of the table; a test gathers them all")
}

/// Returns the known option that is nearest to an unknown word, in the spelling the user seems to prefer. `more` has words with underscores that the
/// program of the command line knows too.
pub fn nearest(word: &str, more: impl Iterator<Item = &'static str>) -> Option<String> {
    let underscored = word.contains('_');
    let spell = |name: &str| if underscored { name.replace('-', "_") } else { name.to_owned() };
    let known =
        OPTIONS.iter().flat_map(|spec| std::iter::once(spell(spec.name)).chain(spec.aliases.iter().map(|alias| alias.word.to_owned())));
    let more = more.map(|name| if underscored { name.to_owned() } else { name.replace('_', "-") });
    nearest_of(word, known.chain(more), 0.75)
}

/// Returns the one of `known` that is nearest to `word`, when their likeness (Jaro-Winkler: 0 to 1) is above `least`.
pub fn nearest_of(word: &str, known: impl Iterator<Item = String>, least: f64) -> Option<String> {
    known
        .map(|name| (strsim::jaro_winkler(&name.to_ascii_lowercase(), &word.to_ascii_lowercase()), name))
        .filter(|(likeness, _)| *likeness > least)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

const fn count(min: u64, max: u64) -> Kind {
    Kind::Count { min, max, auto: false }
}

const fn count_or_auto(min: u64, max: u64) -> Kind {
    Kind::Count { min, max, auto: true }
}

const fn size(min: ByteSize, max: ByteSize) -> Kind {
    Kind::Size { min, max, step: ByteSize::bytes(1), bare_max: 0, auto: false }
}

const fn time(min_ms: u64, max_secs: u64) -> Kind {
    Kind::Time { min: Duration::from_millis(min_ms), max: Duration::from_secs(max_secs), never: false }
}

const fn ttl() -> Kind {
    Kind::Time { min: Duration::ZERO, max: Duration::from_secs(365 * 86_400), never: true }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_word_names_two_options() {
        let mut seen = HashSet::new();
        for spec in OPTIONS {
            assert!(seen.insert(spec.name.replace('-', "_")), "{}", spec.name);
            assert!(spec.aliases.iter().all(|alias| seen.insert(alias.word.to_owned())), "{}", spec.name);
        }
    }

    #[test]
    fn every_default_is_a_valid_value() {
        for spec in OPTIONS {
            for text in [spec.default, spec.ossfs, spec.ossfs2, spec.s3fs, spec.mountpoint].into_iter().flatten() {
                assert!(spec.kind.parse(text).is_ok(), "{} = {text}", spec.name);
            }
        }
    }

    #[test]
    fn both_spellings_of_a_name_find_it() {
        for word in ["chunk-size", "chunk_size", "direct_read_chunk_size", "prefetch_chunk_size"] {
            assert_eq!(find(word).unwrap().0.name, "chunk-size", "{word}");
        }
        assert!(find("chunksize").is_none());
    }

    #[test]
    fn a_typo_is_answered_with_the_nearest_word_in_its_own_spelling() {
        for (typo, meant) in [
            ("chunk-sise", "chunk-size"),
            ("prefech-chunks", "prefetch-chunks"),
            ("max_stat_cache_sise", "max_stat_cache_size"),
            ("allow_othr", "allow_other"),
        ] {
            assert_eq!(nearest(typo, std::iter::empty()).as_deref(), Some(meant));
        }
        assert_eq!(nearest("xyzzy", std::iter::empty()), None);
    }
}
