//! A daemon that a supervisor started: its stdin is the line to it, by which it gets what the daemon before left, and tells how it went. It prints
//! nothing: what there is to say the supervisor says. Invariant: only the process that was started so takes it up, not what it starts.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::time::Duration;

use super::Failure;
use crate::fuse;
use crate::handover::{Line, Link, Message};
use crate::logging::Attachment;
use crate::mount::Given;

/// Names the supervisor, and whether it left its terminal.
pub const VARIABLE: &str = "WINDLASS_SUPERVISOR";

/// A supervisor speaks at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub struct Worker {
    /// Whether the supervisor left its terminal.
    pub attachment: Attachment,
    given: Given,
    line: Arc<Line>,
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
        let Some((_, how)) = text.split_once(' ').filter(|(pid, _)| *pid == parent_id().to_string()) else { return Ok(None) };
        let attachment = if how == "daemon" { Attachment::Daemon } else { Attachment::Foreground };
        let lost = |words: String| Failure::internal(format!("the line to the supervisor is lost: {words}"));
        let mut link = stdin().map(Link::new).map_err(|error| lost(error.to_string()))?;
        let (message, descriptors) = match link.receive::<Message>(Some(PATIENCE)) {
            Ok(Some(received)) => received,
            Ok(None) => return Err(lost("it is gone".into())),
            Err(error) => return Err(lost(error.to_string())),
        };
        let (clones, kept) = descriptors.into_iter().partition(|descriptor| fuse::is_fuse(descriptor));
        let line = Arc::new(Line::over(link));
        let given = Given { clones, session: message.session, kept, line: Some(Arc::clone(&line)) };
        Ok(Some(Self { attachment, given, line }))
    }

    /// Where the supervisor hears how it goes.
    pub fn line(&self) -> Arc<Line> {
        Arc::clone(&self.line)
    }

    /// What the supervisor gave.
    pub fn given(self) -> Given {
        self.given
    }
}

/// The line, which nothing that is started from here on gets.
fn stdin() -> std::io::Result<UnixStream> {
    let line: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?;
    Ok(line.into())
}
