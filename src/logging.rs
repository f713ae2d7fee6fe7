//! Where log lines go and what they look like. Says nothing itself. Invariant: targets that print whole requests, and
//! with them signatures and tokens, stay at `warn` whatever the level.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing_subscriber::filter::{EnvFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// Shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

impl Format {
    /// The shape of that name: `json`, or `text`, which every other name stands for.
    pub fn named(name: &str) -> Self {
        if name == "json" { Self::Json } else { Self::Text }
    }
}

/// Options of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A level (`error` to `trace`) or a tracing filter such as `windlass::reader=debug,warn`.
    pub level: String,
    pub format: Format,
    /// File to append to, or `/dev/log` for syslog; none: stderr in the foreground, syslog as a daemon.
    pub file: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { level: "info".into(), format: Format::Text, file: None }
    }
}

/// Where lines go when no file is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// To stderr: somebody is watching.
    Foreground,
    /// To syslog, if the machine has one.
    Daemon,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot write the log file {}: {error}", .path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("log-level={0}: {1}")]
    Level(String, String),
    #[error("this process keeps no log")]
    None,
}

/// Changes what is logged.
type Reload = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

/// The log of this process.
struct Log {
    /// As it was said last.
    level: Mutex<String>,
    reload: Reload,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Mode of a log file: no umask, such as the 0 of some containers, lets other users write to it.
const LOG_MODE: u32 = 0o644;

/// Beginnings of targets that print requests with their headers at levels below `warn`.
const TALKATIVE: [&str; 10] =
    ["aws_sigv4", "aws_sdk", "aws_smithy_runtime", "aws_smithy_http", "aws_config", "aws_runtime", "reqsign", "reqwest", "hyper", "h2"];

/// The socket of syslog, which as the name of a log file stands for syslog.
const SYSLOG: &str = "/dev/log";

/// Whether anybody would read what a daemon writes to syslog.
pub fn has_syslog() -> bool {
    std::path::Path::new(SYSLOG).exists()
}

/// Whether a text is a level or a filter.
///
/// # Errors
/// What would be.
pub fn check_level(level: &str) -> Result<(), String> {
    let reason = || "must be error, warn, info, debug, trace or off, or a filter such as windlass::reader=debug,warn".to_owned();
    // tracing takes an empty text for `error`.
    if level.is_empty()
        || level.chars().any(char::is_whitespace)
        || !(level.contains(['=', ',', ':']) || level.parse::<LevelFilter>().is_ok())
    {
        return Err(reason());
    }
    filter(level).map(drop).map_err(|_| reason())
}

/// A level alone is meant for us: the crates below us stay at `warn`.
fn filter(level: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    match level.parse::<LevelFilter>() {
        Ok(plain) => EnvFilter::builder().parse(format!("{},windlass={plain}", plain.min(LevelFilter::WARN))),
        Err(_) => EnvFilter::builder().parse(level),
    }
}

/// What is logged; none without a log.
pub fn level() -> Option<String> {
    LOG.get().map(|log| log.level.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Changes what is logged, from the next line on.
///
/// # Errors
/// When that is neither a level nor a filter, or there is no log.
pub fn set_level(level: &str) -> Result<(), Error> {
    check_level(level).map_err(|reason| Error::Level(level.to_owned(), reason))?;
    let filter = filter(level).map_err(|error| Error::Level(level.to_owned(), error.to_string()))?;
    let log = LOG.get().ok_or(Error::None)?;
    (log.reload)(filter).map_err(|error| Error::Level(level.to_owned(), error.to_string()))?;
    level.clone_into(&mut log.level.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(())
}

fn to_syslog(options: &Options, filter: EnvFilter) {
    let syslog = syslog_tracing::Syslog::new(c"windlass", syslog_tracing::Options::LOG_PID, syslog_tracing::Facility::Daemon);
    // It can be taken once in a process; a second start of the log in the same process keeps the first.
    if let Some(syslog) = syslog {
        install(&options.level, filter, options.format, syslog, Look { color: false, time: false });
    }
}

/// Starts the log of the process.
///
/// # Errors
/// When the log file cannot be opened or the level is none.
pub fn init(options: &Options, attachment: Attachment) -> Result<(), Error> {
    let filter = filter(&options.level).map_err(|e| Error::Level(options.level.clone(), e.to_string()))?;
    match (&options.file, attachment) {
        (Some(path), _) if path.as_os_str() == SYSLOG => to_syslog(options, filter),
        (Some(path), _) => {
            // As other daemons do: the directory of a log is nobody's to prepare. If it fails, opening says why.
            let _ = path.parent().map(std::fs::create_dir_all);
            let opened = OpenOptions::new().create(true).append(true).mode(LOG_MODE).open(path);
            let file = opened.map_err(|error| Error::File { path: path.clone(), error })?;
            install(&options.level, filter, options.format, Mutex::new(file), Look { color: false, time: true });
        }
        (None, Attachment::Foreground) => {
            let look = Look { color: std::io::stderr().is_terminal(), time: true };
            install(&options.level, filter, options.format, std::io::stderr, look);
        }
        (None, Attachment::Daemon) => to_syslog(options, filter),
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Look {
    color: bool,
    /// syslog writes the time itself.
    time: bool,
}

fn install<W>(level: &str, filter: EnvFilter, format: Format, writer: W, look: Look)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (subscriber, reload) = subscriber(filter, format, writer, look);
    // An error means that a log is there already (tests in one process); that one goes on.
    if set_global_default(subscriber).is_ok() {
        let _ = LOG.set(Log { level: Mutex::new(level.to_owned()), reload });
    }
}

fn subscriber<W>(filter: EnvFilter, format: Format, writer: W, look: Look) -> (impl Subscriber + Send + Sync, Reload)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer).with_ansi(look.color);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match (format, look.time) {
        (Format::Text, true) => lines.boxed(),
        (Format::Text, false) => lines.without_time().boxed(),
        (Format::Json, true) => lines.json().flatten_event(true).boxed(),
        (Format::Json, false) => lines.json().flatten_event(true).without_time().boxed(),
    };
    let discreet = TALKATIVE.iter().map(|target| (*target, LevelFilter::WARN)).collect::<Targets>().with_default(LevelFilter::TRACE);
    let (filter, handle) = reload::Layer::new(filter);
    let subscriber = Registry::default().with(lines.with_filter(discreet)).with(filter);
    (subscriber, Box::new(move |filter| handle.reload(filter)))
}

/// A log in memory.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Page(std::sync::Arc<Mutex<Vec<u8>>>);

#[cfg(test)]
impl Page {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no test panics while it writes").clone()).expect("a log is text")
    }
}

#[cfg(test)]
impl std::io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no test panics while it writes").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of one talk of ours and of the crates below.
    fn written(level: &str, format: Format) -> String {
        let page = Page::default();
        let writer = page.clone();
        let look = Look { color: false, time: false };
        let (subscriber, _) = subscriber(filter(level).unwrap(), format, move || writer.clone(), look);
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(chunk = 7, "ours");
            tracing::trace!(target: "aws_sigv4::http_request", "authorization: hunter2");
            tracing::debug!(target: "hyper::proto", "x-oss-security-token: hunter2");
            tracing::warn!(target: "hyper::proto", "theirs");
        });
        page.text()
    }

    #[test]
    fn no_level_makes_the_crates_below_print_their_requests() {
        for level in ["trace", "aws_sigv4=trace,hyper=trace,windlass=debug", "aws_sigv4::http_request=trace,debug"] {
            let text = written(level, Format::Text);
            assert!(!text.contains("hunter2"), "{level}: {text}");
            assert!(text.contains("ours") && text.contains("theirs"), "{level}: {text}");
        }
    }

    #[test]
    fn json_lines_carry_fields_at_the_top() {
        let text = written("windlass=debug,off", Format::Json);
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!((&line["message"], &line["chunk"], &line["level"]), (&"ours".into(), &7.into(), &"DEBUG".into()));
    }

    #[test]
    fn levels_and_filters_are_told_from_nonsense() {
        for good in ["error", "info", "TRACE", "off", "windlass::reader=debug,warn", "warn,windlass=info"] {
            assert_eq!(check_level(good), Ok(()), "{good}");
        }
        for bad in ["loud", "", "info debug", "windlass=loud"] {
            assert!(check_level(bad).unwrap_err().contains("windlass::reader=debug"), "{bad}");
        }
    }

    #[test]
    fn another_level_holds_from_the_next_line_on() {
        let page = Page::default();
        let writer = page.clone();
        let look = Look { color: false, time: false };
        let (subscriber, reload) = subscriber(filter("info").unwrap(), Format::Text, move || writer.clone(), look);
        tracing::subscriber::with_default(subscriber, || {
            for (level, line) in [("info", "one"), ("debug", "two"), ("warn", "three"), ("trace", "four")] {
                reload(filter(level).unwrap()).unwrap();
                tracing::debug!("{line}");
                tracing::debug!(target: "hyper::proto", "x-oss-security-token: hunter2");
            }
        });
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("two") && text.contains("four") && !text.contains("one") && !text.contains("three"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }

    #[test]
    fn a_level_alone_keeps_other_crates_at_warn() {
        assert_eq!(filter("debug").unwrap().to_string(), "windlass=debug,warn");
        assert_eq!(filter("error").unwrap().to_string(), "windlass=error,error");
    }
}
