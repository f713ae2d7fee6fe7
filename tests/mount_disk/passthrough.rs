//! Files that are on the disk from end to end are read by the kernel itself: the daemon sees no READ.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use windlass::store::memory::Synthetic;

use crate::bytes::{MIB, Through, open, read_and_compare};
use crate::disk::{data_files, end, wait_for_bytes};
use crate::kept::cached;
use crate::support::mounts::{Daemon, Mount, PATIENCE, trial, trial_as_root};
use crate::support::{Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_file_that_is_all_on_the_disk_is_read_without_the_daemon", without_the_daemon),
        trial_as_root("a_passed_file_that_is_replaced_is_read_to_its_end_and_then_anew", replaced_while_open),
        trial_as_root("a_passed_file_that_is_evicted_is_read_to_its_end", evicted_while_open),
        trial_as_root("a_passed_file_that_is_mapped_stays_as_it_was_after_it_was_closed_and_evicted", mapped_and_closed),
        trial_as_root("a_passed_file_can_be_written_by_others", written_while_open),
        trial_as_root("a_mapping_for_writing_never_reaches_the_file_on_the_disk", mapped_for_writing),
        trial("a_file_is_fetched_once_however_often_it_is_opened", often),
    ]
}

const SIZE: u64 = 48 * MIB;

/// Bytes that the daemon sent to whomever, proc_pid_io(5): replies to reads are among them.
fn sent_bytes(mount: &Mount) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", mount.pid())).expect("the daemon runs");
    io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).expect("the kernel counts them")
}

/// Reads all of `path` until the daemon has nothing to do with it.
#[track_caller]
fn read_until_passed(mount: &Mount, path: &Path, content: Synthetic) {
    let end = Instant::now() + PATIENCE;
    loop {
        let before = sent_bytes(mount);
        let file = open(path, Through::Pages);
        // What the kernel has in its own pages would not come from the daemon either.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("it is a file");
        read_and_compare(&file, content, 0..SIZE, MIB);
        if sent_bytes(mount) - before < MIB {
            return;
        }
        assert!(Instant::now() < end, "the daemon goes on reading {}:\n{}", path.display(), mount.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn without_the_daemon() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("k", SIZE);
    let mount = cached(&server, disk.path());
    read_and_compare(&open(&mount.join("k"), Through::Direct), content, 0..SIZE, MIB);
    wait_for_bytes(disk.path(), SIZE);
    end(mount);
    server.reset_log();
    let mount = cached(&server, disk.path());
    read_until_passed(&mount, &mount.join("k"), content);
    // All ways of reading.
    let before = sent_bytes(&mount);
    read_and_compare(&open(&mount.join("k"), Through::Pages), content, 0..SIZE, 64 << 10);
    let two = [open(&mount.join("k"), Through::Pages), open(&mount.join("k"), Through::Pages)];
    for file in &two {
        read_and_compare(file, content, SIZE / 2..SIZE, MIB);
    }
    let sum = |path: &Path| Command::new("python3").args(["-c", MAPPED]).arg(path).output().expect("python3 is there").stdout;
    assert_eq!(sum(&mount.join("k")), sum(&data_files(disk.path())[0]));
    assert!(sent_bytes(&mount) - before < MIB);
    // With O_DIRECT it is the daemon that reads, beside those.
    read_and_compare(&open(&mount.join("k"), Through::Direct), content, 0..SIZE, MIB);
    assert!(sent_bytes(&mount) - before > SIZE);
    assert_eq!(server.count(Kind::Get), 0);
}

/// A checksum by mmap.
const MAPPED: &str = "import mmap,sys,zlib; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ); print(zlib.crc32(m))";

fn replaced_while_open() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("k", SIZE);
    let mount = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", disk.path().to_str().expect("it is text"));
    let mount = mount.arg("--stat-cache-ttl", "0").start();
    read_and_compare(&open(&mount.join("k"), Through::Direct), content, 0..SIZE, MIB);
    read_until_passed(&mount, &mount.join("k"), content);
    let old = open(&mount.join("k"), Through::Pages);
    read_and_compare(&old, content, 0..MIB, MIB);
    server.put("k", vec![9; 3 << 20]);
    assert_eq!(fs::read(mount.join("k")).expect("the new version is there"), vec![9; 3 << 20]);
    read_and_compare(&old, content, MIB..SIZE, MIB);
}

fn evicted_while_open() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("k", SIZE);
    let others: Vec<_> = (0..4).map(|n| server.put_synthetic(&format!("other{n}"), SIZE)).collect();
    let mount = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", disk.path().to_str().expect("it is text"));
    let mount = mount.arg("--spill-max", "112MiB").start();
    read_and_compare(&open(&mount.join("k"), Through::Direct), content, 0..SIZE, MIB);
    read_until_passed(&mount, &mount.join("k"), content);
    let held = open(&mount.join("k"), Through::Pages);
    for (n, &other) in others.iter().enumerate() {
        for _ in 0..2 {
            read_and_compare(&open(&mount.join(format!("other{n}")), Through::Direct), other, 0..SIZE, MIB);
        }
    }
    read_and_compare(&held, content, 0..SIZE, MIB);
}

