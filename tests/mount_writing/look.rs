//! What these trials look at in the server.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::support::{Effect, Fault, Kind, S3Server};

pub trait Look {
    /// The content of an object.
    fn object(&self, key: &str) -> Option<Bytes>;
    fn content_type(&self, key: &str) -> Option<String>;
    /// What is stored beside it, without `x-amz-meta-`.
    fn metadata(&self, key: &str) -> BTreeMap<String, String>;
    fn unfinished_uploads(&self) -> usize;
    /// From now on whatever writes is answered with AccessDenied.
    fn refuse_writes(&self);
}

impl Look for S3Server {
    fn object(&self, key: &str) -> Option<Bytes> {
        self.stored(key).map(|(content, _)| content)
    }

    fn content_type(&self, key: &str) -> Option<String> {
        self.stored(key).and_then(|(_, about)| about.content_type)
    }

    fn metadata(&self, key: &str) -> BTreeMap<String, String> {
        self.stored(key).map(|(_, about)| about.metadata.into_iter().collect()).unwrap_or_default()
    }

    fn unfinished_uploads(&self) -> usize {
        self.uploads()
    }

    fn refuse_writes(&self) {
        for kind in [Kind::Put, Kind::Copy, Kind::Delete, Kind::CreateUpload, Kind::UploadPart, Kind::CopyPart, Kind::CompleteUpload] {
            self.fault(Fault::new(Effect::Status(403)).kind(kind));
        }
    }
}
