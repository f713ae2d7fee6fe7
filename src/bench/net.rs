//! What TCP alone carries between two machines: a server that sends, and a client that takes and counts. No file, no HTTP, no TLS. Invariant:
//! a stream ends when its client goes, and after [`LONGEST`] whatever the client does.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::rate::{Rate, Speed};
use crate::store::memory::Synthetic;

/// Longest time that one stream is sent to.
const LONGEST: Duration = Duration::from_secs(600);

/// Streams of all clients together: below the descriptors that a process has where nobody raised their number.
pub const MOST_STREAMS: usize = 512;

/// What both sides say first, so that neither takes another program for its like.
const GREETING: &[u8; 16] = b"windlass net 1\r\n";

/// Longest wait for a connection and for the greeting.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes handed to the kernel, or taken from it, at once.
const PIECE: usize = 256 << 10;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot reach {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("{0} is no \"windlass bench net --listen\", or it serves others already")]
    Greeting(String),
    #[error("{address} stopped sending: {source}")]
    Lost { address: String, source: io::Error },
}

/// What was measured, and at which address the other side is.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub speed: Speed,
    pub peer: IpAddr,
}

/// Sends to everyone who greets, for so long.
pub async fn serve(listener: TcpListener, time: Duration) {
    // Content that nothing on the way can make smaller.
    let piece: Bytes = Synthetic::new(1).pieces(0..PIECE as u64).flatten().collect::<Vec<u8>>().into();
    let places = Arc::new(Semaphore::new(MOST_STREAMS));
    let mut streams = JoinSet::new();
    let accepting = async {
        loop {
            while streams.try_join_next().is_some() {}
            // A client that is gone before it was taken is nobody's mistake; without descriptors there are some again soon.
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let piece = piece.clone();
            streams.spawn(async move {
                // How it ends is for the client to tell.
                let _ = timeout(LONGEST, send(stream, piece)).await;
                drop(place);
            });
        }
    };
    let _: Result<(), _> = timeout(time, accepting).await;
}

async fn send(mut stream: TcpStream, piece: Bytes) -> io::Result<()> {
    let mut greeting = [0; GREETING.len()];
    timeout(PATIENCE, stream.read_exact(&mut greeting)).await??;
    if greeting != *GREETING {
        return Ok(());
    }
    stream.write_all(GREETING).await?;
    loop {
        stream.write_all(&piece).await?;
    }
}

/// Takes what `streams` connections bring, for so long.
///
/// # Errors
/// [`NetError`]; one stream that fails ends all.
pub async fn measure(address: &str, streams: usize, time: Duration) -> Result<Measured, NetError> {
    let mut connecting = JoinSet::new();
    for _ in 0..streams {
        connecting.spawn(connect(address.to_owned()));
    }
    let mut connected = Vec::new();
    while let Some(stream) = connecting.join_next().await {
        connected.push(stream.expect("connecting does not panic, and nobody else aborts it")?);
    }
    let lost = |source| NetError::Lost { address: address.to_owned(), source };
    let peer = match connected.first() {
        Some(stream) => stream.peer_addr().map_err(lost)?.ip(),
        None => return Err(NetError::Greeting(address.to_owned())),
    };
    // Only now, when all are there: connections are no part of what the wire carries.
    let began = Instant::now();
    let rate = Arc::new(Mutex::new(Rate::new(began)));
    let mut taking = JoinSet::new();
    for stream in connected {
        taking.spawn(take(stream, Arc::clone(&rate)));
    }
    let ended = timeout(time, taking.join_next()).await;
    let speed = rate.lock().end(Instant::now());
    match ended {
        // None of them ends by itself.
        Ok(Some(Ok(source))) => Err(lost(source)),
        _ => Ok(Measured { speed, peer }),
    }
}

async fn connect(address: String) -> Result<TcpStream, NetError> {
    let failed = |source| NetError::Connect { address: address.clone(), source };
    let connected = timeout(PATIENCE, TcpStream::connect(&address)).await;
    let mut stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
    let mut greeting = [0; GREETING.len()];
    let greeted = timeout(PATIENCE, async {
        stream.write_all(GREETING).await?;
        stream.read_exact(&mut greeting).await
    });
    match greeted.await {
        Ok(Ok(_)) if greeting == *GREETING => Ok(stream),
        _ => Err(NetError::Greeting(address)),
    }
}

/// Takes all that comes, until that ends.
async fn take(mut stream: TcpStream, rate: Arc<Mutex<Rate>>) -> io::Error {
    let mut memory = vec![0; PIECE];
    loop {
        match stream.read(&mut memory).await {
            Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
            Ok(n) => rate.lock().on_bytes(Instant::now(), n as u64),
            Err(error) => return error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn server() -> (String, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (address, tokio::spawn(serve(listener, Duration::from_secs(60))))
    }

    #[tokio::test]
    async fn bytes_of_all_streams_are_counted() {
        let (address, serving) = server().await;
        let measured = measure(&address, 3, Duration::from_millis(200)).await.unwrap();
        assert!(measured.speed.bytes > 0 && measured.speed.took >= Duration::from_millis(200), "{measured:?}");
        assert_eq!(measured.peer.to_string(), "127.0.0.1");
        serving.abort();
    }

    #[tokio::test]
    async fn a_server_that_ends_in_the_middle_is_an_error() {
        let (address, serving) = server().await;
        let ending = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            serving.abort();
        };
        let (measured, ()) = tokio::join!(measure(&address, 2, Duration::from_secs(60)), ending);
        assert!(matches!(measured, Err(NetError::Lost { .. })), "{measured:?}");
    }

    #[tokio::test]
    async fn another_program_is_told_from_ours() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").await.unwrap();
            let _ = stream.read(&mut [0; 64]).await;
        });
        assert!(matches!(measure(&address, 1, Duration::from_secs(60)).await, Err(NetError::Greeting(_))));
        other.await.unwrap();
        assert!(matches!(measure(&address, 1, Duration::from_secs(60)).await, Err(NetError::Connect { .. })));
        // And a client that is none gets no flood.
        let (address, serving) = server().await;
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got).await;
        assert!(got.is_empty());
        serving.abort();
    }
}
