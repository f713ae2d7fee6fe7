//! Who uses how much of the room: in memory for a directory of one process, in a small file under flock(2) for one that several
//! share. It decides nothing. Invariant: a change is seen whole or not at all by whoever looks next, and what a killed process
//! leaves in it makes the sum too high, never too low.
//!
//! Each process that has reserved room has a file of its own below `members`, locked while it lives, with what of the sums it has reserved and
//! not written yet: when the lock is free the process is gone, and [`Ledger::settle_dead`] takes its reservations back.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use twox_hash::XxHash3_64;

use super::home::{check_private_at, make_private, open_own};

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
    /// The part of `pending` that this process has reserved. It is not in the file of the ledger, but in that of the member.
    pub own: Reserved,
}

/// Bytes that a process has reserved and not written yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    pub chunks: u64,
    pub staged: u64,
}

impl Reserved {
    fn total(self) -> u64 {
        self.chunks.saturating_add(self.staged)
    }

    /// The least of both for each purpose.
    fn min(self, other: Self) -> Self {
        Self { chunks: self.chunks.min(other.chunks), staged: self.staged.min(other.staged) }
    }

    fn encode(self) -> [u8; RESERVED] {
        let mut bytes = [0; RESERVED];
        bytes[..8].copy_from_slice(&self.chunks.to_le_bytes());
        bytes[8..].copy_from_slice(&self.staged.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; RESERVED]) -> Self {
        let [chunks, staged] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte])));
        Self { chunks, staged }
    }
}

const RESERVED: usize = 16;

impl Default for Account {
    fn default() -> Self {
        Self {
            epoch: 0,
            settled: false,
            chunks: 0,
            counted: 0,
            staged: 0,
            pending: 0,
            lingering: 0,
            directories: [0; FANS],
            own: Reserved::default(),
        }
    }
}

impl Account {
    /// Takes back what a process that is gone had reserved.
    fn give_back(&mut self, reserved: Reserved) {
        self.chunks = self.chunks.saturating_sub(reserved.chunks);
        self.staged = self.staged.saturating_sub(reserved.staged);
        self.pending = self.pending.saturating_sub(reserved.total());
    }

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
    Shared { path: PathBuf, state: Mutex<State> },
}

/// What one process has of a shared ledger.
#[derive(Debug, Default)]
pub(super) struct State {
    file: Option<File>,
    own: Reserved,
    member: Option<Member>,
}

/// The file of this process below `members`, locked while it is open.
#[derive(Debug)]
struct Member {
    path: PathBuf,
    file: File,
}

impl Ledger {
    pub fn private() -> Self {
        Self::Private(Box::new(Mutex::new(Account { settled: true, ..Account::default() })))
    }

    /// The file is opened, and made, when it is needed, and again when somebody removed it.
    pub fn shared(path: PathBuf) -> Self {
        Self::Shared { path, state: Mutex::default() }
    }

    /// Reads, changes and writes the account while nobody else does.
    pub fn change<R>(&self, act: impl FnOnce(&mut Account) -> R) -> io::Result<R> {
        let (path, state) = match self {
            Self::Private(account) => return Ok(act(&mut account.lock())),
            Self::Shared { path, state } => (path, state),
        };
        let state = &mut *state.lock();
        loop {
            let open = match state.file.take() {
                Some(open) => open,
                None => open_own(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)?,
            };
            lock(&open)?;
            if open.metadata()?.nlink() > 0 {
                let result = state.change_locked(&open, path, act);
                rustix::fs::flock(&open, FlockOperation::Unlock)?;
                state.file = Some(open);
                return result;
            }
        }
    }

    /// Takes back what processes that are gone have reserved and not written. Returns the bytes.
    pub fn settle_dead(&self) -> io::Result<u64> {
        let Self::Shared { path, state } = self else { return Ok(0) };
        let own = state.lock().member.as_ref().map(|member| member.path.clone());
        let directory = members(path);
        let entries = match check_private_at(&directory, &directory).and_then(|()| fs::read_dir(&directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries?,
        };
        let mut others = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| Some(path) != own.as_ref()).peekable();
        if others.peek().is_none() {
            return Ok(0);
        }
        self.change(|account| {
            let before = account.pending;
            for other in others {
                // One that cannot be looked at stays for the next time.
                if let Ok(Some(reserved)) = take_dead(&other) {
                    account.give_back(reserved);
                }
            }
            before.saturating_sub(account.pending)
        })
    }
}

/// Where the files of the members are.
fn members(ledger: &Path) -> PathBuf {
    ledger.with_file_name("members")
}

/// Removes the file of a member that is gone and returns what it had reserved; none when the member lives. Under the lock of the ledger, as a
/// member makes and locks its file under it.
fn take_dead(path: &Path) -> io::Result<Option<Reserved>> {
    let file = open_own(OpenOptions::new().read(true).write(true), path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    let mut bytes = [0; RESERVED];
    let read = file.read_at(&mut bytes, 0)?;
    // First: taken back twice, the sum would be too low.
    fs::remove_file(path)?;
    Ok(Some(if read == RESERVED { Reserved::decode(bytes) } else { Reserved::default() }))
}

impl State {
    fn change_locked<R>(&mut self, file: &File, path: &Path, act: impl FnOnce(&mut Account) -> R) -> io::Result<R> {
        let mut bytes = [0; ENCODED];
        let mut filled = 0;
        while filled < ENCODED {
            match file.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        let found = Account::decode(&bytes);
        let mut account = Account { own: self.own, ..found.clone().unwrap_or_default() };
        let result = act(&mut account);
        let own = std::mem::take(&mut account.own);
        // A process that is killed between two of these writes has reserved less than the ledger says: the sum is too high.
        self.note(path, own.min(self.own));
        if found.as_ref() != Some(&account) {
            file.write_all_at(&account.encode(), 0)?;
        }
        self.note(path, own);
        Ok(result)
    }

    /// Writes down what this process has reserved. Where that cannot be done, others take nothing back when it is killed.
    fn note(&mut self, ledger: &Path, own: Reserved) {
        if own == self.own {
            return;
        }
        self.own = own;
        if self.member.as_ref().is_some_and(|member| member.file.metadata().is_ok_and(|found| found.nlink() > 0)) {
            let written = self.member.as_ref().map(|member| member.file.write_all_at(&own.encode(), 0));
            if let Some(Err(_)) = written {
                self.member = None;
            }
        } else {
            self.member = Member::new(&members(ledger), own).ok();
        }
    }
}

impl Member {
    fn new(directory: &Path, own: Reserved) -> io::Result<Self> {
        make_private(directory)?;
        check_private_at(directory, directory)?;
        let path = directory.join(format!("{:016x}", rand::random::<u64>()));
        let file = open_own(OpenOptions::new().read(true).write(true).create_new(true), &path)?;
        let member = Self { path, file };
        lock(&member.file)?;
        member.file.write_all_at(&own.encode(), 0)?;
        Ok(member)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Before the lock goes: nothing of it is to be taken back.
        let _ = fs::remove_file(&self.path);
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
