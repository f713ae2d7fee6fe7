//! Calls that are under way, by what they are about: the CSI has the second one for the same thing answered with ABORTED, and kubelet tries again.
//! Invariant: what is under way is let go when its guard is dropped, wherever the call has ended.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Mutex<HashSet<String>>>);

/// A call that is under way.
#[derive(Debug)]
pub struct Guard {
    all: InFlight,
    name: String,
}

impl InFlight {
    /// Begins a call about `name`.
    ///
    /// # Errors
    /// ABORTED while another one is under way.
    pub fn begin(&self, name: &str) -> Result<Guard, Status> {
        if self.0.lock().insert(name.to_owned()) {
            return Ok(Guard { all: self.clone(), name: name.to_owned() });
        }
        Err(Status::aborted(format!("another call for {name} is under way")))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_at_a_time_for_each_name() {
        let all = InFlight::default();
        let first = all.begin("a").unwrap();
        assert_eq!(all.begin("a").unwrap_err().code(), tonic::Code::Aborted);
        let other = all.begin("b").unwrap();
        drop((first, other));
        all.begin("a").unwrap();
    }
}
