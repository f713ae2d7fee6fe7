//! `windlass warm`: has objects brought to a disk before anybody reads them, by the daemon of a mount or, without one, by this process. It
//! reads the list, sorts it by who does the work, and shows how far that is. Invariant: whatever fails is named, and the exit code says so.

mod alone;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;

use super::Failure;
use super::flags::DiskFlags;
use super::locate::{Located, locate_among, mounts, refusal};
use super::progress::{Progress, Unit};
use crate::admin::{self, Command, Done, InnerPath, Warmed, Warming};
use crate::config::bucket_len;
use crate::mountinfo::Device;
use crate::units::ByteSize;

/// Bring files to the disk that mounts read from, before anybody reads them.
///
/// PATHs lie in a mount with --read-mode cached or hybrid: its daemon does it, and what others read at the same time is fetched once.
/// SOURCEs (s3://bucket/path, oss://bucket/path) are brought into --spill-dir without a mount. What is there already is not fetched again,
/// so an interrupted run can be started anew.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or directories: in mounts, or in buckets.
    #[arg(value_name = "SOURCE-or-PATH", required_unless_present = "from_file")]
    places: Vec<OsString>,
    /// More of them, one a line; - is standard input.
    #[arg(long, value_name = "LIST")]
    from_file: Option<OsString>,
    /// Only what listings tell: names, sizes and times, into the memory of a mount.
    #[arg(long)]
    metadata_only: bool,
    /// Stop before the object that would make it more than that, what was there already included.
    #[arg(long, value_name = "SIZE")]
    max_bytes: Option<ByteSize>,
    /// Objects at a time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// TOML file with options under their names.
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    #[command(flatten)]
    flags: DiskFlags,
}

/// Bytes of paths in one request; percent-encoded they may be three times as long, and a line holds 64 KiB.
const BATCH_BYTES: usize = 16 << 10;

/// How often a line tells how far it is where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Brings all of it, and says how much that was.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (sources, paths): (Vec<_>, Vec<_>) = places(args)?.into_iter().partition(|place| is_source(place));
    let mut all = All::new(args);
    if !paths.is_empty() {
        if let Some((flag, _)) = args.flags.0.first() {
            return Err(Failure::usage(format!("--{flag} goes with a SOURCE: a mount has its own options")));
        }
        for (_, (mount, inner)) in by_mount(&paths)? {
            all.through(&mount, inner)?;
        }
    }
    if !sources.is_empty() && args.metadata_only {
        return Err(Failure::usage("--metadata-only fills the memory of a mount: name a path in one instead of a SOURCE"));
    }
    for (bucket, inner) in by_bucket(&sources)? {
        all.alone(&bucket, inner)?;
    }
    all.finish()
}

/// What was named, and what is in the list.
fn places(args: &Args) -> Result<Vec<OsString>, Failure> {
    let mut places = args.places.clone();
    if let Some(file) = &args.from_file {
        let failed = |error: std::io::Error| Failure::usage(format!("--from-file {}: {error}", Path::new(file).display()));
        let mut bytes = Vec::new();
        if file == "-" {
            std::io::stdin().read_to_end(&mut bytes).map_err(failed)?;
        } else {
            bytes = fs::read(file).map_err(failed)?;
        }
        let lines = bytes.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        places.extend(lines.filter(|line| !line.is_empty()).map(|line| OsString::from_vec(line.to_vec())));
    }
    Ok(places)
}

fn is_source(place: &OsStr) -> bool {
    ["s3://", "oss://"].iter().any(|scheme| place.as_bytes().starts_with(scheme.as_bytes()))
}

/// The paths inside each mount, under its device.
fn by_mount(paths: &[OsString]) -> Result<BTreeMap<Device, (Located, Vec<InnerPath>)>, Failure> {
    let table = mounts()?;
    let mut found = BTreeMap::new();
    for path in paths {
        let located = locate_among(&table, Path::new(path))?;
        let (_, inner) = found.entry(located.mount.device).or_insert_with(|| (located.clone(), Vec::new()));
        inner.push(located.inner);
    }
    Ok(found)
}

/// The paths inside each bucket, under what is before them.
fn by_bucket(sources: &[OsString]) -> Result<BTreeMap<String, Vec<InnerPath>>, Failure> {
    let mut found: BTreeMap<String, Vec<InnerPath>> = BTreeMap::new();
    for source in sources {
        let bytes = source.as_bytes();
        let start = bytes.iter().position(|&b| b == b':').map_or(0, |colon| colon + "://".len());
        let end = start + bucket_len(&bytes[start..]);
        let bucket = String::from_utf8(bytes[..end].to_vec())
            .map_err(|_| Failure::usage(format!("{}: no bucket has that name", source.display())))?;
        found.entry(bucket).or_default().push(InnerPath::from(&bytes[end..]));
    }
    Ok(found)
}

/// Everything that one command line warms.
struct All<'a> {
    args: &'a Args,
    sum: Warmed,
    progress: Progress,
    reported: Option<Instant>,
}

impl<'a> All<'a> {
    fn new(args: &'a Args) -> Self {
        let progress = Progress::growing("warming", unit(args));
        Self { args, sum: Warmed::default(), progress, reported: None }
    }

    /// What is still allowed; none when the bound is reached.
    fn how(&self) -> Option<Warming> {
        let max_bytes = self.args.max_bytes.map(|most| most.as_u64().saturating_sub(self.sum.progress.found_bytes));
        let how = Warming { metadata_only: self.args.metadata_only, max_bytes, parallel: self.args.parallel.into() };
        (!self.sum.is_full).then_some(how)
    }

