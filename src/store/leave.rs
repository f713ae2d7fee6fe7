//! From where connections leave: over several network cards, each of which carries a part of the traffic. Without a choice it is the routing
//! table's. Invariant: with a choice no connection to the store leaves from anywhere else.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::sleep;

/// Bytes of the name of an interface, with the zero at its end (IFNAMSIZ in net/if.h).
const INTERFACE_BYTES: usize = 16;

/// Connection Attempt Delay: the time after which the next address is tried in parallel (RFC 8305, section 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// One way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A source address of this machine.
    Address(IpAddr),
    /// An interface, whatever its address.
    Interface(String),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Interface(name) => name.fmt(f),
        }
    }
}

impl FromStr for Exit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
        if text.is_empty() || text.len() >= INTERFACE_BYTES || text.contains(odd) {
            return Err(format!("\"{text}\" is neither an IP address nor the name of an interface"));
        }
        Ok(Self::Interface(text.to_owned()))
    }
}

/// Takes one of several after the other. Clones go on from the same.
#[derive(Clone, Debug)]
pub(super) struct Turns<T> {
    all: Arc<[T]>,
    next: Arc<AtomicUsize>,
}

impl<T> Turns<T> {
    pub fn new(all: Vec<T>) -> Self {
        Self { all: all.into(), next: Arc::default() }
    }

    /// The next; none when there is none at all.
    pub fn next(&self) -> Option<&T> {
        let turn = if self.all.len() > 1 { self.next.fetch_add(1, Ordering::Relaxed) } else { 0 };
        self.all.get(turn.checked_rem(self.all.len())?)
    }
}

/// The HTTP clients of a store, one for each way out: the library knows one way for a client.
#[derive(Clone, Debug)]
pub(super) struct Clients(Turns<reqwest::Client>);

impl Clients {
    /// `make` begins one.
    pub fn build(exits: &[Exit], make: impl Fn() -> reqwest::ClientBuilder) -> reqwest::Result<Self> {
        let through = |exit: &Exit| match exit {
            Exit::Address(address) => make().local_address(*address),
            Exit::Interface(name) => make().interface(name),
        };
        let all: reqwest::Result<Vec<_>> =
            if exits.is_empty() { make().build().map(|one| vec![one]) } else { exits.iter().map(|exit| through(exit).build()).collect() };
        all.map(|all| Self(Turns::new(all)))
    }

    /// Whose turn it is.
    pub fn next(&self) -> &reqwest::Client {
        self.0.next().expect("there is one for each way out, or one")
    }
}

/// A connection to `host`, through `exit` when there is one: to the first of its addresses that answers (RFC 8305).
pub(super) async fn connect(host: &str, port: u16, exit: Option<&Exit>) -> io::Result<TcpStream> {
    let failure = || match exit {
        Some(exit) => io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{host} has no address that {exit} can reach")),
        None => io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address")),
    };
    let leads_there = |address: &SocketAddr| !matches!(exit, Some(Exit::Address(from)) if from.is_ipv4() != address.is_ipv4());
    let addresses: Vec<_> = lookup_host((host, port)).await?.filter(leads_there).collect();
    first_of(in_turns(addresses), exit).await.unwrap_or_else(|| Err(failure()))
}

/// Interleaves the address families, beginning with that of the first address (RFC 8305, section 4).
fn in_turns(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first = addresses.first().map(SocketAddr::is_ipv4);
    let (one, other): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address: &SocketAddr| Some(address.is_ipv4()) == first);
    (0..one.len().max(other.len())).flat_map(|n| [one.get(n), other.get(n)]).flatten().copied().collect()
}

/// Returns the first established connection or the last failure; `None` without addresses. An attempt that is not answered within
/// [`NEXT_AFTER`] goes on while the next address is tried.
async fn first_of(addresses: Vec<SocketAddr>, exit: Option<&Exit>) -> Option<io::Result<TcpStream>> {
    let (mut left, mut trying, mut failure) = (addresses.into_iter(), FuturesUnordered::new(), None);
    trying.extend(left.next().map(|address| connect_to(address, exit)));
    loop {
        tokio::select! {
            biased;
            Some(tried) = trying.next() => match tried {
                Ok(stream) => return Some(Ok(stream)),
                Err(error) => failure = Some(Err(error)),
            },
            () = sleep(NEXT_AFTER), if left.len() > 0 => {}
            else => return failure,
        }
        trying.extend(left.next().map(|address| connect_to(address, exit)));
    }
}

