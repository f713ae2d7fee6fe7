//! Programs that live in directories: they end well, and a second mount that has seen nothing shows the same tree.

use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;

use super::look::Look;
use super::support::mounts::{Daemon, Mount, lacks, trial, trial_unless, trial_with};
use super::support::python;
use super::support::{Habits, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_with(&["tar"], "tar_unpacks_and_packs_again", tar),
        trial_with(&["cp", "diff"], "cp_copies_a_tree_that_diff_finds_equal", cp),
        trial_with(&["git"], "git_clones_commits_and_finds_nothing_wrong", git),
        trial_with(&["rsync"], "rsync_copies_nothing_the_second_time", rsync),
        trial_with(&["python3"], "sqlite_keeps_its_integrity", sqlite),
        trial_with(&["dd"], "dd_with_fsync_is_in_the_store_when_it_ends", dd),
        trial_with(&["sh"], "shells_redirect_into_one_object", shell),
        trial_with(&["fio"], "fio_verifies_what_it_wrote_in_order_and_at_random", fio),
        trial_with(&["fsx"], "fsx_finds_every_byte_where_it_was_written", fsx),
        trial("weak_etags_are_read_renamed_and_edited", weak_tags),
        trial("editors_write_beside_and_rename_over", editor),
        trial_unless(|| vim_here().err(), "vim_edits_with_and_without_a_backup", vim),
        trial_unless(|| python::lacks("pip"), "pip_installs_a_package_that_can_be_imported", pip),
    ]
}

fn weak_tags() {
    let server = S3Server::start();
    server.behave(Habits { weak_tags: true, ..Habits::default() });
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    server.put("a", content.clone());
    server.put("d/b", content.clone());
    let mount = Daemon::new(&server).start();
    assert!(fs::read(mount.join("a")).expect("it can be read") == content);
    fs::rename(mount.join("a"), mount.join("renamed")).expect("it can be renamed");
    fs::rename(mount.join("d"), mount.join("e")).expect("its directory can be renamed");
    for name in ["renamed", "e/b"] {
        assert!(fs::read(mount.join(name)).expect("it can be read") == content, "{name}");
    }
    // In place: what is not written again comes from the version that is there, and replaces that one only.
    let file = fs::OpenOptions::new().write(true).open(mount.join("e/b")).expect("it can be opened");
    std::os::unix::fs::FileExt::write_all_at(&file, b"edited", 1_000).expect("it can be written");
    file.sync_all().expect("it can be stored");
    drop(file);
    let edited = [&content[..1_000], b"edited", &content[1_006..]].concat();
    assert!(server.stored("e/b").expect("it is there").0 == edited);
    assert!(fs::read(mount.join("e/b")).expect("it can be read") == edited);
}

/// Runs `script` in `directory` and panics with what it said when it fails.
#[track_caller]
fn sh(directory: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-e", "-c", script]).current_dir(directory).env("HOME", directory).output().expect("sh starts");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}: {}\n{said}", output.status);
    said
}

/// A tree of many small files, some large ones, deep directories, links and odd names.
fn tree(at: &Path) {
    for directory in 0..6 {
        let path = at.join(format!("dir {directory}/deeper/déep"));
        fs::create_dir_all(&path).expect("it is a fresh directory");
        for file in 0..12 {
            let content: Vec<u8> = (0..file * 3_000 + directory).map(|n: usize| (n * 7 + file) as u8).collect();
            fs::write(path.join(format!("file+{file}.txt")), content).expect("there is room");
        }
        std::os::unix::fs::symlink("deeper/déep/file+3.txt", at.join(format!("dir {directory}/link"))).expect("it is new");
    }
    fs::write(at.join("large.bin"), vec![0x5a; 20 << 20]).expect("there is room");
    fs::write(at.join("empty"), b"").expect("there is room");
    sh(at, "chmod 755 empty; mkdir hollow");
}

/// Compares `expected` with `path` of a mount that is made for it.
#[track_caller]
fn same_in_a_fresh_mount(server: &S3Server, expected: &Path, path: &str) {
    let mount = Daemon::new(server).flag("--read-only").start();
    sh(expected, &format!("diff -r --no-dereference . '{}'", mount.join(path).display()));
}

fn start(server: &S3Server) -> Mount {
    Daemon::new(server).start()
}

