//! The options of the table as flags of clap. Names no option. Invariant: a flag is the option of the same name, its
//! text is parsed where all texts are.

use std::ffi::OsString;
use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::mount;
use crate::config::{Input, OPTIONS, Spec};

/// Flags that were given, with their text.
#[derive(Clone, Debug, Default)]
pub struct TableFlags(pub Vec<(String, Option<String>)>);

impl clap::Args for TableFlags {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().filter(|spec| spec.has_flag).fold(command, |command, spec| command.arg(flag(spec)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for TableFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for spec in OPTIONS.iter().filter(|spec| spec.has_flag) {
            if let Some(text) = matches.get_one::<String>(spec.name) {
                self.0.push((spec.name.to_owned(), Some(text.clone())));
            }
        }
        Ok(())
    }
}

/// The same, but only those that `C` takes.
#[derive(Clone, Debug, Default)]
pub struct SomeFlags<C>(pub Vec<(String, Option<String>)>, PhantomData<C>);

/// Which options of the table a command has.
pub trait Choice {
    fn takes(spec: &Spec) -> bool;
}

/// What it takes to reach a bucket.
pub type StoreFlags = SomeFlags<Store>;

/// What it takes to read a bucket through a disk.
pub type DiskFlags = SomeFlags<StoreAndDisk>;

/// What it takes to reach a bucket and the disk beside a mount of it.
pub type PlaceFlags = SomeFlags<StoreAndDirectory>;

#[derive(Clone, Copy, Debug, Default)]
pub struct Store;

#[derive(Clone, Copy, Debug, Default)]
pub struct StoreAndDirectory;

#[derive(Clone, Copy, Debug, Default)]
pub struct StoreAndDisk;

impl Choice for Store {
    fn takes(spec: &Spec) -> bool {
        ["Bucket", "Credentials", "Requests"].contains(&spec.group)
    }
}

impl Choice for StoreAndDirectory {
    fn takes(spec: &Spec) -> bool {
        Store::takes(spec) || spec.name == "spill-dir"
    }
}

impl Choice for StoreAndDisk {
    fn takes(spec: &Spec) -> bool {
        // How much of what is read stays there, and what lies behind a reader, is not for who brings all of it.
        let is_of_mounts = ["read-mode", "hybrid-threshold", "backward-chunks"].contains(&spec.name);
        Store::takes(spec) || ["Reading", "Disk"].contains(&spec.group) && !is_of_mounts
    }
}

impl<C: Choice> SomeFlags<C> {
    fn specs() -> impl Iterator<Item = &'static Spec> {
        OPTIONS.iter().filter(|spec| spec.has_flag && C::takes(spec))
    }

    /// All that was given, with the file that was named, the places and the environment of this process.
    pub fn input(&self, config: Option<&str>, places: Vec<OsString>) -> Input {
        let config = config.map(|path| ("config".to_owned(), Some(path.to_owned())));
        Input { places, environment: mount::environment(), flags: self.0.iter().cloned().chain(config).collect(), ..Input::default() }
    }
}

impl<C: Choice> clap::Args for SomeFlags<C> {
    fn augment_args(command: Command) -> Command {
        Self::specs().fold(command, |command, spec| command.arg(flag(spec)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: Choice> FromArgMatches for SomeFlags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = Self::specs().filter_map(|spec| Some((spec.name.to_owned(), Some(matches.get_one::<String>(spec.name)?.clone()))));
        Ok(Self(given.collect(), PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

fn flag(spec: &'static Spec) -> Arg {
    let default = spec.default.map_or_else(String::new, |text| format!(" [default: {text}]"));
    let arg = Arg::new(spec.name)
        .long(spec.name)
        .value_name(spec.kind.placeholder())
        .help(format!("{}{default}", spec.help))
        .help_heading(spec.group)
        .action(ArgAction::Set)
        .allow_negative_numbers(true);
    let arg = if let Some(letter) = spec.short { arg.short(letter) } else { arg };
    // Without `=` a flag would swallow the SOURCE that follows it.
    if spec.kind.is_flag() { arg.num_args(0..=1).require_equals(true).default_missing_value("true") } else { arg }
}
