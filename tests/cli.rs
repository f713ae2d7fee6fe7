//! The command line as a person meets it: the built program, its exit codes, and the words it answers with. Nothing
//! here mounts anything or leaves this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    /// Exit code 2 and all these words on stderr.
    #[track_caller]
    fn refuses(&self, words: &[&str]) {
        assert_eq!(self.code, 2, "{}{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is missing in: {}", self.err);
        }
    }

    /// Exit code 0 and all these lines on stdout, up to their comment.
    #[track_caller]
    fn shows(&self, lines: &[&str]) {
        assert_eq!(self.code, 0, "{}", self.err);
        for line in lines {
            assert!(self.out.lines().any(|shown| shown.starts_with(line)), "{line:?} is missing in:\n{}", self.out);
        }
    }
}

/// The program under a name, with nothing in its environment that could decide anything.
fn command(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.arg0(name).env_clear().env("PATH", "/usr/bin:/bin");
    command
}

fn run(mut command: Command) -> Said {
    let output = command.output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("it speaks UTF-8");
    Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn windlass(args: &[&str]) -> Said {
    under("windlass", args)
}

fn under(name: &str, args: &[&str]) -> Said {
    let mut command = command(name);
    command.args(args);
    run(command)
}

fn mount_with(args: &[&str]) -> Said {
    windlass(&[&["mount", "s3://data", "/mnt/x", "--print-config"], args].concat())
}

fn write(path: &Path, text: &str, mode: u32) -> String {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn help_shows_examples_for_each_kind_of_store() {
    let help = windlass(&["mount", "--help"]);
    assert_eq!(help.code, 0);
    for word in ["MinIO", "oss://bucket /mnt/oss", "--region eu-central-1", "--chunk-size", "1MiB..32MiB", "fuse.windlass", "Exit codes"] {
        assert!(help.out.contains(word), "{word}");
    }
    assert!(windlass(&["--help"]).out.contains("umount"));
    windlass(&[]).refuses(&["Usage"]);
}

#[test]
fn version_is_that_of_the_crate() {
    for args in [["--version"], ["-V"]] {
        assert!(windlass(&args).out.starts_with(&format!("windlass {}", env!("CARGO_PKG_VERSION"))));
    }
    assert!(under("ossfs", &["--version"]).out.contains("in place of ossfs"));
}

#[test]
fn an_unknown_option_is_answered_with_the_nearest_one() {
    mount_with(&["--chunk-sise=4"]).refuses(&["--chunk-size"]);
    mount_with(&["-o", "chunk_sise=4"]).refuses(&["chunk_sise", "did you mean chunk_size?"]);
    mount_with(&["-o", "max_stat_cache_sise=4"]).refuses(&["did you mean max_stat_cache_size?"]);
    let dir = tempfile::tempdir().unwrap();
    let file = write(&dir.path().join("c.toml"), "chunk-sise = 4\n", 0o644);
    mount_with(&["--config", &file]).refuses(&["chunk-sise", "c.toml", "did you mean chunk-size?"]);
}

#[test]
fn a_value_out_of_range_names_the_range() {
    for (option, range) in [
        ("chunk-size=33", "1MiB..32MiB"),
        ("chunk-size=0", "1MiB..32MiB"),
        ("direct_read_chunk_size=33", "1MiB..32MiB"),
        ("prefetch_chunk_size=4", "1MiB..32MiB"),
        ("free-space-ratio=101", "0..100"),
        ("temp_dir_free_percent=101", "0..100"),
        ("prefetch-chunks=-1", "0..4096 or auto"),
        ("prefetch-concurrency=0", "1..4096 or auto"),
        ("memory-limit=1MiB", "16MiB.."),
        ("retries=101", "0..100"),
        ("connect-timeout=0", "100ms..600s"),
        ("stat-cache-ttl=-2", "-1 for never"),
        ("umask=888", "0000..0777"),
        ("signature=v2", "v4, v1, none"),
        ("read-mode=fast", "direct, cached, hybrid"),
        ("allow-other=perhaps", "true or false"),
        ("log-level=loud", "error, warn, info"),
        ("endpoint=ftp://x", "http://"),
        ("read-endpoint=ftp://x", "http://"),
        ("read-endpoint=http://key:secret@x", "user name"),
        ("redirect-hosts=http://x", "host, host:port or .domain"),
        ("bind=10.0.0.7:80", "neither an IP address nor the name of an interface"),
        ("uid=root", "0.."),
        ("metrics-listen=everywhere", "ADDRESS:PORT"),
        ("metrics_port=99999", "a port of 127.0.0.1"),
    ] {
        let name = option.split('=').next().unwrap();
        mount_with(&["-o", option]).refuses(&[name, range]);
    }
}

#[test]
fn metrics_are_served_where_it_is_said_in_every_spelling() {
    mount_with(&["--metrics-listen", "127.0.0.1:9100"]).shows(&["metrics-listen = \"127.0.0.1:9100\""]);
    mount_with(&["-o", "metrics_port=9100"]).shows(&["metrics-listen = \"9100\""]);
    mount_with(&["--metrics-listen", "unix:/run/windlass.sock"]).shows(&["metrics-listen = \"unix:/run/windlass.sock\""]);
}

#[test]
fn read_modes_are_taken_in_every_spelling_and_need_what_they_need() {
    mount_with(&["-o", "direct_read,hybrid-threshold=0,read-mode=direct"]).shows(&["read-mode = \"direct\""]);
    mount_with(&["--read-mode", "cached", "--spill-dir", "/x"]).shows(&["read-mode = \"cached\""]);
    mount_with(&["--read-mode", "cached"]).refuses(&["read-mode=cached", "spill-dir"]);
    mount_with(&["--read-mode", "hybrid", "--spill-dir", "/x"]).refuses(&["hybrid-threshold"]);
    mount_with(&["--hybrid-threshold", "1GiB", "--spill-dir", "/x"]).shows(&["hybrid-threshold = \"1GiB\""]);
    mount_with(&["--hybrid-threshold", "1GiB"]).refuses(&["spill-dir"]);
}

#[test]
fn options_of_writing_are_taken_in_every_spelling() {
    mount_with(&[
        "-o",
        "use_sse=kmsid:K,multipart_size=10,parallel_count=7,storage_class=IA,default_acl=private,requester_pays,use_cache=/x",
    ])
    .shows(&[
        "sse = \"kmsid:K\"  # -o use_sse",
        "upload-part-size = \"10MiB\"  # -o multipart_size",
        "upload-concurrency = 7  # -o parallel_count",
        "storage-class = \"IA\"  # -o storage_class",
        "acl = \"private\"  # -o default_acl",
        "requester-pays = true",
        "spill-dir = \"/x\"  # -o use_cache",
    ]);
    mount_with(&["-o", "sse=sometimes"]).refuses(&["sse=sometimes", "on (AES256), kms, kmsid:KEY"]);
    mount_with(&["-o", "sse-key-id=K"]).refuses(&["sse-key-id goes with sse=kms"]);
    mount_with(&["-o", "upload-part-size=1MiB"]).refuses(&["upload-part-size", "5MiB..1GiB"]);
    mount_with(&["-o", "upload-part-size=512MiB,memory-limit=600MiB"]).refuses(&["does not hold two parts"]);
}

#[test]
fn what_ranks_higher_wins_and_says_where_it_came_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(&dir.path().join("c.toml"), "retries = 1\nchunk-size = \"1MiB\"\nbackward-chunks = 11\numask = \"022\"\n", 0o644);
    let mut command = command("windlass");
    command.args(["mount", "s3://data", "/mnt/x", "--print-config", "--config", &file, "--backward-chunks=13", "-o", "umask=077"]);
    command.env("WINDLASS_CHUNK_SIZE", "2").env("WINDLASS_BACKWARD_CHUNKS", "12").env("WINDLASS_UMASK", "033").args(["--umask", "044"]);
    run(command).shows(&[
        "source = \"s3://data\"  # command line",
        &format!("retries = 1  # {file}"),
        "chunk-size = \"2MiB\"  # environment WINDLASS_CHUNK_SIZE",
        "backward-chunks = 13  # --backward-chunks",
        "umask = \"0077\"  # -o umask",
        "stat-cache-ttl = \"60s\"  # default",
    ]);
}

#[test]
fn the_stores_own_variables_rank_below_ours() {
    let shown = |source: &str, ours: bool| {
        let mut command = command("windlass");
        command.args(["mount", source, "/mnt/x", "--print-config"]);
        command.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1").env("AWS_REGION", "r-aws").env("OSS_ENDPOINT", "http://127.0.0.1:2");
        if ours {
            command.env("WINDLASS_ENDPOINT", "http://127.0.0.1:3");
        }
        run(command)
    };
    shown("s3://data", false).shows(&["endpoint = \"http://127.0.0.1:1\"  # environment AWS_ENDPOINT_URL", "region = \"r-aws\""]);
    shown("oss://data", false).shows(&["endpoint = \"http://127.0.0.1:2\"  # environment OSS_ENDPOINT", "# region ="]);
    shown("s3://data", true).shows(&["endpoint = \"http://127.0.0.1:3\"  # environment WINDLASS_ENDPOINT"]);
}

#[test]
fn the_printed_configuration_can_be_used_as_a_file() {
    let values = |said: &Said| -> Vec<String> {
        assert_eq!(said.code, 0, "{}", said.err);
        said.out.lines().filter(|line| !line.starts_with('#')).map(|line| line.split("  # ").next().unwrap().to_owned()).collect()
    };
    let options = "chunk-size=7,prefetch-chunks=9,stat-cache-ttl=-1,umask=027,allow_other,uid=12,log-level=windlass::reader=debug\\,warn";
    let first = mount_with(&["-o", options, "--endpoint", "http://127.0.0.1:9", "--connect-timeout", "250ms", "--path-style"]);
    let dir = tempfile::tempdir().unwrap();
    let file = write(&dir.path().join("printed.toml"), &first.out, 0o600);
    let second = windlass(&["mount", "--print-config", "--config", &file]);
    assert_eq!(values(&first), values(&second));
    second.shows(&[
        "chunk-size = \"7MiB\"",
        "stat-cache-ttl = \"-1\"",
        "log-level = \"windlass::reader=debug,warn\"",
        "connect-timeout = \"250ms\"",
    ]);
}

#[test]
fn secrets_are_refused_on_the_command_line_and_in_open_files_and_shown_nowhere() {
    let refused = mount_with(&["-o", "oss_access_key_secret=hunter2"]);
    refused.refuses(&["oss_access_key_secret", "--passwd-file"]);
    let dir = tempfile::tempdir().unwrap();
    let text = "access-key-id = \"id\"\naccess-key-secret = \"hunter2\"\n";
    let open = write(&dir.path().join("open.toml"), text, 0o644);
    let opened = mount_with(&["--config", &open]);
    opened.refuses(&["access-key-secret", "chmod 600"]);
    let private = write(&dir.path().join("private.toml"), text, 0o600);
    let printed = mount_with(&["--config", &private]);
    printed.shows(&["# access-key-secret = \"********\""]);
    let half = write(&dir.path().join("half.toml"), "access-key-secret = \"hunter2\"\n", 0o600);
    let halved = mount_with(&["--config", &half]);
    halved.refuses(&["access-key-id"]);
    for said in [refused, opened, printed, halved] {
        assert!(!said.out.contains("hunter2") && !said.err.contains("hunter2"));
    }
}

#[test]
fn values_that_do_not_go_together_are_refused() {
    mount_with(&["--allow-other", "--allow-root"]).refuses(&["exclude each other"]);
    mount_with(&["--auto-unmount"]).refuses(&["auto-unmount", "allow-root"]);
    mount_with(&["--chunk-size=32", "--memory-limit=32MiB"]).refuses(&["memory-limit=32MiB", "chunk-size"]);
    mount_with(&["--signature=v1"]).refuses(&["oss://"]);
    windlass(&["mount", "oss://data", "/mnt/x", "--print-config"]).refuses(&["--endpoint", "--region"]);
    windlass(&["mount", "data", "/mnt/x", "--print-config"]).refuses(&["s3://data or oss://data"]);
    mount_with(&["-o", "remount"]).refuses(&["unmount it and mount it again"]);
    windlass(&["mount", "s3://data"]).refuses(&["MOUNTPOINT is missing"]);
    windlass(&["mount"]).refuses(&["SOURCE is missing"]);
}

#[test]
fn words_of_fstab_are_taken() {
    let words =
        "_netdev,rw,auto,noauto,user,nofail,x-systemd.automount,x-systemd.requires=network.target,nosuid,nodev,noexec,noatime,defaults";
    mount_with(&["-o", words]).shows(&["read-only = false  # -o rw"]);
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    for name in ["mount.windlass", "/sbin/mount.fuse.windlass"] {
        let said = under(name, &["s3://data", at, "-f", "-n", "-o", &format!("{words},chunk_size=4")]);
        // Where there is no FUSE at all the check before the mount says so; the words are read before it.
        assert!(said.code == 0 || said.err.contains("/dev/fuse") || said.err.contains("fusermount3"), "{}", said.err);
        under(name, &["s3://data", at, "-fv", "-o", "chunk_size=33"]).refuses(&["1MiB..32MiB"]);
        under(name, &["s3://data", at, "-f", "-o", "xyzzy"]).refuses(&["unknown option xyzzy"]);
        let sloppy = under(name, &["s3://data", at, "-sf", "-o", "xyzzy"]);
        assert!(!sloppy.err.contains("unknown option"), "{}", sloppy.err);
    }
}

#[test]
fn the_command_line_of_ossfs_is_taken_with_its_defaults() {
    let line = [
        "data:/models",
        "/mnt/x",
        "-ourl=http://oss-cn-hangzhou-internal.aliyuncs.com",
        "-o",
        "allow_other,umask=022",
        "-odbglevel=warn",
        "-o",
        "direct_read,direct_read_chunk_size=8,direct_read_prefetch_limit=2048",
        "-ouse_cache=/tmp/c,ensure_diskfree=1000,multipart_size=20",
        "-ocurldbg",
        "-f",
        "--print-config",
    ];
    let expected = [
        "source = \"oss://data/models\"",
        "endpoint = \"http://oss-cn-hangzhou-internal.aliyuncs.com\"  # -o url",
        "chunk-size = \"8MiB\"  # -o direct_read_chunk_size",
        "memory-limit = \"2GiB\"",
        "prefetch-chunks = 32  # default of ossfs",
        "prefetch-concurrency = 64  # default of ossfs",
        "stat-cache-ttl = \"900s\"  # default of ossfs",
        "readdir-optimize = false  # default of ossfs",
        "signature = \"v1\"  # default of ossfs",
        "log-level = \"warn\"",
        "foreground = true",
    ];
    under("ossfs", &line).shows(&expected);
    windlass(&[&["mount", "--compat", "ossfs"], &line[..]].concat()).shows(&expected);
    under("/usr/bin/ossfs", &["data", "/mnt/x", "-ourl=http://x.aliyuncs.com", "-oxyzzy"]).refuses(&["unknown option xyzzy"]);
    under("ossfs", &["data", "/mnt/x", "-ourl=http://x.aliyuncs.com", "-ofree_space_ratio=101"]).refuses(&["0..100"]);
}

#[test]
fn the_command_line_of_s3fs_is_taken_with_its_defaults() {
    let line =
        ["data:/models", "/mnt/x", "-ourl=http://127.0.0.1:9000", "-o", "umask=022,endpoint=eu-west-1,curldbg", "-d", "--print-config"];
    let expected = [
        "# note: option curldbg has no effect: it tunes the other program",
        "source = \"s3://data/models\"",
        "endpoint = \"http://127.0.0.1:9000\"  # -o url",
        "region = \"eu-west-1\"  # -o endpoint",
        "file-mode = \"0777\"  # -o umask",
        "force-mode = true  # -o umask",
        "stat-cache-ttl = \"900s\"  # default of s3fs",
        "log-level = \"debug\"",
        "foreground = false",
    ];
    under("s3fs", &line).shows(&expected);
    windlass(&[&["mount", "--compat", "s3fs"], &line[..]].concat()).shows(&expected);
    windlass(&["mount", "s3://data", "/mnt/x", "-o", "curldbg"]).refuses(&["curldbg", "--compat s3fs"]);
}

#[test]
fn the_command_line_and_the_file_of_ossfs2_are_taken_with_its_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let text = "# access\n--oss_endpoint=https://oss-cn-hangzhou.aliyuncs.com\n--oss_bucket=data\n--oss_bucket_prefix=a/b\n\
                --oss_access_key_id=id\n--oss_access_key_secret=hunter2\n--upload_buffer_size=33554432\n--allow_other=true\n";
    let conf = write(&dir.path().join("ossfs2.conf"), text, 0o600);
    let line = ["/mnt/x", "-c", &conf, "--prefetch_chunks=5", "--ro", "--print-config", "--oss_request_timeout_ms=30000"];
    let said = under("ossfs2", &[&["mount"], &line[..]].concat());
    said.shows(&[
        "source = \"oss://data/a/b\"",
        "mountpoint = \"/mnt/x\"",
        "chunk-size = \"8MiB\"  # default of ossfs2",
        "prefetch-concurrency = 256  # default of ossfs2",
        "prefetch-chunks = 5",
        "request-timeout = \"30s\"",
        "signature = \"v1\"  # default of ossfs2",
        "negative-ttl = \"0s\"  # default of ossfs2",
        "allow-other = true",
        "access-key-id = \"id\"",
    ]);
    assert!(!said.out.contains("hunter2"));
    windlass(&[&["mount", "--compat=ossfs2"], &line[..]].concat()).shows(&["source = \"oss://data/a/b\""]);
    let region = under("ossfs2", &[&["mount", "--oss_region=cn-hangzhou"], &line[..]].concat());
    region.shows(&["signature = \"v4\"", "region = \"cn-hangzhou\""]);
}

