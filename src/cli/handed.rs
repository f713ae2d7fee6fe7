//! `windlass mount --fd-socket`: waits for somebody who mounts, and goes on as the program that serves what came. The process starts itself anew
//! in its own place (exec), so that the environment of the message is the real one, which credential sources read, and descriptors are where
//! the command line says. Invariant: until then nothing was started that would have to end in order, and what comes is served or refused aloud.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::io::FdFlags;
use serde_json::Value;

use super::report::Report;
use super::stop::Stop;
use super::{Cli, Failure};
use crate::config::{Input, Reports, find};
use crate::handover::{self, Line, Link, Meeting, Message, Passed, WayBack};
use crate::mount::Given;
use crate::{fuse, sys};

/// How often is looked whether the wait shall end.
const LOOK: Duration = Duration::from_millis(250);

/// What the process that had our place before left to us.
pub fn passed() -> Option<Passed> {
    Passed::read(&std::env::var(Passed::VARIABLE).ok()?, std::process::id())
}

/// The line to the keeper.
pub fn line(passed: &Passed) -> Result<Arc<Line>, Failure> {
    let socket = sys::adopt(passed.line).map_err(|error| Failure::internal(format!("the line to the keeper is lost: {error}")))?;
    Ok(Arc::new(Line::new(socket.into())))
}

/// All else that was left, besides the descriptor that the settings name.
pub fn given(passed: Passed, line: Arc<Line>) -> Result<Given, Failure> {
    let mut given = Given { session: passed.session, line: Some(Arc::clone(&line)), ..Given::default() };
    for number in passed.others {
        let descriptor = sys::adopt(number).map_err(|error| Failure::internal(format!("descriptor {number} is lost: {error}")))?;
        // Those of the device come first; what follows is what the daemon before wanted to be kept.
        if given.kept.is_empty() && fuse::is_fuse(&descriptor) {
            drop(descriptor);
            given.clones.push(fuse::adopt(number).map_err(|flaw| Failure::usage(format!("descriptor {number}: {flaw}")))?);
        } else {
            given.kept.push(descriptor);
        }
    }
    if let Some(place) = passed.place {
        let lost = |error: io::Error| Failure::internal(format!("the way back to the keeper is lost: {error}"));
        let way_back = way_back(place.into(), passed.device, &given).map_err(lost)?;
        line.can_return(way_back).map_err(lost)?;
    }
    Ok(given)
}

/// All that came, once more, for a keeper that begins anew.
fn way_back(place: PathBuf, device: RawFd, given: &Given) -> io::Result<WayBack> {
    let mut devices = vec![sys::duplicate(device)?];
    for clone in &given.clones {
        devices.push(clone.try_clone()?);
    }
    let kept = given.kept.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
    Ok(WayBack::new(place, devices, given.session.clone(), kept))
}

/// Waits at `meeting` for a mount and goes on as the program that serves it: returns only when that cannot be, or when a signal ended the wait.
pub fn serve(input: &Input, meeting: &Meeting, patience: Duration) -> Result<(), Failure> {
    let stop = Stop::listen().map_err(Failure::without_signals)?;
    let deadline = Instant::now() + patience;
    let ended = |error: io::Error| match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(trouble(meeting, patience, &error)),
    };
    let mut link = match meeting.meet(patience, || stop.check().is_ok()) {
        Ok(stream) => Link::new(stream),
        Err(error) => return ended(error),
    };
    let done = match receive(&mut link, deadline, &stop) {
        Ok((message, descriptors)) => go_on(input, meeting, message, &descriptors, &link),
        Err(error) => ended(error),
    };
    done.inspect_err(|failure| tell(link, failure))
}

/// Whoever sent it hears what is wrong, too.
fn tell(link: Link, failure: &Failure) {
    Report::new(Reports::default(), Some(Arc::new(Line::over(link)))).failed(failure, &[]);
}

