//! Options of a mount that runs: which can be changed, and to what. It changes nothing. Invariant: whoever may change an option hears the
//! same about its words and its range as at the beginning of the mount, and about every other one why it cannot be changed.

use super::gather::apply;
use super::table::{self, Spec};
use super::{Error, Origin, Value};

/// The option that `word` names, in any of its spellings, and the value that `text` is for it.
///
/// # Errors
/// When there is no such option, when it cannot be changed while it is mounted, and when that is no value for it.
pub fn change(word: &str, text: &str) -> Result<(&'static Spec, Value), Error> {
    let origin = || Origin::Argument;
    let Some((spec, rule)) = table::find(word) else {
        return Err(Error::Unknown { word: word.to_owned(), origin: origin(), nearest: table::nearest(word, std::iter::empty()) });
    };
    if let Some(why) = spec.fixed {
        return Err(Error::Fixed { word: word.to_owned(), why });
    }
    let refused = |reason| Error::Value { word: word.to_owned(), text: text.to_owned(), reason, origin: origin() };
    let text = apply(rule, spec, Some(text)).map_err(refused)?.ok_or_else(|| refused("says nothing".to_owned()))?;
    Ok((spec, spec.kind.parse(&text).map_err(refused)?))
}

#[cfg(test)]
mod tests {
    use super::super::OPTIONS;
    use super::*;

    #[test]
    fn an_option_is_changed_under_all_its_names_within_its_range() {
        assert_eq!(change("prefetch-chunks", "7").map(|(spec, value)| (spec.name, value)), Ok(("prefetch-chunks", Value::Count(7))));
        let (spec, value) = change("direct_read_prefetch_limit", "512").unwrap();
        assert_eq!((spec.name, value.plain()), ("memory-limit", "512MiB".to_owned()));
        assert_eq!(change("dbglevel", "dbg").unwrap().1, Value::Text("debug".into()));
        assert!(change("prefetch-chunks", "many").unwrap_err().to_string().contains("0..4096"));
        assert!(change("prefech-chunks", "7").unwrap_err().to_string().contains("did you mean prefetch-chunks"));
    }

    #[test]
    fn what_cannot_be_changed_is_refused_with_its_reason() {
        let fixed: Vec<_> = OPTIONS.iter().filter(|spec| spec.fixed.is_some()).collect();
        assert!(fixed.len() > 40 && fixed.len() < OPTIONS.len());
        for spec in fixed {
            let said = change(spec.name, "1").unwrap_err().to_string();
            assert!(said.contains(spec.name) && said.contains("mount it again"), "{said}");
        }
    }
}
