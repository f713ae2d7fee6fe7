//! Keys that sign requests, and how they are replaced while requests go on: a task of their own looks at the source once a second and asks
//! it again ahead of time, new keys sign one request before they sign all, and the old ones stay until that one was let in. Where keys come
//! from is each dialect's own; requests are neither formed nor sent here. Invariant: a request waits for a source only while all keys
//! there are have expired, or after the store refused them.

mod directory;
mod key_file;
mod passwd;
mod profile_files;
mod rotation;
mod watch;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tracing::{debug, info, warn};

use self::rotation::{Event, Next, Rotation, Taken};
use self::watch::Watch;
use super::clock::{Correction, StoreClock};
use super::{Error, ErrorKind, Key, Op};

pub use self::directory::KeyField;
pub(super) use self::key_file::KeyFile;
pub(super) use self::profile_files::ProfileFiles;
pub(super) use self::rotation::Edition;

/// How often the files of a source are looked at: a swapped secret signs within two of these.
const LOOK: Duration = Duration::from_secs(1);

/// How long a source may take. A token service on the public network answers within a few seconds or not at all, and the SDK asks three times.
const ANSWER: Duration = Duration::from_secs(20);

/// How often one request is sent: with the keys of now, with those that replace them, and with those before when the new ones are not
/// known to the store yet.
const SENT: u32 = 3;

/// Names of the variables in the environment by which options, secrets among them, and what a process passes on to the next one of this program came.
/// They are not for a credential process, which hands its environment on to whatever it starts.
pub(super) fn own_variables() -> Vec<String> {
    own_names(std::env::vars_os().map(|(name, _)| name))
}

fn own_names(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let is_name = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    // What is no name for a shell can be no option.
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("WINDLASS_") && is_name(name)).collect()
}

/// What signs requests.
#[derive(Clone)]
pub(super) struct Keys {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
    pub expires: Option<SystemTime>,
    /// Where they were found, for people.
    pub from: String,
}

impl Keys {
    /// Whether signatures of both are the same.
    fn sign_like(&self, other: &Self) -> bool {
        (&self.id, &self.secret, &self.token) == (&other.id, &other.secret, &other.token)
    }
}

/// Not derived: secrets must not reach a log through `{:?}`.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("id", &self.id).field("expires", &self.expires).field("from", &self.from).finish_non_exhaustive()
    }
}

/// Why a source gives no keys: words for people, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct Missing {
    pub message: String,
    /// What a request is answered with that cannot be signed.
    pub kind: ErrorKind,
}

impl Missing {
    /// There are no credentials.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: ErrorKind::NoCredentials }
    }
}

/// Where keys come from.
#[async_trait]
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// The keys of now.
    async fn fetch(&self) -> Result<Keys, Missing>;

    /// The files and directories that it reads; when others stand in their place it has other keys.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether it says the same as long as it lives.
    fn is_fixed(&self) -> bool {
        false
    }
}

/// Keys that were given as they are.
#[async_trait]
impl Source for Keys {
    async fn fetch(&self) -> Result<Keys, Missing> {
        Ok(self.clone())
    }

    fn is_fixed(&self) -> bool {
        true
    }
}

/// Keys for one request.
#[derive(Clone, Debug)]
pub(super) struct Signing {
    pub keys: Arc<Keys>,
    /// Which ones they are, to tell later what became of the request.
    pub edition: Edition,
}

/// There are no keys that could sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoKeys {
    /// There never were any.
    Missing(Missing),
    /// There were, and there will be again.
    Expired(String),
}

impl NoKeys {
    /// The error of the request that cannot be signed.
    pub fn into_error(self, op: Op, key: &Key) -> Error {
        match self {
            Self::Missing(Missing { message, kind }) => Error::new(kind, op, key, message),
            Self::Expired(message) => {
                let message = format!("the credentials expired and cannot be renewed: {message}");
                Error::new(ErrorKind::Unavailable, op, key, message)
            }
        }
    }
}

/// One request, however often it is sent.
#[derive(Debug)]
pub(super) struct Attempts {
    began: Instant,
    left: u32,
    /// One answer was that it is not allowed.
    denied: bool,
    /// Of its time, when it was signed last or before.
    correction: Correction,
}

impl Attempts {
    pub fn new(clock: &StoreClock) -> Self {
        Self { began: Instant::now(), left: SENT, denied: false, correction: clock.correction() }
    }

    /// Whether the request should be sent again, signed with another time: see [`StoreClock::correct`].
    pub fn correct(&mut self, clock: &StoreClock, error: Option<&Error>) -> bool {
        let Some(error) = error else { return false };
        match clock.correct(error, self.correction, SystemTime::now(), Instant::now()) {
            Some(correction) => {
                self.correction = correction;
                self.once_more()
            }
            None => false,
        }
    }

    /// Whether it may be sent once more.
    fn once_more(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}

/// What the answer to a request says about the keys that signed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The store knows them.
    Accepted,
    /// It does not, or not any more.
    Refused,
    /// They may not do this; others might. A HEAD is `silent`: it has no body to say whether it is the keys that are refused.
    Denied { silent: bool },
    /// Nothing.
    Unclear,
}

