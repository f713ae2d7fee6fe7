//! How the store in memory is read: the first byte after the latency of the plan, the body at its pace, faults where they were
//! planned. Invariant: a body is that of one version from its beginning to where it ends.

use tokio::time::{Instant, sleep, sleep_until};

use super::bucket::Content;
use super::hold::Point;
use super::link::PIECE;
use super::log::Guard;
use super::plan::Fault;
use super::{Memory, listing, not_found, precondition_failed};
use crate::store::{Crc64, Error, ErrorKind, Key, ListPage, ListRequest, ObjectSum, Op, Polynomial, RangeRequest, RangeSink, Result};

impl Memory {
    /// Waits for the first byte; then what else happens to this request.
    pub(super) async fn first_byte(&self, op: Op, key: &Key) -> Result<Vec<Fault>> {
        let (latency, faults) = self.bucket.lock().script.on_request(op, key);
        if !latency.is_zero() {
            sleep(latency).await;
        }
        self.pass(Point::Arrival, op, key).await;
        let reading = matches!(op, Op::Head | Op::List | Op::Get);
        let planned = faults.iter().find_map(|fault| match fault {
            Fault::Error(kind) => Some(*kind),
            // What only reads need not be done for its answer to get lost.
            Fault::Lost if reading => Some(ErrorKind::Timeout),
            _ => None,
        });
        planned.map_or(Ok(faults), |kind| Err(Error::new(kind, op, key, "planned fault")))
    }

    /// Hands over the body of a GET piece by piece.
    async fn deliver(
        &self,
        request: &RangeRequest,
        content: &Content,
        faults: &[Fault],
        guard: &Guard,
        sink: &mut dyn RangeSink,
    ) -> Result<()> {
        let (total, mut done, mut due) = (request.range.end - request.range.start, 0, Instant::now());
        while done < total {
            for fault in faults {
                match *fault {
                    Fault::Truncate { after } if done >= after => {
                        let message = format!("the body ended after {done} of {total} bytes");
                        return Err(Error::new(ErrorKind::Corrupt, Op::Get, &request.key, message));
                    }
                    Fault::Stall { after, pause } if done == after => {
                        sleep(pause).await;
                        due += pause;
                    }
                    Fault::Replace { after } if done == after => self.bucket.lock().replace(&request.key),
                    _ => {}
                }
            }
            let n = next_stop(done, total, faults) - done;
            due = {
                let bucket = &mut *self.bucket.lock();
                bucket.down.on_piece(bucket.script.plan.bandwidth, due, n)
            };
            if due > Instant::now() {
                sleep_until(due).await;
            } else {
                // Instant networks too let others run between pieces.
                tokio::task::yield_now().await;
            }
            content.copy(request.range.start + done, n, sink);
            guard.on_bytes(n);
            done += n;
        }
        Ok(())
    }

    pub(super) async fn answer_range(&self, request: &RangeRequest, guard: &Guard, sink: &mut dyn RangeSink) -> Result<()> {
        let key = &request.key;
        let faults = self.first_byte(Op::Get, key).await?;
        let object = self.bucket.lock().objects.get(key).cloned().ok_or_else(|| not_found(Op::Get, key))?;
        if object.etag() != request.etag {
            let message = format!("the object is now {}, not {}", object.etag(), request.etag);
            return Err(precondition_failed(Op::Get, key, message));
        }
        if request.range.is_empty() || request.range.end > object.content.size() {
            let message = format!("bytes {:?} of {}", request.range, object.content.size());
            let error = Error::new(ErrorKind::RangeNotSatisfiable, Op::Get, key, message);
            return Err(Error { status: Some(416), code: Some("InvalidRange".into()), ..error });
        }
        if sink.wants_sum() && request.range == (0..object.content.size()) && self.bucket.lock().checksums {
            let value = Polynomial::Nvme.of(&object.content.bytes(request.range.clone()));
            sink.on_sum(&ObjectSum::from(Crc64 { polynomial: Polynomial::Nvme, value }));
        }
        self.deliver(request, &object.content, &faults, guard, sink).await
    }

    pub(super) async fn answer_list(&self, request: &ListRequest) -> Result<ListPage> {
        self.first_byte(Op::List, &request.prefix).await?;
        let bucket = self.bucket.lock();
        let page = listing::page(&bucket.objects, request)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, Op::List, &request.prefix, "unknown continuation token"))?;
        let objects = page.objects.iter().map(|(key, object)| object.meta(key)).collect();
        let sums = vec![bucket.checksums.then_some(Polynomial::Nvme); page.objects.len()];
        Ok(ListPage { objects, prefixes: page.prefixes, next: page.next, sums, asked: None })
    }
}

/// Where the piece that starts at `done` ends: at its full length, or where a fault wants to act.
pub(super) fn next_stop(done: u64, total: u64, faults: &[Fault]) -> u64 {
    let stops = faults.iter().filter_map(|fault| match *fault {
        Fault::Truncate { after } | Fault::Stall { after, .. } | Fault::Replace { after } => Some(after),
        Fault::Error(_) | Fault::Lost => None,
    });
    stops.filter(|&stop| stop > done).fold(total.min(done + PIECE), u64::min)
}
