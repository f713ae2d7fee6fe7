//! Which keys sign the next request, and when their source is asked again: decided here, from answers and the time. It reads no file,
//! sends nothing and does not wait. Invariant: keys that were let in are given up only for keys that were let in too, or once they have
//! expired or the store refuses them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{Attempts, Keys, Missing, NoKeys, Signing, Verdict};

/// Keys are replaced so long before they expire, or in the last quarter of their life when that is shorter.
const AHEAD: Duration = Duration::from_secs(300);

/// Sources that do not say when their keys expire are asked again so often. Files are looked at besides.
const RELOAD: Duration = Duration::from_secs(300);

/// After a failure the source is asked again after one second, then after twice as long each time, up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The one request that new keys sign may never come back: then the next one tries.
const TRIAL: Duration = Duration::from_secs(2);

/// New keys that are refused may be on their way to the store: they are tried again after this, then after twice as long each time.
const UNKNOWN: Duration = Duration::from_secs(5);

/// When the store refuses keys their source is asked at once, but not more often than this: many requests are refused together.
const BETWEEN_RENEWALS: Duration = Duration::from_secs(5);

/// When the store knows the keys and forbids something, other keys are less likely, and somebody may ask for that all the time.
const BETWEEN_DENIALS: Duration = Duration::from_secs(60);

/// While all keys have expired, requests wait for the source, which is not asked more often than this.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(1);

/// Which keys, of all that one rotation has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Edition {
    /// The rotation: a bucket may be signed for with the keys of its account and with those of a session.
    rotation: u64,
    number: u64,
}

#[derive(Debug)]
struct Held {
    keys: Arc<Keys>,
    edition: Edition,
    until: Option<Instant>,
}

impl Held {
    fn has_expired(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    fn sign(&self) -> Signing {
        Signing { keys: Arc::clone(&self.keys), edition: self.edition }
    }
}

/// New keys that no request has been let in with yet.
#[derive(Debug)]
struct Candidate {
    held: Held,
    /// From when on a request may be signed with them.
    from: Instant,
    refusals: u32,
}

#[derive(Debug, Default)]
pub(super) struct Rotation {
    /// Unique in the process, so that editions of two rotations with the same number are not equal.
    id: u64,
    trusted: Option<Held>,
    /// The store refused the trusted ones: whatever else there is, is better.
    refused: bool,
    candidate: Option<Candidate>,
    editions: u64,
    /// How often the source has answered, and when last.
    asked: u64,
    asked_at: Option<Instant>,
    failure: Option<Missing>,
    failures: u32,
    due: Option<Instant>,
    /// When and as which question the source was last asked because of a refusal.
    renewed: Option<(Instant, u64)>,
}

/// What signs a request.
#[derive(Debug)]
pub(super) enum Taken {
    Keys(Signing),
    /// The source must be asked first, which has been asked so often.
    Ask(u64),
    None(NoKeys),
}

/// What a request does after its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Done,
    Again,
    /// Asks the source, which has been asked so often, and tries again if that changed anything.
    Ask(u64),
}

/// What people may want to know.
#[derive(Debug)]
pub(super) enum Event {
    Found(Arc<Keys>),
    InUse(Arc<Keys>),
    NotLetIn(Arc<Keys>),
    Failed { reason: Missing, first: bool },
}

impl Rotation {
    pub fn with_id(id: u64) -> Self {
        Self { id, ..Self::default() }
    }

    /// Whether `edition` is one of this rotation.
    pub fn has_had(&self, edition: Edition) -> bool {
        edition.rotation == self.id
    }

    /// The keys for one request.
    pub fn take(&mut self, now: Instant) -> Taken {
        if self.candidate.is_some() && self.is_over(now) {
            self.promote();
        }
        let asked_lately = self.asked_at.is_some_and(|at| now - at < BETWEEN_QUESTIONS);
        let Some(trusted) = &self.trusted else {
            return match &self.failure {
                Some(failure) if asked_lately => Taken::None(NoKeys::Missing(failure.clone())),
                _ => Taken::Ask(self.asked),
            };
        };
        if let Some(failure) = self.passing_failure() {
            // Signed with keys that are refused it would fail for good; so it is tried again as long as other requests are.
            return if asked_lately { Taken::None(NoKeys::Missing(failure.clone())) } else { Taken::Ask(self.asked) };
        }
        if trusted.has_expired(now) {
            return match &self.failure {
                _ if !asked_lately => Taken::Ask(self.asked),
                Some(failure) => Taken::None(NoKeys::Expired(failure.message.clone())),
                // The source stands by them: the store decides.
                None => Taken::Keys(trusted.sign()),
            };
        }
        match &mut self.candidate {
            Some(candidate) if candidate.from <= now => {
                candidate.from = now + TRIAL;
                Taken::Keys(candidate.held.sign())
            }
            _ => Taken::Keys(trusted.sign()),
        }
    }

    /// Whether what was signed with `edition` may be sent again: not where the next request is to try new keys.
    pub fn may_reuse(&self, edition: Edition, now: Instant) -> bool {
        let trusted = self.trusted.as_ref().is_some_and(|held| held.edition == edition && !held.has_expired(now));
        trusted && self.candidate.as_ref().is_none_or(|candidate| candidate.from > now)
    }

