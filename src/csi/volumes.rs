//! The published volumes of this node: makes, keeps, refreshes and takes them away. All of it blocks, and asks the mount table, the reception and files,
//! never the mount: an unserved one answers nobody. Invariants: what is in the table is mounted, written down and kept; calls for one target
//! come one after the other, which the caller sees to.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tonic::Status;

use super::attach::{Mounts, Wanted};
use super::credentials::Files;
use super::detach::{self, Known, Probed};
use super::ledger::{Ledger, Record};
use super::pod_dir::{self, PodDir};
use super::reception::{Patience, Reception, Standing};
use super::target::Target;
use super::verdict;
use crate::fuse;
use crate::handover::{Keeper, Proof, Trouble};
use crate::mountinfo;

/// What a node is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The kubelet's directory.
    pub kubelet: PathBuf,
    /// Who serves in the pods.
    pub user: u32,
    pub patience: Patience,
}

/// See the module.
#[derive(Debug)]
pub struct Volumes {
    place: Place,
    mounts: Mounts,
    ledger: Ledger,
    runtime: Handle,
    published: Mutex<HashMap<PathBuf, Arc<Published>>>,
}

#[derive(Debug)]
struct Published {
    record: Record,
    reception: Reception,
}

/// A volume to publish.
#[derive(Clone, Debug)]
pub struct Request {
    pub record: Record,
    pub target: Target,
    /// For its daemon.
    pub credentials: Files,
}

/// How a published volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub is_abnormal: bool,
    pub message: String,
}

impl Volumes {
    /// Those that are written down and still mounted; what is dead of ours is taken away.
    ///
    /// # Errors
    /// When mount table or ledger cannot be read.
    pub fn restore(place: Place, mounts: Mounts, ledger: Ledger, runtime: Handle) -> io::Result<Self> {
        let volumes = Self { place, mounts, ledger, runtime, published: Mutex::default() };
        let records = volumes.ledger.records()?;
        let ours =
            |entry: &mountinfo::Entry| entry.kind == "fuse.windlass" && entry.mount_point.starts_with(volumes.place.kubelet.join("pods"));
        for entry in mountinfo::read()?.iter().filter(|entry| ours(entry)) {
            let record = records.iter().find(|record| record.target == entry.mount_point && record.device == entry.device.to_string());
            match (detach::probe(&entry.mount_point), record) {
                (Probed::Dead, _) => {
                    tracing::info!(target = %entry.mount_point.display(), "a dead mount of an earlier driver is taken away");
                    detach::detach(&entry.mount_point)?;
                }
                (Probed::Alive, Some(record)) => volumes.take_over(record)?,
                (Probed::Alive, None) => {
                    tracing::warn!(target = %entry.mount_point.display(), "a mount that nobody wrote down is left alone")
                }
            }
        }
        let kept = volumes.published.lock().keys().cloned().collect::<Vec<_>>();
        records.iter().filter(|record| !kept.contains(&record.target)).for_each(|record| volumes.ledger.remove(&record.target));
        Ok(volumes)
    }

    /// How many are published.
    pub fn count(&self) -> usize {
        self.published.lock().len()
    }

    fn take_over(&self, record: &Record) -> io::Result<()> {
        let target = Target { path: record.target.clone(), pod: record.pod.clone(), name: record.name.clone() };
        match PodDir::open(&self.place.kubelet, &target, self.place.user) {
            Ok(dir) => {
                tracing::info!(volume = record.volume, target = %record.target.display(), "a volume of an earlier driver is taken over");
                self.keep(record.clone(), &dir, Vec::new())
            }
            Err(error) => {
                tracing::warn!(volume = record.volume, %error, "a volume is mounted and its pod is gone");
                Ok(())
            }
        }
    }

