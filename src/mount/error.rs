//! Why there is no mount, or why it ended, for people and for who started the process: what failed, on what, what to try, and the exit code. Nothing
//! is decided or tried here. Invariant: what can be mended says how, in one line.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::admin::Listen;
use crate::config::MountTarget;
use crate::store::{self, ErrorKind, Key, Location, Op};
use crate::vfs::Lost;
use crate::writer::Left;

/// Why there is no mount, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bucket cannot be used.
    #[error("{}", refusal("mount", .location, .source))]
    Store { location: Box<Location>, source: Box<store::Error> },
    /// The directory cannot be mounted on.
    #[error("cannot mount at {target}: {source}{}", mount_advice(.source))]
    Mount { target: PathBuf, source: io::Error },
    /// The descriptor that was passed in cannot be served.
    #[error("cannot serve /dev/fd/{number}: {reason}")]
    Descriptor { number: RawFd, reason: String },
    /// What the daemon before left cannot be gone on from.
    #[error("cannot go on with the mount at {target} where the daemon before ended: {reason}; windlass umount --lazy and mount again")]
    Resume { target: MountTarget, reason: String },
    /// The disk cannot be used.
    #[error("cannot keep what is read in {dir}: {source}; name another spill-dir, or read with read-mode=direct")]
    Spill { dir: PathBuf, source: io::Error },
    /// Nobody could look at the metrics.
    #[error("cannot serve metrics at {place}: {source}; name another address or path with --metrics-listen")]
    Listen { place: Listen, source: io::Error },
    /// Nobody could ask the mount where it was wanted.
    #[error("cannot open the control socket {path}: {source}; name another path with --control-socket")]
    Control { path: PathBuf, source: io::Error },
    /// The mount is still there.
    #[error("cannot unmount: {0}; see who uses it with \"fuser -vm MOUNTPOINT\", then: windlass umount --lazy MOUNTPOINT")]
    Unmount(io::Error),
    /// Requests of the kernel cannot be read any more.
    #[error("the mount at {target} failed: {reason}; {consequence}")]
    Session { target: String, reason: String, consequence: Consequence },
    /// The mount ended while files were being written.
    #[error("files that were written are not in the bucket: {}{}; --drain-timeout gives the store more time", names_of(.0), whereabouts(.0))]
    NotWritten(Vec<Lost>),
    /// The process could not be set up.
    #[error("cannot {what}: {source}")]
    Process { what: &'static str, source: io::Error },
}

/// What became of a mount that failed.
#[derive(Debug)]
pub enum Consequence {
    /// It is there for the next daemon, as it was.
    LeftToNext,
    /// It ended: the writes that it took are in the bucket, or this error says why not.
    Unmounted(Result<(), Box<Error>>),
}

impl fmt::Display for Consequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftToNext => f.write_str("another daemon goes on with it"),
            Self::Unmounted(Ok(())) => f.write_str("it has ended, and the writes that it took are in the bucket: mount it again"),
            Self::Unmounted(Err(error)) => error.fmt(f),
        }
    }
}

impl Error {
    /// Files that were written and are not in the bucket.
    pub fn lost(&self) -> &[Lost] {
        match self {
            Self::NotWritten(lost) => lost,
            Self::Session { consequence: Consequence::Unmounted(Err(error)), .. } => error.lost(),
            _ => &[],
        }
    }

    /// That the process could not `what`.
    pub(super) fn process(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Process { what, source }
    }

    /// The code the process ends with: 3 for credentials, 4 for bucket or endpoint, 2 for bad arguments, 5 when files did
    /// not reach the bucket, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Store { source, .. } => exit_code(source),
            Self::Descriptor { .. } | Self::Spill { .. } | Self::Listen { .. } | Self::Control { .. } => 2,
            Self::NotWritten(_) => 5,
            Self::Session { consequence: Consequence::Unmounted(Err(error)), .. } => error.exit_code(),
            Self::Mount { .. } | Self::Resume { .. } | Self::Unmount(_) | Self::Session { .. } | Self::Process { .. } => 1,
        }
    }
}

/// Describes why `what` failed on the bucket at `location`, also without a mount: the reason and what to try.
pub fn refusal(what: &str, location: &Location, error: &store::Error) -> String {
    // A gateway may have its store below a path; a path that is wrong looks like a bucket that does not exist.
    let path = location.path().filter(|_| matches!(error.kind, ErrorKind::NoSuchBucket | ErrorKind::NotFound));
    let advice = match path {
        Some(path) => format!("; check the path {path} of --endpoint, and the bucket's name"),
        None => advice(error),
    };
    format!("cannot {what} {location}: {}{advice}", attempt(error))
}

/// The code a process ends with that cannot go on because of what a store said.
pub fn exit_code(error: &store::Error) -> u8 {
    match error.kind {
        ErrorKind::AccessDenied | ErrorKind::BadCredentials | ErrorKind::NoCredentials => 3,
        ErrorKind::Invalid => 2,
        _ => 4,
    }
}

