//! When bytes arrive: latency and bandwidth as arithmetic on instants. Nothing here sleeps.
//!
//! The model: a connection delivers pieces of [`PIECE`] bytes one after another, each `piece / per_connection` after
//! the one before. All connections share one link that sends pieces in the order they are asked for; as a
//! connection asks for its next piece when the one before arrived, busy connections take turns and share the link
//! evenly. A piece arrives when both clocks allow it. Due times are kept exactly, so tokio's timer, which rounds a
//! sleep up to a millisecond, delays a piece but never lengthens a transfer.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes that arrive at once: small enough that readers see a chunk fill from the front.
pub const PIECE: u64 = 64 << 10;

/// Bytes per second; none means that bytes take no time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Of one connection.
    pub per_connection: Option<u64>,
    /// Of all connections together.
    pub total: Option<u64>,
}

/// The link all connections share.
#[derive(Debug, Default)]
pub(super) struct Link {
    free_at: Option<Instant>,
}

impl Link {
    /// When a piece of `n` bytes arrives that a connection starts to wait for at `from`.
    pub fn on_piece(&mut self, bandwidth: Bandwidth, from: Instant, n: u64) -> Instant {
        let own = from + bandwidth.per_connection.map_or(Duration::ZERO, |rate| taking(n, rate));
        let Some(rate) = bandwidth.total else { return own };
        let sent = self.free_at.map_or(from, |free| free.max(from)) + taking(n, rate);
        self.free_at = Some(sent);
        own.max(sent)
    }
}

/// How long `n` bytes take at `rate` bytes per second.
fn taking(n: u64, rate: u64) -> Duration {
    Duration::from_nanos((u128::from(n) * 1_000_000_000 / u128::from(rate.max(1))).try_into().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_paced_by_its_own_bandwidth() {
        let (mut link, start) = (Link::default(), Instant::now());
        let bandwidth = Bandwidth { per_connection: Some(1_000_000), total: None };
        let mut at = start;
        for _ in 0..1000 {
            at = link.on_piece(bandwidth, at, 10_000);
        }
        assert_eq!(at - start, Duration::from_secs(10));
    }

    #[test]
    fn connections_share_the_link_evenly_and_fill_it() {
        let (mut link, start) = (Link::default(), Instant::now());
        let bandwidth = Bandwidth { per_connection: Some(4_000_000), total: Some(8_000_000) };
        let mut connections = [(start, 0_u64); 4];
        while connections.iter().any(|c| c.1 < 100) {
            let next = connections.iter_mut().min_by_key(|c| c.0).expect("there are four");
            *next = (link.on_piece(bandwidth, next.0, 80_000), next.1 + 1);
        }
        // 4 x 100 pieces of 10 ms on the shared link: no connection finished early, none starved.
        assert!(connections.iter().all(|c| c.1 == 100 || c.1 == 101), "{connections:?}");
        let end = connections.iter().map(|c| c.0 - start).max().expect("there are four");
        assert!((Duration::from_millis(4000)..Duration::from_millis(4040)).contains(&end), "{end:?}");
    }

    #[test]
    fn without_limits_bytes_take_no_time() {
        let start = Instant::now();
        assert_eq!(Link::default().on_piece(Bandwidth::default(), start, PIECE), start);
    }
}
