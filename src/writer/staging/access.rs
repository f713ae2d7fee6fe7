//! Reads and changes of staged content. Everything that touches the disk runs on a thread that may block. Invariant: who waits
//! for a fetch holds no lock; who changes the file holds `io` alone from its first look at the layout to its last.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedRwLockReadGuard;

use super::changes::Change;
use super::file::Described;
use super::journal::{self, Entry};
use super::{Place, Staged, StagedFile};
use crate::writer::content::{Allocate, Inner, Kind, State};
use crate::writer::{Interrupted, WriteError, memory::Buffer};

/// Runs `work` on a thread that may block.
///
/// # Errors
/// Those of `work`, and [`Interrupted`] when it panicked or its runtime ends.
pub(in crate::writer) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Interrupted> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(Interrupted::from(error).into()))
}

/// Most bytes that are fetched ahead of a read of staged content: so many requests at once are worth their latency.
const MOST_AHEAD: u64 = 16 << 20;

impl State {
    /// How far ahead of a read to fetch: twice as far as before when it goes on where the last one ended.
    fn ahead_of(&mut self, range: &Range<u64>) -> u64 {
        let (end, ahead) = self.read_to;
        let ahead = if range.start == end && end > 0 { (ahead * 2).max(range.end - range.start).min(MOST_AHEAD) } else { 0 };
        self.read_to = (range.end, ahead);
        ahead
    }
}

