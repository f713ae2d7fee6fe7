//! The HTTP clients of a dialect: one library, set up in one way for data, listings and everything else. What they send is decided elsewhere.
//! Invariant: they do nothing that was not asked of them: no redirect is followed, nothing is sent again.

use std::sync::Arc;
use std::time::Duration;

use super::Options;
use super::connecting::Counting;
use super::endpoint;
use super::leave::Clients;
use crate::metrics::Metrics;

/// Connections kept per host: above every concurrency that the reader reaches, so that none is reopened while reads go on.
pub(super) const IDLE_CONNECTIONS: usize = 512;

/// Below what stores and load balancers keep (S3 about 20 s idle, OSS 60 s): a request on a connection that the
/// other side is closing costs a retry.
pub(super) const IDLE_FOR: Duration = Duration::from_secs(15);

/// The HTTP clients of a dialect.
pub(super) fn clients(options: &Options, metrics: &Arc<Metrics>) -> reqwest::Result<Clients> {
    Clients::build(&options.exits, || client_builder(options, metrics))
}

/// The settings that they share.
pub(super) fn client_builder(options: &Options, metrics: &Arc<Metrics>) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder().connector_layer(Counting(Arc::clone(metrics)));
    let builder = if endpoint::goes_through_proxy(options.endpoint.as_deref()) { builder } else { builder.no_proxy() };
    let builder = match &options.ca_bundle {
        Some(bundle) => builder.tls_certs_merge(bundle.certificates()),
        None => builder,
    };
    builder
        .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
        // `redirect` decides about them, which knows which headers may go along.
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        // One stream of HTTP/2 is limited by its window and all share one connection; ranges want several.
        .http1_only()
        .tcp_nodelay(true)
        .connect_timeout(options.connect_timeout)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .pool_idle_timeout(IDLE_FOR)
}
