//! The buckets of an account: asked for at the endpoint itself, each opened at its own region. They share HTTP connections, and credentials
//! where these are not named bucket by bucket.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use aws_types::region::Region;

use super::sign::Signer;
use super::{address, credentials_of, http_clients, known_region, store};
use crate::metrics::Metrics;
use crate::store::buckets::Account;
use crate::store::credentials::Rotating;
use crate::store::leave::Clients;
use crate::store::requests::{Requests, Tags};
use crate::store::{ObjectStore, Options, Result};

/// See the module.
pub(in crate::store) struct S3Account {
    options: Options,
    region: Region,
    http: Clients,
    /// None: each bucket has its own, or requests are not signed.
    credentials: Option<Arc<Rotating>>,
    requests: Requests,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for S3Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Account").field("region", &self.region).finish_non_exhaustive()
    }
}

impl S3Account {
    /// Makes ready to ask for the buckets of an account. Nothing is sent yet; only the metadata service may be asked for the region.
    pub async fn connect(options: &Options, metrics: Arc<Metrics>) -> Result<Self> {
        let region = known_region(options).await?;
        let http = http_clients(options, &metrics)?;
        let own = credentials_of(options, "", &region)?;
        let signer = Signer::new(address(options, &region).await?, own.clone(), options.requester_pays);
        let requests = Requests::new(http.clone(), options, Arc::new(signer), Arc::new(Tags::default()), Arc::clone(&metrics));
        // A file of keys may have a line for each bucket.
        let credentials = own.filter(|_| options.credentials.passwd_file.is_none());
        Ok(Self { options: options.clone(), region, http, credentials, requests, metrics })
    }
}

#[async_trait]
impl Account for S3Account {
    async fn list_buckets(&self) -> Result<Vec<String>> {
        self.requests.list_buckets().await
    }

    async fn open_bucket(&self, name: &str) -> Result<Arc<dyn ObjectStore>> {
        let options = Options { bucket: name.to_owned(), buckets: None, ..self.options.clone() };
        let credentials = match &self.credentials {
            Some(shared) => Some(Arc::clone(shared)),
            None => credentials_of(&options, name, &self.region)?,
        };
        let open = async |region: &Region| {
            let options = Options { region: Some(region.to_string()), ..options.clone() };
            let address = address(&options, region).await?;
            store(&options, address, credentials.clone(), Tags::default(), self.http.clone(), Arc::clone(&self.metrics))
        };
        let here = open(&self.region).await?;
        match here.other_region().await? {
            Some(region) if region != self.region.as_ref() => {
                tracing::debug!(bucket = name, region, "the bucket is in another region");
                Ok(Arc::new(open(&Region::new(region)).await?))
            }
            Some(_) | None => Ok(Arc::new(here)),
        }
    }
}
