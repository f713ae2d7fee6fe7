//! Where pages are served: an address or a socket in the file system, as a person writes it, and the listener there. It serves nothing.
//! Invariant: what is bound was free, or left by somebody who is gone.

use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::socket_file::SocketFile;

/// What stands before a path.
const UNIX: &str = "unix:";

/// Of a mode: the group and others may write.
const OTHERS_WRITE: u32 = 0o022;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    /// Reads `ADDRESS:PORT`, `:PORT` for all addresses, a port alone, which is one of this machine only, or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        let reason = || format!("must be ADDRESS:PORT (127.0.0.1:9100, [::]:9100), a port of 127.0.0.1, or {UNIX}/absolute/path");
        if let Some(path) = text.strip_prefix(UNIX) {
            return if path.starts_with('/') && !path.ends_with('/') { Ok(Self::Unix(path.into())) } else { Err(reason()) };
        }
        let local = |port: &str| port.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let all = |port: &str| port.parse().ok().map(|port: u16| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
        let address = match text.strip_prefix(':') {
            Some(port) => all(port),
            None => local(text.strip_prefix("localhost:").unwrap_or(text)).or_else(|| text.parse().ok()),
        };
        address.map(Self::Tcp).ok_or_else(reason)
    }
}

/// Listens, and serves nobody yet.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: Socket,
    /// The address, with the port that was given where none was asked for.
    pub place: Listen,
}

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

impl Listener {
    /// Listens at `place`.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn bind(place: &Listen) -> io::Result<Self> {
        let (socket, place) = match place {
            Listen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).or_else(|error| {
                    // All addresses are those of the older protocol where there is no other one.
                    let is_all = address.ip() == Ipv6Addr::UNSPECIFIED && error.raw_os_error() == Some(libc::EAFNOSUPPORT);
                    if is_all { std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())) } else { Err(error) }
                })?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                (Socket::Tcp(listener), Listen::Tcp(address))
            }
            Listen::Unix(path) => {
                clear(path)?;
                let listener = std::os::unix::net::UnixListener::bind(path)?;
                // To connect is to write: with a umask of 0 every user could.
                let mode = fs::symlink_metadata(path)?.permissions().mode();
                fs::set_permissions(path, fs::Permissions::from_mode(mode & !OTHERS_WRITE))?;
                listener.set_nonblocking(true)?;
                (Socket::Unix(listener, SocketFile::of(path.clone())?), Listen::Unix(path.clone()))
            }
        };
        Ok(Self { socket, place })
    }

    /// The port, where there is one.
    pub fn port(&self) -> Option<u16> {
        match &self.place {
            Listen::Tcp(address) => Some(address.port()),
            Listen::Unix(_) => None,
        }
    }
}

/// Takes away the socket that a killed daemon left.
fn clear(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"))
        }
        Ok(_) if UnixStream::connect(path).is_ok() => Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for (text, place) in [
            ("127.0.0.1:9100", "127.0.0.1:9100"),
            ("[::1]:9100", "[::1]:9100"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            (":9100", "[::]:9100"),
            ("9100", "127.0.0.1:9100"),
            ("localhost:9100", "127.0.0.1:9100"),
            ("unix:/run/windlass.sock", "unix:/run/windlass.sock"),
        ] {
            let read: Listen = text.parse().unwrap();
            assert_eq!(read.to_string(), place, "{text}");
        }
        for bad in [
            "",
            ":",
            "unix:",
            "unix:relative",
            "unix:/dir/",
            "host.example:9100",
            "127.0.0.1",
            "127.0.0.1:99999",
            "99999",
            "http://127.0.0.1:1/",
        ] {
            assert!(bad.parse::<Listen>().unwrap_err().contains("unix:/absolute/path"), "{bad}");
        }
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_replaced_and_nothing_else_is() {
        let home = tempfile::tempdir().unwrap();
        let place = Listen::Unix(home.path().join("s"));
        let path = home.path().join("s");
        fs::write(&path, "mine").unwrap();
        assert_eq!(Listener::bind(&place).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a plain listener leaves it");
        // A process that another test starts has a copy of each descriptor for a moment.
        while std::os::unix::net::UnixStream::connect(&path).is_ok() {
            std::thread::yield_now();
        }
        let first = Listener::bind(&place).unwrap();
        assert_eq!(Listener::bind(&place).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_port_that_is_taken_is_refused() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(first.port().is_some_and(|port| port > 0));
        assert_eq!(Listener::bind(&first.place).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
