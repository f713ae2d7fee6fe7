//! The checker of the Prometheus project, where the machine has it: promtool, of the package prometheus.

use std::io::Write;
use std::process::{Command, Stdio};

/// Has promtool read a page of metrics in the text form 0.0.4. Without the program nothing is checked, and that is said.
#[track_caller]
pub fn checks(page: &str) {
    let promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut promtool) = promtool else {
        eprintln!("promtool is not installed: the page is not checked by it");
        return;
    };
    promtool.stdin.take().expect("it was piped").write_all(page.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}{page}");
}
