//! Volumes that Kubernetes makes: each is a prefix in the bucket of its StorageClass, with an entry beside it that says whose it is. Speaks to the
//! store; knows no request. Invariants: an entry is written before anything lies below its prefix and goes after all of it; what has no entry is
//! never deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use md5::{Digest, Md5};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;

use super::attributes;
use super::credentials::Files;
use crate::config::{Input, Place, bucket_len};
use crate::handover::Message;
use crate::metrics::Metrics;
use crate::store::{self, Condition, ErrorKind, Headers, Key, ObjectStore, PutRequest, StaticKeys};
use crate::transfer::{At, remove};

/// Most bytes of an id (CSI spec, "Size Limits").
const LONGEST_ID: usize = 128;

/// Options that it takes to reach a bucket: an id carries them, since DeleteVolume is told nothing else.
const REACH: [&str; 8] = ["endpoint", "region", "path-style", "fips", "dual-stack", "accelerate", "provider", "signature"];

/// What an entry says, as metadata of an empty object.
const NAME: &str = "windlass-volume";
const CAPACITY: &str = "windlass-capacity";

/// A volume, wherever it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `s3://bucket` or `oss://bucket`.
    bucket: String,
    /// Where the volumes of the class lie: empty, or ending in a slash.
    base: String,
    /// Its own directory in there.
    directory: String,
    /// How the bucket is reached.
    reach: BTreeMap<String, String>,
}

/// Why a volume cannot be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The volume of that name is another one.
    #[error("{0}")]
    Exists(String),
    /// The store said so.
    #[error("{0}")]
    Store(#[from] store::Error),
}

/// How large a volume is to be. A bucket has room for all: it is written down, and kept by nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub required: i64,
    /// 0: no limit.
    pub limit: i64,
}

impl Capacity {
    fn allows(self, capacity: i64) -> bool {
        capacity >= self.required && (self.limit == 0 || capacity <= self.limit)
    }
}

