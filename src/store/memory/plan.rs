//! What the store does to requests besides answering them: how long the first byte takes, and which requests
//! fail, and how. Scripted and seeded, so a run repeats exactly.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::link::Bandwidth;
use crate::store::{ErrorKind, Key, Op};

/// How the network between us and the store behaves. The default takes no time at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// From the request to the first byte of the answer, for every operation.
    pub first_byte: Latency,
    /// How fast bodies arrive, and how fast those that are sent leave: a link of its own for each direction.
    pub bandwidth: Bandwidth,
    /// Where random latencies start from.
    pub seed: u64,
}

/// Time to the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// Always the same.
    Fixed(Duration),
    /// Evenly between the two, drawn in the order of the requests.
    Between(Duration, Duration),
}

impl Default for Latency {
    fn default() -> Self {
        Self::Fixed(Duration::ZERO)
    }
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with an error.
    Error(ErrorKind),
    /// The store does what was asked and the answer never arrives ([`ErrorKind::Timeout`]).
    Lost,
    /// The body of an answer ends after this many bytes ([`ErrorKind::Corrupt`]); the connection of a body that is sent breaks
    /// there ([`ErrorKind::Unavailable`]).
    Truncate { after: u64 },
    /// The body pauses after this many bytes.
    Stall { after: u64, pause: Duration },
    /// The object gets new content of the same size after this many bytes of the body. This answer still carries the
    /// old version to its end, as in real stores; the next request for the old version finds it replaced.
    Replace { after: u64 },
}

/// Whether a rule is about a request.
type Accepts = Box<dyn Fn(Op, &Key) -> bool + Send>;

/// Which requests a fault happens to: those that match everything said, counted from 1.
pub struct Rule {
    fault: Fault,
    op: Option<Op>,
    key: Option<Key>,
    when: Option<Accepts>,
    skip: usize,
    count: usize,
    seen: usize,
}

impl Rule {
    /// A fault for every request; the other methods narrow it down.
    pub fn new(fault: Fault) -> Self {
        Self { fault, op: None, key: None, when: None, skip: 0, count: usize::MAX, seen: 0 }
    }

    /// Only requests of this operation.
    #[must_use]
    pub fn op(self, op: Op) -> Self {
        Self { op: Some(op), ..self }
    }

    /// Only requests for this key, or listings of this prefix.
    #[must_use]
    pub fn key(self, key: impl Into<Key>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Only requests that the predicate accepts.
    #[must_use]
    pub fn when(self, accepts: impl Fn(Op, &Key) -> bool + Send + 'static) -> Self {
        Self { when: Some(Box::new(accepts)), ..self }
    }

    /// Only the `n`th of the requests that match, the first being 1.
    #[must_use]
    pub fn nth(self, n: usize) -> Self {
        Self { skip: n.saturating_sub(1), count: 1, ..self }
    }

    /// Only the first `n` of the requests that match.
    #[must_use]
    pub fn first(self, n: usize) -> Self {
        Self { skip: 0, count: n, ..self }
    }

    /// What happens to this request, if the rule is about it.
    fn on_request(&mut self, op: Op, key: &Key) -> Option<Fault> {
        let matches = self.op.is_none_or(|o| o == op)
            && self.key.as_ref().is_none_or(|k| k == key)
            && self.when.as_ref().is_none_or(|accepts| accepts(op, key));
        if !matches {
            return None;
        }
        let index = self.seen;
        self.seen += 1;
        (index >= self.skip && index - self.skip < self.count).then_some(self.fault)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("fault", &self.fault).field("op", &self.op).field("key", &self.key).finish_non_exhaustive()
    }
}

/// The plan being carried out.
#[derive(Debug)]
pub(super) struct Script {
    pub plan: Plan,
    rules: Vec<Rule>,
    random: StdRng,
}

impl Script {
    pub fn new(plan: Plan) -> Self {
        Self { plan, rules: Vec::new(), random: StdRng::seed_from_u64(plan.seed) }
    }

    pub fn push(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Goes on with the rules of an older script, as far as they have come.
    pub fn take_rules(&mut self, older: Self) {
        self.rules = older.rules;
    }

    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    /// Latency and faults of the next request. Every rule counts it, also when another one hits.
    pub fn on_request(&mut self, op: Op, key: &Key) -> (Duration, Vec<Fault>) {
        let latency = match self.plan.first_byte {
            Latency::Fixed(latency) => latency,
            Latency::Between(low, high) => low + high.saturating_sub(low).mul_f64(self.random.random_range(0.0..=1.0)),
        };
        (latency, self.rules.iter_mut().filter_map(|rule| rule.on_request(op, key)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_counts_only_what_it_is_about() {
        let mut script = Script::new(Plan::default());
        script.push(Rule::new(Fault::Error(ErrorKind::Throttled)).op(Op::Get).key("a").nth(2));
        script.push(Rule::new(Fault::Truncate { after: 1 }).op(Op::Head).first(2));
        let mut faults = |op, key: &str| script.on_request(op, &key.into()).1;
        assert_eq!(faults(Op::Get, "a"), []);
        assert_eq!(faults(Op::Get, "b"), []);
        assert_eq!(faults(Op::List, "a"), []);
        assert_eq!(faults(Op::Get, "a"), [Fault::Error(ErrorKind::Throttled)]);
        assert_eq!(faults(Op::Get, "a"), []);
        for expected in [1, 1, 0] {
            assert_eq!(faults(Op::Head, "x").len(), expected);
        }
    }

    #[test]
    fn random_latency_repeats_with_its_seed_and_stays_between_its_bounds() {
        let (low, high) = (Duration::from_millis(5), Duration::from_millis(50));
        let run = |seed| {
            let mut script = Script::new(Plan { first_byte: Latency::Between(low, high), seed, ..Plan::default() });
            (0..100).map(|_| script.on_request(Op::Get, &Key::root()).0).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!(run(3).iter().all(|l| (low..=high).contains(l)));
    }
}
