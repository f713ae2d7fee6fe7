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
const CERTIFICATES: &str = "certificates are always checked";
const ATTRIBUTES: &str = "links are always shown, and extended attributes are kept with mode and owner";
const FILES: &str = "reads and writes are not counted file by file";

type Words = &'static [&'static str];

pub(super) const OSSFS: [(&str, Words); 7] = [
    (
        WRITES,
        &[
            "nomultipart",
            "enable_content_md5",
            "nocopyapi",
            "norenameapi",
            "noshallowcopyapi",
            "singlepart_copy_limit",
            "use_rrs",
            "ahbe_conf",
            "max_dirty_data",
            "mime",
            "fake_diskfree",
            "update_parent_dir_stat",
            "load_sse_c",
            "fd_page_size",
            "multipart_copy_size",
            "multipart_threshold",
            "nomixupload",
            "enable_unsigned_payload",
        ],
    ),
    (ANYWAY, &["listobjectsv2", "use_session_token", "noxmlns", "enable_direct_read", "check_cache_dir_exist", "notsup_compat_dir"]),
    (
        TUNING,
        &[
            "multireq_max",
            "list_object_max_keys",
            "nodnscache",
            "nosscache",
            "curldbg",
            "instance_name",
            "bucket_size",
            "cipher_suites",
            "del_cache",
            "set_check_cache_sigusr1",
            "readdir_check_size",
            "complement_stat",
            "use_wtf8",
            "attr_timeout",
            "entry_timeout",
            "max_stat_cache_expire",
            "no_time_stamp_msg",
            "set_appname",
            "stat_cache_interval_expire",
            "simulate_mtime_ns_with_crc64",
            "direct_read_prefetch_size_mb",
            "mp_umask",
            "noua",
            "skip_clean_statcache_on_ro_flush",
        ],
    ),
    (FILES, &["metrics_top"]),
    (CERTIFICATES, &["no_check_certificate", "ssl_verify_hostname"]),
    (ATTRIBUTES, &["use_xattr", "noxattr", "symlink_in_meta"]),
    ("objects are shown with the kind their keys say", &["allow_symlink"]),
];

pub(super) const OSSFS2: [(&str, Words); 6] = [
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
        ],
    ),
    (ANYWAY, &["readdirplus", "use_list_obj_v2"]),
    (FILES, &["metrics_top"]),
    (
        TUNING,
        &[
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
        ],
    ),
    (CERTIFICATES, &["no_check_certificate"]),
    (ATTRIBUTES, &["enable_symlink", "enable_xattr"]),
];

/// What mount-s3 --help lists and has no counterpart here.
pub(super) const MOUNTPOINT: [(&str, Words); 4] = [
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
pub(super) const MOUNTPOINT_VALUES: [&str; 14] = [
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
    "ca_bundle",
];

/// What ossfs and ossfs2 of the Alibaba driver do and windlass does not.
pub(super) const NOT_OSS: [(&str, Words); 3] = [
    ("windlass makes no bucket: make it before it is mounted", &["auto_create_bucket", "agentic_bucket"]),
    (
        "the identity of an agent is not understood: use a RAM role, RRSA or a directory of tokens",
        &["agent_identity_endpoint", "agent_identity_token_file", "agent_identity_cred_provider", "agent_identity_ca_file"],
    ),
    ("set the variable HTTPS_PROXY instead", &["http_proxy"]),
];

/// What Mountpoint does and windlass does not.
pub(super) const NOT_MOUNTPOINT: [(&str, Words); 5] = [
    ("name the endpoint instead, for example --endpoint-url https://s3.dualstack.eu-central-1.amazonaws.com", &["dual_stack"]),
    ("name the accelerator instead: --read-endpoint https://s3-accelerate.amazonaws.com", &["transfer_acceleration"]),
    ("whose bucket it is is not looked at: leave it out, or use a policy of the bucket", &["expected_bucket_owner"]),
    ("buckets of S3 Express One Zone are not understood", &["bucket_type", "cache_xz"]),
    ("certificates are looked up where the system has them: name another place by SSL_CERT_FILE", &["ca_bundle"]),
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
