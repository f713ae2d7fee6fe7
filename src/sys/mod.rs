//! The only unsafe code: memory mappings and the buffer that fills from the front while it is being read.
//! Each piece has a safe interface and its own tests.

mod descriptor;
mod front;
mod memory;

pub use descriptor::duplicate;
pub use front::{FrontReader, FrontWriter, front};
pub use memory::Memory;
