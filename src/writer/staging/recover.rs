//! What a killed mount left on the disk: each staged file is uploaded if that is certainly right, and reported otherwise. Files
//! of mounts that live, and of other buckets, are not touched. Invariant: nothing that the store may lack is deleted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rangemap::RangeSet;

use super::access::blocking;
use super::file::{ENTRY, StagedFile};
use super::journal::{self, Entry, StreamEntry};
use super::{Base, Staged};
use crate::store::{Condition, ErrorKind, Key, ObjectMeta};
use crate::writer::Shared;
use crate::writer::content::{Content, Kind};

/// A staged file that was found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Where it was to go, as text when nobody can tell.
    pub key: Option<Key>,
    /// Its bytes, if it was kept.
    pub path: PathBuf,
    pub outcome: Outcome,
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The last state whose commit had begun is in the store.
    Uploaded(ObjectMeta),
    /// It is still on the disk, and why.
    Kept(String),
}

/// A file without an owner and its description.
struct Left {
    entry: Entry,
    file: StagedFile,
}

/// See [`Writer::recover`](crate::writer::Writer::recover).
pub(in crate::writer) async fn recover(shared: &Arc<Shared>) -> Vec<Recovered> {
    let scan = Arc::clone(shared);
    let (left, mut recovered) = match blocking::<_, io::Error>(move || search(&scan)).await {
        Ok(found) => found,
        Err(error) => {
            tracing::error!(%error, "staged files that an earlier mount left could not be looked for");
            return Vec::new();
        }
    };
    for left in left {
        recovered.push(finish(shared, left).await);
    }
    recovered
}

fn search(shared: &Shared) -> io::Result<(Vec<Left>, Vec<Recovered>)> {
    let (mut left, mut unreadable) = (Vec::new(), Vec::new());
    let mut paths = shared.area.data_files()?;
    paths.sort();
    for path in paths {
        match look(shared, &path) {
            Ok(Some(found)) => left.push(found),
            Ok(None) => {}
            Err(error) => {
                unreadable.push(Recovered { key: None, outcome: Outcome::Kept(error.to_string()), path: shared.area.shown(&path) })
            }
        }
    }
    Ok((left, unreadable))
}

/// None: it is not ours to touch, or it held nothing that the store lacks and is gone.
fn look(shared: &Shared, path: &Path) -> io::Result<Option<Left>> {
    let description = path.with_extension(ENTRY);
    let is_described = match journal::read(&description) {
        Ok(entry) if entry.scope != shared.scope => return Ok(None),
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    let Some(file) = shared.area.adopt(path)? else { return Ok(None) };
    if !is_described {
        // Its drop removes it.
        file.count_disk()?;
        return Ok(None);
    }
    // From here on until something is decided.
    file.stay(true);
    // Again, now that nobody else can have it.
    let entry = journal::read(&description)?;
    Ok(Some(Left { entry, file }))
}

async fn finish(shared: &Arc<Shared>, left: Left) -> Recovered {
    let (key, path) = (left.entry.key(), left.file.shown().to_owned());
    let outcome = match upload(shared, left).await {
        Ok(meta) => Outcome::Uploaded(meta),
        Err(why) => Outcome::Kept(why),
    };
    Recovered { key, path, outcome }
}

async fn upload(shared: &Arc<Shared>, left: Left) -> Result<ObjectMeta, String> {
    let Left { entry, file, .. } = left;
    let key = entry.key().ok_or("its description does not say where it was to go")?;
    if let Some(stream) = &entry.stream {
        // The daemon that was to go on with it never came.
        return Err(abort(shared, stream).await);
    }
    if !entry.sealed {
        return Err("it was still being written, or not closed".into());
    }
    if entry.is_moved() {
        return Err("it was being renamed".into());
    }
    let there = match shared.store.head(&key).await {
        Ok(meta) => Some(meta),
        Err(error) if error.kind == ErrorKind::NotFound => None,
        Err(error) => return Err(error.to_string()),
    };
    let condition = match (&there, entry.etag()) {
        (None, None) => Condition::Absent,
        (Some(meta), Some(etag)) if meta.etag == etag => Condition::Is(etag),
        (None, Some(_)) => return Err("the object was deleted meanwhile".into()),
        (Some(_), _) => return Err("the object was written meanwhile".into()),
    };
    let file = Arc::new(file);
    let content = restore(shared, &key, &entry, there, Arc::clone(&file));
    match content.commit(condition).await {
        Ok(Some(meta)) => {
            file.stay(false);
            Ok(meta)
        }
        Ok(None) => Err("it holds nothing new".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Aborts the upload of a stream whose first parts only the store has, and says why it is not uploaded.
async fn abort(shared: &Shared, stream: &StreamEntry) -> String {
    let aborted = match stream.upload() {
        Ok(Some((upload, _))) => match shared.store.abort_upload(&upload).await {
            Err(error) if error.kind != ErrorKind::NotFound => Err(error.to_string()),
            Ok(()) | Err(_) => Ok(()),
        },
        Ok(None) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    match aborted {
        Ok(()) => "it was still being written, or not closed: only its last bytes are here, what was uploaded of it is gone".into(),
        Err(why) => format!("it was still being written, or not closed, and its unfinished upload stays in the bucket: {why}"),
    }
}

fn restore(shared: &Arc<Shared>, key: &Key, entry: &Entry, there: Option<ObjectMeta>, file: Arc<StagedFile>) -> Arc<Content> {
    let layout = entry.layout();
    file.count(layout.present().iter().map(|run| run.end - run.start).sum());
    let content = Content::empty(shared, key.clone(), entry.headers());
    {
        let state = &mut *content.inner.state.lock();
        state.size = entry.size;
        state.known.extend(there.iter().map(|meta| meta.etag.clone()));
        state.object.clone_from(&there);
        let base = there.filter(|_| entry.has_base()).map(|meta| Base { meta, temporary: false });
        state.kind = Kind::Staged(Staged { layout, base, file: Some(file), fetching: RangeSet::new() });
    }
    content
}
