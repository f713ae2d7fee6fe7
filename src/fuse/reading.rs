//! Reads: answered at once where the bytes are in memory, parked where they are under way (who brings them answers), and counted when they
//! are answered. Invariant: a FUSE thread never waits for bytes.

use std::sync::Arc;

use crate::metrics::Metrics;
use crate::reader::ReadData;
use crate::vfs::{Files, HandleId, OpenFile, Read};

use super::convert::errno;
use super::filesystem::{Asker, Bucket};
use super::reply::{Data, Reply};

impl Bucket {
    pub(super) fn read(&self, asker: Asker<'_>, handle: HandleId, offset: u64, size: u32) {
        self.metrics.longest_read_bytes.record(size.into());
        if self.reads_draft(handle, asker.ino()) {
            return self.read_draft(asker, handle, offset, size);
        }
        let file = match self.files.get(handle) {
            Ok(file) => file,
            Err(error) => return asker.reply::<Data>().error(errno("read", &error)),
        };
        // Fetches that this starts are tasks of the runtime.
        let _runtime = self.runtime.enter();
        let read = file.begin(asker.header.thread, offset, size as usize);
        match file.ready(&read) {
            Some(data) => answer(&data, &read, &self.metrics, asker.reply()),
            None => {
                let (files, metrics, runtime) = (Arc::clone(&self.files), Arc::clone(&self.metrics), self.runtime.clone());
                let reply = self.patient(asker);
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
async fn finish(files: Arc<Files>, file: Arc<OpenFile>, read: Read, metrics: Arc<Metrics>, reply: Reply<Data>) {
    let began = read.began();
    match files.finish(&file, read).await {
        Ok(data) => reply.slices(data.slices()),
        Err(error) => reply.error(errno("read", &error)),
    }
    metrics.read_seconds.record(began.elapsed());
}

/// One writev out of the chunks.
fn answer(data: &ReadData, read: &Read, metrics: &Metrics, reply: Reply<Data>) {
    reply.slices(data.slices());
    metrics.read_seconds.record(read.began().elapsed());
}
