//! Attributes that were set and that the bucket does not keep, written down for the daemon that goes on with this mount: by name, as they hold.
//! Invariant: they leave room for what is open. Where there are too many of them what is new is not written down, and forgotten by the next daemon;
//! what is found there is never older than what held.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use twox_hash::XxHash3_64;

use super::Record;
use crate::lasting::{Form, Source, Table};
use crate::store::{ETag, Key};
use crate::vfs::own::{Set, Times};

const SET: Table = 5;
const TOUCHED: Table = 6;
const BEGAN: Table = 7;

/// What names with attributes may take: more than half a million of them, and a quarter of all the room.
const ROOM: usize = super::ROOM / 4;

impl Record {
    /// What was set on `path`.
    pub fn put_set(&self, path: &Key, set: &Set) {
        let [mode, uid, gid] = [set.mode.map(u32::from), set.uid, set.gid].map(|number| number.map_or(0, |number| u64::from(number) + 1));
        let form = Form::default().text(path.as_bytes()).number(mode).number(uid).number(gid);
        let form = match &set.times {
            None => form,
            Some(Times { modified, accessed, version }) => {
                let form = time(time(form.number(1), *modified), *accessed);
                version.iter().fold(form, |form, version| form.number(1).text(version.as_str().as_bytes()))
            }
        };
        self.put_attribute(SET, path, &form);
    }

    /// Nothing is set on `path` any more.
    pub fn drop_set(&self, path: &[u8]) {
        self.drop_attribute(SET, path);
    }

    pub fn sets(&self) -> Vec<(Key, Set)> {
        let read = |(_, row): (u64, Box<[u8]>)| {
            let mut row = Source(&row);
            let path = Key::from(row.text());
            let [mode, uid, gid] = [0; 3].map(|_| row.number().checked_sub(1).and_then(|number| u32::try_from(number).ok()));
            let times = (row.number() != 0).then(|| Times {
                modified: read_time(&mut row),
                accessed: read_time(&mut row),
                version: if row.number() == 0 { None } else { std::str::from_utf8(row.text()).ok().map(ETag::from) },
            });
            (path, Set { mode: mode.and_then(|mode| u16::try_from(mode).ok()), uid, gid, times })
        };
        self.rows(SET).into_iter().map(read).collect()
    }

    /// When an entry of `directory` was made, removed or renamed for the last time.
    pub fn put_touched(&self, directory: &Key, at: SystemTime) {
        self.put_attribute(TOUCHED, directory, &time(Form::default().text(directory.as_bytes()), Some(at)));
    }

    pub fn drop_touched(&self, directory: &[u8]) {
        self.drop_attribute(TOUCHED, directory);
    }

    pub fn touched(&self) -> Vec<(Key, SystemTime)> {
        let read = |(_, row): (u64, Box<[u8]>)| {
            let mut row = Source(&row);
            let directory = Key::from(row.text());
            read_time(&mut row).map(|at| (directory, at))
        };
        self.rows(TOUCHED).into_iter().filter_map(read).collect()
    }

    /// When the mount began, under whichever daemon: what directories show that have no other time.
    pub fn began(&self) -> SystemTime {
        let Some(book) = &self.0 else { return SystemTime::now() };
        let known = book.rows.all(BEGAN).first().and_then(|(_, row)| read_time(&mut Source(row)));
        known.unwrap_or_else(|| {
            let now = SystemTime::now();
            book.rows.put(BEGAN, 0, time(Form::default(), Some(now)).bytes());
            now
        })
    }

