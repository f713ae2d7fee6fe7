//! A range in memory of its own, for what is small and read whole. It is outside the budget. Invariant: what the store did not send is zeros.

use md5::{Digest, Md5};

use super::{ObjectMeta, ObjectStore, RangeRequest, RangeSink, Result};

/// See the module.
#[derive(Debug)]
pub(super) struct Whole {
    pub content: Vec<u8>,
    pub filled: usize,
}

impl Whole {
    /// Room for `len` bytes.
    pub fn new(len: u64) -> Self {
        Self { content: vec![0; len as usize], filled: 0 }
    }
}

impl RangeSink for Whole {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.content[self.filled..]
    }

    fn advance(&mut self, n: usize) {
        self.filled += n;
    }
}

/// Whether the object `there` begins with the content of `start`, a version that is no longer in the store: its ETag is the MD5 of its content when it
/// was stored by one PUT and is not encrypted with a key of its own. False also when the ETag proves nothing.
///
/// # Errors
/// What the store answered, `ErrorKind::Replaced` when `there` was replaced.
pub async fn begins_with(store: &dyn ObjectStore, there: &ObjectMeta, start: &ObjectMeta) -> Result<bool> {
    if start.size == 0 {
        return Ok(true);
    }
    let bare = start.etag.as_str().trim_matches('"');
    let Some(md5) = hex::decode(bare).ok().filter(|md5| md5.len() == 16 && there.size >= start.size) else { return Ok(false) };
    let content = read(store, there, start.size).await?;
    Ok(Md5::digest(&content)[..] == md5[..])
}

/// The first `len` bytes of an object.
pub(super) async fn read(store: &dyn ObjectStore, meta: &ObjectMeta, len: u64) -> Result<Vec<u8>> {
    let mut whole = Whole::new(len);
    let request = RangeRequest { key: meta.key.clone(), range: 0..len, etag: meta.etag.clone() };
    store.get_range(&request, &mut whole).await?;
    Ok(whole.content)
}
