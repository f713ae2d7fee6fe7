//! Random sequences of file operations, run side by side in two worlds that must agree: the same answers, errors included, and at the end
//! the same tree. A world that may refuse what the other allows says so with EBUSY or ESTALE; the other is not asked then.

use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::prelude::*;

/// An errno, where something failed.
pub type Answer<T> = Result<T, i32>;

/// What a path is, as far as the two worlds can agree on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    File(u64),
    Directory,
    Link(Vec<u8>),
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
}

/// File operations by path and by handle (0 or 1).
pub trait World {
    fn open(&mut self, handle: usize, path: &str, how: How) -> Answer<()>;
    fn close(&mut self, handle: usize) -> Answer<()>;
    fn write(&mut self, handle: usize, offset: u64, data: &[u8]) -> Answer<()>;
    fn read(&mut self, handle: usize, offset: u64, len: usize) -> Answer<Vec<u8>>;
    fn truncate(&mut self, handle: usize, size: u64) -> Answer<()>;
    fn fsync(&mut self, handle: usize) -> Answer<()>;
    fn unlink(&mut self, path: &str) -> Answer<()>;
    fn mkdir(&mut self, path: &str) -> Answer<()>;
    fn rmdir(&mut self, path: &str) -> Answer<()>;
    fn rename(&mut self, from: &str, to: &str, no_replace: bool) -> Answer<()>;
    fn symlink(&mut self, path: &str, target: &str) -> Answer<()>;
    fn stat(&mut self, path: &str) -> Answer<Node>;
    fn list(&mut self, path: &str) -> Answer<Vec<String>>;
}

/// One operation.
#[derive(Clone, Debug)]
pub enum Step {
    Open { handle: usize, path: String, how: How },
    Close { handle: usize },
    Write { handle: usize, offset: u64, len: usize, seed: u8 },
    Append { handle: usize, len: usize, seed: u8 },
    Read { handle: usize, offset: u64, len: usize },
    Truncate { handle: usize, size: u64 },
    Fsync { handle: usize },
    Unlink { path: String },
    Mkdir { path: String },
    Rmdir { path: String },
    Rename { from: String, to: String, no_replace: bool },
    Symlink { path: String, target: String },
    Stat { path: String },
    List { path: String },
}

/// Few names, so that they meet: files and directories up to three deep.
fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(0..3u8, 1..4).prop_map(|parts| {
        let names: Vec<_> = parts.iter().map(|&part| char::from(b'a' + part).to_string()).collect();
        names.join("/")
    })
}

/// Sequences of up to `most` operations on files of up to about `size` bytes.
pub fn steps(most: usize, size: u64) -> impl Strategy<Value = Vec<Step>> {
    let handle = 0..2usize;
    let how = (any::<bool>(), 0..4u8, any::<bool>()).prop_map(|(create, one_in_four, truncate)| How {
        create: create || truncate,
        exclusive: create && one_in_four == 0,
        truncate,
    });
    let len = 0..usize::try_from(size).expect("it fits");
    let offset = 0..size;
    let step = prop_oneof![
        6 => (handle.clone(), path(), how).prop_map(|(handle, path, how)| Step::Open { handle, path, how }),
        3 => handle.clone().prop_map(|handle| Step::Close { handle }),
        5 => (handle.clone(), offset.clone(), len.clone(), any::<u8>()).prop_map(|(handle, offset, len, seed)| Step::Write { handle, offset, len, seed }),
        6 => (handle.clone(), len.clone(), any::<u8>()).prop_map(|(handle, len, seed)| Step::Append { handle, len, seed }),
        4 => (handle.clone(), offset.clone(), len).prop_map(|(handle, offset, len)| Step::Read { handle, offset, len }),
        2 => (handle.clone(), offset).prop_map(|(handle, size)| Step::Truncate { handle, size }),
        2 => handle.prop_map(|handle| Step::Fsync { handle }),
        3 => path().prop_map(|path| Step::Unlink { path }),
        4 => path().prop_map(|path| Step::Mkdir { path }),
        2 => path().prop_map(|path| Step::Rmdir { path }),
        4 => (path(), path(), any::<bool>()).prop_map(|(from, to, no_replace)| Step::Rename { from, to, no_replace }),
        1 => (path(), path()).prop_map(|(path, target)| Step::Symlink { path, target }),
        3 => path().prop_map(|path| Step::Stat { path }),
        3 => path().prop_map(|path| Step::List { path }),
    ];
    prop::collection::vec(step, 1..most)
}

/// Bytes that tell where they were written, and by which step.
pub fn content(seed: u8, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (at as u8).wrapping_mul(31) ^ ((at >> 8) as u8) ^ seed).collect()
}

