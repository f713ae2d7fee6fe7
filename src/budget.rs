//! The memory of the process: every byte that grows with traffic is granted here.

use crate::units::ByteSize;

/// Options of the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Upper bound of all granted memory; none: from the cgroup's memory.max, else from RAM.
    pub memory_limit: Option<ByteSize>,
}
