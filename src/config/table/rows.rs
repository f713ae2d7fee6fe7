//! The rows of the table, in the order in which `--print-config` and the help show them. Native defaults are those of
//! the layers' own `Options`; a test keeps the two equal.

use super::{Alias, Kind, Rule, Spec, count, count_or_auto, size, time, ttl};
use crate::units::ByteSize;

const ROW: Spec = Spec {
    name: "",
    kind: Kind::Text,
    default: None,
    ossfs: None,
    ossfs2: None,
    s3fs: None,
    mountpoint: None,
    aliases: &[],
    has_flag: true,
    short: None,
    fixed: Some(""),
    group: "",
    help: "",
};

const BUCKET: Spec = Spec { group: "Bucket", fixed: Some("it says what is mounted"), ..ROW };
const ACCESS: Spec = Spec { group: "Credentials", fixed: Some("keys are looked up anew where it says, and only there"), ..ROW };
const READ: Spec = Spec { group: "Reading", fixed: Some("open files are read by it"), ..ROW };
const NAMES: Spec = Spec { group: "Metadata", fixed: Some("what is known of names was learnt by it"), ..ROW };
const REQUESTS: Spec = Spec { group: "Requests", fixed: Some("connections and requests are made by it from the beginning"), ..ROW };
const MOUNT: Spec = Spec { group: "Mount", fixed: Some("the kernel was told once, at the beginning"), ..ROW };
const LOG: Spec = Spec { group: "Log and daemon", fixed: Some("it is acted on once, at the beginning"), ..ROW };
const WRITE: Spec = Spec { group: "Writing", fixed: Some("files that are being written were begun by it"), ..ROW };
const DISK: Spec = Spec { group: "Disk", fixed: Some("the disk was opened by it"), ..ROW };

const fn same(word: &'static str) -> Alias {
    Alias { word, rule: Rule::Same }
}

const fn unit(word: &'static str, unit: &'static str) -> Alias {
    Alias { word, rule: Rule::Unit(unit) }
}

const fn sets(word: &'static str, value: &'static str) -> Alias {
    Alias { word, rule: Rule::Sets(value) }
}

const LEVELS: Rule = Rule::Words(&[
    ("critical", "error"),
    ("crit", "error"),
    ("err", "error"),
    ("warning", "warn"),
    ("wan", "warn"),
    ("information", "info"),
    ("inf", "info"),
    ("dbg", "debug"),
]);

/// Of Mountpoint, whose shortest is "a few hundred milliseconds, or a second".
const TTLS: Rule = Rule::Words(&[("indefinite", "-1"), ("minimal", "1s")]);

const CHUNK: Kind = Kind::Size { min: ByteSize::mib(1), max: ByteSize::mib(32), step: ByteSize::mib(1), bare_max: 1023, auto: false };
const MEMORY: Kind = Kind::Size { min: ByteSize::mib(16), max: ByteSize::gib(16384), step: ByteSize::bytes(1), bare_max: 0, auto: true };
const DISK_SIZE: Kind = size(ByteSize::bytes(0), ByteSize::gib(1 << 20));
const DISK_FREE: Kind =
    Kind::Size { min: ByteSize::bytes(0), max: ByteSize::gib(1 << 20), step: ByteSize::bytes(1), bare_max: 1 << 30, auto: false };
const PART_SIZE: Kind = size(ByteSize::mib(5), ByteSize::gib(1));

