//! Words of other programs that set options of windlass, where the table of options gives them no meaning or another one. Holds no values.
//! Invariant: every option that is named here is one of the table.

use crate::config::program::Program;
use crate::config::table::{Rule, Spec, named};

/// What a word of another program sets.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    word: &'static str,
    sets: &'static [(&'static str, Rule)],
    /// The word is a default of the other program for what another word says: it sets only what nothing else has set.
    pub is_weak: bool,
    /// What the word also means there and does not set here, for the log.
    pub note: Option<&'static str>,
}

impl Translation {
    /// The options that the word sets, each with the rule that reads its value. Where the first rule gives no value, none is set.
    pub fn sets(&self) -> impl Iterator<Item = (&'static Spec, Rule)> {
        self.sets.iter().map(|(name, rule)| (named(name), *rule))
    }
}

const ROW: Translation = Translation { word: "", sets: &[], is_weak: false, note: None };

/// s3fs and ossfs, which began as a copy of it. libfuse shows `uid`, `gid` and `umask` for every file, whatever the file system says
/// (lib/fuse.c, set_stat), and of `umask` all that it leaves of 0777.
const S3FS_FAMILY: [Translation; 10] = [
    Translation { word: "endpoint", sets: &[("region", Rule::Same)], ..ROW },
    Translation { word: "uid", sets: &[("uid", Rule::Same), ("force-uid", Rule::Always("true"))], ..ROW },
    Translation { word: "gid", sets: &[("gid", Rule::Same), ("force-gid", Rule::Always("true"))], ..ROW },
    Translation {
        word: "umask",
        sets: &[
            ("umask", Rule::Same),
            ("file-mode", Rule::Always("0777")),
            ("dir-mode", Rule::Always("0777")),
            ("force-mode", Rule::Always("true")),
        ],
        ..ROW
    },
    Translation { word: "tmpdir", sets: &[("spill-dir", Rule::Same)], is_weak: true, ..ROW },
    Translation { word: "parallel_count", sets: &[("upload-concurrency", Rule::Same)], note: Some(READS_CONCURRENCY), ..ROW },
    Translation { word: "parallel_upload", sets: &[("upload-concurrency", Rule::Same)], note: Some(READS_CONCURRENCY), ..ROW },
    Translation { word: "multipart_size", sets: &[("upload-part-size", Rule::Unit("MiB"))], note: Some(READS_SIZE), ..ROW },
    // Counted from the last use there: from the first it is never longer.
    Translation { word: "stat_cache_interval_expire", sets: &[("stat-cache-ttl", Rule::Same)], ..ROW },
    Translation { word: "debug", sets: &[("log-level", Rule::Sets("debug"))], ..ROW },
];

const READS_CONCURRENCY: &str = "it applies to uploads; --prefetch-concurrency sets how many requests read ahead";
const READS_SIZE: &str = "it applies to uploads; --chunk-size sets the size of a read request";

const OSSFS: [Translation; 2] = [
    Translation { word: "ram_role", sets: &[("ram-role", Rule::OrElse("auto"))], ..ROW },
    Translation { word: "enable_direct_read", sets: &[("read-mode", Rule::Sets("direct"))], ..ROW },
];

/// As S3 writes storage classes, which s3fs takes in any case.
const CLASSES: Rule = Rule::Words(&[
    ("standard", "STANDARD"),
    ("standard_ia", "STANDARD_IA"),
    ("onezone_ia", "ONEZONE_IA"),
    ("reduced_redundancy", "REDUCED_REDUNDANCY"),
    ("intelligent_tiering", "INTELLIGENT_TIERING"),
    ("glacier", "GLACIER"),
    ("glacier_ir", "GLACIER_IR"),
    ("deep_archive", "DEEP_ARCHIVE"),
]);

const S3FS: [Translation; 5] = [
    Translation { word: "iam_role", sets: &[("ram-role", Rule::OrElse("auto"))], ..ROW },
    Translation { word: "use_cache", sets: &[("spill-dir", Rule::Unless(&[""])), ("read-mode", Rule::Always("cached"))], ..ROW },
    Translation { word: "storage_class", sets: &[("storage-class", CLASSES)], ..ROW },
    Translation { word: "enable_content_md5", sets: &[("upload-checksum", Rule::Sets("md5"))], ..ROW },
    Translation { word: "use_rrs", sets: &[("storage-class", Rule::Sets("REDUCED_REDUNDANCY"))], ..ROW },
];

const OSSFS2: [Translation; 6] = [
    Translation { word: "f", sets: &[("foreground", Rule::Same)], ..ROW },
    Translation { word: "d", sets: &[("foreground", Rule::Sets("true")), ("log-level", Rule::Always("debug"))], ..ROW },
    Translation { word: "prefetch_chunks", sets: &[("prefetch-chunks", Rule::Words(&[("0", "auto"), ("-1", "auto")]))], ..ROW },
    Translation { word: "disk_data_cache_dir", sets: &[("spill-dir", Rule::Unless(&[""])), ("read-mode", Rule::Always("cached"))], ..ROW },
    Translation { word: "temp_dir", sets: &[("spill-dir", Rule::Unless(&[""]))], is_weak: true, ..ROW },
    Translation { word: "fuse_device_fd", sets: &[("mountpoint", Rule::Behind("/dev/fd/"))], ..ROW },
];

/// The words of `program` that set something else here than the table says.
pub(super) fn of(program: Program) -> impl Iterator<Item = &'static Translation> {
    let (family, own): (&[_], &[_]) = match program {
        Program::Native | Program::Mountpoint => (&[], &[]),
        Program::Ossfs => (&S3FS_FAMILY, &OSSFS),
        Program::Ossfs2 => (&[], &OSSFS2),
        Program::S3fs => (&S3FS_FAMILY, &S3FS),
    };
    family.iter().chain(own)
}

/// What `word` sets as a word of `program`; none: what the table says, if anything.
pub fn translated(program: Program, word: &str) -> Option<&'static Translation> {
    let plain = word.replace('-', "_");
    of(program).find(|translation| translation.word == plain)
}

#[cfg(test)]
impl Translation {
    pub(super) fn word(&self) -> &'static str {
        self.word
    }
}
