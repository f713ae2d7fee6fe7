//! Two servers with the same bucket: data comes from the one that is the read endpoint, everything else from the other. What goes wrong
//! with the first costs a request at the second and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::metrics::Metrics;
use windlass::store::memory::Synthetic;
use windlass::store::{ErrorKind, Key, ListRequest, ObjectMeta, ObjectStore, Options, Retrying, Signature, open};

use crate::promises::whole;
use crate::stores::{Server, oss};
use crate::support::{Effect, Fault, Kind, Request, S3Server};

pub const ALL: &[(&str, crate::Test)] = tests![
    data_comes_from_the_read_endpoint_and_everything_else_from_the_endpoint,
    whatever_the_read_endpoint_answers_the_bytes_are_right,
    a_body_of_the_read_endpoint_that_stops_is_gone_on_with_at_the_endpoint,
    a_version_that_the_read_endpoint_lacks_comes_from_the_endpoint,
    a_read_endpoint_that_is_down_is_left_alone,
    the_endpoints_may_redirect_to_each_other_and_to_no_other_host,
    oss_data_comes_from_the_read_endpoint_too,
];

const SIZE: u64 = 1 << 20;

/// Short, for a test; far above what loopback needs, also on a machine that others keep busy.
const STALL: Duration = Duration::from_secs(3);

struct Bench {
    near: S3Server,
    home: S3Server,
    store: Arc<Retrying>,
    metrics: Arc<Metrics>,
    content: Synthetic,
    meta: ObjectMeta,
}

impl Bench {
    async fn new() -> Self {
        Self::with(|options| options).await
    }

    /// Where the read endpoint falls silent.
    async fn impatient() -> Self {
        Self::with(|options| Options { stall_timeout: STALL, ..options }).await
    }

    async fn with(change: impl FnOnce(Options) -> Options) -> Self {
        let (near, home) = (S3Server::start(), S3Server::start());
        near.put_synthetic("dir/object", SIZE);
        let content = home.put_synthetic("dir/object", SIZE);
        let metrics = Arc::new(Metrics::default());
        let options = Options {
            read_endpoint: Some(near.endpoint()),
            // Every extra request would be a fallback.
            hedge: false,
            ..home.store_options()
        };
        let store = open(&change(options), metrics.clone()).await.unwrap();
        let meta = store.head(&Key::from("dir/object")).await.unwrap();
        let bench = Self { near, home, store, metrics, content, meta };
        bench.home.reset_log();
        bench
    }

    /// Reads the object and compares every byte.
    async fn read(&self) {
        let bytes = whole(&*self.store, &self.meta, 0..SIZE).await;
        assert!(self.content.matches(0, &bytes), "wrong bytes");
    }

    /// GETs that each of the two saw, and what was counted: answered by the read endpoint, and not.
    fn counts(&self) -> (usize, usize, u64, u64) {
        let (answered, fallbacks) = (self.metrics.read_endpoint_requests.get(), self.metrics.read_endpoint_fallbacks.get());
        (self.near.count(Kind::Get), self.home.count(Kind::Get), answered, fallbacks)
    }

    fn retries(&self) -> u64 {
        self.metrics.retries.get()
    }
}

async fn data_comes_from_the_read_endpoint_and_everything_else_from_the_endpoint() {
    let bench = Bench::new().await;
    bench.read().await;
    bench.store.head(&bench.meta.key).await.unwrap();
    bench.store.details(&bench.meta.key).await.unwrap();
    let all = ListRequest { prefix: Key::root(), delimited: true, after: None, token: None, max_keys: 10, any_order: false };
    assert_eq!(bench.store.list(&all).await.unwrap().prefixes, [Key::from("dir/")]);
    bench.store.delete(&bench.meta.key).await.unwrap();
    assert_eq!(bench.counts(), (1, 0, 1, 0));
    let asked = |server: &S3Server| server.requests().iter().map(|request| request.kind).collect::<Vec<_>>();
    assert_eq!(asked(&bench.near), [Kind::Get]);
    assert_eq!(asked(&bench.home), [Kind::Head, Kind::Head, Kind::List, Kind::Delete]);
    // Which the server has checked: signed for its own host.
    let get: &Request = &bench.near.requests()[0];
    assert!(get.authorization.is_some() && get.if_match.as_deref() == Some(bench.meta.etag.as_str()));
}

async fn whatever_the_read_endpoint_answers_the_bytes_are_right() {
    for effect in [
        Effect::Status(503),
        Effect::Status(500),
        Effect::Status(403),
        Effect::Status(404),
        Effect::Status(412),
        Effect::Broken,
        Effect::WrongRange,
        Effect::WrongETag("\"another\"".into()),
        Effect::Delay(STALL * 4),
        Effect::Stall(0, None),
    ] {
        let is_silent = matches!(effect, Effect::Delay(_) | Effect::Stall(..));
        let bench = if is_silent { Bench::impatient().await } else { Bench::new().await };
        bench.near.fault(Fault::new(effect.clone()).kind(Kind::Get).first(2));
        bench.read().await;
        bench.read().await;
        bench.read().await;
        let (near, home, answered, fallbacks) = bench.counts();
        assert_eq!((home, answered, fallbacks), (2, 1, 2), "{effect:?}");
        // A refusal of credentials is met with others first.
        assert!((3..=4).contains(&near), "{effect:?}: {near}");
        assert_eq!(bench.retries(), 0, "{effect:?}: it is no failure of the request");
    }
}