fn trouble(meeting: &Meeting, patience: Duration, error: &io::Error) -> Failure {
    let message = format!("fd-socket {meeting}: {error}");
    match error.kind() {
        io::ErrorKind::TimedOut => {
            Failure::internal(format!("{message}: nobody handed a mount over within {patience:?}; --fd-socket-timeout waits longer"))
        }
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Failure::internal(message),
        _ => Failure::usage(message),
    }
}

/// The first message, with at least one descriptor.
fn receive(link: &mut Link, deadline: Instant, stop: &Stop) -> io::Result<(Message, Vec<OwnedFd>)> {
    loop {
        match link.receive::<Message>(Some(LOOK)) {
            Ok(Some((_, descriptors))) if descriptors.is_empty() => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message came without the descriptor of /dev/fuse"));
            }
            Ok(Some(received)) => return Ok(received),
            Ok(None) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end closed without a message")),
            Err(handover::Error::Io(error)) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                stop.check()?;
                if Instant::now() >= deadline {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no message came"));
                }
            }
            Err(handover::Error::Io(error)) => return Err(error),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

/// Takes our own place as the program that serves `descriptors`.
fn go_on(input: &Input, meeting: &Meeting, message: Message, descriptors: &[OwnedFd], link: &Link) -> Result<(), Failure> {
    let lost = |error: rustix::io::Errno| Failure::internal(format!("descriptors cannot be passed on: {error}"));
    let mut numbers = Vec::new();
    for descriptor in descriptors {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).map_err(lost)?;
        numbers.push(descriptor.as_raw_fd());
    }
    rustix::io::fcntl_setfd(link.stream(), FdFlags::empty()).map_err(lost)?;
    let call = Call::of(input, &message, numbers[0])?;
    let session = message.session;
    let place = if let Meeting::Connect(path) = meeting { Some(path.clone().into_os_string()) } else { None };
    let (pid, line, others) = (std::process::id(), link.stream().as_raw_fd(), numbers.split_off(1));
    let passed = Passed { pid, line, place, device: numbers[0], others, session };
    let text = serde_json::to_string(&passed).expect("numbers and JSON");
    let mut command = Command::new("/proc/self/exe");
    command.arg0("windlass").args(call.words).envs(message.env.0).envs(call.secrets).env(Passed::VARIABLE, text);
    let error = command.exec();
    Err(Failure::internal(format!("cannot go on with the mount that was handed over: {error}")))
}

/// The command line that serves a message.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    words: Vec<OsString>,
    /// Options that nobody may see in a list of processes, as variables of the environment.
    secrets: Vec<(String, String)>,
}

impl Call {
    /// What was typed, and what the message says: that ranks higher.
    fn of(input: &Input, message: &Message, device: RawFd) -> Result<Self, Failure> {
        let mut words: Vec<OsString> = vec!["mount".into()];
        if let Some(program) = input.program.name() {
            words.push(format!("--compat={program}").into());
        }
        words.extend(source(message).map(OsString::from).or_else(|| input.places.first().cloned()));
        words.push(format!("/dev/fd/{device}").into());
        let flags = input.flags.iter().filter(|(name, _)| !named(name, "fd-socket") && !named(name, "fd-socket-timeout"));
        words.extend(
            flags.map(|(name, value)| value.as_ref().map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")).into()),
        );
        for list in &input.options {
            words.extend([OsString::from("-o"), list.into()]);
        }
        words.extend(message.args.iter().map(OsString::from));
        let mut secrets = Vec::new();
        for (name, value) in &message.options {
            let value = text_of(value).map_err(|reason| Failure::usage(format!("option {name} of the message: {reason}")))?;
            match find(name).filter(|(spec, _)| spec.is_secret()) {
                Some((spec, _)) => secrets.push((spec.variable(), value.unwrap_or_default())),
                None => words.extend([OsString::from("-o"), option(name, value.as_deref()).into()]),
            }
        }
        if input.program.name().is_none() {
            check(&words)?;
        }
        Ok(Self { words, secrets })
    }
}

/// Whether two spellings name the same option.
fn named(word: &str, name: &str) -> bool {
    word.replace('_', "-") == name
}

/// What the message says is mounted.
fn source(message: &Message) -> Option<String> {
    let (bucket, prefix) = (&message.bucket, message.prefix.trim_start_matches('/'));
    match (bucket.is_empty(), prefix.is_empty()) {
        (true, _) => None,
        (false, true) => Some(bucket.clone()),
        (false, false) if bucket.contains("://") => Some(format!("{}/{prefix}", bucket.trim_end_matches('/'))),
        (false, false) => Some(format!("{bucket}:/{prefix}")),
    }
}

fn text_of(value: &Value) -> Result<Option<String>, &'static str> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(yes) => Ok(Some(yes.to_string())),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Array(_) | Value::Object(_) => Err("must be text, a number, true or false"),
    }
}

