//! Two simulated stores on a paused clock, one behind the other.

use super::*;
use crate::store::Op;
use crate::store::memory::{Fault, Memory, Plan, Rule};
use crate::store::whole::Whole;

struct Sim {
    near: Memory,
    home: Memory,
    store: ReadEndpoint,
    metrics: Arc<Metrics>,
}

impl Sim {
    fn new() -> Self {
        let (near, home) = (Memory::new(Plan::default()), Memory::new(Plan::default()));
        let metrics = Arc::new(Metrics::default());
        let store = ReadEndpoint::new(Arc::new(near.clone()), Arc::new(home.clone()), metrics.clone());
        let sim = Self { near, home, store, metrics };
        sim.put_both("one");
        sim
    }

    fn put_both(&self, content: &'static str) {
        self.near.put("k", content);
        self.home.put("k", content);
        assert_eq!(self.near.meta("k").unwrap().etag, self.home.meta("k").unwrap().etag);
    }

    /// Reads the version that the endpoint has.
    async fn read(&self) -> Result<String> {
        let meta = self.home.meta("k").unwrap();
        let mut sink = Whole::new(meta.size);
        self.store.get_range(&RangeRequest { key: meta.key, range: 0..meta.size, etag: meta.etag }, &mut sink).await?;
        assert_eq!(sink.filled, sink.content.len());
        Ok(String::from_utf8(sink.content).unwrap())
    }

    fn fail(&self, store: &Memory, kind: ErrorKind) {
        store.clear_faults();
        store.fault(Rule::new(Fault::Error(kind)).op(Op::Get));
    }

    /// GETs that came there and here, and what was counted: answered there, and not.
    fn counts(&self) -> (usize, usize, u64, u64) {
        let metrics = (self.metrics.read_endpoint_requests.get(), self.metrics.read_endpoint_fallbacks.get());
        (self.near.count(Op::Get), self.home.count(Op::Get), metrics.0, metrics.1)
    }
}

#[tokio::test(start_paused = true)]
async fn data_comes_from_the_read_endpoint_and_the_rest_from_the_endpoint() {
    let sim = Sim::new();
    assert_eq!(sim.read().await.unwrap(), "one");
    assert_eq!(sim.store.head(&Key::from("k")).await.unwrap().size, 3);
    let all = ListRequest { prefix: Key::root(), delimited: false, after: None, token: None, max_keys: 10, any_order: false };
    assert_eq!(sim.store.list(&all).await.unwrap().objects.len(), 1);
    assert_eq!(sim.store.details(&Key::from("k")).await.unwrap().meta.size, 3);
    sim.store.delete(&Key::from("k")).await.unwrap();
    assert!(sim.near.meta("k").is_some() && sim.home.meta("k").is_none());
    assert_eq!(sim.counts(), (1, 0, 1, 0));
    assert_eq!(sim.near.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn whatever_the_read_endpoint_says_the_endpoint_answers() {
    for kind in [
        ErrorKind::NotFound,
        ErrorKind::NoSuchBucket,
        ErrorKind::Replaced,
        ErrorKind::RangeNotSatisfiable,
        ErrorKind::AccessDenied,
        ErrorKind::BadCredentials,
        ErrorKind::NoCredentials,
        ErrorKind::WrongEndpoint,
        ErrorKind::Throttled,
        ErrorKind::Unavailable,
        ErrorKind::Timeout,
        ErrorKind::Connect,
        ErrorKind::Corrupt,
        ErrorKind::Malformed,
        ErrorKind::ChecksumRefused,
        ErrorKind::Invalid,
    ] {
        let sim = Sim::new();
        sim.fail(&sim.near, kind);
        assert_eq!(sim.read().await.unwrap(), "one", "{kind:?}");
        assert_eq!(sim.counts(), (1, 1, 0, 1), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_is_gone_on_with_where_it_stopped() {
    let sim = Sim::new();
    sim.put_both("two halves");
    sim.near.fault(Rule::new(Fault::Truncate { after: 4 }).op(Op::Get));
    assert_eq!(sim.read().await.unwrap(), "two halves");
    let asked: Vec<_> = sim.home.requests().into_iter().filter_map(|request| request.range).collect();
    assert_eq!((asked.len(), asked.first()), (1, Some(&(4..10))));
}

#[tokio::test(start_paused = true)]
async fn an_old_version_at_the_read_endpoint_is_never_read() {
    let sim = Sim::new();
    sim.home.put("k", "the new content");
    assert_eq!(sim.read().await.unwrap(), "the new content");
    assert_eq!(sim.counts(), (1, 1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn errors_are_those_of_the_endpoint() {
    let sim = Sim::new();
    sim.fail(&sim.near, ErrorKind::Connect);
    sim.fail(&sim.home, ErrorKind::AccessDenied);
    assert_eq!(sim.read().await.unwrap_err().kind, ErrorKind::AccessDenied);
}

#[tokio::test(start_paused = true)]
async fn after_five_failures_it_is_left_alone_until_it_answers_again() {
    let sim = Sim::new();
    sim.fail(&sim.near, ErrorKind::Unavailable);
    for _ in 0..20 {
        sim.read().await.unwrap();
    }
    assert_eq!(sim.counts(), (5, 20, 0, 20));
    tokio::time::advance(Duration::from_secs(5)).await;
    for _ in 0..20 {
        sim.read().await.unwrap();
    }
    assert_eq!(sim.counts(), (6, 40, 0, 40), "one goes to see");
    sim.near.clear_faults();
    tokio::time::advance(Duration::from_secs(10)).await;
    for _ in 0..20 {
        sim.read().await.unwrap();
    }
    assert_eq!(sim.counts(), (26, 40, 20, 40));
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_gone_everywhere_are_no_failures_of_the_read_endpoint() {
    let sim = Sim::new();
    for kind in [ErrorKind::NotFound, ErrorKind::Replaced] {
        sim.fail(&sim.near, kind);
        sim.fail(&sim.home, kind);
        for _ in 0..20 {
            assert_eq!(sim.read().await.unwrap_err().kind, kind);
        }
    }
    assert_eq!(sim.near.count(Op::Get), 40, "it is still asked");
    sim.home.clear_faults();
    for _ in 0..20 {
        sim.read().await.unwrap();
    }
    assert_eq!(sim.near.count(Op::Get), 45, "one that never has what the endpoint has is of no use");
}

#[test]
fn the_read_endpoint_has_the_region_of_the_bucket_and_less_time() {
    let options = Options { read_endpoint: Some("http://cache".into()), ..Options::default() };
    let near = options_near(&options, Some("r".into())).unwrap();
    assert_eq!((near.endpoint.as_deref(), near.region.as_deref(), near.read_endpoint), (Some("http://cache"), Some("r"), None));
    assert_eq!((near.connect_timeout, near.stall_timeout), (PATIENCE, PATIENCE));
    assert_eq!(options_near(&Options::default(), None), None);
}
