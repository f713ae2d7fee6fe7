//! The simulated store under a paused clock: time is virtual, so it is asserted exactly.

use futures::future::join_all;
use tokio::time::Instant;

use super::*;

/// A sink that keeps everything and offers little room at a time.
struct Collect {
    buf: Vec<u8>,
    done: usize,
    step: usize,
}

impl Collect {
    fn new(len: u64, step: usize) -> Self {
        Self { buf: vec![0; len as usize], done: 0, step }
    }
}

impl RangeSink for Collect {
    fn spare(&mut self) -> &mut [u8] {
        let end = self.buf.len().min(self.done + self.step);
        &mut self.buf[self.done..end]
    }

    fn advance(&mut self, n: usize) {
        self.done += n;
    }
}

async fn get(store: &Memory, key: &str, range: std::ops::Range<u64>) -> (Result<()>, Collect) {
    let etag = store.meta(key).map_or_else(|| ETag::from("\"none\""), |meta| meta.etag);
    get_version(store, key, range, etag).await
}

async fn get_version(store: &Memory, key: &str, range: std::ops::Range<u64>, etag: ETag) -> (Result<()>, Collect) {
    let mut sink = Collect::new(range.end - range.start, 10_000);
    let request = RangeRequest { key: key.into(), range, etag };
    (store.get_range(&request, &mut sink).await, sink)
}

