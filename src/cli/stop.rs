//! SIGINT and SIGTERM, turned into something that work asks for between two steps, so that it ends in order. It ends
//! nothing by itself. Invariant: from [`Stop::listen`] on, neither signal kills the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Builder;

use crate::signals::{Ending, Signals};

/// Whether somebody wants the work to end. Clones are the same wish.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicU8>);

impl Stop {
    /// Listens from now on, in a thread that ends with the process.
    ///
    /// # Errors
    /// When no thread or descriptor is left.
    pub fn listen() -> io::Result<Self> {
        let stop = Self::default();
        let runtime = Builder::new_current_thread().enable_io().build()?;
        // Before the thread starts: a signal that comes in between must not be missed.
        let mut signals = runtime.block_on(async { Signals::listen() })?;
        let heard = stop.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || heard.set(runtime.block_on(signals.next())))?;
        Ok(stop)
    }

    /// What a process that was ended so ends with, once a signal came.
    pub fn exit_code(&self) -> Option<u8> {
        Some(self.0.load(Relaxed)).filter(|&code| code > 0)
    }

    /// An error once a signal came.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`].
    pub fn check(&self) -> io::Result<()> {
        self.exit_code().map_or(Ok(()), |_| Err(io::ErrorKind::Interrupted.into()))
    }

    /// Waits for a signal.
    pub fn wait(&self) {
        while self.exit_code().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn set(&self, ending: Ending) {
        self.0.store(ending.exit_code(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_until_a_signal_came_and_every_clone_knows() {
        let stop = Stop::default();
        let other = stop.clone();
        assert!(other.check().is_ok() && other.exit_code().is_none());
        stop.set(Ending::Terminate);
        assert_eq!(other.check().unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(other.exit_code(), Some(143));
    }
}
