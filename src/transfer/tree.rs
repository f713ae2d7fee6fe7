//! Objects, and everything below names in a bucket, into a directory, some files at a time. Invariant: nothing is written outside of the
//! directory; a name that would lead there is told and left out.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;
use tokio::task::block_in_place;

use super::get::{Getting, Sum, Wanted, get};
use super::many::{Crew, Event, Item, Many, Moved, OnFile, is_current};
use super::names::local_name;
use super::plan::Plan;
use super::resumed::open_directory;
use super::target::{keep_names, parent_of};
use super::walk::{Ahead, Listing, directory_of};
use super::{Error, Result};
use crate::store::{Key, ListPage, ObjectMeta, ObjectStore, SYMLINK_SIZE};

/// More is no size but an odd answer: S3 takes objects of 50 TB, OSS of 48.8 TB.
const MOST_BYTES: u64 = 1 << 50;

/// Files on their way.
#[derive(Clone, Debug)]
pub struct Tree {
    /// How each file is brought; its plan is replaced by one for its size, its store and location by those of its root.
    pub getting: Getting,
    pub many: Many,
}

/// What a person named.
#[derive(Clone, Debug)]
pub struct Root {
    pub store: Arc<dyn ObjectStore>,
    pub location: String,
    pub key: Key,
    /// The file of an object, or the directory for what is below a name.
    pub dest: PathBuf,
    /// Everything below.
    pub is_tree: bool,
}

impl Tree {
    /// Brings what `roots` name and tells what came of each. Which of them, counted from 0, are names that nothing is below.
    ///
    /// # Errors
    /// The first that could not be brought. Those under way are given up, others are there.
    pub async fn get(&self, roots: &[Root], mut tell: impl FnMut(Event)) -> Result<Vec<usize>> {
        let (crew, named) = (Crew::new(self.many.transfers), Arc::<Mutex<BTreeSet<_>>>::default());
        let mut bringing =
            Bringing { tree: self, crew, made: HashSet::new(), dests: HashMap::new(), named: Arc::clone(&named), tell: &mut tell };
        let brought = bringing.bring(roots).await;
        // Once a directory, not once a file.
        let named = std::mem::take(&mut *named.lock());
        block_in_place(|| named.iter().try_for_each(|directory| keep_names(directory))).and(brought)
    }

    /// What there is to say of an object that is not to be brought.
    fn settled(&self, meta: &ObjectMeta, path: &Path) -> Option<Event> {
        if self.many.update && block_in_place(|| is_there(path, meta)) {
            Some(Event::Skipped(meta.size))
        } else {
            self.many.dry_run.then(|| Event::Would(item(meta, path)))
        }
    }

    /// How one of them is brought.
    fn one(&self, root: &Root, size: u64, named: Named) -> Getting {
        // That the plan fits was found out for the largest.
        let plan = Plan::at_offsets(&self.many.asked, size).unwrap_or(self.getting.plan);
        let (store, location, named) = (Arc::clone(&root.store), root.location.clone(), Some(named));
        Getting { plan, store, location, named, ..self.getting.clone() }
    }
}

/// A tree that is being brought.
struct Bringing<'a, T> {
    tree: &'a Tree,
    crew: Crew,
    /// Directories that this run made, for objects that were named.
    made: HashSet<PathBuf>,
    /// Directories of roots, held open.
    dests: HashMap<PathBuf, OwnedFd>,
    named: Named,
    tell: &'a mut T,
}

/// Directories that have new names.
type Named = Arc<Mutex<BTreeSet<PathBuf>>>;