/// A word of `-o`, where a comma would end it.
fn option(name: &str, value: Option<&str>) -> String {
    let quote = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    value.map_or_else(|| quote(name), |value| format!("{}={}", quote(name), quote(value)))
}

/// Mistakes in flags are answered here, where whoever sent them is listening.
fn check(words: &[OsString]) -> Result<(), Failure> {
    let words = std::iter::once(OsString::from("windlass")).chain(words.iter().cloned());
    Cli::try_parse_from(words).map(drop).map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        Failure::usage(format!("what was handed over cannot be used: {}", line.strip_prefix("error: ").unwrap_or(line)))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Program;

    fn call(input: &Input, message: Value) -> Result<String, String> {
        let message = serde_json::from_value(message).unwrap();
        let call = Call::of(input, &message, 7).map_err(|failure| failure.message)?;
        Ok(call.words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_message_says_what_and_ranks_above_what_was_typed() {
        let flag = |name: &str, text: &str| (name.to_owned(), Some(text.to_owned()));
        let mut input = Input { flags: vec![flag("fd-socket", "connect:/s"), flag("log-level", "debug")], ..Input::default() };
        input.options = vec!["ro".into()];
        let message =
            json!({"bucket": "s3://data", "prefix": "/a/", "options": {"chunk-size": "8MiB", "note": "a,b", "allow-other": true}});
        let expected = "mount s3://data/a/ /dev/fd/7 --log-level=debug -o ro -o allow-other=true -o chunk-size=8MiB -o note=a\\,b";
        assert_eq!(call(&input, message), Ok(expected.into()));
        let message = json!({"bucketName": "data", "prefix": "a/", "args": ["--read-only"]});
        assert_eq!(call(&input, message), Ok("mount data:/a/ /dev/fd/7 --log-level=debug -o ro --read-only".into()));
        input.places = vec!["s3://typed".into()];
        input.program = Program::Ossfs;
        assert_eq!(call(&input, json!({})), Ok("mount --compat=ossfs s3://typed /dev/fd/7 --log-level=debug -o ro".into()));
    }

    #[test]
    fn secrets_are_not_put_on_a_command_line() {
        let message = serde_json::from_value(json!({"bucket": "s3://data", "options": {"oss_access_key_secret": "hunter2"}})).unwrap();
        let call = Call::of(&Input::default(), &message, 3).unwrap();
        assert_eq!(call.secrets, [("WINDLASS_ACCESS_KEY_SECRET".to_owned(), "hunter2".to_owned())]);
        assert!(!format!("{:?}", call.words).contains("hunter2"));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let said = |message| call(&Input::default(), message).unwrap_err();
        assert!(said(json!({"bucket": "s3://data", "args": ["--no-such-flag"]})).contains("--no-such-flag"));
        assert!(said(json!({"bucket": "s3://data", "options": {"uid": [1]}})).contains("option uid"));
    }
}
