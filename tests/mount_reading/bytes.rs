//! Reads that are compared with what the server has, and the ranges that the server was asked for.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use windlass::store::memory::Synthetic;

use crate::support::{Kind, Request, S3Server};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// Whether reads go through the kernel's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    Pages,
    Direct,
}

pub const BOTH: [Through; 2] = [Through::Direct, Through::Pages];

#[track_caller]
pub fn open(path: &Path, through: Through) -> File {
    let flags = if through == Through::Direct { libc::O_DIRECT } else { 0 };
    match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Reads `range` in pieces of `piece` bytes, each of which must be there in full and right.
#[track_caller]
pub fn read_and_compare(file: &File, content: Synthetic, range: Range<u64>, piece: u64) {
    let mut buffer = vec![0; piece as usize];
    let mut at = range.start;
    while at < range.end {
        let buffer = &mut buffer[..piece.min(range.end - at) as usize];
        if let Err(error) = file.read_exact_at(buffer, at) {
            panic!("{} bytes at {at}: {error}", buffer.len());
        }
        assert!(content.matches(at, buffer), "wrong bytes in {} at {at}", buffer.len());
        at += buffer.len() as u64;
    }
}

/// The data GETs of `key`, all answered, with every one of them bound to one version.
#[track_caller]
pub fn gets(server: &S3Server, key: &str) -> Vec<Request> {
    let mut gets: Vec<Request> = server.of_kind(Kind::Get).into_iter().filter(|get| get.key == key).collect();
    for get in &mut gets {
        // One for all of an object names no range, so that the store tells its checksum.
        get.range.get_or_insert(0..get.bytes_sent);
        assert!(get.if_match.is_some() && get.range.is_some(), "{get:?}");
    }
    gets
}

/// Asserts that `gets` asked for every byte of `whole` once and for no other, and that none was given up.
#[track_caller]
pub fn assert_each_byte_once(gets: &[Request], whole: Range<u64>) {
    let mut ranges: Vec<(Range<u64>, bool)> = gets.iter().filter_map(|get| Some((get.range.clone()?, get.aborted))).collect();
    ranges.sort_by_key(|(range, _)| range.start);
    let mut at = whole.start;
    for (range, aborted) in &ranges {
        assert!(!aborted && range.start == at, "fetched twice, given up or not at all at {at} in {ranges:?}");
        at = range.end;
    }
    assert_eq!(at, whole.end, "{ranges:?}");
}

/// Bytes that `gets` asked for.
pub fn asked_bytes(gets: &[Request]) -> u64 {
    gets.iter().filter_map(|get| get.range.as_ref()).map(|range| range.end - range.start).sum()
}
