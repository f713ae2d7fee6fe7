//! Moving objects between a bucket and this machine without a mount: what is behind `windlass get`, `put`, `cat`, `ls` and `rm`. What decides
//! (which bytes, which parts, how much at once, which names) is pure; what acts knows no command line and prints nothing. Invariant: a
//! file appears under its final name whole and checked, or not at all.

mod checkpoint;
mod error;
mod gate;
mod get;
mod knee;
mod landing;
mod names;
mod plan;
mod put;
mod remove;
mod span;
mod stream;
mod target;
mod tree;
mod walk;

use std::sync::Arc;

pub use error::{Error, Result};
pub use get::{Getting, Got, get};
pub use knee::Knee;
pub use names::{NameError, Pick, PickError, local_name};
pub use plan::{Asked, Parallel, Plan, PlanError};
pub use put::{Origin, Put, Putting, put};
pub use remove::{At, remove};
pub use span::{Last, Span, SpanError};
pub use stream::{Streaming, stream};
pub use tree::{Outcome, Tree, is_there};
pub use walk::{Listing, directory_of};

/// Who is told of bytes as they arrive.
pub type OnBytes = Arc<dyn Fn(u64) + Send + Sync>;
