//! Which requests the server mistreats, and how.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::log::{Kind, Request};

/// What happens to an answer. Several can happen to one.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// An S3 error document: 503 is SlowDown, 500 InternalError, 403 AccessDenied, others as they are.
    Status(u16),
    /// The body stops after this many bytes and the connection is closed.
    Truncate(u64),
    /// The body pauses after this many bytes; without a duration until the client gives up.
    Stall(u64, Option<Duration>),
    /// After this many bytes the connection is reset.
    Reset(u64),
    /// The request is carried out, and instead of an answer the connection is reset.
    Lost,
    /// The connection is reset before anything is done.
    Broken,
    /// Content-Range names other bytes than the body holds.
    WrongRange,
    /// The answer carries this ETag.
    WrongETag(String),
    /// 307 to the same path and query at this address, such as `http://127.0.0.1:1234`.
    Redirect(String),
    /// The same with another status.
    Moved(u16, String),
    /// S3's 301 to this address, for a bucket in that region.
    Elsewhere(String, String),
    /// The head of the answer comes this much later.
    Delay(Duration),
    /// The request is carried out and answered once the faults are cleared.
    Held,
    /// The body comes at this many bytes per second.
    Bandwidth(u64),
}

/// An effect and the requests it is for: those that match everything said.
#[derive(Debug)]
pub struct Fault {
    pub(super) effect: Effect,
    kind: Option<Kind>,
    key: Option<String>,
    skip: usize,
    count: usize,
    chance: Option<(f64, StdRng)>,
    seen: usize,
}

impl Fault {
    /// For every request; the other methods narrow it down.
    pub fn new(effect: Effect) -> Self {
        Self { effect, kind: None, key: None, skip: 0, count: usize::MAX, chance: None, seen: 0 }
    }

    pub fn kind(self, kind: Kind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    pub fn key(self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self }
    }

    /// Only the `n`th of the requests that match, the first being 1.
    pub fn nth(self, n: usize) -> Self {
        Self { skip: n.saturating_sub(1), count: 1, ..self }
    }

    /// Only the first `n` of the requests that match.
    pub fn first(self, n: usize) -> Self {
        Self { skip: 0, count: n, ..self }
    }

    /// Each with this probability, the same ones on every run.
    pub fn chance(self, probability: f64, seed: u64) -> Self {
        Self { chance: Some((probability, StdRng::seed_from_u64(seed))), ..self }
    }

    pub(super) fn on_request(&mut self, request: &Request) -> Option<Effect> {
        if self.kind.is_some_and(|k| k != request.kind) || self.key.as_ref().is_some_and(|k| *k != request.key) {
            return None;
        }
        let index = self.seen;
        self.seen += 1;
        let picked = self.chance.as_mut().is_none_or(|(probability, random)| random.random_bool(*probability));
        (picked && index >= self.skip && index - self.skip < self.count).then(|| self.effect.clone())
    }
}
