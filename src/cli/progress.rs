//! How far something has come, on stderr: a bar on a terminal, otherwise a line when it begins and one when it is done.
//! Says nothing of results. Invariant: whatever ends early leaves no half bar behind.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Draws a second; more would be work for nobody.
const DRAWS: u8 = 10;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Files,
}

/// Something that takes a while. Clones count together.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
    what: &'static str,
    is_plain: bool,
}

impl Progress {
    /// Begins with nothing done of `total`.
    pub fn start(what: &'static str, total: u64, unit: Unit) -> Self {
        let is_plain = !std::io::stderr().is_terminal();
        if is_plain {
            eprintln!("{what}: {}", amount(total, unit));
        }
        let target = if is_plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(DRAWS) };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style(unit)).with_message(what);
        Self { bar, what, is_plain }
    }

    /// Begins without knowing how much there is: [`report`](Self::report) tells.
    pub fn growing(what: &'static str, unit: Unit) -> Self {
        let is_plain = !std::io::stderr().is_terminal();
        let target = if is_plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(DRAWS) };
        let bar = ProgressBar::with_draw_target(Some(0), target).with_style(style(unit)).with_message(what);
        Self { bar, what, is_plain }
    }

    /// So much is done of what is known until now. Without a terminal that is a line, so not to be called often.
    pub fn report(&self, done: u64, total: u64, unit: Unit) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        if self.is_plain {
            eprintln!("{}: {} of {}", self.what, amount(done, unit), amount(total, unit));
        }
    }

    /// `n` more are done.
    pub fn add(&self, n: u64) {
        self.bar.inc(n);
    }

    /// `n` more are to be done.
    pub fn grow(&self, n: u64) {
        self.bar.inc_length(n);
    }

    /// Whoever counted says in its own words what came of it.
    pub fn clear(self) {
        self.bar.finish_and_clear();
    }

    /// All is done.
    pub fn finish(self) {
        let took = seconds(self.bar.elapsed());
        if self.is_plain {
            eprintln!("{}: done in {took}", self.what);
        } else {
            self.bar.finish();
        }
    }
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
        Unit::Bytes => "{msg:<22} [{bar:30}] {bytes:>11} of {total_bytes}, {bytes_per_sec}",
        Unit::Files => "{msg:<22} [{bar:30}] {pos:>11} of {len} files, {files_per_sec}",
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
            let bar = ProgressBar::hidden().with_style(style(unit));
            let progress = Progress { bar: bar.clone(), what: "reading", is_plain: true };
            progress.clone().add(3);
            progress.add(4);
            assert_eq!(bar.position(), 7);
            progress.finish();
        }
    }

    #[test]
    fn what_grows_shows_the_latest_report() {
        let progress = Progress { is_plain: false, ..Progress::growing("warming", Unit::Bytes) };
        progress.report(3, 10, Unit::Bytes);
        progress.report(7, 30, Unit::Bytes);
        assert_eq!((progress.bar.position(), progress.bar.length()), (7, Some(30)));
        progress.grow(5);
        assert_eq!((progress.bar.position(), progress.bar.length()), (7, Some(35)));
    }

    #[test]
    fn amounts_carry_their_unit() {
        assert_eq!(amount(512 << 20, Unit::Bytes), "512.00 MiB");
        assert_eq!(amount(3000, Unit::Files), "3000 files");
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
    }
}
