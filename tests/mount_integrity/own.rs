//! What this mount has changed is seen in it at once, by new opens and by readers that are open, and is in the bucket when close has returned.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::limit::{trial, trial_with};
use crate::program::{Group, Program};
use crate::support::mounts::{Daemon, POLL};
use crate::support::{Effect, Fault, Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("emptied_file_is_empty_for_every_open_after_it", || emptied(ROUNDS, empty_by_open)),
        trial_with(&["perl"], "file_truncated_by_name_is_empty_for_every_open_after_it", || emptied(ROUNDS / 3, empty_by_name)),
        trial_with(&["sh"], "file_emptied_by_a_shell_is_empty_for_other_processes", || emptied(ROUNDS / 3, empty_by_shell)),
        trial("replaced_content_is_read_by_every_open_after_it", replaced),
        trial("emptied_file_is_empty_in_the_bucket_after_kill", || killed(empty_by_open)),
        trial_with(&["perl"], "file_truncated_by_name_is_empty_in_the_bucket_after_kill", || killed(empty_by_name)),
        trial_with(&["tail", "sh"], "tail_f_prints_every_appended_line_once", || tail("-f")),
        trial_with(&["tail", "sh"], "tail_follow_name_prints_every_appended_line_once", || tail("-F")),
        trial_with(&["python3"], "append_handles_of_two_processes_keep_every_line", appended_by_two),
        trial("append_handles_of_one_process_keep_every_line", appended_in_turn),
        trial("append_does_not_overwrite_what_another_client_added", appended_after_another_client),
    ]
}

/// How often what is a race is tried.
const ROUNDS: usize = 300;

fn close(file: File) {
    windlass::sys::close(file.into()).expect("close succeeds");
}

fn empty_by_open(path: &Path) {
    close(File::create(path).expect("it can be emptied"));
}

/// truncate(2), which opens nothing.
fn empty_by_name(path: &Path) {
    let status = Command::new("perl").args(["-e", "truncate($ARGV[0], 0) or die $!"]).arg(path).status().expect("perl starts");
    assert!(status.success(), "{status}");
}

fn empty_by_shell(path: &Path) {
    let status = Command::new("sh").args(["-c", ": > \"$0\""]).arg(path).status().expect("sh starts");
    assert!(status.success(), "{status}");
}

fn write(path: &Path, content: &[u8]) {
    let mut file = File::create(path).expect("it can be created");
    file.write_all(content).expect("it can be written");
    close(file);
}

/// What was wrong, and how often.
#[derive(Debug, Default)]
struct Wrong(BTreeMap<String, usize>);

impl Wrong {
    fn add(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    /// Compares what an open after a change reads.
    fn compare(&mut self, read: std::io::Result<Vec<u8>>, expected: &[u8]) {
        match read {
            Ok(content) if content == expected => {}
            Ok(content) => self.add(if content.len() == expected.len() { "other bytes" } else { "other bytes, and more or fewer" }),
            Err(error) => self.add(error.to_string()),
        }
    }

    #[track_caller]
    fn is_nothing(&self, rounds: usize) {
        assert!(self.0.is_empty(), "of {rounds} rounds: {:?}", self.0);
    }
}

fn emptied(rounds: usize, empty: fn(&Path)) {
    let server = S3Server::start();
    // One that was there before the mount, and one that is made through it.
    server.put("old", vec![b'o'; 20_000]);
    let mount = Daemon::new(&server).start();
    let mut wrong = Wrong::default();
    for round in 0..rounds {
        let (name, content) = (["old", "new"][round % 2], vec![b'a' + (round % 26) as u8; 1 + round * 977 % 40_000]);
        let path = mount.join(name);
        if round > 0 {
            write(&path, &content);
            if round % 3 == 0 {
                wrong.compare(fs::read(&path), &content);
            }
        }
        empty(&path);
        wrong.compare(fs::read(&path), b"");
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() == 0 => {}
            Ok(_) => wrong.add("stat shows an old size"),
            Err(error) => wrong.add(format!("stat: {error}")),
        }
        match server.stored(name) {
            Some((stored, _)) if stored.is_empty() => {}
            stored => wrong.add(if stored.is_some() { "the bucket has old bytes" } else { "the bucket has nothing" }),
        }
    }
    wrong.is_nothing(rounds);
}

