//! What objects keep: another client gives them everything that an object can have besides its content, a program changes them in the mount, and
//! the other client looks again. What is kept is the second table of docs/servers.md: both have to agree in every cell.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::place::{Kind, Place};
use super::support::mounts::Daemon;
use super::support::third_party::ThirdParty;
use super::support::{ACCESS_KEY, REGION, SECRET_KEY, python};

const BUCKET: &str = "attributes";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mount_servers/attributes.py");

/// Stored in one request, and edited in parts.
const SIZES: [(&str, u64); 2] = [("small", 160), ("large", 12 << 20)];

/// How the access list is given: the two exclude each other.
const LISTS: [&str; 2] = ["word", "rights"];

/// The servers that have most of it.
pub const SERVERS: [Kind; 2] = [Kind::Moto, Kind::Minio];

type Change = fn(&Path, u64);

/// In the order of the table. Directories and files are renamed by [`rename`].
const OPERATIONS: [(&str, Change); 10] = [
    ("edit", |path, size| {
        OpenOptions::new().write(true).open(path).expect("it opens").write_all_at(b"edited", size / 2).expect("it is taken")
    }),
    ("append", |path, size| {
        OpenOptions::new().append(true).open(path).expect("it opens").write_all_at(b"more", size).expect("it is taken")
    }),
    ("overwrite", |path, size| fs::write(path, vec![7; usize::try_from(size).expect("it fits") + 1]).expect("it is taken")),
    ("truncate", |path, size| File::options().write(true).open(path).expect("it opens").set_len(size / 2).expect("it is cut")),
    ("extend", |path, size| File::options().write(true).open(path).expect("it opens").set_len(size + 100).expect("it grows")),
    ("chmod", |path, _| fs::set_permissions(path, fs::Permissions::from_mode(0o640)).expect("it is set")),
    ("chown", |path, _| chown(path, Some(1234), Some(1234)).expect("it is set")),
    ("utimens", |path, _| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options().write(true).open(path).expect("it opens").set_modified(time).expect("it is set");
    }),
    ("rename", |path, _| fs::rename(path, renamed(path)).expect("it is renamed")),
    ("rename of its directory", |_, _| {}),
];

fn renamed(path: &Path) -> PathBuf {
    path.with_extension("renamed")
}

/// The rows of a server: the name of an attribute, and whether it is kept through each operation; none where the server has no such attribute.
type Rows = Vec<(String, Option<Vec<bool>>)>;

pub fn lacks() -> Option<String> {
    python::lacks("boto3")
}

/// Panics when the table of `kind` in `page` is not what is found.
pub fn test(kind: Kind, page: &str) {
    let published = published(page, kind);
    let (found, server_has) = found(kind);
    let operations: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    let cell = |is_kept: &BTreeSet<(&str, String)>, name: &String, operation: &'static str| is_kept.contains(&(operation, name.clone()));
    let rows: Rows = published
        .iter()
        .map(|(name, _)| {
            let cells = server_has.contains(name).then(|| operations.iter().map(|operation| cell(&found, name, operation)).collect());
            (name.clone(), cells)
        })
        .collect();
    let text = |rows: &Rows| {
        let cells = |cells: &Option<Vec<bool>>| match cells {
            Some(cells) => cells.iter().map(|&kept| if kept { " yes |" } else { " no |" }).collect::<String>(),
            None => " - |".repeat(operations.len()),
        };
        rows.iter().map(|(name, row)| format!("| {name} |{}\n", cells(row))).collect::<String>()
    };
    assert!(rows == published, "docs/servers.md says of {}\n{}and found was\n{}", kind.name(), text(&published), text(&rows));
}

fn published(page: &str, kind: Kind) -> Rows {
    let section = page.split_once(&format!("### What {} keeps", kind.name())).expect("it has a section").1;
    let is_row = |line: &&str| line.starts_with('|');
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = section.lines().skip_while(|line| !is_row(line)).take_while(is_row).map(cells);
    let operations: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    assert_eq!(lines.next().expect("it has a head")[1..], operations);
    let row = |row: Vec<String>| {
        let kept = (row[1] != "-").then(|| row[1..].iter().map(|cell| cell == "yes").collect());
        (row[0].clone(), kept)
    };
    lines.skip(1).map(row).collect()
}

