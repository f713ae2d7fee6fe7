//! A store that costs as little as one can: it answers each range GET of `object` with bytes that it has, takes every part and object and keeps
//! none. A thread for each connection; it ends with the process.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use super::ETAG;

/// Size of `object`.
pub const SIZE: u64 = 1 << 30;

/// Longest range that is asked for.
const LONGEST: usize = 32 << 20;

static BODY: OnceLock<Vec<u8>> = OnceLock::new();

/// What lies between a store and who asks it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    pub first_byte: Duration,
    /// Of one connection, each way.
    pub bytes_per_second: Option<u64>,
}

/// What a connection brings at once, where it has a rate.
const SLICE: u64 = 256 << 10;

/// Serves requests at the returned port of loopback.
pub fn serve() -> u16 {
    serve_over(Network::default())
}

/// The same behind `network`.
pub fn serve_over(network: Network) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // Who hangs up has no more requests.
            thread::spawn(move || answer(stream, network));
        }
    });
    port
}

impl Network {
    /// Has `carry` move `length` bytes, no sooner than a connection brings them.
    fn carry(self, length: u64, mut carry: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        let Some(rate) = self.bytes_per_second else { return carry(length as usize) };
        let (began, mut done) = (Instant::now(), 0);
        while done < length {
            let n = (length - done).min(SLICE);
            carry(n as usize)?;
            done += n;
            thread::sleep(Duration::from_secs_f64(done as f64 / rate as f64).saturating_sub(began.elapsed()));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Request {
    line: String,
    range: Option<(u64, u64)>,
    length: u64,
    continues: bool,
}

fn answer(mut stream: TcpStream, network: Network) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let body = BODY.get_or_init(|| vec![7; LONGEST]);
    let mut requests = BufReader::with_capacity(256 << 10, stream.try_clone()?);
    while let Some(request) = receive(&mut requests)? {
        if request.continues {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        network.carry(request.length, |n| io::copy(&mut (&mut requests).take(n as u64), &mut io::sink()).map(drop))?;
        thread::sleep(network.first_byte);
        if let Some((first, last)) = request.range {
            let length = last + 1 - first;
            let place = format!("Content-Range: bytes {first}-{last}/{SIZE}");
            write!(stream, "HTTP/1.1 206 Partial Content\r\nETag: {ETAG}\r\n{place}\r\nContent-Length: {length}\r\n\r\n")?;
            network.carry(length, |n| stream.write_all(&body[..n]))?;
            continue;
        }
        let (status, text) = short(&request.line);
        write!(stream, "HTTP/1.1 {status}\r\nETag: {ETAG}\r\nContent-Length: {}\r\n\r\n", text.len())?;
        // The answer to a HEAD would have no body; nobody gets one here.
        stream.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn receive(requests: &mut impl BufRead) -> io::Result<Option<Request>> {
    let (mut request, mut line) = (Request::default(), String::new());
    while requests.read_line(&mut line)? > 2 {
        let (name, value) = line.trim_end().split_once(": ").unwrap_or((line.trim_end(), ""));
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = value.strip_prefix("bytes=").and_then(|range| range.split_once('-')).and_then(both),
            "content-length" => request.length = value.parse().unwrap_or(0),
            "expect" => request.continues = true,
            _ if request.line.is_empty() => name.clone_into(&mut request.line),
            _ => {}
        }
        line.clear();
    }
    Ok((!request.line.is_empty()).then_some(request))
}

fn both((first, last): (&str, &str)) -> Option<(u64, u64)> {
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// What is answered where no bytes were asked for.
fn short(line: &str) -> (&'static str, String) {
    let list = |entry: &str| ("200 OK", format!("<ListBucketResult><IsTruncated>false</IsTruncated>{entry}</ListBucketResult>"));
    match line.split(' ').next().unwrap_or_default() {
        "GET" if line.contains("prefix=object") => list(&format!(
            "<Contents><Key>object</Key><Size>{SIZE}</Size><ETag>{ETAG}</ETag><LastModified>2026-08-01T00:00:00.000Z</LastModified></Contents>"
        )),
        "GET" => list(""),
        "POST" if line.contains("uploads") => {
            ("200 OK", "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>".into())
        }
        "POST" => ("200 OK", format!("<CompleteMultipartUploadResult><ETag>{ETAG}</ETag></CompleteMultipartUploadResult>")),
        "HEAD" => ("404 Not Found", String::new()),
        "DELETE" => ("204 No Content", String::new()),
        _ => ("200 OK", String::new()),
    }
}
