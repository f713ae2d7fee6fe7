//! Where log lines go and what they look like.

use std::path::PathBuf;

/// Shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// Options of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A level (`error` to `trace`) or a tracing filter such as `windlass::reader=debug,warn`.
    pub level: String,
    pub format: Format,
    /// File to append to; none: stderr in the foreground, syslog as a daemon.
    pub file: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { level: "info".into(), format: Format::Text, file: None }
    }
}
