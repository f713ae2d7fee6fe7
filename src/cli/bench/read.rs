//! `windlass bench read`: one object as fast as it comes, once or under several loads. It reads the words and makes the report. Invariant:
//! each load has connections of its own, so that none is faster because another one went before it.

use std::ffi::OsString;
use std::path::PathBuf;

use super::super::Failure;
use super::super::remote::{Reach, Remote, runtime};
use super::{BYTES, MEAN, PEAK, SECONDS, SOURCE, Shape, ceiling, plot, with_ceiling};
use crate::bench::{Ceiling, Cell, Chart, Line, Load, LoadError, Name, Plan, Report, Speed, gbit, read, seconds};
use crate::store::{Crc64, Details, ObjectMeta};
use crate::units::ByteSize;

/// Read one object in ranges side by side, compare it with the store's checksum, and show the peak of a second and the rate from end to end.
///
/// The bytes go the way that mounts and get fetch them, into memory that is used again and again. For example:
/// windlass bench read --sweep 128x800,256x400,512x200,1024x100 s3://bucket/object
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket/key or oss://bucket/key.
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// Requests at a time: 1..10000.
    #[arg(long, value_name = "N", default_value_t = 32, conflicts_with = "sweep")]
    parallel: usize,
    /// Bytes of one request; at least 64KiB.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", conflicts_with = "sweep")]
    chunk_size: ByteSize,
    /// Throw the bytes away as they come, without a checksum of them.
    #[arg(long)]
    discard: bool,
    /// Read under each of these loads in turn, and show a table: CONCURRENCYxCHUNK,..., a bare chunk in MiB.
    #[arg(long, value_name = "LOADS", value_delimiter = ',')]
    sweep: Vec<Load>,
    /// Most memory for bytes on their way.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    max_memory: ByteSize,
    /// Draw the rates of a sweep into this SVG file.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    reach: Reach,
}

const CONCURRENCY: Name = Name { shown: "concurrency", key: "concurrency" };
const CHUNK_MB: Name = Name { shown: "chunk MB", key: "chunk_mib" };
const CHUNK: Name = Name { shown: "chunk bytes", key: "chunk_bytes" };
const IN_FLIGHT: Name = Name { shown: "requests in flight at most", key: "requests_in_flight" };
const CHECKED: Name = Name { shown: "compared with", key: "compared_with" };
const MEMORY: Name = Name { shown: "memory for them, bytes", key: "memory_bytes" };

/// What one load came to.
struct Ran {
    load: Load,
    plan: Plan,
    speed: Speed,
}

/// Reads.
pub fn run(args: &Args) -> Result<(), Failure> {
    let wrong = |error: LoadError| Failure::usage(error.to_string());
    let is_sweep = !args.sweep.is_empty();
    let loads = if is_sweep { args.sweep.clone() } else { vec![Load::new(args.parallel, args.chunk_size).map_err(wrong)?] };
    runtime()?.block_on(async {
        let first = Remote::open(&args.source, &args.reach).await?;
        let Details { meta: object, crc64, .. } = details(&first).await?;
        let crc = crc64.filter(|_| !args.discard);
        let plans = loads.iter().map(|load| load.plan(object.size, args.max_memory)).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let mut all = Vec::new();
        for (load, plan) in loads.into_iter().zip(plans) {
            if is_sweep {
                let memory = ByteSize::bytes(plan.memory_bytes());
                eprintln!("windlass: {load}: {} chunks, {} requests at a time, {memory} of memory", plan.chunks(), plan.requests);
            }
            let remote = Remote::open(&args.source, &args.reach).await?;
            let speed = read(&remote.store, &object, &plan, crc).await.map_err(|error| remote.ended(error))?;
            all.push(Ran { load, plan, speed });
        }
        let ceiling = ceiling(first.data_host()).await;
        if let Some(path) = &args.plot {
            plot(&chart(&first.shown, &all), path)?;
        }
        args.shape.print(&report(&first.shown, &object, crc, &all, is_sweep, ceiling))
    })
}

/// The object that was named.
pub(super) async fn details(remote: &Remote) -> Result<Details, Failure> {
    if remote.key.is_prefix() {
        return Err(Failure::usage(format!("{}: name an object in the bucket", remote.shown)));
    }
    let details = remote.store.details(&remote.key).await.map_err(|error| remote.failed(error))?;
    if details.meta.size == 0 {
        return Err(Failure::usage(format!("{}: the object is empty", remote.shown)));
    }
    Ok(details)
}

