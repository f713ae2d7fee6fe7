//! What the node plugin of Alibaba Cloud's driver and its mount-proxy say to each other: one JSON object and a line feed for each connection and
//! direction (pkg/mounter/proxy/protocol.go of kubernetes-sigs/alibaba-cloud-csi-driver). Names that are not known are left aside, as there.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A request, of which the method says what the body is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Request {
    pub header: Header,
    pub body: serde_json::Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub method: String,
}

/// What a request came to: no error means that it was done.
#[derive(Debug, Default, Serialize)]
pub(super) struct Response {
    /// Which connection it was, from 1 on.
    pub seq: i64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// The body of `mount`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Mount {
    /// `bucket:/path`.
    pub source: String,
    pub target: String,
    /// `ossfs` or `ossfs2`.
    pub fstype: String,
    pub options: Option<Vec<String>>,
    pub mount_flags: Option<Vec<String>>,
    /// A password file under its name, or the fields of temporary keys.
    pub secrets: Option<BTreeMap<String, String>>,
    pub metrics_path: String,
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    pub overlay: bool,
}

/// Not derived: secrets must not reach a log through `{:?}`.
impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("source", &self.source).field("target", &self.target).finish_non_exhaustive()
    }
}

/// The body of `unmount`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Unmount {
    pub target: String,
}

/// What the driver takes for "somebody else mounted it", and unmounts it itself.
pub(super) const NOT_OURS: &str = "target not managed by mount broker";
