//! A TCP relay on loopback in front of a server: a slow and distant link, and what happens on one. All connections share the rate of each
//! direction; the round trip is a delay of what the client sends.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{self, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

/// Bytes that are relayed at a time: small enough that the connections take turns.
const PIECE: usize = 16 << 10;

/// Pieces on their way to the server: the rate times the round trip of a link of 50 MB/s and 80 ms.
const PIECES_UNDER_WAY: usize = 256;

/// What the link is like.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Of all connections together, in each direction.
    pub bytes_per_second: u64,
    pub round_trip: Duration,
    /// Mean of the bytes, of both directions, after which the connection that carries the last one is reset.
    pub reset_every: Option<u64>,
}

#[derive(Debug)]
struct Shared {
    link: Link,
    backend: SocketAddr,
    /// When the direction is free again.
    up: Mutex<Instant>,
    down: Mutex<Instant>,
    up_bytes: AtomicU64,
    down_bytes: AtomicU64,
    /// Bytes until the next reset.
    until_reset: AtomicI64,
    random: Mutex<StdRng>,
    resets: AtomicUsize,
    is_down: watch::Sender<bool>,
}

/// The running relay. Dropping it ends it and its connections.
pub struct Relay {
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Relays to 127.0.0.1 at `port`.
    pub fn start(port: u16, link: Link) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        listener.set_nonblocking(true).expect("it is a socket");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            link,
            backend: (Ipv4Addr::LOCALHOST, port).into(),
            up: Mutex::new(Instant::now()),
            down: Mutex::new(Instant::now()),
            up_bytes: AtomicU64::new(0),
            down_bytes: AtomicU64::new(0),
            until_reset: AtomicI64::new(link.reset_every.map_or(i64::MAX, |mean| mean as i64)),
            random: Mutex::new(StdRng::seed_from_u64(1)),
            resets: AtomicUsize::new(0),
            is_down: watch::Sender::new(false),
        });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("relay".into()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
                runtime.block_on(async {
                    let listener = TcpListener::from_std(listener).expect("it does not block");
                    tokio::select! { () = accept_all(&listener, &shared) => {}, _ = stopped => {} }
                });
            }
        });
        Self { shared, address, stop: Some(stop), thread: Some(thread.expect("a thread starts")) }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Resets all connections, and each new one, until [`restore`](Self::restore).
    pub fn cut(&self) {
        self.shared.is_down.send_replace(true);
    }

    pub fn restore(&self) {
        self.shared.is_down.send_replace(false);
    }

    /// Bytes that have reached the server.
    pub fn up_bytes(&self) -> u64 {
        self.shared.up_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that have reached the client.
    pub fn down_bytes(&self) -> u64 {
        self.shared.down_bytes.load(Ordering::Relaxed)
    }

    /// Connections that were reset for [`Link::reset_every`].
    pub fn resets(&self) -> usize {
        self.shared.resets.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, Arc::clone(shared)));
        }
    }
}

async fn serve(mut client: TcpStream, shared: Arc<Shared>) {
    let mut is_down = shared.is_down.subscribe();
    let mut server = match TcpStream::connect(shared.backend).await {
        Ok(server) if !*is_down.borrow_and_update() => server,
        _ => return reset(&client),
    };
    let relayed = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let both = async { tokio::try_join!(send_up(from_client, to_server, &shared), send_down(from_server, to_client, &shared)) };
        tokio::select! {
            result = both => result.is_ok(),
            _ = is_down.wait_for(|is_down| *is_down) => false,
        }
    };
    if !relayed {
        reset(&client);
        reset(&server);
    }
}

/// Has the connection end with a reset when it is dropped.
fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

async fn send_up(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, shared: &Shared) -> io::Result<()> {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_UNDER_WAY);
    let receive = async move {
        let mut piece = vec![0; PIECE];
        loop {
            let n = from.read(&mut piece).await?;
            let arrives = shared.link.reserve(&shared.up, n) + shared.link.round_trip;
            if n == 0 || sender.send((arrives, piece[..n].to_vec())).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let deliver = async {
        while let Some((arrives, piece)) = receiver.recv().await {
            sleep_until(arrives).await;
            to.write_all(&piece).await?;
            shared.on_relayed(&shared.up_bytes, piece.len())?;
        }
        to.shutdown().await
    };
    tokio::try_join!(receive, deliver).map(drop)
}

async fn send_down(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, shared: &Shared) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let n = from.read(&mut piece).await?;
        if n == 0 {
            return to.shutdown().await;
        }
        sleep_until(shared.link.reserve(&shared.down, n)).await;
        to.write_all(&piece[..n]).await?;
        shared.on_relayed(&shared.down_bytes, n)?;
    }
}

impl Link {
    /// When `n` bytes have left that are sent behind all that were before.
    fn reserve(&self, free: &Mutex<Instant>, n: usize) -> Instant {
        let mut free = free.lock().expect("no thread panics with it");
        *free = (*free).max(Instant::now()) + Duration::from_secs_f64(n as f64 / self.bytes_per_second as f64);
        *free
    }
}

impl Shared {
    /// Counts `n` bytes. Fails when it is time for a reset.
    fn on_relayed(&self, bytes: &AtomicU64, n: usize) -> io::Result<()> {
        bytes.fetch_add(n as u64, Ordering::Relaxed);
        let Some(mean) = self.link.reset_every else { return Ok(()) };
        if self.until_reset.fetch_sub(n as i64, Ordering::Relaxed) > n as i64 {
            return Ok(());
        }
        // Random, because equal distances that are shorter than a part would never let one through.
        let next = self.random.lock().expect("no thread panics with it").random_range(0..2 * mean);
        self.until_reset.store(next as i64, Ordering::Relaxed);
        self.resets.fetch_add(1, Ordering::Relaxed);
        Err(io::ErrorKind::ConnectionReset.into())
    }
}
