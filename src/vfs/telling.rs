//! Changes of files on their way to the kernel: who sees one waits until the kernel was told, and whoever speaks to the kernel takes them from here.
//! Which files changed is decided elsewhere. Invariant: whoever waits goes on only after the kernel was told of that change, or after
//! [`TELL`].

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use super::Inode;

/// Longest wait for the kernel to be told of a change. It takes microseconds unless something is badly wrong.
const TELL: Duration = Duration::from_secs(5);

/// Inodes whose content was seen to change.
#[derive(Debug, Default)]
pub struct Changes {
    pub inodes: Vec<Inode>,
    /// Those of them of which the kernel may have pages that are old. No others are dropped: that takes until reads under way are
    /// answered, and an answer to getattr that crosses it is thrown away by the kernel (`attr_version`), which then goes on with the size
    /// it had and ends the file there.
    pub old_pages: Vec<Inode>,
    /// Inodes whose pages a request waits to have dropped, and where to say so; dropped unsent, the request goes on all the same.
    pub awaited_pages: Vec<(Inode, oneshot::Sender<()>)>,
    /// How many changes there were until now.
    count: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Telling {
    changed: Mutex<Changes>,
    change: Notify,
    /// How many changes the kernel has been told of.
    told: watch::Sender<u64>,
}

impl Telling {
    /// Has the kernel told that `ino` changed, and waits until it was. With `old_pages` it is told to drop them too, some time.
    pub async fn tell(&self, ino: Inode, old_pages: bool) {
        let count = {
            let mut changed = self.changed.lock();
            changed.inodes.push(ino);
            changed.old_pages.extend(old_pages.then_some(ino));
            changed.count += 1;
            changed.count
        };
        self.change.notify_one();
        let mut told = self.told.subscribe();
        if tokio::time::timeout(TELL, told.wait_for(|&told| told >= count)).await.is_err() {
            tracing::warn!(ino = ino.0, "the kernel could not be told that a file changed");
        }
    }

    /// Has the kernel drop its pages of `ino`, and waits until it has.
    pub async fn drop_pages(&self, ino: Inode) {
        let (dropped, waiting) = oneshot::channel();
        self.changed.lock().awaited_pages.push((ino, dropped));
        self.change.notify_one();
        if tokio::time::timeout(TELL, waiting).await.is_err() {
            tracing::warn!(ino = ino.0, "the kernel has not dropped its pages of a file that was written past them");
        }
    }

    /// Waits for changes.
    pub async fn next(&self) -> Changes {
        loop {
            {
                let mut changed = self.changed.lock();
                if !changed.inodes.is_empty() || !changed.awaited_pages.is_empty() {
                    let count = changed.count;
                    return Changes { count, ..std::mem::replace(&mut *changed, Changes { count, ..Changes::default() }) };
                }
            }
            self.change.notified().await;
        }
    }

    /// The kernel believes nothing old of the attributes of `changes` any more.
    pub fn told(&self, changes: &Changes) {
        self.told.send_replace(changes.count);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_goes_on_when_the_kernel_was_told_of_that_change() {
        let telling = Telling::default();
        let mut first = Box::pin(telling.tell(Inode(2), false));
        assert!((&mut first).now_or_never().is_none());
        let changes = telling.next().await;
        let mut second = Box::pin(telling.tell(Inode(3), true));
        assert!((&mut second).now_or_never().is_none());
        telling.told(&changes);
        first.await;
        assert!((&mut second).now_or_never().is_none(), "it came after what was told");
        let changes = telling.next().await;
        assert_eq!((&changes.inodes, &changes.old_pages), (&vec![Inode(3)], &vec![Inode(3)]));
        telling.told(&changes);
        second.await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_kernel_that_cannot_be_told_is_not_waited_for_for_ever() {
        let (telling, began) = (Telling::default(), Instant::now());
        telling.tell(Inode(2), false).await;
        assert_eq!(began.elapsed(), TELL);
    }
}
