//! Panics of this process: a defect is logged with its place and backtrace, and counted. Nothing is caught here: the request or task that panics
//! ends where it is caught. Invariant: each panic is logged once and counted once, on whatever thread it happens.

use std::any::Any;
use std::backtrace::Backtrace;
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Panics since [`log_panics`] was called.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Counts every panic from now on, and writes it to the log as an error. A process whose log takes no errors prints panics on stderr, as before.
/// For processes that serve; a command that runs to its end needs no backtrace.
pub fn log_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        COUNT.fetch_add(1, Ordering::Relaxed);
        if tracing::enabled!(tracing::Level::ERROR) {
            log(info);
        } else {
            before(info);
        }
    }));
}

fn log(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let (place, backtrace) = (info.location().map(ToString::to_string), Backtrace::force_capture());
    tracing::error!(thread = thread.name(), place, %backtrace, "panic, which is a defect: {}", message(info.payload()));
}

/// What a panic said: `panic!` carries text, and other values say nothing.
fn message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "it carries no text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_payloads_are_read_as_text() {
        assert_eq!(message(&"plain"), "plain");
        assert_eq!(message(&format!("number {}", 7)), "number 7");
        assert_eq!(message(&7), "it carries no text");
    }
}