impl Volume {
    /// The volume `name` of a StorageClass with these parameters.
    ///
    /// # Errors
    /// [`Error::Invalid`] for parameters that no volume could have.
    pub fn of_class(name: &str, parameters: &BTreeMap<String, String>) -> Result<Self, Error> {
        let message = attributes::describe(parameters, &[]).map_err(Error::Invalid)?.message;
        let (bucket, base) = split(&message.bucket);
        let base = if base.is_empty() { String::new() } else { format!("{base}/") };
        let reach = reach(&message);
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) && !name.starts_with('.');
        let mut volume = Self { bucket, base, directory: name.to_owned(), reach };
        if !plain || volume.id().len() > LONGEST_ID {
            volume.directory = format!("v-{}", hex::encode(Md5::digest(name.as_bytes())));
        }
        match volume.id() {
            id if id.len() > LONGEST_ID => Err(Error::Invalid(format!(
                "the volume's id would have {} bytes and may have {LONGEST_ID}: {id}; a shorter prefix in the StorageClass makes room",
                id.len()
            ))),
            _ => Ok(volume),
        }
    }

    /// The volume of an id that [`id`](Self::id) made; none of any other.
    pub fn of_id(id: &str) -> Option<Self> {
        let (source, query) = id.split_once('?').unwrap_or((id, ""));
        let (bucket, path) = source.contains("://").then(|| split(source))?;
        let (base, directory) =
            path.rsplit_once('/').map_or((String::new(), path.clone()), |(base, name)| (format!("{base}/"), name.to_owned()));
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('='));
        let pairs = pairs.collect::<Option<Vec<_>>>()?.into_iter();
        let reach = pairs.map(|(name, text)| REACH.contains(&name).then(|| (name.to_owned(), text.to_owned()))).collect::<Option<_>>()?;
        (!directory.is_empty()).then_some(Self { bucket, base, directory, reach })
    }

    /// Its name for Kubernetes.
    pub fn id(&self) -> String {
        let reach: Vec<String> = self.reach.iter().map(|(name, text)| format!("{name}={text}")).collect();
        let separator = if reach.is_empty() { "" } else { "?" };
        format!("{}{separator}{}", self.source(), reach.join("&"))
    }

    /// What is mounted.
    pub fn source(&self) -> String {
        format!("{}/{}{}", self.bucket, self.base, self.directory)
    }

    /// Beside the volumes, and not to be seen in a mount of the whole bucket.
    fn entry(&self) -> Key {
        Key::from(format!("{}.windlass/volumes/{}", self.base, self.directory).as_str())
    }

    /// The attributes with which nodes mount it, out of the parameters of its class.
    pub fn context(&self, parameters: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let place = ["source", "bucket", "bucketName", "prefix", "path"];
        let is_own = |name: &str| !place.contains(&name) && !name.contains('/');
        let mut context: BTreeMap<_, _> =
            parameters.iter().filter(|(name, _)| is_own(name)).map(|(name, text)| (name.clone(), text.clone())).collect();
        context.insert("source".into(), self.source());
        context
    }

    /// The store it lies in, asked with the keys of the request, or else with those of the driver.
    ///
    /// # Errors
    /// When it cannot be reached by what is known.
    pub async fn open(&self, keys: Option<&Files>, environment: &[(String, String)]) -> Result<Arc<dyn ObjectStore>, Error> {
        let flags = self.reach.iter().map(|(name, text)| (name.clone(), Some(text.clone()))).collect();
        let input = Input { places: vec![self.bucket.clone().into()], flags, environment: environment.to_vec(), ..Input::default() };
        let mut options = Place::gather(&input).map_err(|error| Error::Invalid(error.to_string()))?.store;
        if let Some(keys) = keys {
            let text = |name: &str| keys.get(name).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            let (id, secret) = (text("AccessKeyId").unwrap_or_default(), text("AccessKeySecret").unwrap_or_default());
            options.credentials = store::CredentialOptions {
                keys: Some(StaticKeys { id, secret, token: text("SecurityToken") }),
                ..store::CredentialOptions::default()
            };
        }
        Ok(store::open(&options, Arc::new(Metrics::default())).await?)
    }

    /// Makes it, or finds it as it has to be; how large it is.
    ///
    /// # Errors
    /// [`Error::Exists`] when one of that name is another.
    pub async fn create(&self, store: &Arc<dyn ObjectStore>, name: &str, capacity: Capacity) -> Result<i64, Error> {
        let metadata = [
            (NAME.to_owned(), utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()),
            (CAPACITY.to_owned(), capacity.required.to_string()),
        ];
        let headers = Headers { content_type: None, metadata: metadata.into(), ..Headers::default() };
        let request = PutRequest { key: self.entry(), body: Bytes::new(), headers, condition: Condition::Absent };
        match store.put(&request).await {
            Ok(_) => return Ok(capacity.required),
            Err(error) if error.kind == ErrorKind::Replaced => {}
            Err(error) => return Err(error.into()),
        }
        let found = store.details(&self.entry()).await?.headers.metadata;
        let text = |name: &str| found.get(name).map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
        let size = text(CAPACITY).and_then(|text| text.parse().ok()).unwrap_or(0);
        if text(NAME).as_deref() != Some(name) {
            return Err(Error::Exists(format!("{} is already another volume", self.source())));
        }
        if !capacity.allows(size) {
            return Err(Error::Exists(format!("volume {name} is there with {size} bytes, which is not what is asked for")));
        }
        Ok(size)
    }

    /// Whether it is there.
    ///
    /// # Errors
    /// What the store says.
    pub async fn exists(&self, store: &Arc<dyn ObjectStore>) -> Result<bool, Error> {
        match store.head(&self.entry()).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes it with all objects below its prefix; how many these were. One that has no entry is left alone.
    ///
    /// # Errors
    /// What the store says; what is left is found by the next call.
    pub async fn delete(&self, store: &Arc<dyn ObjectStore>) -> Result<u64, Error> {
        if !self.exists(store).await? {
            return Ok(0);
        }
        let below = Key::from(format!("{}{}/", self.base, self.directory).as_str());
        let objects = remove(store, &below, At::Tree { object: false }, false, |_| {}).await?;
        store.delete(&self.entry()).await?;
        Ok(objects)
    }
}

