//! Where the bytes of a part land: a piece of memory that is written to its place in a file whenever it is full. Invariant: what was
//! summed is what was written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tokio::sync::Notify;

use super::OnBytes;
use crate::budget::Lease;
use crate::store::{Checking, ETag, Mismatch, ObjectSum, Part, Polynomial, RangeSink};
use crate::sys::Window;

/// See the module.
pub(super) struct Landing {
    file: Arc<File>,
    memory: Window<Lease>,
    filled: usize,
    /// Where in the file the first byte of the memory belongs.
    at: u64,
    /// Bytes of the part that have not come.
    missing: u64,
    /// None: nobody will compare.
    polynomial: Option<Polynomial>,
    sums: Vec<Part>,
    /// It is all of an object, of which the answer is to tell the sum.
    wants_sum: bool,
    checking: Option<Checking>,
    failed: Option<io::Error>,
    stop: Arc<Notify>,
    on_bytes: OnBytes,
}

impl Landing {
    /// For `len` bytes at the offset `at` of a file.
    pub fn new(file: Arc<File>, memory: Window<Lease>, at: u64, len: u64, polynomial: Option<Polynomial>, on_bytes: OnBytes) -> Self {
        let stop = Arc::default();
        Self {
            file,
            memory,
            filled: 0,
            at,
            missing: len,
            polynomial,
            sums: Vec::new(),
            wants_sum: false,
            checking: None,
            failed: None,
            stop,
            on_bytes,
        }
    }

    /// For all of an object, which is compared with the sum that the answer tells.
    pub fn checked(self) -> Self {
        Self { wants_sum: true, ..self }
    }

    /// Told when the rest need not come, because the file does not take it.
    pub fn stop(&self) -> Arc<Notify> {
        Arc::clone(&self.stop)
    }

    /// The sums of what was written, as far as they were wanted.
    pub fn finish(self) -> io::Result<Landed> {
        let sum = self.polynomial.and_then(|polynomial| polynomial.of_parts(&self.sums));
        let landed = Landed { sum, checked: self.checking.map(Checking::finish) };
        self.failed.map_or(Ok(landed), Err)
    }

    fn write(&mut self) {
        let bytes = &self.memory.bytes()[..self.filled];
        // A write into the page cache, which waits when the disk is slower than the network: other tasks move to other threads.
        let sum = || self.polynomial.map(|polynomial| polynomial.of(bytes));
        let mut checking = self.checking.as_mut();
        let mut check = || checking.iter_mut().for_each(|checking| checking.add(bytes));
        let (sum, (), written) = tokio::task::block_in_place(|| (sum(), check(), self.file.write_all_at(bytes, self.at)));
        if let Err(error) = written {
            self.failed = Some(error);
            self.stop.notify_one();
        }
        self.sums.extend(sum.map(|sum| piece(bytes.len() as u64, sum)));
        (self.on_bytes)(self.filled as u64);
        self.at += self.filled as u64;
        self.filled = 0;
    }
}

/// What came of a part.
#[derive(Debug, Default)]
pub(super) struct Landed {
    pub sum: Option<u64>,
    /// Whether it is what the answer told of it.
    pub checked: Option<Result<(), Mismatch>>,
}

/// A stretch of content and its sum.
pub fn piece(size: u64, sum: u64) -> Part {
    Part { number: 0, etag: ETag::from(""), size, crc64: Some(sum), crc32c: None }
}

impl RangeSink for Landing {
    fn spare(&mut self) -> &mut [u8] {
        let room = (self.memory.len() - self.filled) as u64;
        let end = self.filled + room.min(self.missing) as usize;
        &mut self.memory.bytes_mut()[self.filled..end]
    }

    fn advance(&mut self, n: usize) {
        self.filled += n;
        self.missing -= n as u64;
        if self.failed.is_some() {
            self.filled = 0;
        } else if self.filled == self.memory.len() || self.missing == 0 {
            self.write();
        }
    }

    fn wants_sum(&self) -> bool {
        self.wants_sum
    }

    fn on_sum(&mut self, sum: &ObjectSum) {
        self.checking = Checking::against(sum);
    }
}
