//! Files that the kernel reads from the disk itself (FUSE passthrough): which inodes, from which file. The kernel refuses an open that
//! goes through its own pages beside one that goes to a file, and a second file for the same inode (fs/fuse/iomode.c); so what the first
//! open of an inode gets, all others get until the last is closed. Beside FOPEN_PASSTHROUGH, FOPEN_DIRECT_IO brings reads and writes of a
//! handle to us.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::spill::Whole;
use crate::vfs::{Answered, Entry, HandleId, Inode, Opened};

use super::channel::Channel;
use super::convert::{create_out, open_out};
use super::reply::Reply;
use super::wire::{CreateOut, OpenOut, open_flags};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Backings {
    state: Mutex<State>,
    /// The kernel said no: it has no such thing, or we may not.
    refused: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    inodes: HashMap<Inode, Use>,
    handles: HashMap<HandleId, Inode>,
}

/// How the open handles of an inode get their bytes.
#[derive(Debug)]
struct Use {
    way: Way,
    handles: usize,
}

#[derive(Debug)]
enum Way {
    /// From us, through the kernel's pages.
    Pages,
    File(Arc<Backing>),
}

/// A file that the kernel knows. The lock on it goes after the kernel's reference.
#[derive(Debug)]
struct Backing {
    id: u32,
    channel: Arc<Channel>,
    /// None: the daemon before had it. What it locked there the kernel holds open.
    _whole: Option<Whole>,
}

impl Drop for Backing {
    fn drop(&mut self) {
        // When the mount is gone the kernel has let go of all of them.
        if let Err(error) = self.channel.unregister(self.id) {
            tracing::debug!(id = self.id, %error, "the kernel does not know this file any more");
        }
    }
}

impl State {
    fn is_file(&self, ino: Inode) -> bool {
        self.inodes.get(&ino).is_some_and(|used| matches!(used.way, Way::File(_)))
    }

    /// Counts a handle, and says which file its inode is read from; `backing` when this is the first.
    fn on_open(&mut self, ino: Inode, opened: &Opened, writes: bool, backing: Option<Backing>) -> Option<Arc<Backing>> {
        if opened.direct && !writes && !self.is_file(ino) {
            // Past the pages: the kernel lets these stand beside whatever comes.
            return None;
        }
        let way = || backing.map_or(Way::Pages, |backing| Way::File(Arc::new(backing)));
        let used = self.inodes.entry(ino).or_insert_with(|| Use { way: way(), handles: 0 });
        used.handles += 1;
        self.handles.insert(opened.handle, ino);
        match &used.way {
            Way::File(backing) => Some(Arc::clone(backing)),
            Way::Pages => None,
        }
    }
}

/// A handle of an inode that is read from a file. Who wants to go past all pages comes to us nevertheless. With other flags the kernel
/// refuses the open (`FOPEN_PASSTHROUGH_MASK`).
fn past_file(opened: &Opened, id: u32) -> OpenOut {
    let direct = if opened.direct { open_flags::DIRECT_IO } else { 0 };
    OpenOut { fh: opened.handle.0, flags: open_flags::PASSTHROUGH | direct, backing_id: id }
}

impl Backings {
    /// Goes on with handles that the daemon before told the kernel of.
    pub fn restore(&self, answered: &[Answered], channel: &Arc<Channel>) {
        let mut state = self.state.lock();
        for Answered { handle, ino, told } in answered {
            let is_file = told.flags & open_flags::PASSTHROUGH != 0;
            let past_pages = told.flags & open_flags::DIRECT_IO != 0;
            if past_pages && !is_file {
                // Those that write and go past the pages count as well, but bar nothing while they are there.
                continue;
            }
            let way = || match is_file {
                true => Way::File(Arc::new(Backing { id: told.backing, channel: Arc::clone(channel), _whole: None })),
                false => Way::Pages,
            };
            state.inodes.entry(*ino).or_insert_with(|| Use { way: way(), handles: 0 }).handles += 1;
            state.handles.insert(*handle, *ino);
        }
    }

    /// Whether the kernel reads `ino` from a file of the disk.
    pub fn has_file(&self, ino: Inode) -> bool {
        self.state.lock().is_file(ino)
    }

    /// Whether an open of `ino` for reading may be the first one that gets a file.
    pub fn may_begin(&self, ino: Inode, opened: &Opened) -> bool {
        !opened.direct && !self.refused.load(Ordering::Relaxed) && !self.state.lock().inodes.contains_key(&ino)
    }

    /// Answers an open of `ino`. `whole` is the file that holds all of it, for one that [may begin](Self::may_begin). Who would write
    /// to an inode that is read from a file is not answered and has to get another inode: through a shared mapping it would write to that file.
    pub fn reply(
        &self,
        ino: Inode,
        opened: &Opened,
        writes: bool,
        whole: Option<Whole>,
        reply: Reply<OpenOut>,
        tell: impl FnOnce(&OpenOut),
    ) -> Option<Reply<OpenOut>> {
        // Held until the reply is sent: none that goes another way may come between.
        let mut state = self.state.lock();
        if writes && state.is_file(ino) {
            return Some(reply);
        }
        let backing = whole.filter(|_| !state.inodes.contains_key(&ino)).and_then(|whole| self.register(whole, reply.channel()));
        let out = match state.on_open(ino, opened, writes, backing) {
            Some(backing) => past_file(opened, backing.id),
            None => open_out(opened, writes),
        };
        tell(&out);
        reply.ok(&out);
        None
    }

    /// Answers a create, which may have found a file that is open already; else as [`reply`](Self::reply).
    pub fn reply_created(
        &self,
        entry: &Entry,
        opened: &Opened,
        reply: Reply<CreateOut>,
        tell: impl FnOnce(&OpenOut),
    ) -> Option<Reply<CreateOut>> {
        let mut state = self.state.lock();
        if state.is_file(entry.attr.ino) {
            return Some(reply);
        }
        state.on_open(entry.attr.ino, opened, true, None);
        let out = create_out(entry, opened);
        tell(&out.open);
        reply.ok(&out);
        None
    }

    /// The kernel closed the handle for good. With the last one of an inode this gives what is to be dropped, where system calls and files
    /// do no harm.
    pub fn on_release(&self, handle: HandleId) -> Option<impl Send + 'static> {
        let mut state = self.state.lock();
        let ino = state.handles.remove(&handle)?;
        let Place::Occupied(mut used) = state.inodes.entry(ino) else { return None };
        used.get_mut().handles -= 1;
        if used.get().handles > 0 {
            return None;
        }
        match used.remove().way {
            Way::File(backing) => Some(backing),
            Way::Pages => None,
        }
    }

    fn register(&self, whole: Whole, channel: &Arc<Channel>) -> Option<Backing> {
        match channel.register(whole.file()) {
            Ok(id) => Some(Backing { id, channel: Arc::clone(channel), _whole: Some(whole) }),
            Err(error) => {
                self.refused.store(true, Ordering::Relaxed);
                tracing::info!(%error, "the kernel does not read files of the disk by itself (it takes Linux 6.9, root, and a disk that is no overlay): reads go on through this process");
                None
            }
        }
    }
}
