//! A directory of the machine as a world of the model: what the kernel and its file system say.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::model::{Answer, How, Node, World};

pub struct RealWorld {
    root: PathBuf,
    open: HashMap<usize, File>,
}

impl RealWorld {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), open: HashMap::new() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn file(&self, handle: usize) -> &File {
        &self.open[&handle]
    }
}

/// Errors that mean the same to a program count as one.
fn errno(error: &io::Error) -> i32 {
    match error.raw_os_error().unwrap_or(libc::EIO) {
        // rename(2) lists both for a directory that is not empty.
        libc::EEXIST if error.kind() == io::ErrorKind::DirectoryNotEmpty => libc::ENOTEMPTY,
        errno => errno,
    }
}

fn answer<T>(result: io::Result<T>) -> Answer<T> {
    result.map_err(|error| errno(&error))
}

impl World for RealWorld {
    fn open(&mut self, handle: usize, path: &str, how: How) -> Answer<()> {
        let mut options = File::options();
        options.read(true).write(true).truncate(how.truncate);
        if how.exclusive {
            options.create_new(true)
        } else {
            options.create(how.create)
        };
        self.open.insert(handle, answer(options.open(self.at(path)))?);
        Ok(())
    }

    fn close(&mut self, handle: usize) -> Answer<()> {
        // std drops what close(2) says; the tests that need it look at fsync(2), and at the bucket.
        drop(self.open.remove(&handle).expect("it is open"));
        Ok(())
    }

    fn write(&mut self, handle: usize, offset: u64, data: &[u8]) -> Answer<()> {
        answer(self.file(handle).write_all_at(data, offset))
    }

    fn read(&mut self, handle: usize, offset: u64, len: usize) -> Answer<Vec<u8>> {
        let mut data = vec![0; len];
        let mut done = 0;
        while done < len {
            match answer(self.file(handle).read_at(&mut data[done..], offset + done as u64))? {
                0 => break,
                n => done += n,
            }
        }
        data.truncate(done);
        Ok(data)
    }

    fn truncate(&mut self, handle: usize, size: u64) -> Answer<()> {
        answer(self.file(handle).set_len(size))
    }

    fn fsync(&mut self, handle: usize) -> Answer<()> {
        answer(self.file(handle).sync_all())
    }

    fn unlink(&mut self, path: &str) -> Answer<()> {
        answer(fs::remove_file(self.at(path)))
    }

    fn mkdir(&mut self, path: &str) -> Answer<()> {
        answer(fs::create_dir(self.at(path)))
    }

    fn rmdir(&mut self, path: &str) -> Answer<()> {
        answer(fs::remove_dir(self.at(path)))
    }

    fn rename(&mut self, from: &str, to: &str, no_replace: bool) -> Answer<()> {
        let flags = if no_replace { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        answer(renameat_with(CWD, self.at(from), CWD, self.at(to), flags).map_err(io::Error::from))
    }

    fn symlink(&mut self, path: &str, target: &str) -> Answer<()> {
        answer(std::os::unix::fs::symlink(target, self.at(path)))
    }

    fn stat(&mut self, path: &str) -> Answer<Node> {
        let metadata = answer(fs::symlink_metadata(self.at(path)))?;
        Ok(match metadata.file_type() {
            kind if kind.is_dir() => Node::Directory,
            kind if kind.is_symlink() => Node::Link(answer(fs::read_link(self.at(path)))?.as_os_str().as_bytes().to_vec()),
            _ => Node::File(metadata.len()),
        })
    }

    fn list(&mut self, path: &str) -> Answer<Vec<String>> {
        let mut names = Vec::new();
        for entry in answer(fs::read_dir(self.at(path)))? {
            names.push(answer(entry)?.file_name().into_string().expect("names of the model are text"));
        }
        names.sort();
        Ok(names)
    }
}
