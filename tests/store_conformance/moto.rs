//! An S3 server that is not ours, as a child process on a free port of 127.0.0.1. It starts with the first trial that
//! asks for it and is killed by its process id when all trials are done.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Why there is none.
pub const ABSENT: &str = "moto_server is not on PATH: pip install 'moto[server]', or name it in WINDLASS_MOTO";

/// Python on a busy machine imports its modules for a while.
const START: Duration = Duration::from_secs(60);

pub struct Moto {
    program: Option<PathBuf>,
    running: Mutex<Option<Running>>,
}

struct Running {
    child: Child,
    endpoint: String,
}

impl Moto {
    /// The program that WINDLASS_MOTO names, else `moto_server` on PATH. One that is named and does not exist is an error
    /// of the trials, not a reason to ignore them.
    pub fn find() -> Self {
        let on_path = || {
            let path = env::var_os("PATH")?;
            env::split_paths(&path).map(|dir| dir.join("moto_server")).find(|program| program.is_file())
        };
        let named = env::var_os("WINDLASS_MOTO").filter(|name| !name.is_empty()).map(PathBuf::from);
        Self { program: named.or_else(on_path), running: Mutex::new(None) }
    }

    pub fn is_absent(&self) -> bool {
        self.program.is_none()
    }

    /// Where it answers; starts it when it does not run yet.
    pub fn endpoint(&self) -> String {
        let mut running = self.lock();
        let program = self.program.as_ref().expect("trials without a program are ignored");
        running.get_or_insert_with(|| Running::start(program)).endpoint.clone()
    }

    /// Ends the process.
    pub fn stop(&self) {
        drop(self.lock().take());
    }

    /// Whoever panicked while it was held left nothing half done.
    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn start(program: &PathBuf) -> Self {
        let mut command = Command::new(program);
        // Port 0: the kernel chooses, and the server says which it was.
        command.args(["-H", "127.0.0.1", "-p", "0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        // From here on dropping it kills the child, also when what follows panics.
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
        running.endpoint = heard.recv_timeout(START).expect("moto says where it runs");
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}
