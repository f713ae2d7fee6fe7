//! What the process may put on a disk that it does not own alone. Invariant: every byte is reserved here before it is written.

mod guard;

pub use guard::{Bounds, Guard, Reservation};