fn tar() {
    let (server, source) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    tree(source.path());
    let mount = start(&server);
    let archive = source.path().with_extension("tar");
    sh(source.path(), &format!("tar cf '{}' .", archive.display()));
    fs::create_dir(mount.join("out")).expect("it is new");
    sh(&mount.join("out"), &format!("tar xf '{}'", archive.display()));
    sh(source.path(), &format!("diff -r --no-dereference . '{}'", mount.join("out").display()));
    sh(&mount.join("out"), "tar cf ../again.tar . && tar df ../again.tar");
    drop(mount);
    fs::remove_file(archive).expect("it was made above");
    same_in_a_fresh_mount(&server, source.path(), "out");
}

fn cp() {
    let (server, source) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    tree(source.path());
    let mount = start(&server);
    sh(source.path(), &format!("cp -a . '{}'", mount.join("copy").display()));
    sh(mount.path(), &format!("diff -r --no-dereference '{}' copy", source.path().display()));
    sh(mount.path(), "cp -a copy second && diff -r --no-dereference copy second && rm -r second && test ! -e second");
    assert_eq!(sh(mount.path(), "stat -c %a copy/empty").trim(), "755");
    drop(mount);
    same_in_a_fresh_mount(&server, source.path(), "copy");
}

fn git() {
    let (server, source) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    tree(source.path());
    let who = "-c user.name=t -c user.email=t@example.org";
    sh(source.path(), &format!("git init -q . && git add . && git {who} commit -q -m first"));
    let mount = start(&server);
    sh(mount.path(), &format!("git clone -q '{}' work", source.path().display()));
    sh(
        &mount.join("work"),
        &format!("echo more >> empty && git {who} commit -q -a -m second && git mv empty full && git {who} commit -q -m third"),
    );
    sh(&mount.join("work"), "git fsck --strict && test -z \"$(git status --porcelain)\" && git gc -q && git fsck --strict");
    sh(source.path(), &format!("git pull -q '{}' HEAD", mount.join("work").display()));
    drop(mount);
    let second = Daemon::new(&server).start();
    sh(&second.join("work"), "git fsck --strict && git reset -q --hard && test \"$(git log --oneline | wc -l)\" = 3");
    sh(source.path(), &format!("rmdir hollow && diff -r --no-dereference --exclude=.git . '{}'", second.join("work").display()));
}

fn rsync() {
    let (server, source) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    tree(source.path());
    sh(
        source.path(),
        "printf '#!/bin/sh\necho runs\n' > script; chmod 755 script; touch -d '2020-02-02 02:02:02.123456789' script; chmod 750 .",
    );
    let command = |mount: &Mount| format!("rsync -a --itemize-changes ./ '{}/'", mount.join("copy").display());
    let mount = start(&server);
    assert!(sh(source.path(), &command(&mount)).contains(">f+++++++++ large.bin"));
    assert_eq!(sh(source.path(), &command(&mount)), "", "the second run has nothing to do");
    drop(mount);
    let mount = start(&server);
    assert_eq!(sh(source.path(), &command(&mount)), "", "nor has one in another mount");
    assert_eq!(sh(&mount.join("copy"), "./script"), "runs\n");
    drop(mount);
    same_in_a_fresh_mount(&server, source.path(), "copy");
}