#[test]
fn completions_exist_for_every_shell() {
    for (shell, word) in
        [("bash", "_windlass()"), ("zsh", "#compdef windlass"), ("fish", "complete -c windlass"), ("elvish", "edit:completion")]
    {
        let said = windlass(&["completions", shell]);
        assert_eq!(said.code, 0, "{}", said.err);
        assert!(said.out.contains(word) && said.out.contains("chunk-size"), "{shell}");
    }
    windlass(&["completions", "tcsh"]).refuses(&["bash"]);
}

#[test]
fn the_manual_is_printed_and_written() {
    assert!(windlass(&["man"]).out.contains(".TH windlass 1"));
    assert!(windlass(&["man", "mount"]).out.contains("prefetch\\-chunks"));
    assert!(windlass(&["man", "bench", "read"]).out.contains("chunk\\-size"));
    windlass(&["man", "nothing"]).refuses(&["nothing"]);
    windlass(&["man", "bench", "nothing"]).refuses(&["bench", "nothing"]);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man1");
    assert_eq!(windlass(&["man", "--out", out.to_str().unwrap()]).code, 0);
    for page in [
        "windlass.1",
        "windlass-mount.1",
        "windlass-umount.1",
        "windlass-stats.1",
        "windlass-refresh.1",
        "windlass-warm.1",
        "windlass-evict.1",
    ] {
        assert!(fs::metadata(out.join(page)).unwrap().len() > 0, "{page}");
    }
}

