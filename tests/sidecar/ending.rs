//! How a daemon ends that did not mount: SIGTERM stores what was written while requests go on, or names what it could not store; and what probes
//! see of it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use windlass::handover::Link;

use super::handed_over::{Shared, message, pattern, serve, started, stored};
use super::support::keeper::{Kept, accept, hear, listen};
use super::support::mounts::wait_until;
use super::support::sandbox::{Sandboxed, trial};
use super::support::{Effect, Fault, Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("sigterm_stores_256_mib_that_are_dirty", dirty),
        trial("sigterm_before_a_store_that_does_not_answer_names_what_is_lost", no_answer),
        trial("a_second_sigterm_does_not_wait", twice),
        trial("sigterm_can_be_ignored", ignored),
        trial("probes_see_how_far_the_mount_has_come", probes),
        trial("probes_see_that_a_daemon_waits_for_its_mount", waiting),
    ]
}

const SIZE: usize = 256 << 20;

fn text(path: &Path) -> String {
    path.to_str().expect("it is text").to_owned()
}

/// A daemon that serves `kept`, may stage on a disk, and writes its last error down.
fn start(server: &S3Server, kept: &Kept, shared: &Shared, words: &[&str]) -> (Sandboxed, Link) {
    let (disk, file) = (text(&shared.path().join("disk")), text(&shared.path().join("error.json")));
    let log = text(&shared.path().join("termination-log"));
    let files = ["--spill-dir", &disk, "--error-file", &file, "--termination-log", &log, "--metrics-listen", "127.0.0.1:0"];
    let (daemon, mut link) = serve(kept, shared, &message(server), &[&files, words].concat());
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    // Files are still open when the daemon ends, and whoever closes them then shall not wait for ever.
    kept.let_go();
    (daemon, link)
}

/// A file that is written from its end on and left open: all of it is staged, and none of it in the bucket.
fn write_backwards(path: &Path, content: &[u8]) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).expect("it can be made");
    for at in (0..content.len()).step_by(8 << 20).rev() {
        file.write_all_at(&content[at..content.len().min(at + (8 << 20))], at as u64).expect("it is taken");
    }
    file
}

fn dirty() {
    let (server, shared, kept) = started();
    server.put("other", "content");
    let (mut daemon, _link) = start(&server, &kept, &shared, &["--drain-timeout", "10min"]);
    let content = pattern(SIZE);
    let file = write_backwards(&kept.join("file"), &content);
    assert!(server.stored("file").is_none());
    server.fault(Fault::new(Effect::Held).kind(Kind::UploadPart));
    daemon.signal(Signal::TERM);
    assert!(server.wait_for(|requests| requests.iter().any(|request| request.kind == Kind::UploadPart)));
    // Requests are answered meanwhile: another daemon may go on.
    assert_eq!(fs::read(kept.join("other")).expect("reads go on"), b"content");
    server.clear_faults();
    file.write_at(b"late", 0).expect("the program goes on");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.said());
    let content = [b"late", &content[4..]].concat();
    assert!(stored(&server, "file") == content, "the object is not what was written");
    assert!(!shared.path().join("error.json").exists());
    assert_eq!(fs::metadata(kept.join("other")).expect_err("nobody serves").raw_os_error(), Some(libc::ENOTCONN));
}

fn no_answer() {
    let (server, shared, kept) = started();
    // With attributes the directory would be marked first, which would keep the bytes of what is small here.
    let (mut daemon, mut link) = start(&server, &kept, &shared, &["--drain-timeout", "2s", "--posix-attributes=off"]);
    for kind in [Kind::Put, Kind::CreateUpload, Kind::UploadPart] {
        server.fault(Fault::new(Effect::Delay(Duration::from_secs(3600))).kind(kind));
    }
    let names = ["dir-less", "staged", "streamed"];
    let files: Vec<File> = vec![
        File::create(kept.join(names[0])).expect("it can be made"),
        write_backwards(&kept.join(names[1]), &pattern(20 << 20)),
        File::create(kept.join(names[2])).expect("it can be made"),
    ];
    (&files[0]).write_all(b"content").expect("it is taken");
    (&files[2]).write_all(&pattern(20 << 20)).expect("it is taken");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(5), "{}", daemon.said());
    daemon.wait_for("not in the bucket: dir-less, staged, streamed; open, and left with their bytes to the daemon");
    daemon.wait_for("goes on with the mount: staged; --drain-timeout");
    let failed: Value = serde_json::from_str(&fs::read_to_string(shared.path().join("error.json")).expect("it was written")).expect("JSON");
    assert_eq!((&failed["code"], &failed["reason"], &failed["paths"]), (&json!(5), &json!("not-written"), &json!(names)));
    assert_eq!(hear(&mut link).expect("it says so").0, json!({"failed": failed}));
    assert_eq!(
        fs::read_to_string(shared.path().join("termination-log")).expect("it was written"),
        failed["message"].as_str().expect("text")
    );
}

