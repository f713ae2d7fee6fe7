//! What Alibaba Cloud's driver wants to be told of a mount beside the client's own counters: four small files in the volume's directory of
//! metrics (pkg/mounter/proxy/server/metrics.go there). Invariant: a directory that is gone or full costs a line in the log and nothing else.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Names of files, and how often at most the driver lets a number count.
const RETRIES: &str = "mount_retry_count";
const STATUS: &str = "mount_point_status";
const REASON: &str = "last_fuse_client_exit_reason";
const MOST: u32 = 999;

/// See the module.
#[derive(Debug)]
pub(super) struct Watched {
    /// None: nobody looks.
    directory: Option<PathBuf>,
    retries: u32,
}

impl Watched {
    pub fn new(directory: &str) -> Self {
        let directory = (!directory.is_empty()).then(|| PathBuf::from(directory));
        if let Some(directory) = &directory
            && let Err(error) = fs::create_dir_all(directory)
        {
            tracing::warn!(directory = %directory.display(), %error, "the driver's directory of metrics cannot be made");
        }
        Self { directory, retries: 0 }
    }

    /// It is tried once more.
    pub fn on_retry(&mut self) {
        self.retries = (self.retries + 1).min(MOST);
    }

    /// It is mounted, and answers.
    pub fn on_mounted(&self) {
        self.write(RETRIES, &self.retries.to_string());
        self.write(STATUS, "0");
    }

    /// It could not be mounted, or its daemon died.
    pub fn on_failed(&self, reason: &str) {
        self.write(RETRIES, &self.retries.to_string());
        self.write(REASON, &format!("{}:: {reason}", time(SystemTime::now())));
        self.write(STATUS, "1");
    }

    /// Nobody is told any more.
    pub fn on_end(&self) {
        for name in [RETRIES, STATUS, REASON] {
            if let Some(directory) = &self.directory {
                let _ = fs::remove_file(directory.join(name));
            }
        }
    }

    fn write(&self, name: &str, text: &str) {
        if let Some(directory) = &self.directory
            && let Err(error) = fs::write(directory.join(name), text)
        {
            tracing::warn!(file = %directory.join(name).display(), %error, "a metric of the driver cannot be written");
        }
    }
}

/// RFC 3339 in UTC.
fn time(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years of 365.2425 days that begin in March, counted from the year 0 (Howard Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_written_as_the_driver_writes_it() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_893_455_999, "2029-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn the_files_say_how_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        let mut watched = Watched::new(path.to_str().unwrap());
        let read = |name| fs::read_to_string(path.join(name)).unwrap_or_default();
        watched.on_failed("no bucket");
        assert_eq!((read(STATUS).as_str(), read(REASON).ends_with("Z:: no bucket")), ("1", true));
        watched.on_retry();
        watched.on_mounted();
        assert_eq!((read(RETRIES).as_str(), read(STATUS).as_str()), ("1", "0"));
        watched.on_end();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        Watched::new("").on_mounted();
    }
}
