//! The name space and the files of a mount without a kernel, as a world of the model. What the kernel does is done here: paths are resolved
//! component by component, a stale name is looked up again, the size of an open is that of the file.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::runtime::Runtime;
use windlass::budget::Budget;
use windlass::metrics::Metrics;
use windlass::reader::Reader;
use windlass::store::ObjectStore;
use windlass::units::ByteSize;
use windlass::vfs::{Access, Attr, Caller, Edits, Error, Files, HandleId, Inode, Kind, Names, Options, SetAttributes};
use windlass::writer::{self, Writer};
use windlass::{budget, reader};

use super::model::{Answer, How, Node, World};

const ME: Caller = Caller { uid: 0, gid: 0, thread: 1 };

pub struct VfsWorld {
    pub runtime: Runtime,
    pub names: Arc<Names>,
    pub files: Arc<Files>,
    pub edits: Arc<Edits>,
    /// What the kernel would have been sent.
    pub notices: Arc<Mutex<Notices>>,
    pub open: HashMap<usize, (HandleId, Inode)>,
}

/// What the kernel would have been sent about inodes, in order.
#[derive(Debug, Default)]
pub struct Notices {
    /// To drop its pages, some time.
    pub old_pages: Vec<Inode>,
    /// To drop its pages while a write waits for that.
    pub awaited_pages: Vec<Inode>,
}

/// Where a path leads.
struct Place {
    parent: Inode,
    name: String,
    /// What is there.
    attr: Option<Attr>,
}

impl VfsWorld {
    pub fn new(store: Arc<dyn ObjectStore>, writing: writer::Options) -> Self {
        Self::over(store, writing, |store| Names::new(store, Options::default()))
    }

    /// A world over other names, which are made in its runtime.
    pub fn over(store: Arc<dyn ObjectStore>, writing: writer::Options, names: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<Names>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime starts");
        let _entered = runtime.enter();
        let metrics = Arc::new(Metrics::default());
        let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) });
        let deadline = std::time::Duration::from_secs(70);
        let reader = Reader::new(store.clone(), budget.clone(), metrics.clone(), reader::Options::default(), deadline);
        let names = names(store.clone());
        let files = Files::new(names.clone(), reader.clone());
        let writer = Writer::new(store.clone(), budget, metrics, writing, "model");
        writer.take_room_from(&reader);
        if names.is_written_down() {
            writer.write_down_changes();
        }
        let edits = Edits::new(names.clone(), files.clone(), store, writer);
        drop(_entered);
        // There is no kernel: what it would be sent is kept for the tests.
        let (changing, notices) = (files.clone(), Arc::<Mutex<Notices>>::default());
        let kept = notices.clone();
        runtime.spawn(async move {
            loop {
                let changes = changing.next_changes().await;
                changing.told(&changes);
                let mut kept = kept.lock().expect("no panic while it is held");
                kept.old_pages.extend(changes.old_pages);
                kept.awaited_pages.extend(changes.awaited_pages.into_iter().map(|(ino, _)| ino));
            }
        });
        Self { runtime, names, files, edits, notices, open: HashMap::new() }
    }

    fn lookup(&self, parent: Inode, name: &str) -> Answer<Option<Attr>> {
        match self.runtime.block_on(self.names.lookup(parent, name.as_bytes())) {
            Ok(entry) => Ok(Some(entry.attr)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error.errno()),
        }
    }

    fn resolve(&self, path: &str, follow: bool) -> Answer<Place> {
        let mut parts: VecDeque<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let mut parent = Inode::ROOT;
        let mut links = 0;
        loop {
            let name = parts.pop_front().ok_or(libc::EINVAL)?;
            let attr = self.lookup(parent, &name)?;
            match &attr {
                Some(found) if found.kind == Kind::Symlink && (follow || !parts.is_empty()) => {
                    links += 1;
                    if links > 40 {
                        return Err(libc::ELOOP);
                    }
                    let target = self.runtime.block_on(self.names.read_link(found.ino)).map_err(|error| error.errno())?;
                    let target = String::from_utf8(target).expect("targets of the model are text");
                    for part in target.split('/').rev() {
                        parts.push_front(part.to_owned());
                    }
                }
                _ if parts.is_empty() => return Ok(Place { parent, name, attr }),
                Some(found) if found.kind == Kind::Directory => parent = found.ino,
                Some(_) => return Err(libc::ENOTDIR),
                None => return Err(libc::ENOENT),
            }
        }
    }

    fn handle(&self, handle: usize) -> (HandleId, Inode) {
        self.open[&handle]
    }
}

