//! What was asked of the store and how it ended. A request is open until its guard is dropped; one that was
//! dropped before its end was cancelled.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::{ETag, ErrorKind, Key, Op};

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub op: Op,
    /// The key, or the prefix of a listing.
    pub key: Key,
    /// Of a GET, or of the source of a part that is copied.
    pub range: Option<Range<u64>>,
    /// Of a GET: the version that was asked for; of a copy: that of the source.
    pub etag: Option<ETag>,
    /// Of a part.
    pub number: Option<u32>,
    /// When it was sent.
    pub at: Instant,
    /// Bytes of the body handed over so far.
    pub delivered: u64,
    /// Bytes of the body sent so far.
    pub sent: u64,
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not yet.
    Open,
    Finished,
    Failed(ErrorKind),
    /// Its future was dropped.
    Cancelled,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    requests: Vec<Request>,
    /// How many requests were forgotten by `reset`, so that those still open find their place.
    forgotten: usize,
    in_flight: usize,
    max_in_flight: usize,
}

impl Log {
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    pub fn reset(&mut self) {
        self.forgotten += self.requests.len();
        self.requests.clear();
        self.max_in_flight = self.in_flight;
    }

    fn open(&mut self, request: Request) -> usize {
        self.requests.push(request);
        self.in_flight += 1;
        self.max_in_flight = self.max_in_flight.max(self.in_flight);
        self.forgotten + self.requests.len() - 1
    }

    fn request(&mut self, id: usize) -> Option<&mut Request> {
        self.requests.get_mut(id.checked_sub(self.forgotten)?)
    }
}

/// An open request; dropping it closes it.
#[derive(Debug)]
pub(super) struct Guard {
    log: Arc<Mutex<Log>>,
    id: usize,
    outcome: Outcome,
}

impl Guard {
    pub fn open(log: &Arc<Mutex<Log>>, op: Op, key: &Key, range: Option<Range<u64>>, etag: Option<ETag>) -> Self {
        let request =
            Request { op, key: key.clone(), range, etag, number: None, at: Instant::now(), delivered: 0, sent: 0, outcome: Outcome::Open };
        let id = log.lock().open(request);
        Self { log: log.clone(), id, outcome: Outcome::Cancelled }
    }

    pub fn on_bytes(&self, n: u64) {
        if let Some(request) = self.log.lock().request(self.id) {
            request.delivered += n;
        }
    }

    /// The request is about this part.
    pub fn of_part(self, number: u32) -> Self {
        if let Some(request) = self.log.lock().request(self.id) {
            request.number = Some(number);
        }
        self
    }

    pub fn on_sent(&self, n: u64) {
        if let Some(request) = self.log.lock().request(self.id) {
            request.sent += n;
        }
    }

    pub fn close<T>(mut self, result: Result<T, crate::store::Error>) -> Result<T, crate::store::Error> {
        self.outcome = result.as_ref().map_or_else(|error| Outcome::Failed(error.kind), |_| Outcome::Finished);
        result
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut log = self.log.lock();
        log.in_flight -= 1;
        let outcome = self.outcome;
        if let Some(request) = log.request(self.id) {
            request.outcome = outcome;
        }
    }
}
