//! Tasks that go on when nobody waits for them any more: commits and aborts whose caller left. Invariant: each is counted from
//! before it starts until it ended or its runtime did, so that a drain can wait for all.

use tokio::runtime::Handle;
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Background {
    /// The one that `Writer::new` was called in; none in tests without one.
    runtime: Option<Handle>,
    running: watch::Sender<usize>,
}

struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl Background {
    pub fn new() -> Self {
        Self { runtime: Handle::try_current().ok(), running: watch::Sender::new(0) }
    }

    /// Starts a task; its result can be waited for.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<tokio::task::JoinHandle<T>> {
        let runtime = self.runtime.clone().or_else(|| Handle::try_current().ok())?;
        self.running.send_modify(|running| *running += 1);
        let counted = Counted(self.running.clone());
        Some(runtime.spawn(async move {
            let _counted = counted;
            task.await
        }))
    }

    /// Returns when nothing runs.
    pub async fn settle(&self) {
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }
}
