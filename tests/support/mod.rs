//! What tests share: real S3 and OSS servers over loopback HTTP that remember every request and misbehave on demand.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of the support")]

pub mod app;
pub mod aws_hosts;
mod aws_sign;
mod bucket;
pub mod cgroup;
pub mod directory_bucket;
pub mod disturbed;
mod fault;
pub mod flipping;
pub mod keeper;
pub mod keyring;
mod layer;
mod log;
pub mod model;
pub mod mounts;
pub mod network;
pub mod oss_read;
pub mod oss_server;
pub mod oss_sign;
pub mod oss_write;
pub mod prometheus;
pub mod python;
pub mod real_world;
pub mod relay;
pub mod s3_server;
pub mod sandbox;
pub mod sts;
pub mod third_party;
pub mod vfs_world;

pub use self::bucket::{About, Habits, Refusing};
pub use self::directory_bucket::DIRECTORY_BUCKET;
pub use self::fault::{Effect, Fault};
pub use self::log::{Kind, Request};
pub use self::s3_server::{ACCESS_KEY, BUCKET, REGION, S3Server, SECRET_KEY};

/// A program that ends with its trial.
pub struct KilledAtEnd(pub std::process::Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
