//! A TCP proxy that damages what passes: each time it sees [`MARK`] it changes one bit of it, as a bad memory module or cable behind a checksum
//! does. It knows no HTTP, so it can stand before any server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// What is damaged: no byte of it comes twice, so it is found across any cut. Its last byte is the one that changes.
pub const MARK: &[u8] = b"\x01flips\x02";

/// Runs on a thread and a runtime of its own until it is dropped.
#[derive(Debug)]
pub struct Flipping {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// How many marks in requests are still to be damaged, and in answers.
    requests: AtomicUsize,
    answers: AtomicUsize,
    flipped: AtomicUsize,
}

impl Flipping {
    /// A proxy before `target`.
    pub fn start(target: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        listener.set_nonblocking(true).expect("a listener can be nonblocking");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let shared = Arc::new(Shared::default());
        let state = shared.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("the listener is nonblocking");
                tokio::select! { () = accept(listener, target, state) => {}, _ = stopped => {} }
            });
        });
        Self { address, shared, stop: Some(stop) }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next `n` marks that are sent to the server are damaged.
    pub fn flip_requests(&self, n: usize) {
        self.shared.requests.store(n, SeqCst);
    }

    /// The next `n` marks that the server sends are damaged.
    pub fn flip_answers(&self, n: usize) {
        self.shared.answers.store(n, SeqCst);
    }

    /// How many were.
    pub fn flipped(&self) -> usize {
        self.shared.flipped.load(SeqCst)
    }
}

impl Drop for Flipping {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let Ok(server) = TcpStream::connect(target).await else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let (up, down) = (shared.clone(), shared.clone());
        tokio::spawn(async move { pass(from_client, to_server, &up.requests, &up.flipped).await });
        tokio::spawn(async move { pass(from_server, to_client, &down.answers, &down.flipped).await });
    }
}

/// Passes bytes on until either side closes.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, left: &AtomicUsize, flipped: &AtomicUsize) {
    let (mut buffer, mut matched) = (vec![0; 64 << 10], 0);
    loop {
        let n = match from.read(&mut buffer).await {
            Ok(n) if n > 0 => n,
            _ => break,
        };
        for byte in &mut buffer[..n] {
            matched = if *byte == MARK[matched] { matched + 1 } else { usize::from(*byte == MARK[0]) };
            if matched == MARK.len() {
                matched = 0;
                if left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                    *byte ^= 1;
                    flipped.fetch_add(1, SeqCst);
                }
            }
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await; // the other direction ends by itself
}
