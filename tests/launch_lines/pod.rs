//! The mounter in a pod of the Mountpoint driver for S3, which sends it a mount as pkg/mountpoint/mountoptions/mount_options.go does (Send: one
//! message with one descriptor, then it hangs up) and looks at its files (pkg/podmounter/mppod/path.go).

use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use libtest_mimic::Trial;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};

use super::fuse::{mounted, unmounted};
use super::oss::{Needs, World};
use super::place::{soon, wait};
use super::support::mounts::trial_as_root;
use super::support::{BUCKET, REGION, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_pod_serves_until_it_is_unmounted_and_says_whether_it_is_over", until_unmounted),
        trial_as_root("a_pod_leaves_its_error_for_the_driver", leaves_its_error),
        Trial::test("a_pod_that_nobody_wants_any_more_ends_with_0", || {
            over_before();
            Ok(())
        }),
    ]
}

struct Pod {
    world: World,
    comm: PathBuf,
    child: Child,
}

impl Pod {
    fn start() -> Self {
        let world = World::new(Needs::Nothing);
        let comm = world.place.beside("comm");
        fs::create_dir(&comm).expect("it is ours");
        let child = Self::run(&world, &comm, "60s");
        assert!(soon(|| comm.join("mount.sock").exists()));
        Self { world, comm, child }
    }

    /// Under the name and with the flags of the driver's own, which have one hyphen.
    fn run(world: &World, comm: &Path, patience: &str) -> Child {
        let mut command = world.command("aws-s3-csi-mounter");
        command.arg(format!("-mount-sock-recv-timeout={patience}")).arg("--comm-dir").arg(comm);
        command.arg("--cache-dir").arg(world.place.beside("none")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    }

    fn send(&self, args: &[&str], env: &[String], fuse: BorrowedFd<'_>) {
        let stream = UnixStream::connect(self.comm.join("mount.sock")).expect("it listens");
        let text = serde_json::json!({"bucketName": BUCKET, "args": args, "env": env}).to_string();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let descriptors = [fuse];
        assert!(rights.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let sent = sendmsg(&stream, &[IoSlice::new(text.as_bytes())], &mut rights, SendFlags::empty()).expect("it is read");
        assert_eq!(sent, text.len());
    }
}

fn environment(server: &S3Server) -> Vec<String> {
    let variables = server.client_env().into_iter().map(|(name, value)| format!("{name}={value}"));
    variables.chain([format!("AWS_ENDPOINT_URL_S3={}", server.endpoint()), format!("AWS_REGION={REGION}")]).collect()
}

fn until_unmounted() {
    let server = S3Server::start();
    server.put("file", "content");
    for over in [true, false] {
        let mut pod = Pod::start();
        let fuse = mounted(&pod.world.place.at);
        pod.send(&["--allow-root", "--user-agent-prefix=s3-csi-driver/2.4.0 credential-source#pod"], &environment(&server), fuse.as_fd());
        drop(fuse);
        assert_eq!(pod.world.place.read("file"), b"content");
        // A node that is drained: whoever uses the volume ends first.
        kill_process(Pid::from_child(&pod.child), Signal::TERM).expect("it runs");
        assert_eq!(pod.world.place.read("file"), b"content");
        if over {
            fs::write(pod.comm.join("mount.exit"), "").expect("it is ours");
        }
        unmounted(&pod.world.place.at);
        assert_eq!(wait(&mut pod.child), Some(if over { 0 } else { 1 }));
        assert!(!pod.comm.join("mount.err").exists());
    }
}

fn leaves_its_error() {
    let server = S3Server::start();
    let mut pod = Pod::start();
    let fuse = mounted(&pod.world.place.at);
    let env: Vec<_> = environment(&server).into_iter().filter(|variable| !variable.starts_with("AWS_SECRET")).collect();
    pod.send(&["--allow-root", "--new-thing=1"], &env, fuse.as_fd());
    drop(fuse);
    assert_eq!(wait(&mut pod.child), Some(2));
    let error = fs::read_to_string(pod.comm.join("mount.err")).expect("it is left");
    assert!(error.contains("new-thing"), "{error}");
    assert!(!pod.comm.join("mount.sock").exists());
    let _ = rustix::mount::unmount(&pod.world.place.at, rustix::mount::UnmountFlags::DETACH);
}

fn over_before() {
    let world = World::new(Needs::Nothing);
    let comm = world.place.beside("comm");
    fs::create_dir(&comm).expect("it is ours");
    assert_eq!(wait(&mut Pod::run(&world, &comm, "0s")), Some(1));
    fs::write(comm.join("mount.exit"), "").expect("it is ours");
    assert_eq!(wait(&mut Pod::run(&world, &comm, "0s")), Some(0));
}
