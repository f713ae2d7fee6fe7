//! The stores under test, each with a bucket of its own for every trial. Objects are put by HTTP where the store takes
//! them; everything else goes through the store that `open` returned, retries included.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region, RequestChecksumCalculation};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::net::TcpListener;
use windlass::metrics::Metrics;
use windlass::store::memory::{Memory, Plan};
use windlass::store::{CredentialOptions, Dialect, Key, Options, Policy, Retrying, Signature, StaticKeys, open};

use crate::support::flipping::Flipping;
use crate::support::oss_server::{OssServer, Setup};
use crate::support::oss_sign::Signee;
use crate::support::third_party::{Make, ThirdParty};
use crate::support::{ACCESS_KEY, BUCKET, REGION, S3Server, SECRET_KEY};

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    S3sFs,
    S3,
    /// A directory bucket of S3 Express One Zone.
    Directory,
    OssV4,
    OssV1,
    Moto,
    Versitygw,
    Minio,
}

impl Kind {
    pub const ALL: [Self; 9] =
        [Self::Memory, Self::S3sFs, Self::S3, Self::Directory, Self::OssV4, Self::OssV1, Self::Moto, Self::Versitygw, Self::Minio];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::S3sFs => "s3s_fs",
            Self::S3 => "s3",
            Self::Directory => "directory_bucket",
            Self::OssV4 => "oss_v4",
            Self::OssV1 => "oss_v1",
            Self::Moto => "moto",
            Self::Versitygw => "versitygw",
            Self::Minio => "minio",
        }
    }

    /// Keys are paths of a file system: there is no `a//b`, no marker `a/` with content, and no object above another.
    pub fn is_directory_tree(self) -> bool {
        matches!(self, Self::S3sFs | Self::Versitygw | Self::Minio)
    }

    /// It looks at conditions of writes.
    pub fn is_conditional(self) -> bool {
        self != Self::S3sFs
    }

    /// It looks at conditions of deletes.
    pub fn compares_deletes(self) -> bool {
        !matches!(self, Self::S3sFs | Self::Minio)
    }

    /// It looks at the version of the source of a copy. Those that do not leave no trace of it in their answers.
    pub fn checks_sources(self) -> bool {
        !matches!(self, Self::S3sFs | Self::Moto)
    }

    /// It is sure of an upload that has ended: moto and versitygw complete one twice, s3s-fs says that it is another one's.
    pub fn forgets_uploads(self) -> bool {
        !matches!(self, Self::S3sFs | Self::Moto | Self::Versitygw)
    }

    /// The least part that is not the last.
    pub fn least_part(self) -> usize {
        if matches!(self, Self::S3sFs | Self::Moto | Self::Versitygw | Self::Minio) { 5 << 20 } else { 1000 }
    }

    /// It lists unfinished uploads of more than one key: MinIO lists those of the key that is asked for, and no others.
    pub fn lists_uploads(self) -> bool {
        // s3s-fs leaves their tags and their order out.
        !matches!(self, Self::S3sFs | Self::Minio)
    }

    /// Requests go over HTTP.
    pub fn is_remote(self) -> bool {
        self != Self::Memory
    }
}

/// The servers that others wrote.
pub struct ThirdParties([ThirdParty; 3]);

impl ThirdParties {
    pub fn find() -> Self {
        Self(Make::ALL.map(ThirdParty::find))
    }

    /// The one that a store is; none when it is ours, or runs in this process.
    pub fn of(&self, kind: Kind) -> Option<&ThirdParty> {
        let [moto, versitygw, minio] = &self.0;
        match kind {
            Kind::Moto => Some(moto),
            Kind::Versitygw => Some(versitygw),
            Kind::Minio => Some(minio),
            Kind::Memory | Kind::S3sFs | Kind::S3 | Kind::Directory | Kind::OssV4 | Kind::OssV1 => None,
        }
    }

    /// Why some are not there.
    pub fn absent(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(ThirdParty::absent)
    }