impl Verdict {
    fn of(error: Option<&Error>) -> Self {
        let Some(error) = error else { return Self::Accepted };
        match error.kind {
            ErrorKind::NotFound | ErrorKind::Replaced | ErrorKind::RangeNotSatisfiable => Self::Accepted,
            ErrorKind::BadCredentials => Self::Refused,
            ErrorKind::AccessDenied => Self::Denied { silent: error.code.is_none() },
            _ => Self::Unclear,
        }
    }
}

/// The keys of one bucket, for everything that signs.
#[derive(Debug)]
pub(super) struct Rotating {
    source: Box<dyn Source>,
    watch: Arc<Watch>,
    state: Mutex<Rotation>,
    /// Held by whoever asks the source, so that all who need keys at once ask once.
    asking: tokio::sync::Mutex<()>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl Rotating {
    pub fn new(source: Box<dyn Source>) -> Arc<Self> {
        static ROTATIONS: AtomicU64 = AtomicU64::new(0);
        let watch = Arc::new(Watch::new(source.files()));
        let state = Mutex::new(Rotation::with_id(ROTATIONS.fetch_add(1, Relaxed)));
        Arc::new(Self { source, watch, state, asking: tokio::sync::Mutex::default(), keeper: Mutex::default() })
    }

    /// The keys that the next request is signed with.
    pub async fn keys(self: &Arc<Self>) -> Result<Signing, NoKeys> {
        loop {
            let taken = self.state.lock().take(Instant::now());
            match taken {
                Taken::Keys(signing) => return Ok(signing),
                Taken::None(reason) => return Err(reason),
                Taken::Ask(asked) => self.ask(asked).await,
            }
        }
    }

    /// Whether `edition` is one of these keys, and not of others that sign for the bucket too.
    pub fn has_had(&self, edition: Edition) -> bool {
        self.state.lock().has_had(edition)
    }

    /// Whether a signature that was made with `edition` may be used once more.
    pub fn may_reuse(&self, edition: Edition) -> bool {
        self.state.lock().may_reuse(edition, Instant::now())
    }

    /// Told what became of a request that `edition` signed: none is a success. The answer is whether it should be sent again, signed anew.
    pub async fn again(self: &Arc<Self>, attempts: &mut Attempts, edition: Edition, error: Option<&Error>) -> bool {
        let verdict = Verdict::of(error);
        let (next, event) = self.state.lock().on_answer(edition, verdict, attempts, Instant::now());
        tell(event);
        match next {
            Next::Done => false,
            Next::Again => attempts.once_more(),
            Next::Ask(asked) => {
                self.ask(asked).await;
                let is_other = {
                    let state = self.state.lock();
                    !state.is_newest(edition) || state.passing_failure().is_some()
                };
                is_other && attempts.once_more()
            }
        }
    }

    /// Asks the source, unless that was done since it had been asked so often.
    async fn ask(self: &Arc<Self>, asked: u64) {
        let _turn = self.asking.lock().await;
        if self.state.lock().asked() != asked {
            return;
        }
        // Before: what changes while the source reads is seen at the next look.
        look(&self.watch).await;
        let found = timeout(ANSWER, self.source.fetch()).await;
        let found = found.unwrap_or_else(|_| Err(Missing::new(format!("no answer within {ANSWER:?}"))));
        let event = self.state.lock().on_found(found, Instant::now(), SystemTime::now());
        tell(event);
        self.keep();
    }

    /// Starts the task that looks after the source.
    fn keep(self: &Arc<Self>) {
        if self.source.is_fixed() {
            return;
        }
        let mut keeper = self.keeper.lock();
        if keeper.as_ref().is_none_or(JoinHandle::is_finished) {
            *keeper = Some(tokio::spawn(keep(Arc::downgrade(self))));
        }
    }

    /// One look: at the files, and at the clock.
    async fn on_tick(self: &Arc<Self>) {
        let changed = look(&self.watch).await;
        let asked = {
            let mut state = self.state.lock();
            let due = if changed { state.on_changed() } else { state.is_due(Instant::now()) };
            if !due {
                return;
            }
            state.asked()
        };
        self.ask(asked).await;
    }
}

impl Drop for Rotating {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.get_mut().take() {
            keeper.abort();
        }
    }
}

/// Looks after the source as long as somebody signs with its keys.
async fn keep(of: Weak<Rotating>) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(rotating) = of.upgrade() else { return };
        rotating.on_tick().await;
    }
}

/// Whether the watched files are others than at the last look. A home may lie on a network.
async fn look(watch: &Arc<Watch>) -> bool {
    if watch.is_empty() {
        return false;
    }
    let watch = Arc::clone(watch);
    // An error is a runtime that is shutting down.
    tokio::task::spawn_blocking(move || watch.look()).await.unwrap_or(false)
}

fn tell(event: Option<Event>) {
    match event {
        None => {}
        Some(Event::Found(keys)) => info!(key_id = keys.id, from = keys.from, "there are new credentials"),
        Some(Event::InUse(keys)) => info!(key_id = keys.id, "the new credentials were let in and sign from now on"),
        Some(Event::NotLetIn(keys)) => {
            warn!(key_id = keys.id, from = keys.from, "the store refuses the new credentials, going on with those before");
        }
        Some(Event::Failed { reason, first: true }) => {
            warn!(%reason, "credentials could not be asked for again, going on with those that there are");
        }
        Some(Event::Failed { reason, first: false }) => debug!(%reason, "credentials could still not be asked for again"),
    }
}

#[cfg(test)]
mod tests;
