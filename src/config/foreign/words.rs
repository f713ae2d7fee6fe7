//! The words themselves, by whose they are and why they set nothing here. Invariant: a list says one thing of all its words.

/// Flags that the kernel keeps, mount(8) "FILESYSTEM-INDEPENDENT MOUNT OPTIONS".
pub(super) const KERNEL: [&str; 15] = [
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "sync",
    "async",
];

/// Words whose effect is over before the file system is asked.
pub(super) const ADMINISTRATIVE: [&str; 16] = [
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "defaults",
    "_netdev",
    "_rnetdev",
    "silent",
    "loud",
    "nostrictatime",
    "dirsync",
    "comment",
];

const WRITES: &str = "windlass uploads, copies and renames in its own way";
const ANYWAY: &str = "it is done anyway";
const TUNING: &str = "it tunes the other program";
const CERTIFICATES: &str = "certificates are always checked: SSL_CERT_FILE names those to trust";
const ATTRIBUTES: &str = "links are always shown, and extended attributes are kept with mode and owner";
const FILES: &str = "reads and writes are not counted file by file";
const DIRECTORIES: &str = "a directory is a key that ends in a slash, or a prefix of other keys";
const CACHE_STAYS: &str = "cached data stays on the disk for the next mount: windlass evict removes it";
const TYPES: &str = "content types come from file name extensions: --content-type EXT=TYPE adds more";
const METADATA_SERVICE: &str = "the version of the metadata service is detected";
const SOCKET: &str = "windlass stats and ctl always reach a mount at its control socket";

type Words = &'static [&'static str];

/// Words that s3fs and ossfs share.
pub(super) const S3FS_FAMILY: [(&str, Words); 8] = [
    (
        WRITES,
        &[
            "nomultipart",
            "nocopyapi",
            "norenameapi",
            "singlepart_copy_limit",
            "max_dirty_data",
            "fake_diskfree",
            "update_parent_dir_stat",
            "multipart_copy_size",
            "multipart_threshold",
            "nomixupload",
            "enable_unsigned_payload",
            "streamupload",
        ],
    ),
    (ANYWAY, &["listobjectsv2", "use_session_token"]),
    (
        TUNING,
        &[
            "multireq_max",
            "max_thread_count",
            "list_object_max_keys",
            "nodnscache",
            "nosscache",
            "curldbg",
            "instance_name",
            "bucket_size",
            "cipher_suites",
            "set_check_cache_sigusr1",
            "check_cache_dir_exist",
            "complement_stat",
            "use_wtf8",
            "attr_timeout",
            "entry_timeout",
            "no_time_stamp_msg",
            "noua",
            "noxmlns",
        ],
    ),
    (DIRECTORIES, &["notsup_compat_dir", "compat_dir"]),
    (CACHE_STAYS, &["del_cache"]),
    (TYPES, &["mime"]),
    (CERTIFICATES, &["no_check_certificate", "ssl_verify_hostname"]),
    (ATTRIBUTES, &["use_xattr", "noxattr"]),
];

pub(super) const OSSFS: [(&str, Words); 6] = [
    (WRITES, &["enable_content_md5", "noshallowcopyapi", "use_rrs", "fd_page_size"]),
    (
        TUNING,
        &[
            "readdir_check_size",
            "max_stat_cache_expire",
            "set_appname",
            "simulate_mtime_ns_with_crc64",
            "direct_read_prefetch_size_mb",
            "skip_clean_statcache_on_ro_flush",
        ],
    ),
    (FILES, &["metrics_top"]),
    (METADATA_SERVICE, &["disable_imdsv2"]),
    (ATTRIBUTES, &["symlink_in_meta"]),
    ("objects are shown with the kind their keys say", &["allow_symlink"]),
];

pub(super) const S3FS: [(&str, Words); 3] = [
    ("credentials of a container are requested without it, after those of the environment and the profile files", &["ecs"]),
    ("requests to the metadata service carry a token (IMDSv2), which every EC2 instance accepts", &["imdsv1only"]),
    ("addresses of both families are tried", &["ipresolve"]),
];

pub(super) const OSSFS2: [(&str, Words); 9] = [
    (
        WRITES,
        &[
            "enable_appendable_object",
            "appendable_object_autoswitch_threshold",
            "rename_dir_enable",
            "allow_rename_dir",
            "enable_crc64",
            "sync_upload",
            "ignore_fsync",
            "upload_copy_concurrency",
            "rename_dir_concurrency",
            "set_mime_for_rename_dst",
            "random_write_chunk_size",
            "random_write_max_file_size",
        ],
    ),
    (ANYWAY, &["use_list_obj_v2"]),
    (FILES, &["metrics_top"]),
    (
        TUNING,
        &[
            "readdirplus",
            "prefetch_concurrency_per_file",
            "bind_cpus",
            "log_file_max_size",
            "log_file_max_count",
            "max_inode_cache_count",
            "inode_cache_eviction_threshold",
            "inode_cache_eviction_interval_ms",
            "oss_negative_cache_timeout",
            "oss_negative_cache_size",
            "memory_data_cache_size",
            "readdir_remember_count",
            "set_appname",
            "cache_type",
            "use_uring",
            "ioengine",
            "fuse_threads",
            "total_rw_mem_ratio",
            "seq_read_detect_count",
            "fuse_attr_timeout",
            "fuse_entry_timeout",
            "kernel_readdir_cache_timeout",
            "min_reserved_buffer_size_per_file",
            "oss_vcpu_count",
            "max_list_ret_count",
            "use_auth_cache",
            "enable_transmission_control",
            "tc_max_latency_threshold_us",
            "enable_photon_logs",
            "allow_mark_dir_stale_recursively",
            "skip_trim_options",
            "enable_test_signal_handler",
            "disk_data_cache_io_engine",
            "share_fd_read_buffer",
            "cache_refill_unit",
            "cache_block_size",
        ],
    ),
    (CERTIFICATES, &["no_check_certificate"]),
    (ATTRIBUTES, &["enable_symlink", "enable_xattr"]),
    ("addresses of both families are tried", &["enable_ipv6"]),
    ("keys are looked up again before they expire, and when their file changes", &["credential_refresh_interval"]),
    (SOCKET, &["enable_admin_server"]),
];