    fn put_attribute(&self, table: Table, path: &Key, form: &Form) {
        let Some(book) = &self.0 else { return };
        let (number, len) = (number_of(path.as_bytes()), form.bytes().len());
        let fits = book.attributes.load(Ordering::Relaxed) + len <= ROOM;
        let before = if fits { book.rows.put(table, number, form.bytes()) } else { book.rows.delete(table, number) };
        if fits {
            book.attributes.fetch_add(len, Ordering::Relaxed);
        } else if !book.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("more attributes are set than can be written down: another daemon would not know the last ones");
        }
        book.attributes.fetch_sub(before, Ordering::Relaxed);
    }

    fn drop_attribute(&self, table: Table, path: &[u8]) {
        if let Some(book) = &self.0 {
            book.attributes.fetch_sub(book.rows.delete(table, number_of(path)), Ordering::Relaxed);
        }
    }

    /// The bytes of all of them, as they were found.
    pub(super) fn bytes_of_attributes(rows: &crate::lasting::Rows) -> usize {
        [SET, TOUCHED].into_iter().flat_map(|table| rows.all(table)).map(|(_, row)| row.len()).sum()
    }
}

/// The number of a path's rows: the same in every version of this program. Two paths with one number are as likely as a broken disk, and one of them
/// would lose its attributes.
fn number_of(path: &[u8]) -> u64 {
    XxHash3_64::oneshot(path)
}

fn time(form: Form, time: Option<SystemTime>) -> Form {
    let Some(time) = time else { return form.number(0) };
    let (side, away) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (1, since),
        Err(error) => (2, error.duration()),
    };
    form.number(side).number(away.as_secs()).number(away.subsec_nanos().into())
}

fn read_time(row: &mut Source<'_>) -> Option<SystemTime> {
    let side = row.number();
    if side == 0 {
        return None;
    }
    let away = Duration::from_secs(row.number()) + Duration::from_nanos(row.number());
    if side == 1 { UNIX_EPOCH.checked_add(away) } else { UNIX_EPOCH.checked_sub(away) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_set() {
        let record = Record::new().unwrap();
        let (late, early) = (UNIX_EPOCH + Duration::new(1_700_000_000, 5), UNIX_EPOCH - Duration::new(3, 999));
        let times = |version: Option<&str>| Some(Times { modified: Some(late), accessed: Some(early), version: version.map(ETag::from) });
        let set = |times| Set { mode: Some(0o4755), uid: Some(0), gid: Some(u32::MAX), times };
        let sets = [
            ("all", set(times(Some("\"e\"")))),
            ("draft", set(times(None))),
            ("d\u{e4}", set(Some(Times { modified: None, accessed: Some(early), version: None }))),
            ("", Set { mode: Some(0), ..Set::default() }),
        ];
        for (path, set) in &sets {
            record.put_set(&Key::from("x"), set);
            record.put_set(&Key::from(*path), set);
        }
        record.drop_set(b"x");
        record.put_touched(&Key::from("d"), early);
        record.put_touched(&Key::from("d"), late);
        record.put_touched(&Key::from("e"), late);
        record.drop_touched(b"e");
        let again = Record::load(record.file().unwrap().unwrap()).unwrap();
        let by_path = |mut found: Vec<(Key, Set)>| {
            found.sort_by(|(one, _), (other, _)| one.cmp(other));
            found
        };
        assert_eq!(by_path(again.sets()), by_path(sets.map(|(path, set)| (Key::from(path), set)).into()));
        assert_eq!(again.touched(), [(Key::from("d"), late)]);
        let began = again.began();
        assert_eq!(Record::load(record.file().unwrap().unwrap()).unwrap().began(), began);
        for (path, _) in again.sets() {
            again.drop_set(path.as_bytes());
        }
        again.drop_touched(b"d");
        assert_eq!(again.0.unwrap().attributes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn too_many_of_them_do_not_take_the_room_of_what_is_open() {
        let record = Record::new().unwrap();
        let book = record.0.clone().unwrap();
        let set = |mode| Set { mode: Some(mode), ..Set::default() };
        record.put_set(&Key::from("a"), &set(1));
        book.attributes.fetch_add(ROOM, Ordering::Relaxed);
        record.put_set(&Key::from("b"), &set(2));
        record.put_set(&Key::from("a"), &set(3));
        assert_eq!(record.sets(), [], "rather nothing than what holds no more");
        assert_eq!(book.attributes.load(Ordering::Relaxed), ROOM);
    }
}
