//! mount-s3, as the Mountpoint driver for S3 starts it: `mount-s3 BUCKET /dev/fd/3` and sorted arguments (pkg/mountpoint/runner/foreground.go and
//! pkg/mountpoint/args.go of awslabs/mountpoint-s3-csi-driver). The arguments are those of its node plugin (pkg/driver/node/node.go,
//! pkg/driver/node/mounter/pod_mounter.go and user_agent.go) and of its examples.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

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
    let arns = ARNS.iter().map(|arn| trial(&format!("{}_is_reached_at_its_host", arn.name), move || is_reached(arn)));
    let shared = Trial::test("the_sdks_variables_and_profiles_choose_the_address", || {
        variables_and_profiles();
        Ok(())
    });
    looked_at.chain(served).chain([by_hand, shared]).chain(arns).collect()
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

/// An ARN, with what else is said of its bucket, and the host that the vendor's documents give it.
struct Named {
    name: &'static str,
    arn: &'static str,
    words: &'static [&'static str],
    host: &'static str,
}

/// The examples of <https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-points-alias.html>,
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/MultiRegionAccessPointRequests.html>,
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/dual-stack-endpoints.html>
const ARNS: &[Named] = &[
    Named {
        name: "an_access_point",
        arn: "arn:aws:s3:us-west-2:123456789012:accesspoint/test",
        words: &[],
        host: "test-123456789012.s3-accesspoint.us-west-2.amazonaws.com",
    },
    Named {
        name: "an_access_point_by_dual_stack",
        arn: "arn:aws:s3:us-west-2:123456789012:accesspoint/test",
        words: &["--dual-stack"],
        host: "test-123456789012.s3-accesspoint.dualstack.us-west-2.amazonaws.com",
    },
    Named {
        name: "a_multi_region_access_point",
        arn: "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap",
        words: &[],
        host: "mfzwi23gnjvgw.mrap.accesspoint.s3-global.amazonaws.com",
    },
    Named {
        name: "an_object_lambda_access_point",
        arn: "arn:aws:s3-object-lambda:us-east-1:123456789012:accesspoint/lambda",
        words: &[],
        host: "lambda-123456789012.s3-object-lambda.us-east-1.amazonaws.com",
    },
];

/// By each command that takes a source, with the prefix or the key behind the ARN.
fn is_reached(named: &Named) {
    let world = World::new(Needs::Nothing);
    let at = world.place.at.to_str().expect("the test names it");
    let target = world.place.beside("got");
    let (arn, target) = (named.arn, target.to_str().expect("the test names it"));
    for (program, words) in [
        ("mount-s3", &[arn, at, "--prefix=dir/", "--foreground"][..]),
        ("windlass", &["mount", "--compat", "mountpoint", arn, at, "--foreground"]),
        ("windlass", &["mount", &format!("s3://{arn}/dir"), at, "--foreground"]),
        ("windlass", &["mount", arn, at, "--foreground"]),
        ("windlass", &["get", &format!("s3://{arn}/dir/file"), target, "--retries", "0"]),
    ] {
        let mut command = world.command(program);
        command.args(words).args(named.words).env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "secret");
        let hosts = connects_to(command);
        assert!(!hosts.is_empty() && hosts.iter().all(|host| *host == format!("{}:443", named.host)), "{words:?}: {hosts:?}");
    }
}

/// <https://docs.aws.amazon.com/sdkref/latest/guide/feature-endpoints.html>
fn variables_and_profiles() {
    let world = World::new(Needs::Nothing);
    let config = world.place.beside("config");
    let keys = "aws_access_key_id = AKID\naws_secret_access_key = secret\n";
    std::fs::write(&config, format!("[profile site]\nuse_fips_endpoint = true\n{keys}")).expect("the directory is the test's");
    for (words, host) in [
        (&[][..], "data.s3-fips.dualstack.us-west-2.amazonaws.com"),
        (&["--dual-stack=false"], "data.s3-fips.us-west-2.amazonaws.com"),
        (&["--fips=false"], "data.s3.dualstack.us-west-2.amazonaws.com"),
        (&["--fips=false", "--dual-stack=false", "--accelerate"], "data.s3-accelerate.amazonaws.com"),
    ] {
        let mut command = world.command("windlass");
        command.args(["ls", "s3://data", "--region", "us-west-2", "--profile", "site", "--retries", "0"]).args(words);
        command.env("AWS_CONFIG_FILE", &config).env("AWS_USE_DUALSTACK_ENDPOINT", "true");
        let hosts = connects_to(command);
        assert!(!hosts.is_empty() && hosts.iter().all(|found| *found == format!("{host}:443")), "{words:?}: {hosts:?}");
    }
}

/// What `command` asks a proxy to connect to. The proxy refuses, and the command fails.
fn connects_to(mut command: Command) -> Vec<String> {
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = proxy.local_addr().expect("it is bound");
    let (tell, told) = channel();
    thread::spawn(move || {
        for stream in proxy.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut line = String::new();
            let mut reader = BufReader::new(&stream);
            if reader.read_line(&mut line).is_err() {
                continue;
            }
            let host = line.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap_or(&line).to_owned();
            if tell.send(host).is_err() {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let said = run({
        command.env("HTTPS_PROXY", format!("http://{address}"));
        command
    });
    assert_ne!(said.code, Some(0), "{}", said.err);
    told.try_iter().collect()
}
