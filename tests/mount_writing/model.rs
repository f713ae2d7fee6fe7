//! Random sequences of operations on a mount and on a directory of this machine, side by side.

use std::sync::Mutex;

use libtest_mimic::Trial;
use proptest::test_runner::{Config, TestRunner};

use super::support::S3Server;
use super::support::model::{Pair, Step, steps};
use super::support::mounts::{Daemon, trial};
use super::support::real_world::RealWorld;

/// Sequences; each is at most so long. The kernel and the server make them slower than the simulation, which runs many more.
const CASES: u32 = 40;
const STEPS: usize = 50;

pub fn trials() -> Vec<Trial> {
    vec![trial("a_mount_does_what_a_directory_does", agrees)]
}

fn agrees() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let count = Mutex::new(0);
    let config = Config { cases: CASES, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
    let run = |steps: Vec<Step>| {
        // A directory of its own for each, so that what one leaves behind is not in the way of the next.
        let name = {
            let mut count = count.lock().expect("nobody panicked");
            *count += 1;
            format!("case-{count}")
        };
        let reference = tempfile::tempdir().expect("a temporary directory can be made");
        std::fs::create_dir(mount.join(&name)).expect("a directory can be made");
        let (mut subject, mut reference) = (RealWorld::new(&mount.join(&name)), RealWorld::new(reference.path()));
        let mut pair = Pair::new(&mut subject, &mut reference);
        for step in &steps {
            pair.take(step);
        }
        pair.finish();
        Ok(())
    };
    TestRunner::new(config).run(&steps(STEPS, 300_000), run).unwrap_or_else(|error| panic!("{error}"));
}
