//! Which names are taken, what files those of a bucket become, and what keys those of files. Pure. Invariant: no name leads out of the
//! directory it is for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::{Glob, GlobSet, GlobSetBuilder};

/// Names to take, by patterns such as `*.bin` or `logs/**`; a star also stands for slashes.
#[derive(Clone, Debug, Default)]
pub struct Pick {
    /// None: all.
    include: Option<GlobSet>,
    exclude: GlobSet,
}

/// A text that is no pattern.
#[derive(Debug, thiserror::Error)]
#[error("{0}: a pattern is a name with *, ?, [abc] or {{a,b}}")]
pub struct PickError(globset::Error);

impl Pick {
    /// Takes what one of `include` matches, or all without any, except what one of `exclude` matches.
    ///
    /// # Errors
    /// The first text that is no pattern.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self, PickError> {
        let include = if include.is_empty() { None } else { Some(set(include)?) };
        Ok(Self { include, exclude: set(exclude)? })
    }

    /// Whether it takes a name, which is relative to the directory.
    pub fn takes(&self, name: &Path) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(name)) && !self.exclude.is_match(name)
    }
}

fn set(patterns: &[String]) -> Result<GlobSet, PickError> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern).map_err(PickError)?);
    }
    set.build().map_err(PickError)
}

/// Why a name cannot be a file, or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("is absolute")]
    Absolute,
    #[error("has an empty component")]
    Empty,
    #[error("has the component . or ..")]
    Dots,
    #[error("has a byte 0")]
    Nul,
    /// S3 and OSS sign and list only such.
    #[error("is not UTF-8, which keys are")]
    NotText,
}

/// What a path below a directory is called below a prefix: every byte of it.
///
/// # Errors
/// When no store takes such a name.
pub fn remote_name(path: &Path) -> Result<&[u8], NameError> {
    path.to_str().map(str::as_bytes).ok_or(NameError::NotText)
}

/// The path below a directory that the rest of a key means. A slash at its end, the marker of a directory, is no component.
///
/// # Errors
/// When the path would lie elsewhere, or two keys could mean the same path.
pub fn local_name(rest: &[u8]) -> Result<PathBuf, NameError> {
    let name = rest.strip_suffix(b"/").unwrap_or(rest);
    if rest.starts_with(b"/") {
        return Err(NameError::Absolute);
    }
    for component in name.split(|&b| b == b'/') {
        match component {
            b"" => return Err(NameError::Empty),
            b"." | b".." => return Err(NameError::Dots),
            component if component.contains(&0) => return Err(NameError::Nul),
            _ => {}
        }
    }
    Ok(PathBuf::from(OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_below_its_directory() {
        for (rest, name) in [("a", "a"), ("a/b", "a/b"), ("a/", "a"), ("..a/b..", "..a/b.."), ("ä \n*", "ä \n*")] {
            assert_eq!(local_name(rest.as_bytes()), Ok(PathBuf::from(name)));
        }
        for (rest, error) in [
            ("../a", NameError::Dots),
            ("a/../../b", NameError::Dots),
            ("a/..", NameError::Dots),
            ("..", NameError::Dots),
            ("./a", NameError::Dots),
            ("/etc/passwd", NameError::Absolute),
            ("/", NameError::Absolute),
            ("a//b", NameError::Empty),
            ("a//", NameError::Empty),
            ("", NameError::Empty),
            ("a\0b", NameError::Nul),
        ] {
            assert_eq!(local_name(rest.as_bytes()), Err(error), "{rest:?}");
        }
    }

    #[test]
    fn a_key_is_every_byte_of_the_path() {
        for name in ["a", "a/b", "ä \n*", "..a"] {
            assert_eq!(remote_name(Path::new(name)), Ok(name.as_bytes()));
        }
        assert_eq!(remote_name(Path::new(OsStr::from_bytes(b"a/\xff"))), Err(NameError::NotText));
    }

    #[test]
    fn names_are_taken_by_patterns() {
        let strings = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        for (include, exclude, taken) in [
            (&[][..], &[][..], "abcd"),
            (&["*.bin"], &[], "ac"),
            (&["*.bin", "x/*"], &[], "acd"),
            (&[], &["x/**"], "ab"),
            (&["*.bin"], &["x/*"], "a"),
            (&["?.bin"], &[], "a"),
        ] {
            let pick = Pick::new(&strings(include), &strings(exclude)).unwrap();
            let names = [("a", "1.bin"), ("b", "1.txt"), ("c", "x/1.bin"), ("d", "x/y/1.txt")];
            let found: String = names.iter().filter(|(_, name)| pick.takes(Path::new(name))).map(|(letter, _)| *letter).collect();
            assert_eq!(found, taken, "{include:?} {exclude:?}");
        }
        assert!(Pick::new(&strings(&["["]), &[]).unwrap_err().to_string().contains('['));
    }
}
