//! How a mount goes from one process to another over a unix socket: descriptors of /dev/fuse together with what is to be mounted there. Who has
//! the privilege to mount sends, who serves the mount receives. It mounts nothing and reads no option. Invariant: a descriptor that came in is
//! owned by whoever has the message, and none outlives it.

mod keeper;
mod line;
mod link;
mod meeting;
mod message;
mod passed;
mod peer;
mod place;
mod proof;
mod way_back;
mod wishes;

pub use keeper::{Keeper, Report, Trouble};
pub use line::{Failed, Line};
pub use link::{Error, Link};
pub use meeting::Meeting;
pub use message::{Environment, Message};
pub use passed::Passed;
pub use peer::user_of;
pub use place::{Door, Place};
pub use proof::Proof;
pub use way_back::WayBack;
pub use wishes::{Wish, Wishes};
