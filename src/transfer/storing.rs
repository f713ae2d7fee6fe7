//! Files, and everything below directories, into objects, some at a time. Symbolic links are followed: what they lead to is stored under their
//! names. Invariant: what cannot be stored is told and left out, and when one fails, no upload of another stays behind.

use std::fs::{self, File, Metadata};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::block_in_place;
use walkdir::WalkDir;

use super::many::{Crew, Event, Item, Many, Moved, is_current};
use super::names::remote_name;
use super::plan::Plan;
use super::put::{Putting, put};
use super::source::Origin;
use super::{Error, Result};
use crate::store::{Condition, ContentTypes, DIRECTORY_TYPE, ErrorKind, Headers, Key, PutRequest};

/// Files on their way.
#[derive(Debug)]
pub struct Storing {
    /// How each file is stored; plan and headers are those of the file.
    pub putting: Putting,
    pub many: Many,
    /// What type the objects say that they have.
    pub content_types: ContentTypes,
    /// What `putting` listens to.
    pub stop: watch::Sender<bool>,
}

/// What a person named.
#[derive(Clone, Debug)]
pub struct Given {
    pub path: PathBuf,
    /// The object of a file, or the prefix of what is below a directory.
    pub key: Key,
}

/// What to do with an entry of a directory.
enum Step {
    File(PathBuf, Key, Metadata),
    /// An empty directory.
    Marker(PathBuf, Key),
    Refuse(PathBuf, String),
}

/// Entries that are looked at before some of them are begun.
const PAGE: usize = 1000;

impl Storing {
    /// Stores all of it and tells what came of each.
    ///
    /// # Errors
    /// The first that could not be stored. Those under way are stopped, others are there.
    pub async fn put(self: &Arc<Self>, all: &[Given], mut tell: impl FnMut(Event)) -> Result<()> {
        let mut crew = Crew::new(self.many.transfers);
        let stored = self.put_all(all, &mut crew, &mut tell).await;
        if stored.is_err() {
            // Each aborts its upload, or leaves it to its checkpoint.
            self.stop.send_replace(true);
            crew.end().await;
        }
        stored
    }

    async fn put_all(self: &Arc<Self>, all: &[Given], crew: &mut Crew, tell: &mut impl FnMut(Event)) -> Result<()> {
        for given in all {
            let entries = WalkDir::new(&given.path).follow_links(true).sort_by_file_name().into_iter();
            let mut steps = entries.filter_map(|entry| self.step(given, entry));
            loop {
                let page: Vec<Step> = block_in_place(|| steps.by_ref().take(PAGE).collect());
                if page.is_empty() {
                    break;
                }
                let size = |step: &Step| if let Step::File(_, _, found) = step { found.len() } else { 0 };
                tell(Event::Found(page.iter().map(size).sum()));
                for step in page {
                    self.take(step, crew, tell).await?;
                }
            }
        }
        crew.finish(tell).await
    }

    /// What an entry comes to; none when it is not wanted, or does not need to be there by itself.
    fn step(&self, given: &Given, entry: walkdir::Result<walkdir::DirEntry>) -> Option<Step> {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Some(Step::Refuse(error.path().unwrap_or(&given.path).to_owned(), why(&error))),
        };
        let (path, kind) = (entry.path().to_owned(), entry.file_type());
        let name = path.strip_prefix(&given.path).unwrap_or(&path);
        if !name.as_os_str().is_empty() && !self.many.pick.takes(name) {
            return None;
        }
        let below = match remote_name(name) {
            Ok(below) => below,
            // What is in it is refused by itself.
            Err(_) if kind.is_dir() => return None,
            Err(why) => return Some(Step::Refuse(path.clone(), format!("the name {why}"))),
        };
        let key = given.key.join(below);
        if kind.is_dir() {
            let is_empty = fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none());
            let marker = if key.is_prefix() { key } else { key.join(b"/") };
            return (is_empty && !marker.as_bytes().is_empty()).then_some(Step::Marker(path, marker));
        }
        match entry.metadata() {
            Ok(found) if kind.is_file() => Some(Step::File(path, key, found)),
            Ok(_) => Some(Step::Refuse(path, "it is neither a file nor a directory".into())),
            Err(error) => Some(Step::Refuse(path, why(&error))),
        }
    }

    async fn take(self: &Arc<Self>, step: Step, crew: &mut Crew, tell: &mut impl FnMut(Event)) -> Result<()> {
        match step {
            Step::Refuse(path, why) => tell(Event::Refused { name: path.into_os_string().into_encoded_bytes(), why }),
            Step::Marker(path, key) if self.many.dry_run => tell(Event::Would(Item { key, path, bytes: 0, meta: None })),
            Step::Marker(_, key) => {
                // As the mount makes directories.
                let headers = Headers { content_type: Some(DIRECTORY_TYPE.into()), ..Headers::default() };
                let request = PutRequest { key, body: Bytes::new(), headers, condition: Condition::Any };
                self.putting.store.put(&request).await?;
            }
            Step::File(path, key, found) => crew.begin(Arc::clone(self).one(path, key, found), tell).await?,
        }
        Ok(())
    }

    async fn one(self: Arc<Self>, path: PathBuf, key: Key, found: Metadata) -> Result<Event> {
        let began = Instant::now();
        let item = Item { key, path, bytes: found.len(), meta: None };
        if self.many.update && self.is_there(&item.key, &found).await? {
            return Ok(Event::Skipped(item.bytes));
        }
        if self.many.dry_run {
            return Ok(Event::Would(item));
        }
        let open = || File::open(&item.path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (len, file) = block_in_place(open).map_err(Error::local("read", &item.path))?;
        // That the plan fits was found out for a stream.
        let plan = Plan::upload(&self.many.asked, Some(len)).unwrap_or(self.putting.plan);
        let (headers, on_bytes) = (self.content_types.headers(&item.key), (self.many.on_file)(&item.path, len));
        let putting = Putting { plan, headers, on_bytes, ..self.putting.clone() };
        let put = put(&putting, &item.key, Origin::File(Arc::new(file)), &item.path).await?;
        let (bytes, resumed_bytes, parts) = (put.bytes, put.resumed_bytes, put.parts);
        Ok(Event::Moved(item, Moved { bytes, resumed_bytes, parts, is_checked: false, took: began.elapsed() }))
    }

    async fn is_there(&self, key: &Key, found: &Metadata) -> Result<bool> {
        match self.putting.store.head(key).await {
            Ok(meta) => Ok(found.modified().is_ok_and(|modified| is_current((meta.size, meta.modified), (found.len(), modified)))),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Why an entry cannot be used.
fn why(error: &walkdir::Error) -> String {
    match (error.loop_ancestor(), error.io_error()) {
        (Some(ancestor), _) => format!("it is a link back to {}", ancestor.display()),
        (None, Some(io)) => format!("it cannot be read: {io}"),
        (None, None) => error.to_string(),
    }
}
