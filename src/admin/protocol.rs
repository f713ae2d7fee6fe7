//! The words on the line: requests, progress and answers as JSON, one object a line. Pure. Invariant: whatever bytes come, [`read`] gives a
//! command or says in words for people what is wrong with them.

use std::collections::BTreeMap;
use std::fmt;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::metrics::Reading;

/// The version of the protocol. Both ends have it in every request, because a daemon outlives the program that it was started with.
pub(super) const VERSION: u32 = 1;

/// Longest line that is read, either way.
pub(super) const LINE_BYTES: usize = 64 << 10;

/// What a [`Command::Set`] calls the part that a mount has of memory that others have parts of too: no option, and nothing changes where the mount has
/// a `memory-limit` of its own.
pub const MEMORY_SHARE: &str = "memory-share";

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Command {
    /// Forget what is cached about a path, and about everything below it.
    Refresh {
        path: InnerPath,
        #[serde(default)]
        recursive: bool,
    },
    /// What the daemon counts.
    Stats {},
    /// Bring what is at or below the paths to the disk, or what is known of it into memory.
    Warm {
        paths: Vec<InnerPath>,
        #[serde(flatten)]
        how: Warming,
    },
    /// Drop what the disk has of what is at or below a path.
    Evict { path: InnerPath },
    /// Change an option.
    Set { name: String, value: String },
    /// The options that can be changed, with their values.
    Get {},
}

/// How something is warmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warming {
    /// Only what listings tell.
    #[serde(default)]
    pub metadata_only: bool,
    /// Ends before the object that would make it more than that.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// Objects at a time.
    pub parallel: usize,
}

/// How far it has come. Objects and bytes that were found are a part of what there is until all was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub found_objects: u64,
    pub found_bytes: u64,
    /// Done, failed ones not counted.
    pub objects: u64,
    pub bytes: u64,
    /// Of these bytes, those that were on the disk before.
    pub there_bytes: u64,
    pub failed_objects: u64,
}

/// How it ended when it did not fail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// So many names and inodes the kernel was told to ask for again.
    Refreshed {
        kernel_entries: u64,
    },
    Stats(Box<Stats>),
    Warmed(Warmed),
    /// So many bytes are free on the disk.
    Evicted {
        bytes: u64,
    },
    /// Options by name with their values: the one that was changed, or all that can be.
    Options(BTreeMap<String, String>),
}

/// What came of warming.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warmed {
    #[serde(flatten)]
    pub progress: Progress,
    /// The first few that failed, and why.
    pub failures: Vec<String>,
    /// It ended at the bound of bytes, before all was warm.
    pub is_full: bool,
}

/// Everything a daemon counts and holds, by names that say the unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The version of the program that runs.
    pub windlass: String,
    pub pid: u32,
    pub source: String,
    /// The host that data comes from, when the options of the mount name it.
    #[serde(default)]
    pub data_host: Option<String>,
    pub mountpoint: String,
    pub uptime_seconds: f64,
    /// What only grows since the mount began.
    pub counters: BTreeMap<String, Reading>,
    /// What is so now.
    pub gauges: BTreeMap<String, Reading>,
    /// How long things took since the mount began.
    #[serde(default)]
    pub histograms: BTreeMap<String, Reading>,
}

impl Stats {
    /// As one JSON object on a line.
    pub fn to_line(&self) -> Vec<u8> {
        line(self)
    }
}

/// A line of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    Progress(Progress),
    Done(Done),
    Error(String),
}

/// Names below the root of a mount with `/` between them. On the line its bytes are percent-encoded where they are not plain.
#[derive(Clone, PartialEq, Eq)]
pub struct InnerPath(Vec<u8>);

impl InnerPath {
    /// The bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for InnerPath {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Debug for InnerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// What is not written as it is, beside everything that is not ASCII.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

impl Serialize for InnerPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&percent_encode(&self.0, ESCAPED))
    }
}

