//! Connections that wait for their next request. The one that was used last goes first: its buffers and the
//! congestion window of the other side are warm, and those that are too many grow old together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Url;
use tokio::time::{Instant, sleep};

use super::connection::Connection;
use crate::store::clients::{IDLE_CONNECTIONS, IDLE_FOR};

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// As the Host header has it.
    pub authority: String,
    pub port: u16,
}

impl Peer {
    pub fn of(url: &Url) -> Option<Self> {
        let host = url.host_str()?;
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        Some(Self { authority, port: url.port_or_known_default()? })
    }

    /// The name or address to connect to.
    pub fn host(&self) -> &str {
        let suffix = format!(":{}", self.port);
        let host = self.authority.strip_suffix(suffix.as_str()).unwrap_or(&self.authority);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    /// Per peer, the most recently used last.
    connections: HashMap<Peer, Vec<(Connection, Instant)>>,
    /// A task closes those that grow old.
    is_swept: bool,
}

impl Pool {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A connection that is open as far as we know.
    pub fn take(&self, peer: &Peer) -> Option<Connection> {
        loop {
            let (connection, since) = self.0.lock().connections.get_mut(peer)?.pop()?;
            if since.elapsed() < IDLE_FOR && connection.is_idle() {
                return Some(connection);
            }
        }
    }

    /// Takes a connection back.
    pub fn put(self: &Arc<Self>, peer: Peer, connection: Connection) {
        let mut idle = self.0.lock();
        let list = idle.connections.entry(peer).or_default();
        list.push((connection, Instant::now()));
        let too_many = (list.len() > IDLE_CONNECTIONS).then(|| list.remove(0));
        let must_sweep = !std::mem::replace(&mut idle.is_swept, true);
        drop(idle);
        drop(too_many);
        if must_sweep {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes what is too old; false when nothing is left.
    fn close_old(&self) -> bool {
        let mut old = Vec::new();
        let mut idle = self.0.lock();
        for list in idle.connections.values_mut() {
            let first_young = list.partition_point(|(_, since)| since.elapsed() >= IDLE_FOR);
            old.extend(list.drain(..first_young));
        }
        idle.connections.retain(|_, list| !list.is_empty());
        idle.is_swept = !idle.connections.is_empty();
        idle.is_swept
    }
}

async fn sweep(pool: std::sync::Weak<Pool>) {
    loop {
        sleep(IDLE_FOR / 4 + Duration::from_millis(1)).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_old()) {
            return;
        }
    }
}
