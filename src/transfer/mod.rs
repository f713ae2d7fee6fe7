//! Moving objects between a bucket and this machine without a mount: what is behind `windlass get`, `put`, `cat`, `ls` and `rm`. What decides
//! (which bytes, which parts, how much at once, which names) is pure; what acts knows no command line and prints nothing. Invariant: a
//! file appears under its final name whole and checked, or not at all.

mod bandwidth;
mod checkpoint;
mod error;
mod fetched;
mod gate;
mod get;
mod knee;
mod landing;
mod many;
mod names;
mod plan;
mod put;
mod remove;
mod resumed;
mod sent;
mod source;
mod span;
mod storing;
mod stream;
mod target;
mod tree;
mod walk;

use std::sync::Arc;

pub use bandwidth::Bandwidth;
pub use error::{Error, Result};
pub use get::{Getting, Got, Sum, Wanted, get};
pub use knee::Knee;
pub use landing::piece;
pub use many::{Event, Item, Many, Moved, OnFile};
pub use names::{NameError, Pick, PickError, local_name, remote_name};
pub use plan::{Asked, Parallel, Plan, PlanError};
pub use put::{Put, Putting, put};
pub use remove::{At, remove};
pub use source::Origin;
pub use span::{Last, Span, SpanError};
pub use storing::{Given, Storing};
pub use stream::{Streaming, check, stream};
pub use tree::{Root, Tree, is_there};
pub use walk::{Listing, directory_of};

/// Who is told of bytes as they arrive.
pub type OnBytes = Arc<dyn Fn(u64) + Send + Sync>;
