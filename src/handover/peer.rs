//! Which user is at the other end of a unix socket.

use std::io;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::process::Uid;

/// Returns the user that the peer ran as when it connected, or began to listen (SO_PEERCRED, unix(7)), as this user namespace numbers it. The process
/// number of the peer is not used: it is 0 when the peer runs in a PID namespace that cannot be seen from here, as the containers of a pod do.
///
/// # Errors
/// What getsockopt(2) says.
pub fn user_of(stream: &UnixStream) -> io::Result<Uid> {
    Ok(Uid::from_raw(getsockopt(stream, PeerCredentials)?.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(user_of(&one).unwrap(), rustix::process::geteuid());
    }
}