#[test]
fn a_bad_mount_point_is_refused_with_its_fix_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(&dir.path().join("file"), "x", 0o644);
    let at = dir.path().to_str().unwrap();
    for attached in [&["--foreground"][..], &[]] {
        let mount = |place: &str| windlass(&[&["mount", "s3://data", place], attached].concat());
        mount(&file).refuses(&[&file, "is not a directory"]);
        mount(at).refuses(&[at, "--nonempty"]);
        mount(&format!("{at}/absent")).refuses(&["mkdir -p"]);
        mount("/dev/fd/77").refuses(&["no such descriptor"]);
        mount("/dev/fd/0").refuses(&["above 2"]);
        mount("/dev/fd/x").refuses(&["/dev/fd/N"]);
    }
    let ready = format!("{at}/absent/ready");
    windlass(&["mount", "s3://data", at, "--ready-file", &ready]).refuses(&["ready-file", "no such directory"]);
}

#[test]
fn only_our_mounts_are_asked() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    for name in ["stats", "refresh"] {
        windlass(&[name, at]).refuses(&[at, "not in a windlass mount"]);
        windlass(&[name, &format!("{at}/absent/path")]).refuses(&["not in a windlass mount"]);
        windlass(&[name, "/proc/self/fd"]).refuses(&["/proc/self/fd", "(proc)"]);
        windlass(&[name]).refuses(&["an argument is missing"]);
        assert!(windlass(&["man", name]).out.contains("windlass"), "{name}");
    }
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    windlass(&["stats", link.to_str().unwrap()]).refuses(&["too many links"]);
}

