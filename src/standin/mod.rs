//! Windlass in the place of programs that other drivers start: the mount-proxy of Alibaba Cloud's driver and the mounter of Mountpoint's. What
//! these ask for becomes command lines of the clients that they know, and each is run as a process of its own, by this same program. It serves
//! no mount itself. Invariant: a process that was started here is waited for, and none outlives an orderly end.

mod daemon;
mod lines;
mod pod;
mod proxy;
mod request;
mod secrets;
mod volumes;
mod watched;

pub use pod::{Pod, PodError};
pub use proxy::Proxy;
pub use volumes::Drivers;
