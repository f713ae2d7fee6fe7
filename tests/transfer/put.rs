//! `windlass put` of one file, or of standard input.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};

use super::program::{MIB, Said, at, command, content, json, names_in, put, run, said};
use super::support::{Effect, Fault, Habits, Kind, Refusing, Request, S3Server};

#[test]
fn put_stores_one_request_below_the_threshold_and_parts_above() {
    let server = S3Server::start();
    for (len, puts, parts) in [(0, 1, 0), (8 * MIB - 1, 1, 0), (17 * MIB + 3, 0, 4)] {
        let content = content(len);
        for parallel in ["auto", "1", "16"] {
            server.reset_log();
            let said = put(&server, &content, "dir/object.txt", &["--parallel", parallel, "--json"]).succeeds();
            assert!(said.err.contains("plan: "), "{}", said.err);
            let facts = &json(&said)[0];
            assert_eq!((facts["bytes"].as_u64(), facts["parts"].as_u64()), (Some(len as u64), Some(parts as u64)));
            let (stored, about) = server.stored("dir/object.txt").unwrap();
            assert!(stored == content && about.content_type.as_deref() == Some("text/plain"), "{about:?}");
            assert_eq!((server.count(Kind::Put), server.count(Kind::UploadPart)), (puts, parts));
        }
    }
    put(&server, b"{}", "dir/", &[]).succeeds();
    assert_eq!(server.stored("dir/file.json").unwrap().0, "{}");
    put(&server, b"{}", "dry", &["--dry-run"]).succeeds();
    assert!(server.stored("dry").is_none() && server.uploads() == 0);
    run(&server, &["put", "/no/such/file", &at("x")]).fails(2, &["/no/such/file"]);
    run(&server, &["put", "/tmp", &at("x")]).fails(2, &["directory"]);
    run(&server, &["put", "-", &at("dir/")]).fails(2, &["name the object"]);
    put(&server, b"", "x", &["--part-size", "1MiB"]).fails(2, &["5MiB"]);
}

#[test]
fn put_begins_anew_where_checksums_are_refused_late() {
    for (refusing, uploads) in [(Refusing::Parts, 2), (Refusing::Whole, 1), (Refusing::Completion, 2)] {
        let server = S3Server::start();
        server.behave(Habits { refuses_sums: Some(refusing), ..Habits::default() });
        let content = content(20 * MIB);
        put(&server, &content, "new", &[]).succeeds();
        assert!(server.stored("new").unwrap().0 == content, "{refusing:?}");
        assert_eq!((server.count(Kind::CreateUpload), server.uploads()), (uploads, 0), "{refusing:?}");
        put(&server, &content, "chosen", &["--upload-checksum", "crc64nvme"]).fails(2, &["--upload-checksum"]);
        assert_eq!(server.uploads(), 0, "{refusing:?}");
    }
}

#[test]
fn put_takes_standard_input_of_any_length() {
    let server = S3Server::start();
    for (len, parts) in [(0, 0), (5 * MIB - 1, 0), (5 * MIB, 1), (12 * MIB, 3)] {
        let content = content(len);
        server.reset_log();
        let mut command = command(&server, &["put", "-", &at("stream"), "--part-size", "5MiB"]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), &content).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(server.stored("stream").unwrap().0 == content);
        assert_eq!(server.count(Kind::UploadPart), parts, "{len}");
    }
}

#[test]
fn put_that_fails_or_is_stopped_leaves_nothing_in_the_bucket() {
    let server = S3Server::start();
    let content = content(20 * MIB);
    server.put("object", "old");
    server.fault(Fault::new(Effect::Status(503)).kind(Kind::UploadPart).nth(2));
    server.fault(Fault::new(Effect::Broken).kind(Kind::UploadPart).nth(4));
    put(&server, &content, "new", &[]).succeeds();
    assert!(server.stored("new").unwrap().0 == content);
    server.clear_faults();
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::UploadPart).nth(3));
    put(&server, &content, "object", &[]).fails(3, &["permission"]);
    server.clear_faults();
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::CompleteUpload));
    put(&server, &content, "object", &[]).fails(3, &["permission"]);
    server.clear_faults();
    // Stopped while it waits for more of a pipe that is silent.
    server.reset_log();
    let mut command = command(&server, &["put", "-", &at("object"), "--part-size", "5MiB"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut pipe, &content[..6 * MIB]).unwrap();
    assert!(server.wait_for(|requests| requests.iter().any(|request| request.kind == Kind::UploadPart)));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    said(child.wait_with_output().unwrap()).fails(130, &["interrupted"]);
    drop(pipe);
    assert_eq!((server.uploads(), server.stored("object").unwrap().0), (0, "old".into()));
}

/// A file of four parts that is sent two parts at a time, and remembered.
struct Interrupted {
    server: S3Server,
    dir: tempfile::TempDir,
    content: Vec<u8>,
}

