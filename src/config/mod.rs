//! Settings of a mount, gathered from built-in defaults < configuration file < environment < flags < `-o`, each value
//! with its origin. This is the only place that reads options; the layers below get plain structs. Invariant: what is
//! accepted here lands in [`Settings`]; what cannot be done is refused, never dropped in silence.

mod bucket;
mod file;
mod foreign;
mod gather;
mod layers;
mod live;
mod place;
mod printed;
mod program;
mod reports;
mod settings;
mod source;
mod table;
mod value;

use std::path::PathBuf;

pub use foreign::takes_value;
pub use gather::{Input, Origin, Values};
pub use layers::socket_directories;
pub use live::change;
pub use place::{Place, Preload};
pub use program::Program;
pub use reports::Reports;
pub use settings::{MEMORY_SHARE, MountTarget, Settings};
pub use source::{Source, bucket_len};
pub use table::{OPTIONS, Spec, find, nearest_of};
pub use value::{Kind, NEVER, Value};

/// Why the settings cannot be used. All of these are mistakes in how the program was called: exit code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unknown option {word} ({origin}){}", .nearest.as_ref().map_or(String::new(), |near| format!(": did you mean {near}?")))]
    Unknown { word: String, origin: Origin, nearest: Option<String> },
    #[error(
        "{word} ({origin}) is an option of {0}: call windlass by that name, or with --compat {0}, to have its command line understood",
        .program.name().unwrap_or_default()
    )]
    OfAnother { word: String, origin: Origin, program: Program },
    #[error("{word}={text} ({origin}): {reason}")]
    Value { word: String, text: String, reason: String, origin: Origin },
    #[error("{word} cannot be done: {why}")]
    Refused { word: String, why: &'static str },
    #[error(
        "{word} on a command line can be read by every user of this machine: put it into a file that only you can read \
         (--passwd-file, --config with mode 600) or into the environment"
    )]
    SecretOnCommandLine { word: String },
    #[error("configuration file {}: {reason}", .path.display())]
    File { path: PathBuf, reason: String },
    #[error("source \"{text}\": {reason}")]
    Source { text: String, reason: String },
    #[error("mount point {}: {reason}", .path.display())]
    Mountpoint { path: PathBuf, reason: String },
    #[error("{word} cannot be changed while it is mounted: {why}; unmount it and mount it again")]
    Fixed { word: String, why: &'static str },
    #[error("a mount cannot be changed while it is there: unmount it and mount it again with the new options")]
    Remount,
    #[error("{0} is missing: windlass mount SOURCE MOUNTPOINT, for example windlass mount s3://bucket /mnt/data")]
    Missing(&'static str),
    #[error("unexpected argument \"{0}\": SOURCE and MOUNTPOINT are all")]
    Surplus(String),
    #[error("{0}")]
    Conflict(String),
}
