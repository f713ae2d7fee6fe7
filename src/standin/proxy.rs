//! The mount-proxy: takes requests on a socket and answers each when it is done, or why it is not. One request a connection, as the driver has it
//! (pkg/mounter/proxy/server/handler.go there). Mounts are in `volumes`. Invariant: every request that was read gets an answer.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::request::{Mount, Request, Response, Unmount};
use super::volumes::{Drivers, Volumes};
use crate::handover::{Door, Link, Place};

/// How long is waited when no connection can be taken: descriptors may come free.
const PAUSE: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Proxy {
    door: Door,
    timeout: Duration,
    connections: AtomicI64,
    volumes: Volumes,
}

impl Proxy {
    /// Listens at `socket`.
    ///
    /// # Errors
    /// When somebody listens there already, or it cannot be made.
    pub fn open(socket: &Path, drivers: Drivers, timeout: Duration) -> io::Result<Arc<Self>> {
        if let Some(parent) = socket.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent)?;
        }
        let door = Place::of(socket)?.listen()?;
        // Who may connect may have anything mounted anywhere.
        door.permit(0o600)?;
        Ok(Arc::new(Self { door, timeout, connections: AtomicI64::new(0), volumes: Volumes::new(drivers) }))
    }

    /// Answers requests from now on, in threads that end with the process.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn serve(self: &Arc<Self>) -> io::Result<()> {
        let this = Arc::clone(self);
        std::thread::Builder::new().name("accept".into()).spawn(move || this.accept()).map(drop)
    }

    fn accept(self: Arc<Self>) {
        loop {
            match self.door.accept() {
                Ok(stream) => {
                    let (this, seq) = (Arc::clone(&self), self.connections.fetch_add(1, Relaxed) + 1);
                    let answering = std::thread::Builder::new().name("request".into()).spawn(move || this.answer(stream, seq));
                    if let Err(error) = answering {
                        tracing::error!(%error, "no thread for a request");
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot take a connection");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn answer(&self, stream: UnixStream, seq: i64) {
        let deadline = Instant::now() + self.timeout;
        let mut link = Link::new(stream);
        let outcome = match link.receive::<Request>(Some(self.timeout)) {
            Ok(Some((request, _))) => self.on_request(&request, link.stream(), deadline),
            Ok(None) => Err("read request: EOF".to_owned()),
            Err(error) => Err(format!("read request: {error}")),
        };
        if let Err(error) = &outcome {
            tracing::error!(seq, error, "a request failed");
        }
        if let Err(error) = link.send(&Response { seq, error: outcome.err().unwrap_or_default() }, &[]) {
            tracing::info!(seq, %error, "nobody waits for the answer");
        }
    }

    fn on_request(&self, request: &Request, asker: &UnixStream, deadline: Instant) -> Result<(), String> {
        match request.header.method.as_str() {
            "ping" => Ok(()),
            "mount" => {
                let body: Mount = serde_json::from_value(request.body.clone()).map_err(|error| error.to_string())?;
                self.volumes.mount(&body, asker, deadline)
            }
            "unmount" => {
                let body: Unmount = serde_json::from_value(request.body.clone()).map_err(|error| error.to_string())?;
                self.volumes.unmount(&body.target, deadline)
            }
            _ => Err("invalid method".into()),
        }
    }

    /// Takes no more requests, and lets the daemons end: each unmounts when what was written is stored.
    pub fn end(&self) {
        self.volumes.end();
        // Threads that wait for a connection hold the socket until the process is gone, and its file must go before.
        self.door.remove();
    }
}