    fn keep(&self, record: Record, dir: &PodDir, devices: Vec<OwnedFd>) -> io::Result<()> {
        let Place { user, patience, .. } = self.place;
        let proof =
            Proof { device: record.device.clone(), look: |descriptor| fuse::mounted_over(descriptor).map_err(|flaw| flaw.to_string()) };
        let keeper = Keeper::new(devices, record.message.clone()).with_proof(proof);
        let mount = Known { target: record.target.clone(), device: record.device.clone() };
        let reception = Reception::open(dir.listen()?, keeper, mount, (user, patience), &self.runtime)?;
        let key = record.target.clone();
        self.published.lock().insert(key, Arc::new(Published { record, reception }));
        Ok(())
    }

    /// Publishes, or refreshes what is published.
    ///
    /// # Errors
    /// What the CSI has for each failure.
    pub fn publish(&self, request: &Request) -> Result<(), Status> {
        let path = &request.record.target;
        let published = self.published.lock().get(path).cloned();
        if let Some(published) = published {
            if !published.record.is_same(&request.record) {
                return Err(Status::already_exists(format!(
                    "volume {} is published at {} in another way",
                    published.record.volume,
                    path.display()
                )));
            }
            if self.is_there(&published)? {
                return self.refresh(&published, request);
            }
            tracing::warn!(volume = request.record.volume, target = %path.display(), "a mount has died and is made anew");
            self.published.lock().remove(path);
        }
        self.clear_target(path)?;
        self.check_alone(&request.record)?;
        self.begin(request).inspect_err(|_| self.ledger.remove(path))
    }

    /// Whether it is mounted and can be served.
    fn is_there(&self, published: &Published) -> Result<bool, Status> {
        let entry = mountinfo::at(&published.record.target).map_err(|error| internal("read the mount table", &error))?;
        if entry.is_none_or(|entry| entry.device.to_string() != published.record.device) {
            return Ok(false);
        }
        Ok(match published.reception.standing() {
            Standing::Dead => false,
            // Somebody has the descriptors, or the kernel has noticed that nobody does.
            Standing::Unknown => detach::probe(&published.record.target) == Probed::Alive,
            Standing::Expected | Standing::Served { .. } | Standing::Left(_) => true,
        })
    }

    /// New credentials; then whatever keeps the daemon from serving is what kubelet hears.
    fn refresh(&self, published: &Published, request: &Request) -> Result<(), Status> {
        let dir = PodDir::open(&self.place.kubelet, &request.target, self.place.user).map_err(|error| status(&error))?;
        dir.put_credentials(&request.credentials).map_err(|error| internal("write the credentials", &error))?;
        match self.failure(&published.reception.standing(), &dir) {
            Some(trouble) => Err(verdict::status(&trouble)),
            None => Ok(()),
        }
    }

    /// What keeps a volume from being served, when nobody serves it.
    fn failure(&self, standing: &Standing, dir: &PodDir) -> Option<Trouble> {
        let written = || dir.error().ok().flatten().and_then(|bytes| verdict::read(&bytes));
        match standing {
            Standing::Served { ready: true, .. } => None,
            Standing::Served { trouble, .. } => trouble.clone(),
            Standing::Left(Some(trouble)) => Some(trouble.clone()),
            Standing::Left(None) | Standing::Expected => written(),
            Standing::Unknown | Standing::Dead => None,
        }
    }

    /// Takes away what is left of an earlier mount of ours. Anything else is not ours to take.
    fn clear_target(&self, path: &Path) -> Result<(), Status> {
        loop {
            match mountinfo::at(path).map_err(|error| internal("read the mount table", &error))? {
                None => return Ok(()),
                Some(entry) if entry.kind == "fuse.windlass" => {
                    detach::detach(path).map_err(|error| internal("take an earlier mount away", &error))?;
                }
                Some(entry) => {
                    return Err(Status::failed_precondition(format!("something else is mounted at {}: {}", path.display(), entry.kind)));
                }
            }
        }
    }

    fn check_alone(&self, wanted: &Record) -> Result<(), Status> {
        let published = self.published.lock();
        let is_other = |other: &&Arc<Published>| {
            let other = &other.record;
            other.volume == wanted.volume && other.target != wanted.target && (other.alone || wanted.alone)
        };
        published.values().find(is_other).map_or(Ok(()), |other| {
            Err(Status::failed_precondition(format!(
                "volume {} is for one pod at a time, and published at {}",
                wanted.volume,
                other.record.target.display()
            )))
        })
    }

