//! What becomes of changes whose object another client has replaced: appended bytes follow the new version, and content that is all here needs no
//! version at all. It has the content alone. Invariant: the new file has all of the appended bytes, described, before the old one goes.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use rangemap::RangeSet;

use super::{Base, Layout, Place, Staged, StagedFile, blocking};
use crate::store::{Condition, Headers, ObjectMeta};
use crate::writer::WriteError;
use crate::writer::content::{Inner, Kind};

/// Bytes that are copied from file to file at once.
const PIECE: usize = 1 << 20;

impl Inner {
    /// See [`Content::append_to`](crate::writer::Content::append_to).
    pub async fn append_to(self: &Arc<Self>, from: u64, base: ObjectMeta, headers: Headers) -> Result<bool, WriteError> {
        // Of a stream whose first parts have left, only the store has the bytes, in an upload that nobody can read.
        if !self.state.lock().fate.is_wanted() {
            return Ok(false);
        }
        self.stage().await?;
        let inner = Arc::clone(self);
        blocking(move || inner.append_file_to(from, base, headers)).await
    }

    fn append_file_to(&self, from: u64, base: ObjectMeta, headers: Headers) -> Result<bool, WriteError> {
        let _io = self.io.write();
        let size = self.state.lock().size;
        if size < from {
            return Ok(false);
        }
        let (places, old) = self.staged(|staged, _| (staged.layout.places(&(from..size)), staged.file.clone()))?;
        if places.iter().any(|(_, place)| *place == Place::Object) {
            return Ok(false);
        }
        let end = self.end_of(base.size, size - from)?;
        let moved = |run: &Range<u64>| run.start - from + base.size..run.end - from + base.size;
        let mut layout = Layout::of_object(base.size);
        let new = Arc::new(self.shared.area.create()?);
        for (run, place) in &places {
            let target = moved(run);
            if *place == Place::File {
                let old = old.as_ref().expect("the layout, seen under the same lock, has bytes in it");
                copy(old, run, &new, target.start)?;
                layout.on_write(&target);
            } else {
                layout.on_zero(&target);
            }
        }
        let old = {
            let state = &mut *self.state.lock();
            let staged = Staged {
                layout,
                base: Some(Base { meta: base.clone(), temporary: false }),
                file: Some(Arc::clone(&new)),
                fetching: RangeSet::new(),
            };
            let old = std::mem::replace(&mut state.kind, Kind::Staged(staged));
            // Where nothing was appended, that version is all there is: a store that has no conditional copies could lose what comes after it.
            (state.size, state.unsaved, state.headers) = (end, end > base.size, headers);
            state.known.push(base.etag.clone());
            state.replaces = Some(Condition::Is(base.etag.clone()));
            state.object = Some(base);
            (state.must_be_new, state.untold, state.read_to) = (false, None, (0, 0));
            old
        };
        let described = self.entry(false).and_then(|entry| new.describe(&entry, false));
        if let Kind::Staged(Staged { file: Some(file), .. }) = &old {
            file.stay(false);
        }
        self.let_go(old);
        described?;
        Ok(true)
    }

    /// Takes nothing from the object that is edited any more, if all bytes of the content are here.
    pub fn part_from_object(&self) -> io::Result<()> {
        let _io = self.io.write();
        let size = self.state.lock().size;
        let apart = self.if_staged(|staged, _| {
            let places = staged.layout.places(&(0..size));
            if staged.base.as_ref().is_some_and(|base| base.temporary) || places.iter().any(|(_, place)| *place == Place::Object) {
                return None;
            }
            let mut layout = Layout::default();
            for (run, place) in &places {
                if *place == Place::File { layout.on_write(run) } else { layout.on_zero(run) }
            }
            (staged.layout, staged.base) = (layout, None);
            staged.file.clone()
        });
        let Some(file) = apart.flatten() else { return Ok(()) };
        // What was written down since says less than this.
        file.describe(&self.entry(false)?, false)
    }
}

fn copy(from: &StagedFile, run: &Range<u64>, to: &StagedFile, target: u64) -> io::Result<()> {
    let mut buffer = vec![0; PIECE.min((run.end - run.start) as usize)];
    let mut done = 0;
    while run.start + done < run.end {
        let len = buffer.len().min((run.end - run.start - done) as usize);
        from.read(run.start + done, &mut buffer[..len])?;
        to.write(target + done, &buffer[..len], len as u64)?;
        done += len as u64;
    }
    Ok(())
}
