//! The control socket of a mount, and the commands that ask it: what they show and do, who is refused, and what is left of it at the end.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;

use super::place::{Place, Said, program, run, soon};
use super::support::mounts::{Daemon, Mount, trial};
use super::support::{BUCKET, Kind, REGION, S3Server};
use super::users;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_refresh_shows_at_once_what_others_did_to_the_bucket", refresh),
        trial("a_recursive_refresh_reaches_what_is_below_and_nothing_else", recursive),
        trial("a_refresh_leaves_open_files_and_current_directories_alone", refresh_in_use),
        trial("stats_count_what_was_read", stats),
        trial("stats_are_shown_again_every_second_until_the_mount_ends", watch),
        trial("many_clients_are_answered_beside_each_other_and_too_many_are_told", clients),
        trial("garbage_on_the_line_costs_its_sender_an_answer_and_nobody_anything", garbage),
        trial("each_mount_has_a_socket_and_takes_it_along", sockets),
        trial("a_dead_mount_is_named_and_its_socket_replaced_by_the_next", dead),
        trial("what_is_no_mount_of_ours_is_refused_with_what_it_is", refused),
        users::trial("a_mount_that_can_make_no_socket_works_and_says_so_once", &["unshare"], without),
        users::trial("the_mount_of_another_user_is_theirs_and_roots", &["fusermount3", "setpriv", "unshare"], another_user),
    ]
}

/// Far beyond the length of a test: what is seen earlier was refreshed.
const FOR_EVER: [&str; 4] = ["--stat-cache-ttl", "3600s", "--negative-ttl", "3600s"];

fn daemon(server: &S3Server) -> Daemon<'_> {
    FOR_EVER.chunks(2).fold(Daemon::new(server), |daemon, option| daemon.arg(option[0], option[1]))
}

fn windlass(args: &[&str], paths: &[&Path]) -> Said {
    let mut command = program();
    command.args(args).args(paths);
    run(command)
}

fn stats_of(path: &Path) -> Value {
    serde_json::from_str(&windlass(&["stats", "--json"], &[path]).succeeds().out).expect("it is JSON")
}

/// The socket of what is mounted at a path, by the number in the mount table.
fn socket(mount: &Mount) -> PathBuf {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel shows its mounts");
    let path = mount.path().to_str().expect("it is text");
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(path)).expect("it is mounted");
    let device = line.split(' ').nth(2).expect("every line has it").replace(':', "-");
    let uid = rustix::process::geteuid().as_raw();
    let homes = [PathBuf::from("/run/windlass"), format!("/run/user/{uid}/windlass").into(), format!("/tmp/windlass-{uid}").into()];
    let mut files = homes.iter().map(|home| home.join(format!("{device}.sock")));
    files.find(|file| file.exists()).unwrap_or_else(|| panic!("no socket of {device}:\n{}", mount.log()))
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("a directory").map(|entry| entry.expect("listed").file_name().into_string().expect("text"));
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

fn refresh() {
    let server = S3Server::start();
    server.put("d/a", "one");
    let mount = daemon(&server).prefix("d/").start();
    let (a, new) = (mount.join("a"), mount.join("new"));
    assert_eq!((names(mount.path()), fs::read(&a).expect("there")), (vec!["a".to_owned()], b"one".to_vec()));
    assert!(!new.exists());
    server.put("d/a", "longer");
    server.put("d/new", "content");
    server.reset_log();
    assert_eq!((fs::metadata(&a).expect("there").len(), new.exists()), (3, false), "believed for an hour");
    assert_eq!(server.requests().len(), 0);

    let said = windlass(&["refresh"], &[&a, &new]).succeeds();
    assert_eq!(said.out.lines().count(), 2, "{}", said.out);
    assert_eq!(server.requests().len(), 0, "it asks the store nothing");
    assert_eq!((fs::metadata(&a).expect("there").len(), fs::read(&a).expect("there")), (6, b"longer".to_vec()));
    assert_eq!((fs::read(&new).expect("there"), names(mount.path())), (b"content".to_vec(), vec!["a".to_owned(), "new".to_owned()]));

    server.delete("d/a");
    assert!(a.exists());
    windlass(&["refresh"], &[&a]).succeeds();
    assert!(!a.exists() && names(mount.path()) == ["new"]);
}

