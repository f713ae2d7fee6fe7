//! What is not known in a line is named: refused where the program whose place it is would refuse it or do something with it, and said in the
//! log where it has no effect here.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;

use super::oss::{Needs, World, refusal};
use super::place::{soon, wait};
use super::support::mounts::{trial, trial_as_root};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("what_is_not_known_is_refused_by_its_name", || {
            refused();
            Ok(())
        }),
        trial("what_has_no_effect_is_named_in_the_log", noted),
        trial_as_root("a_log_directory_named_syslog_is_the_socket_of_syslog", to_syslog),
    ]
}

fn refused() {
    for (program, words, named) in [
        ("ossfs", "-o url={url},listobjectsv3 data:/p {at} -f", "listobjectsv3"),
        ("ossfs", "-o url={url},auto_create_bucket,agentic_bucket=b data:/p {at} -f", "auto_create_bucket"),
        ("ossfs", "-o url={url},agent_identity_endpoint=https://x data:/p {at} -f", "agent_identity_endpoint"),
        ("ossfs2", "mount {at} --oss_endpoint={url} --oss_bucket=data --new_thing=1 -f", "new_thing"),
        ("ossfs2", "mount {at} --oss_endpoint={url} --oss_bucket=data --auto_create_bucket=true -f", "auto_create_bucket"),
        ("s3fs", "data {at} -o url={url},sigv2 -f", "sigv2"),
        ("s3fs", "data {at} -o url={url},servicepath=/s3 -f", "url=https://HOST/PATH"),
        ("s3fs", "data {at} -o url={url},new_thing -f", "new_thing"),
        ("s3fs", "--incomplete-mpu-abort=all data", "windlass mpu abort"),
        ("mount-s3", "data {at} --foreground --new-thing=1", "new-thing"),
        ("mount-s3", "data {at} --foreground --expected-bucket-owner=111122223333", "expected-bucket-owner"),
        ("mount-s3", "data {at} --foreground --cache-xz other", "cache-xz"),
    ] {
        let (code, said) = refusal(program, words);
        assert_eq!(code, Some(2), "{words}: {said}");
        assert!(said.contains(named) && said.lines().count() == 1, "{words}: {said}");
    }
}

fn noted() {
    let world = World::new(Needs::Key);
    let log = world.place.beside("log");
    let mut command = world.command("ossfs");
    let words = "-o url={url},metrics_top=5,mime=/csi/mime.types,use_wtf8,dbglevel=warn,passwd_file={dir}/passwd-ossfs data:/p {at} -f";
    let mut child = command.args(world.words(words)).stderr(fs::File::create(&log).expect("it is ours")).spawn().expect("it starts");
    assert!(soon(|| world.place.is_mounted()));
    world.reads();
    world.place.umount().succeeds();
    assert_eq!(wait(&mut child), Some(0));
    let log = fs::read_to_string(log).expect("it is ours");
    for word in ["metrics_top", "mime", "use_wtf8"] {
        assert!(log.contains(&format!("option {word} has no effect")), "{word}: {log}");
    }
}

/// In a mount namespace with a /dev of its own, whose syslog is a socket of the test.
fn to_syslog() {
    let world = World::new(Needs::Key);
    let socket = UnixDatagram::bind(world.place.beside("log")).expect("the place is empty");
    let link = world.place.beside("ossfs2");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_windlass"), &link).expect("it is ours");
    let device = "mount -t tmpfs none /dev && mknod /dev/fuse c 10 229 && ln -s \"$1\" /dev/log && shift && exec \"$@\"";
    let words = "mount {at} -c {dir}/passwd-ossfs2 --oss_endpoint={url} --oss_bucket=data --fuse_threads=8 --log_dir=syslog -f";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", device, "sh"]).args([&world.place.beside("log"), &link]).args(world.words(words));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it is installed");
    let mut lines = Vec::new();
    let mut buffer = [0; 4096];
    socket.set_nonblocking(true).expect("it is a socket");
    let has_note = |lines: &[String]| lines.iter().any(|line| line.contains("option fuse_threads has no effect"));
    let noted = soon(|| {
        lines.extend(socket.recv(&mut buffer).map(|len| String::from_utf8_lossy(&buffer[..len]).into_owned()));
        has_note(&lines) || child.try_wait().is_ok_and(|ended| ended.is_some())
    });
    // Its mount is gone with its namespace.
    let _ = child.kill();
    let _ = child.wait();
    assert!(noted && has_note(&lines), "{lines:?}");
}