impl<T: FnMut(Event)> Bringing<'_, T> {
    async fn bring(&mut self, roots: &[Root]) -> Result<Vec<usize>> {
        let mut empty = Vec::new();
        for (index, root) in roots.iter().enumerate() {
            if !root.is_tree {
                self.bring_named(root).await?;
            } else if self.bring_below(root).await? == 0 {
                empty.push(index);
            }
        }
        self.crew.finish(self.tell).await?;
        Ok(empty)
    }

    async fn bring_named(&mut self, root: &Root) -> Result<()> {
        self.make(parent_of(&root.dest))?;
        let (tree, root, named) = (self.tree.clone(), root.clone(), Arc::clone(&self.named));
        let bringing = async move {
            let details = root.store.details(&root.key).await?;
            match tree.settled(&details.meta, &root.dest) {
                Some(event) => Ok(event),
                None => one(tree.one(&root, details.meta.size, named), tree.many.on_file, Wanted::from(&details), root.dest).await,
            }
        };
        self.crew.begin(bringing, self.tell).await
    }

    /// How many objects that were.
    async fn bring_below(&mut self, root: &Root) -> Result<u64> {
        let prefix = directory_of(&root.key);
        let mut listing = Ahead::new(Listing::new(Arc::clone(&root.store), prefix.clone(), false));
        let (mut count, mut waiting) = (0, Waiting::default());
        while let Some(page) = listing.next().await? {
            count += page.objects.len() as u64;
            let taken = self.pick(page, &prefix, &root.dest);
            (self.tell)(Event::Found(taken.iter().map(|(_, wanted)| wanted.meta.size).sum()));
            for (path, wanted) in taken {
                let Known { files, hidden } = waiting.pass(&wanted.meta.key);
                hidden.iter().for_each(|meta| self.refuse(meta, "it is a directory as well".to_owned()));
                self.begin_all(root, files).await?;
                if wanted.meta.key.is_prefix() {
                    if !self.tree.many.dry_run {
                        self.open_below(&root.dest, &path, &wanted.meta)?;
                    }
                } else {
                    waiting.0.push((path, wanted));
                }
            }
        }
        self.begin_all(root, waiting.0).await?;
        Ok(count)
    }

    async fn begin_all(&mut self, root: &Root, files: Vec<(PathBuf, Wanted)>) -> Result<()> {
        for (path, wanted) in files {
            if let Some(event) = self.tree.settled(&wanted.meta, &path) {
                (self.tell)(event);
            } else if let Some(directory) = self.open_below(&root.dest, parent_of(&path), &wanted.meta)? {
                let getting =
                    Getting { directory: Some(Arc::new(directory)), ..self.tree.one(root, wanted.meta.size, Arc::clone(&self.named)) };
                self.crew.begin(one(getting, Arc::clone(&self.tree.many.on_file), wanted, path), self.tell).await?;
            }
        }
        Ok(())
    }

    fn refuse(&mut self, meta: &ObjectMeta, why: String) {
        (self.tell)(Event::Refused { name: meta.key.as_bytes().to_vec(), why });
    }

    /// Those of a page that are wanted, and where they go.
    fn pick(&mut self, page: ListPage, prefix: &Key, dest: &Path) -> Vec<(PathBuf, Wanted)> {
        let sums = page.sums.into_iter().chain(std::iter::repeat(None));
        let mut taken = Vec::with_capacity(page.objects.len());
        for (meta, sum) in page.objects.into_iter().zip(sums) {
            let rest = meta.key.as_bytes().strip_prefix(prefix.as_bytes()).unwrap_or_default();
            // The marker of the directory itself.
            if rest.is_empty() {
                continue;
            }
            match local_name(rest) {
                Ok(_) if meta.size > MOST_BYTES => {
                    let why = format!("the listing says that it has {} bytes, which no store keeps as one object", meta.size);
                    self.refuse(&meta, why);
                }
                Ok(name) if self.tree.many.pick.takes(&name) => {
                    taken.push((dest.join(name), Wanted { meta, sum: sum.map_or(Sum::Unknown, Sum::Ask) }));
                }
                Ok(_) => {}
                Err(why) => self.refuse(&meta, format!("the name {why}")),
            }
        }
        taken
    }

    fn make(&mut self, directory: &Path) -> Result<()> {
        if self.tree.many.dry_run || self.made.contains(directory) {
            return Ok(());
        }
        block_in_place(|| fs::create_dir_all(directory)).map_err(Error::local("make the directory", directory))?;
        self.made.insert(directory.to_owned());
        Ok(())
    }

    /// Opens a directory below `dest` for an object, and makes it when it is missing. None, and the object is refused, when a link on the way leads out of
    /// `dest`.
    fn open_below(&mut self, dest: &Path, directory: &Path, meta: &ObjectMeta) -> Result<Option<OwnedFd>> {
        let opened = self.dest(dest).and_then(|held| {
            let inside = directory.strip_prefix(dest).unwrap_or(Path::new(""));
            block_in_place(|| open_inside(held, inside)).map_err(Error::local("make the directory", directory))
        });
        match opened {
            Err(Error::Local { source, .. }) if source.kind() == io::ErrorKind::CrossesDevices => {
                self.refuse(meta, format!("a symbolic link on its way leads out of {}", dest.display()));
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    /// `dest`, which stays the same directory for all that is brought below it.
    fn dest(&mut self, dest: &Path) -> Result<&OwnedFd> {
        match self.dests.entry(dest.to_owned()) {
            Entry::Occupied(held) => Ok(held.into_mut()),
            Entry::Vacant(place) => {
                let held = block_in_place(|| fs::create_dir_all(dest).and_then(|()| open_directory(dest)));
                Ok(place.insert(held.map_err(Error::local("make the directory", dest))?))
            }
        }
    }
}

/// Opens the directory `inside` of `dest`, where no link on the way leads out of it, and makes what is missing.
fn open_inside(dest: &OwnedFd, inside: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| openat2(dest, path, flags, Mode::empty(), ResolveFlags::BENEATH);
    if inside.as_os_str().is_empty() {
        return Ok(open(Path::new("."))?);
    }
    match open(inside) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    let mut made = open(Path::new("."))?;
    let mut path = PathBuf::new();
    for component in inside.components() {
        path.push(component);
        made = match open(&path) {
            Err(Errno::NOENT) => {
                // Relative to the directory before it, which was opened: nothing is made behind a link that was put there since.
                match mkdirat(&made, component.as_os_str(), Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => open(&path)?,
                    Err(error) => return Err(error.into()),
                }
            }
            opened => opened?,
        };
    }
    Ok(made)
}

/// Objects that may still turn out to share their name with a directory, which wins as in a mount. Listings are sorted: all keys between `a` and
/// `a/...` begin with `a`, so that few objects wait at a time.
#[derive(Debug, Default)]
struct Waiting(Vec<(PathBuf, Wanted)>);

/// Objects that left [`Waiting`].
#[derive(Debug, Default)]
struct Known {
    files: Vec<(PathBuf, Wanted)>,
    hidden: Vec<ObjectMeta>,
}

impl Waiting {
    /// Releases the objects that `key`, the next one of the listing, decides on.
    fn pass(&mut self, key: &Key) -> Known {
        let mut known = Known::default();
        for (path, wanted) in std::mem::take(&mut self.0) {
            match key.as_bytes().strip_prefix(wanted.meta.key.as_bytes()) {
                None => known.files.push((path, wanted)),
                Some(rest) if rest.starts_with(b"/") => known.hidden.push(wanted.meta),
                Some(_) => self.0.push((path, wanted)),
            }
        }
        known
    }
}

fn item(meta: &ObjectMeta, path: &Path) -> Item {
    Item { key: meta.key.clone(), path: path.to_owned(), bytes: meta.size, meta: Some(meta.clone()) }
}

async fn one(getting: Getting, on_file: OnFile, mut wanted: Wanted, path: PathBuf) -> Result<Event> {
    let began = Instant::now();
    // Only a HEAD tells what has the size of a link, and the version where a listing does not.
    if wanted.meta.size == SYMLINK_SIZE || wanted.meta.etag.as_str().is_empty() {
        let details = getting.store.details(&wanted.meta.key).await?;
        if let Some(target) = &details.symlink {
            let why = format!("it is a symbolic link to {}, which are not made here", String::from_utf8_lossy(target));
            return Ok(Event::Refused { name: wanted.meta.key.as_bytes().to_vec(), why });
        }
        wanted = Wanted::from(&details);
    }
    let getting = Getting { on_bytes: on_file(&path, wanted.meta.size), ..getting };
    let got = get(&getting, &wanted, 0..wanted.meta.size, &path).await?;
    let moved = Moved { bytes: got.bytes, resumed_bytes: got.resumed_bytes, parts: 0, is_checked: got.is_checked, took: began.elapsed() };
    Ok(Event::Moved(item(&wanted.meta, &path), moved))
}

/// Whether the file is what the object is, by size and time.
pub fn is_there(path: &Path, meta: &ObjectMeta) -> bool {
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    found.and_then(|found| Some((found.len(), found.modified().ok()?))).is_some_and(|copy| is_current(copy, (meta.size, meta.modified)))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::budget::{self, Budget};
    use crate::store::memory::Memory;
    use crate::transfer::{Asked, Parallel, Pick};
    use crate::units::ByteSize;

    #[test]
    fn a_file_is_there_with_the_same_size_and_not_older() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let modified = UNIX_EPOCH + Duration::from_millis(1_000_900);
        let meta = ObjectMeta { key: "k".into(), size: 3, etag: "e".into(), modified };
        assert!(!is_there(&path, &meta));
        fs::write(&path, "abc").unwrap();
        let set = |ms| fs::File::options().write(true).open(&path).unwrap().set_modified(UNIX_EPOCH + Duration::from_millis(ms)).unwrap();
        for (ms, expected) in [(999_000, false), (1_000_000, true), (1_001_000, true)] {
            set(ms);
            assert_eq!(is_there(&path, &meta), expected, "{ms}");
        }
        assert!(!is_there(&path, &ObjectMeta { size: 4, ..meta }));
    }

    /// One file and no checkpoint; `on_file` is called when the directory of the file was made, and before the file is.
    fn tree(store: &Arc<dyn ObjectStore>, on_file: impl Fn(&Path) + Send + Sync + 'static) -> Tree {
        let (parallel, part_bytes) = (Parallel::Fixed(1), 1 << 20);
        let asked = Asked { parallel, part_bytes, threshold_bytes: part_bytes, max_memory_bytes: 64 << 20 };
        let getting = Getting {
            store: Arc::clone(store),
            budget: Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) }),
            plan: Plan::at_offsets(&asked, 1).unwrap(),
            parallel,
            location: "s3://b".into(),
            checkpoints: None,
            directory: None,
            bandwidth: None,
            on_bytes: Arc::new(|_| {}),
            named: None,
        };
        let on_file: OnFile = Arc::new(move |path, _| {
            on_file(path);
            Arc::new(|_| {})
        });
        let pick = Pick::new(&[], &[]).unwrap();
        Tree { getting, many: Many { asked, pick, update: false, transfers: 1, dry_run: false, on_file } }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_link_in_place_of_a_checked_directory_leads_no_file_out() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dest = dir.path().join("dest");
        let memory = Memory::default();
        memory.put("t/sub/file", "content");
        let store: Arc<dyn ObjectStore> = Arc::new(memory);
        let (sub, moved, out) = (dest.join("sub"), dest.join("moved"), elsewhere.path().to_owned());
        let root = Root { store: Arc::clone(&store), location: "s3://b".into(), key: "t".into(), dest, is_tree: true };
        let planted = (sub.clone(), moved.clone());
        let tree = tree(&store, move |_| {
            fs::rename(&planted.0, &planted.1).unwrap();
            std::os::unix::fs::symlink(&out, &planted.0).unwrap();
        });
        // Whether its name survives a crash is asked of the path.
        let _ = tree.get(&[root], |_| {}).await;
        assert!(sub.is_symlink());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        assert_eq!(fs::read(moved.join("file")).unwrap(), b"content");
    }
}
