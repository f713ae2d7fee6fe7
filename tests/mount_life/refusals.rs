//! A bucket that cannot be mounted: one line says what, where and the likely fix, and nothing is left behind.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use libtest_mimic::Trial;

use super::place::{Place, run};
use super::support::mounts::trial;
use super::support::{ACCESS_KEY, BUCKET, Effect, Fault, Kind, REGION, S3Server, SECRET_KEY};
use super::wrong_server::WrongServer;

/// Exit codes, as `windlass mount --help` lists them.
const USAGE: i32 = 2;
const CREDENTIALS: i32 = 3;
const BUCKET_OR_ENDPOINT: i32 = 4;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("access_denied_names_the_request_and_the_permission", access_denied),
        trial("a_wrong_secret_is_told_from_a_missing_permission", wrong_secret),
        trial("a_bucket_that_does_not_exist_is_named", no_such_bucket),
        trial("a_wrong_region_names_the_right_one", wrong_region),
        trial("an_endpoint_where_nobody_listens_is_named", nobody_listens),
        trial("an_endpoint_that_never_answers_is_given_up", never_answers),
        trial("an_endpoint_that_speaks_something_else_is_told_so", wrong_protocol),
        trial("a_credentials_file_that_cannot_be_used_is_named_with_its_fix", credentials_file),
        trial("without_credentials_the_ways_to_give_them_are_listed", no_credentials),
        trial("a_name_that_no_bucket_can_have_is_not_asked_for", bad_name),
        trial("a_prefix_is_named_in_the_refusal", prefix),
    ]
}

/// Starts a mount both ways and checks the one line of each.
#[track_caller]
fn refused(place: &Place, command: impl Fn() -> Command, code: i32, words: &[&str]) {
    for attached in [true, false] {
        let mut command = command();
        if attached {
            command.args(["--foreground", "--log-level", "error"]);
        } else {
            command.arg("--log-file").arg(place.beside("log"));
        }
        let said = run(command);
        assert_eq!(said.code, Some(code), "{}{}", said.out, said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
        assert!(said.err.starts_with("windlass: ") && said.out.is_empty(), "{}{}", said.out, said.err);
        for word in words {
            assert!(said.err.contains(word), "{word:?} is missing in {}", said.err);
        }
        for never in [SECRET_KEY, "\"\"", "; ;", "::", ": ;"] {
            assert!(!said.err.contains(never), "{never:?} is in {}", said.err);
        }
        assert!(!place.is_mounted() && place.pids().is_empty());
        if attached {
            eprint!("{}", said.err);
        }
    }
}

/// The words that name a bucket at a server.
fn named(endpoint: &str) -> [String; 2] {
    [format!("cannot mount s3://{BUCKET}"), format!("(endpoint {endpoint})")]
}

#[track_caller]
fn refused_by(place: &Place, server: &S3Server, code: i32, words: &[&str]) {
    let [what, place_of_it] = named(&server.endpoint());
    refused(place, || place.mount(server), code, &[&[what.as_str(), &place_of_it], words].concat());
}

/// A mount from a server that is none of S3, with credentials.
fn from(place: &Place, endpoint: &str) -> Command {
    let mut command = place.mount_from(&format!("s3://{BUCKET}"), endpoint);
    command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    command
}

fn access_denied() {
    let (server, place) = (S3Server::start(), Place::new());
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::List));
    refused_by(&place, &server, CREDENTIALS, &["HTTP 403", "AccessDenied", "request id 4442587FB7D0A2F9", "permission to list"]);
}

fn wrong_secret() {
    let (server, place) = (S3Server::start(), Place::new());
    let command = || {
        let mut command = place.mount(&server);
        command.env("AWS_SECRET_ACCESS_KEY", "not-the-secret");
        command
    };
    refused(&place, command, CREDENTIALS, &["HTTP 403", "SignatureDoesNotMatch", "check key id, secret"]);
}

fn no_such_bucket() {
    let (server, place) = (S3Server::start(), Place::new());
    let command = || {
        let mut command = place.mount_from("s3://no-such-bucket", &server.endpoint());
        command.envs(server.client_env());
        command
    };
    let endpoint = format!("(endpoint {})", server.endpoint());
    refused(
        &place,
        command,
        BUCKET_OR_ENDPOINT,
        &["s3://no-such-bucket", &endpoint, "HTTP 404", "NoSuchBucket", "check the bucket's name"],
    );
}

fn wrong_region() {
    let place = Place::new();
    let moved = "<Code>PermanentRedirect</Code><Message>m</Message><Region>eu-west-3</Region><RequestId>R1</RequestId>";
    let signed = format!(
        "<Code>AuthorizationHeaderMalformed</Code><Message>the region '{REGION}' is wrong; expecting 'eu-west-3'</Message><Region>eu-west-3</Region><RequestId>R1</RequestId>"
    );
    for (status, document) in [("301 Moved Permanently", moved), ("400 Bad Request", &signed)] {
        let server = WrongServer::refusing(status, document);
        let number = format!("HTTP {}", &status[..3]);
        refused(&place, || from(&place, &server.endpoint()), BUCKET_OR_ENDPOINT, &["--region eu-west-3", &number, "request id R1"]);
    }
}

