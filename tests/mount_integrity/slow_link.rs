//! Programs over a link of 5 MB/s and 50 ms on which something happens: none sees an error, no byte is another one, and little is transferred
//! twice. How fast they are again is asserted in virtual time (`tests/sim_network.rs`); here it is printed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::support::mounts::{Daemon, Mount, trial};
use crate::support::relay::{Link, Relay};
use crate::support::{BUCKET, Effect, Fault, Kind, REGION, S3Server};

const MIB: u64 = 1 << 20;

/// How long each kind of trouble lasts, and when it begins.
const LASTS: Duration = Duration::from_secs(20);
const BEGINS: Duration = Duration::from_secs(5);

/// Bytes of a part of an upload: what a failed request can cost.
const PART: u64 = 8 * MIB;

pub fn trials() -> Vec<Trial> {
    vec![trial("slow_link_with_faults_shows_no_error", slow_link_with_faults_shows_no_error)]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// A connection is reset after 16 MiB on average.
    Resets,
    Outage,
    /// Each request is refused with 503.
    Refusals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    SixteenStreams,
    GetRecursive,
    Writing,
}

impl Load {
    /// Files, and bytes of each.
    fn files(self) -> (u64, u64) {
        match self {
            Self::SixteenStreams => (16, 8 * MIB),
            Self::GetRecursive => (256, MIB / 2),
            Self::Writing => (4, 3 * PART),
        }
    }
}

fn slow_link_with_faults_shows_no_error() {
    let troubles = [Trouble::Resets, Trouble::Outage, Trouble::Refusals];
    let loads = [Load::SixteenStreams, Load::GetRecursive, Load::Writing];
    // All at once: the links are slow, not the machine.
    let runs: Vec<_> = troubles.into_iter().flat_map(|trouble| loads.map(|load| thread::spawn(move || run(load, trouble)))).collect();
    let failed = runs.into_iter().filter_map(|run| run.join().err()).count();
    assert_eq!(failed, 0, "runs that failed");
}

fn run(load: Load, trouble: Trouble) {
    let server = S3Server::start();
    let reset_every = (trouble == Trouble::Resets).then_some(16 * MIB);
    let relay = Relay::start(server.port(), Link { bytes_per_second: 5_000_000, round_trip: Duration::from_millis(50), reset_every });
    let mount = Daemon::new(&server).through(&relay.endpoint()).env("WINDLASS_STALL_TIMEOUT", "5s").env("WINDLASS_HEDGE", "true");
    // By default all of these files would be asked for before the trouble begins.
    let mount = mount.flags(&["--chunk-size=1MiB", "--prefetch-chunks=2"]).start();
    let (files, size) = load.files();
    if load != Load::Writing {
        for n in 0..files {
            server.put_synthetic(&format!("d/{n}"), size);
        }
    }
    let started = Instant::now();
    thread::scope(|scope| {
        let work = scope.spawn(|| match load {
            Load::SixteenStreams => read(&server, &mount),
            Load::GetRecursive => get(&server, &relay),
            Load::Writing => write(&server, &mount),
        });
        thread::sleep(BEGINS);
        match trouble {
            Trouble::Resets => {}
            Trouble::Outage => relay.cut(),
            Trouble::Refusals => server.fault(Fault::new(Effect::Status(503))),
        }
        assert!(!work.is_finished(), "the trouble comes too late");
        thread::sleep(LASTS);
        relay.restore();
        server.clear_faults();
        if let Err(panic) = work.join() {
            std::panic::resume_unwind(panic);
        }
    });
    let (bytes, moved) = (files * size, if load == Load::Writing { relay.up_bytes() } else { relay.down_bytes() });
    let (ratio, resets) = (moved as f64 / bytes as f64, relay.resets());
    println!("{load:?}, {trouble:?}: {:.1?} for {} MiB, {ratio:.3} bytes for each, {resets} resets", started.elapsed(), bytes / MIB);
    assert!(mount.is_mounted(), "{}", mount.log());
    if load == Load::Writing {
        // A part that does not arrive, or is refused after its last byte, is sent again as a whole: all parts that are under way once, few of them
        // twice.
        let parts = server.of_kind(Kind::UploadPart);
        let (failed, needed) = (parts.iter().filter(|part| part.status != 200).count() as u64, bytes / PART);
        assert!(failed <= 2 * needed, "{failed} of {} parts failed", parts.len());
        assert!(moved <= bytes / 20 * 21 + (failed + resets as u64) * PART, "{ratio} with {failed} parts that failed");
        return;
    }
    // A range goes on where it stopped.
    match trouble {
        Trouble::Resets => assert!(resets > 3 && ratio <= 1.1, "{ratio} with {resets} resets"),
        Trouble::Outage => assert!(ratio <= 1.1, "{ratio}"),
        Trouble::Refusals => assert!(ratio <= 1.05, "{ratio}"),
    }
}

/// Reads all files at the same time, one thread each.
fn read(server: &S3Server, mount: &Mount) {
    let (files, size) = Load::SixteenStreams.files();
    thread::scope(|scope| {
        for n in 0..files {
            scope.spawn(move || {
                let content = server.synthetic(&format!("d/{n}")).expect("it is there");
                let mut file = File::open(mount.join(format!("d/{n}"))).expect("it can be opened");
                let (mut at, mut piece) = (0, vec![0; 256 << 10]);
                while at < size {
                    let got = file.read(&mut piece).unwrap_or_else(|error| panic!("{n} at {at}: {error}"));
                    assert!(got > 0 && content.matches(at, &piece[..got]), "other bytes of {n} at {at}");
                    at += got as u64;
                }
            });
        }
    });
}

/// Has `windlass get --recursive` bring all of them.
fn get(server: &S3Server, relay: &Relay) {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let dest = dir.path().join("d");
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(["get", "--recursive", &format!("s3://{BUCKET}/d/")]).arg(&dest).args(["--path-style", "--region", REGION]);
    command.args(["--endpoint", &relay.endpoint()]).env_clear().env("PATH", "/usr/bin:/bin").envs(server.client_env());
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (files, size) = Load::GetRecursive.files();
    for n in 0..files {
        let (content, brought) = (server.synthetic(&format!("d/{n}")).expect("it is there"), read_whole(&dest.join(n.to_string())));
        assert!(brought.len() as u64 == size && content.matches(0, &brought), "other bytes of {n}");
    }
}

/// Writes all files at the same time.
fn write(server: &S3Server, mount: &Mount) {
    let (files, size) = Load::Writing.files();
    let content = |n: u64| (0..size / 8).flat_map(|word| (word * 31 + n).to_le_bytes()).collect::<Vec<u8>>();
    thread::scope(|scope| {
        for n in 0..files {
            scope.spawn(move || {
                let (path, content) = (mount.join(n.to_string()), content(n));
                let mut file = File::create(&path).expect("it can be made");
                content.chunks(MIB as usize).for_each(|piece| file.write_all(piece).expect("it can be written"));
                file.sync_all().expect("it is stored");
                drop(file);
                let (stored, _) = server.stored(&n.to_string()).expect("it is there");
                assert!(stored == content, "other bytes of {n}");
            });
        }
    });
}

fn read_whole(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
