//! The whole of a read-write mount but the kernel, over the store in memory: random sequences of operations with two handles must give what
//! a directory of this machine gives. Nothing here waits in real time.

mod support;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::Config;
use windlass::store::memory::{Latency, Memory, Plan};
use windlass::units::ByteSize;
use windlass::writer::{self, Limits};

use support::model::{How, Pair, Step, steps};
use support::real_world::RealWorld;
use support::vfs_world::VfsWorld;

/// What is believed gets old between the steps of a slow store.
fn agree_at(latency: Duration, steps: &[Step]) {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(latency), ..Plan::default() });
    store.set_least_part(1000);
    let staging = tempfile::tempdir().expect("a temporary directory can be made");
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let mut subject = VfsWorld::new(Arc::new(store.clone()), small(staging.path()));
    let mut reference = RealWorld::new(directory.path());
    let mut pair = Pair::new(&mut subject, &mut reference);
    for step in steps {
        pair.take(step);
    }
    pair.finish();
    // Uploads that were given up are aborted behind the writer's back.
    subject.runtime.block_on(subject.edits.settle());
    // What is in the store is what a second mount sees.
    let mut other = VfsWorld::new(Arc::new(store.clone()), small(staging.path()));
    Pair::new(&mut other, &mut reference).finish();
    assert_eq!(store.uploads(), [], "an upload was left behind");
}

fn agree(steps: &[Step]) {
    agree_at(Duration::ZERO, steps);
}

/// Parts so small that files have many.
fn small(staging: &std::path::Path) -> writer::Options {
    let limits = Limits { least_part: 1000, copied_part: 4000, ahead: 3000, kept: 2000, ..Limits::default() };
    let staging = writer::staging::Options { dir: Some(staging.to_owned()), ..Default::default() };
    writer::Options { part_size: ByteSize::bytes(1000), limits, staging, ..Default::default() }
}

proptest! {
    #![proptest_config(Config { max_shrink_iters: 4000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_mount_does_what_a_directory_does(milliseconds in prop_oneof![Just(0), Just(20), Just(400)], steps in steps(60, 20_000)) {
        agree_at(Duration::from_millis(milliseconds), &steps);
    }
}

#[test]
fn a_file_is_written_and_read_back() {
    let open = |create| Step::Open { handle: 0, path: "a".into(), how: How { create, exclusive: false, truncate: false } };
    agree(&[
        open(true),
        Step::Append { handle: 0, len: 10_000, seed: 1 },
        Step::Read { handle: 0, offset: 10, len: 100 },
        Step::Close { handle: 0 },
        open(false),
        Step::Write { handle: 0, offset: 5_000, len: 10, seed: 2 },
        Step::Append { handle: 0, len: 10, seed: 3 },
        Step::Read { handle: 0, offset: 0, len: 20_000 },
        Step::Close { handle: 0 },
    ]);
}
