//! Collects values from every place they may come from, each under its canonical name with its origin. Decides what
//! a word means, not what the program does with it. Invariant: a value in here was parsed by the kind of its option
//! and lies in its range.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::foreign::{self, Demand, MountWord, Translation};
use super::program::Program;
use super::table::{self, OPTIONS, Rule, Spec};
use super::value::{Kind, Value};
use super::{Error, file, value};
use crate::started_in;
use crate::units::ByteSize;

/// What a person gave us, unread.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Whose command line it is.
    pub program: Program,
    /// Positional arguments: SOURCE and MOUNTPOINT, or one of them where the other is known from elsewhere.
    pub places: Vec<OsString>,
    /// The environment; names that do not begin with `WINDLASS_` are looked up but not checked.
    pub environment: Vec<(String, String)>,
    /// Flags in their order: name and value.
    pub flags: Vec<(String, Option<String>)>,
    /// Arguments of `-o`.
    pub options: Vec<String>,
    /// Unknown words of `-o` are reported instead of refused (mount -s).
    pub sloppy: bool,
}

impl Input {
    /// What is said of an option outside of files, unread: also when something else in here cannot be used.
    pub fn said(&self, name: &str) -> Option<String> {
        let options: Vec<_> = self.options.iter().flat_map(|list| split(list)).collect();
        said(self, &options, name)
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// Default under the name of another program.
    DefaultOf(Program),
    File(PathBuf),
    Environment(String),
    Argument,
    Flag(String),
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::DefaultOf(program) => write!(f, "default of {}", program.name().unwrap_or("windlass")),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Argument => f.write_str("command line"),
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Option(name) => write!(f, "-o {name}"),
        }
    }
}

/// Every value that is set, by canonical name.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Whose defaults they fill up.
    pub program: Program,
    /// Flags for the kernel, in the order given.
    pub mount_flags: Vec<String>,
    /// What went on although it may surprise: one line each, for the log.
    pub notes: Vec<String>,
    set: BTreeMap<&'static str, (Value, Origin)>,
    /// What weak words of another program ask for: it counts where nothing else is said.
    weak: Vec<(&'static str, Value, Origin)>,
}

impl Values {
    /// Reads all places in rising order of precedence.
    ///
    /// # Errors
    /// The first word that is unknown, out of range, not available or not safe where it stands.
    pub fn gather(input: &Input) -> Result<Self, Error> {
        let mut values = Self { program: input.program, ..Self::default() };
        values.defaults();
        let options: Vec<_> = input.options.iter().flat_map(|list| split(list)).collect();
        if let Some(path) = said(input, &options, "config") {
            values.take_file(&started_in::absolute(&path).unwrap_or_else(|_| path.into()))?;
        }
        values.take_environment(&input.environment)?;
        for (name, text) in input.flags.iter().filter(|(name, _)| name != "config") {
            values.take(name, text.as_deref(), Origin::Flag(name.clone()))?;
        }
        for (name, text) in options.iter().filter(|(name, _)| name != "config") {
            match values.take(name, text.as_deref(), Origin::Option(name.clone())) {
                Err(Error::Unknown { .. } | Error::OfAnother { .. }) if input.sloppy => {
                    values.notes.push(format!("unknown option {name} is ignored (-s)"))
                }
                other => other?,
            }
        }
        values.take_places(&input.places)?;
        values.take_weak();
        values.note_what_mountpoint_forbids(input);
        Ok(values)
    }

    /// The value of an option and where it came from.
    pub fn get(&self, name: &str) -> Option<&(Value, Origin)> {
        self.set.get(table::named(name).name)
    }

