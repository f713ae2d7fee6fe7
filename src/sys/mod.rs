//! The only unsafe code: memory mappings, one of which outlives the process, the buffer that fills from the front while it is being read, the one that its owner
//! writes anywhere, and system calls on descriptors that nobody else wraps.
//! Each piece has a safe interface and its own tests.

#![allow(unsafe_code, reason = "the one place for it: every block says which invariant it stands on")]

mod descriptor;
mod front;
mod fuse_device;
mod lease;
mod memory;
mod shared;
mod sockets;
mod window;

pub use descriptor::{Readiness, adopt, close, duplicate, readiness};
pub use front::{FrontReader, FrontWriter, front};
pub use fuse_device::{another_fuse_device, close_fuse_backing, open_fuse_backing};
pub use lease::is_open_elsewhere;
pub use memory::{HUGE_PAGE, Memory};
pub use shared::SharedMemory;
pub use sockets::tcp_connections;
pub use window::Window;