async fn connect_to(address: SocketAddr, exit: Option<&Exit>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    match exit {
        Some(Exit::Address(from)) => socket.bind(SocketAddr::new(*from, 0))?,
        Some(Exit::Interface(name)) => socket.bind_device(Some(name.as_bytes()))?,
        None => {}
    }
    socket.connect(address).await
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::store::wire::{Fake, Reply};

    #[test]
    fn addresses_and_interfaces_are_told_apart() {
        assert_eq!("10.0.0.7".parse(), Ok(Exit::Address([10, 0, 0, 7].into())));
        assert_eq!("fe80::1".parse(), Ok(Exit::Address("fe80::1".parse().unwrap())));
        assert_eq!("eth0".parse(), Ok(Exit::Interface("eth0".into())));
        for odd in ["", "10.0.0.7:80", "eth 0", "an-interface-with-a-long-name"] {
            assert!(odd.parse::<Exit>().unwrap_err().contains("neither"), "{odd}");
        }
    }

    #[tokio::test]
    async fn connections_leave_in_turns_from_each_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let exits = Turns::new(vec![Exit::Address([127, 0, 0, 2].into()), Exit::Address([127, 0, 0, 3].into())]);
        let mut seen = Vec::new();
        for _ in 0..4 {
            let _stream = connect("127.0.0.1", port, exits.next()).await.unwrap();
            seen.push(listener.accept().await.unwrap().1.ip().to_string());
        }
        assert_eq!(seen, ["127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.3"]);
        assert!(Turns::<Exit>::new(Vec::new()).next().is_none());
    }

    #[tokio::test]
    async fn the_library_leaves_from_each_address_too() {
        let reply = || Reply::Close("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".into());
        let server = Fake::start((0..3).map(|_| reply()).collect()).await;
        let exits = [Exit::Address([127, 0, 0, 2].into()), Exit::Address([127, 0, 0, 3].into())];
        let clients = Clients::build(&exits, || reqwest::Client::builder().no_proxy()).unwrap();
        for _ in 0..3 {
            clients.next().get(server.url("/")).send().await.unwrap();
        }
        assert_eq!(server.peers(), [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 2]].map(IpAddr::from));
    }

    /// A listener with a full backlog: the kernel drops every further SYN.
    async fn silent() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
            held.push(stream.unwrap());
        }
        (listener, held, address)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_does_not_hide_the_next_one() {
        let (_listener, _held, black_hole) = silent().await;
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alive = alive.local_addr().map(|address| (address, alive)).unwrap();
        // One that refuses goes on to the next one at once.
        let refuses = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let stream = first_of(vec![black_hole, refuses, alive.0], None).await.unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive.0);
        assert_eq!(first_of(vec![refuses, refuses], None).await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(first_of(Vec::new(), None).await.is_none());
    }

    #[test]
    fn families_are_tried_in_turns() {
        let addresses = |all: &[&str]| all.iter().map(|address| address.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let all = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        assert_eq!(in_turns(all), addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]));
        assert_eq!(in_turns(Vec::new()), []);
    }

    #[tokio::test]
    async fn a_way_out_that_does_not_lead_there_is_an_error() {
        let six = Exit::Address("::1".parse().unwrap());
        assert_eq!(connect("127.0.0.1", 1, Some(&six)).await.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
        assert!(connect("127.0.0.1", 1, Some(&Exit::Interface("no-such-card".into()))).await.is_err());
        // An address that this machine does not have (RFC 5737 keeps it free).
        assert!(connect("127.0.0.1", 1, Some(&Exit::Address([192, 0, 2, 1].into()))).await.is_err());
    }
}
