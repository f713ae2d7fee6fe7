//! When a stream was left for good. Pure: readers and times come as arguments.
//!
//! A read elsewhere does not tell a jump from one thread that interleaves several places, so a stream counts as left
//! when its reader has settled elsewhere (a few megabytes, or many isolated reads) or has stayed away for a
//! while. A reader that came back once is taken for an interleaving one and given more time.

use std::time::Duration;

use tokio::time::Instant;

use super::streams::{Pattern, StreamId};

/// Who reads: one thread on one handle, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderId {
    pub handle: u64,
    pub thread: u32,
}

/// Isolated reads after which a reader is not coming back.
const ISOLATED_READS: u32 = 16;

/// Bytes of another stream after which a reader has settled there. The kernel cuts one large read into several and adds
/// its read-ahead, so the second adjacent read does not mean much yet.
const SETTLED_BYTES: u64 = 2 << 20;

/// Time away after which a reader is not coming back. A round over four places costs four round trips.
const AWAY: Duration = Duration::from_millis(250);

/// The same for a reader that was seen to come back.
const AWAY_INTERLEAVED: Duration = Duration::from_secs(2);

/// Readers remembered per object.
const READERS: usize = 64;

/// Where the readers of one object are.
#[derive(Debug, Default)]
pub(super) struct Jumps {
    readers: Vec<Reader>,
    uses: u64,
}

#[derive(Debug)]
struct Reader {
    id: ReaderId,
    /// The sequential stream it reads.
    stream: Option<StreamId>,
    left: Option<Left>,
    comes_back: bool,
    /// Its handle was closed: it only stays for what it left.
    closed: bool,
    /// Start of its latest read, and when that was.
    at: u64,
    last_read: Instant,
    last_use: u64,
}

#[derive(Clone, Copy, Debug)]
struct Left {
    stream: StreamId,
    since: Instant,
    isolated: u32,
    /// Where the reader is instead, and how much it read there.
    instead: (StreamId, u64),
}

impl Jumps {
    /// A read at `at` and what it was taken for. Returns the stream that its last reader has now left for good.
    pub fn on_read(&mut self, id: ReaderId, at: u64, pattern: Pattern, now: Instant) -> Option<StreamId> {
        self.moved(id, at, pattern, now).filter(|stream| !self.is_read(*stream))
    }

    fn is_read(&self, stream: StreamId) -> bool {
        self.readers.iter().any(|reader| reader.stream == Some(stream))
    }

    fn moved(&mut self, id: ReaderId, at: u64, pattern: Pattern, now: Instant) -> Option<StreamId> {
        self.uses += 1;
        let uses = self.uses;
        let reader = self.reader(id, now);
        (reader.at, reader.last_read, reader.last_use) = (at, now, uses);
        match pattern {
            Pattern::Isolated => {
                if let Some(stream) = reader.stream.take() {
                    reader.left = Some(Left { stream, since: now, isolated: 0, instead: (stream, 0) });
                }
                let left = reader.left.as_mut()?;
                left.isolated += 1;
                if left.isolated < ISOLATED_READS || reader.comes_back {
                    return None;
                }
                reader.left.take().map(|left| left.stream)
            }
            Pattern::Sequential { stream, moved } => {
                let was = reader.stream.replace(stream);
                if reader.left.is_some_and(|left| left.stream == stream) {
                    reader.left = None;
                    reader.comes_back = true;
                    return None;
                }
                let leaves =
                    was.filter(|&was| was != stream).map(|was| Left { stream: was, since: now, isolated: 0, instead: (stream, 0) });
                let mut left = reader.left.take().or(leaves)?;
                let before = if left.instead.0 == stream { left.instead.1 } else { 0 };
                left.instead = (stream, before + moved);
                if left.instead.1 >= SETTLED_BYTES && !reader.comes_back {
                    return Some(left.stream);
                }
                reader.left = Some(left);
                None
            }
        }
    }

    /// The streams whose readers have stayed away too long by `now`.
    pub fn on_time(&mut self, now: Instant) -> Vec<StreamId> {
        let mut gone = Vec::new();
        for reader in &mut self.readers {
            let patience = if reader.comes_back { AWAY_INTERLEAVED } else { AWAY };
            if reader.left.is_some_and(|left| now.duration_since(left.since) >= patience) {
                gone.extend(reader.left.take().map(|left| left.stream));
            }
        }
        self.readers.retain(|reader| !reader.closed || reader.left.is_some());
        // Somebody else may be reading it.
        gone.retain(|stream| !self.is_read(*stream));
        gone
    }

    /// Where readers were within `recent` of `now`: the one behind another in the same stream still needs what lies
    /// between them.
    pub fn places(&self, now: Instant, recent: Duration) -> impl Iterator<Item = u64> {
        self.readers.iter().filter(move |reader| now.duration_since(reader.last_read) < recent).map(|reader| reader.at)
    }

    /// Whether somebody reads `stream`, or may come back to it for what is known.
    pub fn is_in_use(&self, stream: StreamId) -> bool {
        let stays =
            |reader: &Reader| reader.comes_back || reader.stream == Some(stream) || reader.left.is_some_and(|left| left.stream == stream);
        self.readers.iter().any(stays)
    }

    /// Whether a reader is away from a stream, so that [`on_time`](Self::on_time) may soon say more.
    pub fn somebody_is_away(&self) -> bool {
        self.readers.iter().any(|reader| reader.left.is_some())
    }