    fn begin(&self, request: &Request) -> Result<(), Status> {
        let Request { record, target, credentials } = request;
        let dir = PodDir::make(&self.place.kubelet, target, self.place.user).map_err(|error| status(&error))?;
        dir.forget_error();
        if !credentials.is_empty() {
            dir.put_credentials(credentials).map_err(|error| internal("write the credentials", &error))?;
        }
        make_directory(&record.target).map_err(|error| internal("make the target", &error))?;
        let Record { target: path, message, read_only, no_exec, .. } = record;
        let wanted = Wanted { target: path, name: &message.bucket, read_only: *read_only, no_exec: *no_exec };
        let attached = self.mounts.attach(wanted).map_err(|error| internal("mount", &error))?;
        let record = Record { device: attached.device.to_string(), ..record.clone() };
        self.ledger.write(&record).and_then(|()| self.keep(record, &dir, attached.descriptors)).map_err(|error| {
            let _ = detach::detach(path);
            internal("keep the mount", &error)
        })
    }

    /// Takes a volume away. One that is not there is no error.
    ///
    /// # Errors
    /// When it cannot be, or another volume is there.
    pub fn unpublish(&self, volume: &str, path: &Path) -> Result<(), Status> {
        let published = self.published.lock().get(path).cloned();
        if let Some(published) = &published
            && published.record.volume != volume
        {
            return Err(Status::not_found(format!(
                "volume {} is published at {}, not volume {volume}",
                published.record.volume,
                path.display()
            )));
        }
        self.clear_target(path)?;
        if let Some(published) = published {
            self.published.lock().remove(path);
            let Record { target, pod, name, .. } = &published.record;
            let target = Target { path: target.clone(), pod: pod.clone(), name: name.clone() };
            if let Ok(dir) = PodDir::open(&self.place.kubelet, &target, self.place.user) {
                dir.clear();
            }
        }
        self.ledger.remove(path);
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(internal("remove the target", &error)),
            _ => Ok(()),
        }
    }

    /// How a volume is; none when it is not published there.
    pub fn condition(&self, volume: &str, path: &Path) -> Option<Condition> {
        let published = self.published.lock().get(path).cloned().filter(|published| published.record.volume == volume)?;
        let standing = published.reception.standing();
        let target = Target { path: path.to_owned(), pod: published.record.pod.clone(), name: published.record.name.clone() };
        let dir = PodDir::open(&self.place.kubelet, &target, self.place.user).ok();
        let failed = dir.and_then(|dir| self.failure(&standing, &dir));
        let (is_abnormal, message) = match (&standing, failed) {
            (_, Some(trouble)) => (true, verdict::status(&trouble).message().to_owned()),
            (Standing::Served { .. }, None) => (false, "a sidecar serves it".to_owned()),
            (Standing::Unknown, None) => (false, "it was mounted by an earlier driver".to_owned()),
            (Standing::Expected, None) => (true, "no sidecar has come to serve it yet".to_owned()),
            (Standing::Left(_), None) => (true, "its sidecar has ended and is waited for".to_owned()),
            (Standing::Dead, None) => (true, "its sidecar has ended and did not come back".to_owned()),
        };
        Some(Condition { is_abnormal, message })
    }
}

/// The directory to mount at; its parent is the caller's.
fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn internal(step: &str, error: &io::Error) -> Status {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOSPC | rustix::io::Errno::NOMEM | rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
            Status::resource_exhausted(format!("cannot {step}: {error}"))
        }
        _ => Status::internal(format!("cannot {step}: {error}")),
    }
}

fn status(error: &pod_dir::Error) -> Status {
    match error {
        pod_dir::Error::NoMeeting(_) => Status::failed_precondition(error.to_string()),
        pod_dir::Error::Io(error) => internal("use the pod's directory", error),
    }
}
