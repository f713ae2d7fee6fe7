//! `windlass doctor`: looks at everything that a mount needs, from the kernel to each permission in the bucket, and says of each in one line
//! what it found and how it is put right. It changes nothing, unless it is told to try writes. Invariant: one thing that fails keeps the others
//! from being looked at only where they could not be.

mod bucket;
mod disk;
mod machine;
mod network;

use std::ffi::OsString;
use std::time::Duration;

use super::Failure;
use super::flags::PlaceFlags;
use super::remote::runtime;
use crate::config::Place;

/// Look for what would keep a mount from working, and how it is put right.
///
/// Without SOURCE only this machine is looked at. For example: windlass doctor s3://bucket --region eu-central-1
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket[/prefix], oss://bucket[/prefix], or bucket[:/prefix] together with --endpoint.
    #[arg(value_name = "SOURCE")]
    source: Option<OsString>,
    /// Try what writes too: an object and an upload under a random name, which are removed again.
    #[arg(long)]
    write_check: bool,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// TOML file with options under their names.
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    #[command(flatten)]
    flags: PlaceFlags,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Ok,
    /// A mount works, though slower or not in every way.
    Warn,
    Fail,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
struct Finding {
    level: Level,
    what: &'static str,
    detail: String,
    /// How it is put right.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
    /// What the program ends with when this is the first that fails.
    #[serde(skip)]
    code: u8,
}

impl Finding {
    fn ok(what: &'static str, detail: impl Into<String>) -> Self {
        Self { level: Level::Ok, what, detail: detail.into(), fix: None, code: 0 }
    }

    fn warn(what: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warn, what, detail: detail.into(), fix: Some(fix.into()), code: 0 }
    }

    fn fail(code: u8, what: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Fail, what, detail: detail.into(), fix: Some(fix.into()), code }
    }

    /// What another check of this program refuses: what it is of, if that is one word, the reason and the fix, with colons between.
    fn of(what: &'static str, checked: Result<(), Failure>, good: &str) -> Self {
        let Err(Failure { code, message }) = checked else { return Self::ok(what, good) };
        let subject = message.split_once(": ").map_or(0, |(first, _)| if first.contains(' ') { 0 } else { first.len() + 2 });
        match message[subject..].split_once(": ") {
            Some((reason, fix)) => Self::fail(code, what, format!("{}{reason}", &message[..subject]), fix),
            None => Self { fix: None, ..Self::fail(code, what, message, "") },
        }
    }

    fn line(&self) -> String {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        };
        let fix = self.fix.as_ref().map_or_else(String::new, |fix| format!("; {fix}"));
        format!("{level:<5} {:<14} {}{fix}\n", self.what, self.detail)
    }
}

/// Who hears of each thing as soon as it is known.
struct Report {
    json: bool,
    first: Option<u8>,
}

impl Report {
    fn add(&mut self, finding: &Finding) -> Result<(), Failure> {
        if finding.level == Level::Fail {
            self.first.get_or_insert(finding.code);
        }
        let line = if self.json {
            serde_json::to_string(finding).map(|json| format!("{json}\n")).map_err(|error| Failure::internal(error.to_string()))?
        } else {
            finding.line()
        };
        super::print(line.as_bytes())
    }

    fn add_all(&mut self, findings: impl IntoIterator<Item = Finding>) -> Result<(), Failure> {
        findings.into_iter().try_for_each(|finding| self.add(&finding))
    }
}

/// Looks and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut report = Report { json: args.json, first: None };
    let input = |source: &OsString| args.flags.input(args.config.as_deref(), vec![source.clone()]);
    let place = args.source.as_ref().map(|source| Place::gather(&input(source))).transpose()?;
    report.add_all(machine::look())?;
    if let Some(place) = &place {
        report.add_all(disk::look(place))?;
        let runtime = runtime()?;
        let looked = runtime.block_on(async {
            let is_reached = network::look(place, &mut report).await?;
            if is_reached { bucket::look(place, args.write_check, &mut report).await } else { Ok(()) }
        });
        // A resolver that hangs is not waited for.
        runtime.shutdown_timeout(Duration::ZERO);
        looked?;
    }
    // Everything has been said.
    report.first.map_or(Ok(()), |code| Err(Failure { code, message: String::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_check_says_becomes_a_finding_with_its_fix() {
        for (message, detail, fix) in [
            ("/dev/fuse: this kernel has none: run modprobe fuse", "/dev/fuse: this kernel has none", Some("run modprobe fuse")),
            ("fusermount3 is missing: install fuse3", "fusermount3 is missing", Some("install fuse3")),
            ("root cannot mount: start it so, or pass it: /dev/fd/N", "root cannot mount", Some("start it so, or pass it: /dev/fd/N")),
            ("/dev/fuse: odd", "/dev/fuse: odd", None),
        ] {
            let finding = Finding::of("device", Err(Failure::usage(message)), "good");
            assert_eq!((finding.detail.as_str(), finding.fix.as_deref(), finding.code), (detail, fix, 2), "{message}");
        }
        assert_eq!(Finding::of("device", Ok(()), "good").line(), "ok    device         good\n");
    }
}
