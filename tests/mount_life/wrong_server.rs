//! Servers that are no store: one that says the same to everybody, and one that never answers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// Ends when it is dropped.
pub struct WrongServer {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WrongServer {
    /// Sends `answer` to the first bytes of each connection and closes it.
    pub fn saying(answer: String) -> Self {
        Self::start(Some(answer))
    }

    /// Takes connections and leaves them alone.
    pub fn silent() -> Self {
        Self::start(None)
    }

    /// An answer of S3 with an error document.
    pub fn refusing(status: &str, document: &str) -> Self {
        let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>{document}</Error>");
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/xml\r\nconnection: close\r\n");
        Self::saying(format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
    }

    fn start(answer: Option<String>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let ended = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let ended = Arc::clone(&ended);
            move || {
                let mut open = Vec::new();
                for stream in listener.incoming().flatten() {
                    if ended.load(Relaxed) {
                        return;
                    }
                    match &answer {
                        Some(answer) => say(stream, answer),
                        None => open.push(stream),
                    }
                }
            }
        });
        Self { address, ended, thread: Some(thread) }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn say(mut stream: TcpStream, answer: &str) {
    // One read takes the whole request: it has no body.
    let _ = stream.read(&mut [0; 16 << 10]);
    let _ = stream.write_all(answer.as_bytes());
}

impl Drop for WrongServer {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        let _ = TcpStream::connect(self.address); // wakes it
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
