//! `windlass mount --supervised`: a process that holds a mount while daemons come and go. It starts the daemon, starts it again when it dies, and
//! has a newer program take its place when somebody asks (`windlass upgrade`). It reads and writes no file of the mount. Invariants: one daemon
//! serves at a time; a mount that no daemon can be started for is let go, so that nobody waits for ever.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use super::ready::{self, Ready};
use super::{Failure, kept};
use crate::admin;
use crate::config::{MountTarget, Settings};
use crate::handover::{Door, Keeper, Link, Message, Place, Report, Trouble, Wish};
use crate::logging::Attachment;
use crate::mountinfo::{self, Device};
use crate::process::Process;
use crate::signals::Signals;
use crate::started_in;

/// Daemons that are started one after another without one that lives for a while. With the waits between them these are four seconds, and what
/// each needs to find that it cannot.
const STARTS: u32 = 6;

/// A daemon that lived so long was no attempt.
const LIVED: Duration = Duration::from_secs(10);

/// The first wait before another start; it doubles.
const PAUSE: Duration = Duration::from_millis(100);

/// A daemon that has not begun by then hangs: the store is asked for a minute at most.
const BEGIN: Duration = Duration::from_secs(120);

/// Longest wait for a line of who asks.
const ASK: Duration = Duration::from_secs(10);

/// What can be asked of a supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Another program takes the place of the daemon, which waits so long for a quiet moment.
    Upgrade { program: PathBuf, wait_ms: u64 },
}

/// How that went.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The number of the process that serves now.
    Done {
        pid: u32,
    },
    Failed(String),
}

/// What the threads of the supervisor share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    child: Option<Arc<Process>>,
    line: Option<UnixStream>,
    /// Somebody waits for another program to serve.
    upgrade: Option<Upgrade>,
    /// A signal asked for the end.
    is_ending: bool,
}

struct Upgrade {
    program: PathBuf,
    /// The daemon before has left.
    began: bool,
    tell: Sender<Answer>,
}

/// How a daemon ended.
struct Ended {
    status: ExitStatus,
    was_ready: bool,
    lived: Duration,
    trouble: Option<Trouble>,
}

/// Keeps the mount of `settings` until it ends. `tell` is called once it answers for the first time.
pub fn run(settings: &Settings, attachment: Attachment, tell: impl FnOnce(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    super::start_log(&settings.logging, attachment)?;
    let MountTarget::Directory(mountpoint) = &settings.mountpoint else {
        return Err(Failure::usage("supervised needs a directory"));
    };
    let shared = Arc::new(Shared::default());
    shared.forward_signals().map_err(Failure::without_signals)?;
    let supervisor = Supervisor { settings, attachment, mountpoint: mountinfo::resolve(mountpoint), shared, door: None };
    supervisor.run(tell)
}

struct Supervisor<'a> {
    settings: &'a Settings,
    attachment: Attachment,
    mountpoint: PathBuf,
    shared: Arc<Shared>,
    /// Open for who asks, and for which device. It goes with this process.
    door: Option<(Door, Device)>,
}

