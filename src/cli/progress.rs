//! How far something has come, on stderr: on a terminal a bar for all of it and one for each file that is moved, otherwise a line when it begins,
//! one every ten seconds and one when it is done. Says nothing of results. Invariant: whatever ends early leaves no half bar behind.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;

use super::remote::line_of;
use crate::transfer::OnFile;

/// Draws a second; more would be work for nobody.
const DRAWS: u8 = 10;

/// Bars of files: with the one of all of it they fit on the smallest screen that people use, of 24 lines.
const MOST_ROWS: usize = 16;

/// Letters of a name beside its bar; its end tells more than its beginning.
const NAME: usize = 30;

/// How often a line tells how far it is where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Files,
}

/// Something that takes a while. Clones count together.
#[derive(Clone, Debug)]
pub struct Progress {
    bars: MultiProgress,
    total: ProgressBar,
    rows: Arc<AtomicUsize>,
    what: &'static str,
    unit: Unit,
    /// Where there is no terminal: when the last line was, and at how much.
    plain: Option<Arc<Mutex<(Instant, u64)>>>,
}

impl Progress {
    /// Begins with nothing done of `total`.
    pub fn start(what: &'static str, total: u64, unit: Unit) -> Self {
        let progress = Self::growing(what, unit);
        progress.total.set_length(total);
        if progress.plain.is_some() {
            eprintln!("{what}: {}", amount(total, unit));
        }
        progress
    }

    /// Begins without knowing how much there is: [`grow`](Self::grow) or [`report`](Self::report) tells.
    pub fn growing(what: &'static str, unit: Unit) -> Self {
        Self::drawn(what, unit, !std::io::stderr().is_terminal())
    }

    fn drawn(what: &'static str, unit: Unit, is_plain: bool) -> Self {
        let target = if is_plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(DRAWS) };
        let bars = MultiProgress::with_draw_target(target);
        let total = bars.add(ProgressBar::new(0).with_style(style(unit)).with_message(what));
        let plain = is_plain.then(|| Arc::new(Mutex::new((Instant::now(), 0))));
        Self { bars, total, rows: Arc::default(), what, unit, plain }
    }

    /// So much is done of what is known until now. Without a terminal that is a line, so not to be called often.
    pub fn report(&self, done: u64, total: u64, unit: Unit) {
        self.total.set_length(total);
        self.total.set_position(done);
        if self.plain.is_some() {
            eprintln!("{}: {} of {}", self.what, amount(done, unit), amount(total, unit));
        }
    }

    /// `n` more are done.
    pub fn add(&self, n: u64) {
        self.total.inc(n);
        if let Some(line) = self.plain.as_ref().and_then(|last| self.due(&mut last.lock(), Instant::now())) {
            eprintln!("{line}");
        }
    }

    /// `n` more are to be done.
    pub fn grow(&self, n: u64) {
        self.total.inc_length(n);
    }

    /// Who is told of files, each with a bar of its own while there is room on the screen.
    pub fn on_file(&self) -> OnFile {
        let progress = self.clone();
        Arc::new(move |path, bytes| {
            let (all, row) = (progress.clone(), progress.row(path, bytes));
            Arc::new(move |n| {
                all.add(n);
                row.iter().for_each(|row| row.bar.inc(n));
            })
        })
    }

    fn row(&self, path: &Path, bytes: u64) -> Option<Row> {
        let is_free = |rows: usize| (rows < MOST_ROWS).then_some(rows + 1);
        if self.plain.is_some() || self.rows.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_free).is_err() {
            return None;
        }
        let bar = ProgressBar::new(bytes).with_style(style(Unit::Bytes)).with_message(shortened(path));
        Some(Row { bar: self.bars.insert_before(&self.total, bar), bars: self.bars.clone(), rows: Arc::clone(&self.rows) })
    }

    /// Lets `say` write a line that no bar runs through.
    pub fn aside<T>(&self, say: impl FnOnce() -> T) -> T {
        self.bars.suspend(say)
    }

    /// Whoever counted says in its own words what came of it.
    pub fn clear(self) {
        self.total.finish_and_clear();
    }

    /// All is done.
    pub fn finish(self) {
        let took = seconds(self.total.elapsed());
        if self.plain.is_some() {
            eprintln!("{}: done in {took}", self.what);
        } else {
            self.total.finish();
        }
    }

    /// What the next line says, once it is time for it.
    fn due(&self, last: &mut (Instant, u64), now: Instant) -> Option<String> {
        let (since, done) = (now.saturating_duration_since(last.0), self.total.position());
        if since < LINE_EVERY {
            return None;
        }
        let rate = done.saturating_sub(last.1) / since.as_secs();
        *last = (now, done);
        let total = self.total.length().unwrap_or(done);
        let left = total.saturating_sub(done).checked_div(rate).map_or_else(String::new, |left| format!(", {left} s left"));
        let (done, total, rate) = (amount(done, self.unit), amount(total, self.unit), amount(rate, self.unit));
        Some(format!("{}: {done} of {total}, {rate}/s{left}", self.what))
    }
}

