//! Attempts are counted and time is virtual: every test runs under tokio's paused clock.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

use tokio::time::Instant;

use super::super::{ETag, Error, ErrorKind};
use super::*;

const SIZE: u64 = 10_000;

fn byte_at(offset: u64) -> u8 {
    (offset * 7 % 251) as u8
}

/// What one attempt does.
#[derive(Clone, Copy)]
enum Step {
    Fail(ErrorKind),
    /// As `Fail`, with this message.
    FailWith(ErrorKind, &'static str),
    /// This many bytes, then an error.
    Break(u64, ErrorKind),
    Hang,
    Succeed,
}

/// A store that plays a script; after it every attempt does what the last step did.
#[derive(Debug)]
struct Scripted {
    steps: Mutex<VecDeque<Step>>,
    last: Step,
    ranges: Mutex<Vec<std::ops::Range<u64>>>,
    calls: Mutex<usize>,
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("step")
    }
}

impl Scripted {
    fn new(steps: &[Step]) -> Arc<Self> {
        let last = *steps.last().unwrap();
        Arc::new(Self { steps: Mutex::new(steps.iter().copied().collect()), last, ranges: Mutex::default(), calls: Mutex::default() })
    }

    fn next(&self) -> Step {
        *self.calls.lock() += 1;
        self.steps.lock().pop_front().unwrap_or(self.last)
    }

    async fn play(&self, op: Op, key: &Key) -> Result<()> {
        match self.next() {
            Step::Succeed => Ok(()),
            Step::Hang => std::future::pending().await,
            Step::Fail(kind) | Step::Break(_, kind) => Err(Error::new(kind, op, key, "scripted")),
            Step::FailWith(kind, message) => Err(Error::new(kind, op, key, message)),
        }
    }
}

#[async_trait]
impl ObjectStore for Scripted {
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.play(Op::Head, key).await?;
        Ok(ObjectMeta { key: key.clone(), size: SIZE, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH })
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.play(Op::List, &request.prefix).await.map(|()| ListPage::default())
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        self.ranges.lock().push(request.range.clone());
        let step = self.next();
        let length = request.range.end - request.range.start;
        let count = match step {
            Step::Succeed => length,
            Step::Break(n, _) => n.min(length),
            Step::Fail(_) | Step::FailWith(..) | Step::Hang => 0,
        };
        for offset in request.range.start..request.range.start + count {
            sink.spare()[0] = byte_at(offset);
            sink.advance(1);
        }
        match step {
            Step::Succeed => Ok(()),
            Step::Hang => std::future::pending().await,
            Step::Fail(kind) | Step::Break(_, kind) => Err(Error::new(kind, Op::Get, &request.key, "scripted")),
            Step::FailWith(kind, message) => Err(Error::new(kind, Op::Get, &request.key, message)),
        }
    }
}

struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl Buffer {
    fn new(length: u64) -> Self {
        Self { bytes: vec![0xff; length as usize], filled: 0 }
    }
}

impl RangeSink for Buffer {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    fn advance(&mut self, n: usize) {
        self.filled += n;
    }
}

fn policy(retries: usize) -> Policy {
    Policy { retries, request_timeout: Duration::from_secs(60), attempt_timeout: Duration::from_secs(10) }
}

fn retrying(store: &Arc<Scripted>, policy: Policy) -> (Retrying, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::default());
    (Retrying::new(store.clone(), policy, metrics.clone()), metrics)
}