/// A reader that is open while its file is replaced is another matter; every new one reads the new content.
fn replaced() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let (path, mut wrong) = (mount.join("file"), Wrong::default());
    let mut open = None;
    for round in 0..ROUNDS {
        let content = vec![b'a' + (round % 26) as u8; 1 + round * 977 % 40_000];
        write(&path, &content);
        wrong.compare(fs::read(&path), &content);
        let reader = File::open(&path).expect("it is there");
        let mut byte = [0];
        match reader.read_at(&mut byte, content.len() as u64 - 1) {
            Ok(1) if byte[0] == content[0] => {}
            other => wrong.add(format!("the last byte: {other:?}")),
        }
        // Of every second version one stays open while the next is written.
        open = (round % 2 == 0).then_some(reader);
    }
    drop(open);
    wrong.is_nothing(ROUNDS);
}

/// The store takes its time for the empty object, and the daemon is killed as soon as close has returned.
fn killed(empty: fn(&Path)) {
    let mut wrong = Wrong::default();
    for round in 0..3 {
        let server = S3Server::start();
        server.put("file", vec![b'o'; 20_000]);
        let mut mount = Daemon::new(&server).start();
        let path = mount.join("file");
        if round % 2 == 1 {
            assert_eq!(fs::read(&path).expect("it can be read").len(), 20_000);
        }
        server.fault(Fault::new(Effect::Delay(Duration::from_millis(300))).kind(Kind::Put));
        empty(&path);
        mount.signal(Signal::KILL);
        mount.wait();
        // What was sent and not answered may still arrive.
        server.clear_faults();
        std::thread::sleep(Duration::from_millis(400));
        let stored = server.stored("file").expect("it is there").0.len();
        if stored > 0 {
            wrong.add(format!("the bucket has {stored} bytes"));
        }
    }
    wrong.is_nothing(3);
}

/// Longest wait for a line that was appended: tail looks ten times a second.
const LINE: Duration = Duration::from_secs(30);

/// The real tail, and a process of its own for every line.
fn tail(how: &str) {
    let (server, place) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    let mut expected: String = (0..20).map(|n| format!("old line {n}\n")).collect();
    server.put("log", expected.clone());
    let mount = Daemon::new(&server).start();
    let (path, printed) = (mount.join("log"), place.path().join("printed"));
    let (out, err) = (File::create(&printed).expect("there is room"), File::create(place.path().join("said")).expect("there is room"));
    let mut command = Command::new("tail");
    // Where a mount can be told apart from a local file system it polls by itself.
    command.args([how, "-n", "+1", "-s", "0.1", "---disable-inotify", "--"]).arg(&path);
    let tail = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn().expect("tail starts");
    let mut tail = Group(tail);
    let text = |name: &str| String::from_utf8_lossy(&fs::read(place.path().join(name)).expect("it was made")).into_owned();
    let mut wait_for = |expected: &str, when: &str| {
        let end = Instant::now() + LINE;
        while !text("printed").ends_with(expected) {
            let over = tail.0.try_wait().expect("it is our child");
            let (printed, said) = (text("printed"), text("said"));
            assert!(over.is_none() && Instant::now() < end, "{when}: tail ({over:?}) has printed\n{printed}and said\n{said}");
            std::thread::sleep(POLL);
        }
    };
    wait_for(&expected, "at first");
    for n in 0..30 {
        let line = format!("line {n} of a process");
        Program::shell("printf '%s\\n' \"$2\" >> \"$1\"").arg(&path).arg(&line).succeeds();
        expected += &line;
        expected.push('\n');
        // Most lines come faster than it looks, some are printed before the next one is appended.
        if n % 5 == 4 {
            wait_for(&format!("{line}\n"), &line);
        }
    }
    drop(tail);
    assert_eq!(text("printed"), expected, "what tail has printed; it said {}", text("said"));
    assert_eq!(String::from_utf8_lossy(&server.stored("log").expect("it is there").0), expected, "the object");
}

