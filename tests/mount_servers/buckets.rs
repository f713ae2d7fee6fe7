//! Many buckets in one mount (`s3://`): over an account whose buckets are in two regions and not all readable, and over servers that others wrote.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use libtest_mimic::Trial;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::place::{Kind, client};
use super::support::mounts::{Daemon, Mount, trial, trial_unless, wait_until};
use super::support::{ACCESS_KEY, REGION, SECRET_KEY};
use super::things::names;

/// Where the bucket `far` is.
const FAR: &str = "eu-far-1";

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("buckets_are_directories_at_their_own_regions", directories),
        trial("rename_stays_inside_a_bucket", renames),
        trial("root_of_buckets_is_not_changed", root),
        trial("buckets_are_used_by_name_without_list_permission", unlisted),
        trial("named_buckets_are_shown_and_no_others", named),
        trial("bucket_that_is_deleted_while_mounted_is_absent", deleted),
        trial("ls_lists_buckets_and_other_commands_want_one", commands),
    ];
    for kind in [Kind::Moto, Kind::Minio] {
        let name = format!("{}::many_buckets_are_read_and_written", kind.name());
        trials.push(trial_unless(move || kind.lacks(), &name, move || third_party(kind)));
    }
    trials
}

/// What an account allows.
#[derive(Debug, Default)]
struct Rules {
    lists_buckets: AtomicBool,
}

/// The server of the s3s project with the buckets `near`, `other`, `far` (in the region [`FAR`]) and `denied` (which may not be touched).
struct AccountServer {
    rules: Arc<Rules>,
    data: TempDir,
    endpoint: String,
    _runtime: Runtime,
}

impl AccountServer {
    fn start() -> Self {
        let data = tempfile::tempdir().expect("there is a disk");
        for bucket in ["near", "other", "far", "denied"] {
            fs::create_dir(data.path().join(bucket)).expect("it is empty");
        }
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(data.path()).expect("the directory can be served"));
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let rules = Arc::new(Rules { lists_buckets: AtomicBool::new(true) });
        let front = Front { s3: service.build(), rules: Arc::clone(&rules) };
        let runtime = Runtime::new().expect("a runtime starts");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("loopback has a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("a bound listener has an address"));
        runtime.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), front.clone()));
            }
        });
        Self { rules, data, endpoint, _runtime: runtime }
    }

    /// Where the server keeps an object.
    fn file(&self, path: &str) -> std::path::PathBuf {
        self.data.path().join(path)
    }

    fn put(&self, path: &str, content: &str) {
        fs::write(self.file(path), content).expect("it can be written");
    }

    fn daemon(&self) -> Daemon<'_> {
        daemon(&self.endpoint)
    }
}

fn daemon(endpoint: &str) -> Daemon<'_> {
    let daemon = Daemon::of("s3://", endpoint).arg("--stat-cache-ttl", "1s").arg("--retries", "3");
    daemon.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
}

/// Answers what the account does not allow, and what belongs to another region, as S3 does.
#[derive(Clone)]
struct Front {
    s3: S3Service,
    rules: Arc<Rules>,
}

impl Service<Request<Incoming>> for Front {
    type Response = Response<s3s::Body>;
    type Error = s3s::HttpError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let bucket = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
        // Credential=KEY/DATE/REGION/s3/aws4_request
        let signature = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_for = |region: &str| signature.contains(&format!("/{region}/s3/"));
        let refusal = match bucket.as_str() {
            "" if !self.rules.lists_buckets.load(Relaxed) => Some((StatusCode::FORBIDDEN, "AccessDenied", None)),
            "denied" => Some((StatusCode::FORBIDDEN, "AccessDenied", Some(REGION))),
            "far" if !is_for(FAR) => Some((StatusCode::MOVED_PERMANENTLY, "PermanentRedirect", Some(FAR))),
            "far" | "" => None,
            _ if !is_for(REGION) => Some((StatusCode::MOVED_PERMANENTLY, "PermanentRedirect", Some(REGION))),
            _ => None,
        };
        let s3 = self.s3.clone();
        async move {
            let Some((status, code, region)) = refusal else { return Service::call(&s3, request).await };
            let is_head = request.method() == Method::HEAD;
            let _ = request.into_body().collect().await;
            let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>not here</Message></Error>");
            let mut response = Response::new(s3s::Body::from(if is_head { Bytes::new() } else { Bytes::from(text) }));
            *response.status_mut() = status;
            if let Some(region) = region {
                response.headers_mut().insert("x-amz-bucket-region", HeaderValue::from_static(region));
            }
            Ok(response)
        }
        .boxed()
    }
}

