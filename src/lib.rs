//! windlass mounts an object-storage bucket (S3 and everything that speaks it, Alibaba OSS) at a directory, and reads and writes it
//! as fast as the network allows. How it is made, in ten sentences:
//!
//! 1. One process mounts one bucket or prefix, or the buckets of an account: file requests of the kernel enter at [`fuse`], ranges and parts over HTTP leave at
//!    [`store`], and each layer knows only those below it.
//! 2. A read makes six steps down (decode it, find the handle, ask the window, fetch the missing chunk, form the request,
//!    send it), and whoever brings the bytes answers the reads that wait for them.
//! 3. What decides is pure and what acts decides nothing: the prefetch window, the stream table, the plan of a fetch and the
//!    merging of listings take events and the time as arguments and hold no lock, task or socket.
//! 4. A handle reads the one version of an object that it opened, by If-Match on its etag.
//! 5. All memory that grows with traffic (chunks, parts) is granted by one [`budget`]; when it is short, windows shrink to the chunk in demand
//!    before anything waits, and a reader that waits goes before every prefetch.
//! 6. Names and numbers belong to the inode table until the kernel forgets them, attributes belong to the stat cache until
//!    their deadline, truth belongs to the store; what the kernel may cache is what is left of that deadline.
//! 7. A file written front to back streams; anything else is staged on disk ([`writer`]); either way it appears in the bucket whole
//!    at close or fsync or not at all, and close and fsync return the error.
//! 8. What is read lives in the budget's memory; the modes cached and hybrid keep it on a disk too ([`spill`]), in pieces with checksums under
//!    key and etag, which may be deleted at any time, and can make a read slower but never wrong and never fail.
//! 9. FUSE threads never wait for the network: what is in memory they answer themselves, the rest becomes a task of the
//!    runtime; no lock lives across an await; time, randomness and environment enter at named places, so that everything below
//!    [`fuse`] can be replayed against an in-memory store under a paused clock.
//! 10. An error is born where the fact is known with operation and key, is translated once a layer, becomes an errno in one
//!     exhaustive table, and is logged once, where it ends.
//!
//! The modules import in one direction only: [`cli`], then [`demo`], [`standin`], [`mount`], [`bench`](mod@bench), [`csi`], [`transfer`], [`config`], [`fuse`], [`admin`], [`vfs`], [`writer`],
//! [`reader`], [`spill`], [`store`], and at the bottom [`budget`], [`lasting`], [`handover`], [`logging`], [`metrics`], [`mountinfo`],
//! [`panics`], [`process`], [`signals`], [`sys`] and [`units`], which may name [`started_in`].

#![deny(clippy::unwrap_used)]

pub mod admin;
pub mod bench;
pub mod budget;
pub mod cli;
pub mod config;
pub mod csi;
pub mod demo;
pub mod fuse;
pub mod handover;
pub mod lasting;
pub mod logging;
pub mod metrics;
pub mod mount;
pub mod mountinfo;
pub mod panics;
pub mod process;
pub mod reader;
pub mod signals;
pub mod spill;
pub mod standin;
pub mod started_in;
pub mod store;
pub mod sys;
pub mod transfer;
pub mod units;
pub mod vfs;
pub mod writer;
