//! `windlass bench net`: what TCP alone carries from another machine to this one, and the server for it. It reads the words, makes the
//! report and remembers the result for the other benches.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;

use super::super::remote::runtime;
use super::super::{Failure, mount};
use super::{BYTES, MEAN, PEAK, SECONDS, Shape};
use crate::bench::{Ceiling, Ceilings, MOST_STREAMS, Measured, Name, NetError, Report, boot, gbit, measure, seconds, serve, state_file};

/// Measure what TCP alone carries from another machine to this one: the most that any bench of a store there can show.
///
/// The other machine runs: windlass bench net --listen 0.0.0.0:5599. This one then: windlass bench net other-machine:5599. The result is
/// remembered in $XDG_STATE_HOME/windlass or ~/.local/state/windlass, and the benches of a store at that host show their share of it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The other machine, as HOST:PORT.
    #[arg(value_name = "ADDR", required_unless_present = "listen")]
    address: Option<String>,
    /// Be the other side, at this address; port 0 takes one that is free. Whoever can reach it can have it send.
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["address", "streams", "json", "csv"])]
    listen: Option<String>,
    /// Connections side by side.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=MOST_STREAMS as i64))]
    streams: u16,
    /// How long [default: 10, with --listen 3600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    duration: Option<u64>,
    #[command(flatten)]
    shape: Shape,
}

const ADDRESS: Name = Name { shown: "address", key: "address" };
const STREAMS: Name = Name { shown: "streams", key: "streams" };

/// Serves or measures.
pub fn run(args: &Args) -> Result<(), Failure> {
    let time = |default| Duration::from_secs(args.duration.unwrap_or(default));
    runtime()?.block_on(async {
        match (&args.listen, &args.address) {
            (Some(listen), _) => listen_at(listen, time(3600)).await,
            (None, Some(address)) => ask(args, address, time(10)).await,
            (None, None) => Err(Failure::usage("name the other machine, or --listen")),
        }
    })
}

async fn listen_at(address: &str, time: Duration) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::usage(format!("cannot listen at {address}: {error}; write HOST:PORT, such as 0.0.0.0:5599"));
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    super::super::print(format!("listening at {local} for {} s\n", time.as_secs()).as_bytes())?;
    serve(listener, time).await;
    Ok(())
}

async fn ask(args: &Args, address: &str, time: Duration) -> Result<(), Failure> {
    let Some((host, _)) = address.rsplit_once(':') else {
        return Err(Failure::usage(format!("{address}: write HOST:PORT, with the port of windlass bench net --listen")));
    };
    let told = |error: NetError| Failure { code: 4, message: error.to_string() };
    let streams = usize::from(args.streams);
    let Measured { speed, peer } = measure(address, streams, time).await.map_err(told)?;
    remember(host, peer, Ceiling { bytes_per_second: speed.mean(), streams, measured_unix_seconds: now() });
    let report = Report::new("net").fact(ADDRESS, address).fact(STREAMS, streams).fact(BYTES, speed.bytes);
    let report = report.fact(SECONDS, seconds(speed.took)).fact(PEAK, gbit(speed.peak)).fact(MEAN, gbit(speed.mean()));
    args.shape.print(&report)
}

/// For the benches that come after. That there is no place for it makes no difference to this one.
fn remember(host: &str, peer: IpAddr, ceiling: Ceiling) {
    let Some(path) = state_file(&mount::environment()) else { return };
    let mut ceilings = Ceilings::load(&path, boot());
    ceilings.set(host, peer, ceiling);
    if let Err(error) = ceilings.save(&path) {
        eprintln!("windlass: warning: the result cannot be kept in {}: {error}", path.display());
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
