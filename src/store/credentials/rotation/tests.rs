//! What happens to keys, in the order in which it happens.

use super::*;
use crate::store::clock::Correction;

/// A rotation and its clock.
struct Story {
    rotation: Rotation,
    now: Instant,
}

fn keys(id: &str, lives: Option<u64>) -> Keys {
    let expires = lives.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    Keys { id: id.into(), secret: format!("secret of {id}"), token: None, expires, from: "a test".into() }
}

impl Story {
    /// Begins with keys that live so many seconds.
    fn with(id: &str, lives: Option<u64>) -> Self {
        let mut story = Self { rotation: Rotation::default(), now: Instant::now() };
        assert!(matches!(story.rotation.take(story.now), Taken::Ask(0)));
        story.finds(id, lives);
        story
    }

    /// The source gives out keys that live so many seconds from now.
    fn finds(&mut self, id: &str, lives: Option<u64>) -> Option<Event> {
        self.rotation.on_found(Ok(keys(id, lives)), self.now, SystemTime::UNIX_EPOCH)
    }

    fn fails(&mut self) -> Option<Event> {
        self.rotation.on_found(Err(Missing::new("down")), self.now, SystemTime::UNIX_EPOCH)
    }

    fn later(&mut self, time: Duration) {
        self.now += time;
    }

    /// Signs a request.
    #[track_caller]
    fn signs(&mut self, id: &str) -> Edition {
        match self.rotation.take(self.now) {
            Taken::Keys(signing) => {
                assert_eq!(signing.keys.id, id);
                signing.edition
            }
            other => panic!("{other:?}"),
        }
    }

    fn answered(&mut self, edition: Edition, verdict: Verdict) -> Next {
        self.answered_at(&mut Attempts { began: self.now, left: 3, denied: false, correction: Correction::default() }, edition, verdict)
    }

    fn answered_at(&mut self, attempts: &mut Attempts, edition: Edition, verdict: Verdict) -> Next {
        self.rotation.on_answer(edition, verdict, attempts, self.now).0
    }

    /// Until the source is asked in the background.
    fn due_in(&self) -> Duration {
        self.rotation.due.unwrap() - self.now
    }
}

use Verdict::{Accepted, Refused, Unclear};

const DENIED: Verdict = Verdict::Denied { silent: false };
const SILENT: Verdict = Verdict::Denied { silent: true };

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn new_keys_sign_one_request_and_all_once_that_was_let_in() {
    let mut story = Story::with("old", None);
    let old = story.signs("old");
    assert!(story.rotation.may_reuse(old, story.now));
    assert!(matches!(story.finds("new", None), Some(Event::Found(_))));
    assert!(!story.rotation.may_reuse(old, story.now), "the next request is to try the new ones");
    let new = story.signs("new");
    assert_eq!(story.signs("old"), old);
    assert!(story.rotation.may_reuse(old, story.now), "while it is under way all others go on as before");
    assert_eq!(story.answered(new, Accepted), Next::Done);
    assert!(!story.rotation.may_reuse(old, story.now) && story.rotation.may_reuse(new, story.now));
    assert_eq!(story.signs("new"), new);
    for verdict in [Refused, SILENT] {
        assert_eq!(story.answered(old, verdict), Next::Again, "it was signed before");
    }
    assert_eq!(story.answered(old, Accepted), Next::Done);
    assert_eq!(story.signs("new"), new);
}

#[test]
fn new_keys_that_are_refused_are_tried_again_later_and_the_old_ones_sign_meanwhile() {
    let mut story = Story::with("old", None);
    story.finds("new", None);
    let new = story.signs("new");
    assert_eq!(story.answered(new, Refused), Next::Again);
    story.signs("old");
    for pause in [UNKNOWN, UNKNOWN * 2, UNKNOWN * 4, UNKNOWN * 8, LONGEST_PAUSE, LONGEST_PAUSE] {
        story.later(pause - SECOND);
        story.signs("old");
        story.later(SECOND);
        assert_eq!(story.signs("new"), new, "after {pause:?}");
        assert_eq!(story.answered(new, Refused), Next::Again);
    }
    story.later(LONGEST_PAUSE);
    story.signs("new");
    assert_eq!(story.answered(new, Accepted), Next::Done);
    story.signs("new");
}

#[test]
fn old_keys_that_are_refused_or_expire_give_way_to_new_ones_at_once() {
    for expire in [false, true] {
        let mut story = Story::with("old", Some(3));
        let old = story.signs("old");
        story.finds("new", Some(1000));
        let new = story.signs("new");
        assert_eq!(story.answered(new, Refused), Next::Again);
        story.signs("old");
        if expire {
            story.later(SECOND * 3);
        } else {
            assert_eq!(story.answered(old, Refused), Next::Again);
        }
        assert_eq!(story.signs("new"), new);
        assert_eq!(story.signs("new"), new);
    }
}

#[test]
fn a_trial_that_never_comes_back_or_says_nothing_is_done_by_another_request() {
    let mut story = Story::with("old", None);
    story.finds("new", None);
    let new = story.signs("new");
    story.signs("old");
    story.later(TRIAL);
    story.signs("new");
    assert_eq!(story.answered(new, Unclear), Next::Done);
    story.signs("new");
    story.signs("old");
}

