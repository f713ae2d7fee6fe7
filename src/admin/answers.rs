//! What the commands do to a mount. It knows no socket. Invariant: what waits for the kernel or looks through all that is known runs on a
//! thread of its own, and nothing waits for it but the answer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::observer::Observer;
use super::protocol::{Command, Done, InnerPath};
use super::warm::{Tally, warm};
use crate::spill::Spill;
use crate::vfs::Expired;

/// Longest wait for the kernel to drop names: it waits for whoever looks something up in the same directory, which takes requests.
const KERNEL: Duration = Duration::from_secs(60);

/// How often it is looked whether the disk is counted.
const COUNTING: Duration = Duration::from_millis(50);

/// Has the kernel drop what it believes. Blocks.
pub type Forget = Box<dyn Fn(&Expired) + Send + Sync>;

/// What of a mount can be changed while it runs.
pub trait Live: Send + Sync {
    /// The options that can be, with their values.
    fn get(&self) -> BTreeMap<String, String>;

    /// Changes one of them and returns its name and value as they are now. May block for a moment.
    ///
    /// # Errors
    /// Why it cannot be changed, or not to that, in words for people.
    fn set(&self, name: &str, value: &str) -> Result<(String, String), String>;
}

/// The mount that is asked.
pub struct Subject {
    pub observer: Arc<Observer>,
    pub forget: Forget,
    pub live: Box<dyn Live>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("observer", &self.observer).finish_non_exhaustive()
    }
}

/// Does what `command` asks for, and keeps `tally` of how far it has come. Errors are words for people. Dropping the future ends what takes
/// long.
pub(super) async fn answer(subject: &Arc<Subject>, command: Command, tally: &Arc<Tally>) -> Result<Done, String> {
    match command {
        Command::Refresh { path, recursive } => refresh(subject, path, recursive).await,
        Command::Stats {} => Ok(Done::Stats(Box::new(subject.observer.stats().await))),
        Command::Warm { paths, how } => {
            // A mount that began just now takes nothing before it knows what is there.
            let Observer { names, reader, spill, .. } = &*subject.observer;
            while spill.as_ref().is_some_and(Spill::is_counting) {
                tokio::time::sleep(COUNTING).await;
            }
            warm(names, reader, paths, how, tally).await.map(Done::Warmed)
        }
        Command::Evict { path } => evict(subject, path).await,
        Command::Get {} => Ok(Done::Options(subject.live.get())),
        Command::Set { name, value } => {
            let subject = Arc::clone(subject);
            let setting = tokio::task::spawn_blocking(move || subject.live.set(&name, &value));
            let set = setting.await.unwrap_or_else(|error| Err(format!("the daemon failed: {error}")))?;
            Ok(Done::Options([set].into()))
        }
    }
}

async fn refresh(subject: &Arc<Subject>, path: InnerPath, recursive: bool) -> Result<Done, String> {
    let subject = Arc::clone(subject);
    let forgetting = tokio::task::spawn_blocking(move || {
        let expired = subject
            .observer
            .names
            .expire_path(path.as_bytes(), recursive)
            .map_err(|_| format!("{path:?} cannot be a path in the mount"))?;
        (subject.forget)(&expired);
        Ok(Done::Refreshed { kernel_entries: (expired.inodes.len() + expired.entries.len()) as u64 })
    });
    match tokio::time::timeout(KERNEL, forgetting).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(format!("the daemon failed: {error}")),
        Err(_) => Err(format!("the kernel was busy in that directory for {KERNEL:?} and may believe old names a little longer")),
    }
}

async fn evict(subject: &Arc<Subject>, path: InnerPath) -> Result<Done, String> {
    let spill = subject.observer.spill.clone().ok_or("this mount keeps nothing on a disk")?;
    let key = subject.observer.names.path_at(path.as_bytes()).map_err(|_| format!("{path:?} cannot be a path in the mount"))?;
    let evicting = tokio::task::spawn_blocking(move || match spill.forget(&key) {
        // Nothing of an object of that name: then it may be a directory.
        0 => spill.forget_below(&if key.is_prefix() { key } else { key.join(b"/") }),
        bytes => bytes,
    });
    evicting.await.map(|bytes| Done::Evicted { bytes }).map_err(|error| format!("the daemon failed: {error}"))
}
