//! Carries one extent from memory to bytes: a place among the GETs in flight, the request; and finds memory where there is none.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant};

use crate::budget::Lease;
use crate::spill::Summing;
use crate::store::{self, Op, RangeRequest, RangeSink, get_checked};

use super::extent::{Extent, Filling, IN_FLIGHT};
use super::gate::{Entry, Place};
use super::object::{Fetches, Object};
use super::{ReadError, Shared};

/// A reader that waits for memory looks this often for something to let go: what was in use a moment ago may not be
/// any more.
const RECLAIM_EVERY: Duration = Duration::from_millis(10);

/// Starts the fetches of one object.
pub(super) struct Fetcher<'a> {
    pub shared: &'a Arc<Shared>,
    pub object: &'a Arc<Object>,
}

impl Fetches for Fetcher<'_> {
    fn start(&self, extent: &Arc<Extent>, lease: Lease) -> AbortHandle {
        let task = fetch(Arc::clone(self.shared), Arc::clone(self.object), Arc::clone(extent), lease);
        self.shared.runtime.spawn(task).abort_handle()
    }

    fn memory(&self, len: usize) -> Option<Lease> {
        // Who waits for the turn comes first.
        if self.shared.turn.is_wanted() {
            return None;
        }
        self.shared.budget.try_lease(len)
    }

    fn stamp(&self) -> u64 {
        self.shared.stamp()
    }
}

/// The task of one extent. Aborting it closes the connection and gives back memory and place.
async fn fetch(shared: Arc<Shared>, object: Arc<Object>, extent: Arc<Extent>, lease: Lease) {
    // Readers wait for the bytes or an error, also when a panic is all there is.
    let brought = AssertUnwindSafe(bring(&shared, &object, &extent, lease)).catch_unwind().await;
    if let Err(error) = brought.unwrap_or_else(|_| Err(ReadError::Store(store::Error::panicked(Op::Get, &object.key)))) {
        object.remove(&extent);
        extent.fail(error);
    }
}

async fn bring(shared: &Arc<Shared>, object: &Object, extent: &Arc<Extent>, lease: Lease) -> Result<(), ReadError> {
    let mut filling = Filling::new(extent, lease);
    // From before its last byte is here.
    let _keeper = object.disk.as_ref().map(|_| extent.on_keep());
    let mut place = None;
    loop {
        let from_store = match &object.disk {
            None => Some(filling.missing()),
            Some(disk) => {
                let (filled, next) = disk.fill(filling).await;
                filling = filled;
                next
            }
        };
        let Some(range) = from_store.filter(|range| !range.is_empty()) else { return Ok(()) };
        if place.is_none() {
            place = Some(enter(shared, extent).await?);
        }
        let sums = ask(shared, object, &mut filling, &range).await?;
        if let Some(disk) = &object.disk {
            disk.keep(extent, range, sums);
        }
    }
}

/// One GET. Returns the checksums of what it brought, where the disk may want them.
async fn ask(shared: &Shared, object: &Object, filling: &mut Filling, range: &Range<u64>) -> Result<Option<Summing>, ReadError> {
    let request = RangeRequest { key: object.key.clone(), range: range.clone(), etag: object.etag.clone() };
    let (started, len) = (Instant::now(), range.end - range.start);
    let summing = object.disk.as_ref().and_then(|disk| disk.summing(range.start));
    let mut is_first = true;
    let on_bytes = |n: usize| {
        shared.arrived.add(n as u64);
        if std::mem::take(&mut is_first) {
            let now = Instant::now();
            shared.pace.lock().on_first_byte(now, now - started);
        }
    };
    if shared.options.verify_reads && *range == (0..object.size) {
        // A reader of its beginning waits for its end: bytes that a program has cannot be taken back.
        let got = get_checked(&*shared.store, &request, &mut filling.spare()[..len as usize], on_bytes);
        got.await.map_err(ReadError::Store)?;
        shared.pace.lock().on_end(started.elapsed(), len);
        let mut sink = filling.next(len as usize, summing, |_| {});
        sink.advance(len as usize);
        return Ok(sink.sums());
    }
    let mut sink = filling.next(len as usize, summing, on_bytes);
    shared.store.get_range(&request, &mut sink).await.map_err(ReadError::Store)?;
    let sums = sink.sums();
    shared.pace.lock().on_end(started.elapsed(), len);
    Ok(sums)
}

/// Memory for the reader whose turn it is: takes it from who can spare it, then queues.
pub(super) async fn memory_for(shared: &Arc<Shared>, len: usize) -> Result<Lease, ReadError> {
    let mut lease = std::pin::pin!(shared.budget.lease(len));
    loop {
        tokio::select! {
            biased;
            lease = &mut lease => return lease.map_err(|error| ReadError::Memory(error.to_string().into())),
            () = async {
                shared.reclaim(len);
                tokio::time::sleep(RECLAIM_EVERY).await;
            } => {}
        }
    }
}

/// # Errors
/// [`ReadError::GivenUp`] when the fetch was cancelled before it had a place.
async fn enter(shared: &Arc<Shared>, extent: &Extent) -> Result<Place, ReadError> {
    let place = match shared.gate.enter(extent.is_wanted()) {
        Entry::Now(place) => place,
        Entry::Later(ticket, receiver) => {
            if extent.set_ticket(ticket) && extent.is_wanted() {
                // Somebody began to wait before the ticket was there to be promoted by.
                shared.gate.promote(ticket);
            }
            receiver.await.expect("the gate answers every ticket")
        }
    };
    if extent.set_ticket(IN_FLIGHT) { Ok(place) } else { Err(ReadError::GivenUp) }
}
