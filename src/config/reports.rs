//! Where it is told how a mount failed. It writes nothing. Invariant: what stands on the command line or in the environment is found even where
//! the rest of it cannot be used, which is what is to be told.

use std::path::PathBuf;

use super::gather::{Input, Values};
use crate::started_in;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Gets the last error as a line of JSON.
    pub error_file: Option<PathBuf>,
    /// Gets it as text.
    pub termination_log: Option<PathBuf>,
}

impl Reports {
    /// The places that `values` name or, where there are none because something in it is wrong, those that `input` does.
    pub fn of(input: &Input, values: Option<&Values>) -> Self {
        let path = |name| match values {
            Some(values) => values.path(name),
            None => input.said(name).and_then(|text| started_in::absolute(text).ok()),
        };
        Self { error_file: path("error-file"), termination_log: path("termination-log") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_beside_what_is_wrong() {
        let flag = |name: &str, text: &str| (name.to_owned(), Some(text.to_owned()));
        let mut input = Input { flags: vec![flag("error-file", "/run/e.json")], ..Input::default() };
        input.environment = vec![("WINDLASS_TERMINATION_LOG".into(), "/dev/termination-log".into())];
        let expected = Reports { error_file: Some("/run/e.json".into()), termination_log: Some("/dev/termination-log".into()) };
        assert_eq!(Reports::of(&input, Some(&Values::gather(&input).unwrap())), expected);
        input.options = vec!["no-such-option=1,error_file=/run/other.json".into()];
        assert!(Values::gather(&input).is_err());
        assert_eq!(Reports::of(&input, None), Reports { error_file: Some("/run/other.json".into()), ..expected });
    }
}
