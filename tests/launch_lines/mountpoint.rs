//! mount-s3, as the Mountpoint driver for S3 starts it: `mount-s3 BUCKET /dev/fd/3` and sorted arguments (pkg/mountpoint/runner/foreground.go and
//! pkg/mountpoint/args.go of awslabs/mountpoint-s3-csi-driver). The arguments are those of its node plugin (pkg/driver/node/node.go,
//! pkg/driver/node/mounter/pod_mounter.go and user_agent.go) and of its examples.

use std::os::fd::AsRawFd;
use std::process::Stdio;

use libtest_mimic::Trial;

use super::fuse::{mounted, unmounted};
use super::oss::{Needs, World};
use super::place::{Place, run, soon, wait};
use super::support::mounts::{trial, trial_as_root};
use super::support::{BUCKET, REGION, S3Server};

struct Line {
    name: &'static str,
    words: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
}

const USER_AGENT: &str = "--user-agent-prefix=s3-csi-driver/2.4.0 credential-source#driver k8s/v1.30.0 md/install#helm";

const LINES: &[Line] = &[
    Line {
        name: "a_volume",
        words: &["--allow-root", "--foreground", "--region={region}", USER_AGENT],
        settings: &[("allow-root", "true"), ("foreground", "true"), ("stat-cache-ttl", "1s"), ("region", "{region}")],
    },
    Line {
        name: "a_volume_with_mount_options",
        words: &[
            "--allow-delete",
            "--allow-other",
            "--allow-overwrite",
            "--dir-mode=0770",
            "--file-mode=0660",
            "--foreground",
            "--gid=2000",
            "--metadata-ttl=indefinite",
            "--prefix=dir/",
            "--region={region}",
            "--uid=1000",
            USER_AGENT,
        ],
        settings: &[
            ("source", "s3://{bucket}/dir"),
            ("allow-other", "true"),
            ("dir-mode", "0770"),
            ("file-mode", "0660"),
            ("uid", "1000"),
            ("gid", "2000"),
            ("stat-cache-ttl", "-1"),
        ],
    },
    Line {
        name: "a_volume_with_a_cache",
        words: &["--allow-root", "--cache={dir}/cache", "--foreground", "--max-cache-size=512", "--part-size=16777216", USER_AGENT],
        settings: &[
            ("read-mode", "cached"),
            ("spill-dir", "{dir}/cache"),
            ("spill-max", "512MiB"),
            ("stat-cache-ttl", "60s"),
            ("upload-part-size", "16MiB"),
        ],
    },
];

pub fn trials() -> Vec<Trial> {
    let looked_at = LINES.iter().map(|line| {
        Trial::test(format!("mount_s3_{}_comes_to_these_settings", line.name), move || {
            comes_to(line);
            Ok(())
        })
    });
    let served = LINES.iter().map(|line| trial_as_root(&format!("mount_s3_{}_serves_a_descriptor", line.name), move || serves(line)));
    let by_hand = trial("mount_s3_by_hand_mounts_a_directory", by_hand);
    looked_at.chain(served).chain([by_hand]).collect()
}

fn filled(text: &str, place: &Place) -> String {
    let dir = place.beside("");
    text.replace("{region}", REGION)
        .replace("{bucket}", BUCKET)
        .replace("{dir}", dir.to_str().expect("the test names it").trim_end_matches('/'))
}

fn comes_to(line: &Line) {
    let world = World::new(Needs::Nothing);
    let words = line.words.iter().map(|word| filled(word, &world.place));
    let mut command = world.command("mount-s3");
    command.args([BUCKET, "/dev/fd/3"]).args(words).arg("--print-config");
    let said = run(command).succeeds();
    for (name, value) in line.settings {
        let shown = said.out.lines().find_map(|row| row.strip_prefix(&format!("{name} = "))?.split("  # ").next());
        assert_eq!(shown.map(|text| text.trim_matches('"')), Some(filled(value, &world.place).as_str()), "{name}\n{}", said.out);
    }
}

fn serves(line: &Line) {
    let (world, server) = (World::new(Needs::Nothing), S3Server::start());
    let has_prefix = line.words.iter().any(|word| word.starts_with("--prefix"));
    server.put(if has_prefix { "dir/file" } else { "file" }, "content");
    let fuse = mounted(&world.place.at);
    let mut command = world.command("mount-s3");
    command.args([BUCKET, &format!("/dev/fd/{}", fuse.as_raw_fd())]).args(line.words.iter().map(|word| filled(word, &world.place)));
    // Where S3 is comes from the environment, as it may for the other.
    command.env("AWS_ENDPOINT_URL_S3", server.endpoint()).env("AWS_REGION", REGION).envs(server.client_env());
    let mut child = command.stdout(Stdio::null()).spawn().expect("it starts");
    drop(fuse);
    assert_eq!(world.place.read("file"), b"content");
    unmounted(&world.place.at);
    assert_eq!(wait(&mut child), Some(0));
}

fn by_hand() {
    let (world, server) = (World::new(Needs::Nothing), S3Server::start());
    server.put("a/file", "content");
    let mut command = world.command("mount-s3");
    command.arg(format!("s3://{BUCKET}/a/")).arg(&world.place.at).args(["--endpoint-url", &server.endpoint(), "--force-path-style"]);
    command.args(["--region", REGION, "--max-threads", "32", "--allow-delete", "-d", "-l"]).arg(world.place.beside("logs"));
    run({
        command.envs(server.client_env());
        command
    })
    .succeeds();
    assert_eq!(world.place.read("file"), b"content");
    let log = std::fs::read_to_string(world.place.beside("logs").join("windlass.log")).expect("it keeps a log");
    assert!(log.contains("option max-threads has no effect") && log.contains("allow-overwrite"), "{log}");
    world.ends();
    assert!(soon(|| world.place.pids().is_empty()));
}