/// Operations and what is kept through them, and the attributes that the server has.
fn found(kind: Kind) -> (BTreeSet<(&'static str, String)>, BTreeSet<String>) {
    let server = ThirdParty::find(kind.make().expect("others wrote it"));
    let endpoint = server.endpoint().expect("it starts");
    let key = |operation: &str, size: &str, list: &str| format!("{}/{size}-{list}", operation.replace(' ', "-"));
    let mut attributes = BTreeSet::new();
    for (size, bytes) in SIZES {
        let keys = OPERATIONS.iter().flat_map(|(operation, _)| LISTS.map(|list| key(operation, size, list)));
        let words: Vec<String> = ["set".into(), endpoint.clone(), BUCKET.into(), bytes.to_string()].into_iter().chain(keys).collect();
        attributes = judge(&words).lines().map(str::to_owned).collect();
    }
    let daemon = Daemon::of(&format!("s3://{BUCKET}"), &endpoint).flag("--posix-attributes");
    let mount = daemon.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).start();
    let mut looked = Vec::new();
    for (operation, change) in OPERATIONS {
        for (size, bytes) in SIZES {
            for list in LISTS {
                let key = key(operation, size, list);
                change(&mount.join(&key), bytes);
                let now = match operation {
                    "rename" => renamed(Path::new(&key)).to_str().expect("it is text").to_owned(),
                    "rename of its directory" => key.replace("rename-of-its-directory", "moved"),
                    _ => key,
                };
                looked.push((operation, list, now));
            }
        }
    }
    fs::rename(mount.join("rename-of-its-directory"), mount.join("moved")).expect("it is renamed");
    drop(mount);
    let words = ["look".to_owned(), endpoint, BUCKET.to_owned()].into_iter().chain(looked.iter().map(|(_, _, key)| key.clone()));
    let seen = judge(&words.collect::<Vec<_>>());
    let seen: BTreeSet<(&str, &str)> = seen.lines().filter_map(|line| line.split_once('\t')).collect();
    let is_given = |name: &str, list: &str| !name.starts_with("access list") || name.contains(list);
    // Kept is what every object has that had it.
    let is_kept = |operation: &str, name: &str| {
        let mut objects = looked.iter().filter(|(of, list, _)| *of == operation && is_given(name, list));
        objects.all(|(_, _, key)| seen.contains(&(key.as_str(), name)))
    };
    let all = OPERATIONS.iter().flat_map(|(operation, _)| attributes.iter().map(move |name| (*operation, name.clone())));
    (all.filter(|(operation, name)| is_kept(operation, name)).collect(), attributes.clone())
}

/// Panics when changes ask for more, or less, than docs/servers.md says. A name is looked up before it is counted; OSS has no conditions, for each
/// of which a HEAD would stand in.
pub fn requests(place: &Place) {
    OPERATIONS.iter().for_each(|(operation, _)| place.put(operation, b"content"));
    let mount = place.mount_again(&["--posix-attributes", "--conflict=overwrite"]);
    let counted = |what: &str, change: &dyn Fn(&Path)| {
        let path = mount.join(what);
        let before = place.counts();
        change(&path);
        let after = place.counts();
        let writes = |name: &str| after.writes.get(name).copied().unwrap_or(0) - before.writes.get(name).copied().unwrap_or(0);
        let reads = [after.head - before.head, after.tagging - before.tagging, after.acl - before.acl];
        (reads, [writes("PUT"), writes("COPY"), writes("DELETE")])
    };
    let looked_up = |what: &str| {
        fs::metadata(mount.join(what)).expect("it is there");
        fs::metadata(renamed(&mount.join(what))).expect_err("nobody made it");
    };
    let (reads, writes) = counted("new", &|path| fs::write(path, b"content").expect("it is taken"));
    assert_eq!((&reads[1..], writes), (&[0, 0][..], [1, 0, 0]), "a new file");
    for (operation, change) in OPERATIONS {
        let requests = match operation {
            "chmod" | "chown" | "utimens" => ([1, 1, 1], [0, 1, 0]),
            "rename" => ([1, 0, 1], [0, 1, 1]),
            "rename of its directory" => continue,
            _ => ([1, 1, 1], [1, 0, 0]),
        };
        looked_up(operation);
        assert_eq!(counted(operation, &|path| change(path, 7)), requests, "{operation}");
    }
}

/// What the other client prints.
#[track_caller]
fn judge(words: &[String]) -> String {
    let mut command = Command::new(python::path());
    command.arg(SCRIPT).args(words).stdin(Stdio::null());
    command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).env("AWS_DEFAULT_REGION", REGION);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}