/// The bar of a file, for as long as that is moved.
struct Row {
    bar: ProgressBar,
    bars: MultiProgress,
    rows: Arc<AtomicUsize>,
}

impl Drop for Row {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        self.bars.remove(&self.bar);
        self.rows.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The end of a name, on its line.
fn shortened(path: &Path) -> String {
    let name = line_of(path.as_os_str().as_encoded_bytes());
    let letters = name.chars().count();
    if letters <= NAME { name } else { format!("...{}", name.chars().skip(letters - NAME + 3).collect::<String>()) }
}

/// A length of time for people.
fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn amount(total: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => HumanBytes(total).to_string(),
        Unit::Files => format!("{total} files"),
    }
}

fn style(unit: Unit) -> ProgressStyle {
    let template = match unit {
        Unit::Bytes => "{msg:<30} [{bar:20}] {bytes:>11} of {total_bytes}, {bytes_per_sec}, {eta} left",
        Unit::Files => "{msg:<30} [{bar:20}] {pos:>11} of {len} files, {files_per_sec}, {eta} left",
    };
    let style = ProgressStyle::with_template(template).expect("the template is a constant that the tests parse");
    // indicatif's own shows four decimals.
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        let _ = write!(out, "{:.0}/s", state.per_sec());
    };
    style.with_key("files_per_sec", rate).progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_templates_are_understood_and_clones_count_together() {
        for unit in [Unit::Bytes, Unit::Files] {
            let progress = Progress::drawn("reading", unit, true);
            progress.clone().add(3);
            progress.add(4);
            assert_eq!(progress.total.position(), 7);
            progress.finish();
        }
    }

    #[test]
    fn what_grows_shows_the_latest_report() {
        let progress = Progress { plain: None, ..Progress::drawn("warming", Unit::Bytes, true) };
        progress.report(3, 10, Unit::Bytes);
        progress.report(7, 30, Unit::Bytes);
        assert_eq!((progress.total.position(), progress.total.length()), (7, Some(30)));
        progress.grow(5);
        assert_eq!((progress.total.position(), progress.total.length()), (7, Some(35)));
    }

    #[test]
    fn files_have_a_bar_each_while_the_screen_has_room() {
        let progress = Progress { plain: None, ..Progress::drawn("fetching", Unit::Bytes, true) };
        let begin = progress.on_file();
        let mut files: Vec<_> = (0..MOST_ROWS + 3).map(|n| begin(Path::new(&n.to_string()), 10)).collect();
        files.iter().for_each(|file| file(5));
        assert_eq!((progress.total.position(), progress.rows.load(Ordering::Relaxed)), (5 * files.len() as u64, MOST_ROWS));
        files.clear();
        assert_eq!(progress.rows.load(Ordering::Relaxed), 0);
        assert!(progress.row(Path::new("next"), 1).is_some());
    }

    #[test]
    fn without_a_terminal_a_line_comes_every_ten_seconds() {
        let progress = Progress::drawn("fetching", Unit::Bytes, true);
        let (began, mib) = (Instant::now(), 1 << 20);
        let mut last = (began, 0);
        progress.grow(100 * mib);
        progress.add(20 * mib);
        assert_eq!(progress.due(&mut last, began + Duration::from_secs(9)), None);
        let first = progress.due(&mut last, began + Duration::from_secs(10));
        assert_eq!(first.as_deref(), Some("fetching: 20.00 MiB of 100.00 MiB, 2.00 MiB/s, 40 s left"));
        assert_eq!(progress.due(&mut last, began + Duration::from_secs(19)), None);
        let stalled = progress.due(&mut last, began + Duration::from_secs(20));
        assert_eq!(stalled.as_deref(), Some("fetching: 20.00 MiB of 100.00 MiB, 0 B/s"));
    }

    #[test]
    fn amounts_and_names_are_for_people() {
        assert_eq!(amount(512 << 20, Unit::Bytes), "512.00 MiB");
        assert_eq!(amount(3000, Unit::Files), "3000 files");
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(shortened(Path::new("a/b\n")), "a/b\\n");
        assert_eq!(shortened(Path::new(&format!("{}end", "x/".repeat(50)))), format!("...{}end", "x/".repeat(12)));
    }
}
