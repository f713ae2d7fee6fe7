//! A mount that goes over a socket to a process in a sandbox: what is served, what the process can do, and what it says to who handed over.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use windlass::handover::{Link, Message, Place};

use super::support::keeper::{Kept, accept, hear, listen};
use super::support::sandbox::{Sandbox, Sandboxed, trial};
use super::support::{BUCKET, Kind, REGION, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_mount_that_is_handed_over_is_written_and_read", written_and_read),
        trial("a_daemon_that_listens_is_served_as_well", listening),
        trial("read_ahead_that_was_raised_stays_so", read_ahead),
        trial("max_readahead_bounds_it", bounded_read_ahead),
        trial("an_option_that_nobody_knows_is_named_to_who_sent_it", unknown_option),
        trial("the_bucket_that_is_not_there_is_named_to_who_sent_it", no_bucket),
        trial("nobody_who_hands_over_is_an_error_in_time", nobody),
        trial("a_mount_that_is_taken_away_is_an_end_in_order", taken_away),
    ]
}

/// The directory that daemon and keeper share, deeper than the address of a socket has room for.
pub struct Shared(tempfile::TempDir);

impl Shared {
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let shared = Self(home);
        fs::create_dir_all(shared.path()).expect("it can be made");
        for directory in shared.path().ancestors().take_while(|path| path.starts_with(shared.0.path())) {
            fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
        }
        shared
    }

    pub fn path(&self) -> PathBuf {
        let home = self.0.path().canonicalize().expect("it is there");
        home.join("pods/0c5ad6a1-3c1e-4a3f-a5b0-1f3f0d6c9c11/volumes/kubernetes.io~empty-dir/windlass/a-volume-with-a-name")
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("mount.sock")
    }
}

/// What says to serve the bucket of `server`.
pub fn message(server: &S3Server) -> Message {
    let options = [("endpoint", Value::from(server.endpoint())), ("region", REGION.into()), ("path-style", true.into())];
    let env = server.client_env().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Message {
        bucket: format!("s3://{BUCKET}"),
        options: options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        env: windlass::handover::Environment(env),
        ..Message::default()
    }
}

/// A daemon in its sandbox that has been given `kept`, and the line to it.
pub fn serve(kept: &Kept, shared: &Shared, message: &Message, words: &[&str]) -> (Sandboxed, Link) {
    let door = listen(&shared.socket());
    let socket = format!("connect:{}", shared.socket().display());
    let words = [&["mount", "--foreground", "--fd-socket", &socket], words].concat();
    let daemon = Sandbox::new().writable(&shared.path()).start(&words);
    let link = accept(&door);
    kept.hand_over(&link, message, &kept.clones(2));
    (daemon, link)
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 % 251) as u8).collect()
}

/// What the bucket has.
pub fn stored(server: &S3Server, key: &str) -> bytes::Bytes {
    server.stored(key).expect("close has stored it").0
}

fn stats(root: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(root.join(".windlass/stats")).expect("it is there")).expect("it is JSON")
}

