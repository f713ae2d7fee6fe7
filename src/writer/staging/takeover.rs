//! Staged files and streams that another daemon takes over while they are open: with all that was answered to their writers, and nothing committed. It asks
//! the store for nothing. Invariant: a file is taken by one process, and only for an owner who still has it open.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use rangemap::RangeSet;

use super::Staged;
use super::access::blocking;
use super::changes;
use super::file::{CHANGES, ENTRY};
use super::journal;
use crate::store::ObjectMeta;
use crate::writer::Shared;
use crate::writer::content::{Content, Kind};

/// See [`Writer::take_over`](crate::writer::Writer::take_over).
pub(in crate::writer) async fn take_over(shared: &Arc<Shared>, owners: HashSet<u64>) -> HashMap<u64, Arc<Content>> {
    let shared = Arc::clone(shared);
    let found = blocking::<_, io::Error>(move || {
        let paths = shared.area.data_files()?;
        let look = |path: std::path::PathBuf| match look(&shared, &path, &owners) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(path = %shared.area.shown(&path).display(), %error, "a staged file cannot be taken over");
                None
            }
        };
        Ok(paths.into_iter().filter_map(look).collect())
    });
    found.await.unwrap_or_else(|error| {
        tracing::error!(%error, "staged files of the daemon before could not be looked for");
        HashMap::new()
    })
}

fn look(shared: &Arc<Shared>, path: &Path, owners: &HashSet<u64>) -> io::Result<Option<(u64, Arc<Content>)>> {
    let entry = match journal::read(&path.with_extension(ENTRY)) {
        // It holds nothing that the store lacks.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entry => entry?,
    };
    let Some(owner) = entry.owner.filter(|owner| entry.scope == shared.scope && owners.contains(owner)) else { return Ok(None) };
    let Some(key) = entry.key() else { return Ok(None) };
    if let Some(stream) = &entry.stream {
        let Some(file) = shared.area.adopt(path)? else { return Ok(None) };
        return super::handover::restore(shared, key, &entry, stream, file).map(|content| Some((owner, content)));
    }
    let mut layout = entry.layout();
    let size = changes::apply(&path.with_extension(CHANGES), &mut layout, entry.size)?;
    let Some(file) = shared.area.adopt(path)? else { return Ok(None) };
    file.count(layout.present().iter().map(|run| run.end - run.start).sum());
    // All of it in one place again.
    let content = Content::empty(shared, key.clone(), entry.headers());
    let base = entry.base();
    {
        let state = &mut *content.inner.state.lock();
        (state.size, state.owner, state.must_be_new) = (size, Some(owner), entry.must_be_new);
        state.known.extend(entry.etag());
        let there =
            |etag| ObjectMeta { key, size: base.as_ref().map_or(0, |base| base.meta.size), etag, modified: std::time::SystemTime::now() };
        state.object = entry.etag().map(there);
        state.kind = Kind::Staged(Staged { layout, base, file: Some(Arc::new(file)), fetching: RangeSet::new() });
    }
    content.inner.describe_taken_over()?;
    Ok(Some((owner, content)))
}