/// What the store said, with the request only when it was for a prefix and not for the whole bucket.
fn attempt(error: &store::Error) -> String {
    if error.key == Key::root() { error.reason().to_string() } else { error.to_string() }
}

/// What to try with a certificate that is not accepted.
pub const UNTRUSTED: &str = "install the certificate of its authority (ca-certificates, --ca-bundle or SSL_CERT_FILE), or check \
                             the name in --endpoint; one that has expired must be renewed there";

/// What to try with an endpoint that does not speak TLS.
pub const NOT_TLS: &str = "write http:// in --endpoint, or the port where it speaks TLS";

/// The likely fix, as the end of the line. Where the message itself tells it there is nothing to add.
pub fn advice(error: &store::Error) -> String {
    let text = match error.kind {
        ErrorKind::NoSuchBucket | ErrorKind::NotFound => "check the bucket's name and that it lives at this endpoint",
        ErrorKind::AccessDenied => permission(error.op),
        ErrorKind::BadCredentials => match error.code.as_deref() {
            Some("ExpiredToken" | "SecurityTokenExpired" | "TokenRefreshRequired") => {
                "get new temporary credentials: key id, secret and token"
            }
            Some("RequestTimeTooSkewed" | "RequestExpired") => "set the clock of this machine (timedatectl set-ntp true)",
            _ => "check key id, secret and token, and that the clock of this machine is right",
        },
        ErrorKind::Connect => "check --endpoint (name, port, http or https) and the network",
        // Without an answer it may be a server of TLS that was sent HTTP.
        ErrorKind::Unavailable if error.status.is_none() => "check that the endpoint is up, and http or https in --endpoint",
        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Throttled => "check that the endpoint is up and can be reached from here",
        ErrorKind::Corrupt | ErrorKind::Malformed => {
            "check that --endpoint is where the store itself answers (http or https), and that it speaks this protocol (s3:// or oss://)"
        }
        ErrorKind::Untrusted => UNTRUSTED,
        ErrorKind::NotTls => NOT_TLS,
        ErrorKind::ChecksumRefused => "write it again, or set --upload-checksum to md5 or none",
        ErrorKind::NoCredentials | ErrorKind::WrongEndpoint => return String::new(),
        ErrorKind::Replaced | ErrorKind::RangeNotSatisfiable | ErrorKind::Invalid => return String::new(),
    };
    format!("; {text}")
}

/// The permission that the key of a refused request lacks.
fn permission(op: Op) -> &'static str {
    match op {
        Op::List => "the key needs permission to list the bucket",
        // Stores that hide which objects exist refuse a request for one that does not exist in the same way.
        Op::Head | Op::Get => "the key needs permission to get its objects, and to list the bucket",
        Op::Put | Op::CreateUpload | Op::UploadPart | Op::CompleteUpload => "the key needs permission to put objects into the bucket",
        Op::CopyPart | Op::Copy => "the key needs permission to get objects of the bucket and to put objects into it",
        Op::AbortUpload | Op::ListUploads | Op::ListParts => "the key needs permission to list and abort multipart uploads of the bucket",
        Op::Rename => "the key needs a session of the directory bucket that may write (s3express:CreateSession)",
        Op::Delete => "the key needs permission to delete objects of the bucket",
    }
}

fn mount_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; mounting without root needs fusermount3 (package fuse3), and /dev/fuse must exist (modprobe fuse)",
        io::ErrorKind::PermissionDenied => "; run as root, or install fuse3 and check the permissions of /dev/fuse and of the directory",
        _ => "",
    }
}

/// The first few names of `lost`.
fn names_of<'a>(lost: impl IntoIterator<Item = &'a Lost>) -> String {
    const SHOWN: usize = 10;
    let mut names: Vec<String> = lost.into_iter().map(|lost| lost.key.to_string()).collect();
    names.dedup();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    names.extend((more > 0).then(|| format!("and {more} more")));
    names.join(", ")
}

/// What the disk has of `lost`, as the rest of a sentence that names them.
fn whereabouts(lost: &[Lost]) -> String {
    let kept = || lost.iter().filter(|lost| matches!(lost.left, Left::Kept(_)));
    let dropped = || lost.iter().filter(|lost| lost.left == Left::Dropped);
    let handed_over = || lost.iter().filter(|lost| lost.left == Left::HandedOver);
    let directory = kept().find_map(|lost| if let Left::Kept(path) = &lost.left { path.parent() } else { None });
    let mut text = String::new();
    if let Some(directory) = directory {
        let directory = directory.display();
        text += &format!("; kept in {directory} until a mount with the same --spill-dir stores them: {}", names_of(kept()));
    }
    if handed_over().next().is_some() {
        text += &format!("; open, and left with their bytes to the daemon that goes on with the mount: {}", names_of(handed_over()));
    }
    if dropped().next().is_some() {
        text += &format!("; staged and dropped, since no --spill-dir was named to keep them in: {}", names_of(dropped()));
    }
    text
}
