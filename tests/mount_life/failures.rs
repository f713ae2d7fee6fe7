//! Defects and descriptors that fail: what becomes of one request, and of the mount.

use std::fmt;
use std::fs;
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use windlass::config::{Input, Settings};
use windlass::{mount, panics};

use super::support::mounts::{Daemon, no_filter, trial, trial_unless};
use super::support::{BUCKET, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("panicking_requests_get_eio_and_the_mount_goes_on", panicking_requests),
        trial_unless(no_filter, "mount_that_cannot_read_requests_ends_with_an_error", unreadable),
    ]
}

/// Lines of the log of this process. One that shows the request for the name `breaks` panics, on the thread and in the middle of that request.
#[derive(Clone, Default)]
struct Breaking(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

impl<S: Subscriber> Layer<S> for Breaking {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        let breaks = line.0.contains("Lookup { name: \"breaks\" }");
        self.0.lock().expect("nothing panics under it").push(line.0);
        assert!(!breaks, "the name breaks");
    }
}

fn panicking_requests() {
    const TIMES: usize = 40;
    let server = S3Server::start();
    server.put("file", "content");
    let log = Breaking::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(log.clone())).expect("no trial before has a log");
    panics::log_panics();
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let places = vec![format!("s3://{BUCKET}").into(), home.path().into()];
    let mut settings = Settings::gather(&Input { places, ..Input::default() }).expect("they are right");
    settings.store = server.store_options();
    let mounted = mount::start(&settings).expect("it mounts");
    // More than it has threads.
    for _ in 0..TIMES {
        let error = fs::metadata(home.path().join("breaks")).expect_err("the request panics");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(fs::read(home.path().join("file")).expect("the mount goes on"), b"content");
    let stats = fs::read(home.path().join(".windlass/stats")).expect("the mount shows it");
    let stats: Value = serde_json::from_slice(&stats).expect("it is JSON");
    assert_eq!(stats["counters"]["panics"], TIMES);
    mounted.unmount().expect("all of it is read");
    let _ = std::panic::take_hook();
    let log = log.0.lock().expect("nothing panics under it");
    let panics: Vec<&String> = log.iter().filter(|line| line.starts_with("ERROR") && line.contains("the name breaks")).collect();
    assert_eq!(panics.len(), TIMES);
    for line in panics {
        assert!(line.contains("thread=\"fuse-") && line.contains("failures.rs:") && line.contains("windlass::fuse::session"), "{line}");
    }
}

fn unreadable() {
    let server = S3Server::start();
    let mut mount = Daemon::new(&server).unreadable().start();
    let path = mount.join("large");
    // It ends when the mount does.
    let writer = std::thread::spawn(move || fs::write(path, vec![7; 8 << 20]));
    let code = mount.wait().code();
    // Of a file of which a write was refused nothing is stored, and the file is named.
    let is_named = mount.log().contains("was written and is not in the bucket key=large");
    assert_eq!(code, Some(if is_named { 5 } else { 1 }), "{}", mount.log());
    assert!(!mount.is_mounted());
    writer.join().expect("it does not panic").expect_err("it is not all written");
    let log = mount.log();
    let last = log.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("windlass: the mount at ") && last.contains("cannot read requests of the kernel: Input/output error"),
        "{log}"
    );
}
