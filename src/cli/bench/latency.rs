//! `windlass bench latency`: how long one GET takes, and how long the slowest ones. It reads the words and makes the report.

use std::ffi::OsString;
use std::path::PathBuf;

use super::super::Failure;
use super::super::remote::{Reach, Remote, runtime};
use super::read::details;
use super::{BYTES, MEAN, SECONDS, SOURCE, Shape, ceiling, plot, with_ceiling};
use crate::bench::{Chart, Latencies, Line, Name, Report, TAIL, gbit, latency, seconds, tail};
use crate::units::ByteSize;

/// Time GETs of one size, one after the other: to the first byte and to the last, as percentiles.
///
/// The GETs go through the object from its front to its end and begin anew there. Retries and hedged requests are what mounts do too;
/// --hedge=false --retries 0 leaves them out. For example: windlass bench latency --size 10MiB --count 1000 s3://bucket/object
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket/key or oss://bucket/key.
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// Bytes of each GET; of a smaller object all.
    #[arg(long, value_name = "SIZE", default_value = "10MiB")]
    size: ByteSize,
    /// How many.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// Draw the percentiles into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    reach: Reach,
}

const SIZE: Name = Name { shown: "bytes of a GET", key: "get_bytes" };
const COUNT: Name = Name { shown: "GETs", key: "gets" };
const UNTIL: Name = Name { shown: "until", key: "until" };

/// Measures.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.size.as_u64() == 0 {
        return Err(Failure::usage("--size 0: must be at least 1"));
    }
    runtime()?.block_on(async {
        let remote = Remote::open(&args.source, &args.reach).await?;
        let object = details(&remote).await?.meta;
        let size = args.size.as_u64().min(object.size);
        let found = latency(&remote.store, &object, size, args.count).await.map_err(|error| remote.ended(error))?;
        let Latencies { first_byte, whole, speed } = &found;
        let rows = [("first byte", first_byte), ("last byte", whole)];
        let report = Report::new("latency").fact(SOURCE, &*remote.shown).fact(SIZE, size).fact(COUNT, whole.count());
        let report = report.fact(BYTES, speed.bytes).fact(SECONDS, seconds(speed.took)).fact(MEAN, gbit(speed.mean()));
        let mut report = with_ceiling(report, ceiling(remote.data_host()).await, speed.mean()).columns([UNTIL].into_iter().chain(TAIL));
        for (name, times) in rows {
            report.row([name.into()].into_iter().chain(tail(times)));
        }
        if let Some(path) = &args.plot {
            let lines = rows.map(|(name, times)| Line { name: name.into(), cells: tail(times).into() });
            let title = format!("{}: {} GETs of {}", remote.shown, whole.count(), ByteSize::bytes(size));
            let places = TAIL.iter().map(|name| name.shown.trim_end_matches(" ms").to_owned()).collect();
            plot(&Chart { title, unit: "ms", places, lines: lines.into() }, path)?;
        }
        args.shape.print(&report)
    })
}
