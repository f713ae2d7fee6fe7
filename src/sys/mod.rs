//! The only unsafe code: memory mappings and the buffer that fills from the front while it is being read.
//! Each piece has a safe interface and its own tests.

#![allow(unsafe_code, reason = "the one place for it: every block says which invariant it stands on")]

mod descriptor;
mod front;
mod memory;

pub use descriptor::duplicate;
pub use front::{FrontReader, FrontWriter, front};
pub use memory::Memory;
