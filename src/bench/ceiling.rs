//! What the network between this machine and another can carry, as `bench net` found it, in a file that the other benches read. Invariant: a
//! file that is missing or damaged is as good as none.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The latest measurement of one host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    pub bytes_per_second: f64,
    pub streams: usize,
    pub measured_unix_seconds: u64,
}

/// Those that are known, by the name or address of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ceilings(BTreeMap<String, Ceiling>);

/// Where they are kept, after the XDG base directory specification; none without a home.
pub fn state_file(environment: &[(String, String)]) -> Option<PathBuf> {
    // A path that is relative is to be ignored, says the specification.
    let directory =
        |name: &str| environment.iter().find(|(n, _)| n == name).map(|(_, path)| PathBuf::from(path)).filter(|path| path.is_absolute());
    let state = directory("XDG_STATE_HOME").or_else(|| Some(directory("HOME")?.join(".local/state")))?;
    Some(state.join("windlass/net.json"))
}

impl Ceilings {
    /// Reads those in the file that were measured since `boot`, in Unix seconds: a machine that was started again may be another one, at another
    /// line, with the same home.
    pub fn load(path: &Path, boot: u64) -> Self {
        let mut ceilings: Self = fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        ceilings.0.retain(|_, ceiling| ceiling.measured_unix_seconds >= boot);
        ceilings
    }

    /// Writes them all, so that a reader sees the old file or the new one.
    ///
    /// # Errors
    /// What the disk answers.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)?;
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.persist(path).map_err(|error| error.error).map(drop)
    }

    /// That of a host which is known by its name or by one of its addresses.
    pub fn of(&self, host: &str, addresses: &[IpAddr]) -> Option<Ceiling> {
        let named = self.0.get(&plain(host));
        named.or_else(|| addresses.iter().find_map(|address| self.0.get(&address.to_canonical().to_string()))).copied()
    }

    /// Takes the place of what was known of the host.
    pub fn set(&mut self, host: &str, address: IpAddr, ceiling: Ceiling) {
        for name in [plain(host), address.to_canonical().to_string()] {
            self.0.insert(name, ceiling);
        }
    }
}

/// When this machine was started, in Unix seconds (proc_stat(5)); 0 when that is not known.
pub fn boot() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok()).unwrap_or(0)
}

/// As a host is written in URLs, without brackets.
fn plain(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn the_file_is_where_state_belongs() {
        for (pairs, path) in [
            (&[("HOME", "/home/me")][..], Some("/home/me/.local/state/windlass/net.json")),
            (&[("XDG_STATE_HOME", "/state"), ("HOME", "/home/me")], Some("/state/windlass/net.json")),
            (&[("XDG_STATE_HOME", "state"), ("HOME", "/home/me")], Some("/home/me/.local/state/windlass/net.json")),
            (&[("HOME", "")], None),
            (&[], None),
        ] {
            assert_eq!(state_file(&environment(pairs)), path.map(PathBuf::from), "{pairs:?}");
        }
    }

    #[test]
    fn what_was_saved_is_found_by_name_and_by_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/net.json");
        assert_eq!(Ceilings::load(&path, 0), Ceilings::default());
        let ceiling = Ceiling { bytes_per_second: 11.5e9, streams: 32, measured_unix_seconds: 7 };
        let mut ceilings = Ceilings::default();
        ceilings.set("Worker", "::ffff:10.0.0.7".parse().unwrap(), ceiling);
        ceilings.set("[::1]", "::1".parse().unwrap(), Ceiling { streams: 1, ..ceiling });
        ceilings.save(&path).unwrap();
        let found = Ceilings::load(&path, 0);
        let address = |text: &str| [text.parse().unwrap()];
        assert_eq!(found.of("worker", &[]), Some(ceiling));
        assert_eq!(found.of("another.name", &address("10.0.0.7")), Some(ceiling));
        assert_eq!(found.of("::1", &[]).map(|ceiling| ceiling.streams), Some(1));
        assert_eq!(found.of("another.name", &address("10.0.0.8")), None);
        fs::write(&path, "{").unwrap();
        assert_eq!(Ceilings::load(&path, 0), Ceilings::default());
    }

    #[test]
    fn what_was_measured_before_the_boot_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.json");
        let mut ceilings = Ceilings::default();
        let ceiling = Ceiling { bytes_per_second: 1e9, streams: 32, measured_unix_seconds: 7 };
        ceilings.set("worker", "10.0.0.7".parse().unwrap(), ceiling);
        ceilings.save(&path).unwrap();
        assert_eq!(Ceilings::load(&path, 7).of("worker", &[]), Some(ceiling));
        assert_eq!(Ceilings::load(&path, 8), Ceilings::default());
        assert!(boot() > 0, "proc(5) is mounted where tests run");
    }
}
