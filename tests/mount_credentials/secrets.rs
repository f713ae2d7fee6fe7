//! Keys in files: secrets of Kubernetes, directories of the drivers of others, password files, profiles.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::clouds::{Cloud, OBJECT};
use crate::readers::Readers;
use crate::support::mounts::{Mount, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_swapped_secret_signs_under_sixteen_readers_of_s3", || swapped(&Cloud::s3())),
        trial("a_swapped_secret_signs_under_sixteen_readers_of_oss", || swapped(&Cloud::oss())),
        trial("new_keys_that_the_store_does_not_know_yet_leave_the_old_ones_to_sign", || unknown_yet(&Cloud::s3())),
        trial("a_half_written_secret_is_not_taken", || half_written(&Cloud::oss())),
        trial("a_profile_and_a_password_file_are_read_again_when_they_change", files),
    ]
}

/// A secret as Kubernetes mounts it: files that lead through `..data` to a directory of this moment.
struct Secret {
    dir: TempDir,
    generation: usize,
}

impl Secret {
    fn new(id: &str) -> Self {
        let mut secret = Self { dir: tempfile::tempdir().expect("a temporary directory can be made"), generation: 0 };
        secret.swap(id);
        for name in ["AccessKeyId", "AccessKeySecret", "SecurityToken", "Expiration"] {
            symlink(format!("..data/{name}"), secret.path().join(name)).expect("it is not there yet");
        }
        secret
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces all files at once, and removes the old ones, as the kubelet does.
    fn swap(&mut self, id: &str) {
        let old = format!("..2026_11_21_{}", self.generation);
        self.generation += 1;
        let new = format!("..2026_11_21_{}", self.generation);
        let dir = self.path().join(&new);
        fs::create_dir(&dir).expect("it is a new one");
        for (name, text) in fields(id) {
            fs::write(dir.join(name), text).expect("it can be written");
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).expect("it is ours");
        }
        symlink(&new, self.path().join("..data_tmp")).expect("it is not there");
        fs::rename(self.path().join("..data_tmp"), self.path().join("..data")).expect("a link can be renamed over another");
        let _ = fs::remove_dir_all(self.path().join(old));
    }
}

