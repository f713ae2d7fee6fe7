//! The task that looks after a source, on a stepped clock.

use std::collections::VecDeque;
use std::fs;

use super::*;

/// Gives out one answer after the other, and the last one for ever.
#[derive(Clone, Debug)]
struct Script(Arc<Mutex<Played>>);

#[derive(Debug)]
struct Played {
    answers: VecDeque<Result<Keys, Missing>>,
    asked: usize,
    takes: Duration,
    files: Vec<PathBuf>,
}

impl Script {
    fn of(answers: impl IntoIterator<Item = Result<Keys, Missing>>) -> Self {
        Self(Arc::new(Mutex::new(Played { answers: answers.into_iter().collect(), asked: 0, takes: Duration::ZERO, files: Vec::new() })))
    }

    fn asked(&self) -> usize {
        self.0.lock().asked
    }
}

#[async_trait]
impl Source for Script {
    async fn fetch(&self) -> Result<Keys, Missing> {
        let takes = self.0.lock().takes;
        tokio::time::sleep(takes).await;
        let mut played = self.0.lock();
        played.asked += 1;
        if played.answers.len() > 1 { played.answers.pop_front().unwrap() } else { played.answers[0].clone() }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.0.lock().files.clone()
    }
}

fn keys(id: &str, lives: Option<Duration>) -> Result<Keys, Missing> {
    let expires = lives.map(|life| SystemTime::now() + life);
    Ok(Keys { id: id.into(), secret: "s".into(), token: None, expires, from: "a test".into() })
}

const HOUR: Duration = Duration::from_secs(3600);

/// What signs now, let in.
async fn signs(rotating: &Arc<Rotating>) -> String {
    let signing = rotating.keys().await.unwrap();
    assert!(!rotating.again(&mut Attempts::new(&StoreClock::default()), signing.edition, None).await);
    signing.keys.id.clone()
}

fn refusal(kind: ErrorKind) -> Error {
    Error::new(kind, Op::Get, &Key::from("k"), "no")
}

#[tokio::test(start_paused = true)]
async fn keys_are_replaced_in_the_background_before_they_expire() {
    let script = Script::of([keys("a", Some(HOUR)), keys("b", None)]);
    let rotating = Rotating::new(Box::new(script.clone()));
    for _ in 0..3 {
        assert_eq!(signs(&rotating).await, "a");
    }
    assert_eq!(script.asked(), 1);
    // A source that hangs is nobody's business but the background's.
    script.0.lock().takes = ANSWER * 2;
    tokio::time::sleep(HOUR - Duration::from_secs(290)).await;
    let before = Instant::now();
    assert_eq!(signs(&rotating).await, "a");
    assert_eq!(before.elapsed(), Duration::ZERO);
    script.0.lock().takes = Duration::from_secs(3);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((signs(&rotating).await, script.asked()), ("b".into(), 2));
}

#[tokio::test(start_paused = true)]
async fn many_who_need_keys_at_once_ask_once() {
    let script = Script::of([keys("a", None)]);
    script.0.lock().takes = Duration::from_secs(1);
    let rotating = Rotating::new(Box::new(script.clone()));
    let all = futures::future::join_all((0..16).map(|_| signs(&rotating))).await;
    assert!(all.iter().all(|id| id == "a") && script.asked() == 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_is_sent_again_only_with_other_keys() {
    let script = Script::of([keys("a", None), keys("b", None)]);
    let rotating = Rotating::new(Box::new(script.clone()));
    let old = rotating.keys().await.unwrap().edition;
    tokio::time::advance(Duration::from_secs(1)).await;
    let mut attempts = Attempts::new(&StoreClock::default());
    assert!(rotating.again(&mut attempts, old, Some(&refusal(ErrorKind::BadCredentials))).await);
    let new = rotating.keys().await.unwrap();
    assert_eq!(new.keys.id, "b");
    assert!(!rotating.again(&mut attempts, new.edition, Some(&refusal(ErrorKind::BadCredentials))).await, "the source has no others");
    assert!(!rotating.again(&mut Attempts::new(&StoreClock::default()), new.edition, Some(&refusal(ErrorKind::NotFound))).await);
    assert_eq!(script.asked(), 2);
}

#[tokio::test]
async fn a_changed_file_is_noticed_and_nobody_asks_while_none_changes() {
    let dir = tempfile::tempdir().unwrap();
    let script = Script::of([keys("a", None), keys("b", None)]);
    script.0.lock().files = vec![dir.path().to_owned()];
    let rotating = Rotating::new(Box::new(script.clone()));
    assert_eq!(signs(&rotating).await, "a");
    rotating.on_tick().await;
    rotating.on_tick().await;
    assert_eq!(script.asked(), 1);
    fs::write(dir.path().join("AccessKeyId"), "b").unwrap();
    rotating.on_tick().await;
    assert_eq!((signs(&rotating).await, script.asked()), ("b".into(), 2));
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_those_who_sign() {
    let script = Script::of([keys("a", Some(HOUR))]);
    let rotating = Rotating::new(Box::new(script.clone()));
    signs(&rotating).await;
    drop(rotating);
    tokio::time::sleep(HOUR * 2).await;
    assert_eq!((script.asked(), Arc::strong_count(&script.0)), (1, 1));
}

#[tokio::test]
async fn given_keys_need_no_task() {
    let given = Keys { id: "a".into(), secret: "top-secret".into(), token: None, expires: None, from: "a test".into() };
    assert!(!format!("{given:?}").contains("top-secret"));
    let rotating = Rotating::new(Box::new(given));
    assert_eq!(signs(&rotating).await, "a");
    assert!(rotating.keeper.lock().is_none());
}
