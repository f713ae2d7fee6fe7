//! Python with what a test needs of it: that of `TEST_PYTHON` (`.ci/run` makes one with everything), else the system's.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A Python that can import `modules`, which are names with commas between them; or what is missing.
pub fn with(modules: &str) -> Result<PathBuf, String> {
    let python = std::env::var_os("TEST_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let import = Command::new(&python).args(["-c", &format!("import {modules}")]).stdin(Stdio::null()).output();
    match import {
        Err(error) => Err(format!("{}: {error}", python.display())),
        Ok(output) if output.status.success() => Ok(python),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{}: {}", python.display(), said.lines().last().unwrap_or("it fails")))
        }
    }
}

/// Runs `script` with `arguments` and returns what it prints; panics with what it said when it fails.
#[track_caller]
pub fn run(modules: &str, script: &str, arguments: &[&std::path::Path]) -> String {
    let python = with(modules).expect("it was there a moment ago");
    let output = Command::new(python).args(["-c", script]).args(arguments).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}