#[track_caller]
fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().expect("it is refused").raw_os_error().expect("by the kernel")
}

fn directories() {
    let server = AccountServer::start();
    server.put("near/a", "near");
    server.put("far/a", "far");
    let mount = server.daemon().start();
    assert_eq!(names(mount.path()), ["denied", "far", "near", "other"]);
    for (bucket, content) in [("near", "near"), ("far", "far")] {
        assert_eq!(fs::read_to_string(mount.join(bucket).join("a")).expect("it can be read"), content);
        fs::write(mount.join(bucket).join("new"), content).expect("it can be written");
        assert_eq!(fs::read_to_string(server.file(&format!("{bucket}/new"))).expect("it is in its bucket"), content);
        assert_eq!(names(&mount.join(bucket)), ["a", "new"]);
    }
    // An empty bucket is a directory, and stays one.
    assert!(names(&mount.join("other")).is_empty());
    fs::write(mount.join("other/f"), "x").expect("it can be written");
    fs::remove_file(mount.join("other/f")).expect("it can be removed");
    assert!(names(&mount.join("other")).is_empty());
    assert_eq!(fs::read_dir(server.file("other")).expect("it is there").count(), 0, "nothing was left in the bucket");

    assert!(fs::metadata(mount.join("denied")).expect("it is there").is_dir());
    assert_eq!(errno(fs::read_dir(mount.join("denied")).and_then(|mut entries| entries.next().expect("an answer"))), libc::EACCES);
    assert_eq!(errno(fs::read(mount.join("denied/a"))), libc::EACCES);
    assert_eq!(errno(fs::write(mount.join("denied/a"), "x")), libc::EACCES);
    assert_eq!(fs::read_to_string(mount.join("near/new")).expect("others are not concerned"), "near");
}

fn renames() {
    let server = AccountServer::start();
    server.put("near/a", "content");
    // This server takes no markers of directories: the other servers are for what makes some.
    fs::create_dir(server.file("near/d")).expect("it is new");
    server.put("near/d/c", "more");
    let mount = server.daemon().start();
    fs::rename(mount.join("near/a"), mount.join("near/b")).expect("it can be renamed");
    assert!(!server.file("near/a").exists() && server.file("near/b").exists());
    assert_eq!(errno(fs::rename(mount.join("near/b"), mount.join("far/b"))), libc::EXDEV);
    assert_eq!(errno(fs::rename(mount.join("near/d"), mount.join("far/d"))), libc::EXDEV);
    // mv copies then.
    assert!(mv(&mount.join("near/b"), &mount.join("far")));
    assert_eq!(fs::read_to_string(server.file("far/b")).expect("it is in the other bucket"), "content");
    assert!(!server.file("near/b").exists() && server.file("near/d/c").exists());
}

fn mv(from: &Path, to: &Path) -> bool {
    Command::new("mv").args([from, to]).status().expect("there is mv").success()
}

fn root() {
    let server = AccountServer::start();
    server.put("near/a", "content");
    let mount = server.daemon().start();
    let at = |name: &str| mount.join(name);
    for (name, result) in [
        ("touch", fs::write(at("new"), "x")),
        ("mkdir", fs::create_dir(at("new-bucket"))),
        ("ln -s", symlink("near", at("link"))),
        ("rmdir", fs::remove_dir(at("other"))),
        ("mv", fs::rename(at("other"), at("renamed"))),
        ("mv out", fs::rename(at("near/a"), at("a"))),
        ("mv in", fs::rename(at("other"), at("near/other"))),
    ] {
        let error = result.expect_err(name);
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{name}: {error}");
    }
    assert!(mount.log().contains("the root of this mount holds buckets"), "{}", mount.log());
    assert_eq!(names(mount.path()), ["denied", "far", "near", "other"]);
    assert_eq!(fs::read_to_string(at("near/a")).expect("it is as it was"), "content");
}

