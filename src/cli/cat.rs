//! `windlass cat`: objects, or a range of each, on standard output. Invariant: the exit code is 0 only when every byte was handed over
//! and, where the store keeps a checksum of the whole, that is the one of what was.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;

use clap::ValueEnum;

use super::Failure;
use super::remote::{Reach, open_all, runtime};
use super::tuning::Pace;
use crate::budget::{self, Budget};
use crate::store::ErrorKind;
use crate::transfer::{self, Last, Span, Streaming, stream};
use crate::units::ByteSize;

/// Write objects, or a range of each, to standard output.
///
/// For example: windlass cat --range 0-99 s3://bucket/models/a.safetensors
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket/key or oss://bucket/key; several one after another.
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    reach: Reach,
}

/// Which bytes.
#[derive(Debug, clap::Args)]
pub struct Which {
    /// Only these bytes, both ends counted: A-B, A- or -B. -B is the last B bytes; with --compat ossutil bytes 0 to B.
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    range: Option<Span>,
    /// Take --range as that program does.
    #[arg(long, value_name = "PROGRAM")]
    compat: Option<Compat>,
}

/// Programs that say -B otherwise.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Compat {
    Ossutil,
}

impl Which {
    /// Whether anything was said.
    pub fn is_said(&self) -> bool {
        self.range.is_some() || self.compat.is_some()
    }

    /// The bytes of an object of `size` bytes.
    pub fn of(&self, size: u64) -> Result<Range<u64>, Failure> {
        let last = self.compat.map_or(Last::Bytes, |Compat::Ossutil| Last::Offset);
        let span = self.range.map_or(Ok(0..size), |span| span.resolve(size, last));
        span.map_err(|error| Failure::usage(format!("--range {error}")))
    }
}

/// Parts ahead of who reads them: 64 MiB hide the latency of a store at 1 GB/s.
const PART_BYTES: u64 = 8 << 20;
const AHEAD: usize = 8;

/// Writes it out.
pub fn run(args: &Args) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let remotes = open_all(&args.sources, &args.reach).await?;
        if let Some(remote) = remotes.iter().find(|remote| remote.key.as_bytes().is_empty()) {
            return Err(Failure::usage(format!("{}: name an object in the bucket", remote.shown)));
        }
        let memory = ByteSize::bytes(PART_BYTES * AHEAD as u64);
        let budget = Budget::new(&budget::Options { memory_limit: Some(memory) });
        let how = Streaming { part_bytes: PART_BYTES, ahead: AHEAD, bandwidth: args.pace.bandwidth() };
        // What came after a hole would look as if it belonged there: the first that fails is the last.
        for remote in &remotes {
            let details = match remote.store.details(&remote.key).await {
                Ok(details) => details,
                Err(error) if error.kind == ErrorKind::NotFound => {
                    return Err(remote.missing_or_directory(&format!("see windlass ls {}", remote.shown)).await);
                }
                Err(error) => return Err(remote.failed(error)),
            };
            let range = args.which.of(details.meta.size)?;
            let taken = stream(&remote.store, &budget, &details, range, how.clone(), to_stdout).await;
            taken.map_err(|error| remote.ended(error))?;
        }
        Ok(())
    })
}

/// Whether whoever reads it wants more.
pub fn to_stdout(bytes: &[u8]) -> transfer::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(transfer::Error::local("write to", "standard output")(error)),
    }
}
