//! Reads: answered at once where the bytes are in memory, parked where they are under way, and counted when they are answered. Invariant: a
//! FUSE thread never waits for bytes.

use std::sync::Arc;

use fuser::ReplyData;

use crate::metrics::Metrics;
use crate::reader::ReadData;
use crate::vfs::{Files, HandleId, Inode, OpenFile, Read};

use super::convert::errno;
use super::filesystem::Bucket;

impl Bucket {
    pub(super) fn read_handle(&self, thread: u32, ino: Inode, handle: HandleId, offset: u64, size: u32, reply: ReplyData) {
        if self.reads_draft(handle, ino) {
            return self.read_draft(handle, ino, offset, size, reply);
        }
        let file = match self.files.get(handle) {
            Ok(file) => file,
            Err(error) => return reply.error(errno("read", &error)),
        };
        // Fetches that this starts are tasks of the runtime.
        let _runtime = self.runtime.enter();
        let read = file.begin(thread, offset, size as usize);
        match file.ready(&read) {
            Some(data) => answer(&data, &read, &self.metrics, reply),
            None => {
                let (files, metrics, runtime) = (Arc::clone(&self.files), Arc::clone(&self.metrics), self.runtime.clone());
                OpenFile::park(read, move |read| match file.ready(&read) {
                    Some(data) => answer(&data, &read, &metrics, reply),
                    // It failed, or has to ask again: that may take requests of its own.
                    None => drop(runtime.spawn(finish(files, file, read, metrics, reply))),
                });
            }
        }
    }
}

/// Answers a read that could not go the short way.
async fn finish(files: Arc<Files>, file: Arc<OpenFile>, read: Read, metrics: Arc<Metrics>, reply: ReplyData) {
    let began = read.began();
    match files.finish(&file, read).await {
        Ok(data) => put(&data, reply),
        Err(error) => reply.error(errno("read", &error)),
    }
    metrics.read_seconds.record(began.elapsed());
}

fn answer(data: &ReadData, read: &Read, metrics: &Metrics, reply: ReplyData) {
    put(data, reply);
    metrics.read_seconds.record(read.began().elapsed());
}

/// One slice is one writev out of the chunk; a read that crosses chunks is put together first.
fn put(data: &ReadData, reply: ReplyData) {
    let mut slices = data.slices();
    match (slices.next(), slices.next()) {
        (None, _) => reply.data(&[]),
        (Some(all), None) => reply.data(all),
        (Some(_), Some(_)) => reply.data(&data.slices().collect::<Vec<_>>().concat()),
    }
}
