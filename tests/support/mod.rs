//! Servers and signatures for the tests. Each test binary uses a part of it.
#![allow(dead_code, reason = "each test binary uses a part of the support")]

pub mod oss_server;
pub mod oss_sign;
