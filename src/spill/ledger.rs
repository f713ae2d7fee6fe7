//! Who uses how much of the room: in memory for a directory of one process, in a small file under flock(2) for one that several
//! share. It decides nothing. Invariant: a change is seen whole or not at all by whoever looks next, and what a killed process
//! leaves in it makes the sum too high, never too low.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use twox_hash::XxHash3_64;

use super::home::open_own;

pub(super) const FANS: usize = 256;

/// What was charged for an object, and in which count of the directory. An earlier count does not know of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Charge {
    pub bytes: u64,
    pub epoch: u64,
}

/// Bytes, except where it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// Which count of the directory this stands on.
    pub epoch: u64,
    /// Whether that count is complete. Before, `chunks` is what an earlier one ended with, and nothing may be added.
    pub settled: bool,
    /// Files of objects, and what was reserved for them.
    pub chunks: u64,
    /// What the count that is going on found so far.
    pub counted: u64,
    /// Staged files, and what was reserved for them.
    pub staged: u64,
    /// The part of it all that statvfs cannot know of yet.
    pub pending: u64,
    /// The part of `chunks` whose files have no name any more and live until somebody closes them.
    pub lingering: u64,
    /// What the fan-out directories themselves take, a part of `chunks`.
    pub directories: [u32; FANS],
}

impl Default for Account {
    fn default() -> Self {
        Self { epoch: 0, settled: false, chunks: 0, counted: 0, staged: 0, pending: 0, lingering: 0, directories: [0; FANS] }
    }
}

impl Account {
    pub fn used(&self) -> u64 {
        self.chunks.max(self.counted).saturating_add(self.staged)
    }

    /// The directory is counted again, from nothing.
    pub fn begin(&mut self) {
        (self.epoch, self.settled, self.counted, self.lingering) = (rand::random(), false, 0, 0);
        self.directories = [0; FANS];
    }

    /// All of it was counted.
    pub fn settle(&mut self) {
        (self.chunks, self.counted, self.settled) = (self.counted, 0, true);
    }

    /// An object takes `bytes` now and was charged `old` before.
    pub fn recharge(&mut self, old: Charge, bytes: u64) -> Charge {
        let before = if old.epoch == self.epoch { old.bytes } else { 0 };
        self.exchange(before, bytes);
        Charge { bytes, epoch: self.epoch }
    }

    /// The files for which `charge` was taken have no name any more, but a holder.
    pub fn linger(&mut self, charge: Charge) {
        if charge.epoch == self.epoch {
            self.lingering = self.lingering.saturating_add(charge.bytes);
        }
    }

    /// Their last holder let go of them.
    pub fn let_go(&mut self, charge: Charge) {
        if charge.epoch == self.epoch {
            self.lingering = self.lingering.saturating_sub(charge.bytes);
            self.exchange(charge.bytes, 0);
        }
    }

    /// A fan-out directory takes `bytes` now.
    pub fn recharge_directory(&mut self, fan: u8, bytes: u32) {
        let before = std::mem::replace(&mut self.directories[usize::from(fan)], bytes);
        self.exchange(before.into(), bytes.into());
    }

    fn exchange(&mut self, before: u64, after: u64) {
        if self.settled {
            self.chunks = self.chunks.saturating_add(after).saturating_sub(before);
        } else {
            self.counted = self.counted.saturating_add(after).saturating_sub(before);
            // What the earlier count ended with stays the upper bound, so it sees only what left.
            self.chunks = self.chunks.saturating_sub(before.saturating_sub(after));
        }
    }

    fn numbers(&self) -> [u64; 7] {
        [self.epoch, self.settled.into(), self.chunks, self.counted, self.staged, self.pending, self.lingering]
    }

    fn encode(&self) -> Vec<u8> {
        let numbers = self.numbers().into_iter().flat_map(u64::to_le_bytes);
        let mut bytes: Vec<u8> = numbers.chain(self.directories.into_iter().flat_map(u32::to_le_bytes)).collect();
        bytes.extend_from_slice(&XxHash3_64::oneshot(&bytes).to_le_bytes());
        bytes
    }

    /// None: it was torn, or nobody wrote it.
    fn decode(bytes: &[u8; ENCODED]) -> Option<Self> {
        let (content, sum) = bytes.split_at(ENCODED - 8);
        if XxHash3_64::oneshot(content).to_le_bytes() != sum {
            return None;
        }
        let mut numbers = content.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes")));
        let mut next = || numbers.next().unwrap_or_default();
        let (epoch, settled) = (next(), next() == 1);
        let mut account = Self { epoch, settled, chunks: next(), counted: next(), staged: next(), pending: next(), ..Self::default() };
        account.lingering = next();
        for (bytes, four) in account.directories.iter_mut().zip(content[NUMBERS..].chunks_exact(4)) {
            *bytes = u32::from_le_bytes(four.try_into().expect("four bytes"));
        }
        Some(account)
    }
}