    /// A handle was closed: its readers are gone. The streams that they read are left for good when nobody goes on with them for a
    /// while: programs read the head of a file, open it once more to map it, and close the first handle. Those that they had left
    /// already are returned.
    pub fn on_close(&mut self, handle: u64, now: Instant) -> Vec<StreamId> {
        let mut gone = Vec::new();
        for reader in self.readers.iter_mut().filter(|reader| reader.id.handle == handle) {
            (reader.closed, reader.comes_back) = (true, true);
            let left = reader.stream.take().map(|stream| Left { stream, since: now, isolated: 0, instead: (stream, 0) });
            gone.extend(std::mem::replace(&mut reader.left, left).map(|left| left.stream));
        }
        self.readers.retain(|reader| !reader.closed || reader.left.is_some());
        gone.retain(|stream| !self.is_read(*stream));
        gone
    }

    fn reader(&mut self, id: ReaderId, now: Instant) -> &mut Reader {
        if let Some(index) = self.readers.iter().position(|reader| reader.id == id) {
            return &mut self.readers[index];
        }
        if self.readers.len() >= READERS {
            let oldest = self.readers.iter().enumerate().min_by_key(|(_, reader)| reader.last_use);
            let index = oldest.map(|(index, _)| index).expect("the table is full, hence not empty");
            self.readers.swap_remove(index);
        }
        self.readers.push(Reader { id, stream: None, left: None, comes_back: false, closed: false, at: 0, last_read: now, last_use: 0 });
        self.readers.last_mut().expect("it was just pushed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ReaderId = ReaderId { handle: 1, thread: 100 };
    const OTHER: ReaderId = ReaderId { handle: 1, thread: 200 };

    fn sequential(stream: StreamId) -> Pattern {
        Pattern::Sequential { stream, moved: 1 << 20 }
    }

    #[test]
    fn settling_elsewhere_leaves_the_old_stream() {
        let (mut jumps, now) = (Jumps::default(), Instant::now());
        assert_eq!(jumps.on_read(ME, 0, sequential(1), now), None);
        assert_eq!(jumps.on_read(ME, 0, Pattern::Isolated, now), None);
        assert_eq!(jumps.on_read(ME, 0, sequential(2), now), None);
        assert_eq!(jumps.on_read(ME, 0, sequential(2), now), Some(1));
    }

    #[test]
    fn staying_away_leaves_the_old_stream() {
        let (mut jumps, now) = (Jumps::default(), Instant::now());
        jumps.on_read(ME, 0, sequential(1), now);
        jumps.on_read(ME, 0, Pattern::Isolated, now);
        assert!(jumps.somebody_is_away());
        assert_eq!(jumps.on_time(now + AWAY / 2), Vec::<StreamId>::new());
        assert_eq!(jumps.on_time(now + AWAY), [1]);
        assert!(!jumps.somebody_is_away());
    }

    #[test]
    fn many_isolated_reads_leave_the_old_stream() {
        let (mut jumps, now) = (Jumps::default(), Instant::now());
        jumps.on_read(ME, 0, sequential(1), now);
        let left: Vec<_> = (0..20).filter_map(|_| jumps.on_read(ME, 0, Pattern::Isolated, now)).collect();
        assert_eq!(left, [1]);
    }

    #[test]
    fn one_thread_over_four_places_leaves_none() {
        let (mut jumps, now) = (Jumps::default(), Instant::now());
        assert_eq!(jumps.on_read(ME, 0, sequential(1), now), None);
        for _ in 0..3 {
            assert_eq!(jumps.on_read(ME, 0, Pattern::Isolated, now), None);
        }
        for _ in 0..100 {
            for stream in 1..=4 {
                assert_eq!(jumps.on_read(ME, 0, sequential(stream), now), None);
            }
        }
        assert_eq!(jumps.on_time(now + AWAY), Vec::<StreamId>::new());
    }

    #[test]
    fn a_stream_that_another_reader_uses_is_not_left() {
        let (mut jumps, now) = (Jumps::default(), Instant::now());
        jumps.on_read(ME, 0, sequential(1), now);
        jumps.on_read(OTHER, 0, sequential(1), now);
        jumps.on_read(ME, 0, Pattern::Isolated, now);
        assert_eq!(jumps.on_time(now + AWAY), Vec::<StreamId>::new());
    }

    #[test]
    fn closing_a_handle_leaves_its_streams_unless_somebody_goes_on_with_them() {
        let (mut jumps, now) = (Jumps::default(), Instant::now());
        let another = ReaderId { handle: 2, thread: 100 };
        jumps.on_read(ME, 0, sequential(1), now);
        jumps.on_read(OTHER, 0, sequential(2), now);
        jumps.on_read(OTHER, 0, Pattern::Isolated, now);
        jumps.on_read(another, 0, sequential(3), now);
        assert_eq!(jumps.on_close(1, now), [2], "it was left already");
        assert_eq!(jumps.on_time(now + AWAY), Vec::<StreamId>::new());
        assert!(jumps.somebody_is_away());
        assert_eq!(jumps.on_time(now + AWAY_INTERLEAVED), [1]);
        assert!(!jumps.somebody_is_away());
        // Read on through another handle.
        jumps.on_read(another, 0, sequential(4), now);
        jumps.on_read(ReaderId { handle: 3, thread: 100 }, 0, sequential(4), now);
        jumps.on_close(2, now);
        assert!(!jumps.on_time(now + AWAY_INTERLEAVED).contains(&4));
    }
}
