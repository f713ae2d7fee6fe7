//! Looks at a page that another process of ours serves at a unix socket. Invariant: it takes no longer and no more than it is told.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use http::{Request, StatusCode, header};
use http_body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// The longest page: metrics of a mount have a few tens of kilobytes.
const LONGEST: usize = 4 << 20;

/// The page at `path`, with its status.
///
/// # Errors
/// When nobody answers in time, or with too much.
pub async fn look(stream: std::os::unix::net::UnixStream, path: &str, patience: Duration) -> io::Result<(StatusCode, String)> {
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    tokio::time::timeout(patience, ask(stream, path)).await?
}

async fn ask(stream: UnixStream, path: &str) -> io::Result<(StatusCode, String)> {
    let (mut sender, connection) = http1::handshake::<_, String>(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::get(path)
        .header(header::HOST, "localhost")
        .header(header::ACCEPT, "application/openmetrics-text")
        .body(String::new())
        .map_err(io::Error::other)?;
    let asking = async {
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let (mut body, mut bytes) = (answer.into_body(), Vec::new());
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
                bytes.extend_from_slice(&data);
            }
            if bytes.len() > LONGEST {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the page does not end"));
            }
        }
        Ok((status, String::from_utf8(bytes).map_err(io::Error::other)?))
    };
    // The connection moves while it is waited for, and goes with the answer.
    tokio::pin!(asking);
    tokio::select! {
        answer = &mut asking => answer,
        ended = connection => {
            ended.map_err(io::Error::other)?;
            asking.await
        }
    }
}
