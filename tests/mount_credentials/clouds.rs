//! Both stores behind one face: an object to read, keys to admit and to forget, and a log of who came.

use tokio::runtime::Runtime;
use windlass::store::memory::Synthetic;

use crate::support::keyring::Keyring;
use crate::support::mounts::{Daemon, wait_until};
use crate::support::oss_server::{OssServer, Setup};
use crate::support::oss_sign::Signee;
use crate::support::{BUCKET, REGION, S3Server};

/// The object of each store.
pub const OBJECT: &str = "object";

pub enum Cloud {
    S3(S3Server, Synthetic),
    /// With the runtime that it lives on.
    Oss(OssServer, Synthetic, #[expect(dead_code, reason = "the server ends with it")] Runtime),
}

impl Cloud {
    pub fn s3() -> Self {
        let server = S3Server::start();
        let content = server.put_synthetic(OBJECT, Self::s3_size());
        server.keyring().forget(crate::support::ACCESS_KEY);
        Self::S3(server, content)
    }

    pub fn oss() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime starts");
        let (content, mut bytes) = (Synthetic::new(7), vec![0; Self::oss_size() as usize]);
        content.fill(0, &mut bytes);
        let who = Signee { id: "nobody".into(), secret: "nothing".into(), region: REGION.into() };
        let objects = [(OBJECT.as_bytes().to_vec(), bytes)].into();
        let setup = Setup { bucket: BUCKET.into(), who, token: None, public: false, objects, redirect_to: None };
        let server = runtime.block_on(OssServer::start(setup));
        Self::Oss(server, content, runtime)
    }

    const fn s3_size() -> u64 {
        8 << 30
    }

    /// The server works out the tag of the whole object for each request; what fits into one chunk would be asked for once.
    const fn oss_size() -> u64 {
        2 << 20
    }

    pub fn size(&self) -> u64 {
        match self {
            Self::S3(..) => Self::s3_size(),
            Self::Oss(..) => Self::oss_size(),
        }
    }

    pub fn content(&self) -> Synthetic {
        match self {
            Self::S3(_, content) | Self::Oss(_, content, _) => *content,
        }
    }

    pub fn keyring(&self) -> &Keyring {
        match self {
            Self::S3(server, _) => server.keyring(),
            Self::Oss(server, ..) => server.keyring(),
        }
    }

    /// A mount that has no credentials yet.
    pub fn daemon(&self) -> Daemon<'static> {
        let daemon = match self {
            Self::S3(server, _) => Daemon::of(&format!("s3://{BUCKET}"), &server.endpoint()),
            Self::Oss(server, ..) => {
                Daemon::of(&format!("oss://{BUCKET}"), &format!("http://{}", server.address)).arg("--chunk-size", "1MiB")
            }
        };
        // So that each name which is not there is a request, as the readers count on.
        daemon.arg("--negative-ttl", "0s")
    }

    /// Key and whether it was let in, of each request so far that has an answer.
    pub fn seen(&self) -> Vec<(String, bool)> {
        match self {
            Self::S3(server, _) => {
                let answered = server.requests().into_iter().filter(|request| request.status != 0);
                answered.filter_map(|request| Some((request.key_id()?.to_owned(), !matches!(request.status, 400 | 403)))).collect()
            }
            Self::Oss(server, ..) => server.seen().into_iter().map(|seen| (seen.key_id, seen.let_in)).collect(),
        }
    }

    /// How often `id` came after the first `skip` requests, and was let in or not.
    pub fn count(&self, skip: usize, id: &str, let_in: bool) -> usize {
        self.seen().into_iter().skip(skip).filter(|(key, accepted)| key == id && *accepted == let_in).count()
    }

    /// Waits until `id` was let in.
    #[track_caller]
    pub fn wait_for(&self, id: &str) {
        self.wait_until(id, true);
    }

    /// Waits until `id` came.
    #[track_caller]
    pub fn wait_until(&self, id: &str, let_in: bool) {
        wait_until(&format!("{id} came"), || self.count(0, id, let_in) > 0);
    }
}
