//! S3 servers that others wrote, each as a child process on a free port of 127.0.0.1. One starts with the first trial that asks for it and
//! is killed by its process id when all trials are done.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{ACCESS_KEY, SECRET_KEY};

/// Python on a busy machine imports its modules for a while.
const START: Duration = Duration::from_secs(180);

/// How often is looked whether it answers.
const LOOK: Duration = Duration::from_millis(50);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    Moto,
    Versitygw,
    Minio,
}

impl Make {
    pub const ALL: [Self; 3] = [Self::Moto, Self::Versitygw, Self::Minio];

    /// What it is called on PATH.
    fn program(self) -> &'static str {
        match self {
            Self::Moto => "moto_server",
            Self::Versitygw => "versitygw",
            Self::Minio => "minio",
        }
    }

    /// The variable that names it.
    fn variable(self) -> &'static str {
        match self {
            Self::Moto => "MOTO_SERVER",
            Self::Versitygw => "VERSITYGW",
            Self::Minio => "MINIO",
        }
    }

    /// How it is had.
    fn install(self) -> &'static str {
        match self {
            Self::Moto => "pip install 'moto[server]'",
            Self::Versitygw => "go install github.com/versity/versitygw/cmd/versitygw@latest",
            Self::Minio => "go install github.com/minio/minio@latest",
        }
    }
}

pub struct ThirdParty {
    make: Make,
    program: Option<PathBuf>,
    named: bool,
    /// None before the first trial asks.
    started: Mutex<Option<Result<Running, String>>>,
}

struct Running {
    child: Child,
    endpoint: String,
    /// Its objects.
    data: TempDir,
}

impl ThirdParty {
    /// The program that the variable names, else the one on PATH.
    pub fn find(make: Make) -> Self {
        let named = env::var_os(make.variable()).filter(|name| !name.is_empty()).map(PathBuf::from);
        let on_path = || {
            let path = env::var_os("PATH")?;
            env::split_paths(&path).map(|dir| dir.join(make.program())).find(|program| program.is_file())
        };
        Self { make, named: named.is_some(), program: named.or_else(on_path), started: Mutex::new(None) }
    }

    /// Why there is none.
    pub fn absent(&self) -> Option<String> {
        let (program, install, variable) = (self.make.program(), self.make.install(), self.make.variable());
        self.program.is_none().then(|| format!("{program} is not on PATH: {install}, or name it in {variable}"))
    }

    pub fn is_named(&self) -> bool {
        self.named
    }

    /// Where it answers, or why it does not; starts it when nobody did yet.
    pub fn endpoint(&self) -> Result<String, String> {
        if let Some(absent) = self.absent() {
            return Err(absent);
        }
        let program = self.program.as_ref().expect("it is not absent");
        let mut started = self.lock();
        let running = started.get_or_insert_with(|| Running::start(self.make, program));
        running.as_ref().map(|running| running.endpoint.clone()).map_err(Clone::clone)
    }

    /// The directory that its objects are kept in.
    pub fn data(&self) -> PathBuf {
        self.lock().as_ref().and_then(|running| running.as_ref().ok()).expect("it runs").data.path().to_owned()
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

impl Drop for ThirdParty {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Running {
    fn start(make: Make, program: &Path) -> Result<Self, String> {
        let data = tempfile::tempdir().map_err(|error| format!("no directory for {}: {error}", make.program()))?;
        let mut command = Command::new(program);
        // Port 0: the kernel chooses.
        match make {
            Make::Moto => command.args(["-H", "127.0.0.1", "-p", "0"]),
            Make::Versitygw => {
                command.env("ROOT_ACCESS_KEY", ACCESS_KEY).env("ROOT_SECRET_KEY", SECRET_KEY);
                command.args(["--quiet", "--port", "127.0.0.1:0", "posix"]).arg(data.path())
            }
            Make::Minio => {
                command.env("MINIO_ROOT_USER", ACCESS_KEY).env("MINIO_ROOT_PASSWORD", SECRET_KEY).env("MINIO_BROWSER", "off");
                // For objects that ask to be encrypted.
                command.env("MINIO_KMS_SECRET_KEY", "kept-key:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
                command.args(["server", "--quiet", "--address", "127.0.0.1:0"]).arg(data.path())
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        // From here on dropping it kills the child, also when what follows fails.
        let mut running = Self { child, endpoint: String::new(), data };
        let end = Instant::now() + START;
        while Instant::now() < end {
            if let Ok(Some(status)) = running.child.try_wait() {
                return Err(format!("{} ended at once: {status}", program.display()));
            }
            if let Some(port) = listening_port(running.child.id()).filter(|&port| answers(port)) {
                running.endpoint = format!("http://127.0.0.1:{port}");
                return Ok(running);
            }
            std::thread::sleep(LOOK);
        }
        Err(format!("{} does not answer within {START:?}", program.display()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// The port of 127.0.0.1 on which the process listens: not all of them say which one the kernel chose.
fn listening_port(pid: u32) -> Option<u16> {
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned))
        .collect();
    let listening = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (&local, &state, &inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let port = local.strip_prefix("0100007F:").filter(|_| state == "0A" && sockets.iter().any(|socket| socket == inode))?;
        u16::from_str_radix(port, 16).ok()
    };
    fs::read_to_string("/proc/net/tcp").ok()?.lines().find_map(listening)
}

/// Whether it serves already: MinIO answers 503 until it has its disks.
fn answers(port: u16) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(START))?;
        stream.write_all(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status)?;
        io::Result::Ok(status)
    };
    ask().is_ok_and(|status| status.starts_with("HTTP/") && !status.contains(" 503 "))
}