fn sqlite() {
    let server = S3Server::start();
    let mount = start(&server);
    let script = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute('create table t (n integer primary key, text text)')
for turn in range(5):
    with db:
        db.executemany('insert into t (text) values (?)', [('row %d ' % n * 20,) for n in range(400)])
    with db:
        db.execute('delete from t where n % 3 = ?', (turn % 3,))
db.execute('vacuum')
print(db.execute('pragma integrity_check').fetchone()[0], db.execute('select count(*), sum(length(text)) from t').fetchone())
db.close()
";
    let python = |mount: &Mount, script: &str| {
        let output = Command::new("python3").args(["-c", script]).arg(mount.join("data.db")).output().expect("python3 starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let written = python(&mount, script);
    assert!(written.starts_with("ok "), "{written}");
    assert!(!mount.join("data.db-journal").exists());
    drop(mount);
    let second = Daemon::new(&server).start();
    let check = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute('pragma integrity_check').fetchone()[0], db.execute('select count(*), sum(length(text)) from t').fetchone())
";
    assert_eq!(python(&second, check), written);
}

fn dd() {
    let server = S3Server::start();
    let mount = start(&server);
    sh(mount.path(), "dd if=/dev/zero of=zeros bs=1M count=30 conv=fsync 2>/dev/null");
    assert_eq!(server.object("zeros").map(|content| content.len()), Some(30 << 20));
    sh(mount.path(), "dd if=/dev/urandom of=zeros bs=64k count=3 seek=100 conv=notrunc,fsync 2>/dev/null");
    let content = server.object("zeros").expect("it is there");
    assert_eq!(content.len(), 30 << 20);
    let (before, after) = (100 * (64 << 10), 103 * (64 << 10));
    assert!(content[..before].iter().all(|&byte| byte == 0) && content[after..].iter().all(|&byte| byte == 0));
    assert_eq!(&fs::read(mount.join("zeros")).expect("it can be read")[..], &content[..]);
}

fn shell() {
    let server = S3Server::start();
    server.put("out", "the old content");
    let mount = start(&server);
    sh(mount.path(), "(echo one; cat /dev/null; sh -c 'echo two'; echo three) > out; echo four >> out");
    assert_eq!(server.object("out").expect("it is there"), "one\ntwo\nthree\nfour\n");
    sh(mount.path(), ": > out; test ! -s out; touch new; test -f new");
    assert_eq!(server.object("out").expect("it is there"), "");
}

fn fio() {
    let server = S3Server::start();
    let mount = start(&server);
    for (rw, more) in [
        ("write", "--bs=64k --direct=1"),
        ("write", "--bs=64k --end_fsync=1"),
        ("write", "--bs=1M --direct=1 --size=40M --end_fsync=1"),
        ("write", "--bs=300k --size=40M --end_fsync=1"),
        ("randwrite", "--bs=64k --direct=0"),
        ("randwrite", "--bs=1M --direct=1"),
        ("randrw", "--bs=64k --fsync=32"),
        ("rw", "--bs=64k --direct=0"),
    ] {
        let options = "--size=12M --ioengine=psync --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal";
        sh(Path::new("/"), &format!("fio --name={rw} --filename='{}' --rw={rw} {options} {more}", mount.join(rw).display()));
    }
    assert_eq!(server.object("randwrite").map(|content| content.len()), Some(12 << 20));
}

/// The file system exerciser: reads, writes, maps, truncates and closes one file at random and compares every byte. `cargo install fsx`.
fn fsx() {
    let server = S3Server::start();
    let mount = start(&server);
    let place = tempfile::tempdir().expect("a temporary directory can be made");
    // Everything that a mount promises; copy_file_range and the like are done by the kernel with reads and writes.
    let weights = "[weights]\nclose_open = 5\nread = 20\nwrite = 20\nmapread = 10\nmapwrite = 10\ntruncate = 5\nfsync = 3\nfdatasync = 3\n\
                   punch_hole = 2\nposix_fallocate = 2\ninvalidate = 2\n";
    fs::write(place.path().join("fsx.toml"), weights).expect("there is room");
    for seed in 1..=4 {
        sh(place.path(), &format!("fsx -f fsx.toml -N 4000 -S {seed} '{}'", mount.join(format!("file{seed}")).display()));
        let content = fs::read(mount.join(format!("file{seed}"))).unwrap_or_default();
        assert_eq!(server.object(&format!("file{seed}")).unwrap_or_default(), content);
    }
}

fn editor() {
    let server = S3Server::start();
    server.put("text", "first\n");
    let mount = start(&server);
    for n in 0..5 {
        fs::rename(mount.join("text"), mount.join("text~")).expect("the backup is made");
        fs::write(mount.join(".text.swp"), format!("version {n}\n")).expect("it is written");
        fs::rename(mount.join(".text.swp"), mount.join("text")).expect("it takes the name");
        assert_eq!(fs::read_to_string(mount.join("text")).expect("it is there"), format!("version {n}\n"));
        assert_eq!(server.object("text").expect("it is there"), format!("version {n}\n"));
        fs::remove_file(mount.join("text~")).expect("it was made");
    }
    assert_eq!(fs::read_dir(mount.path()).expect("it can be listed").count(), 1);
}

/// Under either name that Debian's packages give it.
fn vim_here() -> Result<&'static str, String> {
    ["vim", "vim.tiny"].into_iter().find(|name| lacks(name).is_none()).ok_or_else(|| "neither vim nor vim.tiny is installed".to_owned())
}

