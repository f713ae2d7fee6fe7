//! A store that does not answer while another daemon begins: the mount goes on, and with it what the store has, once it answers.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use libtest_mimic::Trial;

use crate::program::{Supervised, trial};
use crate::support::disturbed::{SIZE, objects};
use crate::support::mounts::{Daemon, wait_until};
use crate::support::{Effect, Fault, Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_daemon_that_dies_while_the_store_is_away_is_replaced", || goes_on(Supervised::replace)),
        trial("a_daemon_is_upgraded_while_the_store_is_away", || goes_on(upgrade)),
        trial("a_daemon_whose_keys_are_refused_serves_and_says_so", refused),
    ]
}

fn upgrade(mount: &Supervised) {
    let output = Command::new(env!("CARGO_BIN_EXE_windlass")).arg("upgrade").arg(mount.mount.path()).output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), mount.mount.log());
}

/// Answered by a daemon that serves, without the store.
fn wait_for_daemon(mount: &Supervised) {
    assert!(!fs::read(mount.join(".windlass/stats")).unwrap().is_empty());
}

fn goes_on(replace: fn(&Supervised)) {
    let server = S3Server::start();
    let contents = objects(&server);
    let mount = Supervised::start(Daemon::new(&server));
    let file = File::open(mount.join("data/0")).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(contents[0].matches(0, &bytes));
    server.fault(Fault::new(Effect::Broken));
    replace(&mount);
    wait_for_daemon(&mount);
    std::thread::scope(|scope| {
        server.reset_log();
        let reader = scope.spawn(|| {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, SIZE - 4096).map(|()| bytes)
        });
        wait_until("it is asked for in vain", || server.count(Kind::Get) > 1);
        server.clear_faults();
        let read = reader.join().unwrap().unwrap_or_else(|error| panic!("{error}\n{}", mount.mount.log()));
        assert!(contents[0].matches(SIZE - 4096, &read));
    });
    fs::write(mount.join("written"), "after it").unwrap();
    assert_eq!(server.stored("written").unwrap().0, "after it");
}

fn refused() {
    let server = S3Server::start();
    server.put("file", "content");
    let mount = Supervised::of(&server);
    server.fault(Fault::new(Effect::Status(403)));
    mount.replace();
    wait_for_daemon(&mount);
    let error = fs::read(mount.join("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
    mount.mount.wait_for_log(|log| log.contains("the bucket does not answer"));
    server.clear_faults();
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
}
