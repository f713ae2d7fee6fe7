//! A daemon that a supervisor started: its stdin is the line to it, by which it gets what the daemon before left, and tells how it went. It prints
//! nothing: what there is to say the supervisor says. Invariant: only the process that was started so takes it up, not what it starts.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::time::Duration;

use super::{Failure, mountpoint};
use crate::handover::{Failed, Line, Link, Message};
use crate::logging::Attachment;
use crate::mount::Given;

/// Names the supervisor, and whether it left its terminal.
pub const VARIABLE: &str = "WINDLASS_SUPERVISOR";

/// A supervisor speaks at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub struct Worker {
    link: Link,
    attachment: Attachment,
}

/// What [`VARIABLE`] is for a worker of this process.
pub fn variable(attachment: Attachment) -> String {
    let how = if attachment == Attachment::Daemon { "daemon" } else { "foreground" };
    format!("{} {how}", std::process::id())
}

impl Worker {
    /// None: nobody supervises this process.
    pub fn of_this_process() -> Result<Option<Self>, Failure> {
        let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
        let Some((pid, how)) = text.split_once(' ').filter(|(pid, _)| *pid == parent_id().to_string()) else { return Ok(None) };
        debug_assert!(!pid.is_empty(), "it is a number");
        let lost = |error: std::io::Error| Failure::internal(format!("the line to the supervisor is lost: {error}"));
        let line: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(lost)?;
        let null = File::open("/dev/null").map_err(lost)?;
        rustix::stdio::dup2_stdin(&null).map_err(|error| lost(error.into()))?;
        let attachment = if how == "daemon" { Attachment::Daemon } else { Attachment::Foreground };
        Ok(Some(Self { link: Link::new(UnixStream::from(line)), attachment }))
    }

    /// Serves what the supervisor gives, and tells it how that goes.
    pub fn run<F>(mut self, serve: F) -> Result<(), Failure>
    where
        F: FnOnce(Given, Attachment, &dyn Fn(&str) -> Result<(), Failure>) -> Result<(), Failure>,
    {
        let lost = |words: &str| Failure::internal(format!("the supervisor says nothing: {words}"));
        let (message, descriptors) = match self.link.receive::<Message>(Some(PATIENCE)) {
            Ok(Some(received)) => received,
            Ok(None) => return Err(lost("it is gone")),
            Err(error) => return Err(lost(&error.to_string())),
        };
        let (clones, kept) = descriptors.into_iter().partition(|descriptor| mountpoint::is_fuse(descriptor));
        let line = Arc::new(Line::over(self.link));
        let given = Given { clones, session: message.session, kept, line: Some(Arc::clone(&line)) };
        let tell = |_: &str| line.ready().map_err(|error| Failure::internal(format!("nobody waits for the mount any more: {error}")));
        serve(given, self.attachment, &tell).map_err(|failure| {
            let reason = match failure.code {
                2 => "usage",
                3 => "credentials",
                4 => "bucket",
                5 => "not-written",
                _ => "internal",
            };
            let failed = Failed { code: failure.code, reason, message: failure.message.clone(), paths: Vec::new() };
            match line.failed(&failed) {
                Ok(()) => Failure { message: String::new(), ..failure },
                Err(_) => failure,
            }
        })
    }
}
