//! The fio jobs that ship with us, and what they become for another directory, size and time. Pure. Invariant: what is run is the file of
//! fio-jobs/ with numbers and paths changed, and nothing else.

use std::path::Path;
use std::time::Duration;

use crate::units::ByteSize;

/// A job file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub name: &'static str,
    text: &'static str,
}

macro_rules! jobs {
    ($($name:literal)+) => { &[$(Job { name: $name, text: include_str!(concat!("../../fio-jobs/", $name, ".fio")) }),+] };
}

/// All of them, in the order in which each finds what those before it wrote.
pub const JOBS: &[Job] = jobs![
    "sequential-write"
    "sequential"
    "sequential-buffered"
    "mmap"
    "second-read"
    "interleaved"
    "strided"
    "random-4k"
    "random-128k"
    "random-4m"
    "sequential-write-4-jobs"
    "sequential-4-jobs"
    "small-files-write"
    "small-files"
    "random-write"
];

/// Where the files say that the mount is.
const PLACE: &str = "/mnt/oss";

/// How much, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of each large file, and of all small files together.
    pub size: ByteSize,
    /// Of jobs that run for a time.
    pub time: Duration,
    /// After so long every other one ends too.
    pub most_time: Duration,
}

impl Job {
    /// The job of that name.
    pub fn find(name: &str) -> Option<Self> {
        JOBS.iter().copied().find(|job| job.name == name.strip_suffix(".fio").unwrap_or(name))
    }

    /// What it finds out.
    pub fn question(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }

    fn lines(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    }

    fn value(&self, name: &str) -> Option<&'static str> {
        self.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    fn number(&self, name: &str) -> u64 {
        self.value(name).and_then(|text| text.parse().ok()).unwrap_or(1)
    }

