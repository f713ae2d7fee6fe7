//! What goes wrong between a store and us, done to real answers by our S3 server. The reader gets correct bytes or the
//! right error, and the server counts what that cost.

use std::sync::Arc;
use std::time::Duration;

use windlass::metrics::Metrics;
use windlass::store::memory::Synthetic;
use windlass::store::{ErrorKind, Key, ListRequest, ObjectMeta, ObjectStore, Options, Retrying, open};

use crate::promises::{fetch, whole};
use crate::support::{Effect, Fault, Kind, Request, S3Server};

pub const ALL: &[(&str, crate::Test)] = tests![
    a_burst_of_503_is_waited_out_by_every_operation,
    a_store_that_stays_down_is_an_error_after_the_retries,
    a_store_that_asks_to_slow_down_is_asked_until_the_time_is_over,
    a_cut_body_goes_on_at_the_byte_where_it_stopped,
    a_reset_connection_loses_and_repeats_no_byte,
    a_stalled_body_is_given_up_and_goes_on_elsewhere,
    a_stalled_head_of_an_answer_is_asked_for_again,
    an_answer_for_another_range_is_not_believed,
    an_answer_of_another_version_is_refused_at_once,
    an_object_replaced_while_its_body_is_cut_is_never_mixed,
    a_refusal_is_not_repeated,
];

const SIZE: u64 = 1 << 20;

/// Short, for a test; far above what loopback needs, also on a machine that others keep busy.
const STALL: Duration = Duration::from_secs(3);

/// A server with one object, and a store that retries.
struct Bench {
    server: S3Server,
    store: Arc<Retrying>,
    metrics: Arc<Metrics>,
    content: Synthetic,
    meta: ObjectMeta,
}

impl Bench {
    async fn new() -> Self {
        Self::with(|options| options).await
    }

    async fn with(change: impl FnOnce(Options) -> Options) -> Self {
        let server = S3Server::start();
        let content = server.put_synthetic("dir/object", SIZE);
        let meta = open(&server.store_options(), Arc::default()).await.unwrap().head(&Key::from("dir/object")).await.unwrap();
        server.reset_log();
        let metrics = Arc::new(Metrics::default());
        let store = open(&change(server.store_options()), metrics.clone()).await.unwrap();
        Self { server, store, metrics, content, meta }
    }

    fn fault(&self, effect: Effect, nth: usize) {
        self.server.fault(Fault::new(effect).kind(Kind::Get).nth(nth));
    }

    /// Reads the object and compares every byte.
    async fn read(&self) {
        let bytes = whole(&*self.store, &self.meta, 0..SIZE).await;
        assert!(self.content.matches(0, &bytes), "wrong bytes");
    }

    /// A read that fails: how much arrived before, all of it correct, and why.
    async fn fail(&self) -> (u64, ErrorKind) {
        let (received, result) = fetch(&*self.store, &self.meta, 0..SIZE).await;
        assert!(self.content.matches(0, &received), "wrong bytes");
        (received.len() as u64, result.unwrap_err().kind)
    }

    /// The GETs, each with the version that it asked for.
    fn gets(&self) -> Vec<Request> {
        let gets = self.server.of_kind(Kind::Get);
        assert!(gets.iter().all(|get| get.if_match.as_deref() == Some(self.meta.etag.as_str())));
        assert_eq!(gets.len() as u64, self.metrics.get_requests.get());
        assert_eq!(gets.len().saturating_sub(1) as u64, self.metrics.retries.get());
        gets
    }

    /// Where each GET began; all go to the end.
    fn starts(&self) -> Vec<u64> {
        let ranges = self.gets().into_iter().map(|get| get.range.expect("every GET has a range"));
        ranges.inspect(|range| assert_eq!(range.end, SIZE)).map(|range| range.start).collect()
    }
}

async fn a_burst_of_503_is_waited_out_by_every_operation() {
    let bench = Bench::new().await;
    for kind in [Kind::Get, Kind::Head, Kind::List] {
        bench.server.fault(Fault::new(Effect::Status(503)).kind(kind).first(3));
    }
    bench.read().await;
    assert_eq!(bench.starts(), [0; 4]);
    assert_eq!(bench.store.head(&bench.meta.key).await.unwrap(), bench.meta);
    let request = ListRequest { prefix: Key::from("dir/"), delimited: true, after: None, token: None, max_keys: 10, any_order: false };
    assert_eq!(bench.store.list(&request).await.unwrap().objects[0].key, bench.meta.key);
    assert_eq!((bench.server.count(Kind::Head), bench.server.count(Kind::List)), (4, 4));
    assert_eq!((bench.metrics.head_requests.get(), bench.metrics.list_requests.get(), bench.metrics.retries.get()), (4, 4, 9));
    assert_eq!(bench.metrics.fetched_bytes.get(), SIZE, "error documents are not counted");
}

