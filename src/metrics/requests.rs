//! Requests to stores: how many of which kind were sent, how they ended and how long they took. It sends none. Invariant: whatever
//! becomes of an attempt it is counted as sent once and as ended once, so what is between is under way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Counter, Histogram, Metric, Metrics, Reading, Type};

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Head,
    List,
    Get,
    Put,
    Copy,
    Delete,
}

/// All kinds, in their order, by the values of the label.
const KINDS: [&str; 6] = ["head", "list", "get", "put", "copy", "delete"];

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    Redirect,
    Refused,
    Failed,
    NoAnswer,
    Cancelled,
}

/// All outcomes, in their order, by the values of the label.
const OUTCOMES: [&str; 6] = ["2xx", "3xx", "4xx", "5xx", "none", "cancelled"];

/// Requests that ended, by kind and outcome.
#[derive(Debug, Default)]
pub struct Answers([[Counter; OUTCOMES.len()]; KINDS.len()]);

/// Times of requests by kind.
#[derive(Debug, Default)]
pub struct Latencies([Histogram<1>; KINDS.len()]);

impl Answers {
    fn get(&self, kind: RequestKind, outcome: Outcome) -> &Counter {
        &self.0[kind as usize][outcome as usize]
    }

    /// All that ended.
    fn total(&self) -> u64 {
        self.0.iter().flatten().map(Counter::get).sum()
    }
}

fn by<T>(labels: &[&str], values: &[T], read: impl Fn(&T) -> Reading) -> Reading {
    Reading::By(labels.iter().zip(values).map(|(label, value)| ((*label).to_owned(), read(value))).collect::<BTreeMap<_, _>>())
}

impl Metric for Answers {
    const TYPE: Type = Type::Counter;
    const LABELS: &'static [&'static str] = &["kind", "status"];

    fn read(&self) -> Reading {
        by(&KINDS, &self.0, |outcomes| by(&OUTCOMES, outcomes, Metric::read))
    }
}

impl Metric for Latencies {
    const TYPE: Type = Type::Histogram;
    const LABELS: &'static [&'static str] = &["kind"];

    fn read(&self) -> Reading {
        by(&KINDS, &self.0, Metric::read)
    }
}

impl Metrics {
    /// A request is sent.
    pub fn attempt(self: &Arc<Self>, kind: RequestKind) -> Attempt {
        self.sent(kind).add(1);
        Attempt { metrics: Arc::clone(self), kind, began: Instant::now(), outcome: Outcome::Cancelled }
    }

    /// Attempts that have not ended.
    pub fn in_flight(&self) -> u64 {
        // First those that ended, so that it is never less than none.
        let ended = self.answered_requests.total();
        let sent = [RequestKind::Head, RequestKind::List, RequestKind::Get, RequestKind::Put, RequestKind::Copy, RequestKind::Delete];
        sent.map(|kind| self.sent(kind).get()).iter().sum::<u64>().saturating_sub(ended)
    }

    fn sent(&self, kind: RequestKind) -> &Counter {
        match kind {
            RequestKind::Head => &self.head_requests,
            RequestKind::List => &self.list_requests,
            RequestKind::Get => &self.get_requests,
            RequestKind::Put => &self.put_requests,
            RequestKind::Copy => &self.copy_requests,
            RequestKind::Delete => &self.delete_requests,
        }
    }
}

/// A request on its way. Dropped before its answer began, it was cancelled.
#[derive(Debug)]
pub struct Attempt {
    metrics: Arc<Metrics>,
    kind: RequestKind,
    began: Instant,
    outcome: Outcome,
}

impl Attempt {
    /// The head of the answer has come.
    pub fn on_head(&mut self, status: u16) {
        self.outcome = match status {
            300..400 => Outcome::Redirect,
            400..500 => Outcome::Refused,
            500.. => Outcome::Failed,
            _ => Outcome::Success,
        };
        if self.kind == RequestKind::Get {
            self.metrics.first_byte_seconds.record(self.began.elapsed());
        }
    }

    /// All of the answer has come.
    pub fn on_end(&mut self) {
        self.metrics.request_seconds.0[self.kind as usize].record(self.began.elapsed());
    }

    /// No answer will come, or no more of it.
    pub fn on_lost(&mut self) {
        self.outcome = Outcome::NoAnswer;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.metrics.answered_requests.get(self.kind, self.outcome).add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_becomes_of_an_attempt_it_ends_once() {
        let metrics: Arc<Metrics> = Arc::default();
        for (status, ends) in
            [(Some(206), true), (Some(307), true), (Some(404), true), (Some(503), true), (Some(206), false), (None, true), (None, false)]
        {
            let mut attempt = metrics.attempt(RequestKind::Get);
            assert_eq!(metrics.in_flight(), 1);
            match status {
                Some(status) => attempt.on_head(status),
                None if ends => attempt.on_lost(),
                None => {}
            }
            if status.is_some() && ends {
                attempt.on_end();
            }
            drop(attempt);
            assert_eq!(metrics.in_flight(), 0);
        }
        let mut broken = metrics.attempt(RequestKind::List);
        broken.on_head(200);
        broken.on_lost();
        drop(broken);
        let reading = metrics.answered_requests.read();
        let ended: Vec<_> = reading.flat().into_iter().filter(|(_, value)| value.number() > 0).collect();
        let ended: Vec<_> = ended.into_iter().map(|(labels, value)| (labels.join(" "), value.number())).collect();
        let expected =
            [("get 2xx", 2), ("get 3xx", 1), ("get 4xx", 1), ("get 5xx", 1), ("get cancelled", 1), ("get none", 1), ("list none", 1)];
        assert_eq!(ended, expected.map(|(labels, count)| (labels.to_owned(), count)));
        assert_eq!((metrics.request_seconds.read().number(), metrics.first_byte_seconds.spread().count), (4, 5));
    }
}