fn recursive() {
    let server = S3Server::start();
    for key in ["d/a", "d/sub/b", "other/c"] {
        server.put(key, "one");
    }
    let mount = daemon(&server).start();
    let files = ["d/a", "d/sub/b", "other/c"].map(|file| mount.join(file));
    let absent = mount.join("d/sub/absent");
    assert!(files.iter().all(|file| file.exists()) && !absent.exists());
    for key in ["d/a", "d/sub/b", "other/c", "d/sub/absent"] {
        server.put(key, "longer");
    }
    let sizes = || files.clone().map(|file| fs::metadata(file).expect("there").len());
    windlass(&["refresh"], &[&mount.join("d")]).succeeds();
    assert_eq!((sizes(), absent.exists()), ([3, 3, 3], false), "only the directory itself");
    windlass(&["refresh", "--recursive"], &[&mount.join("d")]).succeeds();
    assert_eq!((sizes(), absent.exists()), ([6, 6, 3], true));
    windlass(&["refresh", "-r"], &[mount.path()]).succeeds();
    assert_eq!(sizes(), [6, 6, 6]);
}

fn refresh_in_use() {
    let server = S3Server::start();
    server.put("d/a", "one");
    let mount = daemon(&server).start();
    let mut open = File::open(mount.join("d/a")).expect("there");
    let mut first = [0; 1];
    open.read_exact(&mut first).expect("it has three bytes");
    // A shell that stays where it is, and says so when it is told to.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "read word; pwd -P && cat a"]).current_dir(mount.join("d")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().expect("there is a shell");
    windlass(&["refresh", "--recursive"], &[mount.path()]).succeeds();
    shell.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
    let output = shell.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\none", mount.join("d").display()));
    let mut rest = String::new();
    open.read_to_string(&mut rest).expect("it stays open");
    assert_eq!((first, rest.as_str()), (*b"o", "ne"));
}

fn stats() {
    let server = S3Server::start();
    server.put_synthetic("file", 3 << 20);
    let mount = Daemon::new(&server).start();
    let count = |stats: &Value, name: &str| stats["counters"][name].as_u64().unwrap_or_else(|| panic!("{name} is no counter: {stats}"));
    let before = stats_of(mount.path());
    assert_eq!((count(&before, "read_bytes"), before["pid"].as_u64()), (0, Some(mount.pid().into())));
    assert_eq!(before["mountpoint"].as_str(), mount.path().to_str());
    assert_eq!(fs::read(mount.join("file")).expect("there").len(), 3 << 20);
    let after = stats_of(&mount.join("any/path/in/it"));
    assert_eq!((count(&after, "read_bytes"), count(&after, "fetched_bytes")), (3 << 20, 3 << 20));
    assert_eq!(count(&after, "get_requests"), server.count(Kind::Get) as u64);
    assert!(count(&after, "window_hits") + count(&after, "window_misses") > 0);
    assert!(after["gauges"]["budget_limit_bytes"].as_u64() >= after["gauges"]["budget_peak_bytes"].as_u64());

    let table = windlass(&["stats"], &[mount.path()]).succeeds().out;
    for line in [["read_bytes", "3.00 MiB"], ["retries", "0"]] {
        assert!(table.lines().any(|shown| shown.starts_with(line[0]) && shown.ends_with(line[1])), "{line:?} in\n{table}");
    }
    assert!(table.contains("budget_leased_bytes"), "{table}");
}

fn watch() {
    let server = S3Server::start();
    server.put_synthetic("file", 1 << 20);
    let mut mount = Daemon::new(&server).start();
    let mut command = program();
    command.args(["stats", "--watch", "--json"]).arg(mount.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child: Child = command.spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let next = |lines: &mut std::io::Lines<_>| {
        serde_json::from_str::<Value>(&lines.next().expect("it goes on").expect("a line")).expect("it is JSON")
    };
    assert_eq!(next(&mut lines)["counters"]["read_bytes"].as_u64(), Some(0));
    fs::read(mount.join("file")).expect("there");
    // One look may have been under way.
    let seen = (0..3).any(|_| next(&mut lines)["counters"]["read_bytes"].as_u64() == Some(1 << 20));
    assert!(seen, "the second look shows what the first did not");
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(0));
    // To the end, so that it does not wait for room in the pipe.
    lines.for_each(drop);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ended before it answered"), "{output:?}");
}

