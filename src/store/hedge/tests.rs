//! Slow GETs over the simulated store on a paused clock: what is asked for twice, and when the bytes are there.

use super::super::ErrorKind;
use super::times::ONE_IN;
use super::*;
use crate::store::Op;
use crate::store::memory::{Bandwidth, Fault, Latency, Memory, Plan, Rule};
use crate::store::whole::Whole;

const LEN: u64 = 128 << 10;
const LATENCY: Duration = Duration::from_millis(20);

struct Sim {
    store: Memory,
    hedging: Hedging,
    metrics: Arc<Metrics>,
}

impl Sim {
    /// A store that was read enough to know how fast it is, and to be allowed some extra requests.
    async fn warm(gets: usize) -> Self {
        let bandwidth = Bandwidth { per_connection: Some(100_000_000), total: None };
        let store = Memory::new(Plan { first_byte: Latency::Fixed(LATENCY), bandwidth, seed: 1 });
        store.put_synthetic("k", 64 << 20);
        let metrics = Arc::new(Metrics::default());
        let sim = Self { hedging: Hedging::new(Arc::new(store.clone()), Arc::clone(&metrics)), store, metrics };
        for _ in 0..gets {
            sim.get().await.unwrap();
        }
        sim
    }

    /// Fetches one range, compares it with what the store has and returns how long it took.
    async fn get(&self) -> Result<Duration> {
        self.get_of(LEN).await
    }

    async fn get_of(&self, len: u64) -> Result<Duration> {
        let started = Instant::now();
        let mut sink = Whole::new(len);
        let meta = self.store.meta("k").unwrap();
        let request = RangeRequest { key: meta.key, range: 0..len, etag: meta.etag };
        self.hedging.get_range(&request, &mut sink).await?;
        assert_eq!(sink.filled, len as usize);
        assert!(self.store.synthetic("k").unwrap().matches(0, &sink.content));
        Ok(started.elapsed())
    }

    fn stall(&self, nth: usize, after: u64, pause: Duration) {
        self.store.fault(Rule::new(Fault::Stall { after, pause }).op(Op::Get).nth(nth));
    }