fn unlisted() {
    let server = AccountServer::start();
    server.rules.lists_buckets.store(false, Relaxed);
    server.put("near/a", "near");
    server.put("far/a", "far");
    let mount = server.daemon().start();
    assert!(mount.log().contains("the buckets may not be listed"), "{}", mount.log());
    assert_eq!(errno(fs::read_dir(mount.path()).and_then(|mut entries| entries.next().expect("an answer"))), libc::EACCES);
    for bucket in ["near", "far"] {
        assert_eq!(fs::read_to_string(mount.join(bucket).join("a")).expect("its name is known"), bucket);
        assert_eq!(names(&mount.join(bucket)), ["a"]);
    }
    assert!(fs::metadata(mount.join("denied")).expect("it may exist").is_dir());
    // Many of them: then names are looked for in a listing.
    for n in 0..8 {
        assert_eq!(errno(fs::metadata(mount.join(format!("nobody-{n}")))), libc::ENOENT);
    }
    assert_eq!(errno(fs::metadata(mount.join("Not A Bucket"))), libc::ENOENT);
    assert_eq!(fs::read_to_string(mount.join("near/a")).expect("its name is known"), "near");

    // A bucket that is made later, beside a listing that does not show it.
    server.rules.lists_buckets.store(true, Relaxed);
    assert_eq!(names(mount.path()), ["denied", "far", "near", "other"]);
    fs::create_dir(server.file("later")).expect("it is new");
    assert!(fs::metadata(mount.join("later")).expect("its name is known").is_dir());
}

fn named() {
    let server = AccountServer::start();
    server.rules.lists_buckets.store(false, Relaxed);
    server.put("far/a", "far");
    let mount = server.daemon().arg("--buckets", "far,near,gone").start();
    assert!(mount.log().contains("there is no bucket gone"), "{}", mount.log());
    assert_eq!(names(mount.path()), ["far", "near"]);
    assert_eq!(fs::read_to_string(mount.join("far/a")).expect("it is shown"), "far");
    for absent in ["other", "denied", "gone", "gone/a"] {
        assert_eq!(errno(fs::metadata(mount.join(absent))), libc::ENOENT, "{absent}");
    }
    drop(mount);

    // Its own failure makes one bucket useless, and not the mount.
    let mount = server.daemon().arg("--buckets", "near,denied").start();
    assert!(mount.log().contains("the bucket denied cannot be used: "), "{}", mount.log());
    assert_eq!(names(mount.path()), ["denied", "near"]);
    assert_eq!(errno(fs::read(mount.join("denied/a"))), libc::EACCES);
    drop(mount);
    let denied = server.daemon().arg("--buckets", "denied,gone").refused();
    assert!(denied.contains("denied"), "{denied}");
    let gone = server.daemon().arg("--buckets", "gone").refused();
    assert!(gone.contains("gone") && gone.contains("no such bucket"), "{gone}");

    // Lines of a file of keys, each for one bucket.
    let keys = server.data.path().join("keys");
    fs::write(&keys, format!("near:{ACCESS_KEY}:{SECRET_KEY}\nother:{ACCESS_KEY}:wrong\n")).expect("it is new");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let with_keys = || Daemon::of("s3://", &server.endpoint).arg("--retries", "3").arg("--passwd-file", keys.to_str().expect("it is text"));
    server.put("near/a", "near");
    let mount = with_keys().arg("--buckets", "near,other,far").start();
    for useless in ["other", "far"] {
        assert!(mount.log().contains(&format!("the bucket {useless} cannot be used: ")), "{}", mount.log());
        assert_eq!(errno(fs::write(mount.join(useless).join("a"), "x")), libc::EACCES, "{useless}");
    }
    assert_eq!(names(mount.path()), ["far", "near", "other"]);
    assert_eq!(fs::read_to_string(mount.join("near/a")).expect("its line is right"), "near");
    drop(mount);
    let all = with_keys().refused();
    assert!(all.contains("lines for buckets only") && all.contains("--buckets"), "{all}");
    assert!(server.daemon().arg("--buckets", "Not/A/Bucket").refused().contains("is not a bucket name"));
    let near = server.daemon().arg("--buckets", "near").arg("--read-endpoint", "http://127.0.0.1:1").refused();
    assert!(near.contains("read-endpoint is the address of one bucket"), "{near}");
    let one = Daemon::of("s3://near", &server.endpoint).arg("--buckets", "near").refused();
    assert!(one.contains("buckets goes with s3:// alone"), "{one}");
    let oss = Daemon::of("oss://", &server.endpoint).refused();
    assert!(oss.contains("for s3:// only"), "{oss}");
}

