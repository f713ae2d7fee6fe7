//! A server, a bucket of it that is mounted, and another client of the same bucket that shares nothing with the mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::support::mounts::{Daemon, Mount};
use super::support::oss_server::{Counts, OssServer, Setup};
use super::support::oss_sign::Signee;
use super::support::third_party::{Make, ThirdParty};
use super::support::{ACCESS_KEY, DIRECTORY_BUCKET, REGION, S3Server, SECRET_KEY};

const BUCKET: &str = "mounted";

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Moto,
    Versitygw,
    Minio,
    S3sFs,
    Oss,
    /// A directory bucket of S3 Express One Zone, in the server of the tests.
    Directory,
}

impl Kind {
    pub const ALL: [Self; 6] = [Self::Moto, Self::Versitygw, Self::Minio, Self::S3sFs, Self::Oss, Self::Directory];

    /// As the table calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Moto => "moto",
            Self::Versitygw => "versitygw",
            Self::Minio => "MinIO",
            Self::S3sFs => "s3s-fs",
            Self::Oss => "OSS",
            Self::Directory => "directory bucket",
        }
    }

    /// None: it is ours, or runs in this process.
    pub fn make(self) -> Option<Make> {
        match self {
            Self::Moto => Some(Make::Moto),
            Self::Versitygw => Some(Make::Versitygw),
            Self::Minio => Some(Make::Minio),
            Self::S3sFs | Self::Oss | Self::Directory => None,
        }
    }

    /// Why it cannot be had.
    pub fn lacks(self) -> Option<String> {
        ThirdParty::find(self.make()?).absent()
    }
}

/// Another client.
enum Other {
    S3(Client),
    Oss(OssServer),
}

/// See the module. What is declared first ends first.
pub struct Place {
    bucket: &'static str,
    mount: Mount,
    other: Other,
    source: String,
    endpoint: String,
    environment: Vec<(&'static str, &'static str)>,
    /// Where versitygw keeps the objects as files.
    pub files: Option<PathBuf>,
    _server: Option<ThirdParty>,
    _data: Option<TempDir>,
    _directory: Option<S3Server>,
    runtime: Runtime,
    kind: Kind,
}