#[test]
fn what_warms_says_what_it_lacks() {
    windlass(&["warm"]).refuses(&["SOURCE-or-PATH"]);
    windlass(&["warm", "s3://data"]).refuses(&["--spill-dir"]);
    windlass(&["warm", "s3://data", "--metadata-only"]).refuses(&["--metadata-only", "path in one"]);
    windlass(&["warm", "s3://data", "--spill-dir", "/x", "--read-mode", "direct"]).refuses(&["--read-mode"]);
    for (option, word) in [("--parallel=0", "1..=256"), ("--parallel=257", "1..=256"), ("--max-bytes=many", "is not a size")] {
        windlass(&["warm", "s3://data", option]).refuses(&[word]);
    }
    windlass(&["warm", "s3://data", "--from-file", "/nowhere/list"]).refuses(&["/nowhere/list"]);
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    windlass(&["warm", at]).refuses(&[at, "not in a windlass mount"]);
    windlass(&["evict", at]).refuses(&[at, "not in a windlass mount"]);
}

#[test]
fn only_fuse_mounts_are_unmounted() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    for name in ["umount", "unmount"] {
        windlass(&[name, at]).refuses(&[at, "nothing is mounted here"]);
    }
    windlass(&["umount", &format!("{at}/absent")]).refuses(&["nothing is mounted here"]);
    windlass(&["umount", "/proc"]).refuses(&["/proc", "not a FUSE mount"]);
    windlass(&["umount"]).refuses(&["DIR"]);
}