    /// The directory below the mount that it works in.
    pub fn folder(&self) -> &'static str {
        self.value("directory").and_then(|path| path.strip_prefix(PLACE)).unwrap_or_default().trim_start_matches('/')
    }

    /// Whether it writes the files of its folder.
    pub fn writes(&self) -> bool {
        self.lines().any(|line| line.starts_with("rw=") && line.contains("write"))
    }

    /// The job that writes what this one reads.
    pub fn writer(&self) -> Option<Self> {
        JOBS.iter().copied().find(|job| job.writes() && job.folder() == self.folder())
    }

    /// Its parts, which run one after the other.
    pub fn sections(&self) -> Vec<&'static str> {
        let names = self.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
        names.filter(|name| *name != "global").collect()
    }

    /// Room that it needs when it writes.
    pub fn bytes(&self, limits: &Limits) -> u64 {
        match self.size("filesize") {
            Some(file) => file * self.files(limits) * self.number("numjobs"),
            None => self.size("size").map_or(0, |own| limits.size.as_u64().min(own)) * self.number("numjobs"),
        }
    }

    fn size(&self, name: &str) -> Option<u64> {
        self.value(name).and_then(|text| text.parse::<ByteSize>().ok()).map(ByteSize::as_u64)
    }

    /// Small files of each of its threads.
    fn files(&self, limits: &Limits) -> u64 {
        let of_one = self.size("filesize").unwrap_or(1) * self.number("numjobs");
        (limits.size.as_u64() / of_one).clamp(1, self.number("nrfiles"))
    }

    /// The file for `dir` within `limits`.
    pub fn adapted(&self, dir: &Path, limits: &Limits) -> String {
        let is_timed = self.lines().any(|line| line == "time_based");
        let mut text = String::new();
        for line in self.lines() {
            text += &self.line(line, dir, limits);
            text.push('\n');
            if line == "[global]" && !is_timed {
                text += &format!("runtime={}\n", limits.most_time.as_secs());
            }
        }
        text
    }

    fn line(&self, line: &str, dir: &Path, limits: &Limits) -> String {
        let Some((name, value)) = line.split_once('=') else { return line.to_owned() };
        let size = value.parse::<ByteSize>().ok().map(ByteSize::as_u64);
        match (name, size) {
            // fio takes a colon as the beginning of the next directory.
            ("directory", _) => format!("directory={}", dir.join(self.folder()).display().to_string().replace(':', "\\:")),
            ("size", Some(own)) => format!("size={}", limits.size.as_u64().min(own)),
            // As large a part of the file as before.
            ("io_size", Some(part)) => {
                let own = self.size("size").unwrap_or(part).max(1);
                format!("io_size={}", (u128::from(part) * u128::from(limits.size.as_u64().min(own)) / u128::from(own)).max(1))
            }
            ("nrfiles", _) if self.size("filesize").is_some() => format!("nrfiles={}", self.files(limits)),
            ("runtime", _) => format!("runtime={}", limits.time.as_secs()),
            _ => line.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    fn limits(size: ByteSize) -> Limits {
        Limits { size, time: Duration::from_secs(3), most_time: Duration::from_secs(60) }
    }

    fn job(name: &str) -> Job {
        Job::find(name).unwrap()
    }

    #[test]
    fn every_file_of_the_folder_is_there_and_asks_a_question() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fio-jobs");
        let files: BTreeSet<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(files, JOBS.iter().map(|job| format!("{}.fio", job.name)).collect());
        for job in JOBS {
            assert!(job.question().contains('?') && !job.folder().is_empty() && !job.sections().is_empty(), "{}", job.name);
        }
        assert_eq!(Job::find("strided.fio"), Job::find("strided"));
        assert_eq!(Job::find("sideways"), None);
    }

    #[test]
    fn what_a_job_reads_is_written_by_one_before_it() {
        for (at, job) in JOBS.iter().enumerate() {
            let writer = job.writer().unwrap();
            let written_at = JOBS.iter().position(|job| *job == writer).unwrap();
            assert!(written_at < at || job.writes(), "{} reads what {} writes", job.name, writer.name);
        }
        assert_eq!(job("mmap").writer(), Some(job("sequential-write")));
        assert_eq!(job("random-write").writer(), Some(job("random-write")));
    }

    #[test]
    fn directory_size_and_time_are_those_asked_for() {
        let dir = Path::new("/data/odd:name");
        let text = job("sequential-write").adapted(dir, &limits(ByteSize::gib(1)));
        for line in ["directory=/data/odd\\:name/fio_direct_write", "size=1073741824", "runtime=60", "bs=1M", "[file-100G]"] {
            assert!(text.lines().any(|said| said == line), "{line} is missing in\n{text}");
        }
        let text = job("random-4k").adapted(dir, &limits(ByteSize::gib(1)));
        assert!(text.contains("runtime=3\n") && !text.contains("runtime=60") && text.contains("time_based"), "{text}");
        let text = job("interleaved").adapted(dir, &limits(ByteSize::gib(1)));
        assert!(text.contains("\nsize=25%\n") && text.contains("offset_increment=25%"), "{text}");
        let text = job("random-write").adapted(dir, &limits(ByteSize::mib(256)));
        assert!(text.contains("\nsize=268435456\n") && text.contains("\nio_size=33554432\n"), "{text}");
    }

    #[test]
    fn the_whole_size_gives_the_files_as_they_are() {
        for job in JOBS {
            let text = job.adapted(Path::new("/mnt/oss"), &Limits { time: Duration::from_secs(30), ..limits(ByteSize::gib(100)) });
            let own: Vec<&str> = job.lines().collect();
            let same: Vec<&str> = text.lines().filter(|line| *line != "runtime=60").collect();
            for (own, said) in own.iter().zip(&same) {
                let size = |line: &str| line.split_once('=').and_then(|(_, text)| text.parse::<ByteSize>().ok());
                assert!(own == said || own.contains("size=") && size(own) == size(said), "{}: {own} became {said}", job.name);
            }
            assert_eq!(own.len(), same.len());
        }
    }

    #[test]
    fn room_is_what_the_jobs_write() {
        let all = |size| {
            ["sequential-write", "sequential-write-4-jobs", "small-files-write", "random-write"]
                .map(|name| job(name).bytes(&limits(size)) >> 20)
        };
        assert_eq!(all(ByteSize::gib(100)), [100 << 10, 400 << 10, 100_096 / 8, 1024]);
        assert_eq!(all(ByteSize::gib(1)), [1024, 4096, 1024, 1024]);
        assert_eq!(all(ByteSize::mib(1)), [1, 4, 16, 1]);
        assert_eq!(job("random-4k").bytes(&limits(ByteSize::gib(1))), 0);
    }
}
