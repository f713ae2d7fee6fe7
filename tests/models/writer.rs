//! Contents and a bucket that are played: bytes are the number of the last write that they hold. A commit, a change and a freeze keep each other away, as in
//! src/writer, and others go on while a request is under way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::yield_now;

use crate::store::{ETag, Key, ObjectMeta};
use crate::sync;

/// What is in an object: the inode through which it was written, and its last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub ino: u64,
    pub written: u64,
}

/// What the store has. A look at it is no step of a schedule.
#[derive(Debug, Default)]
pub struct Bucket {
    pub objects: Mutex<BTreeMap<Key, Object>>,
    /// How often a commit fails.
    pub fails: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    Lost,
    Store,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Wanted,
    Unwanted,
    Lost,
}

#[derive(Debug)]
struct State {
    key: Key,
    written: u64,
    unsaved: bool,
    is_blank: bool,
    stored: Option<ObjectMeta>,
    fate: Fate,
    ino: u64,
}

#[derive(Debug)]
pub struct Content {
    bucket: Arc<Bucket>,
    /// Held while it is changed or committed.
    gate: sync::Mutex<()>,
    state: Mutex<State>,
}

/// Content that nothing changes or commits while this lives.
#[derive(Debug)]
pub struct Frozen<'a>(&'a Content, #[allow(dead_code, reason = "held")] sync::MutexGuard<'a, ()>);

pub fn meta(key: &Key, object: Object) -> ObjectMeta {
    let etag = ETag::from(format!("{}-{}", object.ino, object.written).as_str());
    ObjectMeta { key: key.clone(), size: 1, etag, modified: SystemTime::UNIX_EPOCH }
}

impl Bucket {
    pub fn head(&self, key: &Key) -> Option<(ObjectMeta, Object)> {
        yield_now();
        let found = self.objects.lock().get(key).map(|&object| (meta(key, object), object));
        yield_now();
        found
    }

    pub fn copy(&self, from: &Key, to: &Key) -> Option<ObjectMeta> {
        yield_now();
        let mut objects = self.objects.lock();
        let object = *objects.get(from)?;
        objects.insert(to.clone(), object);
        drop(objects);
        yield_now();
        Some(meta(to, object))
    }

    pub fn delete(&self, key: &Key) {
        yield_now();
        self.objects.lock().remove(key);
        yield_now();
    }
}

impl Content {
    pub fn new(bucket: &Arc<Bucket>, key: Key, base: Option<Object>) -> Arc<Self> {
        let stored = base.map(|object| meta(&key, object));
        let written = base.map_or(0, |object| object.written);
        let state = State { key, written, unsaved: base.is_none(), is_blank: base.is_none(), stored, fate: Fate::Wanted, ino: 0 };
        Arc::new(Self { bucket: Arc::clone(bucket), gate: sync::Mutex::default(), state: Mutex::new(state) })
    }

    pub fn belong_to(&self, owner: u64) {
        self.state.lock().ino = owner;
    }

    pub fn require_absent(&self) {}

    pub fn replace_only(&self, _condition: crate::store::Condition) {}

    pub fn size(&self) -> u64 {
        u64::from(!self.is_blank())
    }

    pub fn is_blank(&self) -> bool {
        self.state.lock().is_blank
    }

    pub fn is_dirty(&self) -> bool {
        let state = self.state.lock();
        match state.fate {
            Fate::Wanted => state.unsaved,
            Fate::Unwanted => false,
            Fate::Lost => true,
        }
    }

    pub fn is_lost(&self) -> bool {
        self.state.lock().fate == Fate::Lost
    }

    pub fn is_given_up(&self) -> bool {
        let state = self.state.lock();
        state.fate == Fate::Unwanted && state.unsaved
    }

    pub fn stored(&self) -> Option<ObjectMeta> {
        self.state.lock().stored.clone()
    }

    /// The last write that it holds.
    pub fn written(&self) -> u64 {
        self.state.lock().written
    }

    /// Bytes whose number is greater than those before.
    pub fn write(&self, number: impl FnOnce() -> u64) -> Result<u64, WriteError> {
        let _gate = self.gate.lock();
        yield_now();
        let mut state = self.state.lock();
        if state.fate == Fate::Lost {
            return Err(WriteError::Lost);
        }
        state.written = number();
        (state.unsaved, state.is_blank) = (true, false);
        Ok(state.written)
    }

    pub fn commit(&self) -> Result<Option<ObjectMeta>, WriteError> {
        let _gate = self.gate.lock();
        yield_now();
        {
            let state = self.state.lock();
            match state.fate {
                Fate::Lost => return Err(WriteError::Lost),
                Fate::Unwanted => return Ok(None),
                Fate::Wanted if !state.unsaved => return Ok(None),
                Fate::Wanted => {}
            }
        }
        if thread_rng().gen_bool(self.bucket.fails) {
            yield_now();
            return Err(WriteError::Store);
        }
        let mut state = self.state.lock();
        let object = Object { ino: state.ino, written: state.written };
        self.bucket.objects.lock().insert(state.key.clone(), object);
        let stored = meta(&state.key, object);
        (state.stored, state.unsaved, state.is_blank) = (Some(stored.clone()), false, false);
        drop(state);
        // The answer is on its way.
        yield_now();
        Ok(Some(stored))
    }

    pub fn freeze(&self) -> Frozen<'_> {
        Frozen(self, self.gate.lock())
    }

    /// Unless the store has all of it.
    pub fn give_up(&self) {
        let _gate = self.gate.lock();
        let mut state = self.state.lock();
        if state.fate == Fate::Wanted && state.unsaved {
            state.fate = Fate::Lost;
        }
    }
}

impl Frozen<'_> {
    pub fn discard(self) {
        yield_now();
        let mut state = self.0.state.lock();
        if state.fate == Fate::Wanted {
            state.fate = Fate::Unwanted;
        }
    }

    pub fn rename(self, key: Key, moved: Option<ObjectMeta>) {
        yield_now();
        let mut state = self.0.state.lock();
        (state.key, state.stored) = (key, moved);
    }
}
