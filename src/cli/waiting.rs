//! What probes see of a daemon that waits for its mount: the pages that the mount will serve, so that who starts it can tell waiting from dead.
//! Invariant: they are gone, and the address is free, when the wait ends, also by the program that takes this one's place.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::Failure;
use crate::admin::{Listen, Listener, Pages, Waiting};
use crate::mount;

/// Pages that are served. Dropped, they are not; exec(2) closes them too.
#[derive(Debug)]
pub struct Shown {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves the pages at `place` beside whoever waits.
pub fn show(place: &Listen) -> Result<Shown, Failure> {
    let refused = |source| mount::Error::Listen { place: place.clone(), source };
    let listener = Listener::bind(place).map_err(refused)?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
    let pages = Pages::start(listener, Arc::new(Waiting), runtime.handle()).map_err(refused)?;
    let (stop, stopped) = oneshot::channel();
    let serve = move || {
        // Told, or left: both are the end.
        let _ = runtime.block_on(stopped);
        drop(pages);
    };
    let thread = std::thread::Builder::new().name("pages".into()).spawn(serve).map_err(refused)?;
    Ok(Shown { stop: Some(stop), thread: Some(thread) })
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of it was printed, and is no reason for another one.
            let _ = thread.join();
        }
    }
}
