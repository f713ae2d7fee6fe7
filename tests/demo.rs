//! `windlass demo` as a stranger runs it: the built program, a real mount, a temporary directory that must be empty
//! afterwards. Ignored, with the reason, where nothing can be mounted.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Far more than any of these takes; reached only when something hangs.
const HANGS: Duration = Duration::from_secs(120);

fn main() {
    let args = Arguments::from_args();
    let missing = missing();
    if let Some(reason) = &missing {
        eprintln!("ignored, because nothing can be mounted here: {reason}");
    }
    let mounts: [(&str, fn()); 6] = [
        ("everything_is_read_verified_shown_and_removed", everything_is_read_verified_shown_and_removed),
        ("it_mounts_where_it_is_told_and_leaves_the_directory_as_it_was", it_mounts_where_it_is_told),
        ("kept_it_stays_until_a_signal_and_then_goes_without_a_trace", kept_it_stays_until_a_signal),
        ("ctrl_c_in_the_middle_removes_everything", ctrl_c_in_the_middle_removes_everything),
        ("a_byte_that_differs_is_a_failure", a_byte_that_differs_is_a_failure),
        ("a_mount_point_that_is_not_empty_is_refused_before_anything_is_stored", not_empty_is_refused),
    ];
    let trial = |(name, test): (&str, fn())| {
        let run = move || {
            test();
            Ok::<(), Failed>(())
        };
        Trial::test(name, run).with_ignored_flag(missing.is_some())
    };
    let mut trials: Vec<_> = mounts.into_iter().map(trial).collect();
    let run = || {
        without_privilege_it_says_what_is_missing();
        Ok(())
    };
    trials.push(Trial::test("without_privilege_it_says_what_is_missing", run));
    libtest_mimic::run(&args, trials).exit();
}

/// Why nothing can be mounted here.
fn missing() -> Option<String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let admin = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_program = std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file());
    (!admin && !has_program).then(|| "neither CAP_SYS_ADMIN nor fusermount3".into())
}

/// A demo with a temporary directory of its own, and its words in files, which never make it wait.
struct Demo {
    dir: TempDir,
}

struct Said {
    status: ExitStatus,
    out: String,
    err: String,
}

impl Demo {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        Self { dir }
    }

    fn tmp(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        let to = |name| Stdio::from(File::create(self.file(name)).unwrap());
        // The requests are counted: a busy machine would have some of them hedged.
        command
            .arg("demo")
            .args(args)
            .env("WINDLASS_HEDGE", "false")
            .env("TMPDIR", self.tmp())
            .stdin(Stdio::null())
            .stdout(to("out"))
            .stderr(to("err"));
        command
    }

    fn end(&self, child: &mut Child) -> Said {
        let status = until(|| child.try_wait().unwrap());
        Said { status, out: self.text("out"), err: self.text("err") }
    }

    fn run(&self, args: &[&str]) -> Said {
        self.end(&mut self.command(args).spawn().unwrap())
    }

    /// Nothing mounted below, nothing in the temporary directory.
    #[track_caller]
    fn left_nothing(&self) {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(self.dir.path().to_str().unwrap()), "{table}");
        assert_eq!(names(&self.tmp()), Vec::<String>::new());
    }
}

fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        match done() {
            Some(value) => return value,
            None => assert!(start.elapsed() < HANGS, "it hangs"),
        }
        sleep(Duration::from_millis(2));
    }
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A row of the table: large object, small objects, together.
#[track_caller]
fn row<'a>(out: &'a str, name: &str) -> [&'a str; 3] {
    let line = out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name:?} is missing in:\n{out}"));
    let cells: Vec<_> = line[name.len()..].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    cells.try_into().unwrap_or_else(|cells| panic!("{cells:?} in:\n{out}"))
}

fn number(cell: &str) -> f64 {
    cell.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{cell:?} is no number"))
}

fn everything_is_read_verified_shown_and_removed() {
    let demo = Demo::new();
    let said = demo.run(&["--large-size", "24MiB", "--small-count", "1100"]);
    assert!(said.status.success(), "{}{}", said.out, said.err);
    assert_eq!(row(&said.out, "files  "), ["1", "1100", "1101"]);
    assert_eq!(row(&said.out, "bytes, all verified")[0], "24.0 MiB");
    assert_eq!(row(&said.out, "requests: GET"), ["6", "1100", "1106"], "chunks of 4 MiB, and one each for small ones");
    assert!(
        number(row(&said.out, "requests: HEAD")[2]) <= 1.0,
        "listings tell everything, but for the attributes of what is in the bucket's root"
    );
    assert_eq!(row(&said.out, "bytes fetched / read"), ["1.000"; 3]);
    for name in ["throughput", "files/s", "memory held (peak)", "requests: LIST"] {
        assert!(number(row(&said.out, name)[2]) > 0.0, "{}", said.out);
    }
    assert!((0.0..=100.0).contains(&number(row(&said.out, "window hits")[0])));
    for line in ["storing samples: ", "reading a large object: done in", "reading small objects: 1100 files"] {
        assert!(said.err.contains(line), "{line:?} is missing in: {}", said.err);
    }
    assert!(!said.err.contains('\x1b'), "no bars where nobody watches: {}", said.err);
    demo.left_nothing();
}