    /// Where the value of an option came from.
    pub(super) fn origin(&self, name: &str) -> Origin {
        self.get(name).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// That the value of an option cannot be used.
    pub(super) fn refused(&self, word: &str, text: String, reason: String) -> Error {
        Error::Value { word: word.into(), text, reason, origin: self.origin(word) }
    }

    /// Sets a value that something outside the table decided.
    pub(super) fn put(&mut self, name: &str, value: Value, origin: Origin) {
        self.set.insert(table::named(name).name, (value, origin));
    }

    fn defaults(&mut self) {
        for spec in OPTIONS {
            let own = spec.default_of(self.program);
            let origin = if own.is_some() { Origin::DefaultOf(self.program) } else { Origin::Default };
            if let Some(text) = own.or(spec.default) {
                let value = spec.kind.parse(text).expect("a test parses every default of the table");
                self.set.insert(spec.name, (value, origin));
            }
        }
    }

    fn take_file(&mut self, path: &Path) -> Result<(), Error> {
        let file = file::read(path)?;
        for (name, text) in &file.entries {
            let secret = table::find(name).is_some_and(|(spec, _)| spec.is_secret());
            if secret && !file.private {
                return Err(Error::File {
                    path: path.to_owned(),
                    reason: format!("it holds {name} and other users can read it: chmod 600 {}", path.display()),
                });
            }
            self.take(name, text.as_deref(), Origin::File(path.to_owned()))?;
        }
        Ok(())
    }

    /// One place alone is the mount point when a file or the environment has named the source.
    fn take_places(&mut self, places: &[OsString]) -> Result<(), Error> {
        let known = self.get("source").is_some() || self.get("bucket").is_some();
        let names: &[&str] = match places.len() {
            0 => &[],
            1 if known => &["mountpoint"],
            1 => &["source"],
            2 => &["source", "mountpoint"],
            _ => return Err(Error::Surplus(places[2].to_string_lossy().into_owned())),
        };
        for (name, place) in names.iter().zip(places) {
            // ossfs2 is given a descriptor of its mount point together with the directory: --fuse_device_fd.
            if *name == "mountpoint" && matches!(self.origin(name), Origin::Flag(_) | Origin::Option(_)) {
                continue;
            }
            let text = place.to_str().ok_or_else(|| Error::Conflict(format!("{name} {}: its name is not UTF-8", place.display())))?;
            self.take(name, Some(text), Origin::Argument)?;
        }
        Ok(())
    }

    fn take_weak(&mut self) {
        for (name, value, origin) in std::mem::take(&mut self.weak) {
            if matches!(self.origin(name), Origin::Default | Origin::DefaultOf(_)) {
                self.put(name, value, origin);
            }
        }
    }

    /// Mountpoint removes and replaces nothing unless it is told that it may.
    fn note_what_mountpoint_forbids(&mut self, input: &Input) {
        let allows = |word: &str| input.flags.iter().any(|(name, _)| name.replace('_', "-") == word);
        if self.program == Program::Mountpoint && !self.flag("read-only") && !(allows("allow-delete") && allows("allow-overwrite")) {
            self.notes.push(
                "without --allow-delete and --allow-overwrite mount-s3 forbids to remove and to replace files; windlass does not: \
                 mount read-only where nothing may change"
                    .into(),
            );
        }
    }

    /// Names that nobody knows are reported and not refused: Kubernetes puts `WINDLASS_SERVICE_HOST` and the like into
    /// every container of a namespace that has a service of this name.
    fn take_environment(&mut self, environment: &[(String, String)]) -> Result<(), Error> {
        for (name, text) in environment {
            let Some(word) = name.strip_prefix("WINDLASS_") else { continue };
            let injected = word.starts_with("SERVICE_")
                || word.starts_with("PORT")
                || matches!(word, "CONFIG" | "DAEMON_PARENT" | "HANDOVER" | "MEMORY_SHARE" | "STARTED_IN" | "SUPERVISOR");
            if injected || text.is_empty() {
                continue;
            }
            let lower = word.to_ascii_lowercase();
            if OPTIONS.iter().any(|spec| spec.variable() == *name) {
                self.take(&lower, Some(text), Origin::Environment(name.clone()))?;
            } else {
                let meant = table::nearest(&lower, std::iter::empty()).and_then(|near| table::find(&near)).map(|(spec, _)| spec.variable());
                let meant = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
                self.notes.push(format!("environment variable {name} names no option and is ignored{meant}"));
            }
        }
        Ok(())
    }

    /// Takes one word in any spelling.
    fn take(&mut self, word: &str, text: Option<&str>, origin: Origin) -> Result<(), Error> {
        let from_options = matches!(origin, Origin::Option(_));
        match foreign::mount_word(word).filter(|_| from_options) {
            Some(MountWord::Kernel) => {
                self.mount_flags.push(word.to_owned());
                return Ok(());
            }
            Some(MountWord::Ignored) => return Ok(()),
            Some(MountWord::Remount) => return Err(Error::Remount),
            None => {}
        }
        if let Some(translation) = foreign::translated(self.program, word) {
            return self.translate(translation, word, text, &origin);
        }
        if let Some(why) = foreign::without_effect(self.program, word) {
            self.notes.push(format!("option {word} has no effect: {why}"));
            return Ok(());
        }
        match foreign::demand(self.program, word, text) {
            Some(Demand::Nothing) => return Ok(()),
            Some(Demand::Impossible(why)) => return Err(Error::Refused { word: word.to_owned(), why }),
            None => {}
        }
        let Some((spec, rule)) = table::find(word) else {
            return Err(match foreign::program_with(word).filter(|_| self.program == Program::Native) {
                Some(program) => Error::OfAnother { word: word.to_owned(), origin, program },
                None => Error::Unknown { word: word.to_owned(), origin, nearest: table::nearest(word, foreign::words(self.program)) },
            });
        };
        self.check_secret(spec, word, &origin)?;
        if let Some(value) = read(spec, rule, word, text, &origin)? {
            self.set.insert(spec.name, (value, origin));
        }
        Ok(())
    }

    /// Takes a word of another program that sets options of ours.
    fn translate(&mut self, translation: &Translation, word: &str, text: Option<&str>, origin: &Origin) -> Result<(), Error> {
        for (spec, rule) in translation.sets() {
            let Some(value) = read(spec, rule, word, text, origin)? else { return Ok(()) };
            if translation.is_weak {
                self.weak.push((spec.name, value, origin.clone()));
            } else {
                self.set.insert(spec.name, (value, origin.clone()));
            }
        }
        self.notes.extend(translation.note.map(|note| format!("option {word}: {note}")));
        Ok(())
    }

    /// Everybody on the machine can read a command line.
    fn check_secret(&mut self, spec: &Spec, word: &str, origin: &Origin) -> Result<(), Error> {
        if !spec.is_secret() || !matches!(origin, Origin::Flag(_) | Origin::Option(_)) {
            return Ok(());
        }
        if self.program == Program::Native {
            return Err(Error::SecretOnCommandLine { word: word.to_owned() });
        }
        self.notes.push(format!("{word} on the command line can be read by every user of this machine: put it into a file with mode 600"));
        Ok(())
    }
}

/// Typed access for the code that fills the layers' options. The kind of each option is fixed in the table and every
/// accessor is reached by a test, so a mismatch cannot survive the tests.
impl Values {
    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some((Value::Flag(true), _)))
    }

    pub(super) fn flag_or_auto(&self, name: &str) -> Option<bool> {
        self.get(name).and_then(|(value, _)| if let Value::Flag(yes) = value { Some(*yes) } else { None })
    }

    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(|(value, _)| if let Value::Count(n) = value { Some(*n) } else { None })
    }

    pub(super) fn size(&self, name: &str) -> Option<ByteSize> {
        self.get(name).and_then(|(value, _)| if let Value::Size(size) = value { Some(*size) } else { None })
    }

    pub(super) fn time(&self, name: &str) -> Duration {
        match self.get(name) {
            Some((Value::Time(t), _)) => *t,
            _ => unreachable!("every time has a default"),
        }
    }

    pub(super) fn mode(&self, name: &str) -> u16 {
        self.mode_if_set(name).expect("every other mode has a default")
    }

    pub(super) fn mode_if_set(&self, name: &str) -> Option<u16> {
        self.get(name).and_then(|(value, _)| if let Value::Mode(bits) = value { Some(*bits) } else { None })
    }

    /// Text, a path or a secret.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(|(value, _)| if let Value::Text(t) | Value::Secret(t) = value { Some(t.clone()) } else { None })
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }
}