impl Supervisor<'_> {
    fn run(mut self, tell: impl FnOnce(&str) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut tell = Some(tell);
        let mut program = PathBuf::from("/proc/self/exe");
        let mut keeper = Keeper::new(Vec::new(), Message::default());
        // What serves when a newer one does not.
        let (mut before, mut starts) = (program.clone(), 0);
        loop {
            let ended = self.serve(&mut keeper, &program, &mut tell)?;
            if tell.is_some() || !self.is_mounted() {
                return end(ended);
            }
            if self.shared.state.lock().is_ending {
                // It was asked to end and did not get so far.
                drop(keeper);
                self.unmount();
                return end(ended);
            }
            starts = if ended.was_ready && ended.lived >= LIVED { 1 } else { starts + 1 };
            if let Some(next) = self.begin_upgrade() {
                tracing::info!(program = %next.display(), "another program takes the place of the daemon");
                (before, program, starts) = (program, next, 0);
                continue;
            }
            if !ended.was_ready && self.shared.fail_upgrade(&words(&ended)) {
                tracing::error!(words = words(&ended), "the new program does not serve: the one before goes on");
                program.clone_from(&before);
                continue;
            }
            tracing::error!(how = words(&ended), starts, "the daemon died");
            if !keeper.can_go_on() {
                tracing::error!(
                    "this kernel does not ask again what it had taken (it takes Linux 6.9): open files are lost, and it is mounted anew"
                );
                drop(keeper);
                self.unmount();
                keeper = Keeper::new(Vec::new(), Message::default());
            }
            if starts >= STARTS {
                // With the keeper goes the last descriptor: whoever waits gets an error.
                drop(keeper);
                let at = self.mountpoint.display();
                let why = words(&ended);
                return Err(Failure::internal(format!("{at}: no daemon could be started again ({why}): windlass umount {at}")));
            }
            std::thread::sleep(PAUSE * (1 << starts) / 2);
        }
    }

    /// Starts a daemon and serves it until its end.
    fn serve(
        &mut self,
        keeper: &mut Keeper,
        program: &Path,
        tell: &mut Option<impl FnOnce(&str) -> Result<(), Failure>>,
    ) -> Result<Ended, Failure> {
        let failed = |error: io::Error| Failure::internal(format!("cannot start the daemon: {error}"));
        let (here, there) = UnixStream::pair().map_err(failed)?;
        let (mut child, process) = self.start(program, there).map_err(failed)?;
        let (began, pid, process) = (Instant::now(), child.id(), Arc::new(process));
        let line = here.try_clone().map_err(failed)?;
        self.shared.on_start(Arc::clone(&process), line);
        let waited = begins_in_time(process);
        let (mut was_ready, mut trouble, mut told) = (false, None, Ok(()));
        let served = keeper.serve(here, |report| match report {
            Report::Session => {}
            Report::Ready => {
                was_ready = true;
                let _ = waited.send(());
                self.shared.on_ready(pid);
                if let Some(tell) = tell.take() {
                    self.listen();
                    let line = ready::line(self.settings);
                    told = Ready::prepare(None).and_then(|ready| ready.announce(&line)).map_err(failed).and_then(|()| tell(&line));
                }
            }
            Report::Failed(failed) => trouble = Some(failed),
            Report::Left => self.shared.on_left(),
            Report::Stays(why) => self.shared.on_stays(&why),
            // Daemons of this line are children: none had a keeper before.
            Report::Resumed => {}
        });
        if let Err(error) = served {
            tracing::error!(%error, "the daemon says what cannot be understood");
            let _ = child.kill();
        }
        let status = child.wait().map_err(failed)?;
        self.shared.on_end();
        told?;
        Ok(Ended { status, was_ready, lived: began.elapsed(), trouble })
    }

    fn start(&self, program: &Path, line: UnixStream) -> io::Result<(Child, Process)> {
        let mut args = std::env::args_os();
        let name = args.next().unwrap_or_else(|| "windlass".into());
        let mut command = Command::new(program);
        command.arg0(name).args(args).env(kept::VARIABLE, kept::variable(self.attachment)).envs(started_in::variable());
        // The service manager knows the supervisor; signals of the terminal come from here.
        command.env_remove("NOTIFY_SOCKET").process_group(0).stdin(OwnedFd::from(line)).stdout(Stdio::null());
        Process::spawn(&mut command)
    }

    fn is_mounted(&self) -> bool {
        mountinfo::at(&self.mountpoint)
            .ok()
            .flatten()
            .is_some_and(|entry| entry.is_ours() && self.door.as_ref().is_none_or(|(_, device)| entry.device == *device))
    }

    fn unmount(&self) {
        if let Err(error) = crate::fuse::unmount(&self.mountpoint, rustix::mount::UnmountFlags::DETACH) {
            tracing::error!(%error, "left mounted");
        }
    }

    /// The program that shall serve now, when the daemon has left for it.
    fn begin_upgrade(&self) -> Option<PathBuf> {
        let mut state = self.shared.state.lock();
        let upgrade = state.upgrade.as_mut().filter(|upgrade| upgrade.began && !upgrade.program.as_os_str().is_empty())?;
        Some(std::mem::take(&mut upgrade.program))
    }

    /// Opens the door for `windlass upgrade`. A mount is kept without it too.
    fn listen(&mut self) {
        let listen = || -> io::Result<(Door, UnixListener, Device)> {
            let device = mountinfo::at(&self.mountpoint)?.ok_or(io::ErrorKind::NotFound)?.device;
            let uid = rustix::process::geteuid().as_raw();
            let door = Place::of(&admin::keeper_place(&self.settings.admin.directories, device, uid)?)?.listen()?;
            door.permit(0o600)?;
            let listener = door.socket().try_clone()?;
            Ok((door, listener, device))
        };
        match listen() {
            Ok((door, listener, device)) => {
                self.door = Some((door, device));
                let shared = Arc::clone(&self.shared);
                std::thread::spawn(move || shared.answer(&listener));
            }
            Err(error) => tracing::warn!(%error, "windlass upgrade cannot ask this supervisor"),
        }
    }
}

