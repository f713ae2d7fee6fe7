//! Messages and services, made of csi.proto and registration.proto when the crate is built: see build.rs. Nothing is written here by hand.

#![allow(
    clippy::all,
    clippy::cast_lossless,
    clippy::cast_sign_loss,
    clippy::implicit_clone,
    clippy::large_futures,
    clippy::uninlined_format_args,
    missing_debug_implementations,
    reason = "nobody wrote it"
)]

/// The Container Storage Interface.
pub mod csi {
    tonic::include_proto!("csi.v1");
}

/// How a kubelet gets to know a plugin.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