/// Every option.
pub static OPTIONS: &[Spec] = &[
    Spec {
        name: "source",
        has_flag: false,
        help: "What to mount: s3://bucket[/prefix], oss://bucket[/prefix], bucket[:/prefix], or s3:// for all buckets of the account",
        ..BUCKET
    },
    Spec {
        name: "mountpoint",
        has_flag: false,
        help: "Where: a directory, or /dev/fd/N for a descriptor that is mounted already",
        ..BUCKET
    },
    Spec {
        name: "buckets",
        help: "With the source s3://: the buckets to mount as directories, separated by commas; without it all of the account",
        ..BUCKET
    },
    Spec { name: "bucket", has_flag: false, aliases: &[same("oss_bucket")], help: "The bucket, where SOURCE is not given", ..BUCKET },
    Spec { name: "prefix", has_flag: false, aliases: &[same("oss_bucket_prefix")], help: "The key prefix that goes with bucket", ..BUCKET },
    Spec {
        name: "endpoint",
        aliases: &[same("url"), same("host"), same("oss_endpoint"), same("endpoint_url")],
        help: "URL of the store without the bucket; a name alone means https. Default: the store's own address for the region",
        ..BUCKET
    },
    Spec { name: "region", aliases: &[same("oss_region")], help: "Region of the bucket", ..BUCKET },
    Spec {
        name: "path-style",
        kind: Kind::FlagOrAuto,
        default: Some("auto"),
        aliases: &[same("use_path_request_style"), sets("force_path_style", "true")],
        help: "Address objects as endpoint/bucket/key; auto: as the provider wants it, else when the endpoint is an IP address or localhost",
        ..BUCKET
    },
    Spec {
        name: "provider",
        kind: Kind::Choice(&["auto", "aws", "oss", "minio", "r2", "b2", "gcs", "ceph", "wasabi", "cos", "obs", "tos", "versitygw"]),
        default: Some("auto"),
        help: "Whose store it is, which says what it supports (docs/configuration.md): auto (known by the endpoint's host, else found out from answers), aws, oss, minio, r2, b2, gcs, ceph, wasabi, cos, obs, tos, versitygw",
        ..BUCKET
    },
    Spec {
        name: "fips",
        kind: Kind::FlagOrAuto,
        default: Some("auto"),
        help: "Address AWS where its cryptography is validated after FIPS 140; auto: as AWS_USE_FIPS_ENDPOINT or the profile says",
        ..BUCKET
    },
    Spec {
        name: "dual-stack",
        kind: Kind::FlagOrAuto,
        default: Some("auto"),
        help: "Address AWS where it is reached over IPv6 too; auto: as AWS_USE_DUALSTACK_ENDPOINT or the profile says",
        ..BUCKET
    },
    Spec {
        name: "accelerate",
        kind: Kind::Flag,
        default: Some("false"),
        aliases: &[same("transfer_acceleration")],
        help: "Address AWS by S3 Transfer Acceleration, which the bucket must have enabled",
        ..BUCKET
    },
    Spec {
        name: "signature",
        kind: Kind::Choice(&["v4", "v1", "none"]),
        default: Some("v4"),
        ossfs: Some("v1"),
        aliases: &[sets("sigv4", "v4"), sets("sigv1", "v1"), sets("public_bucket", "none"), sets("no_sign_request", "none")],
        help: "How requests are signed: v4, v1 (OSS only), none (public buckets)",
        ..BUCKET
    },
    Spec {
        name: "read-endpoint",
        help: "URL of an accelerator or cache of the bucket: data is asked for there, everything else at the endpoint, and data too when it fails",
        ..BUCKET
    },
    Spec {
        name: "redirect-hosts",
        help: "Hosts besides the endpoints to which requests may be redirected, with signature and data: host, host:port or .domain, separated by commas",
        ..BUCKET
    },
    Spec {
        name: "bind",
        aliases: &[same("bind_ips")],
        help: "Source addresses or interfaces from which connections to the store leave in turns, separated by commas",
        ..BUCKET
    },
    Spec {
        name: "ca-bundle",
        kind: Kind::Path,
        help: "File of certificates (PEM) that may vouch for the store besides those of the system; default: AWS_CA_BUNDLE, for S3",
        ..BUCKET
    },
    Spec { name: "profile", help: "Named profile of the store's shared credential files", ..ACCESS },
    Spec {
        name: "passwd-file",
        kind: Kind::Path,
        aliases: &[same("secret_store_dir")],
        help: "File of bucket:key:secret or key:secret lines, readable by its owner only, or a directory with a file for each field, as Kubernetes mounts secrets",
        ..ACCESS
    },
    Spec {
        name: "access-key-id-file",
        kind: Kind::Path,
        aliases: &[same("oss_sts_multi_conf_ak_file")],
        help: "File with the access key alone",
        ..ACCESS
    },
    Spec {
        name: "access-key-secret-file",
        kind: Kind::Path,
        aliases: &[same("oss_sts_multi_conf_sk_file")],
        help: "File with its secret alone",
        ..ACCESS
    },
    Spec {
        name: "session-token-file",
        kind: Kind::Path,
        aliases: &[same("oss_sts_multi_conf_token_file")],
        help: "File with the token of temporary keys alone",
        ..ACCESS
    },
    Spec { name: "credential-process", help: "Command that prints credentials as JSON", ..ACCESS },
    Spec {
        name: "ram-role",
        help: "Role of the instance whose credentials the metadata service gives out (ECS, EC2), or auto for the one that it has",
        ..ACCESS
    },
    Spec {
        name: "role-arn",
        aliases: &[same("rrsa_role_arn")],
        help: "Role that a token of the cluster stands for (IRSA, RRSA); what is not said of it comes from the variables of the vendor's tools",
        ..ACCESS
    },
    Spec { name: "oidc-provider-arn", aliases: &[same("rrsa_oidc_provider_arn")], help: "Who vouches for the token (OSS)", ..ACCESS },
    Spec {
        name: "oidc-token-file",
        kind: Kind::Path,
        aliases: &[same("rrsa_token_file")],
        help: "File with the token, as Kubernetes projects it",
        ..ACCESS
    },
    Spec {
        name: "role-session-name",
        aliases: &[same("rrsa_role_session_name")],
        help: "Name of the session in the logs of the cloud",
        ..ACCESS
    },
    Spec {
        name: "sts-endpoint",
        aliases: &[same("rrsa_endpoint")],
        help: "URL of the service that takes the token (OSS); on S3 AWS_ENDPOINT_URL_STS",
        ..ACCESS
    },
    Spec { name: "assume-role-arn", help: "Another role, which the first one assumes (OSS)", ..ACCESS },
    Spec { name: "assume-role-external-id", help: "What the owner of that role wants to be told (OSS)", ..ACCESS },
    Spec { name: "access-key-id", has_flag: false, aliases: &[same("oss_access_key_id")], help: "Access key", ..ACCESS },
    Spec {
        name: "access-key-secret",
        kind: Kind::Secret,
        has_flag: false,
        aliases: &[same("oss_access_key_secret")],
        help: "Its secret: only from a private file or the environment",
        ..ACCESS
    },
    Spec {
        name: "session-token",
        kind: Kind::Secret,
        has_flag: false,
        aliases: &[same("oss_session_token"), same("oss_sts_token")],
        help: "Token that goes with temporary keys: only from a private file or the environment",
        ..ACCESS
    },
    Spec {
        name: "read-mode",
        kind: Kind::Choice(&["direct", "cached", "hybrid"]),
        default: Some("direct"),
        ossfs: Some("cached"),
        aliases: &[sets("direct_read", "direct")],
        help: "direct: memory only; cached: what is read stays on the disk; hybrid: the first hybrid-threshold of each object do",
        ..READ
    },
    Spec {
        name: "chunk-size",
        kind: CHUNK,
        default: Some("4MiB"),
        ossfs2: Some("8MiB"),
        aliases: &[unit("direct_read_chunk_size", "MiB"), unit("prefetch_chunk_size", "B")],
        help: "Unit of prefetch, 1MiB..32MiB; a bare number counts in MiB",
        ..READ
    },
    Spec {
        name: "prefetch-chunks",
        fixed: None,
        kind: count_or_auto(0, 4096),
        default: Some("auto"),
        ossfs: Some("32"),
        aliases: &[same("direct_read_prefetch_chunks")],
        help: "Chunks fetched ahead of a reader; auto follows what it reads per second and how long a GET takes",
        ..READ
    },
    Spec {
        name: "backward-chunks",
        fixed: None,
        kind: count(0, 4096),
        default: Some("1"),
        aliases: &[same("direct_read_backward_chunks")],
        help: "Chunks kept behind a reader",
        ..READ
    },
    Spec {
        name: "memory-limit",
        fixed: None,
        kind: MEMORY,
        default: Some("auto"),
        ossfs: Some("1024MiB"),
        aliases: &[
            unit("direct_read_prefetch_limit", "MiB"),
            Alias { word: "total_mem_limit", rule: Rule::Words(&[("0", "auto")]) },
            unit("memory_target", "MiB"),
            unit("max_memory_target", "MiB"),
        ],
        help: "Bound of all memory that grows with traffic; auto: a quarter of what the cgroups and the machine leave",
        ..READ
    },
    Spec {
        name: "prefetch-concurrency",
        fixed: None,
        kind: count_or_auto(1, 4096),
        default: Some("auto"),
        ossfs: Some("64"),
        ossfs2: Some("256"),
        aliases: &[same("direct_read_prefetch_thread")],
        help: "GETs in flight in the whole process",
        ..READ
    },
    Spec {
        name: "hybrid-threshold",
        kind: DISK_SIZE,
        default: Some("0"),
        aliases: &[unit("direct_read_local_file_cache_size_mb", "MiB")],
        help: "How much of an object is kept on the disk before the rest is read direct; more than 0 makes read-mode hybrid",
        ..DISK
    },
    Spec {
        name: "spill-dir",
        kind: Kind::Path,
        aliases: &[Alias { word: "use_cache", rule: Rule::Unless(&[""]) }, same("tmpdir"), same("disk_data_cache_dir"), same("temp_dir")],
        help: "Directory for what is read in the modes cached and hybrid, and for staged writes; default for these: a private one below TMPDIR",
        ..DISK
    },
    Spec {
        name: "spill-max",
        kind: DISK_SIZE,
        default: Some("0"),
        aliases: &[same("disk_data_cache_size"), unit("max_cache_size", "MiB")],
        help: "Most bytes kept in it; 0: no bound of its own",
        ..DISK
    },
    Spec {
        name: "ensure-diskfree",
        kind: DISK_FREE,
        default: Some("0"),
        aliases: &[unit("temp_dir_free_bytes", "B"), unit("disk_available_space", "B")],
        help: "Keep this much of its file system free; a bare number counts in MiB",
        ..DISK
    },
    Spec {
        name: "free-space-ratio",
        kind: count(0, 100),
        default: Some("0"),
        aliases: &[same("temp_dir_free_percent")],
        help: "Keep this per cent of its file system free",
        ..DISK
    },
    Spec {
        name: "stat-cache-size",
        kind: count(0, 1_000_000_000),
        default: Some("100000"),
        aliases: &[same("max_stat_cache_size")],
        help: "Entries of the metadata cache; 0 disables it",
        ..NAMES
    },
    Spec {
        name: "stat-cache-ttl",
        fixed: None,
        kind: ttl(),
        default: Some("60s"),
        s3fs: Some("900s"),
        ossfs: Some("900s"),
        mountpoint: Some("1s"),
        aliases: &[same("stat_cache_expire"), same("attr_timeout"), Alias { word: "metadata_ttl", rule: TTLS }],
        help: "How long attributes and listings are believed; 0 disables the cache, -1 is for ever",
        ..NAMES
    },
    Spec {
        name: "negative-ttl",
        fixed: None,
        kind: ttl(),
        default: Some("1s"),
        s3fs: Some("0s"),
        ossfs2: Some("0s"),
        aliases: &[
            same("negative_timeout"),
            sets("disable_noobj_cache", "0"),
            sets("enable_noobj_cache", "1s"),
            Alias { word: "negative_metadata_ttl", rule: TTLS },
        ],
        help: "How long the absence of a name is believed",
        ..NAMES
    },
    Spec {
        name: "close-to-open",
        kind: Kind::Flag,
        default: Some("false"),
        ossfs: Some("true"),
        s3fs: Some("true"),
        help: "Ask the store at each open which version a file has, for a HEAD each: what another client has closed before is read",
        ..NAMES
    },
    Spec {
        name: "readdir-optimize",
        kind: Kind::Flag,
        default: Some("true"),
        s3fs: Some("false"),
        ossfs: Some("false"),
        help: "Attributes from the listing; without it one HEAD for each entry",
        ..NAMES
    },
    Spec {
        name: "posix-attributes",
        kind: Kind::FlagOrAuto,
        default: Some("auto"),
        s3fs: Some("true"),
        ossfs: Some("true"),
        help: "Keep mode, owner, mtime and atime in object metadata. auto: those that were set or that a listing would not show, and objects are asked for them only in directories that are marked as having some; true: with every object, for a HEAD each; false: for as long as the mount lives",
        ..NAMES
    },
    Spec {
        name: "rename-limit",
        kind: count(1, 100_000_000),
        default: Some("100000"),
        ossfs2: Some("2000000"),
        aliases: &[same("rename_dir_limit")],
        help: "Most objects that are renamed with a directory; above it nothing is moved and the error is EMFILE",
        ..NAMES
    },
    Spec {
        name: "retries",
        kind: count(0, 100),
        default: Some("10"),
        s3fs: Some("5"),
        ossfs: Some("5"),
        help: "How often a failed request is sent again; not counted where the store asks to slow down, or is silent after it had answered: there --request-timeout ends it",
        ..REQUESTS
    },
    Spec {
        name: "hedge",
        fixed: None,
        kind: Kind::Flag,
        default: Some("true"),
        help: "Send a second data GET beside one whose first byte is late; at most one request in fifty",
        ..REQUESTS
    },
    Spec {
        name: "verify-reads",
        kind: Kind::Choice(&["auto", "off"]),
        default: Some("auto"),
        help: "Compare objects that are read whole with the checksum that the store tells, or with an ETag that is an MD5: auto, off",
        ..REQUESTS
    },
    Spec {
        name: "upload-checksum",
        kind: Kind::Choice(&["auto", "crc64nvme", "crc32c", "md5", "none"]),
        default: Some("auto"),
        help: "What protects uploads to S3: auto (crc64nvme as long as the store takes and repeats it, else md5), crc64nvme, crc32c, md5, none",
        ..REQUESTS
    },
    Spec {
        name: "mime",
        kind: Kind::Flag,
        default: Some("true"),
        aliases: &[same("infer_content_type")],
        help: "New objects have the type that their names end in, such as text/html for .html; without it the store's default",
        ..REQUESTS
    },
    Spec {
        name: "content-type",
        kind: Kind::Text,
        help: "Types of new objects by the ends of their names, EXT=TYPE, several separated by commas: parquet=application/vnd.apache.parquet",
        ..REQUESTS
    },
    Spec { name: "connect-timeout", kind: time(100, 600), default: Some("5s"), help: "Longest wait for a connection", ..REQUESTS },
    Spec {
        name: "request-timeout",
        kind: time(1_000, 86_400),
        default: Some("60s"),
        aliases: &[unit("oss_request_timeout_ms", "ms")],
        help: "Longest time for a request with all its retries, and for a body from one 64 KiB to the next; uploads have a second more for each 16 KiB",
        ..REQUESTS
    },
    Spec {
        name: "stall-timeout",
        kind: time(100, 3_600),
        default: Some("5s"),
        aliases: &[same("readwrite_timeout")],
        help: "Longest time without a byte before a body is given up and asked for again; a first byte has connect-timeout more, and at each attempt as long again",
        ..REQUESTS
    },
    Spec {
        name: "upload-part-size",
        kind: PART_SIZE,
        default: Some("8MiB"),
        s3fs: Some("10MiB"),
        ossfs: Some("10MiB"),
        aliases: &[unit("multipart_size", "MiB"), unit("upload_buffer_size", "B"), unit("part_size", "B"), unit("write_part_size", "B")],
        help: "Part size of uploads; it grows with the file so that 10,000 parts hold it",
        ..WRITE
    },
    Spec {
        name: "upload-concurrency",
        kind: count_or_auto(1, 1024),
        default: Some("auto"),
        s3fs: Some("5"),
        ossfs: Some("5"),
        ossfs2: Some("64"),
        aliases: &[same("parallel_count"), same("parallel_upload")],
        help: "Parts of one file uploaded at once; auto: 8 to a store that is near, else 16, and up to 64 where the network holds more; of all files together at most 64, or as many as this",
        ..WRITE
    },
    Spec {
        name: "conflict",
        kind: Kind::Choice(&["fail", "save", "overwrite"]),
        default: Some("fail"),
        help: "What a close does when another client has written the file since it was opened: fail leaves what is there and says ESTALE; save does so too, and stores what was written as NAME.conflict-HOST-TIME; overwrite replaces what is there. What was only appended is appended to what is there now, except with overwrite",
        ..WRITE
    },
    Spec {
        name: "sse",
        aliases: &[Alias { word: "use_sse", rule: Rule::OrElse("on") }],
        help: "Server-side encryption of what is written: on (AES256), kms, or kmsid:KEY",
        ..WRITE
    },
    Spec { name: "sse-key-id", aliases: &[same("sse_kms_key_id")], help: "Key of the server-side encryption with kms", ..WRITE },
    Spec { name: "storage-class", help: "Storage class of what is written, as the store calls it", ..WRITE },
    Spec { name: "acl", aliases: &[same("default_acl")], help: "Canned access list of what is written, such as private", ..WRITE },
    Spec {
        name: "requester-pays",
        kind: Kind::Flag,
        default: Some("false"),
        help: "Pay for requests to a bucket of somebody else",
        ..WRITE
    },
    Spec {
        name: "read-only",
        kind: Kind::Flag,
        default: Some("false"),
        aliases: &[same("ro"), Alias { word: "rw", rule: Rule::Opposite }],
        help: "Refuse everything that would change the bucket",
        ..MOUNT
    },
    Spec {
        name: "drain-timeout",
        kind: time(0, 86_400),
        default: Some("25s"),
        help: "How long the end of the mount waits until the bucket has what was written",
        ..MOUNT
    },
    Spec { name: "uid", kind: count(0, u32::MAX as u64 - 1), help: "Owner of all files; default: the mounting user", ..MOUNT },
    Spec { name: "gid", kind: count(0, u32::MAX as u64 - 1), help: "Group of all files; default: the mounting user's", ..MOUNT },
    Spec {
        name: "file-mode",
        kind: Kind::Mode,
        default: Some("0644"),
        ossfs: Some("0640"),
        s3fs: Some("0640"),
        ossfs2: Some("0777"),
        help: "Permission bits of files, before umask",
        ..MOUNT
    },
    Spec {
        name: "dir-mode",
        kind: Kind::Mode,
        default: Some("0755"),
        ossfs: Some("0750"),
        s3fs: Some("0750"),
        ossfs2: Some("0777"),
        help: "Permission bits of directories, before umask",
        ..MOUNT
    },
    Spec { name: "umask", kind: Kind::Mode, default: Some("0000"), help: "Permission bits taken away from both", ..MOUNT },
    Spec {
        name: "root-mode",
        kind: Kind::Mode,
        ossfs: Some("0777"),
        s3fs: Some("0777"),
        aliases: &[Alias { word: "mp_umask", rule: Rule::Unmasked }],
        help: "Permission bits of the mount point, before umask, also where the bucket keeps others; default: those of directories",
        ..MOUNT
    },
    Spec {
        name: "force-uid",
        kind: Kind::Flag,
        default: Some("false"),
        help: "Show uid as the owner of every file, also where the bucket keeps another",
        ..MOUNT
    },
    Spec {
        name: "force-gid",
        kind: Kind::Flag,
        default: Some("false"),
        help: "Show gid as the group of every file, also where the bucket keeps another",
        ..MOUNT
    },
    Spec {
        name: "force-mode",
        kind: Kind::Flag,
        default: Some("false"),
        help: "Show file-mode and dir-mode, less umask, for every file and directory, also where the bucket keeps others",
        ..MOUNT
    },
    Spec {
        name: "on-sigterm",
        kind: Kind::Choice(&["drain", "ignore"]),
        default: Some("drain"),
        help: "What SIGTERM does: drain stores what was written and ends; ignore waits until somebody unmounts",
        ..MOUNT
    },
    Spec { name: "allow-other", kind: Kind::Flag, default: Some("false"), ossfs2: Some("true"), help: "Let other users in", ..MOUNT },
    Spec { name: "allow-root", kind: Kind::Flag, default: Some("false"), help: "Let root in beside the mounting user", ..MOUNT },
    Spec { name: "nonempty", kind: Kind::Flag, default: Some("false"), help: "Mount over a directory that has entries", ..MOUNT },
    Spec { name: "auto-unmount", kind: Kind::Flag, default: Some("false"), help: "Have fusermount3 unmount when the daemon dies", ..MOUNT },
    Spec {
        name: "max-readahead",
        kind: size(ByteSize::bytes(4096), ByteSize::gib(1)),
        default: Some("16MiB"),
        help: "Most read-ahead the kernel is allowed; over a descriptor, as much as whoever mounted gave its bdi up to this",
        ..MOUNT
    },
    Spec {
        name: "fd-socket",
        help: "In place of SOURCE and MOUNTPOINT: the unix socket over which somebody who mounts hands both over; connect:PATH or listen:PATH",
        ..MOUNT
    },
    Spec {
        name: "fd-socket-timeout",
        kind: time(0, 86_400),
        default: Some("60s"),
        help: "How long is waited there for who hands over",
        ..MOUNT
    },
    Spec {
        name: "log-level",
        fixed: None,
        default: Some("info"),
        s3fs: Some("error"),
        ossfs: Some("error"),
        aliases: &[Alias { word: "dbglevel", rule: LEVELS }],
        help: "error, warn, info, debug, trace, or a filter such as windlass::reader=debug,warn",
        ..LOG
    },
    Spec { name: "log-format", kind: Kind::Choice(&["text", "json"]), default: Some("text"), help: "Shape of log lines", ..LOG },
    Spec {
        name: "log-file",
        kind: Kind::Path,
        aliases: &[
            same("logfile"),
            Alias { word: "log_dir", rule: Rule::FileIn("windlass.log") },
            Alias { word: "log_directory", rule: Rule::FileIn("windlass.log") },
        ],
        help: "File to append to, or /dev/log for syslog. Default: stderr in the foreground, syslog as a daemon",
        ..LOG
    },
    Spec {
        name: "metrics-listen",
        aliases: &[Alias { word: "metrics_port", rule: Rule::Unless(&["0"]) }],
        help: "Where /metrics is served to Prometheus, and /healthz and /readyz to probes: ADDRESS:PORT, a port of 127.0.0.1, or unix:PATH",
        ..LOG
    },
    Spec {
        name: "metrics-dir",
        aliases: &[sets("use_metrics", "auto")],
        help: "Directory into which counters are written as the Alibaba Cloud CSI driver reads them; auto: that of this mount below /var/run/ossfs",
        ..LOG
    },
    Spec {
        name: "control-socket",
        kind: Kind::Path,
        help: "Unix socket at which windlass stats and ctl reach the daemon, besides the place that they find by the mount point",
        ..LOG
    },
    Spec {
        name: "foreground",
        kind: Kind::Flag,
        default: Some("false"),
        short: Some('f'),
        help: "Stay attached instead of returning when the mount answers",
        ..LOG
    },
    Spec {
        name: "supervised",
        kind: Kind::Flag,
        default: Some("false"),
        help: "Leave a small process beside the daemon that holds the mount and starts the daemon again when it dies; see windlass upgrade",
        ..LOG
    },
    Spec {
        name: "core-dumps",
        kind: Kind::Flag,
        default: Some("false"),
        help: "Let a crash leave a core dump, and the daemon's own user trace it: both show credentials and data of the bucket",
        ..LOG
    },
    Spec { name: "ready-file", kind: Kind::Path, help: "File that exists while the mount answers", ..LOG },
    Spec {
        name: "error-file",
        kind: Kind::Path,
        help: "File with the last error as a line of JSON: code, reason, message; it goes when the mount answers",
        ..LOG
    },
    Spec {
        name: "termination-log",
        kind: Kind::Path,
        help: "File that gets the last error as text, such as /dev/termination-log in a container",
        ..LOG
    },
];