/// Port 1 of this machine refuses connections, so no store answers.
#[test]
fn a_daemon_that_cannot_mount_says_why_to_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let log = dir.path().join("log");
    let mut command = command("windlass");
    command.args(["mount", "s3://data", at.to_str().unwrap(), "--endpoint", "http://127.0.0.1:1", "--region", "r", "--retries", "0"]);
    command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "hunter2").args(["--log-file", log.to_str().unwrap()]);
    let said = run(command);
    // Without FUSE on the machine, or without fusermount3 for a user, that is said before the store is asked.
    let expected = if said.err.contains("/dev/fuse") || said.err.contains("fusermount3") { 2 } else { 4 };
    assert!(said.code == expected && said.out.is_empty(), "{} {}{}", said.code, said.out, said.err);
    let lines: Vec<_> = said.err.lines().collect();
    assert!(lines.len() == 1 && lines[0].starts_with("windlass: ") && !lines[0].contains("hunter2"), "{}", said.err);
    assert!(!fs::read_to_string(&log).unwrap_or_default().contains("hunter2"));
}

#[test]
fn names_of_the_environment_that_nobody_knows_do_not_stop_a_mount() {
    let mut command = command("windlass");
    command.args(["mount", "s3://data", "/mnt/x", "--print-config"]);
    command.env("WINDLASS_SERVICE_HOST", "10.0.0.1").env("WINDLASS_PORT_80_TCP", "tcp://10.0.0.1:80").env("WINDLASS_CHUNK_SISE", "8");
    run(command).shows(&["chunk-size = \"4MiB\"  # default"]);
    let mut wrong = self::command("windlass");
    wrong.args(["mount", "s3://data", "/mnt/x", "--print-config"]).env("WINDLASS_CHUNK_SIZE", "33");
    run(wrong).refuses(&["environment WINDLASS_CHUNK_SIZE", "1MiB..32MiB"]);
}

#[test]
fn a_credential_process_does_not_see_the_variables_of_windlass() {
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    let process = format!("env > {}; exit 1", seen.display());
    for source in ["s3://bucket", "oss://bucket"] {
        let mut command = command("windlass");
        command.args(["ls", source, "--endpoint", "http://127.0.0.1:1", "--region", "r", "--credential-process", &process]);
        command.env("WINDLASS_SESSION_TOKEN", "hunter2").env("WINDLASS_HANDOVER", "hunter2").env("AWS_PROFILE", "theirs");
        let said = run(command);
        assert_eq!(said.code, 3, "{source}: {}", said.err);
        let environment = fs::read_to_string(&seen).unwrap();
        fs::remove_file(&seen).unwrap();
        assert!(!environment.contains("WINDLASS_") && !environment.contains("hunter2"), "{source}: {environment}");
        assert!(environment.contains("AWS_PROFILE=theirs") && environment.contains("PATH="), "{source}: {environment}");
    }
}
