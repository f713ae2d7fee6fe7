//! A mount that goes over a socket to a process in a sandbox: what is served, what the process can do, and what it says to who handed over.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use windlass::handover::{Link, Message, Place};

use super::support::keeper::{Kept, accept, hear, listen};
use super::support::network::Network;
use super::support::sandbox::{Sandbox, Sandboxed, trial};
use super::support::{BUCKET, Kind, REGION, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_mount_that_is_handed_over_is_written_and_read", written_and_read),
        trial("a_daemon_that_listens_is_served_as_well", listening),
        trial("read_ahead_that_was_raised_stays_so", read_ahead),
        trial("a_control_socket_is_asked_where_no_mount_is_seen", control),
        trial("max_readahead_bounds_it", bounded_read_ahead),
        trial("an_option_that_nobody_knows_is_named_to_who_sent_it", unknown_option),
        trial("the_bucket_that_is_not_there_is_named_to_who_sent_it", no_bucket),
        trial("nobody_who_hands_over_is_an_error_in_time", nobody),
        trial("a_mount_that_is_taken_away_is_an_end_in_order", taken_away),
    ]
}

/// What the pod of a daemon has: its network, and the directory that daemon and keeper share, deeper than the address of a socket has room for.
pub struct Shared {
    home: tempfile::TempDir,
    pub network: Arc<Network>,
}

impl Shared {
    pub fn new(network: Network) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let shared = Self { home, network: Arc::new(network) };
        fs::create_dir_all(shared.path()).expect("it can be made");
        for directory in shared.path().ancestors().take_while(|path| path.starts_with(shared.home.path())) {
            fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
        }
        shared
    }

    pub fn path(&self) -> PathBuf {
        let home = self.home.path().canonicalize().expect("it is there");
        home.join("pods/0c5ad6a1-3c1e-4a3f-a5b0-1f3f0d6c9c11/volumes/kubernetes.io~empty-dir/windlass/a-volume-with-a-name")
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("mount.sock")
    }

    /// Where its daemons run.
    pub fn sandbox(&self) -> Sandbox {
        Sandbox::new(&self.network).writable(&self.path())
    }
}

/// A server, a pod that reaches it, and a mount.
pub fn started() -> (S3Server, Shared, Kept) {
    let server = S3Server::start();
    let shared = Shared::new(Network::with_store(&server));
    (server, shared, Kept::mount())
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
    let daemon = shared.sandbox().start(&words);
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
    let (server, shared, kept) = started();
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
    let (server, shared, kept) = started();
    server.put("file", "content");
    let socket = format!("listen:{}", shared.socket().display());
    let mut daemon = shared.sandbox().start(&["mount", "--foreground", "--fd-socket", &socket]);
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
    let (server, shared, kept) = started();
    server.put_synthetic("large", 64 << 20);
    kept.set_read_ahead(4096);
    let (_daemon, mut link) = serve(&kept, &shared, &message(&server), &[]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    assert_eq!(kept.read_ahead(), 4096, "the answer to INIT has not taken it away");
    assert_eq!(read_in_order(&kept.join("large")), 64 << 20);
    let longest = &stats(kept.path())["gauges"]["longest_read_bytes"];
    assert!(longest.as_u64().is_some_and(|bytes| bytes >= 1 << 20), "{longest}");
}

fn control() {
    let (server, shared, kept) = started();
    let socket = shared.path().join("control.sock");
    let (_daemon, mut line) = serve(&kept, &shared, &message(&server), &["--control-socket", socket.to_str().expect("it is text")]);
    assert_eq!(hear(&mut line).expect("it lives").0, json!({"ready": true}));
    let ask = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windlass"));
        let output = command.args(words).arg(&socket).output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("it is text")
    };
    let stats: Value = serde_json::from_str(&ask(&["stats", "--json"])).expect("it is JSON");
    assert_eq!(stats["pid"], 1, "as its own namespace counts");
    assert!(ask(&["ctl", "set", "log-level", "debug"]).contains("log-level = debug"));
}

fn bounded_read_ahead() {
    let (server, shared, kept) = started();
    kept.set_read_ahead(4096);
    let (_daemon, mut link) = serve(&kept, &shared, &message(&server), &["--max-readahead", "512KiB"]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    assert_eq!(kept.read_ahead(), 512);
}

/// What is said of a mount that cannot be served.
struct Refusal<'a> {
    code: u8,
    reason: &'a str,
    words: &'a [&'a str],
}

/// Checks what the keeper hears of a daemon that cannot serve, and how that ends.
#[track_caller]
fn refused(server: &S3Server, message: &Message, refusal: &Refusal<'_>) {
    let (shared, kept) = (Shared::new(Network::with_store(server)), Kept::mount());
    let Refusal { code, reason, words } = *refusal;
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
    let usage = |words| Refusal { code: 2, reason: "usage", words };
    refused(&server, &message, &usage(&["unknown option chunk-sise", "did you mean chunk-size"]));
    message.options.remove("chunk-sise");
    message.args.push("--no-such-flag".into());
    refused(&server, &message, &usage(&["--no-such-flag"]));
}

fn no_bucket() {
    let server = S3Server::start();
    let message = Message { bucket: "s3://no-such-bucket".into(), ..message(&server) };
    refused(&server, &message, &Refusal { code: 4, reason: "bucket", words: &["s3://no-such-bucket", "NoSuchBucket"] });
}

fn nobody() {
    let shared = Shared::new(Network::new());
    for how in ["connect", "listen"] {
        let socket = format!("{how}:{}", shared.socket().display());
        let words = ["mount", "--foreground", "--fd-socket", &socket, "--fd-socket-timeout", "100ms"];
        let mut daemon = shared.sandbox().start(&words);
        assert_eq!(daemon.wait().code(), Some(1));
        daemon.wait_for("nobody handed a mount over within 100ms");
    }
}

fn taken_away() {
    let (server, shared, kept) = started();
    let (mut daemon, mut link) = serve(&kept, &shared, &message(&server), &[]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    fs::write(kept.join("file"), "content").expect("it is taken");
    kept.unmount();
    assert_eq!(daemon.wait().code(), Some(0));
    assert_eq!(stored(&server, "file"), "content");
}
