//! How a stream becomes a staged file: what memory holds is written to the disk, and what the store has of it is an object from
//! then on. It has the content alone. Invariant: the content is one or the other, with all of its bytes.

use std::io;
use std::sync::Arc;

use rangemap::RangeSet;

use super::WriteError;
use super::content::{Inner, Kind, State};
use super::staging::{Base, Layout, Staged, StagedFile, blocking};
use super::stream::Held;
use crate::store::{self, Condition, ErrorKind, Op};

impl Inner {
    /// The stream is an object now, and the content an edit of it.
    pub fn edit_object(&self, temporary: bool) {
        let state = &mut *self.state.lock();
        let object = if temporary { state.aside.take() } else { state.object.clone() };
        let meta = object.expect("who calls this has just saved it, under the gate");
        let kind = Kind::Staged(Staged::of_object(Base { meta, temporary }));
        let old = std::mem::replace(&mut state.kind, kind);
        self.let_go(old);
    }

    /// Goes on in a staged file.
    pub async fn stage(self: &Arc<Self>) -> Result<(), WriteError> {
        loop {
            self.arrive().await;
            let held = {
                let state = self.state.lock();
                state.fate.check_is_here()?;
                let Kind::Streaming(stream) = &state.kind else { return Ok(()) };
                match stream.held() {
                    Some(_) if stream.saved => None,
                    Some(held) => Some(held),
                    None if state.fate.is_unwanted() => return Err(WriteError::Stale(lost(&state))),
                    None => {
                        state.fate.check_takes_bytes()?;
                        None
                    }
                }
            };
            let Some(held) = held else {
                if self.is_saved() {
                    self.edit_object(false);
                    return Ok(());
                }
                // Bytes that are wanted are parts of an unfinished upload, where nobody can read them.
                let meta = self.save(Condition::Any).await?;
                self.state.lock().untold = Some(meta);
                continue;
            };
            return self.put_aside(held).await;
        }
    }

    fn is_saved(&self) -> bool {
        matches!(&self.state.lock().kind, Kind::Streaming(stream) if stream.saved)
    }

    /// Writes what memory holds to a new staged file.
    async fn put_aside(self: &Arc<Self>, held: Vec<Held>) -> Result<(), WriteError> {
        let (layout, file) = if held.is_empty() {
            (Layout::default(), None)
        } else {
            let shared = Arc::clone(&self.shared);
            let (layout, file) = blocking::<_, io::Error>(move || shared.area.create().and_then(|file| fill(file, &held))).await?;
            (layout, Some(Arc::new(file)))
        };
        let is_unwanted = {
            let state = &mut *self.state.lock();
            let staged = Staged { layout, base: None, file: file.clone(), fetching: RangeSet::new() };
            let old = std::mem::replace(&mut state.kind, Kind::Staged(staged));
            self.let_go(old);
            state.fate.is_unwanted()
        };
        if let Some(file) = file.filter(|_| !is_unwanted) {
            let entry = self.entry(false)?;
            blocking::<_, io::Error>(move || file.describe(&entry, false)).await?;
        }
        Ok(())
    }
}

pub(super) fn fill(file: StagedFile, held: &[Held]) -> io::Result<(Layout, StagedFile)> {
    let mut layout = Layout::default();
    for part in held {
        for run in part.covered.iter() {
            for (at, bytes) in part.filling.slices(run.clone()) {
                file.write(part.offset + at as u64, bytes, bytes.len() as u64)?;
            }
            layout.on_write(&(part.offset + run.start as u64..part.offset + run.end as u64));
        }
    }
    Ok((layout, file))
}

fn lost(state: &State) -> store::Error {
    store::Error::new(ErrorKind::NotFound, Op::Get, &state.key, "the file was deleted while its first bytes were on their way")
}