fn answer<T>(result: Result<T, Error>) -> Answer<T> {
    result.map_err(|error| error.errno())
}

impl World for VfsWorld {
    fn open(&mut self, handle: usize, path: &str, how: How) -> Answer<()> {
        let access = Access { read: true, write: true, truncate: how.truncate, exclusive: how.exclusive, direct: false, append: false };
        for _ in 0..3 {
            // O_CREAT with O_EXCL does not follow a link at the end.
            let place = self.resolve(path, !how.exclusive)?;
            let opened = match place.attr {
                Some(_) if how.exclusive => return Err(libc::EEXIST),
                Some(attr) if attr.kind == Kind::Directory => return Err(libc::EISDIR),
                Some(attr) => self.runtime.block_on(self.edits.open(attr.ino, access, ME)).map(|opened| (opened.handle, attr.ino)),
                None if how.create => {
                    let made = self.runtime.block_on(self.edits.create(place.parent, place.name.as_bytes(), 0o644, access, ME));
                    made.map(|(entry, opened)| (opened.handle, entry.attr.ino))
                }
                None => return Err(libc::ENOENT),
            };
            match opened {
                Err(Error::Retired) => continue,
                Err(error) => return Err(error.errno()),
                Ok(opened) => {
                    self.open.insert(handle, opened);
                    return Ok(());
                }
            }
        }
        Err(libc::ESTALE)
    }

    fn close(&mut self, handle: usize) -> Answer<()> {
        let (id, ino) = self.open.remove(&handle).expect("it is open");
        let flushed = self.runtime.block_on(self.edits.flush(id, ME.thread, &|_, _| true));
        self.files.release(id);
        self.runtime.block_on(self.edits.release(id));
        self.runtime.block_on(self.edits.on_released(ino));
        answer(flushed)
    }

    fn write(&mut self, handle: usize, offset: u64, data: &[u8]) -> Answer<()> {
        if data.is_empty() {
            return Ok(());
        }
        let (id, _) = self.handle(handle);
        let _entered = self.runtime.enter();
        let mut told = false;
        if let Some(result) = self.edits.try_write(id, offset, data, ME.thread, || told = true) {
            assert_eq!(told, result.is_ok(), "who wrote is told once that it is done, and of nothing else");
            return answer(result.map(drop));
        }
        drop(_entered);
        answer(self.runtime.block_on(self.edits.write(id, offset, data, ME.thread)))
    }

    fn read(&mut self, handle: usize, offset: u64, len: usize) -> Answer<Vec<u8>> {
        let (id, ino) = self.handle(handle);
        if let Some(data) = answer(self.runtime.block_on(self.edits.read(ino, offset, len)))? {
            return Ok(data.to_vec());
        }
        let file = answer(self.files.get(id).or_else(|_| self.edits.bind_reader(id)))?;
        let data = self.runtime.block_on(async {
            let read = file.begin(ME.thread, offset, len)?;
            self.files.finish(&file, read).await
        });
        answer(data).map(|data| data.slices().collect::<Vec<_>>().concat())
    }

    fn truncate(&mut self, handle: usize, size: u64) -> Answer<()> {
        let (id, ino) = self.handle(handle);
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        answer(self.runtime.block_on(self.edits.set_attributes(ino, Some(id), set))).map(drop)
    }

    fn fsync(&mut self, handle: usize) -> Answer<()> {
        let (id, _) = self.handle(handle);
        answer(self.runtime.block_on(self.edits.fsync(id)))
    }

