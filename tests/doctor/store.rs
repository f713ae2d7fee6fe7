//! What is wrong between this machine and the bucket.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use libtest_mimic::{Completion, Trial};
use serde_json::Value;

use super::place::{Place, program, run};
use super::support::mounts::lacks;
use super::support::oss_server::{OssServer, Setup};
use super::support::oss_sign::Signee;
use super::support::{BUCKET, Effect, Fault, KilledAtEnd, Kind, S3Server};
use super::wrong_server::WrongServer;
use super::{doctor, doctor_of, fails, line};

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    vec![
        trial("everything_is_in_order", in_order),
        trial("a_bucket_of_oss_is_looked_at_the_same_way", oss),
        trial("a_wrong_host_name_is_not_looked_up", wrong_host),
        trial("a_closed_port_takes_no_connection", closed_port),
        trial("a_plain_port_does_not_speak_tls", plain_port),
        Trial::ignorable_test("a_certificate_that_nobody_vouches_for_is_not_accepted", || {
            if let Some(reason) = lacks("openssl") {
                return Ok(Completion::ignored_with(reason));
            }
            untrusted();
            Ok(Completion::Completed)
        }),
        trial("a_clock_that_is_an_hour_off_is_told", clock),
        trial("a_wrong_secret_is_not_accepted", wrong_secret),
        trial("missing_credentials_are_told_with_the_ways_to_give_them", no_credentials),
        trial("a_wrong_region_names_the_right_one", wrong_region),
        trial("a_bucket_that_is_not_there_is_named", no_bucket),
        trial("a_denied_listing_is_told_from_everything_else", denied_list),
        trial("a_denied_get_is_told_though_listing_works", denied_get),
        trial("denied_writes_are_found_when_they_are_tried", denied_put),
        trial("writes_are_tried_only_when_asked_for_and_leave_nothing", writes),
    ]
}

const REACHED: [&str; 5] = ["endpoint", "DNS", "TCP", "HTTP", "clock"];

fn in_order() {
    let server = S3Server::start();
    server.put("file", "content");
    let said = run(doctor_of(&server));
    for step in REACHED.iter().chain(&["credentials", "signature", "LIST", "HEAD", "GET"]) {
        assert_eq!(line(&said, step).map(|(level, _)| level).as_deref(), Some("ok"), "{step} in\n{}{}", said.out, said.err);
    }
    assert!(
        line(&said, "credentials").is_some_and(|(_, words)| words == "key test from the environment (AWS_ACCESS_KEY_ID)"),
        "{}",
        said.out
    );
    let mut command = doctor_of(&server);
    command.arg("--json");
    let lines: Vec<Value> = run(command).out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert_eq!(lines.len(), said.out.lines().count());
    assert!(lines.iter().any(|line| line["what"] == "GET" && line["level"] == "ok" && line["fix"].is_null()), "{lines:?}");
}

fn oss() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let who = Signee { id: "LTAI5tEXAMPLEKEYID".into(), secret: "EXAMPLEsecret0001".into(), region: "cn-hangzhou".into() };
    let objects = [(b"file".to_vec(), b"content".to_vec())].into();
    let setup = Setup { bucket: "data".into(), who, token: None, public: false, objects, redirect_to: None };
    let server = runtime.block_on(OssServer::start(setup));
    let place = Place::new();
    let keys = place.write("passwd", "data:LTAI5tEXAMPLEKEYID:EXAMPLEsecret0001\n", 0o600);
    let look = |region: &str| {
        let mut command = program();
        command.args(["doctor", "oss://data", "--endpoint", &format!("http://{}", server.address), "--region", region]);
        command.arg("--passwd-file").arg(&keys);
        command
    };
    let said = run(look("cn-hangzhou"));
    for step in ["endpoint", "TCP", "HTTP", "clock", "credentials", "signature", "LIST", "HEAD", "GET"] {
        assert_eq!(line(&said, step).map(|(level, _)| level).as_deref(), Some("ok"), "{step} in\n{}{}", said.out, said.err);
    }
    let told = format!("key LTAI5tEXAMPLEKEYID from the credentials file {}", keys.display());
    assert_eq!(line(&said, "credentials").map(|(_, words)| words), Some(told));
    place.write("passwd", "data:LTAI5tEXAMPLEKEYID:another\n", 0o600);
    fails(look("cn-hangzhou"), 3, "signature", &["SignatureDoesNotMatch"], &["credentials"], &["LIST"]);
}

fn wrong_host() {
    // A name that never exists (RFC 6761).
    let command = doctor(&format!("s3://{BUCKET}"), "http://store.invalid:9000");
    fails(command, 4, "DNS", &["store.invalid", "--endpoint", "resolv.conf"], &["endpoint"], &["TCP", "HTTP", "credentials"]);
}

fn closed_port() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port").local_addr().expect("it is bound");
    let command = doctor(&format!("s3://{BUCKET}"), &format!("http://{free}"));
    fails(command, 4, "TCP", &[&free.to_string(), "refused", "nobody listens there"], &["DNS"], &["HTTP", "credentials"]);
}

fn plain_port() {
    let server = S3Server::start();
    let command = doctor(&format!("s3://{BUCKET}"), &server.endpoint().replace("http:", "https:"));
    fails(command, 4, "TLS", &["does not speak TLS", "http://"], &["DNS", "TCP"], &["credentials"]);
}