impl Interrupted {
    /// Started; the third and the fourth part never end.
    fn start() -> (Self, Child) {
        let (server, dir) = (S3Server::start(), tempfile::tempdir().unwrap());
        let content = content(17 * MIB + 3);
        let this = Self { server, dir, content };
        fs::write(this.file(), &this.content).unwrap();
        for n in [3, 4] {
            this.server.fault(Fault::new(Effect::Delay(Duration::from_secs(3600))).kind(Kind::UploadPart).nth(n));
        }
        let child = command(&this.server, &this.words()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The two that never end have come too: none of them is seen later.
        let have_come = |requests: &[Request]| requests.iter().filter(|request| request.kind == Kind::UploadPart).count() == 4;
        assert!(this.server.wait_for(|requests| have_come(requests) && this.remembered() == 2), "{}", this.remembered());
        (this, child)
    }

    fn file(&self) -> std::path::PathBuf {
        self.dir.path().join("file")
    }

    fn checkpoints(&self) -> std::path::PathBuf {
        self.dir.path().join("checkpoints")
    }

    fn words(&self) -> Vec<String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let limits = ["--parallel", "2", "--part-size", "5MiB", "--bigfile-threshold", "8MiB", "--json", "--checkpoint-dir"];
        let limits = limits.map(str::to_owned);
        [&["put".into(), text(&self.file()), at("k")], &limits[..], &[text(&self.checkpoints())]].concat()
    }

    /// Parts that the checkpoint says the store has.
    fn remembered(&self) -> usize {
        let Ok(mut files) = fs::read_dir(self.checkpoints()) else { return 0 };
        let text = files.next().map_or_else(String::new, |file| fs::read_to_string(file.unwrap().path()).unwrap_or_default());
        text.matches("\"sent\"").count()
    }

    /// The same command without faults: bytes that were there, parts that were sent.
    fn again(&self) -> (u64, usize) {
        self.server.clear_faults();
        self.server.reset_log();
        let said = run(&self.server, &self.words()).succeeds();
        assert!(self.server.stored("k").unwrap().0 == self.content && self.server.uploads() == 0);
        assert_eq!(names_in(&self.checkpoints()), Vec::<String>::new());
        (json(&said)[0]["resumed_bytes"].as_u64().unwrap(), self.server.count(Kind::UploadPart))
    }
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn put_killed_and_run_again_sends_what_is_missing() {
    let (put, child) = Interrupted::start();
    end(child);
    let listed = run(&put.server, &["mpu", "list", &at("")]).succeeds();
    assert!(listed.text().ends_with("  k\n") && listed.text().lines().count() == 1, "{}", listed.text());
    assert_eq!(put.again(), (10 << 20, 2));
    assert_eq!((put.server.count(Kind::CreateUpload), put.server.count(Kind::ListParts)), (0, 1));
}

#[test]
fn put_that_is_interrupted_leaves_its_upload_to_the_checkpoint() {
    let (put, child) = Interrupted::start();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    said(child.wait_with_output().unwrap()).fails(130, &["interrupted", "goes on"]);
    assert_eq!(put.server.uploads(), 1);
    assert_eq!(put.again(), (10 << 20, 2));
}

#[test]
fn put_of_a_file_that_changed_meanwhile_begins_anew() {
    let (mut put, child) = Interrupted::start();
    end(child);
    // As long as before, and another content: only its time tells.
    put.content[0] ^= 1;
    fs::write(put.file(), &put.content).unwrap();
    File::options().write(true).open(put.file()).unwrap().set_modified(SystemTime::now() + Duration::from_secs(9)).unwrap();
    assert_eq!(put.again(), (0, 4));
    assert_eq!((put.server.count(Kind::CreateUpload), put.server.count(Kind::AbortUpload)), (1, 1));
}

#[test]
fn put_whose_upload_is_gone_begins_anew() {
    let (put, child) = Interrupted::start();
    end(child);
    run(&put.server, &["mpu", "abort", "--older-than", "0s", &at("")]).succeeds();
    assert_eq!((put.server.uploads(), put.again()), (0, (0, 4)));
}

#[test]
fn put_goes_by_what_the_store_has() {
    let (put, child) = Interrupted::start();
    end(child);
    // A part that the store has under another tag is not that of the checkpoint.
    let file = fs::read_dir(put.checkpoints()).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&file).unwrap();
    let at = text.find("\"etag\":\"").unwrap();
    fs::write(&file, text[..at].to_owned() + &text[at..].replacen(|c: char| c.is_ascii_digit(), "x", 1)).unwrap();
    assert_eq!(put.again(), (5 << 20, 3));
}

#[test]
fn put_of_a_stream_cannot_be_remembered() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| -> Said { run(&server, &[args, &["--checkpoint-dir", dir.path().to_str().unwrap()]].concat()) };
    refused(&["put", "-", &at("k")]).fails(2, &["--checkpoint-dir needs a file"]);
    // What is one request is not remembered either, and goes.
    let file = dir.path().join("small");
    fs::write(&file, "small").unwrap();
    refused(&["put", file.to_str().unwrap(), &at("k")]).succeeds();
    assert_eq!(names_in(dir.path()), ["small"]);
}
