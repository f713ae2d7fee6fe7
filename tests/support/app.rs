//! A program that has one file of a mount open while its daemon ends and another one goes on, and what its file has to hold by what it was
//! answered. Invariant: the program is asked one thing at a time, and each answer is written down before the next question.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use super::mounts::PATIENCE;
use super::python;

/// Answers each line with the number of the error (0: none) and a count. It reads its own lines, so that `busy` can look for the next one.
const PROGRAM: &str = r#"
import os, select, sys, time

fd, rest = -1, b""

def line():
    global rest
    while b"\n" not in rest:
        more = os.read(0, 65536)
        if not more:
            sys.exit(0)
        rest += more
    text, rest = rest.split(b"\n", 1)
    return text.decode()

def say(number, count):
    os.write(1, b"%d %d\n" % (number, count))

def write(at, count, byte):
    done, data = 0, bytes([byte]) * count
    try:
        while done < count:
            done += os.pwrite(fd, data[done:], at + done)
        return 0, done
    except OSError as error:
        return error.errno, done

def busy(at, piece, span, byte):
    number = 0
    while True:
        error, done = write(at + number * piece % span, piece, 1 + (byte + number) % 250)
        if error:
            break
        number += 1
        if number == 1:
            say(0, 0)
        if rest or select.select([0], [], [], 0.005)[0]:
            break
    if number == 0:
        say(0, 0)
    return error, number

def closing(number):
    os.close(number)

def spare():
    "A close that is not the last one: a second descriptor of the same file goes."
    os.close(os.dup(fd))

while True:
    word, *words = line().split(" ")
    if word == "stop":
        continue
    error, count = 0, 0
    try:
        if word == "open":
            fd = os.open(words[0], eval(words[1], {}, vars(os)), 0o644)
        elif word == "write":
            error, count = write(*map(int, words))
        elif word == "busy":
            error, count = busy(*map(int, words))
        else:
            calls = {
                "fsync": lambda: os.fsync(fd),
                "close": lambda: closing(fd),
                "spare": spare,
                "rename": lambda: os.rename(words[0], words[1]),
                "unlink": lambda: os.unlink(words[0]),
            }
            calls[word]()
    except OSError as problem:
        error = problem.errno
    say(error, count)
"#;

/// The program.
pub struct App {
    child: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
}

/// What a call returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 0: it succeeded.
    pub errno: i32,
    /// Bytes, or pieces, that were written before that.
    pub count: u64,
}

impl Answer {
    pub fn is_ok(self) -> bool {
        self.errno == 0
    }
}

impl App {
    pub fn start() -> Self {
        let mut command = Command::new(python::path());
        command.args(["-S", "-E", "-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python starts");
        let (tell, answers) = channel();
        let lines = BufReader::new(child.stdout.take().expect("it was piped")).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let questions = child.stdin.take().expect("it was piped");
        Self { child, questions, answers }
    }

    /// Begins a call, whose answer is waited for by [`answer`](Self::answer).
    #[track_caller]
    pub fn begin(&mut self, call: &str) {
        writeln!(self.questions, "{call}").expect("it reads");
    }

    /// The answer to what was begun.
    #[track_caller]
    pub fn answer(&mut self) -> Answer {
        let line = match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("a call is not answered"),
            Err(RecvTimeoutError::Disconnected) => panic!("the program ended: {:?}", self.child.try_wait()),
        };
        let numbers = line.split_once(' ').and_then(|(errno, count)| Some((errno.parse().ok()?, count.parse().ok()?)));
        let (errno, count) = numbers.unwrap_or_else(|| panic!("the program says {line:?}"));
        Answer { errno, count }
    }

    /// A call from its beginning to its end.
    #[track_caller]
    pub fn call(&mut self, call: &str) -> Answer {
        self.begin(call);
        self.answer()
    }

    /// Kills it.
    pub fn kill(mut self) -> Killed {
        self.child.kill().expect("it is our child");
        Killed(self)
    }

    pub fn open(path: &Path, flags: &str) -> Self {
        let mut app = Self::start();
        let answer = app.call(&format!("open {} {flags}", path.display()));
        assert!(answer.is_ok(), "open: {answer:?}");
        app
    }
}

/// A program that was killed.
pub struct Killed(App);

impl Killed {
    /// Waits until the kernel has closed what it had open.
    pub fn wait(mut self) {
        self.0.child.wait().expect("it is our child");
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // Not waited for: where a mount hangs it would hang along.
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}

/// A change that the program made.
#[derive(Clone, Copy, Debug)]
struct Change {
    at: u64,
    len: u64,
    byte: u8,
    /// It returned success. Of one that did not, each byte may be there or not.
    is_acknowledged: bool,
}

/// What a file has to hold by the answers of its program.
#[derive(Debug)]
pub struct Expected {
    /// What it held when it was opened.
    begin: Vec<u8>,
    changes: Vec<Change>,
    /// How many changes there were after each answer.
    answers: Vec<usize>,
}

impl Expected {
    pub fn of(begin: Vec<u8>) -> Self {
        Self { begin, changes: Vec::new(), answers: vec![0] }
    }

    /// A write was answered.
    pub fn on_write(&mut self, at: u64, len: u64, byte: u8, answer: Answer) {
        let done = answer.count.min(len);
        self.changes.push(Change { at, len: done, byte, is_acknowledged: true });
        if done < len {
            self.changes.push(Change { at: at + done, len: len - done, byte, is_acknowledged: false });
        }
        self.answers.push(self.changes.len());
    }

    /// A `busy` was answered.
    pub fn on_busy(&mut self, at: u64, piece: u64, span: u64, byte: u64, answer: Answer) {
        let pieces = answer.count + u64::from(!answer.is_ok());
        for number in 0..pieces {
            let (at, byte) = (at + number * piece % span, 1 + ((byte + number) % 250) as u8);
            self.changes.push(Change { at, len: piece, byte, is_acknowledged: number < answer.count });
        }
        self.answers.push(self.changes.len());
    }

    /// The length of what was acknowledged.
    pub fn len(&self) -> u64 {
        let ends = self.changes.iter().filter(|change| change.is_acknowledged).map(|change| change.at + change.len);
        ends.max().unwrap_or(0).max(self.begin.len() as u64)
    }

    /// Whether `content` has all that was acknowledged, and nothing else but bytes of writes that failed.
    pub fn is_whole(&self, content: &[u8]) -> bool {
        self.is_prefix(content, self.changes.len())
    }

    /// Whether `content` is what the file held after some answer.
    pub fn is_some_state(&self, content: &[u8]) -> bool {
        self.answers.iter().rev().any(|&count| self.is_prefix(content, count))
    }

    fn is_prefix(&self, content: &[u8], count: usize) -> bool {
        let (mut sure, mut other) = (self.begin.clone(), self.begin.clone());
        for change in &self.changes[..count] {
            put(&mut other, change);
            if change.is_acknowledged {
                put(&mut sure, change);
            }
        }
        if content.len() < sure.len() || content.len() > other.len() {
            return false;
        }
        content == &sure[..] || content.iter().enumerate().all(|(at, byte)| sure.get(at) == Some(byte) || other[at] == *byte)
    }
}

fn put(content: &mut Vec<u8>, change: &Change) {
    let (at, end) = (change.at as usize, (change.at + change.len) as usize);
    if content.len() < end && change.len > 0 {
        content.resize(end, 0);
    }
    content[at.min(end)..end].fill(change.byte);
}
