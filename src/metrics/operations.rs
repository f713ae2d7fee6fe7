//! How often programs asked for what, by the names of the calls. Reads are not among them: their times count them. Invariant: counting takes no lock.

use std::collections::BTreeMap;

use super::{Metric, Reading, Sharded, Type};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Mkdir,
    Rmdir,
    Opendir,
    Readdir,
    Write,
    Flush,
    Fsync,
    Release,
    Read,
    Create,
    Open,
    Access,
    Rename,
    Chown,
    Chmod,
    Truncate,
    Unlink,
}

/// Those of the calls that are counted here, with their names.
const CALLS: [(Call, &str); 16] = [
    (Call::Mkdir, "mkdir"),
    (Call::Rmdir, "rmdir"),
    (Call::Opendir, "opendir"),
    (Call::Readdir, "readdir"),
    (Call::Write, "write"),
    (Call::Flush, "flush"),
    (Call::Fsync, "fsync"),
    (Call::Release, "release"),
    (Call::Create, "create"),
    (Call::Open, "open"),
    (Call::Access, "access"),
    (Call::Rename, "rename"),
    (Call::Chown, "chown"),
    (Call::Chmod, "chmod"),
    (Call::Truncate, "truncate"),
    (Call::Unlink, "unlink"),
];

/// See the module.
#[derive(Debug, Default)]
pub struct Operations([Sharded; CALLS.len()]);

impl Operations {
    /// It was asked for once more.
    pub fn count(&self, call: Call) {
        if let Some(at) = place(call) {
            self.0[at].add(1);
        }
    }

    /// How often it was asked for; 0 for reads.
    pub fn get(&self, call: Call) -> u64 {
        place(call).map_or(0, |at| self.0[at].get())
    }
}

fn place(call: Call) -> Option<usize> {
    CALLS.iter().position(|(known, _)| *known == call)
}

impl Metric for Operations {
    const TYPE: Type = Type::Counter;
    const LABELS: &'static [&'static str] = &["call"];

    fn read(&self) -> Reading {
        let values: BTreeMap<_, _> =
            CALLS.iter().zip(&self.0).map(|((_, name), n)| ((*name).to_owned(), Reading::Number(n.get()))).collect();
        Reading::By(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_counted_under_its_name() {
        let operations = Operations::default();
        for (call, _) in CALLS {
            operations.count(call);
        }
        operations.count(Call::Write);
        operations.count(Call::Read);
        assert_eq!((operations.get(Call::Write), operations.get(Call::Mkdir), operations.get(Call::Read)), (2, 1, 0));
        assert_eq!(operations.read().number(), 17);
    }
}
