//! A network namespace, as each pod has one: nothing is there but 127.0.0.1, and what listens in it. Only root can make one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use super::s3_server::S3Server;

/// Sets `lo` up (SIOCSIFFLAGS with IFF_UP, netdevice(7)).
const UP: &str = "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH22x', b'lo', 1))";

pub struct Network(File);

impl Network {
    pub fn new() -> Self {
        // Of this thread alone, and of the processes that it starts.
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("we are root");
            let done = Command::new("python3").args(["-c", UP]).status().expect("python3 is installed");
            assert!(done.success(), "lo cannot be set up");
            File::open("/proc/thread-self/ns/net").expect("the thread is in it")
        });
        Self(made.join().expect("it does not panic"))
    }

    /// One in which the server is found where it is found here.
    pub fn with_store(server: &S3Server) -> Self {
        let network = Self::new();
        server.listen_in(&network);
        network
    }

    /// Has a thread in it do `work`: sockets that it makes and processes that it starts stay there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&self.0, CloneFlags::CLONE_NEWNET).expect("we are root");
                work()
            });
            thread.join().expect("it does not panic")
        })
    }

    /// Connects to 127.0.0.1 in it.
    pub fn connect(&self, port: u16) -> io::Result<TcpStream> {
        self.within(|| TcpStream::connect(("127.0.0.1", port)))
    }

    /// Status and body of a page there; nothing while nobody listens.
    pub fn page(&self, port: u16, path: &str) -> Option<(u16, String)> {
        let mut stream = self.connect(port).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }
}

impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