/// `s3://bucket` and the path in it.
fn split(source: &str) -> (String, String) {
    let from = source.find("://").map_or(0, |at| at + 3);
    let end = from + bucket_len(&source.as_bytes()[from..]);
    (source[..end].to_owned(), source[end..].trim_matches('/').to_owned())
}

fn reach(message: &Message) -> BTreeMap<String, String> {
    let text = |name: &str| match message.options.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        _ => None,
    };
    REACH.iter().filter_map(|name| Some(((*name).to_owned(), text(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn an_id_says_where_the_volume_is() {
        let class = parameters(&[
            ("bucket", "data"),
            ("prefix", "k8s/a"),
            ("endpoint", "http://127.0.0.1:9000"),
            ("chunk-size", "8MiB"),
            ("csi.storage.k8s.io/pvc/name", "x"),
        ]);
        let volume = Volume::of_class("pvc-1", &class).unwrap();
        assert_eq!(volume.id(), "s3://data/k8s/a/pvc-1?endpoint=http://127.0.0.1:9000");
        assert_eq!(Volume::of_id(&volume.id()), Some(volume.clone()));
        assert_eq!(volume.entry(), Key::from("k8s/a/.windlass/volumes/pvc-1"));
        let context = volume.context(&class);
        assert_eq!(
            context,
            parameters(&[("source", "s3://data/k8s/a/pvc-1"), ("endpoint", "http://127.0.0.1:9000"), ("chunk-size", "8MiB")])
        );
        // DeleteVolume has to know of the store what CreateVolume knew.
        let named = parameters(&[("bucket", "data"), ("endpoint", "http://127.0.0.1"), ("provider", "minio")]);
        assert!(Volume::of_class("pvc-1", &named).unwrap().id().ends_with("&provider=minio"));
        let plain = Volume::of_class("pvc-1", &parameters(&[("source", "s3://data")])).unwrap();
        assert_eq!((plain.id().as_str(), Volume::of_id("s3://data/pvc-1")), ("s3://data/pvc-1", Some(plain.clone())));
        let access_point = "arn:aws:s3:us-west-2:123456789012:accesspoint/test";
        let class = parameters(&[("bucket", access_point), ("prefix", "k8s"), ("dual-stack", "true")]);
        let volume = Volume::of_class("pvc-1", &class).unwrap();
        assert_eq!(volume.id(), format!("s3://{access_point}/k8s/pvc-1?dual-stack=true"));
        assert_eq!(Volume::of_id(&volume.id()), Some(volume));
        for other in ["fake-vol-id", "s3://data", "s3://data/", "", "s3://data/a?x=1", "s3://data/a?region"] {
            assert_eq!(Volume::of_id(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_or_no_name_of_a_directory_is_shortened() {
        let class = parameters(&[("bucket", "data")]);
        for name in ["x".repeat(128), "a/b".into(), "..".into(), "ä".into()] {
            let volume = Volume::of_class(&name, &class).unwrap();
            assert!(volume.directory.starts_with("v-") && volume.id().len() <= LONGEST_ID, "{}", volume.id());
        }
        let long = parameters(&[("bucket", "data"), ("prefix", &"p".repeat(120))]);
        assert!(matches!(Volume::of_class("a", &long).unwrap_err(), Error::Invalid(why) if why.contains("shorter prefix")));
    }

    #[test]
    fn a_capacity_fits_between_its_bounds() {
        let range = Capacity { required: 10, limit: 20 };
        assert_eq!([9, 10, 20, 21].map(|size| range.allows(size)), [false, true, true, false]);
        assert!(Capacity::default().allows(0) && Capacity { required: 1, limit: 0 }.allows(1 << 60));
    }
}
