//! Which connections this process has, whoever opened them: libraries that keep connections tell nobody.

use std::fs;
use std::mem::{size_of, zeroed};
use std::os::fd::RawFd;

use libc::{AF_INET, AF_INET6, c_int, c_void, sockaddr, sockaddr_in, sockaddr_storage, socklen_t};

/// TCP connections of this process to others; those that others made to `port`, where it listens, are left out.
pub fn tcp_connections(port: Option<u16>) -> usize {
    ports().iter().filter(|(own, _)| port != Some(*own)).count()
}

/// The ports at both ends of each connection, that of this process first.
fn ports() -> Vec<(u16, u16)> {
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let is_socket =
        |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
    let numbers = descriptors.flatten().filter(is_socket).filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    let both = |fd| Some((port_of(fd, libc::getsockname)?, port_of(fd, libc::getpeername)?));
    numbers.filter(|&fd| is_stream(fd)).filter_map(both).collect()
}

fn is_stream(fd: RawFd) -> bool {
    let mut kind: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `kind`. A descriptor that was closed meanwhile, or is another one now, is an
    // answer about that and harms nobody: nothing is done to it.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast::<c_void>(), &raw mut len) };
    result == 0 && kind == libc::SOCK_STREAM
}

/// The port at one end of an internet socket.
fn port_of(fd: RawFd, ask: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int) -> Option<u16> {
    // SAFETY: all bytes zero are a valid `sockaddr_storage`.
    let mut address: sockaddr_storage = unsafe { zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `address`; of the descriptor see above.
    let result = unsafe { ask(fd, (&raw mut address).cast::<sockaddr>(), &raw mut len) };
    let is_internet = matches!(c_int::from(address.ss_family), AF_INET | AF_INET6);
    // SAFETY: `address` is larger than a `sockaddr_in` and as strictly aligned; the port is at the same place for both families.
    (result == 0 && is_internet).then(|| u16::from_be(unsafe { (*(&raw const address).cast::<sockaddr_in>()).sin_port }))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_counts_at_both_ends_while_it_is_open_and_listening_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Other tests of this process have connections of their own: only what is ours is looked at.
        let ours = || ports().into_iter().filter(|ends| ends.0 == port || ends.1 == port).collect::<Vec<_>>();
        assert_eq!(ours(), []);
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let other = stream.local_addr().unwrap().port();
        let mut both = ours();
        both.sort_by_key(|ends| ends.0 == port);
        assert_eq!(both, [(other, port), (port, other)]);
        drop((stream, accepted));
        // A process that another test starts has a copy of each descriptor for a moment.
        while !ours().is_empty() {
            std::thread::yield_now();
        }
    }
}