const NUMBERS: usize = 7 * 8;
const ENCODED: usize = NUMBERS + FANS * 4 + 8;

/// How long another process may hold the file: it holds it for microseconds unless it was stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) enum Ledger {
    Private(Box<Mutex<Account>>),
    Shared { path: PathBuf, file: Mutex<Option<File>> },
}

impl Ledger {
    pub fn private() -> Self {
        Self::Private(Box::new(Mutex::new(Account { settled: true, ..Account::default() })))
    }

    /// The file is opened, and made, when it is needed, and again when somebody removed it.
    pub fn shared(path: PathBuf) -> Self {
        Self::Shared { path, file: Mutex::new(None) }
    }

    /// Reads, changes and writes the account while nobody else does.
    pub fn change<R>(&self, act: impl FnOnce(&mut Account) -> R) -> io::Result<R> {
        let (path, file) = match self {
            Self::Private(account) => return Ok(act(&mut account.lock())),
            Self::Shared { path, file } => (path, file),
        };
        let mut file = file.lock();
        loop {
            let open = match file.take() {
                Some(open) => file.insert(open),
                None => file.insert(open_own(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)?),
            };
            lock(open)?;
            if open.metadata()?.nlink() > 0 {
                let result = change_locked(open, act);
                rustix::fs::flock(&*open, FlockOperation::Unlock)?;
                return result;
            }
            *file = None;
        }
    }
}

fn lock(file: &File) -> io::Result<()> {
    let (mut deadline, mut pause) = (None, Duration::from_micros(10));
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => (),
            Err(error) => return Err(error.into()),
        }
        let now = Instant::now();
        if now >= *deadline.get_or_insert(now + PATIENCE) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "another process does not let go of the ledger"));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

fn change_locked<R>(file: &File, act: impl FnOnce(&mut Account) -> R) -> io::Result<R> {
    let mut bytes = [0; ENCODED];
    let mut filled = 0;
    while filled < ENCODED {
        match file.read_at(&mut bytes[filled..], filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    let found = Account::decode(&bytes);
    let mut account = found.clone().unwrap_or_default();
    let result = act(&mut account);
    if found.as_ref() != Some(&account) {
        file.write_all_at(&account.encode(), 0)?;
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        let mut account = Account { epoch: 5, settled: true, chunks: 100, staged: 7, pending: 3, lingering: 2, ..Account::default() };
        account.recharge_directory(255, 9);
        account
    }

    #[test]
    fn an_account_is_read_as_it_was_written_and_a_torn_one_is_none() {
        let bytes: [u8; ENCODED] = account().encode().try_into().unwrap();
        assert_eq!(Account::decode(&bytes), Some(account()));
        let mut torn = bytes;
        torn[ENCODED / 2..].fill(0);
        assert_eq!((Account::decode(&torn), Account::decode(&[0; ENCODED])), (None, None));
    }

    #[test]
    fn a_charge_of_an_earlier_count_is_not_taken_back() {
        let mut account = account();
        let charge = account.recharge(Charge::default(), 50);
        assert_eq!((account.chunks, charge), (159, Charge { bytes: 50, epoch: 5 }));
        assert_eq!(account.recharge(Charge { bytes: 1000, epoch: 4 }, 1).bytes, 1);
        account.recharge(charge, 10);
        assert_eq!(account.chunks, 120);
    }

    #[test]
    fn until_a_count_is_complete_the_earlier_one_is_the_upper_bound() {
        let mut account = account();
        account.begin();
        let counted = account.recharge(Charge { bytes: 40, epoch: 5 }, 40);
        assert_eq!(account.used(), 116);
        account.recharge(counted, 0);
        assert_eq!((account.used(), account.counted), (76, 0));
        account.recharge(Charge::default(), 30);
        account.settle();
        assert_eq!((account.used(), account.settled), (37, true));
    }

    #[test]
    fn two_that_open_the_same_file_see_one_account_and_one_that_was_removed_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let (one, two) = (Ledger::shared(path.clone()), Ledger::shared(path.clone()));
        std::thread::scope(|scope| {
            for ledger in [&one, &two] {
                scope.spawn(|| (0..500).for_each(|_| ledger.change(|account| account.staged += 1).unwrap()));
            }
        });
        assert_eq!(one.change(|account| account.staged).unwrap(), 1000);
        std::fs::remove_file(path).unwrap();
        assert_eq!(two.change(|account| (account.staged, account.settled)).unwrap(), (0, false));
        drop(directory);
        assert!(one.change(|_| ()).is_err());
    }
}