fn slow() -> Plan {
    Plan {
        first_byte: Latency::Fixed(Duration::from_millis(20)),
        bandwidth: Bandwidth { per_connection: Some(100 << 20), total: None },
        ..Plan::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_get_takes_latency_plus_size_over_bandwidth() {
    let store = Memory::new(slow());
    store.put_synthetic("a", 1 << 30);
    let start = Instant::now();
    let (answer, sink) = get(&store, "a", 5..5 + (100 << 20)).await;
    answer.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(1020));
    assert!(store.synthetic("a").unwrap().matches(5, &sink.buf));
}

#[tokio::test(start_paused = true)]
async fn a_shared_link_bounds_all_connections_together() {
    let store = Memory::new(Plan { bandwidth: Bandwidth { per_connection: Some(100 << 20), total: Some(200 << 20) }, ..slow() });
    store.put_synthetic("a", 1 << 30);
    let start = Instant::now();
    let gets = (0..8).map(|i| get(&store, "a", (i * (50 << 20))..((i + 1) * (50 << 20))));
    assert!(join_all(gets).await.iter().all(|(answer, _)| answer.is_ok()));
    // The last piece of the last connection has the link to itself and cannot use all of it.
    assert!((Duration::from_millis(2020)..=Duration::from_millis(2021)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(store.max_in_flight(), 8);
    assert_eq!(store.delivered_bytes(), 400 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_get_is_cancelled_and_its_front_was_delivered() {
    let store = Memory::new(slow());
    store.put_synthetic("a", 100 << 20);
    let wait = Duration::from_millis(520);
    assert!(tokio::time::timeout(wait, get(&store, "a", 0..100 << 20)).await.is_err());
    let request = &store.requests()[0];
    assert_eq!(request.outcome, Outcome::Cancelled);
    assert!((49 << 20..=50 << 20).contains(&request.delivered), "{}", request.delivered);
    assert_eq!(store.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn faults_hit_the_requests_they_were_planned_for() {
    let store = Memory::default();
    store.put("a", vec![1; 200_000]);
    store.fault(Rule::new(Fault::Error(ErrorKind::Throttled)).op(Op::Get).nth(1));
    store.fault(Rule::new(Fault::Truncate { after: 100_001 }).op(Op::Get).nth(2));
    store.fault(Rule::new(Fault::Stall { after: 7, pause: Duration::from_secs(9) }).op(Op::Get).nth(3));
    assert_eq!(get(&store, "a", 0..200_000).await.0.unwrap_err().kind, ErrorKind::Throttled);
    let (answer, sink) = get(&store, "a", 0..200_000).await;
    assert_eq!((answer.unwrap_err().kind, sink.done), (ErrorKind::Corrupt, 100_001));
    let start = Instant::now();
    get(&store, "a", 0..200_000).await.0.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(9));
    assert_eq!(store.count(Op::Get), 3);
    store.head(&"a".into()).await.unwrap();
    store.clear_faults();
    store.reset_log();
    assert_eq!(store.requests().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_object_replaced_in_the_middle_is_served_to_its_end_and_then_refused() {
    let store = Memory::default();
    let etag = store.put_synthetic("a", 300_000);
    let old = store.synthetic("a").unwrap();
    store.fault(Rule::new(Fault::Replace { after: 70_000 }).op(Op::Get).nth(1));
    let (answer, sink) = get_version(&store, "a", 0..300_000, etag.clone()).await;
    answer.unwrap();
    assert!(old.matches(0, &sink.buf));
    assert_eq!(get_version(&store, "a", 0..1, etag).await.0.unwrap_err().kind, ErrorKind::Replaced);
    let (answer, sink) = get(&store, "a", 0..300_000).await;
    answer.unwrap();
    assert!(!old.matches(0, &sink.buf) && store.synthetic("a").unwrap().matches(0, &sink.buf));
}

#[tokio::test]
async fn missing_objects_and_ranges_outside_are_told_apart() {
    let store = Memory::default();
    assert_eq!(store.head(&"a".into()).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(get(&store, "a", 0..1).await.0.unwrap_err().kind, ErrorKind::NotFound);
    store.put("a", "12345");
    assert_eq!(get(&store, "a", 0..6).await.0.unwrap_err().kind, ErrorKind::RangeNotSatisfiable);
    assert!(store.delete("a") && !store.delete("a"));
}

#[tokio::test]
async fn a_directory_of_a_million_keys_beside_others_is_one_page_of_work() {
    let store = Memory::default();
    for i in 0..1_000_000 {
        store.put_synthetic(format!("big/{i:07}"), 1);
    }
    store.put("a", "");
    store.put("z", "");
    let request = ListRequest { prefix: Key::root(), delimited: true, after: None, token: None, max_keys: 1000, any_order: false };
    let page = store.list(&request).await.unwrap();
    let names: Vec<String> = page.objects.iter().map(|o| o.key.to_string()).collect();
    assert_eq!((names, page.prefixes, page.next), (vec!["a".into(), "z".into()], vec![Key::from("big/")], None));
    let (mut token, mut keys) = (None, 0);
    loop {
        let page = store
            .list(&ListRequest { prefix: "big/".into(), delimited: true, after: None, token, max_keys: 1000, any_order: false })
            .await
            .unwrap();
        keys += page.objects.len();
        token = page.next;
        if token.is_none() {
            break;
        }
    }
    assert_eq!((keys, store.count(Op::List)), (1_000_000, 1001));
}

#[tokio::test(start_paused = true)]
async fn a_held_request_waits_where_it_was_said_and_the_next_passes() {
    let store = Memory::default();
    let put = |content: &'static str| {
        let (store, body) = (store.clone(), Bytes::from_static(content.as_bytes()));
        let request = PutRequest { key: "a".into(), body, headers: Headers::default(), condition: Condition::Any };
        tokio::spawn(async move { ObjectStore::put(&store, &request).await })
    };
    let mut before = store.hold(Op::Put, "a");
    let first = put("first");
    before.reached().await;
    assert_eq!(store.content("a"), None);
    put("second").await.unwrap().unwrap();
    assert!(store.content("a").unwrap() == "second" && !first.is_finished());
    before.release();
    first.await.unwrap().unwrap();
    assert_eq!(store.content("a").unwrap(), "first");
    let mut after = store.hold_answer(Op::Put, "a");
    let third = put("third");
    after.reached().await;
    assert!(store.content("a").unwrap() == "third" && !third.is_finished());
    drop(after);
    third.await.unwrap().unwrap();
    let (etag, taken) = (store.meta("a").unwrap().etag, store.take("a").unwrap());
    assert_eq!(store.meta("a"), None);
    store.put_back(taken);
    assert_eq!(store.meta("a").unwrap().etag, etag);
}
