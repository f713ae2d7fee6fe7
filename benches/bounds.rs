//! How near a mount can come to its network on this machine. Store, client, kernel and reader share the processors, so what a read through
//! the kernel costs beside the requests is lost to the requests: measured are requests alone (range GETs, UploadPart), FUSE alone (a
//! file system whose reads are answered from one buffer and whose writes are thrown away, by fuser's own loop), and a mount by windlass,
//! in turns, each with the processor time of everybody who takes part. Where the two parts saturate the machine, no daemon that copies what
//! it received into the kernel can be faster than the requests' share of their sum; the daemon's own work comes on top.
//!
//! The same is then done over a network, 20 ms to the first byte and 90 MB/s a connection, where a mount has to have as much in flight as the requests
//! alone to be as fast.
//!
//! `cargo bench --bench bounds`; under `cargo test` (as CI runs it) one short round. Needs /dev/fuse and root, and says so.

mod support;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use bytes::Bytes;
use fuser::{Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo, LockOwner, MountOption, OpenFlags};
use fuser::{InitFlags, KernelConfig, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags};
use futures::{StreamExt, TryStreamExt, stream};
use rustix::fs::OFlags;
use windlass::store::{
    self, Condition, CredentialOptions, ETag, Headers, Key, ObjectStore, RangeRequest, RangeSink, StaticKeys, UploadRequest,
};
use windlass::sys::{Memory, Window};

use support::sink::{self, Network, SIZE};
use support::{Mount, is_short};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
const MIB: usize = 1 << 20;
const CHUNK: usize = 4 * MIB;
const PART: usize = 8 * MIB;
const AT_ONCE: usize = 4;

/// As far away as a bucket of the same region, and so many requests at once that more would not be faster.
const FAR: Network = Network { first_byte: Duration::from_millis(20), bytes_per_second: Some(90_000_000) };
const FAR_AT_ONCE: usize = 64;

/// Bytes per second, and processor seconds a GiB: of everybody together, and of the daemon.
#[derive(Clone, Copy)]
struct Figure {
    rate: f64,
    cpu: f64,
    daemon: f64,
}

/// How requests alone, FUSE alone and a mount are measured.
type Ways<'a, const N: usize> = [&'a dyn Fn() -> Figure; N];

