//! An S3 server in this process. It has threads of its own and ends when it is dropped; what it stored stays where
//! it was told to put it.

use std::fmt;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use s3s::auth::SimpleAuth;
use s3s::dto::{CreateBucketInput, DeleteObjectInput, ETag, PutObjectInput, StreamingBlob};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Error};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::bucket::{Buckets, request};
use crate::store;

/// Threads of the server: it serves this machine only, and the daemon needs the cores too.
const WORKERS: usize = 2;

/// A piece of a body is written in far less, on any disk that a demo is fun on.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

const ACCESS_KEY: &str = "demo";
const REGION: &str = "us-east-1";

/// Why the server does not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what} {}", .path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot listen on 127.0.0.1")]
    Listen(#[source] io::Error),
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    #[error("cannot use {} as a store: {reason}", .path.display())]
    Store { path: PathBuf, reason: String },
    #[error("the store in this process refused {what}")]
    Refused { what: String, source: S3Error },
}

/// One bucket behind HTTP on a port of 127.0.0.1.
pub struct Server {
    buckets: Buckets,
    bucket: String,
    address: SocketAddr,
    passwd_file: PathBuf,
    runtime: Option<Runtime>,
}

impl Server {
    /// Serves `bucket` out of `dir`, which must exist and be ours alone; puts a file with the credentials there too.
    ///
    /// # Errors
    /// When the directory cannot be written to, or no port or thread is left.
    pub fn start(dir: &Path, bucket: &str) -> Result<Self, Error> {
        let root = dir.join("buckets");
        let file_error = |what| {
            let path = root.clone();
            move |source| Error::File { what, path, source }
        };
        std::fs::create_dir_all(&root).map_err(file_error("cannot create"))?;
        let refused = |e: s3s_fs::Error| Error::Store { path: root.clone(), reason: format!("{e:?}") };
        let buckets = Buckets::new(&root).map_err(refused)?;
        let secret: String = (0..4).map(|_| format!("{:016x}", rand::random::<u64>())).collect();
        let passwd_file = dir.join("passwd");
        write_private(&passwd_file, &format!("{ACCESS_KEY}:{secret}\n")).map_err(|source| Error::File {
            what: "cannot write",
            path: passwd_file.clone(),
            source,
        })?;

        let runtime =
            Builder::new_multi_thread().worker_threads(WORKERS).thread_name("demo-store").enable_all().build().map_err(Error::Threads)?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).map_err(Error::Listen)?;
        let address = listener.local_addr().map_err(Error::Listen)?;
        let mut service = S3ServiceBuilder::new(buckets.clone());
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, secret));
        runtime.spawn(accept(listener, service.build()));
        let server = Self { buckets, bucket: bucket.to_owned(), address, passwd_file, runtime: Some(runtime) };
        server.create_bucket()?;
        Ok(server)
    }

    /// How to reach the bucket.
    pub fn options(&self) -> store::Options {
        store::Options {
            bucket: self.bucket.clone(),
            endpoint: Some(self.endpoint()),
            region: Some(REGION.into()),
            credentials: store::CredentialOptions { passwd_file: Some(self.passwd_file.clone()), ..Default::default() },
            // Each request is shown: one that is late because this machine is busy shall not count twice.
            hedge: false,
            ..store::Options::default()
        }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The bucket's name.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// A file with the credentials that only we can read.
    pub fn passwd_file(&self) -> &Path {
        &self.passwd_file
    }

    /// Stores an object and returns its ETag, quotes included.
    ///
    /// # Errors
    /// When the store refuses it: no space, a key that cannot be a path, a body that ends with an error.
    pub async fn put(&self, key: &str, body: impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static) -> Result<String, Error> {
        let body = StreamingBlob::wrap(body);
        let input = PutObjectInput::builder().bucket(self.bucket.clone()).key(key.to_owned()).body(Some(body)).build();
        let buckets = self.buckets.clone();
        let put = async move { buckets.put_object(request(input.expect("bucket and key are set"))).await };
        let refused = |source| Error::Refused { what: format!("object {key}"), source };
        let answer = self.runtime().spawn(put).await.map_err(|e| refused(S3Error::internal_error(e)))?.map_err(refused)?;
        Ok(answer.output.e_tag.map_or_else(String::new, |etag: ETag| format!("\"{}\"", etag.value())))
    }

    /// Removes an object.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        let input = DeleteObjectInput::builder().bucket(self.bucket.clone()).key(key.to_owned()).build();
        let buckets = self.buckets.clone();
        let delete = async move { buckets.delete_object(request(input.expect("bucket and key are set"))).await };
        let refused = |source| Error::Refused { what: format!("to delete {key}"), source };
        self.runtime().spawn(delete).await.map_err(|e| refused(S3Error::internal_error(e)))?.map_err(refused)?;
        Ok(())
    }

    /// Ends the server and waits for what it does to its directory; not to be called from async code.
    pub fn stop(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LAST_REQUESTS);
        }
    }

    /// Runs something on the server's threads and waits for it; not to be called from async code.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime().block_on(future)
    }

    fn create_bucket(&self) -> Result<(), Error> {
        let input = CreateBucketInput::builder().bucket(self.bucket.clone()).build().expect("the bucket is set");
        let refused = |source| Error::Refused { what: format!("bucket {}", self.bucket), source };
        self.block_on(self.buckets.create_bucket(request(input))).map_err(refused).map(drop)
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("only drop takes it")
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait, so that a server can be dropped in async code; its tasks hold nothing that matters.
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, service: S3Service) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: wait for one, do not spin.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true); // slower without, not wrong
        let service = service.clone();
        tokio::spawn(async move {
            let connection = auto::Builder::new(TokioExecutor::new()).http1_only();
            let _ = connection.serve_connection(TokioIo::new(stream), service).await; // the client sees what went wrong
        });
    }
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}
