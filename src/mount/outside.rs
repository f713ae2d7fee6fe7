//! What can be asked of a mount besides its files: pages over HTTP, control sockets, counters in files. What they answer is decided in `admin`.
//! Invariant: what somebody asked for is there or the mount is not; without the rest it works as well.

use std::sync::Arc;

use tokio::runtime::Runtime;

use super::live::LiveOptions;
use super::{Error, Mounted};
use crate::admin::{CounterFiles, Health, Listen, Listener, Pages, Server, Subject};
use crate::config::Settings;
use crate::store::Switches;

/// Where pages will be served.
pub(super) fn bind_pages(place: &Listen) -> Result<Listener, Error> {
    Listener::bind(place).map_err(|source| Error::Listen { place: place.clone(), source })
}

/// Serves what can be looked at over HTTP.
pub(super) fn serve_pages(listener: Listener, health: &Arc<Health>, runtime: &Runtime) -> Result<Pages, Error> {
    let place = listener.place.clone();
    tracing::info!(%place, "metrics are served at /metrics");
    Pages::start(listener, Arc::clone(health), runtime.handle()).map_err(|source| Error::Listen { place, source })
}

impl Mounted {
    /// Opens the control sockets. A mount works without the one that nobody asked for.
    pub(super) fn open_sockets(&self, settings: &Settings, switches: Switches) -> Result<Vec<Server>, Error> {
        let session = Arc::clone(&self.session);
        let subject = Arc::new(Subject {
            observer: Arc::clone(&self.observer),
            forget: Box::new(move |expired| session.forget(expired)),
            live: Box::new(LiveOptions::new(settings, Arc::clone(&self.observer), switches)),
        });
        let mut servers = Vec::new();
        if let Some(path) = &settings.admin.socket {
            let failed = |source| Error::Control { path: path.clone(), source };
            servers.push(Server::at(path, Arc::clone(&subject), self.runtime().handle()).map_err(failed)?);
        }
        let Some(device) = self.session.device() else {
            tracing::info!("no control socket that the mount point leads to: this kernel does not tell what is mounted over a descriptor");
            return Ok(servers);
        };
        match Server::start(&settings.admin.directories, device, subject, self.runtime().handle()) {
            Ok(server) => servers.push(server),
            Err(error) if servers.is_empty() => {
                tracing::warn!(%error, "no control socket: windlass stats, refresh, warm, evict and ctl cannot ask this mount");
            }
            Err(error) => tracing::debug!(%error, "no control socket that the mount point leads to"),
        }
        Ok(servers)
    }

    /// Writes counters into files, when somebody wants them there.
    pub(super) fn write_counters(&self, settings: &Settings) -> Option<CounterFiles> {
        let wanted = settings.admin.files.as_ref()?;
        let Some(directory) = wanted.find(&self.observer.mountpoint) else {
            tracing::warn!(
                "metrics-dir=auto: no directory below /var/run/ossfs has a mount_point_info with this mount point: no counters are written"
            );
            return None;
        };
        tracing::info!(directory = %directory.display(), "counters are written into files");
        Some(CounterFiles::start(directory, Arc::clone(&self.observer), self.runtime().handle()))
    }
}
