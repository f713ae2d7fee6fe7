//! What a process that received a mount leaves to the program that takes its place: numbers of descriptors, as text in its environment.
//! Invariant: only that very process takes it up; what it starts inherits the text and is not meant.

use std::ffi::OsString;
use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Whose it is.
    pub pid: u32,
    /// The line to the keeper.
    pub line: RawFd,
    /// Where a keeper that begins anew will listen. None: it connects, and cannot be found again.
    pub place: Option<OsString>,
    /// The descriptor that is served.
    pub device: RawFd,
    /// Those beside it: clones of it, then what the daemon before had kept.
    pub others: Vec<RawFd>,
    /// What the daemon before agreed on with the kernel.
    pub session: Option<Value>,
}

impl Passed {
    /// The variable of the environment.
    pub const VARIABLE: &str = "WINDLASS_HANDOVER";

    /// What `text` leaves to the process `pid`.
    pub fn read(text: &str, pid: u32) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|passed: &Self| passed.pid == pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_for_one_process() {
        let passed = Passed {
            pid: 7,
            line: 4,
            place: Some("/s".into()),
            device: 3,
            others: vec![5, 6],
            session: Some(serde_json::json!({"minor": 40})),
        };
        let text = serde_json::to_string(&passed).unwrap();
        assert_eq!(Passed::read(&text, 7), Some(passed));
        assert_eq!(Passed::read(&text, 8), None);
        assert_eq!(Passed::read("", 7), None);
    }
}
