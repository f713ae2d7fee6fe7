//! Real threads that work on files, as programs do: each takes the next one until there are no more. Invariant: when it returns no thread
//! works any more, also after an error.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::times::Times;
use crate::transfer::{Error, Result};

/// A thread needs little but its buffer.
const STACK: usize = 256 << 10;

/// Asked between two files; its error ends the work.
pub type Check<'a> = &'a (dyn Fn() -> io::Result<()> + Sync);

/// Gives each thread its next file, until there are no more.
pub(super) type Next<'a> = &'a (dyn Fn() -> Option<Result<PathBuf>> + Sync);

/// What one pass over files came to.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    pub files: u64,
    pub bytes: u64,
    pub took: Duration,
    /// Of each file, from its name to its close.
    pub times: Times,
}

/// Has each of the threads take files and work on them with a buffer of its own, until there are no more or one fails.
pub(super) fn on_threads(
    threads: usize,
    buffer: &[u8],
    check: Check<'_>,
    next: Next<'_>,
    work: &(dyn Fn(&Path, &mut [u8]) -> Result<u64> + Sync),
) -> Result<Pass> {
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    let one = || -> Result<Pass> {
        let (mut buffer, mut pass) = (buffer.to_vec(), Pass::default());
        while !is_over.load(Relaxed)
            && let Some(path) = next()
        {
            let path = path?;
            check().map_err(Error::local("go on with", &path))?;
            let began = Instant::now();
            pass.bytes += work(&path, &mut buffer)?;
            pass.times.record(began.elapsed());
            pass.files += 1;
        }
        Ok(pass)
    };
    let one = || one().inspect_err(|_| is_over.store(true, Relaxed));
    let mut all = Pass::default();
    thread::scope(|scope| {
        let started: io::Result<Vec<_>> = (0..threads.max(1))
            .map(|_| thread::Builder::new().stack_size(STACK).spawn_scoped(scope, one).inspect_err(|_| is_over.store(true, Relaxed)))
            .collect();
        let started = started.map_err(Error::local("start a thread for", "this bench"))?;
        let done: Vec<Result<Pass>> = started.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect();
        for pass in done {
            let pass = pass?;
            all.files += pass.files;
            all.bytes += pass.bytes;
            all.times.add(&pass.times);
        }
        all.took = began.elapsed();
        Ok(all)
    })
}
