//! s3fs, as /etc/fstab starts it (mount.fuse(8) calls `s3fs BUCKET DIR -o OPTIONS`). Where s3fs itself is installed (apt has 1.90), its help and its
//! mount stand beside ours.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;

use super::oss::{Needs, World};
use super::place::run;
use super::support::mounts::{is_mount_point, trial, trial_with};
use super::support::{BUCKET, S3Server};

const TABLE: &str = include_str!("../data/foreign_options.tsv");

pub fn trials() -> Vec<Trial> {
    vec![
        trial("s3fs_from_fstab_mounts_and_reads", from_fstab),
        trial("s3fs_reads_at_each_open_what_other_clients_closed", close_to_open),
        trial_with(&["s3fs"], "s3fs_and_its_stand_in_show_the_same_attributes", same_attributes),
        trial_with(&["s3fs"], "every_option_that_s3fs_lists_is_in_the_table", listed),
    ]
}

/// The options that say where the bucket is.
fn place_of(server: &S3Server) -> String {
    format!("url={},use_path_request_style,passwd_file={}", server.endpoint(), server.passwd_file().display())
}

/// Mounts `bucket` with the program `command` and `options`.
fn mount(mut command: Command, at: &Path, server: &S3Server, options: &str) {
    let options = format!("{},{options}", place_of(server));
    command.arg(BUCKET).arg(at).args(["-o", options.trim_end_matches(',')]);
    run(command).succeeds();
}

fn from_fstab() {
    let (world, server) = (World::new(Needs::Nothing), S3Server::start());
    server.put("file", "content");
    let options = "rw,_netdev,allow_other,umask=0022,uid=33,gid=33,endpoint=us-east-1,multireq_max=20,nomultipart,parallel_count=15,\
                   multipart_size=52,max_stat_cache_size=1000,stat_cache_expire=60,retries=5,connect_timeout=10,storage_class=standard,dev,suid";
    mount(world.command("s3fs"), &world.place.at, &server, options);
    assert_eq!(world.place.read("file"), b"content");
    let shown = fs::metadata(world.place.at.join("file")).expect("it is there");
    assert_eq!((shown.uid(), shown.gid(), shown.mode() & 0o7777), (33, 33, 0o755));
    fs::write(world.place.at.join("new"), "written").expect("it can be written");
    assert_eq!(server.stored("new").expect("it is stored").0, "written");
    world.ends();
}

fn close_to_open() {
    let (world, server) = (World::new(Needs::Nothing), S3Server::start());
    server.put("file", "first");
    mount(world.command("s3fs"), &world.place.at, &server, "");
    for content in ["first", "the second, which is longer", "third"] {
        server.put("file", content);
        assert_eq!(world.place.read("file"), content.as_bytes());
    }
    world.ends();
}

/// Mode, owner and group of some names.
fn attributes(at: &Path) -> Vec<(String, u32, u32, u32)> {
    let names = ["", "own", "foreign", "directory", "directory/foreign"];
    let shown = names.map(|name| (name.to_owned(), fs::symlink_metadata(at.join(name)).expect("it is there")));
    shown.map(|(name, shown)| (name, shown.mode(), shown.uid(), shown.gid())).into()
}

fn same_attributes() {
    let (world, server) = (World::new(Needs::Nothing), S3Server::start());
    let at = &world.place.at;
    mount(world.command("s3fs"), at, &server, "");
    fs::write(at.join("own"), "content").expect("it can be written");
    fs::set_permissions(at.join("own"), fs::Permissions::from_mode(0o600)).expect("it is ours");
    chown(at.join("own"), Some(1000), Some(1001)).expect("root may");
    world.ends();
    server.put("foreign", "content");
    server.put("directory/foreign", "content");
    // Without allow_other s3fs shows a mount point that others may not enter, and the kernel does not let them.
    for options in ["allow_other", "allow_other,umask=0027", "allow_other,mp_umask=027", "allow_other,uid=33,gid=34,umask=0"] {
        mount(world.command("s3fs"), at, &server, options);
        let ours = attributes(at);
        world.ends();
        let theirs = {
            let mut command = Command::new("s3fs");
            command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
            // The server has no ListObjects of the first version.
            mount(command, at, &server, &format!("{options},listobjectsv2"));
            assert!(is_mount_point(at));
            let shown = attributes(at);
            assert!(Command::new("umount").arg(at).status().expect("it is installed").success());
            shown
        };
        assert_eq!(ours, theirs, "{options}");
    }
}

fn listed() {
    let help = Command::new("s3fs").arg("--help").output().expect("it is installed");
    let help = String::from_utf8(help.stdout).expect("it is text");
    let of_s3fs = help.split("s3fs Options:").nth(1).and_then(|rest| rest.split("FUSE/mount Options:").next()).expect("it lists them");
    let names = of_s3fs.lines().filter_map(|line| line.strip_prefix("   ")).filter(|line| !line.starts_with([' ', '-']));
    let names = names.filter_map(|line| line.split([' ', '(']).next());
    // What is no name is a sentence, which begins with a capital.
    let names: BTreeSet<_> = names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).collect();
    assert!(names.len() > 60, "{names:?}");
    let words = TABLE.lines().filter_map(|line| line.strip_prefix("s3fs\t")?.split(['\t', '=']).next());
    let table: BTreeSet<_> = words.collect();
    let missing: Vec<_> = names.difference(&table).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
