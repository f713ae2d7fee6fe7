//! How much of a transfer is under way at once, in the words of every command that transfers. Invariant: what the plan says before it starts
//! is what bounds it.

use std::path::PathBuf;
use std::sync::Arc;

use indicatif::HumanBytes;

use super::Failure;
use crate::budget::{self, Budget};
use crate::transfer::{Asked, Bandwidth, Parallel, Plan};
use crate::units::{ByteSize, ParseSizeError};

/// See the module.
#[derive(Debug, clap::Args)]
pub struct Tuning {
    /// Requests at a time for a file: 1..10000, or auto for as many as make it faster.
    #[arg(long, value_name = "N", default_value = "auto")]
    parallel: Parallel,
    /// Bytes of one request: at least 64KiB to fetch, 5MiB to store; more when there would be more than 10,000.
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    part_size: ByteSize,
    /// What is smaller is one request, if it fits into the memory.
    #[arg(long, value_name = "SIZE", default_value = "100MiB")]
    bigfile_threshold: ByteSize,
    /// Most memory for bytes on their way.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    max_memory: ByteSize,
    /// Remember there which parts are done, so that the same command moves only the others after it was interrupted.
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    #[command(flatten)]
    pub pace: Pace,
}

/// How fast.
#[derive(Debug, clap::Args)]
pub struct Pace {
    /// Most bytes a second, of all requests together; at least 1KiB.
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    bandwidth_limit: Option<ByteSize>,
}

/// Slower than any line there is.
const SLOWEST: ByteSize = ByteSize::kib(1);

fn rate(text: &str) -> Result<ByteSize, String> {
    let rate: ByteSize = text.parse().map_err(|error: ParseSizeError| error.to_string())?;
    if rate < SLOWEST { Err(format!("must be at least {SLOWEST}")) } else { Ok(rate) }
}

impl Pace {
    /// The limit that was said.
    pub fn bandwidth(&self) -> Option<Arc<Bandwidth>> {
        self.bandwidth_limit.map(|limit| Arc::new(Bandwidth::new(limit)))
    }
}

impl Tuning {
    /// The limits that were said, for parts that have at least so many bytes.
    pub fn asked(&self, least: ByteSize) -> Result<Asked, Failure> {
        if self.part_size < least {
            return Err(Failure::usage(format!("--part-size {}: must be at least {least}", self.part_size)));
        }
        Ok(Asked {
            parallel: self.parallel,
            part_bytes: self.part_size.as_u64(),
            threshold_bytes: self.bigfile_threshold.as_u64(),
            max_memory_bytes: self.max_memory.as_u64(),
        })
    }

    /// The same for parts that are sent.
    pub fn asked_to_send(&self, least: ByteSize) -> Result<Asked, Failure> {
        let asked = self.asked(least)?;
        Ok(self.pace.bandwidth_limit.map_or(asked, |limit| asked.within(limit.as_u64())))
    }

    pub fn parallel(&self) -> Parallel {
        self.parallel
    }

    pub fn checkpoints(&self) -> Option<PathBuf> {
        self.checkpoint_dir.clone()
    }

    /// What all of it may take.
    pub fn budget(&self) -> Arc<Budget> {
        Budget::new(&budget::Options { memory_limit: Some(self.max_memory) })
    }

    /// Says how much of `what` will be under way, for so many files at a time: concurrency x buffer x transfers, and what bounds that.
    pub fn say(&self, plan: &Plan, what: &str, files: Option<u16>) {
        eprintln!("windlass: {}", words(plan, what, files, self.parallel, self.max_memory));
    }
}

fn words(plan: &Plan, what: &str, files: Option<u16>, parallel: Parallel, most: ByteSize) -> String {
    let auto = if parallel == Parallel::Auto { "up to " } else { "" };
    let (buffer, requests) = (HumanBytes(plan.buffer_bytes), plan.requests);
    let beside = if plan.beside > 0 { format!(" and {} beside", plan.beside) } else { String::new() };
    let formula = match files {
        Some(files) => format!("up to {files} files x {auto}{requests} requests{beside} x {buffer}"),
        None => format!("{auto}{requests} requests{beside} x {buffer}"),
    };
    let product = plan.memory_bytes().saturating_mul(files.unwrap_or(1).into());
    let held = if product > most.as_u64() { format!(", held to {most}") } else { String::new() };
    let fewer = match parallel {
        Parallel::Fixed(asked) if requests < usize::from(asked) && (requests as u64) < plan.parts => {
            format!(" (not {asked} requests: --max-memory is {most})")
        }
        Parallel::Fixed(_) | Parallel::Auto => String::new(),
    };
    format!("plan: {what}, {formula} = {}{held} of memory{fewer}", HumanBytes(product))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_is_said_as_what_it_multiplies_to() {
        let plan = Plan { parts: 64, part_bytes: 16 << 20, requests: 32, buffer_bytes: 1 << 20, beside: 0 };
        let said = |plan: &Plan, files, parallel| words(plan, "1 GiB", files, parallel, ByteSize::mib(512));
        assert_eq!(said(&plan, None, Parallel::Fixed(32)), "plan: 1 GiB, 32 requests x 1.00 MiB = 32.00 MiB of memory");
        let auto = "plan: 1 GiB, up to 64 files x up to 32 requests x 1.00 MiB = 2.00 GiB, held to 512MiB of memory";
        assert_eq!(said(&plan, Some(64), Parallel::Auto), auto);
        let upload = Plan { beside: 1, requests: 3, buffer_bytes: 16 << 20, ..plan };
        let sent = "plan: 1 GiB, 3 requests and 1 beside x 16.00 MiB = 64.00 MiB of memory";
        assert_eq!(said(&upload, None, Parallel::Fixed(3)), sent);
        assert_eq!(said(&upload, None, Parallel::Fixed(16)), format!("{sent} (not 16 requests: --max-memory is 512MiB)"));
        assert_eq!(said(&Plan { parts: 3, ..upload }, None, Parallel::Fixed(16)), sent, "there are no more parts");
    }
}
