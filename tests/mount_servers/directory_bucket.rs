//! Directory buckets of S3 Express One Zone: what they cost in requests, and what goes on after a session has ended. What works at all is in the
//! table of docs/servers.md.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::support::mounts::{Daemon, Mount, trial};
use super::support::{ACCESS_KEY, DIRECTORY_BUCKET, Effect, Fault, Kind, REGION, Request, S3Server, SECRET_KEY};
use super::things::names;

/// Names of a directory that is listed in three pages.
const MANY: usize = 2500;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("directory_bucket_file_is_renamed_by_one_request", renames),
        trial("directory_bucket_listing_costs_a_request_a_page", lists),
        trial("directory_bucket_lookup_is_no_listing_of_the_directory", looks_up),
        trial("directory_bucket_goes_on_with_another_session", sessions),
        trial("directory_bucket_shows_unfinished_uploads_as_directories", unfinished),
        trial("directory_bucket_is_read_and_written_without_a_mount", commands),
        trial("directory_bucket_is_one_of_many_in_a_mount", one_of_many),
    ]
}

fn environment<'a>(daemon: Daemon<'a>) -> Daemon<'a> {
    // Hedged requests are not counted on.
    daemon.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).env("WINDLASS_HEDGE", "false")
}

fn mounted(server: &S3Server) -> Mount {
    environment(Daemon::of(&format!("s3://{DIRECTORY_BUCKET}"), &server.endpoint())).start()
}