fn deleted() {
    let server = AccountServer::start();
    server.put("other/a", "content");
    let mount = server.daemon().start();
    assert_eq!(fs::read_to_string(mount.join("other/a")).expect("it is there"), "content");
    fs::remove_dir_all(server.file("other")).expect("it can be removed");
    // Until the facts about it have expired.
    let is_absent = || fs::metadata(mount.join("other/a")).is_err() && !names(mount.path()).contains(&"other".to_owned());
    wait_until("the bucket is gone", is_absent);
    for result in [
        fs::metadata(mount.join("other")).map(|_| ()),
        fs::write(mount.join("other/new"), "x"),
        fs::read(mount.join("other/a")).map(|_| ()),
    ] {
        assert_eq!(errno(result), libc::ENOENT);
    }
    assert_eq!(names(mount.path()), ["denied", "far", "near"]);
}

fn commands() {
    let server = AccountServer::start();
    let windlass = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.env_clear().env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
        command.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).args(words);
        let output = command.args(["--endpoint", &server.endpoint, "--region", REGION]).output().expect("the program starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
    };
    let (listed, text) = windlass(&["ls", "s3://"]);
    let shown: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(listed && shown == ["denied/", "far/", "near/", "other/"], "{text}");
    for words in [&["stat", "s3://"][..], &["rm", "--recursive", "s3://"], &["mpu", "list", "s3://"], &["doctor", "s3://"]] {
        let (done, text) = windlass(words);
        assert!(!done && text.contains("names no bucket") && text.lines().count() == 1, "{words:?}: {text}");
    }
}

fn third_party(kind: Kind) {
    let runtime = Runtime::new().expect("a runtime starts");
    let server = super::support::third_party::ThirdParty::find(kind.make().expect("others wrote it"));
    let endpoint = server.endpoint().expect("it starts");
    let client = client(&endpoint);
    for bucket in ["first", "second"] {
        runtime.block_on(client.create_bucket().bucket(bucket).send()).expect("a bucket can be made");
    }
    let mount: Mount = daemon(&endpoint).start();
    assert_eq!(names(mount.path()), ["first", "second"]);
    for bucket in ["first", "second"] {
        fs::create_dir(mount.join(bucket).join("d")).expect("a directory can be made");
        fs::write(mount.join(bucket).join("d/a"), bucket).expect("it can be written");
        fs::rename(mount.join(bucket).join("d"), mount.join(bucket).join("e")).expect("it can be renamed");
        let stored = runtime.block_on(client.get_object().bucket(bucket).key("e/a").send()).expect("it is in its bucket");
        let stored = runtime.block_on(stored.body.collect()).expect("it can be read").into_bytes();
        assert_eq!(stored, bucket);
    }
    assert_eq!(errno(fs::rename(mount.join("first/e/a"), mount.join("second/a"))), libc::EXDEV);
    assert_eq!(errno(fs::create_dir(mount.join("third"))), libc::EPERM);
    assert_eq!(errno(fs::metadata(mount.join("nobody"))), libc::ENOENT);
    runtime.block_on(client.put_object().bucket("second").key("theirs").send()).expect("it can be written");
    super::support::mounts::wait_until("another client's object is seen", || names(&mount.join("second")) == ["e", "theirs"]);
    assert!(mv(&mount.join("first/e"), &mount.join("second/from-first")), "mv copies from one to the other");
    assert_eq!(fs::read_to_string(mount.join("second/from-first/a")).expect("it was moved"), "first");
    // What stood in the bucket goes with it: a bucket that is emptied stays a directory without any object.
    assert!(names(&mount.join("first")).is_empty());
    let left = runtime.block_on(client.list_objects_v2().bucket("first").send()).expect("it can be listed");
    assert_eq!(left.key_count(), Some(0), "{left:?}");
    drop(mount);
    let again = daemon(&endpoint).arg("--buckets", "second").start();
    assert_eq!((names(again.path()), names(&again.join("second/e"))), (vec!["second".to_owned()], vec!["a".to_owned()]));
}