/// Both worlds, and what is open in them.
pub struct Pair<'a> {
    /// May refuse with EBUSY and ESTALE.
    pub subject: &'a mut dyn World,
    pub reference: &'a mut dyn World,
    /// Path and size of what each handle has open.
    open: [Option<u64>; 2],
    pub taken: BTreeMap<&'static str, usize>,
}

impl<'a> Pair<'a> {
    pub fn new(subject: &'a mut dyn World, reference: &'a mut dyn World) -> Self {
        Self { subject, reference, open: [None, None], taken: BTreeMap::new() }
    }

    fn both<T: Debug + PartialEq>(&mut self, name: &'static str, act: impl Fn(&mut dyn World) -> Answer<T>) -> Option<Answer<T>> {
        let subject = act(self.subject);
        if matches!(subject, Err(libc::EBUSY | libc::ESTALE)) {
            return None;
        }
        let reference = act(self.reference);
        assert_eq!(subject, reference, "{name}: subject, then reference");
        *self.taken.entry(name).or_default() += usize::from(subject.is_ok());
        Some(subject)
    }

    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Open { handle, path, how } => {
                if self.open[*handle].is_none() && matches!(self.both("open", |world| world.open(*handle, path, *how)), Some(Ok(()))) {
                    self.open[*handle] = Some(if how.truncate { 0 } else { self.size_of(path) });
                }
            }
            Step::Close { handle } => self.close(*handle),
            Step::Write { handle, offset, len, seed } if self.open[*handle].is_some() => self.write(*handle, *offset, *len, *seed),
            Step::Append { handle, len, seed } => {
                if let Some(size) = self.open[*handle] {
                    self.write(*handle, size, *len, *seed);
                }
            }
            Step::Read { handle, offset, len } if self.open[*handle].is_some() => {
                self.both("read", |world| world.read(*handle, *offset, *len));
            }
            Step::Truncate { handle, size } if self.open[*handle].is_some() => {
                if self.both("truncate", |world| world.truncate(*handle, *size)).is_some() {
                    self.open[*handle] = Some(*size);
                }
            }
            Step::Fsync { handle } if self.open[*handle].is_some() => {
                self.both("fsync", |world| world.fsync(*handle));
            }
            Step::Write { .. } | Step::Read { .. } | Step::Truncate { .. } | Step::Fsync { .. } => {}
            Step::Unlink { path } => drop(self.both("unlink", |world| world.unlink(path))),
            Step::Mkdir { path } => drop(self.both("mkdir", |world| world.mkdir(path))),
            Step::Rmdir { path } => drop(self.both("rmdir", |world| world.rmdir(path))),
            Step::Rename { from, to, no_replace } => drop(self.both("rename", |world| world.rename(from, to, *no_replace))),
            Step::Symlink { path, target } => drop(self.both("symlink", |world| world.symlink(path, target))),
            Step::Stat { path } => drop(self.both("stat", |world| world.stat(path))),
            Step::List { path } => drop(self.both("list", |world| world.list(path))),
        }
    }

    fn write(&mut self, handle: usize, offset: u64, len: usize, seed: u8) {
        let data = content(seed, offset, len);
        if self.both("write", |world| world.write(handle, offset, &data)).is_some() && len > 0 {
            let size = self.open[handle].get_or_insert(0);
            *size = (*size).max(offset + len as u64);
        }
    }

    fn size_of(&mut self, path: &str) -> u64 {
        match self.reference.stat(path) {
            Ok(Node::File(size)) => size,
            _ => 0,
        }
    }

    fn close(&mut self, handle: usize) {
        if self.open[handle].take().is_some() {
            self.both("close", |world| world.close(handle));
        }
    }

    /// Closes what is open and compares the two trees, every byte of them.
    pub fn finish(&mut self) {
        for handle in 0..2 {
            self.close(handle);
        }
        self.compare("");
    }

    fn compare(&mut self, directory: &str) {
        let names = self.both("list", |world| world.list(directory)).expect("a directory can be listed").expect("it is there");
        for name in names {
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            match self.both("stat", |world| world.stat(&path)).expect("what is listed can be looked at").expect("it is there") {
                Node::Directory => self.compare(&path),
                Node::Link(_) => {}
                Node::File(size) => {
                    let how = How { create: false, exclusive: false, truncate: false };
                    self.both("open", |world| world.open(0, &path, how)).expect("nobody has it open").expect("it is there");
                    let len = usize::try_from(size).expect("it fits") + 1;
                    self.both("read", |world| world.read(0, 0, len)).expect("nobody changed it").expect("it is there");
                    self.both("close", |world| world.close(0)).expect("nobody has it open").expect("nothing was written");
                }
            }
        }
    }
}
