//! A real S3 server on 127.0.0.1: s3s checks signatures and speaks the protocol, the bucket is in memory. It runs on a
//! thread and a runtime of its own, so it serves blocking and async tests alike, and ends when it is dropped.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use windlass::store::memory::Synthetic;

use super::bucket::{About, Bucket, Habits};
use super::directory_bucket::{DIRECTORY_BUCKET, Renames, Sessions};
use super::fault::Fault;
use super::keyring::Keyring;
use super::layer::{Connection, Gate, Shared};
use super::log::{Kind, Log, Request};
use super::network::Network;

pub const BUCKET: &str = "test-bucket";
pub const ACCESS_KEY: &str = "test";
pub const SECRET_KEY: &str = "testsecret";
pub const REGION: &str = "us-east-1";

/// Longest wait for something that must happen, and how often to look.
const PATIENCE: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(5);

/// One server with one bucket, [`BUCKET`].
pub struct S3Server {
    name: &'static str,
    bucket: Bucket,
    keyring: Keyring,
    shared: Shared,
    address: SocketAddr,
    listeners: mpsc::UnboundedSender<std::net::TcpListener>,
    credentials: tempfile::NamedTempFile,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Serves requests that are signed with [`ACCESS_KEY`] and [`SECRET_KEY`], and refuses others.
    pub fn start() -> Self {
        Self::serve(BUCKET, |builder, (_, keyring)| {
            builder.set_auth(keyring.clone());
            builder.set_access(keyring.clone());
            None
        })
    }

    /// Serves everyone, as a public bucket does.
    pub fn start_anonymous() -> Self {
        Self::serve(BUCKET, |_, _| None)
    }

    /// Serves a directory bucket, [`DIRECTORY_BUCKET`].
    pub fn start_directory_bucket() -> Self {
        Self::serve(DIRECTORY_BUCKET, |builder, (bucket, keyring)| {
            bucket.become_directory_bucket(keyring.clone());
            builder.set_route(Renames(bucket.clone()));
            Some(Arc::new(Sessions(keyring.clone())))
        })
    }

