//! Whatever would change the bucket is refused, by the kernel or by us, and no request for it is sent.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use libtest_mimic::Trial;

use super::support::mounts::{Daemon, trial};
use super::support::{Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![trial("writes_are_answered_with_erofs", writes)]
}

fn attempts(at: &Path) -> Vec<(&'static str, io::Result<()>)> {
    let (file, new) = (at.join("dir/file"), at.join("dir/new"));
    let write = |options: &mut fs::OpenOptions, path: &Path| options.write(true).open(path).map(drop);
    vec![
        ("touch", write(File::options().create(true), &new)),
        ("truncate", write(File::options().truncate(true), &file)),
        ("append", write(File::options().append(true), &file)),
        ("utimens", fs::File::open(&file).and_then(|file| file.set_modified(std::time::UNIX_EPOCH))),
        ("mkdir", fs::create_dir(at.join("made"))),
        ("rm", fs::remove_file(&file)),
        ("rmdir", fs::remove_dir(at.join("dir"))),
        ("mv", fs::rename(&file, &new)),
        ("chmod", fs::set_permissions(&file, Permissions::from_mode(0o600))),
        ("chown", std::os::unix::fs::chown(&file, Some(0), Some(0))),
        ("ln -s", symlink("file", &new)),
        ("ln", fs::hard_link(&file, &new)),
    ]
}

fn writes() {
    let server = S3Server::start();
    let etag = server.put("dir/file", "content");
    let mount = Daemon::new(&server).flag("--read-only").start();
    for (name, result) in attempts(mount.path()) {
        let errno = result.expect_err(name).raw_os_error();
        let allowed: &[i32] = if name == "ln" { &[libc::EROFS, libc::EOPNOTSUPP] } else { &[libc::EROFS] };
        assert!(errno.is_some_and(|errno| allowed.contains(&errno)), "{name}: {errno:?}");
    }
    assert_eq!(fs::read(mount.join("dir/file")).expect("it is as it was"), b"content");
    assert!(!etag.is_empty() && server.count(Kind::Put) + server.count(Kind::Delete) == 0);
}