fn untrusted() {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let (key, certificate) = (home.path().join("key"), home.path().join("certificate"));
    let mut make = Command::new("openssl");
    make.args([
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]);
    make.arg("-keyout").arg(&key).arg("-out").arg(&certificate).stderr(Stdio::null());
    assert!(make.status().expect("it starts").success());
    let mut serve = Command::new("openssl");
    serve.args(["s_server", "-accept", "127.0.0.1:0", "-www", "-key"]).arg(&key).arg("-cert").arg(&certificate);
    let child = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut server = KilledAtEnd(child);
    let lines = BufReader::new(server.0.stdout.take().expect("piped")).lines();
    let address =
        lines.map_while(Result::ok).find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned)).expect("it says where it listens");
    let command = doctor(&format!("s3://{BUCKET}"), &format!("https://{address}"));
    fails(command, 4, "TLS", &["certificate is not accepted", "ca-certificates", "SSL_CERT_FILE"], &["DNS", "TCP"], &["credentials"]);
    // No command asks ten times for what the next answer shows again.
    let listing = || {
        let mut command = program();
        command.args(["ls", &format!("s3://{BUCKET}"), "--endpoint", &format!("https://{address}"), "--region", "us-east-1"]);
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    };
    let said = run(listing());
    assert!(said.err.contains("certificate") && said.err.contains("given up after 2 attempts"), "{}", said.err);
    // As its own authority it is accepted, and the answer is the page of a server that is no store.
    let bundle = certificate.to_str().expect("it is text");
    for (arguments, variable) in [(&["--ca-bundle", bundle][..], None), (&[], Some(bundle))] {
        let mut command = listing();
        command.args(arguments).envs(variable.map(|bundle| ("AWS_CA_BUNDLE", bundle)));
        let said = run(command);
        assert!(said.err.contains("it begins with <HTML>"), "{}", said.err);
    }
    for (bundle, words) in [(home.path().join("absent"), "cannot be read"), (key, "holds no certificate")] {
        let mut command = listing();
        command.env("AWS_CA_BUNDLE", &bundle);
        let said = run(command);
        assert!(said.code == Some(2) && said.err.contains(words) && said.err.contains("AWS_CA_BUNDLE"), "{}", said.err);
    }
}

fn clock() {
    let hour = httpdate::fmt_http_date(SystemTime::now() - Duration::from_secs(3600));
    let server = WrongServer::saying(format!("HTTP/1.1 403 Forbidden\r\ndate: {hour}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"));
    let command = doctor(&format!("s3://{BUCKET}"), &server.endpoint());
    fails(command, 3, "clock", &["36", "ahead of that of the store", "timedatectl"], &["DNS", "TCP", "HTTP"], &[]);
}

fn wrong_secret() {
    let server = S3Server::start();
    let mut command = doctor_of(&server);
    command.env("AWS_SECRET_ACCESS_KEY", "not-the-secret");
    let said = fails(command, 3, "signature", &["SignatureDoesNotMatch", "check key id, secret and token"], &REACHED, &["LIST", "GET"]);
    assert!(!said.out.contains("not-the-secret"), "{}", said.out);
}

fn no_credentials() {
    let server = S3Server::start();
    let mut command = doctor_of(&server);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    fails(command, 3, "credentials", &["no credentials found", "--passwd-file"], &REACHED, &["signature", "LIST"]);
}

fn wrong_region() {
    let document =
        "<Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong</Message><Region>eu-central-1</Region>";
    let server = WrongServer::refusing("400 Bad Request", document);
    let command = doctor(&format!("s3://{BUCKET}"), &server.endpoint());
    fails(command, 4, "region", &["another region", "--region eu-central-1"], &["TCP", "credentials"], &["LIST", "GET"]);
}

fn no_bucket() {
    let server = S3Server::start();
    let command = doctor("s3://no-such-bucket", &server.endpoint());
    fails(command, 4, "bucket", &["NoSuchBucket", "check the bucket's name"], &REACHED, &["LIST", "GET"]);
}

fn denied_list() {
    let server = S3Server::start();
    server.put("file", "content");
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::List));
    fails(doctor_of(&server), 3, "LIST", &["AccessDenied", "permission to list"], &REACHED, &["signature", "GET"]);
}

fn denied_get() {
    let server = S3Server::start();
    server.put("file", "content");
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::Get));
    fails(doctor_of(&server), 3, "GET", &["AccessDenied", "get its objects"], &["signature", "LIST", "HEAD"], &["PUT"]);
}

fn denied_put() {
    let server = S3Server::start();
    server.put("file", "content");
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::Put));
    let mut command = doctor_of(&server);
    command.arg("--write-check");
    fails(command, 3, "PUT", &["AccessDenied"], &["LIST", "HEAD", "GET", "multipart", "multipart abort", "DELETE"], &["GET of it"]);
    let deleted = server.of_kind(Kind::Delete).pop().expect("it made an object of parts");
    assert!(server.stored(&deleted.key).is_none() && server.uploads() == 0, "nothing stays behind");
}

fn writes() {
    let server = S3Server::start();
    server.put("data/file", "content");
    run(doctor_of(&server));
    let changes =
        |server: &S3Server| server.requests().iter().filter(|request| ["PUT", "POST", "DELETE"].contains(&request.method.as_str())).count();
    assert_eq!(changes(&server), 0);
    let mut command = doctor(&format!("s3://{BUCKET}/data"), &server.endpoint());
    command.arg("--write-check");
    let said = run(command);
    for step in ["PUT", "GET of it", "multipart", "multipart abort", "DELETE"] {
        assert_eq!(line(&said, step).map(|(level, _)| level).as_deref(), Some("ok"), "{step} in\n{}", said.out);
    }
    let put = server.of_kind(Kind::Put).pop().expect("it wrote");
    assert!(put.key.starts_with("data/.windlass-doctor-"), "{}", put.key);
    assert!(server.stored(&put.key).is_none() && server.uploads() == 0, "nothing stays behind");
    assert!(server.stored("data/file").is_some());
}
