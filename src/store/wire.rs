//! Test support: an HTTP server that is nothing but a socket and a script, for answers that no real server gives.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the server does with one request; the head of the request is recorded before.
#[derive(Clone)]
pub(super) enum Reply {
    /// Bytes as they are, then the connection stays open for the next request.
    Keep(String),
    /// Bytes as they are, then the connection is closed.
    Close(String),
    /// Bytes as they are, then nothing.
    Stall(String),
    /// As [`Close`](Self::Close), for a request whose head contains the first text, which is in lower case; others take a later reply.
    To(&'static str, String),
}

/// A scripted server; every request takes the next reply of the script.
pub(super) struct Fake {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    /// From where connections came.
    peers: Arc<Mutex<Vec<IpAddr>>>,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    pub async fn start(script: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (heads, peers) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let (seen, noted) = (heads.clone(), peers.clone());
        let task = tokio::spawn(async move {
            let mut served = tokio::task::JoinSet::new();
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                noted.lock().push(peer.ip());
                served.spawn(serve(stream, script.clone(), seen.clone()));
            }
        });
        Self { address, heads, peers, task }
    }

    pub fn url(&self, path: &str) -> Url {
        Url::parse(&format!("http://{}{path}", self.address)).unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections came.
    pub fn connections(&self) -> usize {
        self.peers.lock().len()
    }

    /// The addresses that they came from.
    pub fn peers(&self) -> Vec<IpAddr> {
        self.peers.lock().clone()
    }

    /// The heads of all requests so far, in lower case.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().clone()
    }
}

async fn serve(stream: TcpStream, script: Arc<Mutex<VecDeque<Reply>>>, heads: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        heads.lock().push(head.clone());
        let reply = {
            let mut script = script.lock();
            let fits = |reply: &Reply| !matches!(reply, Reply::To(part, _) if !head.contains(part));
            let place = script.iter().position(fits);
            place.and_then(|place| script.remove(place))
        };
        let Some(reply) = reply else { return };
        let (Reply::Keep(text) | Reply::Close(text) | Reply::Stall(text) | Reply::To(_, text)) = &reply;
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
        match reply {
            Reply::Keep(_) => {}
            Reply::Close(_) | Reply::To(..) => {
                let _ = stream.shutdown().await;
                // The rest of the request: unread, it would have the answer thrown away by a reset.
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                return;
            }
            Reply::Stall(_) => {
                // Until the client gives up.
                let _ = stream.read_u8().await;
                return;
            }
        }
    }
}
