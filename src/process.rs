//! A child process as the target of signals. Invariant: a signal reaches the process that was started, or none: once a child has been waited for, the kernel may
//! give its number to another process.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// See the module.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    /// None where the kernel gives none: before Linux 5.3, or under a seccomp profile that does not know the call. There the number has to do.
    descriptor: Option<OwnedFd>,
}

impl Process {
    /// Opens the child `pid`, which has not been waited for yet: until then its number is its own.
    ///
    /// # Errors
    /// What pidfd_open(2) says.
    pub fn of_child(pid: Pid) -> io::Result<Self> {
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Some(descriptor),
            Err(Errno::NOSYS | Errno::PERM) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { pid, descriptor })
    }

    /// Starts a program. No process is left on an error.
    ///
    /// # Errors
    /// When there is no process or descriptor to be had.
    pub fn spawn(command: &mut Command) -> io::Result<(Child, Self)> {
        let mut child = command.spawn()?;
        match Self::of_child(Pid::from_child(&child)) {
            Ok(process) => Ok((child, process)),
            Err(error) => {
                child.kill().and_then(|()| child.wait().map(drop))?;
                Err(error)
            }
        }
    }

    /// The number that it has, or had.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal. A process that has ended needs none.
    ///
    /// # Errors
    /// What pidfd_send_signal(2) says.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        let sent = match &self.descriptor {
            Some(descriptor) => pidfd_send_signal(descriptor, signal),
            None => kill_process(self.pid, signal),
        };
        match sent {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;

    use super::*;

    fn echo() -> (Child, Process) {
        Process::spawn(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap()
    }

    /// What `cat` makes of a line: nothing once it has been killed, also when it has not noticed yet.
    fn answer(child: &mut Child) -> String {
        let mut line = String::new();
        // The write fails when the process is gone already, which the read shows as well.
        let _ = child.stdin.as_mut().unwrap().write_all(b"here\n");
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A process with the number of one that has been reaped. None while another process has it.
    ///
    /// # Errors
    /// Where the test may not choose numbers: that takes root.
    fn with_the_number_of(pid: Pid) -> io::Result<Option<Child>> {
        let last = (pid.as_raw_nonzero().get() - 1).to_string();
        // Another test may start a process between the two lines.
        for _ in 0..100 {
            fs::write("/proc/sys/kernel/ns_last_pid", &last)?;
            let (child, process) = echo();
            if process.pid() == pid {
                return Ok(Some(child));
            }
            end(child);
        }
        Ok(None)
    }

    #[test]
    fn signal_reaches_the_process_that_was_started() {
        use std::os::unix::process::ExitStatusExt;
        let (mut child, process) = echo();
        process.send(Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }

    #[test]
    fn signal_after_the_end_does_not_reach_a_process_with_the_same_number() {
        for _ in 0..20 {
            let (child, process) = echo();
            end(child);
            process.send(Signal::KILL).unwrap();
            let Ok(found) = with_the_number_of(process.pid()) else { return };
            if let Some(mut other) = found {
                process.send(Signal::KILL).unwrap();
                assert_eq!(answer(&mut other), "here\n");
                return end(other);
            }
        }
        panic!("no number is given out again");
    }
}