fn written_and_read() {
    let (server, shared, kept) = (S3Server::start(), Shared::new(), Kept::mount());
    assert!(shared.socket().as_os_str().len() > 107);
    let (mut daemon, mut link) = serve(&kept, &shared, &message(&server), &[]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    daemon.check_privilege(&[&shared.path()]);
    let content = pattern(20 << 20);
    fs::write(kept.join("file"), &content).expect("it is taken");
    assert_eq!(stored(&server, "file"), content);
    assert_eq!(fs::read(kept.join("file")).expect("it is there"), content);
    assert!(server.count(Kind::Get) > 0);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(hear(&mut link).is_none(), "the line ends with the daemon and not before");
    assert!(!kept.path().as_os_str().is_empty(), "whoever mounted unmounts");
}

fn listening() {
    let (server, shared, kept) = (S3Server::start(), Shared::new(), Kept::mount());
    server.put("file", "content");
    let socket = format!("listen:{}", shared.socket().display());
    let mut daemon = Sandbox::new().writable(&shared.path()).start(&["mount", "--foreground", "--fd-socket", &socket]);
    super::support::mounts::wait_until("the daemon listens", || shared.socket().exists());
    let mut link = Link::new(Place::of(&shared.socket()).and_then(|place| place.connect()).expect("it listens"));
    kept.hand_over(&link, &message(&server), &[]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    assert!(!shared.socket().exists(), "one mount came, and no other is waited for");
    assert_eq!(fs::read(kept.join("file")).expect("it is there"), b"content");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
}

fn read_in_order(path: &Path) -> u64 {
    let (mut file, mut piece, mut total) = (File::open(path).expect("it is there"), vec![0; 4 << 20], 0);
    while let n @ 1.. = file.read(&mut piece).expect("it can be read") {
        total += n as u64;
    }
    total
}

fn read_ahead() {
    let (server, shared, kept) = (S3Server::start(), Shared::new(), Kept::mount());
    server.put_synthetic("large", 64 << 20);
    kept.set_read_ahead(4096);
    let (_daemon, mut link) = serve(&kept, &shared, &message(&server), &[]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    assert_eq!(kept.read_ahead(), 4096, "the answer to INIT has not taken it away");
    assert_eq!(read_in_order(&kept.join("large")), 64 << 20);
    let longest = &stats(kept.path())["gauges"]["longest_read_bytes"];
    assert!(longest.as_u64().is_some_and(|bytes| bytes >= 1 << 20), "{longest}");
}

fn bounded_read_ahead() {
    let (server, shared, kept) = (S3Server::start(), Shared::new(), Kept::mount());
    kept.set_read_ahead(4096);
    let (_daemon, mut link) = serve(&kept, &shared, &message(&server), &["--max-readahead", "512KiB"]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    assert_eq!(kept.read_ahead(), 512);
}

/// Checks what the keeper hears of a daemon that cannot serve, and how that ends.
#[track_caller]
fn refused(message: &Message, code: u8, reason: &str, words: &[&str]) {
    let (shared, kept) = (Shared::new(), Kept::mount());
    let file = shared.path().join("error.json");
    let (mut daemon, mut link) = serve(&kept, &shared, message, &["--error-file", file.to_str().expect("it is text")]);
    let (heard, _) = hear(&mut link).expect("it says why");
    assert_eq!((&heard["failed"]["code"], &heard["failed"]["reason"]), (&json!(code), &json!(reason)), "{heard}");
    let said = heard["failed"]["message"].as_str().expect("it is text");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in {said}");
    }
    assert_eq!(daemon.wait().code(), Some(code.into()));
    daemon.wait_for(said);
    let written: Value = serde_json::from_str(&fs::read_to_string(file).expect("it was written")).expect("it is JSON");
    assert_eq!(written, heard["failed"]);
}

fn unknown_option() {
    let server = S3Server::start();
    let mut message = message(&server);
    message.options.insert("chunk-sise".into(), "4MiB".into());
    refused(&message, 2, "usage", &["unknown option chunk-sise", "did you mean chunk-size"]);
    message.options.remove("chunk-sise");
    message.args.push("--no-such-flag".into());
    refused(&message, 2, "usage", &["--no-such-flag"]);
}

fn no_bucket() {
    let server = S3Server::start();
    refused(&Message { bucket: "s3://no-such-bucket".into(), ..message(&server) }, 4, "bucket", &["s3://no-such-bucket", "NoSuchBucket"]);
}

fn nobody() {
    let shared = Shared::new();
    for how in ["connect", "listen"] {
        let socket = format!("{how}:{}", shared.socket().display());
        let words = ["mount", "--foreground", "--fd-socket", &socket, "--fd-socket-timeout", "100ms"];
        let mut daemon = Sandbox::new().writable(&shared.path()).start(&words);
        assert_eq!(daemon.wait().code(), Some(1));
        daemon.wait_for("nobody handed a mount over within 100ms");
    }
}

fn taken_away() {
    let (server, shared, kept) = (S3Server::start(), Shared::new(), Kept::mount());
    let (mut daemon, mut link) = serve(&kept, &shared, &message(&server), &[]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    fs::write(kept.join("file"), "content").expect("it is taken");
    kept.unmount();
    assert_eq!(daemon.wait().code(), Some(0));
    assert_eq!(stored(&server, "file"), "content");
}
