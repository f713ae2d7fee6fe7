//! Counters in files, as the node plugin of Alibaba Cloud's CSI driver reads them: a file for each kind, one line of numbers with a space between,
//! an empty place where there is no number (pkg/metric/fuse_stat_collector.go and pkg/utils/metrics.go of
//! kubernetes-sigs/alibaba-cloud-csi-driver). Invariant: who reads a file sees one look at all its numbers; a directory that is gone or full
//! costs a line in the log and nothing else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::observer::Observer;
use crate::metrics::{Call, Metrics, Operations};

/// How often they are written: a scraper asks every 15 s or more.
const EVERY: Duration = Duration::from_secs(5);

/// Where the driver keeps the directories of its volumes.
const ROOT: &str = "/var/run/ossfs";

/// What the driver writes into such a directory before it mounts: client, kind of store, bucket, volume, mount point.
const INFO: &str = "mount_point_info";

/// What a bucket is taken to hold, as in df.
const ENDLESS: u64 = 1 << 60;
const INODES: u64 = 1 << 40;

/// Where counters are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsDir {
    At(PathBuf),
    /// Into the directory of this mount among those of the driver.
    OfTheDriver,
}

impl MetricsDir {
    /// The directory for what is mounted at `mountpoint`, when there is one.
    pub fn find(&self, mountpoint: &str) -> Option<PathBuf> {
        match self {
            Self::At(path) => Some(path.clone()),
            Self::OfTheDriver => among(Path::new(ROOT), mountpoint),
        }
    }
}

/// The directory below `root` that names this mount point: `HASH/`, or with a pod of its own `POD/VOLUME/`.
fn among(root: &Path, mountpoint: &str) -> Option<PathBuf> {
    let names_it = |directory: &Path| {
        let info = fs::read_to_string(directory.join(INFO)).unwrap_or_default();
        info.lines().next().and_then(|line| line.split(' ').nth(4)).is_some_and(|place| place == mountpoint)
    };
    let first = below(root);
    let second: Vec<_> = first.iter().flat_map(|directory| below(directory)).collect();
    first.into_iter().chain(second).find(|directory| names_it(directory))
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Writes the counters of a mount every few seconds. Dropped, it writes no more.
#[derive(Debug)]
pub struct CounterFiles(JoinHandle<()>);

impl CounterFiles {
    /// Begins with what `observer` sees now.
    pub fn start(directory: PathBuf, observer: Arc<Observer>, runtime: &Handle) -> Self {
        Self(runtime.spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            let mut complained = false;
            loop {
                ticks.tick().await;
                let (directory, observer) = (directory.clone(), Arc::clone(&observer));
                let written = tokio::task::spawn_blocking(move || write(&directory, &observer.metrics).map_err(|error| (directory, error)));
                match written.await {
                    Ok(Err((directory, error))) if !std::mem::replace(&mut complained, true) => {
                        tracing::warn!(directory = %directory.display(), %error, "counters cannot be written for the driver");
                    }
                    Ok(Ok(())) => complained = false,
                    _ => {}
                }
            }
        }))
    }
}

impl Drop for CounterFiles {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn write(directory: &Path, metrics: &Metrics) -> io::Result<()> {
    for (name, numbers) in files(metrics) {
        let line: Vec<_> = numbers.iter().map(|number| number.map_or_else(String::new, |number| number.to_string())).collect();
        let draft = directory.join(format!(".{name}"));
        fs::write(&draft, line.join(" "))?;
        fs::rename(&draft, directory.join(name)).inspect_err(|_| drop(fs::remove_file(&draft)))?;
    }
    Ok(())
}

/// The files and their numbers, in the order in which the driver takes them; none: it is not counted.
fn files(metrics: &Metrics) -> Vec<(&'static str, Vec<Option<u64>>)> {
    let (reads, calls) = (metrics.read_seconds.spread(), &metrics.operations);
    let micros = |seconds: f64| Duration::try_from_secs_f64(seconds).map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    let posix = [
        Call::Mkdir,
        Call::Rmdir,
        Call::Opendir,
        Call::Readdir,
        Call::Write,
        Call::Flush,
        Call::Fsync,
        Call::Release,
        Call::Read,
        Call::Create,
        Call::Open,
        Call::Access,
        Call::Rename,
        Call::Chown,
        Call::Chmod,
        Call::Truncate,
    ];
    let count = |call| Some(if call == Call::Read { reads.count } else { Operations::get(calls, call) });
    vec![
        // Used, available, total.
        ("capacity_counter", vec![Some(0), Some(ENDLESS), Some(ENDLESS)]),
        ("inodes_counter", vec![Some(0), Some(INODES), Some(INODES)]),
        ("throughput_counter", vec![Some(metrics.read_bytes.get()), Some(metrics.written_bytes.get())]),
        ("iops_counter", vec![Some(reads.count), count(Call::Write)]),
        // The driver counts in thousandths of a millisecond. How long a write takes is not measured.
        ("latency_counter", vec![Some(micros(reads.sum_seconds)), None]),
        ("posix_counter", posix.into_iter().map(count).collect()),
        (
            "oss_object_counter",
            vec![
                Some(metrics.put_requests.get() + metrics.copy_requests.get()),
                Some(metrics.get_requests.get() + metrics.list_requests.get()),
                Some(metrics.head_requests.get()),
                Some(metrics.delete_requests.get()),
                // Nothing is posted in a form.
                Some(0),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_found_by_the_mount_point_that_the_driver_wrote_into_it() {
        let root = tempfile::tempdir().unwrap();
        for (directory, info) in [
            ("a1", "ossfs oss data volume-1 /run/fuse.ossfs/a1/globalmount"),
            ("pod-7/volume-2", "ossfs2 oss data volume-2 /var/lib/kubelet/pods/7/mount"),
            ("odd", "nothing"),
        ] {
            let directory = root.path().join(directory);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(INFO), info).unwrap();
        }
        let found = |place| among(root.path(), place).map(|path| path.strip_prefix(root.path()).unwrap().display().to_string());
        assert_eq!(found("/run/fuse.ossfs/a1/globalmount").as_deref(), Some("a1"));
        assert_eq!(found("/var/lib/kubelet/pods/7/mount").as_deref(), Some("pod-7/volume-2"));
        assert_eq!(found("/mnt"), None);
        assert_eq!(MetricsDir::At("/x".into()).find("/mnt"), Some("/x".into()));
    }

    #[test]
    fn the_files_hold_what_the_driver_expects_in_each_place() {
        let dir = tempfile::tempdir().unwrap();
        let metrics = Metrics::default();
        metrics.read_bytes.add(4096);
        metrics.read_seconds.record(Duration::from_millis(2));
        metrics.written_bytes.add(7);
        for call in [Call::Write, Call::Mkdir, Call::Mkdir, Call::Truncate] {
            metrics.operations.count(call);
        }
        metrics.list_requests.add(3);
        write(dir.path(), &metrics).unwrap();
        for (name, line) in [
            ("throughput_counter", "4096 7"),
            ("iops_counter", "1 1"),
            ("latency_counter", "2000 "),
            ("posix_counter", "2 0 0 0 1 0 0 0 1 0 0 0 0 0 0 1"),
            ("oss_object_counter", "0 3 0 0 0"),
            ("inodes_counter", "0 1099511627776 1099511627776"),
        ] {
            assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), line, "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 7, "and no drafts");
        assert!(write(&dir.path().join("gone"), &metrics).is_err());
    }
}
