//! The content type that a new object says it has, by its name. Pure.

use std::collections::BTreeMap;

use super::{Headers, Key};

/// Which types names have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentTypes {
    /// Names that nobody said anything about have the usual type of their ending; else none, which is the store's default.
    guesses: bool,
    /// By what follows a point of the name, in lower case.
    own: BTreeMap<String, String>,
}

impl Default for ContentTypes {
    fn default() -> Self {
        Self { guesses: true, own: BTreeMap::new() }
    }
}

impl ContentTypes {
    /// `own` is `EXT=TYPE`, several of them separated by commas.
    ///
    /// # Errors
    /// What in `own` is no such pair.
    pub fn new(guesses: bool, own: &str) -> Result<Self, String> {
        let mut types = BTreeMap::new();
        for pair in own.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let is_type = |text: &str| {
                let (kind, rest) = text.split_once('/').unwrap_or_default();
                !kind.is_empty() && !rest.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
            };
            let (ending, kind) = pair.split_once('=').map(|(ending, kind)| (ending.trim(), kind.trim())).unwrap_or_default();
            let ending = ending.trim_start_matches(['*', '.']);
            if ending.is_empty() || ending.contains('/') || !is_type(kind) {
                return Err(format!("\"{pair}\" is not EXT=TYPE, such as parquet=application/vnd.apache.parquet"));
            }
            types.insert(ending.to_ascii_lowercase(), kind.to_owned());
        }
        Ok(Self { guesses, own: types })
    }

    /// The type of an object of that name. None: the store's default.
    pub fn of(&self, key: &Key) -> Option<String> {
        let path = key.to_str()?;
        let name = path.rsplit('/').next().unwrap_or_default();
        // The longest ending first: `tar.gz` before `gz`.
        let endings = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
        let own = endings.filter_map(|ending| self.own.get(&ending.to_ascii_lowercase())).next();
        own.cloned().or_else(|| mime_guess::from_path(name).first_raw().filter(|_| self.guesses).map(str::to_owned))
    }

    /// What goes with the content of a new object of that name.
    pub fn headers(&self, key: &Key) -> Headers {
        Headers { content_type: self.of(key), ..Headers::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_is_that_which_was_said_of_the_longest_ending_else_the_usual_one() {
        let types = ContentTypes::new(true, "Parquet=application/x-parquet, .tar.gz=application/x-tgz,gz=application/x-gz").unwrap();
        let of = |name: &str| types.of(&Key::from(name));
        assert_eq!(of("d.parquet/a.PARQUET").as_deref(), Some("application/x-parquet"));
        assert_eq!(of("a.tar.gz").as_deref(), Some("application/x-tgz"));
        assert_eq!(of("a.x.gz").as_deref(), Some("application/x-gz"));
        assert_eq!(of("d/a.html").as_deref(), Some("text/html"));
        assert_eq!((of("parquet"), of("d.parquet/a"), of("d/")), (None, None, None));
        let none = ContentTypes::new(false, "bin=application/x-model; v=1").unwrap();
        assert_eq!((none.of(&Key::from("a.html")), none.of(&Key::from("a.bin")).as_deref()), (None, Some("application/x-model; v=1")));
    }

    #[test]
    fn what_is_no_pair_is_named() {
        for pair in ["parquet", "=a/b", "x=", "x=text", "x=/b", "x=a/ä", "a/b=c/d"] {
            assert!(ContentTypes::new(true, &format!("y=a/b,{pair}")).unwrap_err().contains(&format!("\"{pair}\"")), "{pair}");
        }
    }
}