async fn a_body_of_the_read_endpoint_that_stops_is_gone_on_with_at_the_endpoint() {
    for effect in [Effect::Truncate(100_000), Effect::Stall(100_000, None)] {
        let bench = Bench::impatient().await;
        bench.near.fault(Fault::new(effect.clone()).kind(Kind::Get));
        bench.read().await;
        let rest: Vec<_> = bench.home.of_kind(Kind::Get).into_iter().filter_map(|get| get.range).collect();
        assert_eq!((bench.counts(), rest.first()), ((1, 1, 0, 1), Some(&(100_000..SIZE))), "{effect:?}");
    }
}

async fn a_version_that_the_read_endpoint_lacks_comes_from_the_endpoint() {
    let mut bench = Bench::new().await;
    bench.content = bench.home.put_synthetic("dir/object", SIZE);
    bench.meta = bench.store.head(&bench.meta.key).await.unwrap();
    bench.read().await;
    assert_eq!(bench.counts(), (1, 1, 0, 1));
    // What neither has any more is the error of the endpoint.
    let old = ObjectMeta { etag: "\"of-long-ago\"".into(), ..bench.meta.clone() };
    let (received, result) = crate::promises::fetch(&*bench.store, &old, 0..SIZE).await;
    assert_eq!((received.len(), result.unwrap_err().kind), (0, ErrorKind::Replaced));
}

async fn a_read_endpoint_that_is_down_is_left_alone() {
    let bench = Bench::new().await;
    let metrics = Arc::new(Metrics::default());
    // A port on which nothing listens any more.
    let gone = S3Server::start().endpoint();
    let options = Options { read_endpoint: Some(gone), hedge: false, ..bench.home.store_options() };
    let store = open(&options, metrics.clone()).await.unwrap();
    for _ in 0..20 {
        let bytes = whole(&*store, &bench.meta, 0..SIZE).await;
        assert!(bench.content.matches(0, &bytes), "wrong bytes");
    }
    assert_eq!((metrics.read_endpoint_requests.get(), metrics.read_endpoint_fallbacks.get(), metrics.retries.get()), (0, 20, 0));
    assert_eq!(metrics.get_requests.get(), 25, "five were enough");
}

async fn the_endpoints_may_redirect_to_each_other_and_to_no_other_host() {
    let bench = Bench::new().await;
    bench.near.fault(Fault::new(Effect::Redirect(bench.home.endpoint())).kind(Kind::Get));
    bench.read().await;
    // That was followed: it is the read endpoint's own way to answer.
    assert_eq!(bench.counts(), (1, 1, 1, 0));
    let stranger = S3Server::start_anonymous();
    stranger.put_synthetic("dir/object", SIZE);
    let other = Bench::new().await;
    other.near.fault(Fault::new(Effect::Redirect(stranger.endpoint())).kind(Kind::Get));
    other.read().await;
    // The data comes from the endpoint instead.
    assert_eq!((stranger.requests().len(), other.counts()), (0, (1, 1, 0, 1)));
}

async fn oss_data_comes_from_the_read_endpoint_too() {
    for signature in [Signature::V4, Signature::V1, Signature::None] {
        let ((home, options), (near, near_options)) = (oss(signature).await, oss(signature).await);
        let (Server::Oss(home), Server::Oss(near)) = (home, near) else { unreachable!("they are OSS servers") };
        for server in [&home, &near] {
            server.change(|setup| {
                setup.public = signature == Signature::None;
                setup.objects = BTreeMap::from([(b"a b+c".to_vec(), vec![7; 1000])]);
            });
        }
        let metrics = Arc::new(Metrics::default());
        let options = Options { read_endpoint: near_options.endpoint, hedge: false, ..options };
        let store = open(&options, metrics.clone()).await.unwrap();
        let meta = store.head(&Key::from("a b+c")).await.unwrap();
        assert_eq!(whole(&*store, &meta, 0..1000).await, [7; 1000]);
        assert_eq!((near.counts().get, near.counts().head, home.counts().get, home.counts().head), (1, 0, 0, 1), "{signature:?}");
        // An old version there.
        home.change(|setup| drop(setup.objects.insert(b"a b+c".to_vec(), vec![8; 1000])));
        let meta = store.head(&Key::from("a b+c")).await.unwrap();
        assert_eq!(whole(&*store, &meta, 0..1000).await, [8; 1000]);
        assert_eq!((metrics.read_endpoint_requests.get(), metrics.read_endpoint_fallbacks.get()), (1, 1), "{signature:?}");
    }
}