    fn unlink(&mut self, path: &str) -> Answer<()> {
        let place = self.resolve(path, false)?;
        place.attr.ok_or(libc::ENOENT)?;
        answer(self.runtime.block_on(self.edits.unlink(place.parent, place.name.as_bytes())))
    }

    fn mkdir(&mut self, path: &str) -> Answer<()> {
        let place = self.resolve(path, false)?;
        if place.attr.is_some() {
            return Err(libc::EEXIST);
        }
        answer(self.runtime.block_on(self.edits.mkdir(place.parent, place.name.as_bytes(), 0o755, ME))).map(drop)
    }

    fn rmdir(&mut self, path: &str) -> Answer<()> {
        let place = self.resolve(path, false)?;
        match place.attr {
            None => Err(libc::ENOENT),
            Some(attr) if attr.kind != Kind::Directory => Err(libc::ENOTDIR),
            Some(_) => answer(self.runtime.block_on(self.edits.rmdir(place.parent, place.name.as_bytes()))),
        }
    }

    fn rename(&mut self, from: &str, to: &str, no_replace: bool) -> Answer<()> {
        let (from, to) = (self.resolve(from, false)?, self.resolve(to, false)?);
        let source = from.attr.ok_or(libc::ENOENT)?;
        if no_replace && to.attr.is_some() {
            return Err(libc::EEXIST);
        }
        // The kernel looks at this before it asks (fs/namei.c, vfs_rename and do_renameat2).
        let below = |top: Inode, at: Inode| self.is_below(top, at);
        if source.kind == Kind::Directory && below(source.ino, to.parent) {
            return Err(libc::EINVAL);
        }
        if let Some(target) = &to.attr {
            if target.kind == Kind::Directory && below(target.ino, from.parent) {
                return Err(libc::ENOTEMPTY);
            }
            match (source.kind == Kind::Directory, target.kind == Kind::Directory) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                _ if source.ino == target.ino => return Ok(()),
                _ => {}
            }
        }
        let renamed = self.edits.rename(from.parent, from.name.as_bytes(), to.parent, to.name.as_bytes(), no_replace);
        answer(self.runtime.block_on(renamed))
    }

    fn symlink(&mut self, path: &str, target: &str) -> Answer<()> {
        let place = self.resolve(path, false)?;
        if place.attr.is_some() {
            return Err(libc::EEXIST);
        }
        let made = self.edits.symlink(place.parent, place.name.as_bytes(), target.as_ref());
        answer(self.runtime.block_on(made)).map(drop)
    }

    fn stat(&mut self, path: &str) -> Answer<Node> {
        let attr = self.resolve(path, false)?.attr.ok_or(libc::ENOENT)?;
        let (shown, _) = answer(self.runtime.block_on(self.names.getattr(attr.ino)))?;
        assert_eq!(shown.size, attr.size, "lookup and getattr of {path}");
        Ok(match attr.kind {
            Kind::Directory => Node::Directory,
            Kind::Symlink => Node::Link(answer(self.runtime.block_on(self.names.read_link(attr.ino)))?),
            Kind::File => Node::File(attr.size),
        })
    }

    fn list(&mut self, path: &str) -> Answer<Vec<String>> {
        let ino = match path {
            "" => Inode::ROOT,
            path => self.resolve(path, true)?.attr.ok_or(libc::ENOENT)?.ino,
        };
        let directory = answer(self.names.open_dir(ino))?;
        let mut names = Vec::new();
        let mut offset = 0;
        loop {
            let page = answer(self.runtime.block_on(directory.read_plus(offset)))?;
            if page.is_empty() {
                break;
            }
            page.fill_plus(|item, _| {
                offset = item.next_offset;
                names.push(String::from_utf8_lossy(item.name).into_owned());
                false
            });
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }
}

impl VfsWorld {
    /// Whether `at` is `top` or lies below it.
    fn is_below(&self, top: Inode, mut at: Inode) -> bool {
        loop {
            if at == top {
                return true;
            }
            let directory = self.names.parent_of(at);
            if at == Inode::ROOT || directory == at {
                return false;
            }
            at = directory;
        }
    }
}
