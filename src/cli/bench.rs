//! `windlass bench`: what a store, a network, a directory or a mount can do, measured. Here is what all benches share: how a report is
//! shown, and how fast the network was found to be. Invariant: every form of a report is made of the same numbers.

mod daemon;
mod files;
mod fio;
mod get;
mod latency;
mod net;
mod read;

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;

use super::stop::Stop;
use super::{Failure, mount};
use crate::bench::{Ceiling, Ceilings, Chart, Name, Report, boot, gbit, percent, state_file};

/// Measure: a store, the network, many small files, the fio jobs that come with this program.
///
/// Every bench ends by itself and removes what it wrote. For example: windlass bench read --parallel 64 s3://bucket/models/a.safetensors
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Read(Box<read::Args>),
    Get(Box<get::Args>),
    Latency(Box<latency::Args>),
    Files(files::Args),
    Net(net::Args),
    Fio(fio::Args),
}

/// Measures.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.bench {
        Bench::Read(args) => read::run(args),
        Bench::Get(args) => get::run(args),
        Bench::Latency(args) => latency::run(args),
        Bench::Files(args) => files::run(args),
        Bench::Net(args) => net::run(args),
        Bench::Fio(args) => fio::run(args),
    }
}

/// The form of a report.
#[derive(Debug, clap::Args)]
struct Shape {
    /// One JSON object.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Comma-separated values: a heading, and a line for each row.
    #[arg(long)]
    csv: bool,
}

impl Shape {
    fn print(&self, report: &Report) -> Result<(), Failure> {
        let text = match () {
            () if self.json => format!("{}\n", report.to_json()),
            () if self.csv => report.to_csv(),
            () => report.to_text(),
        };
        super::print(text.as_bytes())
    }
}

const SOURCE: Name = Name { shown: "source", key: "source" };
const BYTES: Name = Name { shown: "bytes", key: "bytes" };
const SECONDS: Name = Name { shown: "end to end s", key: "end_to_end_seconds" };
const PEAK: Name = Name { shown: "peak Gbit/s", key: "peak_gbit_per_second" };
const MEAN: Name = Name { shown: "end to end Gbit/s", key: "end_to_end_gbit_per_second" };
const CEILING: Name = Name { shown: "ceiling of the network Gbit/s", key: "ceiling_gbit_per_second" };
const MEASURED: Name = Name { shown: "ceiling measured at", key: "ceiling_measured_at" };
const SHARE: Name = Name { shown: "share of the ceiling %", key: "ceiling_share_percent" };

/// Adds how much of what the network can carry a rate of bytes a second is, where `bench net` has found that out.
fn with_ceiling(report: Report, ceiling: Option<Ceiling>, bytes_per_second: f64) -> Report {
    let most = ceiling.map(|ceiling| ceiling.bytes_per_second);
    let share = most.map(|most| percent(bytes_per_second, most));
    let time = ceiling.map(|ceiling| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(ceiling.measured_unix_seconds)));
    report.fact(CEILING, most.map(gbit)).fact(MEASURED, time).fact(SHARE, share)
}

/// What `bench net` found of the host, whatever it was called then.
async fn ceiling(host: Option<&str>) -> Option<Ceiling> {
    let (host, ceilings) = (host?, Ceilings::load(&state_file(&mount::environment())?, boot()));
    if let Some(found) = ceilings.of(host, &[]) {
        return Some(found);
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<IpAddr> = tokio::net::lookup_host((bare, 0)).await.ok()?.map(|address| address.ip()).collect();
    ceilings.of(host, &addresses)
}

/// Draws into a file.
fn plot(chart: &Chart, path: &Path) -> Result<(), Failure> {
    let svg = chart.to_svg().map_err(|error| Failure::internal(error.to_string()))?;
    fs::write(path, svg).map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))
}

/// The failure, or that a signal was the reason for it.
fn or_interrupted(failure: Failure, stop: &Stop) -> Failure {
    match stop.exit_code() {
        Some(code) => Failure { code, message: "interrupted".into() },
        None => failure,
    }
}
