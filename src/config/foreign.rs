//! Words that are not options of ours: what mount(8), fstab and systemd put among the options, and options of ossfs,
//! ossfs2 and Mountpoint that have nothing to set here, or ask for what cannot be done. Reads no values. Invariant: a
//! word of this file is never a typo of an option of the table, so it can be taken without a suggestion.

mod words;

use words::{ADMINISTRATIVE, FUSE, KERNEL, MOUNTPOINT, MOUNTPOINT_VALUES, NOT_MOUNTPOINT, NOT_OSS, OSSFS, OSSFS2};

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
    /// Mountpoint for Amazon S3.
    Mountpoint,
}

impl Program {
    /// Its name, where it is not ours.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Native => None,
            Self::Ossfs => Some("ossfs"),
            Self::Ossfs2 => Some("ossfs2"),
            Self::Mountpoint => Some("mount-s3"),
        }
    }

    /// Whether it mounts OSS and nothing else.
    pub fn is_for_oss(self) -> bool {
        matches!(self, Self::Ossfs | Self::Ossfs2)
    }

    /// The program of this name.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "ossfs" => Some(Self::Ossfs),
            "ossfs2" => Some(Self::Ossfs2),
            "mount-s3" | "mountpoint" => Some(Self::Mountpoint),
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
        Program::Mountpoint => (&MOUNTPOINT, &[]),
    };
    // Mountpoint's own spelling has hyphens.
    let plain = word.replace('-', "_");
    own.iter().chain(other).find(|(_, words)| words.contains(&plain.as_str())).map(|(why, _)| *why)
}

/// Whether a word that is no option of ours stands before its value.
pub fn takes_value(program: Program, word: &str) -> bool {
    program == Program::Mountpoint && MOUNTPOINT_VALUES.contains(&word.replace('-', "_").as_str())
}

/// Why what an option of another program asks for cannot be done: to go on without it would be something else.
pub fn refused(program: Program, word: &str) -> Option<&'static str> {
    let list: &[_] = match program {
        Program::Native => return None,
        Program::Ossfs | Program::Ossfs2 => &NOT_OSS,
        Program::Mountpoint => &NOT_MOUNTPOINT,
    };
    let plain = word.replace('-', "_");
    list.iter().find(|(_, words)| words.contains(&plain.as_str())).map(|(why, _)| *why)
}

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
        let lists = OSSFS.iter().chain(&OSSFS2).chain(&FUSE).chain(&MOUNTPOINT).chain(&NOT_OSS).chain(&NOT_MOUNTPOINT);
        let lists = lists.flat_map(|(_, words)| words.iter());
        // The kernel's attribute timeout of ossfs and the metadata cache of ossfs2 share a word, and so do the file of types of ossfs and whether there
        // are types here: what is said as another program is looked for in its list first.
        for word in lists.filter(|word| !["attr_timeout", "mime"].contains(*word)).chain(&KERNEL).chain(&ADMINISTRATIVE) {
            assert!(table::find(word).is_none(), "{word}");
        }
    }

    #[test]
    fn natively_nothing_is_silently_without_effect() {
        assert_eq!(without_effect(Program::Native, "curldbg"), None);
        assert!(without_effect(Program::Ossfs, "curldbg").is_some());
        assert!(without_effect(Program::Mountpoint, "allow-delete").is_some());
        assert!(refused(Program::Native, "dual-stack").is_none() && refused(Program::Mountpoint, "dual-stack").is_some());
    }
}