impl<'de> Deserialize<'de> for InnerPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(Self(percent_decode_str(&text).collect()))
    }
}

/// The envelope of a request.
#[derive(Serialize)]
struct Request<'a> {
    version: u32,
    #[serde(flatten)]
    command: &'a Command,
}

/// A request as a line.
pub(super) fn request(command: &Command) -> Vec<u8> {
    line(&Request { version: VERSION, command })
}

/// A line of an answer.
pub(super) fn line(words: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(words).expect("texts and numbers have no form that JSON lacks");
    line.push(b'\n');
    line
}

/// The command on a line, or what is wrong with it.
pub(super) fn read(line: &[u8]) -> Result<Command, String> {
    #[derive(Deserialize)]
    struct Spoken {
        version: u32,
    }
    let spoken: Spoken = serde_json::from_slice(line).map_err(|error| format!("this is no request: {error}"))?;
    if spoken.version != VERSION {
        return Err(format!("the daemon speaks version {VERSION} of the protocol, not {}", spoken.version));
    }
    serde_json::from_slice(line).map_err(|error| format!("this is no request: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(bytes: &[u8]) -> InnerPath {
        InnerPath::from(bytes)
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        for command in [
            Command::Stats {},
            Command::Refresh { path: path(b"a/b c"), recursive: true },
            Command::Warm { paths: vec![path(b"a"), path(b"\xff")], how: Warming { metadata_only: true, max_bytes: Some(7), parallel: 8 } },
            Command::Evict { path: path(b"") },
            Command::Set { name: "log-level".into(), value: "windlass::reader=debug,warn".into() },
            Command::Get {},
            Command::Refresh { path: path(b"100%/\n\"\\/\xff\xfe/\xc3\xa4"), recursive: false },
        ] {
            let line = request(&command);
            assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1, "one line");
            assert_eq!(read(&line), Ok(command));
        }
        assert_eq!(read(br#"{"version":1,"command":"refresh","path":"a"}"#), Ok(Command::Refresh { path: path(b"a"), recursive: false }));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, words) in [
            (&b""[..], &["no request"][..]),
            (b"\xff\x00", &["no request"]),
            (b"hello", &["no request"]),
            (b"[]", &["no request"]),
            (br#"{"command":"stats"}"#, &["version"]),
            (br#"{"version":2,"command":"stats"}"#, &["version 1", "not 2"]),
            (br#"{"version":1}"#, &["command"]),
            (br#"{"version":1,"command":"explode"}"#, &["explode", "`refresh`", "`stats`"]),
            (br#"{"version":1,"command":"refresh"}"#, &["path"]),
            (br#"{"version":1,"command":"refresh","path":7}"#, &["string"]),
        ] {
            let said = read(line).expect_err("it is wrong");
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }

    #[test]
    fn answers_have_the_form_that_is_documented() {
        let text = |reply: &Reply| String::from_utf8(line(reply)).unwrap();
        assert_eq!(text(&Reply::Error("no".into())), "{\"error\":\"no\"}\n");
        assert_eq!(text(&Reply::Done(Done::Evicted { bytes: 2 })), "{\"done\":{\"evicted\":{\"bytes\":2}}}\n");
        let progress = Progress { found_objects: 9, objects: 1, bytes: 2, ..Progress::default() };
        assert!(text(&Reply::Progress(progress)).starts_with("{\"progress\":{\"found_objects\":9,"));
        assert_eq!(text(&Reply::Done(Done::Refreshed { kernel_entries: 3 })), "{\"done\":{\"refreshed\":{\"kernel_entries\":3}}}\n");
        let stats = Stats { counters: [("read_bytes".to_owned(), Reading::Number(5))].into(), ..Stats::default() };
        let done = Reply::Done(Done::Stats(Box::new(stats)));
        assert_eq!(serde_json::from_slice::<Reply>(&line(&done)).unwrap(), done);
    }
}
