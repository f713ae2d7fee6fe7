//! Tells the world that the mount answers, and that it does no more: the ready file and systemd. Invariant: the ready
//! file exists only while the mount answers, and is never seen half written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sd_notify::NotifyState;

use crate::config::Settings;

/// The one line a person waits for.
pub fn line(settings: &Settings) -> String {
    let region = || settings.store.region.as_ref().map_or("default endpoint".to_owned(), |region| format!("region {region}"));
    let place = settings.store.endpoint.as_ref().map_or_else(region, |endpoint| format!("endpoint {endpoint}"));
    format!("windlass: {} mounted at {} ({place})", settings.source, settings.mountpoint)
}

/// Removes the ready file when the mount is about to go.
#[derive(Debug)]
pub struct Ready(Option<PathBuf>);

impl Ready {
    /// Takes away what a killed daemon left, so that nobody takes its file for ours.
    pub fn prepare(file: Option<&Path>) -> io::Result<Self> {
        match file.map(fs::remove_file) {
            Some(Err(e)) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(Self(file.map(Path::to_owned))),
        }
    }

    /// The mount answers: writes the file, then tells systemd.
    pub fn announce(&self, line: &str) -> io::Result<()> {
        if let Some(file) = &self.0 {
            replace(file, line)?;
        }
        // The process that systemd started may be our parent, which ends now.
        notify(&[NotifyState::Ready, NotifyState::MainPid(std::process::id()), NotifyState::Status(line)]);
        Ok(())
    }
}

/// Writes a file that is never seen half written.
pub fn replace(file: &Path, line: &str) -> io::Result<()> {
    let mut draft = file.to_owned().into_os_string();
    draft.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(draft);
    fs::write(&draft, format!("{line}\n")).and_then(|()| fs::rename(&draft, file)).inspect_err(|_| drop(fs::remove_file(&draft)))
}

impl Drop for Ready {
    fn drop(&mut self) {
        notify(&[NotifyState::Stopping, NotifyState::Status("storing what was written")]);
        if let Some(Err(error)) = self.0.as_ref().map(fs::remove_file)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot remove the ready file");
        }
    }
}

/// Without NOTIFY_SOCKET this does nothing; a supervisor that does not listen is no reason to fail.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_appears_whole_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ready");
        fs::write(&file, "left behind").unwrap();
        let ready = Ready::prepare(Some(&file)).unwrap();
        assert!(!file.exists());
        ready.announce("it answers").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "it answers\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(ready);
        assert!(!file.exists());
    }

    #[test]
    fn without_a_file_nothing_is_written() {
        Ready::prepare(None).unwrap().announce("it answers").unwrap();
    }
}
