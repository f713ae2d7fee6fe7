//! SIGINT and SIGTERM, turned into something that work asks for between two steps, so that it ends in order. It ends
//! nothing by itself. Invariant: from [`Stop::listen`] on, neither signal kills the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

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
        let (mut interrupt, mut terminate) =
            runtime.block_on(async { io::Result::Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)) })?;
        let heard = stop.clone();
        std::thread::Builder::new().name("demo-signals".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => heard.set(SignalKind::interrupt()),
                    _ = terminate.recv() => heard.set(SignalKind::terminate()),
                }
            });
        })?;
        Ok(stop)
    }

    /// The signal that came, if one did.
    pub fn signal(&self) -> Option<u8> {
        Some(self.0.load(Relaxed)).filter(|&number| number > 0)
    }

    /// An error once a signal came.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`].
    pub fn check(&self) -> io::Result<()> {
        self.signal().map_or(Ok(()), |_| Err(io::ErrorKind::Interrupted.into()))
    }

    pub(super) fn set(&self, kind: SignalKind) {
        self.0.store(u8::try_from(kind.as_raw_value()).expect("signals are small numbers"), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_until_a_signal_came_and_every_clone_knows() {
        let stop = Stop::default();
        let other = stop.clone();
        assert!(other.check().is_ok() && other.signal().is_none());
        stop.set(SignalKind::terminate());
        assert_eq!(other.check().unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(other.signal(), Some(15));
    }
}
