//! The bucket: whose keys sign, and whether they may do what a mount does, each kind of request once. Invariant: nothing is written unless it
//! was asked for, and then under a name that nobody has, which is gone afterwards.

use std::sync::Arc;

use bytes::Bytes;

use super::{Finding, Report};
use crate::cli::Failure;
use crate::config::Place;
use crate::metrics::Metrics;
use crate::mount;
use crate::store::{
    self, Condition, Error, ErrorKind, Headers, Key, LEAST_PART, ListRequest, ObjectMeta, ObjectStore, Policy, PutRequest, RangeRequest,
    RangeSink, Result as StoreResult, Retrying, UploadRequest,
};

/// Whoever looks wants to know now.
const RETRIES: usize = 1;

/// Asks for everything once.
pub(super) async fn look(place: &Place, write_check: bool, report: &mut Report) -> Result<(), Failure> {
    match store::identity(&place.store).await {
        Ok(None) => report.add(&Finding::ok("credentials", "requests are not signed (--signature none)"))?,
        Ok(Some(found)) => report.add(&Finding::ok("credentials", format!("key {} from {}", found.key_id, found.source)))?,
        Err(error) => return report.add(&finding("credentials", &error)),
    }
    let store = match store::open(&place.store, Arc::new(Metrics::default())).await {
        Ok(store) => impatient(&store),
        Err(error) => return report.add(&finding("bucket", &error)),
    };
    let prefix = Key::from(place.source.prefix.as_str());
    let listed =
        store.list(&ListRequest { prefix: prefix.clone(), delimited: false, after: None, token: None, max_keys: 2, any_order: true }).await;
    let objects = match listed {
        Ok(page) => {
            report.add(&Finding::ok("signature", "the store accepts it"))?;
            report.add(&Finding::ok("LIST", format!("{} may be listed", place.source)))?;
            page.objects
        }
        Err(error) => {
            report.add(&finding(step(&error), &error))?;
            // Without it there is nothing to read, unless the store only refuses this.
            if error.kind != ErrorKind::AccessDenied {
                return Ok(());
            }
            Vec::new()
        }
    };
    report.add_all(reads(&store, objects.into_iter().find(|object| object.size > 0)).await)?;
    if write_check {
        report.add_all(writes(&store, &prefix).await)?;
    }
    Ok(())
}

fn impatient(store: &Retrying) -> Retrying {
    store.under(Policy { retries: RETRIES, ..store.policy() })
}

/// Which step of the way it was that failed.
fn step(error: &Error) -> &'static str {
    match error.kind {
        ErrorKind::BadCredentials | ErrorKind::NoCredentials => "signature",
        ErrorKind::WrongEndpoint => "region",
        ErrorKind::NoSuchBucket => "bucket",
        _ => "LIST",
    }
}

/// What the store said, with the advice and the exit code that a mount would have for it.
fn finding(what: &'static str, error: &Error) -> Finding {
    let advice = mount::advice(error);
    let advice = advice.trim_start_matches("; ");
    let (detail, fix) = match advice {
        // The message itself tells it.
        "" => error
            .reason()
            .to_string()
            .rsplit_once(": ")
            .map_or((error.reason().to_string(), String::new()), |(detail, fix)| (detail.into(), fix.into())),
        advice => (error.reason().to_string(), advice.to_owned()),
    };
    Finding { level: super::Level::Fail, what, detail, fix: Some(fix).filter(|fix| !fix.is_empty()), code: mount::exit_code(error) }
}

async fn reads(store: &Retrying, object: Option<ObjectMeta>) -> Vec<Finding> {
    let Some(object) = object else {
        return vec![Finding::warn("HEAD, GET", "there is no object to try them with", "put one there, or try with --write-check")];
    };
    vec![
        told("HEAD", store.head(&object.key).await.map(drop), "objects may be looked at"),
        told("GET", first_byte(store, &object).await, "objects may be read"),
    ]
}

