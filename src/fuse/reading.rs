//! Reads: answered at once where the bytes are in memory, parked where they are under way (who brings them answers), and counted when they
//! are answered. Invariant: a FUSE thread never waits for bytes.

use std::sync::Arc;

use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::reader::ReadData;
use crate::vfs::{Files, HandleId, OpenFile, Read};

use super::convert::refuse;
use super::filesystem::{Asker, Bucket};
use super::reply::{Data, Reply};

impl Bucket {
    pub(super) fn read(&self, asker: Asker<'_>, handle: HandleId, offset: u64, size: u32) {
        self.metrics.longest_read_bytes.record(size.into());
        if self.reads_dirty(asker.ino()) {
            return self.read_dirty(asker, handle, offset, size);
        }
        let file = match self.files.get(handle) {
            Ok(file) => file,
            // It was opened on what was being written, which is over.
            Err(_) if self.edits.as_ref().is_some_and(|edits| edits.knows(handle)) => return self.read_dirty(asker, handle, offset, size),
            Err(error) => return refuse("read", &error, asker.reply::<Data>()),
        };
        // Fetches that this starts are tasks of the runtime.
        let _runtime = self.runtime.enter();
        let read = match file.begin(asker.header.thread, offset, size as usize) {
            Ok(read) => read,
            Err(error) => return refuse("read", &error, asker.reply::<Data>()),
        };
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

impl Bucket {
    /// A read of what is being written; of the version that came of it when that ends meanwhile.
    fn read_dirty(&self, asker: Asker<'_>, handle: HandleId, offset: u64, size: u32) {
        let (metrics, began, ino, thread) = (Arc::clone(&self.metrics), Instant::now(), asker.ino(), asker.header.thread);
        let (edits, files, reply) = (self.edits.clone(), Arc::clone(&self.files), self.patient::<Data>(asker));
        self.runtime.spawn(async move {
            let dirty = match &edits {
                Some(edits) => edits.read(ino, offset, size as usize).await,
                None => Ok(None),
            };
            match dirty {
                Ok(Some(data)) => {
                    reply.data(&data);
                    metrics.read_seconds.record(began.elapsed());
                }
                Ok(None) => {
                    let bound = files.get(handle).or_else(|error| edits.map_or(Err(error), |edits| edits.bind_reader(handle)));
                    match bound {
                        Ok(file) => match file.begin(thread, offset, size as usize) {
                            Ok(read) => finish(files, file, read, metrics, reply).await,
                            Err(error) => refuse("read", &error, reply),
                        },
                        Err(error) => refuse("read", &error, reply),
                    }
                }
                Err(error) => refuse("read", &error, reply),
            }
        });
    }
}

/// Answers a read that could not go the short way.
async fn finish(files: Arc<Files>, file: Arc<OpenFile>, read: Read, metrics: Arc<Metrics>, reply: Reply<Data>) {
    let began = read.began();
    match files.finish(&file, read).await {
        Ok(data) => reply.slices(data.slices()),
        Err(error) => refuse("read", &error, reply),
    }
    metrics.read_seconds.record(began.elapsed());
}

/// One writev out of the chunks.
fn answer(data: &ReadData, read: &Read, metrics: &Metrics, reply: Reply<Data>) {
    reply.slices(data.slices());
    metrics.read_seconds.record(read.began().elapsed());
}
