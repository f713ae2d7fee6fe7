//! Looks at everything that a mount counts and holds. It changes nothing and keeps nothing. Invariant: whoever asks (the control socket,
//! the virtual file, Prometheus) sees the same, and no reader waits for the look longer than for another reader.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::protocol::Stats;
use crate::budget::Budget;
use crate::metrics::{Count, DiskCounts, DiskNow, Gauge, Metrics, Now, ProcessCounts, Reading, Row, Type};
use crate::panics;
use crate::reader::Reader;
use crate::spill::{self, Spill};
use crate::sys;
use crate::vfs::Names;

/// What of a mount can be looked at.
pub struct Observer {
    pub names: Arc<Names>,
    pub metrics: Arc<Metrics>,
    pub budget: Arc<Budget>,
    pub reader: Reader,
    /// None: nothing goes to a disk.
    pub spill: Option<Spill>,
    pub source: String,
    pub data_host: Option<String>,
    pub mountpoint: String,
    pub began: Instant,
    /// Where others connect to, if they can: they are not among our connections.
    pub port: Option<u16>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("source", &self.source).field("mountpoint", &self.mountpoint).finish_non_exhaustive()
    }
}

impl Observer {
    /// Everything, as it is now.
    pub async fn stats(self: &Arc<Self>) -> Stats {
        let this = Arc::clone(self);
        // The account of the disk is in a file, and connections are looked up in /proc.
        let looking = tokio::task::spawn_blocking(move || this.look());
        looking.await.unwrap_or_default()
    }

    fn look(&self) -> Stats {
        let disk = self.spill.as_ref().map(Spill::stats);
        let readings = [
            self.metrics.read(),
            ProcessCounts { panics: Count(panics::count()) }.read(),
            disk.map(|disk| counts(&disk).read()).unwrap_or_default(),
            self.now().read(),
            disk.map(|disk| DiskNow { spill_bytes: Gauge(disk.bytes), spill_objects: Gauge(disk.objects) }.read()).unwrap_or_default(),
        ];
        let of = |kind| -> BTreeMap<String, Reading> {
            let readings = readings.iter().flatten().filter(|(row, _): &&(&Row, _)| row.kind == kind);
            readings.map(|(row, reading)| (row.name.to_owned(), reading.clone())).collect()
        };
        Stats {
            windlass: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            source: self.source.clone(),
            data_host: self.data_host.clone(),
            mountpoint: self.mountpoint.clone(),
            uptime_seconds: self.began.elapsed().as_secs_f64(),
            counters: of(Type::Counter),
            gauges: of(Type::Gauge),
            histograms: of(Type::Histogram),
        }
    }

    fn now(&self) -> Now {
        let (budget, holding) = (self.budget.usage(), self.reader.holding());
        let gauge = |n: usize| Gauge(n as u64);
        Now {
            uptime_seconds: Gauge(self.began.elapsed().as_secs()),
            budget_limit_bytes: gauge(self.budget.limit()),
            budget_leased_bytes: gauge(budget.leased_bytes),
            budget_peak_bytes: gauge(budget.peak_bytes),
            budget_pooled_bytes: gauge(budget.pooled_bytes),
            budget_waiting: gauge(budget.waiting),
            stream_held_bytes: Gauge(holding.stream_bytes),
            handle_held_bytes: Gauge(holding.handle_bytes),
            streams: gauge(holding.streams),
            handles: gauge(holding.handles),
            requests_in_flight: Gauge(self.metrics.in_flight()),
            gets_allowed: gauge(self.reader.gets_allowed()),
            connections_open: gauge(sys::tcp_connections(self.port)),
            kernel_inodes: gauge(self.names.known_inodes()),
            hidden_objects: gauge(self.names.hidden_objects()),
        }
    }
}

fn counts(disk: &spill::Stats) -> DiskCounts {
    DiskCounts {
        spill_missed_bytes: Count(disk.missed_bytes),
        spill_evicted_chunks: Count(disk.evictions),
        spill_damaged_pieces: Count(disk.damaged),
        spill_dropped_pieces: Count(disk.dropped),
    }
}