    /// Ends all of them.
    pub fn stop(&self) {
        self.0.iter().for_each(ThirdParty::stop);
    }
}

/// One empty bucket and how to reach it.
pub struct Bucket {
    pub kind: Kind,
    pub store: Arc<Retrying>,
    pub metrics: Arc<Metrics>,
    pub server: Server,
    options: Options,
}

/// Who holds the objects.
pub enum Server {
    Memory(Memory),
    S3sFs(Client, #[allow(dead_code, reason = "dropping it removes the files")] TempDir),
    Ours(Client, S3Server),
    Oss(OssServer),
    ThirdParty(Client),
}

impl Bucket {
    pub async fn new(kind: Kind, others: &ThirdParties) -> Self {
        let (server, options) = match kind {
            Kind::Memory => (Server::Memory(Memory::new(Plan::default())), Options::default()),
            Kind::S3sFs => s3s_fs().await,
            Kind::S3 => s3(),
            Kind::Directory => directory_bucket(),
            Kind::OssV4 => oss(Signature::V4).await,
            Kind::OssV1 => oss(Signature::V1).await,
            Kind::Moto | Kind::Versitygw | Kind::Minio => in_third_party(others.of(kind).expect("it is one")).await,
        };
        // What is late on a busy machine is not to be sent twice.
        let options = Options { stall_timeout: std::time::Duration::from_secs(60), ..options };
        let metrics = Arc::new(Metrics::default());
        let store = match &server {
            Server::Memory(memory) => Arc::new(Retrying::new(Arc::new(memory.clone()), Policy::from(&options), metrics.clone())),
            _ => open(&options, metrics.clone()).await.expect("the options are right"),
        };
        Self { kind, store, metrics, server, options }
    }

    /// Creates or replaces an object.
    pub async fn put(&self, key: &str, content: impl Into<Vec<u8>>) {
        let content = content.into();
        match &self.server {
            Server::Memory(memory) => drop(memory.put(key, content)),
            Server::Oss(server) => server.change(|setup| drop(setup.objects.insert(key.as_bytes().to_vec(), content))),
            Server::S3sFs(client, _) | Server::Ours(client, _) | Server::ThirdParty(client) => {
                let put = client.put_object().bucket(&self.options.bucket).key(key).body(content.into());
                put.send().await.unwrap_or_else(|error| panic!("PUT {key}: {error:?}"));
            }
        }
    }

    pub async fn delete(&self, key: &str) {
        match &self.server {
            Server::Memory(memory) => assert!(memory.delete(key)),
            Server::Oss(server) => server.change(|setup| assert!(setup.objects.remove(key.as_bytes()).is_some())),
            Server::S3sFs(client, _) | Server::Ours(client, _) | Server::ThirdParty(client) => {
                client.delete_object().bucket(&self.options.bucket).key(key).send().await.expect("the object can be deleted");
            }
        }
    }

    /// The same bucket through a proxy that damages what passes.
    pub async fn through_flips(&self) -> (Flipping, Arc<Retrying>) {
        let endpoint = self.options.endpoint.as_deref().expect("it is remote");
        let proxy = Flipping::start(endpoint.strip_prefix("http://").unwrap().trim_end_matches('/').parse().unwrap());
        let options = Options { endpoint: Some(proxy.endpoint()), retries: 2, ..self.options.clone() };
        let store = open(&options, Arc::default()).await.expect("the options are right");
        (proxy, store)
    }

    /// The same bucket under other options.
    pub async fn with(&self, change: impl FnOnce(Options) -> Options) -> Arc<Retrying> {
        open(&change(self.options.clone()), Arc::default()).await.expect("the options are right")
    }

    /// The same server, another bucket, which it does not have.
    pub async fn missing(&self) -> Arc<Retrying> {
        let name = if self.kind == Kind::Directory { "missing--usw2-az1--x-s3" } else { "missing-bucket" };
        open(&Options { bucket: name.into(), ..self.options.clone() }, Arc::default()).await.expect("the options are right")
    }

