//! What is to become of the content of one file. Pure.
//!
//! ```text
//!            a write was refused, or sent bytes
//!            are gone after a failed commit
//!   Wanted ---------------------------------> Broken
//!     |  ^-------- truncate(0) ----------------'  |
//!     | discard                                   | discard
//!     v                                           |
//!   Unwanted <------------------------------------'
//!
//!   hand_over leads from Wanted to HandedOver, from which discard leads to Unwanted.
//!   give_up leads from each of them to Lost, which nothing leaves.
//! ```
//!
//! Invariant: content whose writer was answered "written" is stored by a commit, or each later commit returns an error, unless its name is gone.

use super::{Interrupted, WriteError};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) enum Fate {
    /// A commit stores it.
    #[default]
    Wanted,
    /// Bytes are gone or a write was refused: there is nothing whole to commit until the file is emptied and written again.
    Broken(WriteError),
    /// Its name is gone: nothing is committed, reads and writes go on.
    Unwanted,
    /// Another daemon goes on with it: nothing is changed or stored here any more.
    HandedOver,
    /// It will never be stored, although its writers were answered.
    Lost,
}

/// What a commit may do.
#[derive(Debug)]
pub(super) enum Verdict {
    Store,
    /// There is nothing to do.
    Nothing,
    Refuse(WriteError),
}

impl Fate {
    /// The name is gone.
    pub fn discard(&mut self) {
        if !matches!(self, Self::Lost) {
            *self = Self::Unwanted;
        }
    }

    pub fn give_up(&mut self) {
        *self = Self::Lost;
    }

    /// It is written down for another daemon.
    pub fn hand_over(&mut self) {
        if matches!(self, Self::Wanted) {
            *self = Self::HandedOver;
        }
    }

    /// Bytes are gone, or a write was refused, because of `error`. The first error is kept.
    pub fn fail(&mut self, error: &WriteError) {
        if matches!(self, Self::Wanted) {
            *self = Self::Broken(error.clone());
        }
    }

    /// The file was emptied. True: bytes that were missing no longer belong to it.
    pub fn start_over(&mut self) -> bool {
        let was_broken = matches!(self, Self::Broken(_));
        if was_broken {
            *self = Self::Wanted;
        }
        was_broken
    }

    pub fn is_broken(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    pub fn is_unwanted(&self) -> bool {
        matches!(self, Self::Unwanted)
    }

    pub fn is_wanted(&self) -> bool {
        matches!(self, Self::Wanted)
    }

    pub fn is_handed_over(&self) -> bool {
        matches!(self, Self::HandedOver)
    }

    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost)
    }

    /// Whether a commit has something to store or to refuse; `is_new`: there are bytes or headers that the store lacks.
    pub fn is_dirty(&self, is_new: bool) -> bool {
        match self {
            Self::Wanted => is_new,
            Self::Broken(_) | Self::HandedOver | Self::Lost => true,
            Self::Unwanted => false,
        }
    }

    /// # Errors
    /// The content is lost, or another daemon has it.
    pub fn check_is_here(&self) -> Result<(), WriteError> {
        match self {
            Self::Wanted | Self::Broken(_) | Self::Unwanted => Ok(()),
            Self::HandedOver => Err(Interrupted::HandedOver.into()),
            Self::Lost => Err(WriteError::Lost),
        }
    }

    /// # Errors
    /// No bytes can be added: the content is not here, or an earlier write was refused.
    pub fn check_takes_bytes(&self) -> Result<(), WriteError> {
        match self {
            Self::Broken(error) => Err(error.clone()),
            _ => self.check_is_here(),
        }
    }

    pub fn of_commit(&self) -> Verdict {
        match self {
            Self::Wanted => Verdict::Store,
            Self::Unwanted => Verdict::Nothing,
            Self::Broken(error) => Verdict::Refuse(error.clone()),
            Self::HandedOver => Verdict::Refuse(Interrupted::HandedOver.into()),
            Self::Lost => Verdict::Refuse(WriteError::Lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Fate; 5] {
        [Fate::Wanted, Fate::Broken(WriteError::TooLarge), Fate::Unwanted, Fate::HandedOver, Fate::Lost]
    }

    fn name(fate: &Fate) -> &'static str {
        match fate {
            Fate::Wanted => "wanted",
            Fate::Broken(_) => "broken",
            Fate::Unwanted => "unwanted",
            Fate::HandedOver => "handed over",
            Fate::Lost => "lost",
        }
    }

    #[test]
    fn each_event_leads_from_each_fate_where_the_table_says() {
        let after = |event: fn(&mut Fate)| all().map(|mut fate| (event(&mut fate), name(&fate)).1);
        assert_eq!(after(Fate::discard), ["unwanted", "unwanted", "unwanted", "unwanted", "lost"]);
        assert_eq!(after(Fate::give_up), ["lost"; 5]);
        assert_eq!(after(|fate| fate.fail(&WriteError::TooLarge)), ["broken", "broken", "unwanted", "handed over", "lost"]);
        let start_over = |fate: &mut Fate| {
            fate.start_over();
        };
        assert_eq!(after(start_over), ["wanted", "wanted", "unwanted", "handed over", "lost"]);
        assert_eq!(after(Fate::hand_over), ["handed over", "broken", "unwanted", "handed over", "lost"]);
        assert_eq!(all().map(|mut fate| fate.start_over()), [false, true, false, false, false]);
    }

    #[test]
    fn what_a_commit_and_a_write_do_follows_from_the_fate() {
        let commit = |fate: Fate| match fate.of_commit() {
            Verdict::Store => "store",
            Verdict::Nothing => "nothing",
            Verdict::Refuse(WriteError::Lost) => "lost",
            Verdict::Refuse(_) => "refuse",
        };
        assert_eq!(all().map(commit), ["store", "refuse", "nothing", "refuse", "lost"]);
        assert_eq!(all().map(|fate| fate.check_takes_bytes().is_ok()), [true, false, true, false, false]);
        assert_eq!(all().map(|fate| fate.check_is_here().is_ok()), [true, true, true, false, false]);
        let dirty = |is_new: bool| all().map(|fate| fate.is_dirty(is_new));
        assert_eq!((dirty(false), dirty(true)), ([false, true, false, true, true], [true, true, false, true, true]));
    }
}