fn told(what: &'static str, result: StoreResult<()>, good: &str) -> Finding {
    match result {
        Ok(()) => Finding::ok(what, good),
        Err(error) => finding(what, &error),
    }
}

/// A sink for one byte.
struct OneByte([u8; 1]);

impl RangeSink for OneByte {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn advance(&mut self, _n: usize) {}
}

async fn first_byte(store: &Retrying, object: &ObjectMeta) -> StoreResult<()> {
    // Some stores list no etags.
    let meta = if object.etag.as_str().is_empty() { store.head(&object.key).await? } else { object.clone() };
    let request = RangeRequest { key: meta.key, range: 0..1, etag: meta.etag };
    store.get_range(&request, &mut OneByte([0])).await
}

/// Writes an object, in one request and in parts, reads and copies nothing of others, and removes it.
async fn writes(store: &Retrying, prefix: &Key) -> Vec<Finding> {
    let key = prefix.join(format!(".windlass-doctor-{:016x}", rand::random::<u64>()).as_bytes());
    let mut findings = Vec::new();
    let request = PutRequest {
        key: key.clone(),
        body: Bytes::from_static(b"windlass doctor"),
        headers: Headers::default(),
        condition: Condition::Any,
    };
    let put = store.put(&request).await;
    let mut is_there = put.is_ok();
    findings.push(told("PUT", put.map(drop), "objects may be written"));
    if is_there {
        let look = async {
            let meta = store.head(&key).await?;
            first_byte(store, &meta).await
        };
        findings.push(told("GET of it", look.await, "what was written is read"));
    }
    let made = upload(store, &key).await;
    // Also after an error that does not tell whether it is there.
    is_there |= !matches!(&made, Err(Refused::Before(_)));
    let made = made.map_err(Refused::error);
    let may_upload = made.is_ok();
    findings.push(told("multipart", made, "uploads in parts may be made"));
    if may_upload {
        findings.push(told("multipart abort", begin_and_abort(store, &key).await, "uploads may be given up"));
    }
    if is_there {
        findings.push(match store.delete(&key).await {
            Ok(()) => Finding::ok("DELETE", "objects may be removed"),
            Err(error) if error.kind == ErrorKind::NotFound => Finding::ok("DELETE", "objects may be removed"),
            Err(error) => {
                let finding = finding("DELETE", &error);
                Finding { detail: format!("{} ({key} stays behind)", finding.detail), ..finding }
            }
        });
    }
    findings
}

/// Where an upload failed.
enum Refused {
    /// Before it was to become an object.
    Before(Error),
    AtTheEnd(Error),
}

impl Refused {
    fn error(self) -> Error {
        match self {
            Self::Before(error) | Self::AtTheEnd(error) => error,
        }
    }
}

/// Makes an object out of two parts: some stores take the parts and refuse to put them together.
async fn upload(store: &Retrying, key: &Key) -> Result<(), Refused> {
    let upload = store.create_upload(&UploadRequest::new(key, &Headers::default())).await.map_err(Refused::Before)?;
    let sent = async {
        let body = vec![0; usize::try_from(LEAST_PART).unwrap_or_default()];
        Ok([store.upload_part(&upload, 1, body.into()).await?, store.upload_part(&upload, 2, "the end".into()).await?])
    };
    let made = match sent.await.map_err(Refused::Before) {
        Ok(parts) => store.complete_upload(&upload, &parts, &Condition::Any).await.map(drop).map_err(Refused::AtTheEnd),
        Err(refused) => Err(refused),
    };
    if made.is_err() {
        // Why it failed is what is told.
        let _ = store.abort_upload(&upload).await;
    }
    made
}

/// What a mount does with each upload that it gives up.
async fn begin_and_abort(store: &Retrying, key: &Key) -> StoreResult<()> {
    let upload = store.create_upload(&UploadRequest::new(key, &Headers::default())).await?;
    store.abort_upload(&upload).await
}