/// A client of the socket itself.
struct Line(BufReader<UnixStream>);

impl Line {
    fn to(mount: &Mount) -> Self {
        let stream = UnixStream::connect(socket(mount)).expect("it listens");
        stream.set_read_timeout(Some(std::time::Duration::from_secs(120))).expect("a time");
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        // One that is refused already hears why all the same.
        let _ = self.0.get_mut().write_all(bytes);
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.0.read_line(&mut String::new()), Ok(0) | Err(_))
    }
}

const STATS: &[u8] = b"{\"version\":1,\"command\":\"stats\"}\n";

fn clients() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let mut lines: Vec<Line> = (0..16).map(|_| Line::to(&mount)).collect();
    for round in 0..3 {
        lines.iter_mut().for_each(|line| line.send(STATS));
        for line in &mut lines {
            assert!(line.answer()["done"]["stats"]["counters"].is_object(), "round {round}");
        }
    }
    let mut more = Line::to(&mount);
    more.send(STATS);
    assert!(more.answer()["error"].as_str().is_some_and(|words| words.contains("try again")));
    assert!(more.is_closed());
    drop(lines.pop());
    assert!(soon(|| windlass(&["stats"], &[mount.path()]).code == Some(0)), "the place of one that left is free again");
}

fn garbage() {
    let server = S3Server::start();
    server.put("file", "content");
    let mount = Daemon::new(&server).start();
    let mut line = Line::to(&mount);
    for (sent, word) in [
        (&b"\n"[..], "no request"),
        (b"\xff\x00\xfe\n", "no request"),
        (b"GET / HTTP/1.1\r\n", "no request"),
        (b"{\"version\":99,\"command\":\"stats\"}\n", "not 99"),
        (b"{\"version\":1,\"command\":\"explode\"}\n", "`refresh`"),
        (b"{\"version\":1,\"command\":\"refresh\",\"path\":\"../../etc\"}\n", "cannot be a path"),
    ] {
        line.send(sent);
        let answer = line.answer();
        assert!(answer["error"].as_str().is_some_and(|words| words.contains(word)), "{word}: {answer}");
    }
    line.send(STATS);
    assert!(line.answer()["done"].is_object(), "the line goes on after a mistake");
    let mut long = Line::to(&mount);
    long.send(&vec![b'x'; 1 << 20]);
    assert!(long.answer()["error"].as_str().is_some_and(|words| words.contains("65536")));
    assert!(long.is_closed());
    let mut half = Line::to(&mount);
    half.send(b"{\"version\":1,");
    drop(half);
    assert_eq!(fs::read(mount.join("file")).expect("there"), b"content");
    assert!(!mount.log().contains("panicked"), "{}", mount.log());
}

fn sockets() {
    let server = S3Server::start();
    let (mut one, two) = (Daemon::new(&server).start(), Daemon::new(&server).start());
    let (first, second) = (socket(&one), socket(&two));
    assert_ne!(first, second);
    let home = fs::metadata(first.parent().expect("it has one")).expect("there");
    let file = fs::metadata(&first).expect("there");
    assert!(file.file_type().is_socket());
    assert_eq!((home.mode() & 0o777, file.mode() & 0o777), (0o700, 0o600));
    for mount in [&one, &two] {
        assert_eq!(stats_of(mount.path())["pid"].as_u64(), Some(mount.pid().into()));
    }
    one.signal(Signal::TERM);
    assert_eq!(one.wait().code(), Some(0));
    assert!(!first.exists() && second.exists());
    assert_eq!(stats_of(two.path())["pid"].as_u64(), Some(two.pid().into()));
}