    /// Has the daemon of a mount do it.
    fn through(&mut self, mount: &Located, inner: Vec<InnerPath>) -> Result<(), Failure> {
        let mut client = mount.connect()?;
        for paths in batches(inner) {
            let Some(how) = self.how() else { return Ok(()) };
            let answer = client.ask(&Command::Warm { paths, how }, |progress| self.on_progress(progress));
            match answer.map_err(|error| refusal(&mount.mount.mount_point, &error))? {
                Done::Warmed(warmed) => self.add(warmed),
                _ => return Err(Failure::internal("the daemon answered something else")),
            }
        }
        Ok(())
    }

    /// Does it in this process.
    fn alone(&mut self, bucket: &str, inner: Vec<InnerPath>) -> Result<(), Failure> {
        let Some(how) = self.how() else { return Ok(()) };
        let args = self.args;
        let warmed = alone::warm(bucket, args.config.as_deref(), &args.flags, inner, how, |progress| self.on_progress(progress))?;
        self.add(warmed);
        Ok(())
    }

    fn on_progress(&mut self, progress: admin::Progress) {
        let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        if !is_terminal && self.reported.get_or_insert_with(Instant::now).elapsed() < LINE_EVERY {
            return;
        }
        self.reported = Some(Instant::now());
        let (before, unit) = (&self.sum.progress, unit(self.args));
        match unit {
            Unit::Bytes => self.progress.report(before.bytes + progress.bytes, before.found_bytes + progress.found_bytes, unit),
            Unit::Files => self.progress.report(before.objects + progress.objects, before.found_objects + progress.found_objects, unit),
        }
    }

    fn add(&mut self, more: Warmed) {
        let (sum, new) = (&mut self.sum.progress, more.progress);
        sum.found_objects += new.found_objects;
        sum.found_bytes += new.found_bytes;
        sum.objects += new.objects;
        sum.bytes += new.bytes;
        sum.there_bytes += new.there_bytes;
        sum.failed_objects += new.failed_objects;
        self.sum.failures.extend(more.failures);
        self.sum.is_full |= more.is_full;
    }

    /// Says what came of it.
    fn finish(self) -> Result<(), Failure> {
        let All { args, sum, progress, .. } = self;
        progress.clear();
        for failure in &sum.failures {
            eprintln!("windlass: {failure}");
        }
        super::print(format!("windlass: {}\n", summary(&sum, args)).as_bytes())?;
        match sum.progress.failed_objects {
            0 => Ok(()),
            failed => Err(Failure::internal(format!("{failed} of what was asked for could not be warmed"))),
        }
    }
}

fn unit(args: &Args) -> Unit {
    if args.metadata_only { Unit::Files } else { Unit::Bytes }
}

fn summary(sum: &Warmed, args: &Args) -> String {
    let progress = &sum.progress;
    let objects = if progress.objects == 1 { "1 object".to_owned() } else { format!("{} objects", progress.objects) };
    let full = if sum.is_full { "; stopped at --max-bytes" } else { "" };
    if args.metadata_only {
        return format!("{objects} known{full}");
    }
    format!("{objects}, {} on the disk, of which {} were there{full}", HumanBytes(progress.bytes), HumanBytes(progress.there_bytes))
}

/// Paths in portions that fit into a request.
fn batches(paths: Vec<InnerPath>) -> Vec<Vec<InnerPath>> {
    let mut batches: Vec<Vec<InnerPath>> = Vec::new();
    let mut room = 0;
    for path in paths {
        let len = path.as_bytes().len() + 1;
        match batches.last_mut().filter(|_| len <= room) {
            Some(batch) => batch.push(path),
            None => {
                batches.push(vec![path]);
                room = BATCH_BYTES;
            }
        }
        room = room.saturating_sub(len);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_sorted_by_their_bucket() {
        let sources = ["s3://a/x/y", "oss://a/x", "s3://b", "s3://a/"].map(OsString::from);
        let found = by_bucket(&sources).unwrap();
        let shown: Vec<_> =
            found.iter().map(|(bucket, inner)| (bucket.as_str(), inner.iter().map(InnerPath::as_bytes).collect())).collect();
        let expected: Vec<(&str, Vec<&[u8]>)> = vec![("oss://a", vec![b"/x"]), ("s3://a", vec![b"/x/y", b"/"]), ("s3://b", vec![b""])];
        assert_eq!(shown, expected);
        assert!(is_source(OsStr::new("s3://a")) && !is_source(OsStr::new("s3:/a")) && !is_source(OsStr::new("/mnt/s3://a")));
    }

    #[test]
    fn a_long_list_goes_in_requests_that_fit_on_a_line() {
        let paths: Vec<InnerPath> = (0..5000).map(|n| InnerPath::from(format!("ä/{n:0100}").as_bytes())).collect();
        let batches = batches(paths.clone());
        assert!(
            batches.len() > 5
                && batches.iter().all(|batch| batch.iter().map(|path| 3 * path.as_bytes().len() + 3).sum::<usize>() < 60 << 10)
        );
        assert_eq!(batches.concat(), paths);
        assert!(super::batches(Vec::new()).is_empty());
        let long = InnerPath::from(&[b'x'; 20_000][..]);
        assert_eq!(super::batches(vec![long.clone(), long.clone()]).len(), 2);
    }
}