async fn a_store_that_stays_down_is_an_error_after_the_retries() {
    let bench = Bench::with(|options| Options { retries: 2, ..options }).await;
    bench.server.fault(Fault::new(Effect::Status(500)));
    assert_eq!(bench.fail().await, (0, ErrorKind::Unavailable));
    assert_eq!(bench.starts(), [0; 3]);
    assert_eq!(bench.store.head(&bench.meta.key).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(bench.server.count(Kind::Head), 3);
}

async fn a_store_that_asks_to_slow_down_is_asked_until_the_time_is_over() {
    let bench = Bench::with(|options| Options { retries: 2, request_timeout: Duration::from_secs(3), ..options }).await;
    bench.server.fault(Fault::new(Effect::Status(503)));
    assert_eq!(bench.fail().await, (0, ErrorKind::Timeout));
    assert!(bench.starts().len() > 3, "{:?}", bench.starts());
    let error = bench.store.head(&bench.meta.key).await.unwrap_err();
    assert_eq!((error.kind, error.status), (ErrorKind::Timeout, Some(503)), "{error}");
    assert!(bench.server.count(Kind::Head) > 3);
}

async fn a_cut_body_goes_on_at_the_byte_where_it_stopped() {
    // One retry without progress is all there is: three cuts in a row need that progress is counted.
    let bench = Bench::with(|options| Options { retries: 1, ..options }).await;
    for (nth, bytes) in [(1, 100_000), (2, 1), (3, 333_333)] {
        bench.fault(Effect::Truncate(bytes), nth);
    }
    bench.read().await;
    assert_eq!(bench.starts(), [0, 100_000, 100_001, 433_334]);
    assert!(bench.server.until(|requests| requests.last().is_some_and(|last| last.finished)).await);
    assert_eq!(bench.gets().iter().map(|get| get.bytes_sent).sum::<u64>(), SIZE, "the server sent no byte twice");
    assert_eq!(bench.metrics.fetched_bytes.get(), SIZE);
}

async fn a_reset_connection_loses_and_repeats_no_byte() {
    let bench = Bench::new().await;
    bench.fault(Effect::Reset(300_000), 1);
    bench.fault(Effect::Reset(0), 2);
    bench.read().await;
    let starts = bench.starts();
    // A reset may overtake bytes that were sent before it; those are fetched again, those that arrived are not.
    assert!(starts.len() == 3 && starts[1] <= 300_000 && starts[2] == starts[1], "{starts:?}");
    assert_eq!(bench.metrics.fetched_bytes.get(), SIZE, "no byte arrived twice");
}

async fn a_stalled_body_is_given_up_and_goes_on_elsewhere() {
    let bench = Bench::with(|options| Options { stall_timeout: STALL, ..options }).await;
    bench.fault(Effect::Stall(70_000, None), 1);
    bench.fault(Effect::Stall(0, None), 2);
    bench.read().await;
    assert_eq!(bench.starts(), [0, 70_000, 70_000]);
    assert!(bench.server.until(|requests| requests[..2].iter().all(|get| get.aborted)).await, "stalled connections are closed");
    let ports: std::collections::BTreeSet<u16> = bench.gets().iter().map(|get| get.remote_port).collect();
    assert_eq!(ports.len(), 3, "a stalled connection is not used again");
    assert_eq!(bench.metrics.fetched_bytes.get(), SIZE);
}

async fn a_stalled_head_of_an_answer_is_asked_for_again() {
    let bench = Bench::with(|options| Options { stall_timeout: STALL, connect_timeout: STALL, ..options }).await;
    for kind in [Kind::Get, Kind::Head, Kind::List] {
        bench.server.fault(Fault::new(Effect::Delay(Duration::from_secs(60))).kind(kind).nth(1));
    }
    bench.read().await;
    assert_eq!(bench.starts(), [0, 0]);
    assert_eq!(bench.store.head(&bench.meta.key).await.unwrap(), bench.meta);
    let request = ListRequest { prefix: Key::root(), delimited: false, after: None, token: None, max_keys: 10, any_order: false };
    assert_eq!(bench.store.list(&request).await.unwrap().objects[0].key, bench.meta.key);
    assert_eq!((bench.server.count(Kind::Head), bench.server.count(Kind::List)), (2, 2));
}

async fn an_answer_for_another_range_is_not_believed() {
    let bench = Bench::new().await;
    bench.fault(Effect::WrongRange, 1);
    bench.read().await;
    assert_eq!((bench.starts(), bench.metrics.fetched_bytes.get()), (vec![0, 0], SIZE));

    let bench = Bench::with(|options| Options { retries: 1, ..options }).await;
    bench.server.fault(Fault::new(Effect::WrongRange));
    assert_eq!(bench.fail().await, (0, ErrorKind::Corrupt));
    assert_eq!((bench.starts(), bench.metrics.fetched_bytes.get()), (vec![0, 0], 0));
}

async fn an_answer_of_another_version_is_refused_at_once() {
    let bench = Bench::new().await;
    bench.fault(Effect::WrongETag("\"of another version\"".into()), 1);
    assert_eq!(bench.fail().await, (0, ErrorKind::Replaced));
    assert_eq!((bench.starts(), bench.metrics.fetched_bytes.get()), (vec![0], 0));
}

async fn an_object_replaced_while_its_body_is_cut_is_never_mixed() {
    let bench = Bench::new().await;
    bench.fault(Effect::Truncate(200_000), 1);
    // Until the new version is there.
    bench.fault(Effect::Held, 2);
    let replace = async {
        assert!(bench.server.until(|requests| requests.len() == 2).await);
        bench.server.put_synthetic("dir/object", SIZE);
        bench.server.clear_faults();
    };
    let (end, ()) = tokio::join!(bench.fail(), replace);
    assert_eq!(end, (200_000, ErrorKind::Replaced));
    assert_eq!(bench.starts(), [0, 200_000]);
    assert_eq!(bench.gets()[1].status, 412);
}

async fn a_refusal_is_not_repeated() {
    for (status, kind) in [(403, ErrorKind::AccessDenied), (404, ErrorKind::NotFound), (412, ErrorKind::Replaced)] {
        let bench = Bench::new().await;
        bench.server.fault(Fault::new(Effect::Status(status)));
        assert_eq!(bench.fail().await, (0, kind));
        assert_eq!(bench.gets().len(), 1);
    }
}
