//! The decorator against slow answers: a GET whose first byte is late gets a second one beside it, and the first of the
//! two to deliver wins; a GET that crawls is left behind and its rest asked for on another connection. It retries no
//! failure (see `retry`).
//!
//! Late means later than 99 of 100 GETs of its size, and never less than 50 ms. At most one request in fifty is an
//! extra one, and none is sent while the store asks to slow down: what is slow for everybody is not made faster by
//! asking twice.
//!
//! Invariant: the sink sees every byte of the range once and in order, from whichever GET it came.

mod times;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use self::times::{Allowance, Class};
use super::{
    Body, Condition, CopyRequest, Details, ETag, Error, Headers, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, ObjectSum, Part,
    PartCopy, PartsPage, PutRequest, RangeRequest, RangeSink, RenameRequest, Result, StoreTime, Switches, Tell, Upload, UploadRequest,
    UploadsPage, Written,
};
use crate::metrics::Metrics;

/// No GET is late before this: below it a second request costs more than the wait.
const SOONEST: Duration = Duration::from_millis(50);

/// No GET crawls before this.
const SOONEST_LEFT: Duration = Duration::from_secs(1);

/// A GET crawls that takes so many times as long as 99 of 100.
const TIMES_WHOLE: u32 = 4;

/// No extra requests for so long after the store asked to slow down.
const QUIET: Duration = Duration::from_secs(10);

/// Sizes are sorted by powers of four: 64 KiB, 256 KiB, 1 MiB and so on.
const CLASSES: usize = 16;

/// An [`ObjectStore`] whose slow GETs are helped.
#[derive(Debug)]
pub struct Hedging {
    inner: Arc<dyn ObjectStore>,
    metrics: Arc<Metrics>,
    classes: [Mutex<Class>; CLASSES],
    allowance: Mutex<Allowance>,
    switches: Switches,
}

/// The sink of a range while two GETs may be after it.
struct Claim<'a> {
    wants_sum: bool,
    sink: Mutex<Option<&'a mut dyn RangeSink>>,
    state: Mutex<Claimed>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Claimed {
    by: Option<Side>,
    at: Option<Instant>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    First,
    Second,
}

/// The sink that one of them sees: the real one for whoever has bytes first.
struct Contender<'c, 'a> {
    side: Side,
    claim: &'c Claim<'a>,
    sink: Option<&'a mut dyn RangeSink>,
    /// What its answer told, until it has the sink.
    sum: Option<ObjectSum>,
    /// Where the bytes of the other one go, until it is dropped a moment later.
    waste: Vec<u8>,
}

impl<'a> Claim<'a> {
    fn new(sink: &'a mut dyn RangeSink) -> Self {
        Self { wants_sum: sink.wants_sum(), sink: Mutex::new(Some(sink)), state: Mutex::default() }
    }

    fn contender(&self, side: Side) -> Contender<'_, 'a> {
        Contender { side, claim: self, sink: None, sum: None, waste: Vec::new() }
    }

    fn by(&self) -> Option<Side> {
        self.state.lock().by
    }
}

impl RangeSink for Contender<'_, '_> {
    fn spare(&mut self) -> &mut [u8] {
        if self.sink.is_none()
            && let Some(sink) = self.claim.sink.lock().take()
        {
            if let Some(sum) = &self.sum {
                sink.on_sum(sum);
            }
            self.sink = Some(sink);
            *self.claim.state.lock() = Claimed { by: Some(self.side), at: Some(Instant::now()), bytes: 0 };
        }
        match &mut self.sink {
            Some(sink) => sink.spare(),
            None => {
                self.waste.resize(4096, 0);
                &mut self.waste
            }
        }
    }

    fn advance(&mut self, n: usize) {
        if let Some(sink) = &mut self.sink {
            self.claim.state.lock().bytes += n as u64;
            sink.advance(n);
        }
    }

    fn wants_sum(&self) -> bool {
        self.claim.wants_sum
    }

    fn on_sum(&mut self, sum: &ObjectSum) {
        self.sum = Some(sum.clone());
    }
}

type Get<'f> = BoxFuture<'f, Result<()>>;

/// How the race of two GETs came out.
enum Raced {
    Won(Side),
    Ended(Result<()>),
}

/// Polls both until one has bytes, or both have failed.
async fn race(first: &mut Get<'_>, second: &mut Get<'_>, claim: &Claim<'_>) -> Raced {
    let mut failed = None;
    poll_fn(|context| {
        for side in [Side::First, Side::Second] {
            if failed == Some(side) {
                continue;
            }
            let polled = match side {
                Side::First => first.as_mut().poll(context),
                Side::Second => second.as_mut().poll(context),
            };
            match polled {
                Poll::Ready(Err(_)) if failed.is_none() && claim.by().is_none() => failed = Some(side),
                Poll::Ready(result) => return Poll::Ready(Raced::Ended(result)),
                Poll::Pending => {}
            }
            if let Some(side) = claim.by() {
                return Poll::Ready(Raced::Won(side));
            }
        }
        Poll::Pending
    })
    .await
}

/// The result of `get`, or none when it is not there by `until`.
async fn until(get: &mut Get<'_>, until: Option<Instant>) -> Option<Result<()>> {
    match until {
        Some(until) => timeout_at(until, get).await.ok(),
        None => Some(get.await),
    }
}

