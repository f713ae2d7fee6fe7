//! Requests that a test stops at a point of its choice, to do something else meanwhile, and lets go on. Invariant: a request goes on once what
//! holds it is released or dropped.

use tokio::sync::watch;

use super::Memory;
use crate::store::{Key, Op};

/// Where a request is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// Before the store does what was asked.
    Arrival,
    /// The store has done it, and the answer is on its way.
    Answer,
}

/// The next request of one operation for one key, stopped.
#[derive(Debug)]
pub struct Held {
    reached: watch::Receiver<bool>,
    _open: watch::Sender<()>,
}

/// The other side of [`Held`].
#[derive(Debug)]
pub(super) struct Hold {
    op: Op,
    key: Key,
    point: Point,
    reached: watch::Sender<bool>,
    open: watch::Receiver<()>,
}

impl Held {
    /// Waits until the request is there.
    pub async fn reached(&mut self) {
        let _ = self.reached.wait_for(|&reached| reached).await;
    }

    /// Whether the request is there.
    pub fn is_reached(&self) -> bool {
        *self.reached.borrow()
    }

    /// Lets the request go on.
    pub fn release(self) {}
}

impl Memory {
    /// Stops the next request of `op` for `key`, or listing of that prefix, before the store does what was asked; those after it are not stopped.
    pub fn hold(&self, op: Op, key: impl Into<Key>) -> Held {
        self.hold_at(Point::Arrival, op, key.into())
    }

    /// As [`hold`](Self::hold), when the store has done what was asked: the answer is held, of anything but a GET.
    pub fn hold_answer(&self, op: Op, key: impl Into<Key>) -> Held {
        self.hold_at(Point::Answer, op, key.into())
    }

    fn hold_at(&self, point: Point, op: Op, key: Key) -> Held {
        let ((reached, is_reached), (open, is_open)) = (watch::channel(false), watch::channel(()));
        self.bucket.lock().holds.push(Hold { op, key, point, reached, open: is_open });
        Held { reached: is_reached, _open: open }
    }

    /// Waits while a request is held.
    pub(super) async fn pass(&self, point: Point, op: Op, key: &Key) {
        let hold = {
            let holds = &mut self.bucket.lock().holds;
            let place = holds.iter().position(|hold| hold.point == point && hold.op == op && hold.key == *key);
            place.map(|place| holds.remove(place))
        };
        if let Some(Hold { reached, mut open, .. }) = hold {
            reached.send_replace(true);
            // Nothing is ever sent: it ends with the other side.
            while open.changed().await.is_ok() {}
        }
    }
}