    /// Whether the store saw no request of its bucket but these: HEAD, LIST, GET. Only some can tell.
    pub fn counted(&self) -> Option<(usize, usize, usize)> {
        use crate::support::Kind::{Get, Head, List};
        use windlass::store::Op;
        match &self.server {
            Server::Memory(memory) => Some((memory.count(Op::Head), memory.count(Op::List), memory.count(Op::Get))),
            Server::Ours(_, server) => Some((server.count(Head), server.count(List), server.count(Get))),
            Server::Oss(server) => Some(server.counts()).map(|counts| (counts.head, counts.list, counts.get)),
            Server::S3sFs(..) | Server::ThirdParty(_) => None,
        }
    }
}

/// A plain client for putting objects; it shares nothing with the store under test.
fn client(endpoint: &str) -> Client {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::from_static(REGION))
        .credentials_provider(Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "test"))
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .force_path_style(true);
    Client::from_conf(config.build())
}

fn s3_options(endpoint: String, bucket: String) -> Options {
    let keys = StaticKeys { id: ACCESS_KEY.into(), secret: SECRET_KEY.into(), token: None };
    let credentials = CredentialOptions { keys: Some(keys), ..CredentialOptions::default() };
    Options { bucket, endpoint: Some(endpoint), region: Some(REGION.into()), credentials, ..Options::default() }
}

/// The server of the s3s project as it is.
async fn s3s_fs() -> (Server, Options) {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let files = s3s_fs::FileSystem::new(dir.path()).expect("the directory can be served");
    let mut service = S3ServiceBuilder::new(files);
    service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let service = service.build();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
    let address: SocketAddr = listener.local_addr().expect("a bound listener has an address");
    // Ends with the runtime of the trial.
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("connections can be accepted");
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    let endpoint = format!("http://{address}");
    let client = client(&endpoint);
    client.create_bucket().bucket(BUCKET).send().await.expect("a bucket can be made");
    (Server::S3sFs(client, dir), s3_options(endpoint, BUCKET.into()))
}

/// All trials share the process; a bucket of its own keeps each apart.
async fn in_third_party(other: &ThirdParty) -> (Server, Options) {
    static BUCKETS: AtomicUsize = AtomicUsize::new(0);
    let bucket = format!("trial-{}", BUCKETS.fetch_add(1, Relaxed));
    let endpoint = other.endpoint().expect("it was asked for before the trial");
    let client = client(&endpoint);
    client.create_bucket().bucket(&bucket).send().await.expect("a bucket can be made");
    (Server::ThirdParty(client), s3_options(endpoint, bucket))
}

/// Our S3 server.
pub fn s3() -> (Server, Options) {
    let server = S3Server::start();
    let options = server.store_options();
    (Server::Ours(client(&server.endpoint()), server), options)
}

/// Our S3 server with a directory bucket.
pub fn directory_bucket() -> (Server, Options) {
    let server = S3Server::start_directory_bucket();
    let options = server.store_options();
    (Server::Ours(client(&server.endpoint()), server), options)
}

/// Our OSS server.
pub async fn oss(signature: Signature) -> (Server, Options) {
    let who = Signee { id: "LTAI5tEXAMPLEKEYID".into(), secret: "EXAMPLEsecret0001".into(), region: "cn-hangzhou".into() };
    let keys = StaticKeys { id: who.id.clone(), secret: who.secret.clone(), token: None };
    let setup = Setup { bucket: BUCKET.into(), who, token: None, public: false, objects: BTreeMap::new(), redirect_to: None };
    let server = OssServer::start(setup).await;
    let options = Options {
        dialect: Dialect::Oss,
        region: Some("cn-hangzhou".into()),
        signature,
        credentials: CredentialOptions { keys: Some(keys), ..CredentialOptions::default() },
        ..s3_options(format!("http://{}", server.address), BUCKET.into())
    };
    (Server::Oss(server), options)
}

/// Shorter than `Key::from` at every call.
pub fn key(name: &str) -> Key {
    Key::from(name)
}
