//! Leaves the terminal and still reports how it went. The process starts itself anew with its own arguments instead of
//! forking: a fork is only safe while there is one thread and needs unsafe code, a new start has neither condition.
//! The child's stdout is a pipe to the parent: one line `ready LINE` or `error LINE`, then /dev/null takes its place.
//! Invariant: the parent ends only after the child said one of the two, or ended.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::Failure;
use crate::started_in;

/// Names the process that waits for us. It is compared with the real parent, so that a child of ours that inherits it
/// is not mistaken for a daemon.
const PARENT: &str = "WINDLASS_DAEMON_PARENT";

/// Whether this process is the daemon that another one waits for.
pub fn is_child() -> bool {
    std::env::var(PARENT).is_ok_and(|pid| pid == parent_id().to_string())
}

/// Starts the daemon and waits for its word: the ready line, or why there is none.
pub fn spawn() -> Result<String, Failure> {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "windlass".into());
    let child = Command::new("/proc/self/exe")
        .arg0(name)
        .args(args)
        .env(PARENT, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|e| Failure::internal(format!("cannot start the daemon: {e}")))?;
    let pipe = child.stdout.take().expect("stdout was piped a few lines above");
    let mut line = String::new();
    // A pipe that breaks in the middle says as little as an empty one.
    let _ = BufReader::new(pipe).read_line(&mut line);
    outcome(&line, || wait(&mut child))
}

fn wait(child: &mut Child) -> ExitStatus {
    child.wait().unwrap_or_else(|_| ExitStatus::from_raw(1 << 8))
}

/// What the child's line, and if it failed its end, mean to the one who called us.
fn outcome(line: &str, end: impl FnOnce() -> ExitStatus) -> Result<String, Failure> {
    match line.trim_end().split_once(' ') {
        Some(("ready", line)) => Ok(line.to_owned()),
        Some(("error", message)) => {
            let code = end().code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
            Err(Failure { code: code.unwrap_or(1), message: message.to_owned() })
        }
        _ => {
            let end = end();
            let how = end.signal().map_or_else(|| format!("exit code {}", end.code().unwrap_or(1)), |signal| format!("signal {signal}"));
            Err(Failure::internal(format!("the daemon ended before the mount answered ({how}): --foreground may show why")))
        }
    }
}

/// The child leaves the session and the directory of the terminal.
pub fn leave_terminal() -> Result<(), Failure> {
    let fail = |what: &str, e: io::Error| Failure::internal(format!("cannot {what}: {e}"));
    rustix::process::setsid().map_err(|e| fail("start a session", e.into()))?;
    started_in::leave().map_err(|e| fail("leave the directory", e))
}

/// Says that the mount answers and lets go of the terminal for good. Fails when nobody waits any more.
pub fn tell_ready(line: &str) -> io::Result<()> {
    tell("ready", line)?;
    let_go()
}

/// Lets go of the stdout and stderr of who started this process, who may wait for their end.
pub fn let_go() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Says why there is no mount.
pub fn tell_error(message: &str) {
    // If the parent is gone there is nobody to tell; the exit code remains.
    let _ = tell("error", message);
}

fn tell(word: &str, line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{word} {}", line.replace('\n', " "))?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str, status: i32) -> Result<String, (u8, String)> {
        outcome(line, || ExitStatus::from_raw(status)).map_err(|failure| (failure.code, failure.message))
    }

    #[test]
    fn the_parent_ends_as_the_child_said() {
        assert_eq!(told("ready it is there\n", 0), Ok("it is there".to_owned()));
        assert_eq!(told("error no such bucket\n", 4 << 8), Err((4, "no such bucket".to_owned())));
        assert_eq!(told("error it says so and exits 0\n", 0), Err((1, "it says so and exits 0".to_owned())));
    }

    #[test]
    fn a_child_that_dies_in_silence_is_reported_with_its_end() {
        let (code, message) = told("", 9).unwrap_err();
        assert!(code == 1 && message.contains("signal 9"), "{message}");
        let (code, message) = told("thread main panicked", 101 << 8).unwrap_err();
        assert!(code == 1 && message.contains("exit code 101"), "{message}");
    }

    #[test]
    fn a_process_nobody_named_is_no_daemon() {
        assert!(!is_child());
    }
}