#[test]
fn what_neither_keys_may_do_says_nothing_about_the_new_ones() {
    let mut story = Story::with("old", None);
    let old = story.signs("old");
    story.finds("new", None);
    let new = story.signs("new");
    let mut attempts = Attempts { began: story.now, left: 3, denied: false, correction: Correction::default() };
    assert_eq!(story.answered_at(&mut attempts, new, DENIED), Next::Again);
    assert_eq!(story.signs("old"), old);
    assert_eq!(story.answered_at(&mut attempts, old, DENIED), Next::Done);
    story.later(UNKNOWN);
    story.signs("new");
}

#[test]
fn requests_that_are_refused_together_ask_the_source_once() {
    let mut story = Story::with("old", None);
    let old = story.signs("old");
    let mut early = Attempts { began: story.now, left: 3, denied: false, correction: Correction::default() };
    story.later(SECOND);
    assert_eq!(story.answered(old, Refused), Next::Ask(1));
    assert_eq!(story.answered(old, Refused), Next::Ask(1), "it waits for the same question");
    story.finds("old", None);
    assert_eq!(story.answered_at(&mut early, old, Refused), Next::Done, "the source was asked since it began");
    story.later(BETWEEN_RENEWALS / 2);
    assert_eq!(story.answered(old, Refused), Next::Done);
    story.later(BETWEEN_RENEWALS / 2);
    assert_eq!(story.answered(old, Refused), Next::Ask(2));
    story.finds("new", None);
    assert!(!story.rotation.is_newest(old));
    story.signs("new");
    story.signs("new");
}

/// It may be a policy that says no, which is no reason to give up keys that are let in elsewhere.
#[test]
fn a_silent_refusal_asks_the_source_and_does_not_give_up_the_old_keys() {
    let mut story = Story::with("old", None);
    let old = story.signs("old");
    story.later(SECOND);
    assert_eq!(story.answered(old, SILENT), Next::Ask(1));
    story.finds("new", None);
    let new = story.signs("new");
    assert_eq!(story.answered(new, Refused), Next::Again);
    assert_eq!(story.answered(old, SILENT), Next::Done);
    assert_eq!(story.signs("old"), old);
    story.later(BETWEEN_RENEWALS);
    assert_eq!(story.signs("new"), new);
    assert_eq!(story.answered(new, Accepted), Next::Done);
}

#[test]
fn what_is_forbidden_asks_the_source_once_a_minute() {
    let mut story = Story::with("old", None);
    let old = story.signs("old");
    story.later(SECOND);
    assert_eq!(story.answered(old, DENIED), Next::Ask(1));
    story.finds("old", None);
    for _ in 0..11 {
        story.later(BETWEEN_RENEWALS);
        assert_eq!(story.answered(old, DENIED), Next::Done);
    }
    story.later(BETWEEN_RENEWALS);
    assert_eq!(story.answered(old, DENIED), Next::Ask(2));
}

#[test]
fn the_source_is_asked_well_before_the_end_and_what_it_repeats_stays() {
    let mut story = Story::with("old", Some(3600));
    assert_eq!(story.due_in(), Duration::from_secs(3300));
    story.later(story.due_in());
    assert!(story.rotation.is_due(story.now));
    assert!(story.finds("old", Some(300)).is_none());
    assert_eq!(story.due_in(), Duration::from_secs(225));
    story.signs("old");
    assert_eq!(Story::with("short", Some(2)).due_in(), Duration::from_millis(1500));
    assert_eq!(Story::with("endless", None).due_in(), RELOAD);
}

#[test]
fn a_source_that_fails_is_asked_again_ever_later_and_at_once_when_its_files_change() {
    let mut story = Story::with("old", Some(100));
    for (n, pause) in [1, 2, 4, 8, 16, 32, 60].into_iter().enumerate() {
        assert!(matches!(story.fails(), Some(Event::Failed { first, .. }) if first == (n == 0)));
        assert_eq!(story.due_in(), Duration::from_secs(pause));
        story.signs("old");
    }
    assert!(story.rotation.on_changed());
    story.fails();
    assert_eq!(story.due_in(), SECOND);
}

#[test]
fn without_keys_that_live_requests_wait_for_the_source_and_not_all_the_time() {
    let mut story = Story::with("old", Some(10));
    story.later(SECOND * 10);
    assert!(matches!(story.rotation.take(story.now), Taken::Ask(1)));
    story.fails();
    assert!(matches!(story.rotation.take(story.now), Taken::None(NoKeys::Expired(reason)) if reason == "down"));
    story.later(BETWEEN_QUESTIONS);
    assert!(matches!(story.rotation.take(story.now), Taken::Ask(2)));
    // The source stands by what it said: the store decides.
    story.finds("old", Some(0));
    story.signs("old");
    story.later(BETWEEN_QUESTIONS);
    assert!(matches!(story.rotation.take(story.now), Taken::Ask(3)));
    story.finds("new", Some(100));
    story.signs("new");
    story.signs("new");

    let mut nothing = Rotation::default();
    nothing.on_found(Err(Missing::new("no file")), story.now, SystemTime::UNIX_EPOCH);
    assert!(matches!(nothing.take(story.now), Taken::None(NoKeys::Missing(reason)) if reason.message == "no file"));
}

#[test]
fn keys_that_are_taken_back_before_they_were_tried_never_sign() {
    let mut story = Story::with("old", None);
    story.finds("new", None);
    assert!(story.finds("old", None).is_none());
    story.signs("old");
    story.finds("newer", None);
    story.finds("newest", None);
    story.signs("newest");
}
