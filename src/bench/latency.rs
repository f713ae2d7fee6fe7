//! How long GETs of one size take, one after the other: to their first byte, and to their last. Invariant: the ranges go through the object
//! and begin anew at its end, so that no place in it is asked for twice before every other was.

use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use super::away::{PIECE_BYTES, Piece};
use super::rate::{Rate, Speed};
use super::times::Times;
use crate::budget::{self, Budget};
use crate::store::{ObjectMeta, ObjectStore, RangeRequest};
use crate::transfer::Result;
use crate::units::ByteSize;

/// What it came to.
#[derive(Clone, Debug)]
pub struct Latencies {
    pub first_byte: Times,
    pub whole: Times,
    pub speed: Speed,
}

/// The range of the `n`th GET of `len` bytes.
fn nth(n: u64, len: u64, size: u64) -> Range<u64> {
    let len = len.min(size);
    let places = (size / len.max(1)).max(1);
    let start = n % places * len;
    start..start + len
}

/// Times `count` GETs of `len` bytes, or of the whole object when it is smaller. It must not be empty.
///
/// # Errors
/// The first that the store answers.
pub async fn latency(store: &Arc<dyn ObjectStore>, object: &ObjectMeta, len: u64, count: u64) -> Result<Latencies> {
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::bytes(PIECE_BYTES)) });
    let mut piece = Piece::lease(&budget, PIECE_BYTES).await?;
    let (mut first_byte, mut whole, mut rate) = (Times::default(), Times::default(), Rate::new(Instant::now()));
    for n in 0..count {
        let range = nth(n, len, object.size);
        let request = RangeRequest { key: object.key.clone(), range: range.clone(), etag: object.etag.clone() };
        let (began, mut first) = (Instant::now(), None);
        let on_bytes = |bytes: &[u8]| {
            let now = Instant::now();
            first.get_or_insert(now);
            rate.on_bytes(now, bytes.len() as u64);
        };
        store.get_range(&request, &mut piece.away(range.end - range.start, on_bytes)).await?;
        whole.record(began.elapsed());
        first_byte.record(first.unwrap_or_else(Instant::now) - began);
    }
    Ok(Latencies { first_byte, whole, speed: rate.end(Instant::now()) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Op;
    use crate::store::memory::{Bandwidth, Latency, Memory, Plan};

    #[test]
    fn ranges_go_through_the_object_and_begin_anew() {
        let all = |len, size| (0..4).map(|n| nth(n, len, size)).collect::<Vec<_>>();
        assert_eq!(all(10, 35), [0..10, 10..20, 20..30, 0..10]);
        assert_eq!(all(10, 10), [0..10, 0..10, 0..10, 0..10]);
        assert_eq!(all(10, 7), [0..7, 0..7, 0..7, 0..7]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_byte_and_the_last_are_timed_apart() {
        let bandwidth = Bandwidth { per_connection: Some(64 << 20), total: None };
        let memory = Memory::new(Plan { first_byte: Latency::Fixed(Duration::from_millis(20)), bandwidth, seed: 0 });
        memory.put_synthetic("k", 20 << 20);
        let (object, store): (_, Arc<dyn ObjectStore>) = (memory.meta("k").unwrap(), Arc::new(memory.clone()));
        let found = latency(&store, &object, 8 << 20, 10).await.unwrap();
        assert_eq!((found.first_byte.count(), found.whole.count(), memory.count(Op::Get), memory.max_in_flight()), (10, 10, 10, 1));
        let ms = |times: &Times, part| times.at(part).unwrap().as_secs_f64() * 1e3;
        // A first piece of 64 KiB takes 1 ms, 8 MiB take 125 ms; tokio's timer rounds up to milliseconds.
        for part in [0.5, 1.0] {
            assert!((20.9..22.1).contains(&ms(&found.first_byte, part)), "{}", ms(&found.first_byte, part));
            assert!((144.9..146.2).contains(&ms(&found.whole, part)), "{}", ms(&found.whole, part));
        }
        assert_eq!(found.speed.bytes, 80 << 20);
    }
}
