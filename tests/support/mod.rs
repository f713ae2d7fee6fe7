//! What tests share: a real S3 server over loopback HTTP that remembers every request and misbehaves on demand.
//! Each test binary uses a part of it.
#![allow(dead_code, unused_imports)]

mod bucket;
mod fault;
mod layer;
mod log;
pub mod s3_server;

pub use self::fault::{Effect, Fault};
pub use self::log::{Kind, Request};
pub use self::s3_server::{ACCESS_KEY, BUCKET, REGION, S3Server, SECRET_KEY};
