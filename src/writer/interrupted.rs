//! Work of the writer that ended before it was done: its task panicked, or its runtime ends. Invariant: what waits for such work gets an error
//! and every wait ends.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio::task::JoinError;

use super::WriteError;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interrupted {
    /// A defect.
    #[error("windlass failed while it did this, which is a defect; the log tells where")]
    Panicked,
    #[error("the daemon ended before this was done")]
    Ending,
    /// The daemon that goes on with the file answers the request.
    #[error("another daemon goes on with this file")]
    HandedOver,
}

impl From<JoinError> for Interrupted {
    fn from(error: JoinError) -> Self {
        if error.is_panic() { Self::Panicked } else { Self::Ending }
    }
}

impl From<Interrupted> for std::io::Error {
    fn from(interrupted: Interrupted) -> Self {
        Self::other(interrupted)
    }
}

/// Does `work`; a panic of it is an error, so that what it had begun can be taken back.
pub(super) async fn caught<T>(work: impl Future<Output = Result<T, WriteError>>) -> Result<T, WriteError> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| Err(Interrupted::Panicked.into()))
}