fn dead() {
    let server = S3Server::start();
    server.put("file", "content");
    let mut mount = Daemon::new(&server).start();
    let file = socket(&mount);
    mount.signal(Signal::KILL);
    mount.wait();
    assert!(file.exists(), "a kill leaves it");
    let said = windlass(&["stats"], &[mount.path()]);
    assert_eq!((said.code, said.err.lines().count()), (Some(1), 1), "{}", said.err);
    for word in ["the daemon is gone", &format!("windlass umount {}", mount.path().display())] {
        assert!(said.err.contains(word), "{word:?} is missing in {}", said.err);
    }
    windlass(&["umount"], &[mount.path()]).succeeds();
    // The kernel gives the lowest free number: the next mount has this one.
    let next = Daemon::new(&server).start();
    assert_eq!(stats_of(next.path())["pid"].as_u64(), Some(next.pid().into()));
    if socket(&next) != file {
        fs::remove_file(&file).expect("ours");
    }
    let taken = socket(&next);
    fs::remove_file(&taken).expect("ours");
    let said = windlass(&["refresh"], &[&next.join("file")]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("there is no control socket") && said.err.contains(taken.to_str().expect("text")), "{}", said.err);
}

fn refused() {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    for command in ["stats", "refresh"] {
        for (path, word) in [(home.path(), "not in a windlass mount"), (Path::new("/proc/self"), "/proc (proc)")] {
            let said = windlass(&[command], &[path]);
            assert_eq!((said.code, said.err.lines().count()), (Some(2), 1), "{}", said.err);
            assert!(said.err.contains(word) && said.err.contains(path.to_str().expect("text")), "{}", said.err);
        }
    }
}

fn without() {
    let server = S3Server::start();
    server.put("file", "content");
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    // Where the socket could lie are a file and a directory that is open to others, in a mount namespace of its own.
    let script = r#"
        set -e
        mount -t tmpfs none /run
        touch /run/windlass
        mkdir -p -m 700 /tmp/windlass-0
        mount -t tmpfs -o mode=755 none /tmp/windlass-0
        exec "$@"
    "#;
    let at = home.path().join("mnt");
    fs::create_dir(&at).expect("it is empty");
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_windlass")]);
    command.args(["mount", &format!("s3://{BUCKET}")]).arg(&at);
    command.args(["--foreground", "--path-style", "--region", REGION, "--endpoint", &server.endpoint()]);
    command.arg("--ready-file").arg(home.path().join("ready")).arg("--log-file").arg(home.path().join("log"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(server.client_env());
    let mut child = command.stdout(Stdio::null()).spawn().expect("unshare starts");
    let ready = soon(|| home.path().join("ready").exists() || child.try_wait().expect("our child").is_some());
    let log = fs::read_to_string(home.path().join("log")).unwrap_or_default();
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM);
    let status = child.wait().expect("our child");
    assert!(ready && status.success(), "{status}: {log}");
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("control socket")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("not a directory") && warnings[0].contains("chmod 700"), "{log}");
}

/// Mounted by nobody, root may ask, though the mount itself is closed to root; mounted by root, nobody may not.
fn another_user() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("file", "content");
    for path in [place.at.as_path(), place.at.parent().expect("it is not the root")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("we are root");
    }
    let script = r#"
        set -e
        program=$1 at=$2 source=$3; shift 3
        nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups -- "$program" "$@"; }
        nobody mount "$source" "$at" "$@"
        if cat "$at/file"; then exit 1; fi
        "$program" stats --json "$at"
        nobody refresh "$at/file"
        nobody umount "$at"
        chown 0:0 "$at"
        "$program" mount "$source" "$at" "$@" --allow-other
        nobody stats "$at" || echo "refused with $?"
        "$program" umount "$at"
    "#;
    let program = users::program_for_all(&place);
    let text = |path: &Path| path.to_str().expect("it is text").to_owned();
    let (program, at, source, endpoint) = (text(&program), text(&place.at), format!("s3://{BUCKET}"), server.endpoint());
    let words = ["sh", "-c", script, "sh", &program, &at, &source, "--endpoint", &endpoint, "--region", REGION, "--path-style"];
    let mut command = users::in_namespace(&place, "fuse", &words);
    command.envs(server.client_env()).env("HOME", "/nonexistent");
    let said = run(command).succeeds();
    let _ = fs::remove_dir("/tmp/windlass-65534");
    for word in ["\"read_bytes\":0", "file: forgotten", "refused with 2"] {
        assert!(said.out.contains(word), "{word:?} is missing in {}{}", said.out, said.err);
    }
    assert!(said.err.contains("mounted by user 0: only they and root can ask"), "{}", said.err);
    assert!(soon(|| place.pids().is_empty()), "the daemons end with their mounts");
}