fn main() {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("bounds: not run, /dev/fuse: {error}");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("bounds: not run, FUSE alone is mounted by mount(2), which takes root");
        return;
    }
    let (bytes, rounds) = if is_short() { (64 * MIB, 1) } else { (SIZE as usize, 5) };
    let port = sink::serve();
    let mount = Mount::start(port, &[]);
    let null = Null::mount();
    let daemon = Some(mount.pid());
    let ways: [(&str, Ways<'_, 3>); 3] = [
        (
            "reading, O_DIRECT",
            [
                &|| measure(None, bytes, || get(port, bytes, AT_ONCE)),
                &|| measure(None, bytes, || read(&null.path(), bytes, OFlags::DIRECT)),
                &|| measure(daemon, bytes, || read(&mount.path(), bytes, OFlags::DIRECT)),
            ],
        ),
        (
            "reading through the kernel's pages",
            [
                &|| measure(None, bytes, || get(port, bytes, AT_ONCE)),
                &|| measure(None, bytes, || read(&null.path(), bytes, OFlags::empty())),
                &|| measure(daemon, bytes, || read(&mount.path(), bytes, OFlags::empty())),
            ],
        ),
        (
            "writing",
            [
                &|| measure(None, bytes, || put(port, bytes, AT_ONCE)),
                &|| measure(None, bytes, || write(&null.path().join("object"), bytes)),
                &|| measure(daemon, bytes, || write(&mount.path().join("new"), bytes)),
            ],
        ),
    ];
    for (name, parts) in ways {
        let rounds: Vec<[Figure; 3]> = (0..rounds).map(|_| parts.map(|part| part())).collect();
        report(name, &rounds);
    }
    let port = sink::serve_over(FAR);
    let mount = Mount::start(port, &[]);
    let daemon = Some(mount.pid());
    let ways: [(&str, Ways<'_, 2>); 2] = [
        (
            "reading over a network, O_DIRECT",
            [&|| measure(None, bytes, || get(port, bytes, FAR_AT_ONCE)), &|| {
                measure(daemon, bytes, || read(&mount.path(), bytes, OFlags::DIRECT))
            }],
        ),
        (
            "writing over a network",
            [&|| measure(None, bytes, || put(port, bytes, FAR_AT_ONCE)), &|| {
                measure(daemon, bytes, || write(&mount.path().join("new"), bytes))
            }],
        ),
    ];
    for (name, parts) in ways {
        let rounds: Vec<[Figure; 2]> = (0..rounds).map(|_| parts.map(|part| part())).collect();
        let [alone, mounted] = medians(&rounds);
        print(name, &[("requests alone", alone), ("a mount", mounted)]);
        println!("  reached {:.2} of the requests alone", mounted.rate / alone.rate);
    }
}

fn report(name: &str, rounds: &[[Figure; 3]]) {
    let [alone, fuse, mounted] = medians(rounds);
    print(name, &[("requests alone", alone), ("FUSE alone", fuse), ("a mount", mounted)]);
    let (reached, most) = (mounted.rate / alone.rate, alone.cpu / (alone.cpu + fuse.cpu));
    println!(
        "  the daemon takes {:.2} of these; reached {reached:.2} of the requests alone, where {most:.2} is what FUSE leaves",
        mounted.daemon
    );
}

fn medians<const N: usize>(rounds: &[[Figure; N]]) -> [Figure; N] {
    let median = |part: usize, of: fn(&Figure) -> f64| support::median(rounds.iter().map(|round| of(&round[part])));
    std::array::from_fn(|part| Figure { rate: median(part, |f| f.rate), cpu: median(part, |f| f.cpu), daemon: median(part, |f| f.daemon) })
}

fn print(name: &str, figures: &[(&str, Figure)]) {
    println!("{name}:");
    for (what, figure) in figures {
        println!("  {what:<16}{:>7.0} MB/s {:>7.2} CPU-s per GiB of all who take part", figure.rate / 1e6, figure.cpu);
    }
}

fn measure(daemon: Option<u32>, bytes: usize, work: impl FnOnce()) -> Figure {
    let used = || (support::cpu_seconds(std::process::id()), daemon.map_or(0.0, support::cpu_seconds));
    let (began, before) = (Instant::now(), used());
    work();
    let (rate, after) = (bytes as f64 / began.elapsed().as_secs_f64(), used());
    // Store and readers run in this process.
    let [own, daemon] = [after.0 - before.0, after.1 - before.1].map(|seconds| seconds / (bytes as f64 / GIB));
    Figure { rate, cpu: own + daemon, daemon }
}

async fn open(port: u16) -> Arc<impl ObjectStore> {
    let keys = StaticKeys { id: "id".into(), secret: "secret".into(), token: None };
    let options = store::Options {
        bucket: "bench".into(),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: Some("us-east-1".into()),
        credentials: CredentialOptions { keys: Some(keys), ..CredentialOptions::default() },
        ..store::Options::default()
    };
    store::open(&options, Arc::default()).await.expect("the options are right")
}

/// Memory as chunks and parts have it: on huge pages.
fn memory(len: usize) -> Window<Memory> {
    Window::new(Memory::map(len).expect("there is memory"), len)
}

struct Part(Window<Memory>);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Memory that is used again and again, as that of a chunk is.
struct Reused {
    memory: Window<Memory>,
    filled: usize,
}

impl RangeSink for Reused {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.filled..]
    }

    fn advance(&mut self, n: usize) {
        self.filled += n;
    }
}

/// Range GETs, `at_once` at a time, into memory.
fn get(port: u16, bytes: usize, at_once: usize) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let store = open(port).await;
        let readers = (0..at_once).map(|reader| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut sink = Reused { memory: memory(CHUNK), filled: 0 };
                for chunk in (reader..bytes / CHUNK).step_by(at_once) {
                    sink.filled = 0;
                    let at = (chunk * CHUNK) as u64;
                    let request = RangeRequest { key: Key::from("object"), range: at..at + CHUNK as u64, etag: ETag::from(support::ETAG) };
                    store.get_range(&request, &mut sink).await.expect("the store fails nothing");
                    assert_eq!(sink.filled, CHUNK);
                }
            })
        });
        futures::future::try_join_all(readers).await.expect("none panics");
    });
}

