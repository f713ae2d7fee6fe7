//! Counts the connections that the HTTP library opens: it tells nobody, but lets others stand between it and its connector. Invariant: the
//! connector is asked and answers as if nobody stood there.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use tower_layer::Layer;
use tower_service::Service;

use crate::metrics::Metrics;

/// Stands before a connector.
#[derive(Clone, Debug)]
pub(super) struct Counting(pub Arc<Metrics>);

/// A connector that somebody stands before.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, metrics: Arc::clone(&self.0) }
    }
}

impl<S, Target> Service<Target> for Counted<S>
where
    S: Service<Target>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, target: Target) -> Self::Future {
        let (connecting, metrics) = (self.inner.call(target), Arc::clone(&self.metrics));
        let counted = connecting.map(move |connected| {
            if connected.is_ok() {
                metrics.connections_opened.add(1);
            }
            connected
        });
        counted.boxed()
    }
}
