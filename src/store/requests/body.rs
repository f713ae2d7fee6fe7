//! A body on its way out: handed to the connection in pieces, so that it is seen whether it moves. Invariant: the pieces are
//! slices of the one buffer, and their sum is its length.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Bytes that leave at once: a connection takes the next piece when it has written most of the one before.
const PIECE: usize = 128 << 10;

/// How far a body has come. Clones are of the same body.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    state: Arc<Mutex<(usize, Instant)>>,
    metrics: Arc<Metrics>,
}

impl Leaving {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { state: Arc::new(Mutex::new((0, Instant::now()))), metrics }
    }

    /// When the last piece left; before the first, when the request began.
    pub fn last(&self) -> Instant {
        self.state.lock().1
    }

    pub fn bytes(&self) -> usize {
        self.state.lock().0
    }

    pub fn is_over(&self, total: usize) -> bool {
        self.bytes() == total
    }

    fn on_piece(&self, n: usize) {
        let mut state = self.state.lock();
        *state = (state.0 + n, Instant::now());
        self.metrics.uploaded_bytes.add(n as u64);
    }
}

/// The body.
#[derive(Debug)]
pub(super) struct Watched {
    rest: Bytes,
    leaving: Leaving,
}

impl Watched {
    pub fn new(body: Bytes, leaving: Leaving) -> Self {
        Self { rest: body, leaving }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let n = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(n);
        self.leaving.on_piece(n);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
