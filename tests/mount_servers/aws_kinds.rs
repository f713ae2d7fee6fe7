//! Each kind of address that Amazon gives a bucket, at the host that it has there, with signatures that are compared with the vendor's: mounted, listed,
//! read, written and renamed, and used without a mount.

use std::fs;
use std::process::Command;

use libtest_mimic::Trial;

use super::support::aws_hosts::AwsHosts;
use super::support::mounts::{Daemon, lacks, trial_unless};
use super::support::{ACCESS_KEY, DIRECTORY_BUCKET, S3Server, SECRET_KEY};
use super::things::names;

/// See the module.
struct Case {
    name: &'static str,
    source: &'static str,
    words: &'static [&'static str],
    host: &'static str,
    /// Copies inside it are refused, so that nothing is renamed.
    has_no_copies: bool,
}

const CASES: [Case; 10] = [
    Case::new("bucket", "s3://test-bucket", &[], "test-bucket.s3.us-west-2.amazonaws.com"),
    Case::new("bucket_by_fips", "s3://test-bucket", &["--fips"], "test-bucket.s3-fips.us-west-2.amazonaws.com"),
    Case::new("bucket_by_dual_stack", "s3://test-bucket", &["--dual-stack"], "test-bucket.s3.dualstack.us-west-2.amazonaws.com"),
    Case::new("bucket_by_acceleration", "s3://test-bucket", &["--accelerate"], "test-bucket.s3-accelerate.amazonaws.com"),
    Case::new(
        "access_point",
        "arn:aws:s3:us-west-2:123456789012:accesspoint/test",
        &[],
        "test-123456789012.s3-accesspoint.us-west-2.amazonaws.com",
    ),
    Case::new(
        "access_point_of_mountpoint",
        "arn:aws:s3:us-west-2:123456789012:accesspoint/test",
        &["--compat", "mountpoint"],
        "test-123456789012.s3-accesspoint.us-west-2.amazonaws.com",
    ),
    Case {
        // https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html: a destination of copies, and no source.
        has_no_copies: true,
        ..Case::new(
            "multi_region_access_point",
            "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap",
            &[],
            "mfzwi23gnjvgw.mrap.accesspoint.s3-global.amazonaws.com",
        )
    },
    Case {
        has_no_copies: true,
        ..Case::new(
            "object_lambda_access_point",
            "arn:aws:s3-object-lambda:us-west-2:123456789012:accesspoint/lambda",
            &[],
            "lambda-123456789012.s3-object-lambda.us-west-2.amazonaws.com",
        )
    },
    Case::new(
        "access_point_of_an_outpost",
        "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-01ac5d28a6a232904/accesspoint/reports",
        &[],
        "reports-123456789012.op-01ac5d28a6a232904.s3-outposts.us-west-2.amazonaws.com",
    ),
    Case::new(
        "directory_bucket",
        "s3://test-bucket--usw2-az1--x-s3",
        &[],
        "test-bucket--usw2-az1--x-s3.s3express-usw2-az1.us-west-2.amazonaws.com",
    ),
];

impl Case {
    const fn new(name: &'static str, source: &'static str, words: &'static [&'static str], host: &'static str) -> Self {
        Self { name, source, words, host, has_no_copies: false }
    }
}

pub fn trials() -> Vec<Trial> {
    let trial = |case: &'static Case| trial_unless(|| lacks("openssl"), &format!("aws_{}_is_used_at_its_host", case.name), || used(case));
    CASES.iter().map(trial).collect()
}

fn used(case: &Case) {
    let is_directory_bucket = case.source.ends_with(DIRECTORY_BUCKET);
    let server = if is_directory_bucket { S3Server::start_directory_bucket() } else { S3Server::start_anonymous() };
    server.put("dir/there", "there");
    let aws = AwsHosts::before(&server);
    let bundle = aws.ca_bundle();
    let environment = [
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ("AWS_REGION", "us-west-2"),
        ("HTTPS_PROXY", &aws.proxy()),
        ("AWS_CA_BUNDLE", bundle.to_str().expect("it is text")),
    ];
    let daemon = environment.iter().fold(Daemon::at_aws(case.source).flags(case.words), |daemon, (name, value)| daemon.env(name, value));
    let mount = daemon.start();
    assert_eq!(names(&mount.join("dir")), ["there"]);
    assert_eq!(fs::read(mount.join("dir/there")).expect("it can be read"), b"there");
    fs::write(mount.join("dir/new"), "new").expect("it can be written");
    let large = vec![5; 20 << 20];
    fs::write(mount.join("large"), &large).expect("it can be written in parts");
    assert!(server.stored("large").expect("it is there").0 == large);
    let renamed = fs::rename(mount.join("dir/new"), mount.join("renamed"));
    assert_eq!(renamed.is_err(), case.has_no_copies, "{renamed:?}");
    let kept = if case.has_no_copies { "dir/new" } else { "renamed" };
    assert_eq!(server.stored(kept).expect("it is there").0, "new");
    fs::remove_file(mount.join(kept)).expect("it can be removed");
    assert!(server.stored(kept).is_none());
    drop(mount);
    assert_eq!(aws.hosts(), [case.host], "and no other host");

    if case.words.contains(&"--compat") {
        return;
    }
    let place = tempfile::tempdir().expect("there is a disk");
    let got = place.path().join("got");
    let source = if case.source.starts_with("s3://") { case.source.to_owned() } else { format!("s3://{}", case.source) };
    for words in [&["get", &format!("{source}/dir/there"), got.to_str().expect("it is text")][..], &["ls", &format!("{source}/dir/")]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(words).args(case.words).env_clear().envs(environment).env("AWS_EC2_METADATA_DISABLED", "true");
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(fs::read(&got).expect("it was written"), b"there");
    assert_eq!(aws.hosts(), [case.host], "and no other host");
}
