//! windlass mounts an object-storage bucket at a directory and reads it as fast as the network allows.

pub mod budget;
pub mod cli;
pub mod config;
pub mod demo;
pub mod fuse;
pub mod logging;
pub mod metrics;
pub mod mount;
pub mod reader;
pub mod store;
pub mod sys;
pub mod units;
pub mod vfs;
