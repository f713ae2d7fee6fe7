//! The signals that ask a process to end in order. It ends nothing by itself. Invariant: from the moment they are listened to they no longer
//! kill the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Interrupt,
    Terminate,
    Hangup,
}

impl Ending {
    /// As signal(7) calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        }
    }

    /// What happened to whoever was asked.
    pub fn word(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupted",
            Self::Terminate => "terminated",
            Self::Hangup => "hung up",
        }
    }

    /// What a shell shows of a process that ended so: 128 and the number of the signal.
    pub fn exit_code(self) -> u8 {
        128 + match self {
            Self::Interrupt => 2,
            Self::Terminate => 15,
            Self::Hangup => 1,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    ignores_terminate: bool,
}

impl Signals {
    /// SIGINT and SIGTERM. Called inside the runtime that will wait for them. SIGHUP stays what it was: nohup(1) had it ignored.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: None,
            ignores_terminate: false,
        })
    }

    /// SIGHUP too: a process that it killed would leave something dead behind.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn with_hangup(self) -> io::Result<Self> {
        Ok(Self { hangup: Some(signal(SignalKind::hangup())?), ..self })
    }

    /// SIGTERM asks for nothing.
    #[must_use]
    pub fn without_terminate(self) -> Self {
        Self { ignores_terminate: true, ..self }
    }

    /// The next one.
    pub async fn next(&mut self) -> Ending {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.interrupt.recv() => return Ending::Interrupt,
                _ = self.terminate.recv() => if !self.ignores_terminate { return Ending::Terminate },
                _ = hangup => return Ending::Hangup,
            }
            tracing::info!("SIGTERM is ignored: the mount ends when it is unmounted");
        }
    }
}