/// The value that `text` behind `word` is for the option `spec`; none: it sets nothing.
fn read(spec: &Spec, rule: Rule, word: &str, text: Option<&str>, origin: &Origin) -> Result<Option<Value>, Error> {
    let Some(said) = apply(rule, spec, text).map_err(|reason| refused(word, text, reason, origin, spec))? else { return Ok(None) };
    spec.kind.parse(&said).map(Some).map_err(|reason| refused(word, Some(&said), reason, origin, spec))
}

fn refused(word: &str, text: Option<&str>, reason: String, origin: &Origin, spec: &Spec) -> Error {
    let shown = if spec.is_secret() { "********" } else { text.unwrap_or("") };
    Error::Value { word: word.to_owned(), text: shown.to_owned(), reason, origin: origin.clone() }
}

/// What the value of an alias is in the words of the option; none: it changes nothing.
pub(super) fn apply(rule: Rule, spec: &Spec, text: Option<&str>) -> Result<Option<String>, String> {
    let switch = || text.map_or(Some(true), value::flag).ok_or_else(|| "must be true or false".to_owned());
    let needed = || text.ok_or_else(|| "needs a value".to_owned());
    Ok(match rule {
        Rule::Same if spec.kind.is_flag() => Some(text.unwrap_or("true").to_owned()),
        Rule::Same => Some(needed()?.to_owned()),
        Rule::Unit(unit) => {
            let text = needed()?.trim();
            let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            Some(if bare { format!("{text}{unit}") } else { text.to_owned() })
        }
        Rule::Sets(value) => switch()?.then(|| value.to_owned()),
        Rule::Opposite => Some((!switch()?).to_string()),
        Rule::Words(words) => {
            let text = needed()?;
            Some(words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map_or(text, |(_, ours)| ours).to_owned())
        }
        Rule::FileIn(_) if matches!(text, Some("/dev/stdout" | "/dev/stderr")) => text.map(str::to_owned),
        // A word of ossfs2 for the log of the system.
        Rule::FileIn(_) if text == Some("syslog") => Some("/dev/log".to_owned()),
        Rule::FileIn(name) => Some(format!("{}/{name}", needed()?.trim_end_matches('/'))),
        Rule::OrElse(value) => Some(text.unwrap_or(value).to_owned()),
        Rule::Unless(values) => Some(needed()?).filter(|text| !values.contains(text)).map(str::to_owned),
        Rule::Always(value) => Some(value.to_owned()),
        Rule::Behind(start) => Some(format!("{start}{}", needed()?)),
        Rule::Unmasked => {
            let Value::Mode(masked) = Kind::Mode.parse(needed()?)? else { unreachable!("the kind parses modes") };
            Some(format!("{:04o}", 0o777 & !masked))
        }
    })
}

