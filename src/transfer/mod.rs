//! Moving objects between a bucket and this machine without a mount: what is behind `windlass cat`, `ls` and `rm`. What decides
//! (which bytes, which parts, how much at once, which names) is pure; what acts knows no command line and prints nothing. Invariant: bytes
//! are handed over in their order and compared with the sum that the store keeps.

mod error;
mod remove;
mod span;
mod stream;
mod walk;

pub use error::{Error, Result};
pub use remove::{At, remove};
pub use span::{Last, Span, SpanError};
pub use stream::{Streaming, stream};
pub use walk::{Listing, directory_of};