/// What is written of a key whose secret and token follow from its id.
fn fields(id: &str) -> [(&'static str, String); 4] {
    let end = "2099-01-01T00:00:00Z".to_owned();
    [
        ("AccessKeyId", id.to_owned()),
        ("AccessKeySecret", format!("secret-of-{id}\n")),
        ("SecurityToken", format!("token-of-{id}")),
        ("Expiration", end),
    ]
}

fn admit(cloud: &Cloud, id: &str) {
    cloud.keyring().admit(id, &format!("secret-of-{id}"), Some(&format!("token-of-{id}")));
}

fn mount(cloud: &Cloud, dir: &Path) -> (Mount, Readers) {
    let mount = cloud.daemon().arg("--passwd-file", dir.to_str().expect("the test names it")).start();
    let readers = Readers::start(&mount.join(OBJECT), cloud.size(), cloud.content());
    (mount, readers)
}

/// The store accepts the old key for a while, and then only the new one.
fn swapped(cloud: &Cloud) {
    admit(cloud, "old");
    let mut secret = Secret::new("old");
    let (mount, readers) = mount(cloud, secret.path());
    readers.read_on();
    admit(cloud, "new");
    secret.swap("new");
    cloud.wait_for("new");
    // Whatever was signed before is answered by now.
    readers.read_on();
    let before = cloud.seen().len();
    cloud.keyring().forget("old");
    readers.read_on();
    assert_eq!((cloud.count(before, "old", true), cloud.count(before, "old", false)), (0, 0), "the old key still signs");
    assert!(cloud.count(before, "new", true) > 0);
    assert_eq!(cloud.seen().iter().filter(|(_, let_in)| !let_in).count(), 0, "something was refused:\n{}", mount.log());
    let read = readers.stop();
    assert!(read > 0 && mount.log().contains("key_id=\"new\""), "{}", mount.log());
}

/// Secrets reach pods before the store knows the keys, and one request bears that.
fn unknown_yet(cloud: &Cloud) {
    admit(cloud, "old");
    let mut secret = Secret::new("old");
    let (mount, readers) = mount(cloud, secret.path());
    readers.read_on();
    let swapped = Instant::now();
    secret.swap("new");
    cloud.wait_until("new", false);
    readers.read_on();
    // The next one does so after two seconds, when the first has not come back; that may have been longer ago by now.
    let (tried, may_have) = (cloud.count(0, "new", false), 1 + swapped.elapsed().as_secs() / 2);
    assert!(tried as u64 <= may_have, "one request at a time tries new keys, and {tried} did of {may_have}");
    assert_eq!(cloud.count(0, "old", false), 0);
    admit(cloud, "new");
    cloud.wait_for("new");
    readers.read_on();
    cloud.keyring().forget("old");
    readers.read_on();
    readers.stop();
    assert!(mount.log().contains("refuses the new credentials"), "{}", mount.log());
}

/// A driver that writes one file after the other stops in the middle.
fn half_written(cloud: &Cloud) {
    admit(cloud, "old");
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let write = |name: &str, id: &str| {
        let (_, text) = fields(id).into_iter().find(|(field, _)| *field == name).expect("a field");
        fs::write(dir.path().join(name), text).expect("it can be written");
    };
    for (name, _) in fields("old") {
        write(name, "old");
    }
    let (mount, readers) = mount(cloud, dir.path());
    readers.read_on();
    fs::write(dir.path().join("AccessKeySecret"), "").expect("it can be written");
    mount.wait_for_log(|log| log.contains("AccessKeySecret is empty"));
    readers.read_on();
    write("AccessKeySecret", "new");
    mount.wait_for_log(|log| log.contains("only a part of"));
    write("SecurityToken", "new");
    readers.read_on();
    assert_eq!(cloud.seen().iter().filter(|(_, let_in)| !let_in).count(), 0, "half of new keys signed");
    admit(cloud, "new");
    write("AccessKeyId", "new");
    cloud.wait_for("new");
    readers.read_on();
    cloud.keyring().forget("old");
    readers.read_on();
    readers.stop();
    assert_eq!(cloud.seen().iter().filter(|(_, let_in)| !let_in).count(), 0, "{}", mount.log());
}

fn files() {
    type Write = fn(&str) -> String;
    let profile: Write =
        |id| format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = secret-of-{id}\naws_session_token = token-of-{id}\n");
    let passwd: Write = |id| format!("{}:{id}:secret-of-{id}:token-of-{id}\n", crate::support::BUCKET);
    for (text, option) in [(profile, None), (passwd, Some("--passwd-file"))] {
        let cloud = Cloud::s3();
        admit(&cloud, "old");
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path: PathBuf = dir.path().join("file");
        // As an editor does: a new file in the place of the old one.
        let write = |id: &str| {
            let new = dir.path().join("new");
            fs::write(&new, text(id)).expect("it can be written");
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("it is ours");
            fs::rename(&new, &path).expect("it can be renamed");
        };
        write("old");
        let name = path.to_str().expect("the test names it");
        let daemon = match option {
            Some(option) => cloud.daemon().arg(option, name),
            None => cloud.daemon().env("AWS_SHARED_CREDENTIALS_FILE", name).env("AWS_CONFIG_FILE", "/dev/null"),
        };
        let mount = daemon.start();
        let readers = Readers::start(&mount.join(OBJECT), cloud.size(), cloud.content());
        readers.read_on();
        admit(&cloud, "new");
        write("new");
        cloud.wait_for("new");
        readers.read_on();
        cloud.keyring().forget("old");
        readers.read_on();
        readers.stop();
        assert_eq!(cloud.seen().iter().filter(|(_, let_in)| !let_in).count(), 0, "{}", mount.log());
    }
}