/// Maps a file, closes it, says so, and tells the checksum of the mapping when it is asked to. Python's own mmap would keep it open.
const MAP_AND_CLOSE: &str = "import ctypes,os,sys,zlib
fd=os.open(sys.argv[1],os.O_RDONLY); size=os.fstat(fd).st_size
map=ctypes.CDLL(None).mmap; map.restype=ctypes.c_void_p
map.argtypes=[ctypes.c_void_p,ctypes.c_size_t,ctypes.c_int,ctypes.c_int,ctypes.c_int,ctypes.c_long]
at=map(None,size,1,1,fd,0); os.close(fd)
print('mapped',flush=True); sys.stdin.readline(); print(zlib.crc32((ctypes.c_char*size).from_address(at)))";

fn mapped_and_closed() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let (content, other) = (server.put_synthetic("k", SIZE), server.put_synthetic("other", SIZE));
    let mount = Daemon::new(&server).arg("--read-mode", "cached").arg("--spill-dir", disk.path().to_str().expect("it is text"));
    let mount = mount.arg("--spill-max", "64MiB").start();
    read_and_compare(&open(&mount.join("k"), Through::Direct), content, 0..SIZE, MIB);
    read_until_passed(&mount, &mount.join("k"), content);
    let sum = Command::new("python3").args(["-c", MAPPED]).arg(mount.join("k")).output().expect("python3 is there").stdout;
    let mut mapping = Command::new("python3")
        .args(["-c", MAP_AND_CLOSE])
        .arg(mount.join("k"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is there");
    let mut said = BufReader::new(mapping.stdout.take().expect("it was asked for"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it goes on");
    assert_eq!(line, "mapped\n");
    // There is no room for both.
    for _ in 0..3 {
        read_and_compare(&open(&mount.join("other"), Through::Direct), other, 0..SIZE, MIB);
    }
    let evicted = Command::new(env!("CARGO_BIN_EXE_windlass")).arg("evict").arg(mount.join("k")).output().expect("it starts");
    assert!(evicted.status.success(), "{}", String::from_utf8_lossy(&evicted.stderr));
    mapping.stdin.take().expect("it was asked for").write_all(b"go on\n").expect("it listens");
    let mut seen = Vec::new();
    said.read_to_end(&mut seen).expect("it ends");
    assert!(mapping.wait().expect("it ends").success(), "the mapping lost its file");
    assert_eq!(String::from_utf8_lossy(&seen), String::from_utf8_lossy(&sum));
}

/// Changes a file through a shared mapping.
const MAP_AND_WRITE: &str = "import mmap,os,sys
fd=os.open(sys.argv[1],os.O_RDWR)
m=mmap.mmap(fd,0,flags=mmap.MAP_SHARED,prot=mmap.PROT_READ|mmap.PROT_WRITE); m[5:12]=b'changed'; m.flush(); m.close(); os.close(fd)";

fn mapped_for_writing() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("k", SIZE);
    let mount = cached(&server, disk.path());
    read_and_compare(&open(&mount.join("k"), Through::Direct), content, 0..SIZE, MIB);
    read_until_passed(&mount, &mount.join("k"), content);
    let (passed, kept) = (open(&mount.join("k"), Through::Pages), File::open(&data_files(disk.path())[0]).expect("it is there"));
    let wrote = Command::new("python3").args(["-c", MAP_AND_WRITE]).arg(mount.join("k")).output().expect("python3 is there");
    assert!(wrote.status.success(), "{}", String::from_utf8_lossy(&wrote.stderr));
    read_and_compare(&passed, content, 0..SIZE, MIB);
    read_and_compare(&kept, content, 0..SIZE, MIB);
    drop(passed);
    assert_eq!(&server.stored("k").expect("it is there").0[5..12], b"changed");
    assert_eq!(&fs::read(mount.join("k")).expect("it is there")[5..12], b"changed");
}

fn written_while_open() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("k", SIZE);
    let mount = cached(&server, disk.path());
    read_and_compare(&open(&mount.join("k"), Through::Direct), content, 0..SIZE, MIB);
    read_until_passed(&mount, &mount.join("k"), content);
    let passed = open(&mount.join("k"), Through::Pages);
    let editor = File::options().read(true).write(true).open(mount.join("k")).expect("it can be opened for writing");
    editor.write_all_at(b"changed", 5).expect("it can be written");
    let mut seen = [0; 7];
    editor.read_exact_at(&mut seen, 5).expect("it can be read");
    assert_eq!(&seen, b"changed");
    // Whoever has opened it before reads the version that was there, to the end.
    read_and_compare(&passed, content, 0..SIZE, MIB);
    editor.sync_all().expect("it is in the store");
    drop((editor, passed));
    let now = fs::read(mount.join("k")).expect("it is there");
    assert_eq!(&now[5..12], b"changed");
    assert_eq!(server.stored("k").expect("it is there").0, now);
}

fn often() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().expect("it can be made"));
    let content = server.put_synthetic("k", SIZE);
    let mount = cached(&server, disk.path());
    for _ in 0..3 {
        read_and_compare(&open(&mount.join("k"), Through::Pages), content, 0..SIZE, MIB);
        wait_for_bytes(disk.path(), SIZE);
    }
    assert_eq!(
        server
            .requests()
            .iter()
            .filter(|request| request.kind == Kind::Get)
            .filter_map(|get| get.range.as_ref())
            .map(|range| range.end - range.start)
            .sum::<u64>(),
        SIZE
    );
}
