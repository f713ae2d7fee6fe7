//! Who is on the directory: whoever is there alone counts what lies in it, and then lets others in. It counts nothing itself.
//! Invariant: nobody adds a chunk while somebody counts, and nobody counts while somebody adds.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;

use parking_lot::{RwLock, RwLockReadGuard};
use rustix::fs::FlockOperation;

use super::files::{self, Layout, try_lock};
use super::home::open_own;
use super::ledger::{Account, Ledger};

/// The place of this process on the directory.
#[derive(Debug, Default)]
enum State {
    /// It reads what it finds and adds nothing.
    #[default]
    Out,
    /// Alone, with an exclusive lock of this file: the ledger is not to be believed until it has counted.
    Counting(File),
    /// With a shared lock.
    In(File),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Membership {
    state: RwLock<State>,
}

/// Held while a chunk is added.
pub(super) struct Entered<'a> {
    _state: RwLockReadGuard<'a, State>,
}

impl Membership {
    /// The right to add; none while it is being counted.
    pub fn enter(&self) -> Option<Entered<'_>> {
        // Waits for who looks around (microseconds), and does not wait behind who waits: an add asks more than once.
        let state = self.state.read_recursive();
        matches!(*state, State::In(_)).then_some(Entered { _state: state })
    }

    pub fn is_counting(&self) -> bool {
        matches!(*self.state.read_recursive(), State::Counting(_))
    }

    pub fn is_out(&self) -> bool {
        matches!(*self.state.read_recursive(), State::Out)
    }

    /// Comes in beside others, or alone, and then to count what is there. `starting` processes have staged nothing yet.
    pub fn join(&self, layout: &Layout, ledger: &Ledger, starting: bool) -> io::Result<()> {
        let mut state = self.state.write();
        if !matches!(*state, State::Out) {
            return Ok(());
        }
        layout.prepare()?;
        ledger.settle_dead()?;
        // Under the lock of the ledger: who comes second finds the account of who came first.
        *state = ledger.change(|account| join_locked(layout, account, starting))??;
        Ok(())
    }

    /// All that is on the directory was counted.
    pub fn settle(&self, ledger: &Ledger) -> io::Result<()> {
        let mut state = self.state.write();
        if let State::Counting(file) = std::mem::take(&mut *state) {
            ledger.change(Account::settle)?;
            // Should somebody take the lock in between, they count again, and we come back in beside them.
            if try_lock(&file, FlockOperation::NonBlockingLockShared)? {
                *state = State::In(file);
            }
        }
        Ok(())
    }

    /// Goes out when the directory is not the one that was joined, or nobody vouches for its account.
    pub fn check(&self, ledger: &Ledger) -> io::Result<()> {
        let settled = ledger.change(|account| account.settled)?;
        let stays = |state: &State| -> io::Result<bool> {
            Ok(match state {
                State::Out => true,
                State::Counting(file) => file.metadata()?.nlink() > 0,
                State::In(file) => settled && file.metadata()?.nlink() > 0,
            })
        };
        // Where many add there may be no moment in which nobody does: they are waited for only when there is something to change.
        if stays(&self.state.read_recursive())? {
            return Ok(());
        }
        let mut state = self.state.write();
        if !stays(&state)? {
            *state = State::Out;
        }
        Ok(())
    }

    /// To count again when nobody else is there.
    pub fn leave(&self) {
        *self.state.write() = State::Out;
    }
}

fn join_locked(layout: &Layout, account: &mut Account, starting: bool) -> io::Result<State> {
    let file = open_own(OpenOptions::new().read(true).write(true).create(true).truncate(false), &layout.daemons())?;
    if try_lock(&file, FlockOperation::NonBlockingLockExclusive)? {
        account.begin();
        if starting {
            (account.staged, account.pending) = (staged_bytes(layout)?, 0);
        }
        if fs::read_dir(layout.chunks())?.next().is_some() {
            return Ok(State::Counting(file));
        }
        account.settle();
    }
    Ok(if try_lock(&file, FlockOperation::NonBlockingLockShared)? { State::In(file) } else { State::Out })
}

/// What killed processes left for the next one to upload.
fn staged_bytes(layout: &Layout) -> io::Result<u64> {
    let Some(entries) = files::found(fs::read_dir(layout.staging()))? else { return Ok(0) };
    let sizes = entries.map(|entry| Ok(files::found(entry?.metadata())?.map_or(0, |found| files::disk_bytes(&found))));
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, Layout) {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::open(directory.path()).unwrap();
        (directory, layout)
    }

    #[test]
    fn an_empty_directory_needs_no_count_and_has_room_for_two() {
        let (_kept, layout) = directory();
        let (one, two) = (Membership::default(), Membership::default());
        let ledger = Ledger::shared(layout.ledger());
        for member in [&one, &two] {
            member.join(&layout, &ledger, true).unwrap();
            assert!(member.enter().is_some());
        }
    }

    #[test]
    fn who_comes_while_somebody_counts_stays_out_until_then() {
        let (_kept, layout) = directory();
        layout.prepare().unwrap();
        fs::create_dir(layout.fan(1)).unwrap();
        let (one, two) = (Membership::default(), Membership::default());
        let ledger = Ledger::shared(layout.ledger());
        one.join(&layout, &ledger, true).unwrap();
        two.join(&layout, &ledger, true).unwrap();
        assert!(one.is_counting() && two.is_out() && one.enter().is_none() && two.enter().is_none());
        one.settle(&ledger).unwrap();
        two.join(&layout, &ledger, true).unwrap();
        assert!(one.enter().is_some() && two.enter().is_some());
    }

    #[test]
    fn who_comes_second_forgets_nothing_of_the_first_and_who_comes_alone_counts_what_is_staged() {
        let (_kept, layout) = directory();
        let (one, two) = (Membership::default(), Membership::default());
        let ledger = Ledger::shared(layout.ledger());
        one.join(&layout, &ledger, true).unwrap();
        ledger.change(|account| (account.staged, account.pending) = (1 << 20, 77)).unwrap();
        two.join(&layout, &ledger, true).unwrap();
        assert_eq!(ledger.change(|account| (account.staged, account.pending)).unwrap(), (1 << 20, 77));
        one.leave();
        two.leave();
        fs::create_dir(layout.staging()).unwrap();
        fs::write(layout.staging().join("left"), [1; 10_000]).unwrap();
        one.join(&layout, &ledger, true).unwrap();
        let (staged, pending) = ledger.change(|account| (account.staged, account.pending)).unwrap();
        assert!((10_000..30_000).contains(&staged) && pending == 0, "{staged} {pending}");
    }

    #[test]
    fn it_is_looked_after_also_while_somebody_adds() {
        let (_kept, layout) = directory();
        let member = Membership::default();
        let ledger = Ledger::shared(layout.ledger());
        member.join(&layout, &ledger, true).unwrap();
        let _adds = member.enter().unwrap();
        member.check(&ledger).unwrap();
        assert!(!member.is_out());
    }

    #[test]
    fn a_directory_that_was_removed_is_left() {
        let (kept, layout) = directory();
        let member = Membership::default();
        let ledger = Ledger::shared(layout.ledger());
        member.join(&layout, &ledger, true).unwrap();
        fs::remove_file(layout.daemons()).unwrap();
        member.check(&ledger).unwrap();
        assert!(member.is_out());
        drop(kept);
        assert!(member.join(&layout, &ledger, false).is_err() && member.is_out());
    }
}
