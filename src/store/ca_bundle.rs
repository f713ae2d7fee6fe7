//! Certificates that may vouch for the store besides those of the system. Invariant: what is in a [`CaBundle`] can be parsed.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use reqwest::Certificate;

/// The certificates of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaBundle(Arc<[u8]>);

impl CaBundle {
    /// Reads certificates in PEM.
    ///
    /// # Errors
    /// Why there are none.
    pub fn read(path: &Path) -> Result<Self, String> {
        let pem = fs::read(path).map_err(|error| format!("cannot be read: {error}"))?;
        match Certificate::from_pem_bundle(&pem) {
            Ok(found) if !found.is_empty() => Ok(Self(pem.into())),
            Ok(_) | Err(_) => Err("holds no certificate in PEM".into()),
        }
    }

    pub(super) fn certificates(&self) -> Vec<Certificate> {
        Certificate::from_pem_bundle(&self.0).expect("they were parsed when they were read")
    }
}