impl Hedging {
    /// Wraps `inner`, which makes one attempt a call.
    pub fn new(inner: Arc<dyn ObjectStore>, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics, classes: Default::default(), allowance: Mutex::default(), switches: Switches::default() }
    }

    /// The same, as long as `switches` say so.
    #[must_use]
    pub fn switched(self, switches: Switches) -> Self {
        Self { switches, ..self }
    }

    fn class(request: &RangeRequest) -> usize {
        let len = request.range.end - request.range.start;
        let class = (len.max(1).ilog2() as usize / 2).saturating_sub(7);
        class.min(CLASSES - 1)
    }

    /// The time to the first byte that 99 of 100 GETs of this class keep to, or those of the nearest class that is known while
    /// this one is not: the size of a range does little to its first byte.
    fn usual_first_byte(&self, class: usize) -> Option<Duration> {
        (0..CLASSES)
            .flat_map(|distance| [class.wrapping_sub(distance), class + distance])
            .filter_map(|class| self.classes.get(class))
            .find_map(|class| class.lock().first.p99)
    }

    /// Whether one more request may be sent now; it counts as sent.
    fn may_send_more(&self) -> bool {
        let may = self.allowance.lock().take(Instant::now());
        if may {
            self.metrics.hedged_requests.add(1);
        }
        may
    }

    /// The race for the first byte, then the winner up to its end, or until it crawls and another one takes over.
    ///
    /// What is late is looked up again and again: the first GETs of all are under way before it is known, and an extra request
    /// that is not allowed yet may be a moment later.
    async fn fetch(&self, request: &RangeRequest, claim: &Claim<'_>, class: usize, started: Instant) -> Result<()> {
        let (mut a, mut b) = (claim.contender(Side::First), claim.contender(Side::Second));
        let mut winner = self.inner.get_range(request, &mut a);
        loop {
            let late = self.usual_first_byte(class).map(|p99| started + p99.max(SOONEST));
            let now = Instant::now();
            let look_at = late.filter(|late| *late > now).unwrap_or(now + SOONEST);
            if late.is_some_and(|late| late <= now) && self.may_send_more() {
                let mut second = self.inner.get_range(request, &mut b);
                match race(&mut winner, &mut second, claim).await {
                    Raced::Ended(result) => return result,
                    Raced::Won(Side::First) => {}
                    Raced::Won(Side::Second) => winner = second,
                }
                break;
            }
            if let Some(result) = until(&mut winner, Some(look_at)).await {
                return result;
            }
            if claim.by().is_some() {
                break;
            }
        }
        let whole = self.classes[class].lock().whole.p99;
        let crawls = whole.map(|p99| started + (p99 * TIMES_WHOLE).max(SOONEST_LEFT));
        if let Some(result) = until(&mut winner, crawls).await {
            return result;
        }
        if !self.may_send_more() {
            return winner.await;
        }
        drop(winner);
        let sink = a.sink.take().or_else(|| b.sink.take()).or_else(|| claim.sink.lock().take());
        let mut rest = request.clone();
        rest.range.start += claim.state.lock().bytes;
        if rest.range.is_empty() {
            return Ok(());
        }
        self.inner.get_range(&rest, sink.expect("one of the three has it")).await
    }
}

#[async_trait]
impl ObjectStore for Hedging {
    fn time_at(&self, at: Instant) -> Option<StoreTime> {
        self.inner.time_at(at)
    }

    fn most_metadata(&self) -> usize {
        self.inner.most_metadata()
    }

    fn lists_in_order(&self, prefix: &Key) -> bool {
        self.inner.lists_in_order(prefix)
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.head(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.inner.list(request).await
    }

    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        self.inner.list_telling(request, tell).await
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        if !self.switches.hedges() {
            return self.inner.get_range(request, sink).await;
        }
        let class = Self::class(request);
        self.allowance.lock().gets += 1;
        let started = Instant::now();
        let claim = Claim::new(sink);
        let result = self.fetch(request, &claim, class, started).await;
        let mut class = self.classes[class].lock();
        if let Some(at) = claim.state.lock().at {
            class.first.record(at - started);
        }
        match &result {
            Ok(()) => class.whole.record(started.elapsed()),
            Err(error) if error.asks_to_slow_down() => self.allowance.lock().quiet_until = Some(Instant::now() + QUIET),
            Err(_) => {}
        }
        result
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        self.inner.details(key).await
    }

    async fn details_to_keep(&self, key: &Key) -> Result<Details> {
        self.inner.details_to_keep(key).await
    }

    async fn put(&self, request: &PutRequest) -> Result<Written> {
        self.inner.put(request).await
    }

    async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        self.inner.create_upload(request).await
    }

    async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        self.inner.upload_part(upload, number, body).await
    }

    async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        self.inner.copy_part(upload, number, source).await
    }

    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        self.inner.complete_upload(upload, parts, condition).await
    }

    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        self.inner.abort_upload(upload).await
    }

    async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        self.inner.list_uploads(prefix, after).await
    }

    async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        self.inner.list_parts(upload, after).await
    }

    async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        self.inner.copy(request).await
    }

    async fn rename(&self, request: &RenameRequest) -> Result<Option<Written>> {
        self.inner.rename(request).await
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.inner.delete(key).await
    }

    async fn delete_version(&self, key: &Key, etag: &ETag) -> Result<()> {
        self.inner.delete_version(key, etag).await
    }

    async fn delete_many(&self, keys: &[Key]) -> Result<Vec<Error>> {
        self.inner.delete_many(keys).await
    }

    async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        self.inner.put_symlink(key, target, headers, condition).await
    }
}

#[cfg(test)]
mod tests;