fn twice() {
    let (server, shared, kept) = started();
    let (mut daemon, _link) = start(&server, &kept, &shared, &["--drain-timeout", "1h"]);
    server.fault(Fault::new(Effect::Delay(Duration::from_secs(3600))).kind(Kind::Put));
    let file = File::create(kept.join("file")).expect("it can be made");
    (&file).write_all(b"content").expect("it is taken");
    daemon.signal(Signal::TERM);
    assert!(server.wait_for(|requests| requests.iter().any(|request| request.kind == Kind::Put)), "{}", daemon.said());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(5), "{}", daemon.said());
    daemon.wait_for("not in the bucket: file;");
}

fn ignored() {
    let (server, shared, kept) = started();
    let (mut daemon, _link) = start(&server, &kept, &shared, &["--on-sigterm", "ignore"]);
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::TERM);
    daemon.wait_for("SIGTERM is ignored");
    fs::write(kept.join("file"), "content").expect("it goes on");
    kept.unmount();
    assert_eq!(daemon.wait().code(), Some(0));
    assert_eq!(stored(&server, "file"), "content");
}

/// A page, with its status; none: nobody listens, or no more.
fn page(shared: &Shared, port: u16, page: &str) -> Option<(u16, String)> {
    let mut stream = shared.network.connect(port).ok()?;
    write!(stream, "GET {page} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// The status of a page.
fn probe(shared: &Shared, port: u16, name: &str) -> u16 {
    page(shared, port, name).expect("it listens and answers").0
}

/// From its first moment on, and over the moment in which the program that serves takes the place of the one that waited.
fn waiting() {
    let (server, shared, kept) = started();
    server.put("file", "content");
    // Nobody else listens in the network of the pod.
    let (door, port, socket) = (listen(&shared.socket()), 9811, format!("connect:{}", shared.socket().display()));
    let address = format!("127.0.0.1:{port}");
    let words = ["mount", "--foreground", "--fd-socket", &socket, "--metrics-listen", &address];
    let mut daemon = shared.sandbox().start(&words);
    wait_until("it can be asked", || page(&shared, port, "/healthz").is_some());
    let mut link = accept(&door);
    assert_eq!(page(&shared, port, "/healthz"), Some((200, "ok\n".into())));
    let (status, said) = page(&shared, port, "/readyz").expect("it listens");
    assert!(status == 503 && said.lines().count() == 1 && said.contains("waiting for a mount"), "{status} {said}");
    assert_eq!(probe(&shared, port, "/metrics"), 503);
    kept.hand_over(&link, &message(&server), &[]);
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    assert_eq!(["/healthz", "/readyz", "/metrics"].map(|name| probe(&shared, port, name)), [200, 200, 200]);
    assert_eq!(fs::read(kept.join("file")).expect("it is there"), b"content");
    kept.let_go();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));

    // Who waits and is told to end leaves the address as it was.
    let mut daemon = shared.sandbox().start(&words);
    wait_until("it can be asked", || page(&shared, port, "/readyz").is_some_and(|(status, _)| status == 503));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.said());
    assert_eq!(page(&shared, port, "/healthz"), None);
}

fn probes() {
    let (server, shared, kept) = started();
    server.fault(Fault::new(Effect::Held).kind(Kind::List));
    let door = listen(&shared.socket());
    let socket = format!("connect:{}", shared.socket().display());
    let words = ["mount", "--foreground", "--fd-socket", &socket, "--metrics-listen", "127.0.0.1:0"];
    let mut daemon = shared.sandbox().start(&words);
    let mut link = accept(&door);
    kept.hand_over(&link, &message(&server), &[]);
    kept.let_go();
    daemon.wait_for("metrics are served");
    let said = daemon.said();
    let digits = said.lines().find(|line| line.contains("metrics are served")).and_then(|line| line.rsplit("127.0.0.1:").next());
    let port = digits.and_then(|digits| digits.trim().parse().ok()).unwrap_or_else(|| panic!("no port in {said}"));
    assert!(server.wait_for(|requests| requests.iter().any(|request| request.kind == Kind::List)));
    let all = |port| ["/healthz", "/readyz", "/metrics"].map(|page| probe(&shared, port, page));
    assert_eq!(all(port), [200, 503, 503], "the bucket has not answered");
    server.clear_faults();
    assert_eq!(hear(&mut link).expect("it lives").0, json!({"ready": true}));
    assert_eq!(all(port), [200, 200, 200]);

    server.fault(Fault::new(Effect::Delay(Duration::from_secs(3600))).kind(Kind::Put));
    let file = File::create(kept.join("file")).expect("it can be made");
    (&file).write_all(b"content").expect("it is taken");
    daemon.signal(Signal::TERM);
    wait_until("it is not ready any more", || probe(&shared, port, "/readyz") == 503);
    assert_eq!(probe(&shared, port, "/healthz"), 200);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(5));
}
