//! Hears the keeper of a mount, and finds it again when it began anew: a driver of Kubernetes is replaced while its daemons go on. It decides nothing
//! about wishes. Invariant: while nobody listens a look costs a system call or two, at most every [`LONGEST`], and nobody waits for it.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::handover::{Line, Wish, Wishes};

/// Between two looks for a keeper: doubled from the first to the longest, and the first again after a keeper that stayed.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
const STAYED: Duration = Duration::from_secs(10);

/// What the keeper says, heard by a thread that ends with the receiver, or with a keeper that cannot be found again.
pub(super) fn wishes(line: Option<Arc<Line>>) -> io::Result<UnboundedReceiver<Wish>> {
    let (tell, hear) = unbounded_channel();
    if let Some(line) = line {
        let wishes = line.wishes()?;
        thread::Builder::new().name("keeper".into()).spawn(move || listen(&line, wishes, &tell))?;
    }
    Ok(hear)
}

fn listen(line: &Line, mut wishes: Wishes, tell: &UnboundedSender<Wish>) {
    let mut pauses = Pauses::default();
    loop {
        let began = Instant::now();
        while let Some(wish) = wishes.hear() {
            if tell.send(wish).is_err() {
                return;
            }
        }
        if !line.has_way_back() {
            tracing::warn!("the keeper of this mount is gone: a restart loses the mount");
            return;
        }
        pauses.on_end(began.elapsed());
        let Some(found) = find(line, &mut pauses, tell) else { return };
        tracing::info!("the mount is kept again");
        wishes = found;
    }
}

/// A keeper that began anew; none when nobody wants to hear it any more.
fn find(line: &Line, pauses: &mut Pauses, tell: &UnboundedSender<Wish>) -> Option<Wishes> {
    let mut is_first = true;
    loop {
        thread::sleep(pauses.next());
        if tell.is_closed() {
            return None;
        }
        match line.come_back() {
            Ok(wishes) => return Some(wishes),
            // Not before: a keeper also goes when the mount does.
            Err(error) if std::mem::take(&mut is_first) => {
                tracing::warn!(%error, "the keeper of this mount is gone: until there is one again, a restart loses the mount");
            }
            Err(error) => tracing::debug!(%error, "nobody keeps this mount yet"),
        }
    }
}

/// How long to wait before the next look.
#[derive(Debug)]
struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Pauses {
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause
    }

    /// A keeper was there for `stayed`. One that sends this daemon away is not asked without a rest.
    fn on_end(&mut self, stayed: Duration) {
        if stayed >= STAYED {
            self.0 = FIRST;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use serde_json::{Value, json};

    use super::*;
    use crate::handover::{Link, Place, WayBack};

    #[test]
    fn looks_are_farther_apart_until_a_keeper_has_stayed() {
        let mut pauses = Pauses::default();
        let millis = |pauses: &mut Pauses| (0..8).map(|_| pauses.next().as_millis()).collect::<Vec<_>>();
        assert_eq!(millis(&mut pauses), [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        pauses.on_end(STAYED / 2);
        assert_eq!(pauses.next(), LONGEST);
        pauses.on_end(STAYED);
        assert_eq!(millis(&mut pauses)[0], 50);
    }

    #[test]
    fn each_keeper_is_heard_after_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let (one, first) = UnixStream::pair().unwrap();
        let line = Arc::new(Line::new(one));
        line.can_return(WayBack::new(path.clone(), vec![tempfile::tempfile().unwrap().into()], None, Vec::new())).unwrap();
        line.ready().unwrap();
        let mut heard = wishes(Some(line)).unwrap();
        let wish = |millis| Wish { leave_within_ms: Some(millis) };
        Link::new(first).send(&wish(1), &[]).unwrap();
        assert_eq!(heard.blocking_recv(), Some(wish(1)));
        for number in 2..4 {
            // What a killed keeper left there answers nobody.
            let door = Place::of(&path).unwrap().listen().unwrap();
            let mut keeper = Link::new(door.accept().unwrap());
            let (said, descriptors) = keeper.receive::<Value>(None).unwrap().unwrap();
            assert_eq!((said, descriptors.len()), (json!({"resume": {"devices": 1}}), 1));
            keeper.send(&wish(number), &[]).unwrap();
            assert_eq!(heard.blocking_recv(), Some(wish(number)));
        }
    }
}
