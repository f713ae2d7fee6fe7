//! Words that are not options of ours: what mount(8), fstab and systemd put among the options, and options of ossfs
//! and ossfs2 that have nothing to set here. Reads no values. Invariant: a word of this file is never a typo of an
//! option of the table, so it can be taken without a suggestion.

/// Whose command line is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Program {
    /// windlass itself.
    #[default]
    Native,
    /// ossfs, version 1.
    Ossfs,
    /// ossfs, version 2.
    Ossfs2,
}

impl Program {
    /// Its name, where it is not ours.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Native => None,
            Self::Ossfs => Some("ossfs"),
            Self::Ossfs2 => Some("ossfs2"),
        }
    }

    /// The program of this name.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "ossfs" => Some(Self::Ossfs),
            "ossfs2" => Some(Self::Ossfs2),
            _ => None,
        }
    }
}

/// What a word of mount(8) asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountWord {
    /// The kernel keeps it as a flag of the mount.
    Kernel,
    /// Meant for mount(8) or systemd, which have acted on it already.
    Ignored,
    /// Cannot be done to a FUSE mount.
    Remount,
}

/// Flags that the kernel keeps, mount(8) "FILESYSTEM-INDEPENDENT MOUNT OPTIONS".
const KERNEL: [&str; 15] = [
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
const ADMINISTRATIVE: [&str; 16] = [
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

/// What mount(8) means by this word, if it is one of its own.
pub fn mount_word(word: &str) -> Option<MountWord> {
    if KERNEL.contains(&word) {
        Some(MountWord::Kernel)
    } else if word == "remount" {
        Some(MountWord::Remount)
    } else if ADMINISTRATIVE.contains(&word) || word.starts_with("x-") || word.starts_with("X-") {
        Some(MountWord::Ignored)
    } else {
        None
    }
}

/// Why an option of another program changes nothing here.
pub fn without_effect(program: Program, word: &str) -> Option<&'static str> {
    let (own, other): (&[_], &[_]) = match program {
        Program::Native => return None,
        Program::Ossfs => (&OSSFS, &FUSE),
        Program::Ossfs2 => (&OSSFS2, &FUSE),
    };
    own.iter().chain(other).find(|(_, words)| words.contains(&word)).map(|(why, _)| *why)
}

const WRITES: &str = "windlass uploads, copies and renames in its own way";
const ANYWAY: &str = "it is done anyway";
const TUNING: &str = "it tunes the other program";
const CERTIFICATES: &str = "certificates are always checked";
const ATTRIBUTES: &str = "links are always shown, and extended attributes are facts of the store";

type Words = &'static [&'static str];

const OSSFS: [(&str, Words); 6] = [
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
        ],
    ),
    (CERTIFICATES, &["no_check_certificate", "ssl_verify_hostname"]),
    (ATTRIBUTES, &["use_xattr", "noxattr", "symlink_in_meta"]),
    ("objects are shown with the kind their keys say", &["allow_symlink"]),
];

const OSSFS2: [(&str, Words); 5] = [
    (WRITES, &["enable_appendable_object", "rename_dir_enable", "enable_crc64", "sync_upload"]),
    (ANYWAY, &["readdirplus", "close_to_open"]),
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
        ],
    ),
    (CERTIFICATES, &["no_check_certificate"]),
    (ATTRIBUTES, &["enable_symlink", "enable_xattr"]),
];

/// Options of libfuse that users of both copy from one command line to the next.
const FUSE: [(&str, Words); 1] = [(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table;

    #[test]
    fn words_of_fstab_are_told_apart() {
        for (word, means) in [
            ("_netdev", Some(MountWord::Ignored)),
            ("x-systemd.automount", Some(MountWord::Ignored)),
            ("noexec", Some(MountWord::Kernel)),
            ("remount", Some(MountWord::Remount)),
            ("chunk-size", None),
        ] {
            assert_eq!(mount_word(word), means, "{word}");
        }
    }

    #[test]
    fn a_word_without_effect_is_not_at_the_same_time_an_option() {
        let lists = OSSFS.iter().chain(&OSSFS2).chain(&FUSE).flat_map(|(_, words)| words.iter());
        // The kernel's attribute timeout of ossfs and the metadata cache of ossfs2 share a word.
        for word in lists.filter(|word| **word != "attr_timeout").chain(&KERNEL).chain(&ADMINISTRATIVE) {
            assert!(table::find(word).is_none(), "{word}");
        }
    }

    #[test]
    fn natively_nothing_is_silently_without_effect() {
        assert_eq!(without_effect(Program::Native, "curldbg"), None);
        assert!(without_effect(Program::Ossfs, "curldbg").is_some());
    }
}
