//! Whether somebody else has a file open. Mappings count: a mapping keeps its file open when all descriptors are closed, and no lock tells
//! of it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// From fcntl.h; the libc crate lacks it.
const F_SETSIG: libc::c_int = 10;

/// Whether `file`, which is ours and open for reading and writing, is open a second time anywhere, or cannot be asked. Who opens it
/// in this moment waits until the answer is there.
pub fn is_open_elsewhere(file: &File) -> bool {
    // A lease is granted only to the only one who has the file open (fcntl(2)). Who opens it meanwhile has us told by a signal, which
    // would be SIGIO and our end: SIGURG is one that nobody minds.
    let asked = control(file, F_SETSIG, libc::SIGURG).and_then(|()| control(file, libc::F_SETLEASE, libc::F_WRLCK));
    if asked.is_err() {
        return true;
    }
    // What was granted can be given back; else it ends with the descriptor.
    let _ = control(file, libc::F_SETLEASE, libc::F_UNLCK);
    false
}

fn control(file: &File, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: both commands take a number and touch no memory; the descriptor is open as long as it is borrowed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn who_has_it_open_for_reading_or_writing_is_seen_until_it_is_closed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let ours = open();
        assert!(!is_open_elsewhere(&ours));
        let others: [&dyn Fn() -> File; 2] = [&open, &|| File::open(&path).unwrap()];
        for other in others {
            let other = other();
            assert!(is_open_elsewhere(&ours));
            drop(other);
            assert!(!is_open_elsewhere(&ours));
        }
    }
}