    /// Told what became of a request.
    pub fn on_answer(&mut self, edition: Edition, verdict: Verdict, attempts: &mut Attempts, now: Instant) -> (Next, Option<Event>) {
        let denied_twice = matches!(verdict, Verdict::Denied { .. }) && std::mem::replace(&mut attempts.denied, true);
        if let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.held.edition == edition) {
            return match verdict {
                Verdict::Accepted => (Next::Done, self.promote()),
                // It says nothing about the keys: the next request tries them.
                Verdict::Unclear => {
                    candidate.from = now;
                    (Next::Done, None)
                }
                Verdict::Denied { .. } if denied_twice => {
                    candidate.from = now;
                    (Next::Done, None)
                }
                Verdict::Refused | Verdict::Denied { .. } => {
                    candidate.refusals += 1;
                    candidate.from = now + doubled(UNKNOWN, candidate.refusals);
                    let event = (candidate.refusals == 1).then(|| Event::NotLetIn(Arc::clone(&candidate.held.keys)));
                    (Next::Again, event)
                }
            };
        }
        if self.trusted.as_ref().is_none_or(|held| held.edition != edition) {
            // Signed before others came.
            let others_may = verdict == Verdict::Refused || matches!(verdict, Verdict::Denied { .. }) && !denied_twice;
            return (if others_may { Next::Again } else { Next::Done }, None);
        }
        match verdict {
            Verdict::Unclear => (Next::Done, None),
            Verdict::Accepted => {
                self.refused = false;
                (Next::Done, None)
            }
            Verdict::Denied { .. } if denied_twice => (Next::Done, None),
            Verdict::Refused if self.candidate.is_some() => (Next::Again, self.promote()),
            Verdict::Denied { .. } if self.candidate.is_some() => (Next::Done, None),
            Verdict::Refused => {
                self.refused = true;
                (self.renew(BETWEEN_RENEWALS, attempts.began, now), None)
            }
            Verdict::Denied { silent } => {
                let pause = if silent { BETWEEN_RENEWALS } else { BETWEEN_DENIALS };
                (self.renew(pause, attempts.began, now), None)
            }
        }
    }

    /// Whether a request that began at `began` and was refused has the source asked.
    fn renew(&mut self, pause: Duration, began: Instant, now: Instant) -> Next {
        match self.renewed {
            // Still being asked for another request.
            Some((_, asked)) if asked == self.asked => Next::Ask(asked),
            Some((at, _)) if now - at < pause || at >= began => Next::Done,
            _ => {
                self.renewed = Some((now, self.asked));
                Next::Ask(self.asked)
            }
        }
    }

    /// The source answered.
    pub fn on_found(&mut self, found: Result<Keys, Missing>, now: Instant, clock: SystemTime) -> Option<Event> {
        self.asked += 1;
        self.asked_at = Some(now);
        let keys = match found {
            Ok(keys) => keys,
            Err(reason) => {
                self.failures += 1;
                self.due = Some(now + doubled(BETWEEN_QUESTIONS, self.failures));
                self.failure = Some(reason.clone());
                return self.trusted.is_some().then_some(Event::Failed { reason, first: self.failures == 1 });
            }
        };
        (self.failure, self.failures) = (None, 0);
        let until = keys.expires.map(|end| now + end.duration_since(clock).unwrap_or_default());
        self.due = Some(now + until.map_or(RELOAD, |until| before_end(until - now)));
        self.hold(Arc::new(keys), until, now)
    }

    /// Finds a place for keys of the source.
    fn hold(&mut self, keys: Arc<Keys>, until: Option<Instant>, now: Instant) -> Option<Event> {
        if let Some(trusted) = self.trusted.as_mut().filter(|trusted| trusted.keys.sign_like(&keys)) {
            (trusted.keys, trusted.until) = (keys, until);
            // Whatever else the source said in the meantime, it took back.
            self.candidate = None;
            return None;
        }
        if let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.held.keys.sign_like(&keys)) {
            (candidate.held.keys, candidate.held.until) = (keys, until);
            return None;
        }
        self.editions += 1;
        let held = Held { keys: Arc::clone(&keys), edition: self.newest(), until };
        let first = self.trusted.is_none();
        if self.is_over(now) {
            self.trusted = Some(held);
            self.candidate = None;
            self.refused = false;
        } else {
            self.candidate = Some(Candidate { held, from: now, refusals: 0 });
        }
        (!first).then_some(Event::Found(keys))
    }

    /// Why there are no others for keys that the store has refused, when that passes by itself.
    pub fn passing_failure(&self) -> Option<&Missing> {
        self.failure.as_ref().filter(|failure| self.refused && failure.kind.is_retryable())
    }

    /// How often the source has answered.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Whether nothing newer than `edition` is there to sign with.
    pub fn is_newest(&self, edition: Edition) -> bool {
        edition == self.newest()
    }

    fn newest(&self) -> Edition {
        Edition { rotation: self.id, number: self.editions }
    }

    /// Whether the source is to be asked ahead of time.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// The files of the source are others: it is asked at once, also where it failed a moment ago.
    pub fn on_changed(&mut self) -> bool {
        self.failures = 0;
        true
    }

    /// Whether the trusted keys are of no use any more.
    fn is_over(&self, now: Instant) -> bool {
        self.refused || self.trusted.as_ref().is_none_or(|held| held.has_expired(now))
    }

    fn promote(&mut self) -> Option<Event> {
        let candidate = self.candidate.take()?;
        let event = Event::InUse(Arc::clone(&candidate.held.keys));
        self.trusted = Some(candidate.held);
        self.refused = false;
        Some(event)
    }
}

/// When keys that live so long are replaced.
fn before_end(life: Duration) -> Duration {
    let ahead = AHEAD.min(life / 4);
    // A source that gives out what it gave before is not asked all the time.
    (life - ahead).max(BETWEEN_QUESTIONS)
}

/// `first`, and twice as long each time.
fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
