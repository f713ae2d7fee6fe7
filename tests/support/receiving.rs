//! Writes as the edge of the kernel does: what can be done at once is, and what was received into a landing may stay there.

use windlass::writer::{Content, Landing};

/// Writes `data` to `at`; by way of a landing, if there is one.
pub async fn write(content: &Content, at: u64, data: &[u8], landing: Option<Landing>) {
    let mut told = false;
    let Some(mut landing) = landing else {
        if let Some(done) = content.try_write(at, data, || told = true) {
            return done.expect("it is taken");
        }
        assert!(!told, "who wrote was told that it is done");
        return content.write(at, data).await.expect("it is taken");
    };
    landing.spare()[..data.len()].copy_from_slice(data);
    landing.on_received(data.len());
    if let Some(done) = content.try_write_received(at, &mut landing, || told = true) {
        done.expect("it is taken");
    } else {
        assert!(!told, "who wrote was told that it is done");
        content.write_kept(at, landing.keep()).await.expect("it is taken");
    }
    // What comes next is somebody else's.
    landing.spare().fill(0xee);
}