/// Takes `name[=value],name[=value]` apart; a comma in a value is written `\,` as in fstab.
pub fn split(list: &str) -> Vec<(String, Option<String>)> {
    let mut words = vec![String::new()];
    let mut characters = list.chars();
    while let Some(c) = characters.next() {
        let word = words.last_mut().expect("it starts with one and only grows");
        match c {
            ',' => words.push(String::new()),
            '\\' => word.push(characters.next().unwrap_or('\\')),
            _ => word.push(c),
        }
    }
    let named = words.iter().map(|word| word.trim()).filter(|word| !word.is_empty());
    named.map(|word| word.split_once('=').map_or((word.into(), None), |(n, v)| (n.trim().into(), Some(v.to_owned())))).collect()
}

/// What the places that outrank the file say of an option: the file itself must be known before they are read.
fn said(input: &Input, options: &[(String, Option<String>)], name: &str) -> Option<String> {
    let named = |list: &[(String, Option<String>)]| {
        list.iter().rev().find(|(word, _)| word.replace('_', "-") == name).and_then(|(_, text)| text.clone())
    };
    let wanted = format!("WINDLASS_{}", name.replace('-', "_").to_ascii_uppercase());
    let variable = || input.environment.iter().find(|(name, text)| *name == wanted && !text.is_empty());
    named(options).or_else(|| named(&input.flags)).or_else(|| variable().map(|(_, text)| text.clone()))
}