fn windlass(server: &S3Server, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(server.client_env());
    command.args(words.iter().map(|word| word.replace("bucket:", &format!("s3://{DIRECTORY_BUCKET}"))));
    let output = command.args(["--endpoint", &server.endpoint(), "--region", REGION, "--path-style"]).output().expect("the program starts");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn is_rename(request: &Request) -> bool {
    request.query.starts_with("renameObject")
}

fn renames() {
    let server = S3Server::start_directory_bucket();
    server.put("dir/large", vec![7; 20 << 20]);
    server.put("dir/small", "small");
    server.put("taken", "taken");
    let mount = mounted(&server);
    server.reset_log();
    fs::rename(mount.join("dir/large"), mount.join("moved +%")).expect("it can be renamed");
    let changes: Vec<Request> =
        server.requests().into_iter().filter(|request| request.method != "GET" && request.method != "HEAD").collect();
    // The directory keeps a marker for itself.
    let renames: Vec<&Request> = changes.iter().filter(|request| is_rename(request)).collect();
    assert_eq!(renames.len(), 1, "{changes:?}");
    assert_eq!((server.count(Kind::Copy), server.count(Kind::CopyPart), server.count(Kind::Delete)), (0, 0, 0), "{changes:?}");
    assert_eq!(renames[0].amz["x-amz-rename-source"], "dir/large");
    assert_eq!(fs::read(mount.join("moved +%")).expect("it can be read").len(), 20 << 20);
    assert_eq!(fs::metadata(mount.join("dir/large")).unwrap_err().kind(), io::ErrorKind::NotFound);
    // RENAME_NOREPLACE reserves no name: the store compares.
    let free = |to: &str| renameat_with(CWD, mount.join("dir/small"), CWD, mount.join(to), RenameFlags::NOREPLACE);
    // Another client made it and this mount does not know.
    assert_eq!(fs::metadata(mount.join("late")).unwrap_err().kind(), io::ErrorKind::NotFound);
    server.put("late", "theirs");
    server.reset_log();
    assert_eq!(free("late"), Err(rustix::io::Errno::EXIST));
    assert_eq!(server.count(Kind::Put), server.requests().iter().filter(|request| is_rename(request)).count(), "no name is reserved");
    assert_eq!(free("taken"), Err(rustix::io::Errno::EXIST));
    free("free").expect("it is free");
    assert_eq!((server.stored("late").unwrap().0, server.stored("free").unwrap().0), ("theirs".into(), "small".into()));
    // A file that was replaced by another client is renamed as it is now.
    fs::read(mount.join("free")).expect("it can be read");
    server.put("free", "newer");
    fs::rename(mount.join("free"), mount.join("last")).expect("it can be renamed");
    assert_eq!(server.stored("last").expect("it is there").0, "newer");
}

fn lists() {
    let server = S3Server::start_directory_bucket();
    (0..MANY).for_each(|number| drop(server.put(&format!("many/name {number}"), "x")));
    server.put("many/below/deep", "x");
    let mount = mounted(&server);
    server.reset_log();
    let found: BTreeSet<String> = names(&mount.join("many")).into_iter().collect();
    assert_eq!(found.len(), MANY + 1);
    let lists = server.of_kind(Kind::List);
    let of_directory = lists.iter().filter(|list| list.key == "many/" && list.query.contains("delimiter")).count();
    assert_eq!(of_directory, 3, "{lists:?}");
    assert!(lists.iter().all(|list| list.key.is_empty() || list.key.ends_with('/')), "{lists:?}");
    // Nothing is listed with all that is below it.
    let flat: Vec<&Request> =
        lists.iter().filter(|list| !list.query.contains("delimiter") && !list.query.contains("max-keys=1&")).collect();
    assert!(flat.is_empty(), "{flat:?}");
    // A whole directory, each file removed in it: deletions do not disturb a listing that was collected.
    fs::remove_dir_all(mount.join("many")).expect("it can be removed");
    assert!(names(mount.path()).is_empty());
}

fn looks_up() {
    let server = S3Server::start_directory_bucket();
    (0..MANY).for_each(|number| drop(server.put(&format!("many/name {number}"), "x")));
    let mount = mounted(&server);
    fs::metadata(mount.join("many")).expect("it is there");
    server.reset_log();
    assert_eq!(fs::metadata(mount.join("many/name 77")).expect("it is there").len(), 1);
    assert_eq!(fs::metadata(mount.join("many/no name")).unwrap_err().kind(), io::ErrorKind::NotFound);
    let lists = server.of_kind(Kind::List);
    assert!(lists.len() <= 4 && lists.iter().all(|list| !list.query.contains("continuation-token")), "{lists:?}");
}

fn sessions() {
    let server = S3Server::start_directory_bucket();
    server.put("file", vec![1; 1 << 20]);
    server.put("other", "other");
    let mount = mounted(&server);
    assert_eq!(fs::read(mount.join("file")).expect("it can be read").len(), 1 << 20);
    let opened = |server: &S3Server| server.requests().iter().filter(|request| request.query.starts_with("session")).count();
    let before = opened(&server);
    assert!(before >= 1);
    let last = server
        .requests()
        .iter()
        .filter_map(|request| request.key_id().map(str::to_owned))
        .rfind(|id| id.starts_with("session-key"))
        .expect("it read");
    server.keyring().forget(&last);
    assert_eq!(fs::read_to_string(mount.join("other")).expect("it can be read"), "other");
    fs::write(mount.join("written"), "with another session").expect("it can be written");
    assert_eq!(opened(&server), before + 1);
    assert_eq!(server.stored("written").expect("it is there").0, "with another session");
    // Many at once meet the end of a session, and by HEAD, whose refusal says nothing.
    (0..16).for_each(|number| drop(server.put(&format!("many/{number}"), "x")));
    let last_session =
        || server.requests().iter().filter_map(|request| request.key_id().map(str::to_owned)).rfind(|id| id.starts_with("session-key"));
    // The client opens at most one session in five seconds.
    std::thread::sleep(Duration::from_secs(6));
    server.keyring().forget(&last_session().expect("it wrote"));
    std::thread::scope(|scope| {
        for number in 0..16 {
            let path = mount.join(format!("many/{number}"));
            scope.spawn(move || assert_eq!(fs::metadata(path).expect("the next session is asked").len(), 1));
        }
    });
    // No session can be had for a while: what is written waits for one.
    std::thread::sleep(Duration::from_secs(6));
    server.keyring().forget(&last_session().expect("it looked"));
    server.fault(Fault::new(Effect::Status(503)).kind(Kind::Other).first(4));
    fs::write(mount.join("late"), "late").expect("it is stored in the end");
    assert_eq!(server.stored("late").expect("it is there").0, "late");
}

fn unfinished() {
    let server = S3Server::start_directory_bucket();
    let client = super::place::client(&server.endpoint());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(client.create_multipart_upload().bucket(DIRECTORY_BUCKET).key("coming/soon").send()).expect("it can begin");
    let mount = mounted(&server);
    assert_eq!(names(mount.path()), ["coming"]);
    assert_eq!(names(&mount.join("coming")), [""; 0]);
    fs::write(mount.join("coming/now"), "now").expect("it can be written");
    assert_eq!(server.stored("coming/now").expect("it is there").0, "now");
    fs::remove_file(mount.join("coming/now")).expect("it can be removed");
}

fn commands() {
    let server = S3Server::start_directory_bucket();
    let local = tempfile::tempdir().expect("there is a disk");
    let (up, down) = (local.path().join("up"), local.path().join("down"));
    fs::create_dir_all(up.join("sub")).expect("it is empty");
    (0..1200).for_each(|number| fs::write(up.join(format!("{number}")), format!("content {number}")).expect("there is room"));
    fs::write(up.join("sub/large"), vec![3; 20 << 20]).expect("there is room");
    let text = |path: &Path| path.to_str().expect("it is text").to_owned();
    windlass(&server, &["put", "-r", &text(&up), "bucket:/tree/"]);
    windlass(&server, &["get", "-r", "bucket:/tree/", &text(&down)]);
    let compared = Command::new("diff").arg("-r").args([&up, &down]).status().expect("diff is there");
    assert!(compared.success());
    let listed = windlass(&server, &["ls", "bucket:/tree/"]);
    let lines: Vec<String> = String::from_utf8(listed.stdout).expect("it is text").lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 1201);
    windlass(&server, &["rm", "-r", "bucket:/tree/"]);
    assert!(server.stored("tree/sub/large").is_none());
    assert!(windlass(&server, &["ls", "bucket:/"]).stdout.is_empty());
    // A mount's own command.
    server.put("warm/a", vec![1; 1 << 20]);
    server.put("warm/b", vec![2; 1 << 20]);
    let disk = local.path().join("spill");
    let daemon = environment(Daemon::of(&format!("s3://{DIRECTORY_BUCKET}"), &server.endpoint()));
    let mount = daemon.arg("--read-mode", "cached").arg("--spill-dir", &text(&disk)).start();
    let warm = Command::new(env!("CARGO_BIN_EXE_windlass")).arg("warm").arg(mount.join("warm")).output().expect("the program starts");
    assert!(warm.status.success(), "{}", String::from_utf8_lossy(&warm.stderr));
    server.reset_log();
    assert_eq!(fs::read(mount.join("warm/b")).expect("it can be read").len(), 1 << 20);
    assert_eq!(server.count(Kind::Get), 0, "it is on the disk");
}

fn one_of_many() {
    let server = S3Server::start_directory_bucket();
    (0..1100).for_each(|number| drop(server.put(&format!("dir/{number}"), "x")));
    let mount = environment(Daemon::of("s3://", &server.endpoint()).arg("--buckets", DIRECTORY_BUCKET)).start();
    assert_eq!(names(mount.path()), [DIRECTORY_BUCKET]);
    assert_eq!(names(&mount.join(DIRECTORY_BUCKET).join("dir")).len(), 1100);
    let path = mount.join(DIRECTORY_BUCKET);
    fs::write(path.join("new"), "new").expect("it can be written");
    server.reset_log();
    fs::rename(path.join("new"), path.join("dir/renamed")).expect("it can be renamed");
    assert_eq!(server.requests().iter().filter(|request| is_rename(request)).count(), 1);
    assert_eq!(server.stored("dir/renamed").expect("it is there").0, "new");
}
