//! From where connections leave: over several network cards, each of which carries a part of the traffic. Without a choice it is the routing
//! table's. Invariant: with a choice no connection to the store leaves from anywhere else.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::{TcpSocket, TcpStream, lookup_host};

/// Bytes of the name of an interface, with the zero at its end (IFNAMSIZ in net/if.h).
const INTERFACE_BYTES: usize = 16;

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

/// A connection to `host`, through `exit` when there is one.
pub(super) async fn connect(host: &str, port: u16, exit: Option<&Exit>) -> io::Result<TcpStream> {
    let Some(exit) = exit else { return TcpStream::connect((host, port)).await };
    let mut failure = io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{host} has no address that {exit} can reach"));
    for address in lookup_host((host, port)).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        match exit {
            Exit::Address(from) if from.is_ipv4() == address.is_ipv4() => socket.bind(SocketAddr::new(*from, 0))?,
            Exit::Address(_) => continue,
            Exit::Interface(name) => socket.bind_device(Some(name.as_bytes()))?,
        }
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
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

    #[tokio::test]
    async fn a_way_out_that_does_not_lead_there_is_an_error() {
        let six = Exit::Address("::1".parse().unwrap());
        assert_eq!(connect("127.0.0.1", 1, Some(&six)).await.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
        assert!(connect("127.0.0.1", 1, Some(&Exit::Interface("no-such-card".into()))).await.is_err());
        // An address that this machine does not have (RFC 5737 keeps it free).
        assert!(connect("127.0.0.1", 1, Some(&Exit::Address([192, 0, 2, 1].into()))).await.is_err());
    }
}