    fn serve(name: &'static str, protect: impl FnOnce(&mut S3ServiceBuilder, (&Bucket, &Keyring)) -> Option<Arc<dyn Gate>>) -> Self {
        let bucket = Bucket::default();
        let mut builder = S3ServiceBuilder::new(bucket.clone());
        let keyring = Keyring::default();
        keyring.admit(ACCESS_KEY, SECRET_KEY, None);
        let gate = protect(&mut builder, (&bucket, &keyring));
        let shared = Shared { s3: builder.build(), gate, log: Log::default(), faults: Arc::default(), cleared: Default::default() };
        let (listeners, listening) = mpsc::unbounded_channel();
        let address = listen((Ipv4Addr::LOCALHOST, 0).into(), &listeners);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("s3-server".into()).spawn({
            let shared = shared.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
                runtime.block_on(async {
                    tokio::select! { () = accept_all(listening, shared) => {}, _ = stopped => {} }
                });
            }
        });
        let mut credentials = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        writeln!(credentials, "{ACCESS_KEY}:{SECRET_KEY}").expect("it can be written");
        let thread = Some(thread.expect("a thread starts"));
        Self { name, bucket, keyring, shared, address, listeners, credentials, stop: Some(stop), thread }
    }

    /// Serves a network of its own too, at the same address: a socket belongs to the network in which it was made.
    pub fn listen_in(&self, network: &Network) {
        network.within(|| listen(self.address, &self.listeners));
    }

    /// `http://127.0.0.1:PORT`, for path-style requests.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// What all connections share.
    pub(super) fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Who is let in.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// A file with the credentials, readable by its owner only.
    pub fn passwd_file(&self) -> &std::path::Path {
        self.credentials.path()
    }

    /// How to reach this server from within the process.
    pub fn store_options(&self) -> windlass::store::Options {
        windlass::store::Options {
            bucket: self.name.into(),
            endpoint: Some(self.endpoint()),
            region: Some(REGION.into()),
            // Tests count requests: on a machine that is busy enough some are late, and would be sent twice.
            stall_timeout: Duration::from_secs(60),
            credentials: windlass::store::CredentialOptions { passwd_file: Some(self.passwd_file().into()), ..Default::default() },
            ..Default::default()
        }
    }

    /// Environment for a child process that talks to this server, and takes nothing else from its surroundings.
    pub fn client_env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into()),
            ("AWS_REGION", REGION.into()),
            ("AWS_EC2_METADATA_DISABLED", "true".into()),
            ("AWS_CONFIG_FILE", "/dev/null".into()),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null".into()),
        ]
    }

    /// Creates or replaces an object and returns its ETag, quotes included.
    pub fn put(&self, key: &str, content: impl Into<Bytes>) -> String {
        self.bucket.put(key, content)
    }

    /// Creates or replaces an object that has this tag, without quotes: the same content may have the same again.
    pub fn put_tagged(&self, key: &str, content: impl Into<Bytes>, etag: &str) -> String {
        self.bucket.put_tagged(key, content, etag)
    }

    /// Creates or replaces an object whose content is computed, of any size.
    pub fn put_synthetic(&self, key: &str, size: u64) -> Synthetic {
        self.bucket.put_synthetic(key, size);
        self.synthetic(key).expect("it was put just now")
    }

    /// The content of a synthetic object now.
    pub fn synthetic(&self, key: &str) -> Option<Synthetic> {
        self.bucket.synthetic(key)
    }

    /// Changes one byte of an object and tells nobody.
    pub fn spoil(&self, key: &str, at: usize) {
        self.bucket.spoil(key, at);
    }

    pub fn delete(&self, key: &str) -> bool {
        self.bucket.delete(key)
    }

    /// Content, and what is stored beside it.
    pub fn stored(&self, key: &str) -> Option<(Bytes, About)> {
        self.bucket.stored(key)
    }

    /// How many uploads were neither completed nor aborted.
    pub fn uploads(&self) -> usize {
        self.bucket.uploads()
    }

    /// Makes it differ from AWS.
    pub fn behave(&self, habits: Habits) {
        self.bucket.behave(habits);
    }

    pub fn fault(&self, fault: Fault) {
        self.shared.faults.lock().expect("no panic while it is held").push(fault);
    }

    pub fn clear_faults(&self) {
        let mut faults = self.shared.faults.lock().expect("no panic while it is held");
        faults.clear();
        self.shared.cleared.send_replace(());
    }

    /// Every request since the start or the last [`reset_log`](Self::reset_log).
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.requests()
    }

    pub fn of_kind(&self, kind: Kind) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.kind == kind).collect()
    }

    pub fn count(&self, kind: Kind) -> usize {
        self.of_kind(kind).len()
    }

    pub fn reset_log(&self) {
        self.shared.log.reset();
    }

    /// Waits until the log shows something, such as an abort that the client caused just now; whether it did
    /// before a hang would have to be assumed. In an async test the client must be able to run meanwhile: use [`until`](Self::until) there.
    pub fn wait_for(&self, shows: impl Fn(&[Request]) -> bool) -> bool {
        let end = Instant::now() + PATIENCE;
        while !shows(&self.requests()) {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    /// [`wait_for`](Self::wait_for) in an async test.
    pub async fn until(&self, shows: impl Fn(&[Request]) -> bool) -> bool {
        let end = Instant::now() + PATIENCE;
        while !shows(&self.requests()) {
            if Instant::now() > end {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        true
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic was printed; a second one would abort
        }
    }
}

/// Listens at `address` of the network that the thread is in.
fn listen(address: SocketAddr, listeners: &mpsc::UnboundedSender<std::net::TcpListener>) -> SocketAddr {
    let listener = std::net::TcpListener::bind(address).expect("loopback has a free port");
    listener.set_nonblocking(true).expect("a listener can be nonblocking");
    let address = listener.local_addr().expect("a bound listener has an address");
    listeners.send(listener).expect("the server runs");
    address
}

async fn accept_all(mut listening: mpsc::UnboundedReceiver<std::net::TcpListener>, shared: Shared) {
    while let Some(listener) = listening.recv().await {
        tokio::spawn(accept(TcpListener::from_std(listener).expect("the listener is nonblocking"), shared.clone()));
    }
    // There are no more networks; the connections go on.
    std::future::pending().await
}

/// Connections live as tasks of the runtime and end with it.
async fn accept(listener: TcpListener, shared: Shared) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else { continue };
        let Ok((stream, socket)) = duplicate(stream) else { continue };
        let connection = Connection { shared: shared.clone(), remote_port: peer.port(), socket: Arc::new(socket) };
        tokio::spawn(async move {
            let server =
                hyper::server::conn::http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), connection);
            let _ = server.await; // a cut connection is what tests ask for
        });
    }
}

fn duplicate(stream: tokio::net::TcpStream) -> std::io::Result<(tokio::net::TcpStream, std::net::TcpStream)> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let socket = stream.try_clone()?;
    Ok((tokio::net::TcpStream::from_std(stream)?, socket))
}
