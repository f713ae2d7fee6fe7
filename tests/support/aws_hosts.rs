//! The hosts of Amazon, all of them, behind a proxy: whatever name a client connects to by CONNECT is answered by the test server, over TLS and with a
//! certificate for that name. So a client is tried at the addresses that it has by itself, with its own signatures.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use hyper_util::rt::{TokioIo, TokioTimer};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::aws_sign::{self, Refusal};
use super::directory_bucket::DIRECTORY_BUCKET;
use super::keyring::Keyring;
use super::layer::{Connection, Gate};
use super::s3_server::{BUCKET, S3Server};

/// Names that the certificate is for. A star stands for one label.
const NAMES: [&str; 9] = [
    "*.s3.us-west-2.amazonaws.com",
    "*.s3-fips.us-west-2.amazonaws.com",
    "*.s3.dualstack.us-west-2.amazonaws.com",
    "*.s3-accelerate.amazonaws.com",
    "*.s3-accesspoint.us-west-2.amazonaws.com",
    "*.mrap.accesspoint.s3-global.amazonaws.com",
    "*.s3-object-lambda.us-west-2.amazonaws.com",
    "*.op-01ac5d28a6a232904.s3-outposts.us-west-2.amazonaws.com",
    "*.s3express-usw2-az1.us-west-2.amazonaws.com",
];

/// See the module. It ends with this.
pub struct AwsHosts {
    proxy: SocketAddr,
    hosts: Arc<Mutex<BTreeSet<String>>>,
    files: TempDir,
    _runtime: Runtime,
}

impl AwsHosts {
    /// Serves the bucket of `server` under all names.
    pub fn before(server: &S3Server) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory can be made");
        let acceptor = acceptor(files.path());
        let runtime = Runtime::new().expect("a runtime starts");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("loopback has a free port");
        let proxy = listener.local_addr().expect("a bound listener has an address");
        let hosts = Arc::<Mutex<BTreeSet<String>>>::default();
        let (mut shared, seen) = (server.shared(), Arc::clone(&hosts));
        shared.gate = Some(Arc::new(ByHost { keyring: server.keyring().clone(), sessions: shared.gate.take() }));
        runtime.spawn(async move {
            loop {
                let Ok((stream, peer)) = listener.accept().await else { continue };
                let (acceptor, shared, seen) = (acceptor.clone(), shared.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let std = stream.into_std().ok()?;
                    let socket = Arc::new(std.try_clone().ok()?);
                    let mut stream = BufReader::new(tokio::net::TcpStream::from_std(std).ok()?);
                    let mut first = String::new();
                    loop {
                        let mut line = String::new();
                        stream.read_line(&mut line).await.ok()?;
                        if line.trim().is_empty() {
                            break;
                        }
                        first.push_str(&line);
                    }
                    let host = first.strip_prefix("CONNECT ")?.split([':', ' ']).next()?.to_owned();
                    seen.lock().expect("no panic while it is held").insert(host);
                    stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.ok()?;
                    let tls = acceptor.accept(stream).await.ok()?;
                    let connection = Connection { shared, remote_port: peer.port(), socket };
                    let mut http = hyper::server::conn::http1::Builder::new();
                    http.timer(TokioTimer::new()).serve_connection(TokioIo::new(tls), connection).await.ok()
                });
            }
        });
        Self { proxy, hosts, files, _runtime: runtime }
    }

    /// The value of HTTPS_PROXY.
    pub fn proxy(&self) -> String {
        format!("http://{}", self.proxy)
    }

    /// The certificate that vouches for all of them.
    pub fn ca_bundle(&self) -> PathBuf {
        self.files.path().join("certificate")
    }

    /// The hosts that were connected to, without their ports.
    pub fn hosts(&self) -> Vec<String> {
        self.hosts.lock().expect("no panic while it is held").iter().cloned().collect()
    }
}

/// Makes the bucket the first component of the path that it is to the service.
struct ByHost {
    keyring: Keyring,
    /// Of a directory bucket, its own gate.
    sessions: Option<Arc<dyn Gate>>,
}

impl Gate for ByHost {
    fn admit(&self, request: &mut http::request::Parts) -> Result<(), Refusal> {
        let host = request.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
        let bucket = match (&self.sessions, host.split('.').next()) {
            (Some(sessions), Some(DIRECTORY_BUCKET)) => {
                sessions.admit(request)?;
                DIRECTORY_BUCKET
            }
            _ => {
                let signed = aws_sign::check(request, None, |id| self.keyring.get(id))?;
                let (service, region) = scope_of(&host);
                if (signed.service.as_str(), signed.region.as_str()) != (service, region) {
                    return Err((400, "AuthorizationHeaderMalformed", "The service or the region is not that of the host."));
                }
                BUCKET
            }
        };
        let path = request.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        request.uri = format!("/{bucket}{path}").parse().expect("a path with a component more is one");
        Ok(())
    }
}

/// What requests to a host are signed for.
fn scope_of(host: &str) -> (&'static str, &'static str) {
    match host {
        host if host.contains(".s3-global.") => ("s3", "*"),
        // The first of the schemes that the vendor's rules name is Version 4A.
        host if host.contains(".s3-outposts.") => ("s3-outposts", "*"),
        host if host.contains(".s3-object-lambda.") => ("s3-object-lambda", "us-west-2"),
        _ => ("s3", "us-west-2"),
    }
}

/// With a certificate that vouches for itself, for [`NAMES`].
fn acceptor(files: &Path) -> TlsAcceptor {
    let (key, certificate) = (files.join("key"), files.join("certificate"));
    let names = NAMES.map(|name| format!("DNS:{name}")).join(",");
    let mut make = Command::new("openssl");
    make.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=amazonaws.test"]);
    make.args(["-addext", &format!("subjectAltName={names}"), "-addext", "basicConstraints=critical,CA:FALSE"]);
    make.arg("-keyout").arg(&key).arg("-out").arg(&certificate).stderr(Stdio::null());
    assert!(make.status().expect("openssl is installed").success());
    let key = PrivateKeyDer::from_pem_file(&key).expect("it was written just now");
    let chain = vec![CertificateDer::from_pem_file(&certificate).expect("it was written just now")];
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("the provider has them");
    let config = config.with_no_client_auth().with_single_cert(chain, key).expect("they belong together");
    TlsAcceptor::from(Arc::new(config))
}