impl Inner {
    /// What is known of the staged file, under the short lock. With the gate or `io` it stays staged from one call to the next.
    ///
    /// # Errors
    /// The file was emptied meanwhile, and is a stream: the caller had neither, or has got `io` only now.
    pub fn staged<T>(&self, look: impl FnOnce(&mut Staged, &mut Summary<'_>) -> T) -> io::Result<T> {
        self.if_staged(look).ok_or_else(|| io::Error::other("the file was emptied meanwhile"))
    }

    /// The same for others; none when it is a stream now.
    pub fn if_staged<T>(&self, look: impl FnOnce(&mut Staged, &mut Summary<'_>) -> T) -> Option<T> {
        let state = &mut *self.state.lock();
        let State { kind, size, unsaved, fate, .. } = state;
        let Kind::Staged(staged) = kind else { return None };
        Some(look(staged, &mut Summary { size, unsaved, is_unwanted: fate.is_unwanted() }))
    }

    /// `gate` is kept until the bytes are written, also when the caller leaves.
    pub async fn staged_write(self: &Arc<Self>, offset: u64, data: &[u8], gate: OwnedRwLockReadGuard<()>) -> Result<(), WriteError> {
        let (inner, data) = (Arc::clone(self), Bytes::copy_from_slice(data));
        blocking(move || {
            let _gate = gate;
            inner.write_file(offset, &data)
        })
        .await
    }

    fn write_file(&self, offset: u64, data: &[u8]) -> Result<(), WriteError> {
        let _io = self.io.write();
        let file = self.file_to_change()?;
        let range = offset..offset + data.len() as u64;
        let growth = self.staged(|staged, summary| {
            staged.layout.on_write_begin(&range);
            *summary.unsaved |= !staged.layout.dirty().is_empty();
            staged.layout.growth(&range)
        })?;
        file.write(offset, data, growth)?;
        file.note(&Change::Write(range.clone()))?;
        self.shared.metrics.staged_bytes.add(data.len() as u64);
        self.staged(|staged, summary| {
            staged.layout.on_write(&range);
            *summary.size = range.end.max(*summary.size);
            *summary.unsaved = true;
        })?;
        Ok(())
    }

    /// The file, for new bytes of the content: its description says so before they are there.
    fn file_to_change(&self) -> io::Result<Arc<StagedFile>> {
        let file = self.file_to_fill()?;
        self.note_change(&file)?;
        Ok(file)
    }

    /// The file, for bytes that the store has too. Under `io`.
    pub(super) fn file_to_fill(&self) -> io::Result<Arc<StagedFile>> {
        if let Some(file) = self.staged(|staged, _| staged.file.clone())? {
            return Ok(file);
        }
        let file = Arc::new(self.shared.area.create()?);
        self.staged(|staged, _| staged.file = Some(Arc::clone(&file)))?;
        Ok(file)
    }

    /// A file to describe a change by that puts nothing into it, where changes are written down.
    fn or_new_file(&self, file: Option<Arc<StagedFile>>) -> io::Result<Option<Arc<StagedFile>>> {
        match file {
            None if self.shared.area.is_written_down() && !self.staged(|_, summary| summary.is_unwanted)? => self.file_to_fill().map(Some),
            file => Ok(file),
        }
    }

    fn note_change(&self, file: &StagedFile) -> io::Result<()> {
        if file.described() != Described::Open && !self.staged(|_, summary| summary.is_unwanted)? {
            file.describe(&self.entry(false)?, false)?;
        }
        Ok(())
    }

    /// The description of the staged file as it is now.
    ///
    /// # Errors
    /// As of [`Self::staged`].
    pub fn entry(&self, sealed: bool) -> io::Result<Entry> {
        let state = self.state.lock();
        let Kind::Staged(staged) = &state.kind else { return Err(io::Error::other("the file was emptied meanwhile")) };
        Ok(Entry::new(journal::Described {
            scope: &self.shared.scope,
            key: &state.key,
            headers: &state.headers,
            size: state.size,
            etag: state.object.as_ref().filter(|object| object.key == state.key).map(|object| &object.etag),
            must_be_new: state.must_be_new,
            base: staged.base.as_ref(),
            layout: &staged.layout,
            sealed,
            owner: state.owner.filter(|_| self.shared.area.is_written_down()),
            stream: None,
        }))
    }

    /// Describes all of the content on the disk, for the mount that comes after a killed one.
    pub async fn seal_file(self: &Arc<Self>) -> Result<(), WriteError> {
        let Some(file) = self.staged(|staged, _| staged.file.clone())? else { return Ok(()) };
        let inner = Arc::clone(self);
        Ok(blocking::<_, io::Error>(move || {
            let _io = inner.io.write();
            file.describe(&inner.entry(true)?, true)
        })
        .await?)
    }

    /// Describes what was taken over as it is: the changes of the daemon before are a part of it.
    pub fn describe_taken_over(&self) -> io::Result<()> {
        let Some(file) = self.staged(|staged, _| staged.file.clone())? else { return Ok(()) };
        file.describe(&self.entry(false)?, false)
    }

    /// Writes the description again if there is one, because what it says of the object has changed.
    pub async fn describe_again(self: &Arc<Self>) -> Result<(), WriteError> {
        let Some(file) = self.staged(|staged, _| staged.file.clone())? else { return Ok(()) };
        let inner = Arc::clone(self);
        Ok(blocking::<_, io::Error>(move || {
            let _io = inner.io.write();
            if file.described() == Described::Not { Ok(()) } else { file.describe(&inner.entry(false)?, false) }
        })
        .await?)
    }

    /// Bytes of `range`, cut at the end of the file. It has no part of the gate, so that a read does not wait for a commit. None:
    /// the content has changed meanwhile, so that the question has to be asked anew.
    pub async fn staged_read(self: &Arc<Self>, range: Range<u64>) -> Result<Option<Bytes>, WriteError> {
        let ahead = self.state.lock().ahead_of(&range);
        let aside = self.fetch(&(range.start..range.end.saturating_add(ahead)), &range).await?;
        let inner = Arc::clone(self);
        Ok(blocking::<_, io::Error>(move || inner.read_file(&range, &aside)).await?)
    }

    fn read_file(&self, range: &Range<u64>, aside: &[(u64, Bytes)]) -> io::Result<Option<Bytes>> {
        let _io = self.io.read();
        let look = self.if_staged(|staged, summary| {
            let end = range.end.min(*summary.size);
            let range = range.start.min(end)..end;
            (staged.layout.places(&range), staged.file.clone())
        });
        let Some((places, file)) = look else { return Ok(None) };
        let end = places.last().map_or(range.start, |(run, _)| run.end);
        let mut bytes = vec![0; (end - range.start) as usize];
        for (run, place) in places {
            let into = &mut bytes[(run.start - range.start) as usize..(run.end - range.start) as usize];
            match place {
                Place::Zeros => {}
                Place::File => file.as_ref().expect("the layout, seen under the same lock, has bytes in it").read(run.start, into)?,
                Place::Object => match found(aside, &run) {
                    Some(bytes) => into.copy_from_slice(bytes),
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(bytes.into()))
    }

    /// Fills the first bytes of `buffer` with `range` of the file, as far as it is not with the object alone: what is missing
    /// then is returned.
    pub(in crate::writer) async fn collect(
        self: &Arc<Self>,
        range: &Range<u64>,
        mut buffer: Buffer,
    ) -> io::Result<(Buffer, Vec<Range<u64>>)> {
        let (inner, range) = (Arc::clone(self), range.clone());
        blocking(move || {
            let _io = inner.io.read();
            let (places, file) = inner.staged(|staged, _| (staged.layout.places(&range), staged.file.clone()))?;
            let mut missing = Vec::new();
            for (run, place) in places {
                let into = &mut buffer.bytes_mut()[(run.start - range.start) as usize..(run.end - range.start) as usize];
                match place {
                    Place::Zeros => into.fill(0),
                    Place::File => file.as_ref().expect("the layout, seen under the same lock, has bytes in it").read(run.start, into)?,
                    Place::Object => missing.push(run),
                }
            }
            Ok((buffer, missing))
        })
        .await
    }

    pub async fn staged_truncate(self: &Arc<Self>, size: u64) -> Result<(), WriteError> {
        let inner = Arc::clone(self);
        blocking(move || {
            let _io = inner.io.write();
            let (old, held, file) = inner.staged(|staged, summary| {
                let old = *summary.size;
                let held = if size < old { staged.layout.held(&(size..old)) } else { 0 };
                (old, held, staged.file.clone())
            })?;
            if size == old {
                return Ok(());
            }
            if let Some(file) = inner.or_new_file(file)? {
                inner.note_change(&file)?;
                file.cut(size, held)?;
                file.note(&Change::Cut(size))?;
            }
            inner.staged(|staged, summary| {
                staged.layout.on_cut(size);
                (*summary.size, *summary.unsaved) = (size, true);
            })?;
            Ok(())
        })
        .await
    }

    pub async fn staged_allocate(self: &Arc<Self>, range: Range<u64>, how: Allocate) -> Result<(), WriteError> {
        let inner = Arc::clone(self);
        blocking(move || {
            let _io = inner.io.write();
            match how {
                Allocate::Extend | Allocate::KeepSize => {
                    let growth = inner.staged(|staged, _| staged.layout.growth(&range))?;
                    inner.shared.area.check(growth)?;
                    if how == Allocate::Extend {
                        inner.grow_to(range.end)?;
                    }
                    Ok(())
                }
                Allocate::Zero { keep_size } => inner.zero(range, keep_size),
                Allocate::Punch => inner.zero(range, true),
            }
        })
        .await
    }

    fn grow_to(&self, end: u64) -> io::Result<()> {
        let (grows, file) = self.staged(|staged, summary| (end > *summary.size, staged.file.clone()))?;
        if grows {
            if let Some(file) = self.or_new_file(file)? {
                self.note_change(&file)?;
                file.note(&Change::Grow(end))?;
            }
            self.staged(|_, summary| (*summary.size, *summary.unsaved) = (end, true))?;
        }
        Ok(())
    }

    fn zero(&self, range: Range<u64>, keep_size: bool) -> Result<(), WriteError> {
        let (range, held, file) = self.staged(|staged, summary| {
            let end = if keep_size { range.end.min(*summary.size) } else { range.end };
            let range = range.start.min(end)..end;
            let held = if range.is_empty() { 0 } else { staged.layout.held(&range) };
            (range, held, staged.file.clone())
        })?;
        if range.is_empty() {
            return Ok(());
        }
        if let Some(file) = self.or_new_file(file)? {
            self.note_change(&file)?;
            file.punch(&range, held);
            file.note(&Change::Zero(range.clone()))?;
        }
        self.staged(|staged, summary| {
            staged.layout.on_zero(&range);
            *summary.size = range.end.max(*summary.size);
            *summary.unsaved = true;
        })?;
        Ok(())
    }
}

/// What [`Inner::staged`] shows beside the staged file.
pub(in crate::writer) struct Summary<'a> {
    pub size: &'a mut u64,
    pub unsaved: &'a mut bool,
    /// Its description shall not be found.
    pub is_unwanted: bool,
}

fn found<'a>(aside: &'a [(u64, Bytes)], run: &Range<u64>) -> Option<&'a [u8]> {
    aside.iter().find_map(|(offset, bytes)| {
        let start = run.start.checked_sub(*offset)? as usize;
        bytes.get(start..start + (run.end - run.start) as usize)
    })
}
