//! Requests that change a bucket, and those that ask for more than a HEAD tells: formed and read in one way for both dialects, which differ in
//! signature, header names and checksum. It does not retry.

mod adapt;
mod attributes;
mod body;
mod buckets;
mod deletion;
mod digests;
mod exchange;
mod headers;
mod objects;
mod sdk_client;
mod session;
mod uploads;

use std::sync::Arc;

use tokio::time::Instant;

use self::adapt::{Conditions, Feature};
use self::attributes::Telling;
use self::digests::{Acknowledging, Digests, Extra};
use self::exchange::{Call, Exchange, Reply};
use self::headers::Names;
use self::sdk_client::SdkClient;
use super::leave::Clients;
use super::{Body, Dialect, Options, Polynomial, StoreTime, Support, UploadChecksum};
use crate::metrics::Metrics;

pub(super) use self::digests::Tags;
pub(super) use self::exchange::{Unsigned, Voice};
pub(super) use self::headers::{REQUEST_PAYER, object_sum, version_in};
pub(super) use self::session::{Session, SessionMode};

/// A few hundred microseconds at the most on any machine: the longest body whose CRC is made, and which is hashed, where it is sent from.
const SUMMED_HERE: usize = 1 << 20;
const HASHED_HERE: usize = 64 << 10;

/// The HTTP client of everything but data GETs and listings.
#[derive(Debug)]
pub(super) struct Requests {
    dialect: Dialect,
    bucket: String,
    exchange: Arc<Exchange>,
    sdk: SdkClient,
    voice: Arc<dyn Voice>,
    names: Arc<Names>,
    verifies_reads: bool,
    metrics: Arc<Metrics>,
    upload_checksum: UploadChecksum,
    /// S3: checksums under `--upload-checksum auto`.
    checksums: Feature,
    /// Content-MD5.
    md5s: Feature,
    acknowledging: Acknowledging,
    tags: Arc<Tags>,
    /// Held while it is found out what the tags are.
    probing: tokio::sync::Mutex<()>,
    /// S3.
    conditions: Conditions,
    /// Whether the store compares the version of the source of a copied part.
    conditional_part_copies: bool,
    /// Whether uploads are listed in the order of their keys, for prefixes of any kind.
    ordered_listings: bool,
    /// Whether the store has RenameObject.
    renames: bool,
    /// One request that deletes many objects.
    deletes_many: Feature,
    telling: Telling,
}

impl Requests {
    /// `http` comes from [`clients`](super::clients::clients).
    pub fn new(http: Clients, options: &Options, voice: Arc<dyn Voice>, tags: Arc<Tags>, metrics: Arc<Metrics>) -> Self {
        let names = Arc::new(Names::new(options));
        let exchange = Arc::new(Exchange::new(http, options, Arc::clone(&voice), Arc::clone(&names), Arc::clone(&metrics)));
        Self {
            dialect: options.dialect,
            bucket: options.bucket.clone(),
            sdk: SdkClient::new(Arc::clone(&exchange), Arc::clone(&voice)),
            exchange,
            voice,
            names,
            verifies_reads: options.verify_reads,
            metrics,
            upload_checksum: options.upload_checksum,
            checksums: Feature::new(if options.quirks.crc64nvme { Support::Learned } else { Support::No }),
            md5s: Feature::new(if options.quirks.content_md5 { Support::Learned } else { Support::No }),
            acknowledging: Acknowledging::default(),
            tags,
            probing: tokio::sync::Mutex::default(),
            conditions: Conditions::new(&options.quirks),
            conditional_part_copies: options.quirks.conditional_part_copies,
            ordered_listings: options.quirks.ordered_listings,
            renames: options.quirks.renames,
            deletes_many: Feature::default(),
            telling: Telling::new(&options.quirks),
        }
    }

    /// See [`ObjectStore::lists_in_order`](crate::store::ObjectStore::lists_in_order).
    pub fn lists_in_order(&self) -> bool {
        self.ordered_listings
    }

    pub fn most_metadata(&self) -> usize {
        match self.dialect {
            Dialect::S3 => super::symlink::MOST_METADATA,
            // https://www.alibabacloud.com/help/en/oss/user-guide/manage-object-metadata-10
            Dialect::Oss => 8192,
        }
    }

    pub fn time_at(&self, at: Instant) -> Option<StoreTime> {
        self.voice.clock().at(at)
    }

    fn polynomial(&self) -> Polynomial {
        match self.dialect {
            Dialect::S3 => Polynomial::Nvme,
            Dialect::Oss => Polynomial::Ecma,
        }
    }

    /// Makes the sums of a body; those of a large one take longer than others should wait.
    async fn digests(&self, body: &Body, extra: Extra) -> Digests {
        let polynomial = self.polynomial();
        let most = if extra == Extra::default() { SUMMED_HERE } else { HASHED_HERE };
        off_the_runtime(body, most, move |body| Digests::of(body, polynomial, extra)).await
    }
}

/// Computes something of `body`, elsewhere when it is longer than `most` bytes.
async fn off_the_runtime<T: Send + 'static>(body: &Body, most: usize, compute: impl Fn(&Body) -> T + Clone + Send + 'static) -> T {
    if body.len() > most {
        let (shared, compute) = (body.clone(), compute.clone());
        if let Ok(computed) = tokio::task::spawn_blocking(move || compute(&shared)).await {
            return computed;
        }
        // The runtime is shutting down.
    }
    compute(body)
}
