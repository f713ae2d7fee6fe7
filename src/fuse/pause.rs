//! A moment in which nothing begins: who has taken a request holds it back. Invariant: what is held back is done later, here or by the daemon that
//! goes on, which the kernel asks again.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// The same without the lock, for every request.
    is_on: AtomicBool,
    state: Mutex<bool>,
    over: Condvar,
}

impl Pause {
    pub fn set(&self, on: bool) {
        *self.state.lock() = on;
        self.is_on.store(on, Ordering::SeqCst);
        self.over.notify_all();
    }

    /// Returns when there is none.
    pub fn wait(&self) {
        if self.is_on.load(Ordering::SeqCst) {
            let mut state = self.state.lock();
            self.over.wait_while(&mut state, |on| *on);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn who_comes_in_a_pause_goes_on_after_it() {
        let (pause, passed) = (Arc::<Pause>::default(), Arc::<AtomicUsize>::default());
        pause.wait();
        pause.set(true);
        let waiting = {
            let (pause, passed) = (Arc::clone(&pause), Arc::clone(&passed));
            std::thread::spawn(move || {
                pause.wait();
                passed.fetch_add(1, Ordering::SeqCst)
            })
        };
        assert_eq!(passed.load(Ordering::SeqCst), 0);
        pause.set(false);
        assert_eq!(waiting.join().unwrap(), 0);
    }
}