fn report(source: &str, object: &ObjectMeta, crc: Option<Crc64>, all: &[Ran], is_sweep: bool, ceiling: Option<Ceiling>) -> Report {
    let sum = crc.map_or(Cell::Unknown, |crc| crc.polynomial.to_string().into());
    let report = Report::new("read").fact(SOURCE, source).fact(BYTES, object.size).fact(CHECKED, sum);
    // Of the best load: what the host can be brought to.
    let best = all.iter().map(|ran| ran.speed.mean()).fold(0.0, f64::max);
    if is_sweep {
        let mut report = with_ceiling(report, ceiling, best).columns([CONCURRENCY, CHUNK_MB, PEAK, SECONDS]);
        for Ran { load, speed, .. } in all {
            report.row([load.requests.into(), mib(load.chunk), gbit(speed.peak), seconds(speed.took)]);
        }
        return report;
    }
    let report = all.iter().fold(report, |report, Ran { load, plan, speed }| {
        let report = report.fact(CONCURRENCY, load.requests).fact(CHUNK, load.chunk.as_u64());
        let report = report.fact(IN_FLIGHT, plan.requests).fact(MEMORY, plan.memory_bytes());
        report.fact(SECONDS, seconds(speed.took)).fact(PEAK, gbit(speed.peak)).fact(MEAN, gbit(speed.mean()))
    });
    with_ceiling(report, ceiling, best)
}

/// As the vendor's table has it: 800, and decimals only for what is no whole number of them.
fn mib(size: ByteSize) -> Cell {
    let whole = size.as_u64().is_multiple_of(1 << 20);
    Cell::number(size.as_u64() as f64 / f64::from(1 << 20), if whole { 0 } else { 4 })
}

fn chart(source: &str, all: &[Ran]) -> Chart {
    let line =
        |name: &str, rate: fn(&Speed) -> f64| Line { name: name.into(), cells: all.iter().map(|ran| gbit(rate(&ran.speed))).collect() };
    Chart {
        title: source.to_owned(),
        unit: "Gbit/s",
        places: all.iter().map(|ran| ran.load.to_string()).collect(),
        lines: vec![line("peak", |speed| speed.peak), line("end to end", Speed::mean)],
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// The vendor's own figures.
    const TABLE: [(&str, f64, u64); 4] =
        [("128x800", 100.0, 16_321), ("256x400", 100.0, 14_881), ("512x200", 100.0, 15_349), ("1024x100", 100.0, 19_129)];

    fn vendors() -> (ObjectMeta, Vec<Ran>) {
        let object = ObjectMeta { key: "k".into(), size: 102_400 << 20, etag: "e".into(), modified: SystemTime::UNIX_EPOCH };
        let ran = TABLE.map(|(load, gbit, ms)| {
            let load: Load = load.parse().unwrap();
            let plan = load.plan(object.size, ByteSize::mib(256)).unwrap();
            Ran { load, plan, speed: Speed { bytes: object.size, took: Duration::from_millis(ms), peak: gbit * 1e9 / 8.0 } }
        });
        (object, ran.into())
    }

    #[test]
    fn a_sweep_has_the_shape_of_the_vendors_table() {
        let (object, all) = vendors();
        let text = report("oss://b/k", &object, None, &all, true, None).to_text();
        let table: Vec<String> =
            text.lines().skip_while(|line| !line.contains('|')).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            table,
            [
                "concurrency | chunk MB | peak Gbit/s | end to end s",
                "128 | 800 | 100.000 | 16.321",
                "256 | 400 | 100.000 | 14.881",
                "512 | 200 | 100.000 | 15.349",
                "1024 | 100 | 100.000 | 19.129",
            ]
        );
    }

    #[test]
    fn the_share_of_the_ceiling_is_that_of_the_best_load() {
        let (object, all) = vendors();
        let ceiling = Ceiling { bytes_per_second: 12.5e9, streams: 32, measured_unix_seconds: 0 };
        let json = report("oss://b/k", &object, None, &all, true, Some(ceiling)).to_json();
        assert_eq!((json["ceiling_gbit_per_second"].as_f64(), json["ceiling_share_percent"].as_f64()), (Some(100.0), Some(57.7)));
        let json = report("oss://b/k", &object, None, &all[..1], false, None).to_json();
        assert_eq!((json["end_to_end_gbit_per_second"].as_f64(), json["requests_in_flight"].as_u64()), (Some(52.631), Some(128)));
        assert!(json["ceiling_gbit_per_second"].is_null());
    }

    #[test]
    fn chunks_are_whole_megabytes_or_show_their_decimals() {
        assert_eq!([mib(ByteSize::mib(800)), mib(ByteSize::kib(256))], [Cell::Number(800.0, 0), Cell::Number(0.25, 4)]);
    }
}
