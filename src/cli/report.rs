//! Tells those who watch a mount from outside why it failed: a file with the last error, the termination log of a container, the keeper of the
//! descriptor. People are told elsewhere. Invariant: the file is never seen half written, and none of this is a reason to fail.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use super::Failure;
use super::ready::replace;
use crate::config::Reports;
use crate::handover::{Failed, Line};
use crate::store::Key;

/// See the module.
#[derive(Debug, Default)]
pub struct Report {
    places: Reports,
    line: Option<Arc<Line>>,
}

impl Report {
    pub fn new(places: Reports, line: Option<Arc<Line>>) -> Self {
        Self { places, line }
    }

    /// The mount answers: an error from before is over.
    pub fn answers(&self) {
        if let Some(file) = &self.places.error_file
            && let Err(error) = fs::remove_file(file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(file = %file.display(), %error, "an error that is over stays behind");
        }
        if let Some(line) = &self.line
            && let Err(error) = line.ready()
        {
            tracing::warn!(%error, "the keeper of the descriptor cannot be told that the mount answers");
        }
    }

    /// It failed, or ended with files that are `lost`.
    pub fn failed(&self, failure: &Failure, lost: &[Key]) {
        let paths = lost.iter().map(ToString::to_string).collect();
        let failed = Failed { code: failure.code, reason: reason(failure.code), message: failure.message.clone(), paths };
        if let Some(file) = &self.places.error_file {
            let text = serde_json::to_string(&failed).expect("text and numbers");
            tell(file, replace(file, &text));
        }
        if let Some(file) = &self.places.termination_log {
            tell(file, write(file, &failure.message));
        }
        if let Some(line) = &self.line
            && let Err(error) = line.failed(&failed)
        {
            tracing::warn!(%error, "the keeper of the descriptor cannot be told");
        }
    }
}

/// The file is there already, and other files cannot take its place: a container's is a mount.
fn write(file: &Path, message: &str) -> std::io::Result<()> {
    let mut file = fs::File::options().write(true).create(true).truncate(true).open(file)?;
    file.write_all(message.as_bytes())
}

fn tell(file: &Path, written: std::io::Result<()>) {
    if let Err(error) = written {
        tracing::warn!(file = %file.display(), %error, "the error cannot be written there");
    }
}

/// An exit code as a word.
fn reason(code: u8) -> &'static str {
    match code {
        2 => "usage",
        3 => "credentials",
        4 => "bucket",
        5 => "not-written",
        _ => "internal",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use serde_json::{Value, json};

    use super::*;
    use crate::handover::Link;

    #[test]
    fn all_who_watch_hear_the_same_and_an_answer_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let places = Reports { error_file: Some(dir.path().join("error.json")), termination_log: Some(dir.path().join("log")) };
        let read = |path: &Option<std::path::PathBuf>| fs::read_to_string(path.as_ref().unwrap()).unwrap();
        fs::write(places.termination_log.as_ref().unwrap(), "something that is longer than what comes").unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (report, mut keeper) = (Report::new(places.clone(), Some(Arc::new(Line::new(ours)))), Link::new(theirs));
        let mut heard = || keeper.receive::<Value>(None).unwrap().unwrap().0;

        report.failed(&Failure { code: 5, message: "it ended".into() }, &[Key::from("dir/file")]);
        let expected = json!({"code": 5, "reason": "not-written", "message": "it ended", "paths": ["dir/file"]});
        let line = read(&places.error_file);
        assert_eq!(line.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
        assert_eq!(read(&places.termination_log), "it ended");
        assert_eq!(heard(), json!({"failed": expected}));

        report.answers();
        assert!(!places.error_file.unwrap().exists());
        assert_eq!(heard(), json!({"ready": true}));
    }

    #[test]
    fn places_that_cannot_be_written_stop_nobody() {
        let nowhere = Some("/nowhere/at/all".into());
        let report = Report::new(Reports { error_file: nowhere.clone(), termination_log: nowhere }, None);
        report.failed(&Failure::usage("it"), &[]);
        report.answers();
    }
}