fn nobody_listens() {
    let place = Place::new();
    // The port was free a moment ago, and no other test asks for this one.
    let port =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()).expect("loopback has a free port").port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let [what, place_of_it] = named(&endpoint);
    let words = [what.as_str(), &place_of_it, "cannot connect: Connection refused", "check --endpoint"];
    refused(&place, || from(&place, &endpoint), BUCKET_OR_ENDPOINT, &words);
}

fn never_answers() {
    let (place, server) = (Place::new(), WrongServer::silent());
    let [what, place_of_it] = named(&server.endpoint());
    refused(
        &place,
        || from(&place, &server.endpoint()),
        BUCKET_OR_ENDPOINT,
        &[&what, &place_of_it, "no answer", "check that the endpoint is up"],
    );
}

fn wrong_protocol() {
    let place = Place::new();
    let text = WrongServer::saying("220 mail.example.com ESMTP\r\n".into());
    refused(&place, || from(&place, &text.endpoint()), BUCKET_OR_ENDPOINT, &["does not speak HTTP", "check that --endpoint"]);
    let page = "<!DOCTYPE html><html><body>hello</body></html>";
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n";
    let site = WrongServer::saying(format!("{head}content-length: {}\r\n\r\n{page}", page.len()));
    refused(&place, || from(&place, &site.endpoint()), BUCKET_OR_ENDPOINT, &["cannot be read", "HTTP 200", "check that --endpoint"]);
    let tls = || from(&place, &text.endpoint().replace("http:", "https:"));
    refused(&place, tls, BUCKET_OR_ENDPOINT, &["does not speak TLS", "http://"]);
}

fn credentials_file() {
    let (server, place) = (S3Server::start(), Place::new());
    let line = format!("{ACCESS_KEY}:{SECRET_KEY}\n");
    let files = [
        (place.write("open", &line, 0o644), "mode 644", "chmod 600"),
        (place.beside("absent"), "No such file", "must be there"),
        (place.at.clone(), "has no file AccessKeyId", "AccessKeySecret"),
        (place.write("odd", "nothing\n", 0o600), "line 1", "KEY_ID:SECRET"),
        (place.write("other", &format!("other-bucket:{line}"), 0o600), "no line for the bucket", "KEY_ID:SECRET"),
    ];
    for (file, problem, fix) in files {
        let name = file.to_str().expect("it is text");
        let command = || {
            let mut command = place.mount_from(&format!("s3://{BUCKET}"), &server.endpoint());
            command.args(["--passwd-file", name]);
            command
        };
        refused(&place, command, CREDENTIALS, &[name, problem, fix]);
        let command = || {
            let mut command = place.mount_from(&format!("oss://{BUCKET}"), &server.endpoint());
            command.args(["--passwd-file", name]);
            command
        };
        refused(&place, command, CREDENTIALS, &[name, problem, fix]);
    }
    assert_eq!(server.requests().len(), 0, "without credentials nothing is sent");
}

fn no_credentials() {
    let (server, place) = (S3Server::start(), Place::new());
    let words = ["no credentials found", "AWS_ACCESS_KEY_ID", "--passwd-file", "--signature none for a public bucket"];
    refused(&place, || place.mount_from(&format!("s3://{BUCKET}"), &server.endpoint()), CREDENTIALS, &words);
    // Nothing answers at the metadata address of this machine, or at least no role.
    let words = ["no credentials found", "OSS_ACCESS_KEY_ID", "--passwd-file", "--signature none for a public bucket"];
    refused(&place, || place.mount_from(&format!("oss://{BUCKET}"), &server.endpoint()), CREDENTIALS, &words);
}

fn bad_name() {
    let (server, place) = (S3Server::start(), Place::new());
    for (name, rule) in [("Bad_Name", "lower-case letters"), ("ab", "3 to 63"), ("-abc", "beginning with")] {
        let command = || {
            let mut command = place.mount_from(&format!("s3://{name}"), &server.endpoint());
            command.envs(server.client_env());
            command
        };
        refused(&place, command, USAGE, &[&format!("\"{name}\""), "bucket name", rule]);
    }
    assert_eq!(server.requests().len(), 0);
}

fn prefix() {
    let (server, place) = (S3Server::start(), Place::new());
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::List));
    let command = || {
        let mut command = place.mount_from(&format!("s3://{BUCKET}/team/data"), &server.endpoint());
        command.envs(server.client_env());
        command
    };
    refused(&place, command, CREDENTIALS, &["LIST \"team/data/\"", "AccessDenied"]);
}
