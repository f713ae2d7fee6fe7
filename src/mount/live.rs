//! What of a mount can be changed while it runs, and how each is done. Which options these are, and what their values may be, the table of
//! options says. Invariant: what [`get`](LiveOptions::get) shows is what the layers go by, not what somebody asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::admin::{Live, MEMORY_SHARE, Observer};
use crate::config::{self, Settings, Value};
use crate::fuse;
use crate::logging;
use crate::reader::PrefetchChunks;
use crate::store::Switches;
use crate::units::ByteSize;

/// See the module.
pub(super) struct LiveOptions {
    observer: Arc<Observer>,
    switches: Switches,
    /// No memory limit may be lower, and why.
    least: (ByteSize, &'static str),
    /// Nobody has set a memory limit for this mount: it is a share of others' too.
    has_memory_share: AtomicBool,
}

impl LiveOptions {
    pub fn new(settings: &Settings, observer: Arc<Observer>, switches: Switches) -> Self {
        let two_chunks = 2 * settings.reader.chunk_size.as_u64();
        let four_reads = 4 * u64::from(fuse::longest_read(observer.budget.limit()));
        let chunks =
            (ByteSize::bytes(two_chunks.max(four_reads)), "readers need two chunks, and four of the longest reads that the kernel makes");
        // A file that is being written has parts of up to an eighth of the memory that there was at its first part.
        let quarter = ByteSize::bytes(observer.budget.limit() as u64 / 4);
        let parts =
            (quarter.max(chunks.0), "files that are being written may have parts that need a quarter of what there was at the beginning");
        let least = if settings.read_only { chunks } else { parts };
        Self { observer, switches, least, has_memory_share: AtomicBool::new(settings.has_memory_share) }
    }

    /// Takes a share of the memory of all mounts of a pod, or as much more as it cannot do without. A mount that has a limit of its own keeps it.
    fn set_memory_share(&self, value: &str) -> Result<(), String> {
        let share: ByteSize = value.parse().map_err(|error| format!("{MEMORY_SHARE}={value}: {error}"))?;
        if self.has_memory_share.load(Ordering::Relaxed) {
            self.set_memory_limit(Some(share.max(self.least.0)))?;
        }
        Ok(())
    }

    fn set_memory_limit(&self, limit: Option<ByteSize>) -> Result<(), String> {
        let (least, why) = self.least;
        if let Some(limit) = limit.filter(|limit| *limit < least) {
            return Err(format!("memory-limit={limit}: must be at least {least} here: {why}"));
        }
        let Observer { budget, reader, .. } = &*self.observer;
        budget.set_limit(limit);
        // What is held beyond it, and can be spared, goes now; the rest as it is read.
        reader.make_room(budget.leased_bytes().saturating_sub(budget.limit()));
        Ok(())
    }

    fn set_ttl(&self, name: &str, ttl: Duration) -> Result<(), String> {
        let ttls = self.observer.names.ttls().ok_or_else(|| format!("{name}: the mount began without a metadata cache"))?;
        if name == "negative-ttl" {
            ttls.absent.set(ttl)
        } else {
            ttls.believed.set(ttl)
        }
        Ok(())
    }
}

impl Live for LiveOptions {
    fn get(&self) -> BTreeMap<String, String> {
        let Observer { reader, budget, names, .. } = &*self.observer;
        let options = reader.options();
        let mut values = vec![
            ("prefetch-chunks", options.prefetch_chunks.to_string()),
            ("backward-chunks", options.backward_chunks.to_string()),
            ("prefetch-concurrency", reader.concurrency().to_string()),
            ("memory-limit", ByteSize::bytes(budget.limit() as u64).to_string()),
            ("hedge", self.switches.hedges().to_string()),
        ];
        values.extend(logging::level().map(|level| ("log-level", level)));
        if let Some(ttls) = names.ttls() {
            let shown = |ttl: Duration| Value::Time(ttl).plain();
            values.extend([("stat-cache-ttl", shown(ttls.believed.get())), ("negative-ttl", shown(ttls.absent.get()))]);
        }
        values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn set(&self, name: &str, value: &str) -> Result<(String, String), String> {
        if name == MEMORY_SHARE {
            self.set_memory_share(value)?;
            let limit = self.get().remove("memory-limit").unwrap_or_default();
            tracing::info!(option = "memory-limit", value = limit, share = value, "changed with the number of volumes");
            return Ok((name.to_owned(), limit));
        }
        let (spec, value) = config::change(name, value).map_err(|error| error.to_string())?;
        let reader = &self.observer.reader;
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match (spec.name, value) {
            ("log-level", Value::Text(level)) => logging::set_level(&level).map_err(|error| error.to_string())?,
            ("prefetch-chunks", Value::Auto) => reader.set_prefetch_chunks(PrefetchChunks::Auto),
            ("prefetch-chunks", Value::Count(chunks)) => reader.set_prefetch_chunks(PrefetchChunks::Fixed(number(chunks))),
            ("backward-chunks", Value::Count(chunks)) => reader.set_backward_chunks(number(chunks)),
            ("prefetch-concurrency", Value::Auto) => reader.set_concurrency(None),
            ("prefetch-concurrency", Value::Count(most)) => reader.set_concurrency(Some(usize::try_from(most).unwrap_or(usize::MAX))),
            ("memory-limit", limit @ (Value::Auto | Value::Size(_))) => {
                self.set_memory_limit(if let Value::Size(limit) = limit { Some(limit) } else { None })?;
                self.has_memory_share.store(false, Ordering::Relaxed);
            }
            ("stat-cache-ttl" | "negative-ttl", Value::Time(ttl)) => self.set_ttl(spec.name, ttl)?,
            ("hedge", Value::Flag(hedge)) => self.switches.set_hedge(hedge),
            (name, value) => return Err(format!("{name}={}: this version cannot change it", value.plain())),
        }
        let now = self.get().remove(spec.name).unwrap_or_default();
        tracing::info!(option = spec.name, value = now, "changed while mounted");
        Ok((spec.name.to_owned(), now))
    }
}