fn vim() {
    let (server, vim) = (S3Server::start(), vim_here().expect("it was there a moment ago"));
    let text: String = (0..5000).map(|n| format!("line {n} of the text\n")).collect();
    let changed = text.replace("line 42 ", "LINE 42 ");
    // Before anything is listed: what others add is seen within the time that absence is believed.
    (0..3).for_each(|n| drop(server.put(&format!("text{n}"), text.clone())));
    let mount = start(&server);
    // (By itself it makes no backup of what is below /tmp.) No backup, one that is the renamed original, one that is a copy; each with a swap file beside the text, and fsync.
    let ways = [("nobackup nowritebackup", false), ("backup backupcopy=no", true), ("backup backupcopy=yes", true)];
    for (n, (way, has_backup)) in ways.into_iter().enumerate() {
        let name = format!("text{n}");
        sh(
            mount.path(),
            &format!(
                "{vim} -es -N -u NONE -i NONE -c 'set directory=. backupdir=. backupskip= {way}' -c '%s/^line 42 /LINE 42 /' -c wq {name}"
            ),
        );
        assert_eq!(server.object(&name).expect("it is there"), changed, "{way}");
        assert_eq!(fs::read_to_string(mount.join(&name)).expect("it is there"), changed, "{way}");
        let backup = server.object(&format!("{name}~"));
        assert_eq!(backup.map(|content| content == text), has_backup.then_some(true), "{way}");
    }
    let mut names: Vec<_> =
        fs::read_dir(mount.path()).expect("it can be listed").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["text0", "text1", "text1~", "text2", "text2~"], "no swap file is left");
}

/// A wheel as `build` would make it, made with nothing but zipfile.
const WHEEL: &str = r#"
import base64, hashlib, sys, zipfile
info = 'windlass_probe-1.0.dist-info/'
files = {
    'windlass_probe/__init__.py': 'from .answer import answer\n',
    'windlass_probe/answer.py': 'from importlib import resources\n\n\ndef answer():\n    return len(resources.read_binary(__package__, "data.bin"))\n',
    'windlass_probe/data.bin': 'x' * 300_000,
    info + 'METADATA': 'Metadata-Version: 2.1\nName: windlass-probe\nVersion: 1.0\n',
    info + 'WHEEL': 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    info + 'entry_points.txt': '[console_scripts]\nwindlass-probe = windlass_probe:answer\n',
}
def line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b'=').decode()
    return f'{name},sha256={digest},{len(content)}\n'
record = ''.join(line(*item) for item in files.items()) + info + 'RECORD,,\n'
with zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED) as wheel:
    for name, content in (files | {info + 'RECORD': record}).items():
        wheel.writestr(name, content)
"#;

fn pip() {
    let (server, place) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    let wheel = place.path().join("windlass_probe-1.0-py3-none-any.whl");
    python::run(WHEEL, &[&wheel]);
    let python = python::path();
    let mount = start(&server);
    let install = "install --quiet --disable-pip-version-check --no-index --no-deps --no-cache-dir";
    let command = format!("'{}' -m pip {install} --target site '{}'", python.display(), wheel.display());
    sh(mount.path(), &command);
    // Again, over what is there.
    sh(mount.path(), &command.replace("install ", "install --upgrade "));
    let import =
        "import sys; sys.path.insert(0, sys.argv[1]); import windlass_probe; print(windlass_probe.__file__, windlass_probe.answer())";
    let imported = |mount: &Mount| python::run(import, &[&mount.join("site")]);
    let expected = |mount: &Mount| format!("{} 300000", mount.join("site/windlass_probe/__init__.py").display());
    assert_eq!(imported(&mount), expected(&mount));
    assert_eq!(server.object("site/windlass_probe/data.bin").map(|content| content.len()), Some(300_000));
    assert!(server.object("site/bin/windlass-probe").is_some());
    drop(mount);
    let second = Daemon::new(&server).flag("--read-only").start();
    assert_eq!(imported(&second), expected(&second));
}
