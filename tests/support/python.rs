//! Python with what a test needs of it: that of `TEST_PYTHON` (`.ci/run` makes one with everything), else the system's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The interpreter.
pub fn path() -> PathBuf {
    std::env::var_os("TEST_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from)
}

/// Why `modules`, which are names with commas between them, cannot be imported.
pub fn lacks(modules: &str) -> Option<String> {
    let python = path();
    match Command::new(&python).args(["-c", &format!("import {modules}")]).stdin(Stdio::null()).output() {
        Err(error) => Some(format!("{}: {error}", python.display())),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Some(format!("{}: {}", python.display(), said.lines().last().unwrap_or("it fails")))
        }
    }
}

/// Runs `script` with `arguments` and returns what it prints; panics with what it said when it fails.
#[track_caller]
pub fn run(script: &str, arguments: &[&Path]) -> String {
    let output = Command::new(path()).args(["-c", script]).args(arguments).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}