/// Lines of the two or more writers of `append.py`: each of them is there once, and those of one writer in order.
#[track_caller]
fn assert_lines(content: &[u8], writers: usize, lines: usize) {
    let text = String::from_utf8_lossy(content);
    let mut next = vec![0; writers];
    for line in text.strip_prefix("first\n").expect("it begins as it did").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers = (words.get(1).and_then(|word| word.parse::<usize>().ok()), words.get(3).and_then(|word| word.parse::<usize>().ok()));
        let (Some(writer), Some(number)) = numbers else { panic!("torn: {line:?}\n{text}") };
        assert_eq!(words.get(4).map_or(0, |word| word.len()), number * 7 % 50, "torn: {line:?}\n{text}");
        assert_eq!(number, next[writer], "of writer {writer} comes next:\n{text}");
        next[writer] += 1;
    }
    assert_eq!(next, vec![lines; writers], "lines of each writer:\n{text}");
}

fn appended_by_two() {
    const LINES: usize = 60;
    let server = S3Server::start();
    ["log", "other"].into_iter().for_each(|name| drop(server.put(name, "first\n")));
    let (mount, without_cache) = (Daemon::new(&server).start(), Daemon::new(&server).arg("--stat-cache-ttl", "0").start());
    write(&mount.join("new"), b"first\n");
    for (mount, name, writers) in [(&mount, "log", 2), (&mount, "new", 4), (&without_cache, "other", 2)] {
        let path = mount.join(name);
        Program::python(include_str!("append.py")).arg(&path).arg(writers.to_string()).arg(LINES.to_string()).succeeds();
        assert_lines(&fs::read(&path).expect("it can be read"), writers, LINES);
        assert_lines(&server.stored(name).expect("it is there").0, writers, LINES);
    }
}

/// One line through each handle in turn, whether those before it were synced or not.
fn appended_in_turn() {
    let server = S3Server::start();
    for (n, arguments) in [&[][..], &["--stat-cache-ttl=0"][..]].into_iter().enumerate() {
        let name = format!("log-{n}");
        server.put(&name, "first\n");
        let mount = arguments.iter().fold(Daemon::new(&server), |daemon, argument| daemon.flag(argument)).start();
        let path = mount.join(&name);
        let open = || File::options().read(true).append(true).open(&path).expect("it is there");
        let mut handles = [open(), open(), open()];
        handles[0].read_at(&mut [0; 3], 0).expect("it can be read");
        let mut expected = String::from("first\n");
        for number in 0..60 {
            let line = format!("line {number}\n");
            let handle = &mut handles[number % 3];
            handle.write_all(line.as_bytes()).expect("it can be written");
            expected += &line;
            match number % 7 {
                0 | 3 => handle.sync_all().expect("the store takes it"),
                5 => close(std::mem::replace(handle, open())),
                _ => {}
            }
        }
        handles.into_iter().for_each(close);
        assert_eq!(String::from_utf8_lossy(&fs::read(&path).expect("it can be read")), expected, "with {arguments:?}");
        assert_eq!(String::from_utf8_lossy(&server.stored(&name).expect("it is there").0), expected, "with {arguments:?}");
    }
}

/// The line goes behind what another client has added, or is refused.
fn appended_after_another_client() {
    let server = S3Server::start();
    for has_read in [false, true] {
        for has_written in [false, true] {
            let mut before = "first\n".to_owned();
            server.put("log", before.clone());
            let mount = Daemon::new(&server).arg("--stat-cache-ttl", "0").start();
            let mut handle = File::options().read(true).append(true).open(mount.join("log")).expect("it is there");
            if has_read {
                handle.read_at(&mut [0; 3], 0).expect("it can be read");
            }
            if has_written {
                handle.write_all(b"ours\n").expect("it can be written");
                handle.sync_all().expect("the store takes it");
                before += "ours\n";
            }
            let added = format!("{before}line of another client\n");
            server.put("log", added.clone());
            let appended = handle.write_all(b"line\n").and_then(|()| handle.sync_all());
            let expected = if appended.is_ok() { format!("{added}line\n") } else { added };
            let stored = server.stored("log").expect("it is there").0;
            let case = format!("has read: {has_read}, has written: {has_written}, append and fsync say {appended:?}");
            assert_eq!(String::from_utf8_lossy(&stored), expected, "{case}");
            // Its end is another matter when it was refused.
            let _ = windlass::sys::close(handle.into());
            let stored = server.stored("log").expect("it is there").0;
            assert_eq!(String::from_utf8_lossy(&stored), expected, "after close; {case}");
        }
    }
}