fn range(start: u64, end: u64) -> RangeRequest {
    RangeRequest { key: Key::from("k"), range: start..end, etag: ETag::from("\"e\"") }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_errors_is_survived_and_counted() {
    let burst = [Step::Fail(ErrorKind::Throttled), Step::Fail(ErrorKind::Unavailable), Step::Fail(ErrorKind::Connect), Step::Succeed];
    let store = Scripted::new(&burst);
    let (retrying, metrics) = retrying(&store, policy(10));
    let started = Instant::now();
    assert_eq!(retrying.head(&Key::from("k")).await.unwrap().size, SIZE);
    assert_eq!((*store.calls.lock(), metrics.retries.get()), (4, 3));
    assert!(started.elapsed() <= Duration::from_millis(50 + 100 + 200), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_succeed_is_sent_once() {
    for kind in [ErrorKind::NotFound, ErrorKind::Replaced, ErrorKind::AccessDenied, ErrorKind::BadCredentials, ErrorKind::Invalid] {
        let store = Scripted::new(&[Step::Fail(kind)]);
        let (retrying, metrics) = retrying(&store, policy(10));
        let started = Instant::now();
        assert_eq!(retrying.head(&Key::from("k")).await.unwrap_err().kind, kind);
        assert_eq!((*store.calls.lock(), metrics.retries.get(), started.elapsed()), (1, 0, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_end_after_the_retries_and_the_error_says_how_many() {
    let store = Scripted::new(&[Step::Fail(ErrorKind::Unavailable)]);
    let (retrying, metrics) = retrying(&store, policy(3));
    let request = ListRequest { prefix: Key::root(), delimited: false, after: None, token: None, max_keys: 1, any_order: false };
    let error = retrying.list(&request).await.unwrap_err();
    assert_eq!((error.kind, *store.calls.lock(), metrics.retries.get()), (ErrorKind::Unavailable, 4, 3));
    assert!(error.message.contains("4 attempts"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn no_retries_means_one_attempt() {
    let store = Scripted::new(&[Step::Fail(ErrorKind::Unavailable)]);
    let (retrying, _) = retrying(&store, policy(0));
    assert_eq!(retrying.head(&Key::from("k")).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(*store.calls.lock(), 1);
}

#[tokio::test(start_paused = true)]
async fn delays_use_the_whole_interval_down_to_zero() {
    // Full jitter: the mean of the first delay is half of 50 ms. Bounds are eight standard deviations wide.
    let started = Instant::now();
    for _ in 0..400 {
        let (retrying, _) = retrying(&Scripted::new(&[Step::Fail(ErrorKind::Unavailable), Step::Succeed]), policy(1));
        retrying.head(&Key::from("k")).await.unwrap();
    }
    let mean = started.elapsed() / 400;
    assert!((Duration::from_millis(18)..Duration::from_millis(32)).contains(&mean), "{mean:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_request_ends_with_the_deadline_and_names_the_attempts() {
    let store = Scripted::new(&[Step::Fail(ErrorKind::Throttled), Step::Hang]);
    let (retrying, _) = retrying(&store, policy(10));
    let started = Instant::now();
    let error = retrying.get_range(&range(0, 100), &mut Buffer::new(100)).await.unwrap_err();
    // Refused at once, then 10, 20 and the rest of 60 seconds.
    assert_eq!((error.kind, *store.calls.lock()), (ErrorKind::Timeout, 4));
    assert!(error.message.contains("4 attempts") && error.message.contains("no answer for 20s"), "{error}");
    let elapsed = started.elapsed();
    assert!((Duration::from_secs(60)..Duration::from_secs(61)).contains(&elapsed), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn what_hangs_is_sent_again_and_waited_for_longer_each_time() {
    let script = [Step::Hang, Step::Hang, Step::Succeed];
    let (head, get) = (Scripted::new(&script), Scripted::new(&script));
    let ((heads, by_head), (gets, by_get)) = (retrying(&head, policy(10)), retrying(&get, policy(10)));
    let started = Instant::now();
    heads.head(&Key::from("k")).await.unwrap();
    let elapsed = started.elapsed();
    assert!((Duration::from_secs(30)..Duration::from_secs(31)).contains(&elapsed), "{elapsed:?}");
    gets.get_range(&range(0, 100), &mut Buffer::new(100)).await.unwrap();
    let elapsed = started.elapsed() - elapsed;
    assert!((Duration::from_secs(30)..Duration::from_secs(31)).contains(&elapsed), "{elapsed:?}");
    assert_eq!((by_head.retries.get(), by_get.retries.get()), (2, 2));
}

/// A store that answers after `late`, and asks to slow down until `until`.
#[derive(Debug)]
struct Busy {
    late: Duration,
    until: Instant,
    retry_after: Option<u8>,
    asked: Mutex<Vec<Instant>>,
}

impl Busy {
    fn new(late: u64, until: u64, retry_after: Option<u8>) -> Arc<Self> {
        let (late, until) = (Duration::from_secs(late), Instant::now() + Duration::from_secs(until));
        Arc::new(Self { late, until, retry_after, asked: Mutex::default() })
    }

    async fn answer(&self, op: Op, key: &Key) -> Result<()> {
        self.asked.lock().push(Instant::now());
        tokio::time::sleep(self.late).await;
        if Instant::now() >= self.until {
            return Ok(());
        }
        Err(Error { retry_after: self.retry_after, ..Error::new(ErrorKind::Throttled, op, key, "slow down") })
    }
}

#[async_trait]
impl ObjectStore for Busy {
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.answer(Op::Head, key).await?;
        Ok(ObjectMeta { key: key.clone(), size: SIZE, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH })
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.answer(Op::List, &request.prefix).await.map(|()| ListPage::default())
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        self.answer(Op::Get, &request.key).await?;
        let len = (request.range.end - request.range.start) as usize;
        sink.spare()[..len].fill(0);
        sink.advance(len);
        Ok(())
    }
}

fn over(store: &Arc<Busy>, retries: usize) -> Retrying {
    Retrying::new(Arc::clone(store) as Arc<dyn ObjectStore>, policy(retries), Arc::default())
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_to_answer_is_waited_for() {
    for late in [6, 15, 25] {
        let store = Busy::new(late, 0, None);
        over(&store, 10).get_range(&range(0, 100), &mut Buffer::new(100)).await.unwrap();
        over(&store, 10).head(&Key::from("k")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_for_twenty_seconds_is_waited_for_by_all() {
    let store = Busy::new(0, 20, None);
    let retrying = Arc::new(over(&store, 3));
    let tasks = (0..64).map(|_| {
        let retrying = Arc::clone(&retrying);
        tokio::spawn(async move { retrying.head(&Key::from("k")).await.map(drop) })
    });
    for done in futures::future::join_all(tasks).await {
        done.unwrap().unwrap();
    }
    // The delays are up to five seconds; the last ones go four at a time.
    let (asked, elapsed) = (store.asked.lock().len(), Instant::now() - (store.until - Duration::from_secs(20)));
    assert!(elapsed <= Duration::from_secs(26), "{elapsed:?}");
    // The budget: a fifth of 64 and ten a second, all others with the longest delays.
    assert!(asked < 64 + 64 / 5 + 10 * 30 + 64 * 10, "{asked} requests");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_says_when_to_come_again_is_not_asked_before() {
    let store = Busy::new(0, 20, Some(7));
    over(&store, 10).head(&Key::from("k")).await.unwrap();
    let asked = store.asked.lock().clone();
    assert_eq!(asked.len(), 4);
    asked.windows(2).for_each(|two| assert!(two[1] - two[0] >= Duration::from_secs(7), "{asked:?}"));
    // A longer Retry-After is cut to 30 s, which the request timeout still has room for.
    let store = Busy::new(0, 20, Some(u8::MAX));
    over(&store, 10).head(&Key::from("k")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_retries_a_refusal_ends_it() {
    let store = Busy::new(0, 20, None);
    assert_eq!(over(&store, 0).head(&Key::from("k")).await.unwrap_err().kind, ErrorKind::Throttled);
    assert_eq!(store.asked.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_controller_counts_the_requests_of_all() {
    let store = Busy::new(1, 1_000_000, None);
    let one = over(&store, 0);
    let other = one.under(policy(0));
    let heads = (0..64).map(|n| {
        let store = if n % 2 == 0 { &one } else { &other };
        async move { store.head(&Key::from("k")).await.unwrap_err() }
    });
    futures::future::join_all(heads).await;
    assert_eq!((one.most_requests(), other.most_requests()), (32, 32));
    // Of 64 more, 32 are there at a time.
    let began = Instant::now();
    let heads = (0..64).map(|_| async { one.head(&Key::from("k")).await.unwrap_err() });
    futures::future::join_all(heads).await;
    assert!(store.asked.lock().iter().filter(|at| **at == began).count() == 32);
}

#[tokio::test(start_paused = true)]
async fn two_malformed_responses_in_a_row_end_the_request() {
    let store = Scripted::new(&[Step::Fail(ErrorKind::Malformed), Step::Fail(ErrorKind::Malformed), Step::Succeed]);
    let (malformed, _) = retrying(&store, policy(10));
    let error = malformed.head(&Key::from("k")).await.unwrap_err();
    assert_eq!((error.kind, *store.calls.lock()), (ErrorKind::Malformed, 2));
    // The text of an expired certificate contains the current time, that of an unreadable document its first byte.
    let store = Scripted::new(&[
        Step::FailWith(ErrorKind::Malformed, "expired 100 seconds ago"),
        Step::FailWith(ErrorKind::Malformed, "expired 101 seconds ago"),
        Step::Succeed,
    ]);
    let (expired, _) = retrying(&store, policy(10));
    assert_eq!((expired.head(&Key::from("k")).await.unwrap_err().kind, *store.calls.lock()), (ErrorKind::Malformed, 2));
    // Something on the way may have cut one.
    let store = Scripted::new(&[
        Step::Fail(ErrorKind::Malformed),
        Step::Fail(ErrorKind::Unavailable),
        Step::Fail(ErrorKind::Malformed),
        Step::Succeed,
    ]);
    let (cut, _) = retrying(&store, policy(10));
    cut.head(&Key::from("k")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_deadline_holds_however_many_retries_are_left() {
    let store = Scripted::new(&[Step::Fail(ErrorKind::Unavailable)]);
    let (retrying, _) = retrying(&store, policy(1_000_000));
    let started = Instant::now();
    let error = retrying.head(&Key::from("k")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(started.elapsed() <= Duration::from_secs(60) && *store.calls.lock() > 10, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_range_goes_on_at_the_byte_where_it_stopped() {
    let script = [Step::Break(300, ErrorKind::Corrupt), Step::Fail(ErrorKind::Connect), Step::Break(1, ErrorKind::Timeout), Step::Succeed];
    let store = Scripted::new(&script);
    let (retrying, metrics) = retrying(&store, policy(10));
    let mut sink = Buffer::new(1000);
    retrying.get_range(&range(4000, 5000), &mut sink).await.unwrap();
    assert_eq!(*store.ranges.lock(), [4000..5000, 4300..5000, 4300..5000, 4301..5000]);
    assert_eq!(metrics.retries.get(), 3);
    assert_eq!(sink.filled, 1000);
    assert!(sink.bytes.iter().zip(4000..).all(|(&byte, offset)| byte == byte_at(offset)));
}

#[tokio::test(start_paused = true)]
async fn a_long_body_over_a_slow_link_has_the_time_that_it_takes() {
    use crate::store::memory::{Bandwidth, Memory, Plan};
    const LEN: u64 = 99 << 20;
    let bandwidth = Bandwidth { per_connection: None, total: Some(1_000_000) };
    let memory = Arc::new(Memory::new(Plan { bandwidth, ..Plan::default() }));
    memory.put_synthetic("a", LEN);
    let etag = memory.meta("a").unwrap().etag;
    let store = Retrying::new(memory.clone(), policy(10), Arc::default());
    let mut got = Buffer::new(LEN);
    store.get_range(&RangeRequest { key: "a".into(), range: 0..LEN, etag }, &mut got).await.unwrap();
    assert_eq!((got.filled as u64, memory.requests().len()), (LEN, 1));
}

#[tokio::test(start_paused = true)]
async fn progress_resets_the_count_of_failures() {
    // Eleven cuts with two retries: only possible because each attempt brings bytes.
    let mut script = vec![Step::Break(10, ErrorKind::Corrupt); 11];
    script.push(Step::Succeed);
    let store = Scripted::new(&script);
    let (retrying, _) = retrying(&store, policy(2));
    let mut sink = Buffer::new(1000);
    retrying.get_range(&range(0, 1000), &mut sink).await.unwrap();
    assert_eq!((*store.calls.lock(), sink.filled), (12, 1000));
}

#[tokio::test(start_paused = true)]
async fn an_object_replaced_between_two_attempts_is_not_mixed() {
    let store = Scripted::new(&[Step::Break(10, ErrorKind::Corrupt), Step::Fail(ErrorKind::Replaced)]);
    let (retrying, _) = retrying(&store, policy(5));
    let mut sink = Buffer::new(1000);
    let error = retrying.get_range(&range(0, 1000), &mut sink).await.unwrap_err();
    assert_eq!((error.kind, *store.calls.lock(), sink.filled), (ErrorKind::Replaced, 2, 10));
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_last_byte_is_no_error() {
    let store = Scripted::new(&[Step::Break(100, ErrorKind::Unavailable), Step::Fail(ErrorKind::Invalid)]);
    let (retrying, metrics) = retrying(&store, policy(5));
    retrying.get_range(&range(0, 100), &mut Buffer::new(100)).await.unwrap();
    assert_eq!((*store.calls.lock(), metrics.retries.get()), (1, 0));
}