impl Place {
    /// Starts the server and mounts an empty bucket of it.
    pub fn open(kind: Kind) -> Result<Self, String> {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        let (mut server, mut data, mut directory) = (None, None, None);
        let endpoint = match kind.make() {
            Some(make) => {
                let found = server.insert(ThirdParty::find(make));
                found.endpoint()?
            }
            None if kind == Kind::Directory => directory.insert(S3Server::start_directory_bucket()).endpoint(),
            None if kind == Kind::S3sFs => runtime.block_on(s3s_fs(data.insert(tempfile::tempdir().expect("there is a disk")).path())),
            None => String::new(),
        };
        let (other, endpoint) = match kind {
            Kind::Oss => {
                let server = runtime.block_on(oss());
                let endpoint = format!("http://{}", server.address);
                (Other::Oss(server), endpoint)
            }
            Kind::Directory => (Other::S3(client(&endpoint)), endpoint),
            _ => (Other::S3(runtime.block_on(bucket(&endpoint))), endpoint),
        };
        let (scheme, environment) = match kind {
            Kind::Oss => ("oss", vec![("OSS_ACCESS_KEY_ID", ACCESS_KEY), ("OSS_ACCESS_KEY_SECRET", SECRET_KEY)]),
            _ => ("s3", vec![("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]),
        };
        let bucket = if kind == Kind::Directory { DIRECTORY_BUCKET } else { BUCKET };
        let source = format!("{scheme}://{bucket}");
        let mount = mounted(&source, &endpoint, &environment, &[]);
        let files = server.as_ref().filter(|_| kind == Kind::Versitygw).map(|server| server.data().join(BUCKET));
        Ok(Self {
            bucket,
            mount,
            other,
            source,
            endpoint,
            environment,
            files,
            _server: server,
            _data: data,
            _directory: directory,
            runtime,
            kind,
        })
    }

    /// Whether nobody can write between the look at what is there and the write that replaces it.
    pub fn compares_and_writes(&self) -> bool {
        matches!(self.kind, Kind::Moto | Kind::Versitygw | Kind::Minio | Kind::Directory)
    }

    /// A path in the mount.
    #[track_caller]
    pub fn at(&self, path: &str) -> PathBuf {
        self.mount.join(path)
    }

    /// The same bucket, mounted once more with these flags.
    pub fn mount_again(&self, flags: &[&str]) -> Mount {
        mounted(&self.source, &self.endpoint, &self.environment, flags)
    }

    /// `windlass` with `words`, `KEY` among which becomes the URL of that key.
    pub fn windlass(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("AWS_EC2_METADATA_DISABLED", "true");
        command.args(words.iter().map(|word| word.replace("bucket:", &self.source)));
        command.args(["--endpoint", &self.endpoint, "--region", REGION, "--path-style"]);
        command.envs(self.environment.iter().copied()).stdin(Stdio::null()).output().expect("the program starts")
    }

    /// Has the other client make or replace an object.
    #[track_caller]
    pub fn put(&self, key: &str, content: &[u8]) {
        match &self.other {
            Other::S3(client) => {
                let put = client.put_object().bucket(self.bucket).key(key).body(content.to_vec().into());
                self.runtime.block_on(put.send()).unwrap_or_else(|error| panic!("PUT {key}: {error:?}"));
            }
            Other::Oss(server) => server.change(|setup| drop(setup.objects.insert(key.into(), content.to_vec()))),
        }
    }

    /// What the OSS server was asked so far.
    pub fn counts(&self) -> Counts {
        match &self.other {
            Other::Oss(server) => server.counts(),
            Other::S3(_) => panic!("only that of the tests counts"),
        }
    }

    /// What the other client gets.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        match &self.other {
            Other::S3(client) => self.runtime.block_on(async {
                let got = client.get_object().bucket(self.bucket).key(key).send().await.ok()?;
                Some(got.body.collect().await.expect("it arrives whole").to_vec())
            }),
            Other::Oss(server) => {
                let mut found = None;
                server.change(|setup| found = setup.objects.get(key.as_bytes()).cloned());
                found
            }
        }
    }

    pub fn delete(&self, key: &str) {
        match &self.other {
            Other::S3(client) => {
                self.runtime.block_on(client.delete_object().bucket(self.bucket).key(key).send()).expect("it can be deleted");
            }
            Other::Oss(server) => server.change(|setup| drop(setup.objects.remove(key.as_bytes()))),
        }
    }

    /// The keys that the other client lists, up to a page of them.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        match &self.other {
            Other::S3(client) => {
                // Directory buckets take directories as prefixes, and no others.
                let directory = &prefix[..prefix.rfind('/').map_or(0, |slash| slash + 1)];
                let asked = if self.kind == Kind::Directory { directory } else { prefix };
                let listed = client.list_objects_v2().bucket(self.bucket).prefix(asked).send();
                let listed = self.runtime.block_on(listed).expect("it can be listed");
                let keys = listed.contents().iter().filter_map(|object| object.key().map(str::to_owned));
                keys.filter(|key| key.starts_with(prefix)).collect()
            }
            Other::Oss(server) => {
                let mut keys = Vec::new();
                server.change(|setup| keys.extend(setup.objects.keys().map(|key| String::from_utf8_lossy(key).into_owned())));
                keys.retain(|key| key.starts_with(prefix));
                keys
            }
        }
    }
}

fn mounted(source: &str, endpoint: &str, environment: &[(&'static str, &'static str)], flags: &[&str]) -> Mount {
    // Soon enough to wait for what another client did, long enough to be a cache.
    let daemon = Daemon::of(source, endpoint).arg("--stat-cache-ttl", "1s").arg("--retries", "3");
    let daemon = environment.iter().fold(daemon, |daemon, (name, value)| daemon.env(name, value));
    flags.iter().fold(daemon, |daemon, flag| daemon.flag(flag)).start()
}

/// The client of Amazon.
pub fn client(endpoint: &str) -> Client {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::from_static(REGION))
        .credentials_provider(Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "test"))
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        // moto tells sums of objects in parts that are not theirs.
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .force_path_style(true);
    Client::from_conf(config.build())
}

/// The same, with an empty bucket.
async fn bucket(endpoint: &str) -> Client {
    let client = client(endpoint);
    client.create_bucket().bucket(BUCKET).send().await.expect("a bucket can be made");
    client
}

/// The server of the s3s project as it is, as long as the runtime lives.
async fn s3s_fs(directory: &Path) -> String {
    let files = s3s_fs::FileSystem::new(directory).expect("the directory can be served");
    let mut service = S3ServiceBuilder::new(files);
    service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let service = service.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("connections can be accepted");
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    format!("http://{address}")
}

async fn oss() -> OssServer {
    let who = Signee { id: ACCESS_KEY.into(), secret: SECRET_KEY.into(), region: REGION.into() };
    OssServer::start(Setup { bucket: BUCKET.into(), who, token: None, public: false, objects: BTreeMap::new(), redirect_to: None }).await
}
