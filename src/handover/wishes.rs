//! What a keeper says to its daemon after the mount itself. It decides nothing. Invariant: what is not understood is left aside; a keeper that is
//! gone has no wishes.

use serde::{Deserialize, Serialize};

use super::Link;

/// What is wished for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wish {
    /// The daemon shall leave the mount to another one at a quiet moment, for which it waits so many milliseconds at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leave_within_ms: Option<u64>,
}

/// The daemon's ear.
#[derive(Debug)]
pub struct Wishes(pub(super) Link);

impl Wishes {
    /// Waits for the next wish; none: the keeper is gone, or cannot be understood.
    pub fn hear(&mut self) -> Option<Wish> {
        match self.0.next() {
            Ok(wish) => wish.map(|(wish, _)| wish),
            Err(error) => {
                tracing::warn!(%error, "the keeper of this mount cannot be understood");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use serde_json::json;

    use super::super::Line;
    use super::*;

    #[test]
    fn wishes_are_heard_while_the_daemon_speaks() {
        let (here, there) = UnixStream::pair().unwrap();
        let line = Line::new(here);
        let mut keeper = Link::new(there);
        let mut wishes = line.wishes().unwrap();
        let waiting = std::thread::spawn(move || [wishes.hear(), wishes.hear(), wishes.hear()]);
        line.ready().unwrap();
        assert_eq!(keeper.receive::<serde_json::Value>(None).unwrap().unwrap().0, json!({"ready": true}));
        let wish = Wish { leave_within_ms: Some(5) };
        keeper.send(&wish, &[]).unwrap();
        keeper.send(&json!({"of-tomorrow": 1}), &[]).unwrap();
        drop(keeper);
        assert_eq!(waiting.join().unwrap(), [Some(wish), Some(Wish::default()), None]);
    }
}
