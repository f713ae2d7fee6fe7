//! An S3 server that is not ours, as a child process on a free port of 127.0.0.1. It starts with the first trial that
//! asks for it and is killed by its process id when all trials are done.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Why there is none.
pub const ABSENT: &str = "moto_server is not on PATH: pip install 'moto[server]', or name it in MOTO_SERVER";

/// Python on a busy machine imports its modules for a while.
const START: Duration = Duration::from_secs(180);

pub struct Moto {
    program: Option<PathBuf>,
    named: bool,
    /// None before the first trial asks.
    started: Mutex<Option<Result<Running, String>>>,
}

struct Running {
    child: Child,
    endpoint: String,
}

impl Moto {
    /// The program that MOTO_SERVER names, else `moto_server` on PATH.
    pub fn find() -> Self {
        let named = env::var_os("MOTO_SERVER").filter(|name| !name.is_empty()).map(PathBuf::from);
        let on_path = || {
            let path = env::var_os("PATH")?;
            env::split_paths(&path).map(|dir| dir.join("moto_server")).find(|program| program.is_file())
        };
        Self { named: named.is_some(), program: named.or_else(on_path), started: Mutex::new(None) }
    }

    pub fn is_absent(&self) -> bool {
        self.program.is_none()
    }

    pub fn is_named(&self) -> bool {
        self.named
    }

    /// Where it answers, or why it does not; starts it when nobody did yet.
    pub fn endpoint(&self) -> Result<String, String> {
        let program = self.program.as_ref().ok_or(ABSENT)?;
        let mut started = self.lock();
        started.get_or_insert_with(|| Running::start(program)).as_ref().map(|running| running.endpoint.clone()).map_err(Clone::clone)
    }

    /// Ends the process.
    pub fn stop(&self) {
        drop(self.lock().take());
    }

    /// Whoever panicked while it was held left nothing half done.
    fn lock(&self) -> MutexGuard<'_, Option<Result<Running, String>>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn start(program: &Path) -> Result<Self, String> {
        let mut command = Command::new(program);
        // Port 0: the kernel chooses, and the server says which it was.
        command.args(["-H", "127.0.0.1", "-p", "0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        // From here on dropping it kills the child, also when what follows fails.
        let mut running = Self { child, endpoint: String::new() };
        let (said, heard) = mpsc::channel();
        // It writes a line a request and must not find the pipe full; the thread ends with the process.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, url)) = line.split_once("Running on ") {
                    let _ = said.send(url.trim().to_owned()); // nobody listens after the first
                }
            }
        });
        running.endpoint = heard.recv_timeout(START).map_err(|_| format!("{} does not say where it runs", program.display()))?;
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}
