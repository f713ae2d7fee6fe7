//! The way to the store: name, connection, TLS, the two clocks. Nothing is signed here. Invariant: the first step that fails is named, and
//! those behind it are not taken.

use std::io;
use std::time::{Duration, SystemTime};

use super::{Finding, Report};
use crate::cli::Failure;
use crate::config::Place;
use crate::mount;
use crate::store::{Silence, Spoken, Way};

/// Stores refuse signatures of clocks that are off by more (S3 15 minutes), and from here on somebody should look.
const SKEW_REFUSED: Duration = Duration::from_secs(15 * 60);
const SKEW_ODD: Duration = Duration::from_secs(60);

const ENDPOINT: &str = "check --endpoint (name, port, http or https)";

/// Walks the way. True: something answers at its end.
pub(super) async fn look(place: &Place, report: &mut Report) -> Result<bool, Failure> {
    let way = match Way::of(&place.store).await {
        Ok(way) => way,
        Err(error) => {
            report.add(&Finding::fail(2, "endpoint", error.reason().to_string(), "set --endpoint, --region or both"))?;
            return Ok(false);
        }
    };
    let (scheme, region) = (if way.is_https() { "https" } else { "http" }, way.region.as_deref().unwrap_or("none"));
    report.add(&Finding::ok("endpoint", format!("{scheme}://{}:{}, signed for region {region}", way.host(), way.port())))?;
    if way.is_proxied() {
        report.add(&Finding::ok("proxy", "requests go through the proxy of the environment"))?;
    } else if !connects(&way, report).await? {
        return Ok(false);
    }
    match way.speak().await {
        Ok(spoken) => {
            report.add_all(answered(&way, spoken, SystemTime::now()))?;
            Ok(true)
        }
        Err(silence) => {
            report.add(&silent(&way, &silence))?;
            Ok(false)
        }
    }
}

async fn connects(way: &Way, report: &mut Report) -> Result<bool, Failure> {
    let addresses = match way.resolve().await {
        Ok(addresses) => addresses,
        Err(error) => {
            let detail = format!("{} cannot be looked up: {}", way.host(), timely(&error));
            report.add(&Finding::fail(4, "DNS", detail, format!("{ENDPOINT}, and the resolver (/etc/resolv.conf)")))?;
            return Ok(false);
        }
    };
    let shown: Vec<_> = addresses.iter().take(3).map(|address| address.ip().to_string()).collect();
    report.add(&Finding::ok("DNS", format!("{} is {}", way.host(), shown.join(", "))))?;
    match way.connect(&addresses).await {
        Ok((address, took)) => {
            report.add(&Finding::ok("TCP", format!("connected to {address} in {:.1} ms", took.as_secs_f64() * 1e3)))?;
            Ok(true)
        }
        Err(error) => {
            let fix = if error.kind() == io::ErrorKind::ConnectionRefused { "nobody listens there" } else { "a firewall may be between" };
            let detail = format!("cannot connect to {}:{}: {}", way.host(), way.port(), timely(&error));
            report.add(&Finding::fail(4, "TCP", detail, format!("{fix}: {ENDPOINT}, and the network")))?;
            Ok(false)
        }
    }
}

fn timely(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut && error.get_ref().is_none() { "no answer in time".into() } else { error.to_string() }
}

fn silent(way: &Way, silence: &Silence) -> Finding {
    let what = if way.is_https() { "TLS" } else { "HTTP" };
    let fix = match silence {
        Silence::Untrusted(_) => mount::UNTRUSTED,
        Silence::NotTls => mount::NOT_TLS,
        Silence::Other(_) => ENDPOINT,
    };
    Finding::fail(4, what, format!("{}:{}: {silence}", way.host(), way.port()), fix)
}

fn answered(way: &Way, spoken: Spoken, now: SystemTime) -> Vec<Finding> {
    let took = spoken.took.as_secs_f64() * 1e3;
    let spoke = Finding::ok(if way.is_https() { "TLS" } else { "HTTP" }, format!("it answers (status {} in {took:.1} ms)", spoken.status));
    vec![spoke, clock(spoken.date, now)]
}

/// Their clock and ours.
fn clock(date: Option<SystemTime>, now: SystemTime) -> Finding {
    let Some(date) = date else { return Finding::ok("clock", "the store does not tell its time") };
    let (off, ours) = match now.duration_since(date) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    let detail = format!("ours is {} s {ours} that of the store", off.as_secs());
    match off {
        off if off > SKEW_REFUSED => {
            Finding::fail(3, "clock", detail, "set it (timedatectl set-ntp true): signatures of such a time are refused")
        }
        off if off > SKEW_ODD => Finding::warn("clock", detail, "set it (timedatectl set-ntp true) before signatures are refused"),
        _ => Finding::ok("clock", "ours and that of the store agree"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn clocks_agree_are_odd_or_are_refused() {
        let now = SystemTime::now();
        let at = |seconds: u64| Some(now - Duration::from_secs(seconds));
        for (date, level) in [(at(0), Level::Ok), (at(30), Level::Ok), (at(300), Level::Warn), (at(3600), Level::Fail), (None, Level::Ok)] {
            assert_eq!(clock(date, now).level, level, "{date:?}");
        }
        let behind = clock(Some(now + Duration::from_secs(3600)), now);
        assert!(behind.level == Level::Fail && behind.detail.contains("behind"), "{behind:?}");
    }
}
