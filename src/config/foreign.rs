//! Words that are not options of windlass: what mount(8), fstab and systemd put among the options, and options of ossfs, ossfs2, s3fs and
//! Mountpoint that set options of ours, have nothing to set here, or ask for what cannot be done. Invariant: a word without effect is never a
//! typo of an option of the table, so it can be taken without a suggestion.

mod translated;
mod words;

pub use translated::{Translation, translated};
use words::{
    ADMINISTRATIVE, FUSE, KERNEL, MOUNTPOINT, MOUNTPOINT_VALUES, NOT_MOUNTPOINT, NOT_OSS, NOT_OSSFS, NOT_OSSFS2, NOT_S3FS, NOT_S3FS_FAMILY,
    OSSFS, OSSFS2, Refusal, S3FS, S3FS_FAMILY,
};

use super::program::Program;
use super::{table, value};

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

type Reasons = &'static [(&'static str, &'static [&'static str])];

fn reasons(program: Program) -> [Reasons; 2] {
    match program {
        Program::Native => [&[], &[]],
        Program::Ossfs => [&S3FS_FAMILY, &OSSFS],
        Program::Ossfs2 => [&OSSFS2, &[]],
        Program::S3fs => [&S3FS_FAMILY, &S3FS],
        Program::Mountpoint => [&MOUNTPOINT, &[]],
    }
}

fn refusals(program: Program) -> [&'static [Refusal]; 3] {
    match program {
        Program::Native => [&[], &[], &[]],
        Program::Ossfs => [&NOT_S3FS_FAMILY, &NOT_OSSFS, &NOT_OSS],
        Program::Ossfs2 => [&NOT_OSSFS2, &NOT_OSS, &[]],
        Program::S3fs => [&NOT_S3FS_FAMILY, &NOT_S3FS, &[]],
        Program::Mountpoint => [&NOT_MOUNTPOINT, &[], &[]],
    }
}

/// Why an option of another program changes nothing here.
pub fn without_effect(program: Program, word: &str) -> Option<&'static str> {
    let of_fuse = || FUSE.iter().find(|(_, words)| words.contains(&word)).map(|(why, _)| *why);
    let uses_libfuse = !matches!(program, Program::Native | Program::Mountpoint);
    own_without_effect(program, word).or_else(|| if uses_libfuse { of_fuse() } else { None })
}

fn own_without_effect(program: Program, word: &str) -> Option<&'static str> {
    // Mountpoint's own spelling has hyphens.
    let plain = word.replace('-', "_");
    let mut rows = reasons(program).into_iter().flatten();
    rows.find(|(_, words)| words.contains(&plain.as_str())).map(|(why, _)| *why)
}

/// Whether `word` on the command line of `program` is followed by its value when there is no `=`.
pub fn takes_value(program: Program, word: &str) -> bool {
    if let Some(translation) = translated(program, word) {
        return translation.sets().next().is_some_and(|(spec, rule)| !rule.is_switch(spec));
    }
    match table::find(word) {
        Some((spec, rule)) => !rule.is_switch(spec),
        None => program == Program::Mountpoint && MOUNTPOINT_VALUES.contains(&word.replace('-', "_").as_str()),
    }
}

/// What an option of another program that windlass cannot do asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Nothing: its value is how that program says that it is off.
    Nothing,
    /// What cannot be done, for this reason: to go on without it would be something else.
    Impossible(&'static str),
}

/// What `word` with the value `text` asks for, where it is an option of `program` that windlass cannot do.
pub fn demand(program: Program, word: &str, text: Option<&str>) -> Option<Demand> {
    let (why, off, _) = refusal(program, word)?;
    // `auto_create_bucket=false` asks for nothing.
    let is_off = text.is_some_and(|text| off.contains(&text) || value::flag(text) == Some(false));
    Some(if is_off { Demand::Nothing } else { Demand::Impossible(why) })
}

/// Options of `program` that change nothing here, in its words with underscores.
pub fn words(program: Program) -> impl Iterator<Item = &'static str> {
    reasons(program).into_iter().flatten().flat_map(|(_, words)| words.iter().copied())
}

/// Another program that has an option of this name, and windlass has none.
pub fn program_with(word: &str) -> Option<Program> {
    [Program::S3fs, Program::Ossfs, Program::Ossfs2, Program::Mountpoint].into_iter().find(|program| {
        translated(*program, word).is_some() || own_without_effect(*program, word).is_some() || refusal(*program, word).is_some()
    })
}

fn refusal(program: Program, word: &str) -> Option<&'static Refusal> {
    let plain = word.replace('-', "_");
    refusals(program).into_iter().flatten().find(|(_, _, words)| words.contains(&plain.as_str()))
}

#[cfg(test)]
mod tests;