impl Shared {
    /// What asks this process to end asks the daemon, which knows how.
    fn forward_signals(self: &Arc<Self>) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let mut signals = runtime.block_on(async { Signals::listen().and_then(Signals::with_hangup) })?;
        let shared = Arc::clone(self);
        let forward = move || loop {
            let ending = runtime.block_on(signals.next());
            let mut state = shared.state.lock();
            tracing::info!(reason = ending.name(), "ending");
            state.is_ending = true;
            terminate(state.child.as_deref());
        };
        std::thread::Builder::new().name("signals".into()).spawn(forward).map(drop)
    }

    fn on_start(&self, child: Arc<Process>, line: UnixStream) {
        let mut state = self.state.lock();
        (state.child, state.line) = (Some(child), Some(line));
        if state.is_ending {
            terminate(state.child.as_deref());
        }
    }

    fn on_end(&self) {
        let mut state = self.state.lock();
        (state.child, state.line) = (None, None);
        // It ended before it could leave.
        if let Some(upgrade) = state.upgrade.take_if(|upgrade| !upgrade.began) {
            let _ = upgrade.tell.send(Answer::Failed("the daemon ended meanwhile, and was started again".into()));
        }
    }

    fn on_ready(&self, pid: u32) {
        if let Some(upgrade) = self.state.lock().upgrade.take_if(|upgrade| upgrade.began) {
            let _ = upgrade.tell.send(Answer::Done { pid });
        }
    }

    fn on_left(&self) {
        if let Some(upgrade) = &mut self.state.lock().upgrade {
            upgrade.began = true;
        }
    }

    fn on_stays(&self, why: &str) {
        if let Some(upgrade) = self.state.lock().upgrade.take() {
            let _ = upgrade.tell.send(Answer::Failed(why.to_owned()));
        }
    }

    /// Whether somebody waited for the program that has just failed.
    fn fail_upgrade(&self, why: &str) -> bool {
        let Some(upgrade) = self.state.lock().upgrade.take() else { return false };
        let _ = upgrade.tell.send(Answer::Failed(format!("the new program does not serve: {why}; the one before goes on")));
        true
    }

    /// Answers who asks, one after another.
    fn answer(&self, listener: &UnixListener) {
        while let Ok((stream, _)) = listener.accept() {
            let mut link = Link::new(stream);
            let answer = match link.receive::<Request>(Some(ASK)) {
                Ok(Some((request, _))) => self.ask(request),
                Ok(None) => continue,
                Err(error) => Answer::Failed(error.to_string()),
            };
            // Who asked may be gone.
            let _ = link.send(&answer, &[]);
        }
    }

    fn ask(&self, Request::Upgrade { program, wait_ms }: Request) -> Answer {
        match self.ask_to_leave(program, wait_ms) {
            // At most: the quiet moment, another start, and the one before again.
            Ok(answer) => answer
                .recv_timeout(Duration::from_millis(wait_ms) + 2 * BEGIN)
                .unwrap_or_else(|_| Answer::Failed("the daemon does not answer: see its log".into())),
            Err(why) => Answer::Failed(why),
        }
    }

    fn ask_to_leave(&self, program: PathBuf, wait_ms: u64) -> Result<Receiver<Answer>, String> {
        let mut state = self.state.lock();
        if state.upgrade.is_some() {
            return Err("another upgrade is under way".into());
        }
        let line = state.line.as_ref().and_then(|line| line.try_clone().ok()).ok_or("the daemon is being started: try again")?;
        Link::new(line).send(&Wish { leave_within_ms: Some(wait_ms) }, &[]).map_err(|error| error.to_string())?;
        let (tell, hear) = channel();
        state.upgrade = Some(Upgrade { program, began: false, tell });
        Ok(hear)
    }
}

fn terminate(child: Option<&Process>) {
    if let Some(child) = child
        && let Err(error) = child.send(Signal::TERM)
    {
        tracing::warn!(%error, "cannot ask the daemon to end");
    }
}

/// Ends a daemon that does not begin, unless the word comes that it has, or it is gone.
fn begins_in_time(child: Arc<Process>) -> Sender<()> {
    let (tell, hear) = channel::<()>();
    std::thread::spawn(move || {
        if hear.recv_timeout(BEGIN) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::error!("the daemon does not begin: it is killed");
            if let Err(error) = child.send(Signal::KILL) {
                tracing::warn!(%error, "cannot kill the daemon");
            }
        }
    });
    tell
}

/// How a daemon ended, in words.
fn words(ended: &Ended) -> String {
    match (&ended.trouble, ended.status.signal()) {
        (Some(trouble), _) => trouble.message.clone(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => format!("exit code {}", ended.status.code().unwrap_or(1)),
    }
}

/// What this process ends with when its mount is gone, or was never there.
fn end(ended: Ended) -> Result<(), Failure> {
    if ended.status.success() {
        return Ok(());
    }
    let code = ended.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    let message = words(&ended);
    Err(Failure { code, message: if ended.trouble.is_some() { message } else { format!("the daemon ended: {message}") } })
}