    fn gets(&self) -> usize {
        self.store.count(Op::Get)
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_first_byte_is_overtaken_after_fifty_milliseconds() {
    let sim = Sim::warm(100).await;
    let usual = sim.get().await.unwrap();
    sim.stall(1, 0, Duration::from_secs(1));
    assert_eq!(sim.get().await.unwrap(), SOONEST + usual);
    assert_eq!((sim.gets(), sim.metrics.hedged_requests.get()), (103, 1));
}

#[tokio::test(start_paused = true)]
async fn the_first_one_may_still_win() {
    let sim = Sim::warm(100).await;
    let usual = sim.get().await.unwrap();
    sim.stall(1, 0, Duration::from_millis(35));
    sim.stall(2, 0, Duration::from_secs(9));
    assert_eq!(sim.get().await.unwrap(), usual + Duration::from_millis(35));
    assert_eq!(sim.metrics.hedged_requests.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_not_early_where_all_are_late() {
    let sim = Sim::warm(0).await;
    sim.store.set_plan(Plan { first_byte: Latency::Fixed(Duration::from_millis(400)), ..Plan::default() });
    for _ in 0..200 {
        sim.get().await.unwrap();
    }
    assert_eq!(sim.metrics.hedged_requests.get(), 0);
}

/// With the slowest of 64 taken for their 99th percentile, a slow one among the first had no other one helped for as long
/// as slow ones came.
#[tokio::test(start_paused = true)]
async fn slow_ones_among_the_first_do_not_make_the_later_ones_usual() {
    let sim = Sim::warm(0).await;
    for nth in [3, 40, 120] {
        sim.stall(nth, 0, Duration::from_secs(1));
    }
    for n in 1..=400 {
        let took = sim.get().await.unwrap();
        assert!(took < Duration::from_millis(100) || n < 50, "GET {n} took {took:?}");
    }
    assert_eq!(sim.metrics.hedged_requests.get(), 1);
}

/// What was asked for first is helped too: once others have told what is late, and enough were sent to allow one more.
#[tokio::test(start_paused = true)]
async fn a_slow_one_is_helped_as_soon_as_that_is_known_and_allowed() {
    let sim = Sim::warm(0).await;
    sim.stall(1, 0, Duration::from_secs(10));
    let others = async {
        let usual = sim.get().await.unwrap();
        for _ in 1..60 {
            assert_eq!(sim.get().await.unwrap(), usual);
        }
        usual
    };
    let (slow, usual) = tokio::join!(sim.get(), others);
    // The fiftieth GET of all is the forty-ninth of the others; it is looked every fifty milliseconds.
    let allowed = usual * (ONE_IN as u32 - 2);
    let looked = SOONEST * u32::try_from(allowed.as_millis().div_ceil(SOONEST.as_millis())).unwrap();
    assert_eq!(slow.unwrap(), looked + usual);
    assert_eq!(sim.metrics.hedged_requests.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_first_of_another_size_are_late_when_others_would_be() {
    let sim = Sim::warm(100).await;
    let usual = sim.get_of(8 << 20).await.unwrap();
    sim.stall(1, 0, Duration::from_secs(1));
    assert_eq!(sim.get_of(8 << 20).await.unwrap(), SOONEST + usual);
}

#[tokio::test(start_paused = true)]
async fn at_most_one_request_in_fifty_is_an_extra_one() {
    let sim = Sim::warm(1000).await;
    sim.store.fault(Rule::new(Fault::Stall { after: 0, pause: Duration::from_millis(500) }).op(Op::Get));
    for _ in 0..100 {
        sim.get().await.unwrap();
    }
    // Twenty were saved up; by the time of the next one all are late, which makes none of them late.
    assert_eq!(sim.metrics.hedged_requests.get(), 1000 / ONE_IN);
}

#[tokio::test(start_paused = true)]
async fn nothing_extra_is_sent_while_the_store_asks_to_slow_down() {
    let sim = Sim::warm(100).await;
    sim.store.fault(Rule::new(Fault::Error(ErrorKind::Throttled)).op(Op::Get).nth(1));
    assert_eq!(sim.get().await.unwrap_err().kind, ErrorKind::Throttled);
    sim.stall(1, 0, Duration::from_secs(1));
    assert!(sim.get().await.unwrap() > Duration::from_secs(1));
    tokio::time::advance(QUIET).await;
    sim.stall(1, 0, Duration::from_secs(1));
    assert!(sim.get().await.unwrap() < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_is_left_behind_and_goes_on_elsewhere() {
    let sim = Sim::warm(100).await;
    sim.stall(1, 70_000, Duration::from_secs(60));
    let took = sim.get().await.unwrap();
    assert!(took > SOONEST_LEFT && took < SOONEST_LEFT + LATENCY * 2, "{took:?}");
    let last = sim.store.requests().pop().unwrap();
    assert_eq!(last.range, Some(70_000..LEN));
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_when_nobody_is_left_to_win() {
    let sim = Sim::warm(100).await;
    sim.stall(1, 0, Duration::from_secs(1));
    sim.store.fault(Rule::new(Fault::Error(ErrorKind::Unavailable)).op(Op::Get).nth(2));
    // The second one fails, the first one delivers.
    assert!(sim.get().await.unwrap() > Duration::from_secs(1));
    sim.store.clear_faults();
    sim.store.fault(Rule::new(Fault::Error(ErrorKind::Unavailable)).op(Op::Get));
    assert_eq!(sim.get().await.unwrap_err().kind, ErrorKind::Unavailable);
}

/// Tells the next page's token long before it has the page.
#[derive(Debug)]
struct Early;

#[async_trait]
impl ObjectStore for Early {
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        Err(crate::store::Error::new(ErrorKind::NotFound, Op::Head, key, "nothing here"))
    }

    async fn list(&self, _: &ListRequest) -> Result<ListPage> {
        Ok(ListPage::default())
    }

    async fn list_telling(&self, _: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        tell("early");
        Ok(ListPage::default())
    }

    async fn get_range(&self, _: &RangeRequest, _: &mut dyn RangeSink) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn what_a_listing_tells_early_passes_through() {
    let hedging = Hedging::new(Arc::new(Early), Arc::default());
    let told = Mutex::new(Vec::new());
    let request = ListRequest { prefix: Key::root(), delimited: true, after: None, token: None, max_keys: 1, any_order: false };
    hedging.list_telling(&request, &|token| told.lock().push(token.to_owned())).await.unwrap();
    assert_eq!(*told.lock(), ["early"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_switched_off_sends_nothing_extra_until_it_is_switched_on() {
    let mut sim = Sim::warm(100).await;
    let switches = Switches::new(false);
    sim.hedging = sim.hedging.switched(switches.clone());
    sim.stall(1, 0, Duration::from_secs(1));
    assert!(sim.get().await.unwrap() >= Duration::from_secs(1));
    assert_eq!((sim.gets(), sim.metrics.hedged_requests.get()), (101, 0));
    switches.set_hedge(true);
    sim.stall(1, 0, Duration::from_secs(1));
    assert!(sim.get().await.unwrap() < Duration::from_secs(1));
    assert_eq!((sim.gets(), sim.metrics.hedged_requests.get()), (103, 1));
}
