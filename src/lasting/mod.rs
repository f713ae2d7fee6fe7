//! What a daemon leaves to the one after it: rows of bytes under a table and a number, in memory that outlives the process, written as they
//! change. It knows nothing of what they say. Invariant: whenever the process is killed, the rows that are found are those after some
//! change that was complete, and every change before it.

mod form;
mod log;
mod rows;

pub use form::{Form, Source};
pub use log::{Log, Snapshot};
pub use rows::Rows;

/// Which rows belong together.
pub type Table = u8;
