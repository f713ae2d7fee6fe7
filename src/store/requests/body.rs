//! A body on its way out: handed to the connection in pieces, so that it is seen whether it moves. Invariant: the pieces are
//! slices of those that it was given in, and their sum is its length.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::store::Body;

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
    body: Body,
    /// Which of its pieces is next, or has begun to leave.
    piece: usize,
    /// What is left of that one, when it has begun.
    begun: Bytes,
    left: usize,
    leaving: Leaving,
}

impl Watched {
    pub fn new(body: Body, leaving: Leaving) -> Self {
        let left = body.len();
        Self { body, piece: 0, begun: Bytes::new(), left, leaving }
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.begun.is_empty() {
            let Some(next) = self.body.pieces().get(self.piece).cloned() else { return Poll::Ready(None) };
            self.begun = next;
            self.piece += 1;
        }
        let n = self.begun.len().min(PIECE);
        let frame = self.begun.split_to(n);
        self.left -= n;
        self.leaving.on_piece(n);
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}