fn it_mounts_where_it_is_told() {
    let demo = Demo::new();
    let target = demo.file("here");
    fs::create_dir(&target).unwrap();
    let said = demo.run(&["--large-size", "1MiB", "--small-count", "10", target.to_str().unwrap()]);
    assert!(said.status.success(), "{}{}", said.out, said.err);
    assert_eq!(names(&target), Vec::<String>::new());
    demo.left_nothing();
}

fn kept_it_stays_until_a_signal() {
    let demo = Demo::new();
    let mut child = demo.command(&["--large-size", "1MiB", "--small-count", "3", "--keep"]).spawn().unwrap();
    let target = until(|| {
        assert!(child.try_wait().unwrap().is_none(), "{}", demo.text("err"));
        let said = demo.text("out");
        // Its last words: all before them is there.
        said.contains("--passwd-file").then_some(())?;
        let (_, rest) = said.split_once("Mounted at ")?;
        rest.split_once(" until Ctrl-C").map(|(target, _)| PathBuf::from(target))
    });
    assert_eq!(fs::metadata(target.join("large.bin")).unwrap().len(), 1 << 20);
    assert_eq!(names(&target.join("small/00")).len(), 3);
    signal(&child, Signal::TERM);
    let said = demo.end(&mut child);
    assert!(said.status.success(), "{}", said.err);
    assert_eq!(row(&said.out, "files  "), ["1", "3", "4"]);
    demo.left_nothing();
}

fn ctrl_c_in_the_middle_removes_everything() {
    let demo = Demo::new();
    // Storing this takes seconds, and is given up at the next piece.
    let mut child = demo.command(&["--large-size", "2GiB"]).spawn().unwrap();
    until(|| demo.text("err").contains("storing samples: ").then_some(()));
    signal(&child, Signal::INT);
    let said = demo.end(&mut child);
    assert_eq!((said.status.code(), said.status.signal()), (Some(130), None), "{}", said.err);
    assert!(said.err.contains("interrupted") && said.out.is_empty(), "{}{}", said.out, said.err);
    demo.left_nothing();
}

/// The demo is held while it reads the large object, and a small one is changed behind its back.
fn a_byte_that_differs_is_a_failure() {
    for large in ["64MiB", "256MiB", "1GiB"] {
        let demo = Demo::new();
        let mut child = demo.command(&["--large-size", large, "--small-count", "20"]).spawn().unwrap();
        until(|| demo.text("err").contains("storing samples: done").then_some(()));
        signal(&child, Signal::STOP);
        let stat = format!("/proc/{}/stat", child.id());
        until(|| fs::read_to_string(&stat).unwrap().rsplit_once(") ").unwrap().1.starts_with('T').then_some(()));
        let is_late = demo.text("err").contains("reading small objects");
        if !is_late {
            let place = demo.tmp().join(&names(&demo.tmp())[0]);
            let victim = place.join("buckets/demo/small/00/0007.bin");
            let mut content = fs::read(&victim).unwrap();
            content[100] ^= 1;
            fs::write(&victim, content).unwrap();
        }
        signal(&child, Signal::CONT);
        let said = demo.end(&mut child);
        demo.left_nothing();
        if !is_late {
            assert_eq!(said.status.code(), Some(1), "{}{}", said.out, said.err);
            // The mount compares it with what the store tells of it, before the demo compares it with what it stored.
            assert!(said.err.contains("small/00/0007.bin: Input/output error"), "{}", said.err);
            assert!(said.err.contains("is not the object that the store tells of"), "{}", said.err);
            return;
        }
    }
    panic!("it read 1 GiB before this test could hold it");
}

fn not_empty_is_refused() {
    let demo = Demo::new();
    fs::write(demo.file("mine"), "x").unwrap();
    let said = demo.run(&[demo.dir.path().to_str().unwrap()]);
    assert_eq!(said.status.code(), Some(2), "{}", said.err);
    assert!(said.err.contains("is not empty") && !said.err.contains("storing"), "{}", said.err);
    demo.left_nothing();
}

/// Either it works for nobody as well, or one line says what to install or whom to ask.
fn without_privilege_it_says_what_is_missing() {
    let demo = Demo::new();
    let mut command = demo.command(&["--large-size", "1MiB", "--small-count", "3"]);
    command.env("PATH", "/nowhere");
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
        std::os::unix::fs::chown(demo.dir.path(), Some(65_534), None).unwrap();
        std::os::unix::fs::chown(demo.tmp(), Some(65_534), None).unwrap();
    }
    let mut child = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            // The tree lies in a directory that only its owner enters.
            eprintln!("SKIPPED without_privilege_it_says_what_is_missing: nobody may not run the program: {error}");
            return;
        }
        spawned => spawned.unwrap(),
    };
    let said = demo.end(&mut child);
    assert_eq!(said.status.code(), Some(2), "{}{}", said.out, said.err);
    let device = said.err.contains("/dev/fuse") && (said.err.contains("chmod") || said.err.contains("modprobe fuse"));
    assert!(device || said.err.contains("install the package fuse3"), "{}", said.err);
    demo.left_nothing();
}