/// UploadPart requests, `at_once` at a time, from memory.
fn put(port: u16, bytes: usize, at_once: usize) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let store = open(port).await;
        // More than a processor keeps at hand, as a writer has it.
        let filled = |n: usize| {
            let mut memory = memory(PART);
            memory.bytes_mut().fill(n as u8);
            Bytes::from_owner(Part(memory))
        };
        let parts: Vec<Bytes> = (0..AT_ONCE).map(filled).collect();
        let upload =
            Arc::new(store.create_upload(&UploadRequest::new(&Key::from("raw"), &Headers::default())).await.expect("the sink takes it"));
        let send = |n: usize| {
            let (store, upload, part) = (Arc::clone(&store), Arc::clone(&upload), parts[n % AT_ONCE].clone());
            tokio::spawn(async move { store.upload_part(&upload, u32::try_from(n + 1).expect("few parts"), part.into()).await })
        };
        let sent: Vec<_> = stream::iter(0..bytes / PART).map(send).buffered(at_once).try_collect().await.expect("none panics");
        let sent: Vec<_> = sent.into_iter().collect::<Result<_, _>>().expect("the sink takes it");
        store.complete_upload(&upload, &sent, &Condition::Any).await.expect("the sink takes it");
    });
}

fn read(directory: &Path, bytes: usize, flags: OFlags) {
    let path = directory.join("object");
    let mut file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).expect("it is there");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("a file has pages");
    // O_DIRECT wants memory on the border of a page.
    let mut memory = vec![0; MIB + 4096];
    let from = memory.as_ptr().align_offset(4096);
    for _ in 0..bytes / MIB {
        file.read_exact(&mut memory[from..from + MIB]).expect("it has so many bytes");
    }
}

fn write(path: &Path, bytes: usize) {
    let piece = vec![7; MIB];
    let mut file = File::options().write(true).create(true).truncate(true).open(path).expect("it can be made");
    for _ in 0..bytes / MIB {
        file.write_all(&piece).expect("it is taken");
    }
    file.sync_all().expect("it is in the store");
}

/// A file system with one file, that costs as little as one can.
struct Null(Vec<u8>);

/// Where it is mounted. Unmounted with the value.
struct NullMount {
    directory: tempfile::TempDir,
    _session: fuser::BackgroundSession,
}

impl NullMount {
    fn path(&self) -> std::path::PathBuf {
        assert!(support::is_mounted(self.directory.path()), "it is not mounted any more");
        self.directory.path().to_owned()
    }
}

impl Null {
    fn mount() -> NullMount {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let mut config = fuser::Config::default();
        config.mount_options = vec![MountOption::FSName("null".into())];
        config.n_threads = Some(2);
        config.clone_fd = true;
        let session = fuser::spawn_mount(Self(vec![7; MIB]), directory.path(), &config).expect("root may mount");
        NullMount { directory, _session: session }
    }

    fn attributes(ino: u64) -> FileAttr {
        let (kind, size) = if ino == 1 { (FileType::Directory, 0) } else { (FileType::RegularFile, SIZE) };
        let perm = if ino == 1 { 0o755 } else { 0o644 };
        let [atime, mtime, ctime, crtime] = [UNIX_EPOCH; 4];
        let blocks = size / 512;
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

const TTL: Duration = Duration::from_secs(60);

impl Filesystem for Null {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // What windlass asks for.
        let _ = config.set_max_readahead(16 * MIB as u32);
        let _ = config.set_max_write(MIB as u32);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_READ | InitFlags::FUSE_MAX_PAGES | InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("object") => reply.entry(&TTL, &Self::attributes(2), fuser::Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &Self::attributes(ino.0));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &Self::attributes(ino.0));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // Writes go past the kernel's pages, as those of windlass do.
        let is_read = flags.acc_mode() == fuser::OpenAccMode::O_RDONLY;
        reply.opened(FileHandle(1), if is_read { fuser::FopenFlags::empty() } else { fuser::FopenFlags::FOPEN_DIRECT_IO });
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        reply.data(&self.0[..(size as usize).min(MIB)]);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _how: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: fuser::ReplyEmpty) {
        reply.ok();
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: fuser::ReplyEmpty) {
        reply.ok();
    }
}