/// What mount-s3 --help lists and has no counterpart here.
pub(super) const MOUNTPOINT: [(&str, Words); 5] = [
    ("the name of a bucket tells its type", &["bucket_type"]),
    (WRITES, &["incremental_upload", "upload_checksums"]),
    ("files can be removed and replaced anyway, unless it is mounted read-only", &["allow_delete", "allow_overwrite"]),
    (
        TUNING,
        &[
            "maximum_throughput_gbps",
            "max_threads",
            "read_part_size",
            "cache_block_size",
            "debug_crt",
            "user_agent_prefix",
            "aws_max_attempts",
        ],
    ),
    ("metrics are served at --metrics-listen", &["log_metrics", "otlp_endpoint", "otlp_export_interval"]),
];

/// Those of mount-s3 that have a value and are no options of ours.
pub(super) const MOUNTPOINT_VALUES: [&str; 13] = [
    "cache",
    "upload_checksums",
    "maximum_throughput_gbps",
    "max_threads",
    "read_part_size",
    "cache_block_size",
    "user_agent_prefix",
    "aws_max_attempts",
    "otlp_endpoint",
    "otlp_export_interval",
    "expected_bucket_owner",
    "bucket_type",
    "cache_xz",
];

/// A reason to refuse words, values of theirs that ask for nothing, and the words.
pub(super) type Refusal = (&'static str, Words, Words);

const PROXY: &str = "set the variable HTTPS_PROXY instead";

/// What s3fs and ossfs do and windlass does not.
pub(super) const NOT_S3FS_FAMILY: [Refusal; 5] = [
    ("write the path behind the host: url=https://HOST/PATH", &["/", ""], &["servicepath"]),
    ("libraries of credentials are not loaded: use --credential-process, a command that prints them", &[], &["credlib", "credlib_opts"]),
    ("keys belong in a file that only you can read: passwd_file=FILE", &[], &["accessKeyId", "secretAccessKey"]),
    ("objects encrypted with keys of the client (SSE-C) can be neither read nor written", &[], &["load_sse_c"]),
    ("headers are not set by file name: --content-type EXT=TYPE sets content types", &[""], &["ahbe_conf"]),
];

/// What s3fs does besides.
pub(super) const NOT_S3FS: [Refusal; 4] = [
    ("requests to S3 are signed with version 4", &[], &["sigv2"]),
    ("the identity service of IBM is not supported: use HMAC keys in passwd_file=FILE", &[], &["ibm_iam_auth", "ibm_iam_endpoint"]),
    (PROXY, &[""], &["proxy", "proxy_cred_file"]),
    ("certificates of the client are not sent", &[""], &["ssl_client_cert"]),
];

/// What ossfs does besides.
pub(super) const NOT_OSSFS: [Refusal; 2] = [
    ("signatures of a CloudBox are not supported", &[""], &["cloudbox_id"]),
    (
        "bandwidth per connection cannot be limited: --prefetch-concurrency and --upload-concurrency set the number of connections",
        &["0"],
        &["upload_traffic_limit", "download_traffic_limit"],
    ),
];

/// What ossfs and ossfs2 of the Alibaba driver do and windlass does not.
pub(super) const NOT_OSS: [Refusal; 2] = [
    ("windlass makes no bucket: make it before it is mounted", &[], &["auto_create_bucket", "agentic_bucket"]),
    (
        "the identity of an agent is not understood: use a RAM role, RRSA or a directory of tokens",
        &[],
        &["agent_identity_endpoint", "agent_identity_token_file", "agent_identity_cred_provider", "agent_identity_ca_file"],
    ),
];

/// What ossfs2 does besides.
pub(super) const NOT_OSSFS2: [Refusal; 3] = [
    (PROXY, &[""], &["http_proxy"]),
    ("name the address together with the port: metrics_port=ADDRESS:PORT", &["127.0.0.1", "localhost"], &["metrics_ip"]),
    ("a second start does not take over the mount of the first: --supervised restarts a daemon that died", &[""], &["runtime_state_dir"]),
];

/// What Mountpoint does and windlass does not.
pub(super) const NOT_MOUNTPOINT: [Refusal; 2] = [
    ("whose bucket it is is not looked at: leave it out, or use a policy of the bucket", &[], &["expected_bucket_owner"]),
    ("there is no cache in a bucket: --spill-dir keeps one on a disk", &[], &["cache_xz"]),
];

/// Options of libfuse that users of both copy from one command line to the next.
pub(super) const FUSE: [(&str, Words); 1] = [(
    "the kernel and windlass agree on it by themselves",
    &[
        "big_writes",
        "kernel_cache",
        "auto_cache",
        "no_auto_cache",
        "max_read",
        "max_write",
        "max_background",
        "congestion_threshold",
        "async_read",
        "sync_read",
        "direct_io",
        "default_permissions",
        "fsname",
        "subtype",
        "large_read",
        "intr",
        "hard_remove",
        "use_ino",
        "readdir_ino",
        "noforget",
        "ac_attr_timeout",
        "splice_read",
        "splice_write",
        "splice_move",
        "atomic_o_trunc",
        "max_idle_threads",
        "clone_fd",
        "debug",
    ],
)];
