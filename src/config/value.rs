//! Kinds of option values: what is accepted, in which range, and how it is written back. Knows no option by name
//! and reads no environment. Invariant: what [`Value::to_toml`] writes, [`Kind::parse`] of the same kind reads back
//! to the same value.

use std::time::Duration;

use crate::started_in;
use crate::units::ByteSize;

/// What `-1` means for a time: longer than any mount, short enough to be added to any clock.
pub const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; the name alone means `true`.
    Flag,
    /// `true`, `false` or `auto`.
    FlagOrAuto,
    /// A whole number.
    Count { min: u64, max: u64, auto: bool },
    /// A number of bytes. A bare number up to `bare_max` counts in MiB, because that is how chunk sizes are spoken of.
    Size { min: ByteSize, max: ByteSize, step: ByteSize, bare_max: u64, auto: bool },
    /// A time; a bare number counts in seconds, `-1` is [`NEVER`] where it is allowed.
    Time { min: Duration, max: Duration, never: bool },
    /// Permission bits, octal.
    Mode,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Anything that is not empty.
    Text,
    /// A path, made absolute because the daemon leaves the directory it was started in.
    Path,
    /// Text that is never shown.
    Secret,
}

/// A parsed value.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    Auto,
    Flag(bool),
    Count(u64),
    Size(ByteSize),
    Time(Duration),
    Mode(u16),
    Text(String),
    Secret(String),
}

impl Kind {
    /// Whether the name alone, without `=value`, says everything.
    pub fn is_flag(self) -> bool {
        matches!(self, Self::Flag | Self::FlagOrAuto)
    }

    /// The word that stands for the value in help texts.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Flag | Self::FlagOrAuto => "BOOL",
            Self::Count { .. } => "N",
            Self::Size { .. } => "SIZE",
            Self::Time { .. } => "TIME",
            Self::Mode => "MODE",
            Self::Choice(_) => "WORD",
            Self::Text | Self::Secret => "TEXT",
            Self::Path => "PATH",
        }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// What would have been accepted, in a few words that follow the option's name.
    pub fn parse(self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        match self {
            Self::Flag => flag(text).map(Value::Flag).ok_or_else(|| "must be true or false".into()),
            Self::FlagOrAuto if text == "auto" => Ok(Value::Auto),
            Self::FlagOrAuto => flag(text).map(Value::Flag).ok_or_else(|| "must be true, false or auto".into()),
            Self::Count { auto: true, .. } | Self::Size { auto: true, .. } if text == "auto" => Ok(Value::Auto),
            Self::Count { .. } => text.parse().ok().filter(|&n| self.has_count(n)).map(Value::Count).ok_or_else(|| self.range()),
            Self::Size { .. } => self.parse_size(text).map(Value::Size),
            Self::Time { .. } => self.parse_time(text).map(Value::Time),
            Self::Mode => mode(text).map(Value::Mode).ok_or_else(|| "must be octal permission bits in 0000..0777, for example 0644".into()),
            Self::Choice(words) if words.contains(&text) => Ok(Value::Text(text.into())),
            Self::Choice(words) => Err(format!("must be one of {}", words.join(", "))),
            _ if text.is_empty() => Err("must not be empty".into()),
            Self::Path => started_in::absolute(text)
                .ok()
                .and_then(|path| path.into_os_string().into_string().ok())
                .map(Value::Text)
                .ok_or_else(|| "is not a path".into()),
            Self::Text => Ok(Value::Text(text.into())),
            Self::Secret => Ok(Value::Secret(text.into())),
        }
    }

    /// What is accepted, in words that follow "must be".
    pub fn range(self) -> String {
        let auto = |yes: bool| if yes { " or auto" } else { "" };
        match self {
            Self::Count { min, max, auto: a } => format!("must be a whole number in {min}..{max}{}", auto(a)),
            Self::Size { min, max, step, auto: a, .. } => {
                let step = if step > ByteSize::bytes(1) { format!(" in steps of {step}") } else { String::new() };
                format!("must be a size in {min}..{max}{step}{}", auto(a))
            }
            Self::Time { min, max, never } => {
                let never = if never { ", or -1 for never" } else { "" };
                format!("must be a time in {}..{}{never}", show_time(min), show_time(max))
            }
            _ => String::new(),
        }
    }

    fn has_count(self, n: u64) -> bool {
        matches!(self, Self::Count { min, max, .. } if (min..=max).contains(&n))
    }

    fn parse_size(self, text: &str) -> Result<ByteSize, String> {
        let Self::Size { min, max, step, bare_max, .. } = self else { unreachable!("only called for sizes") };
        let parsed: ByteSize = text.parse().map_err(|_| self.range())?;
        let bare = text.bytes().all(|b| b.is_ascii_digit()) && parsed.as_u64() <= bare_max;
        let size = if bare { ByteSize::mib(parsed.as_u64()) } else { parsed };
        let whole = size.as_u64().is_multiple_of(step.as_u64());
        if (min..=max).contains(&size) && whole { Ok(size) } else { Err(self.range()) }
    }

    fn parse_time(self, text: &str) -> Result<Duration, String> {
        let Self::Time { min, max, never } = self else { unreachable!("only called for times") };
        if text == "-1" && never {
            return Ok(NEVER);
        }
        time(text).filter(|t| (min..=max).contains(t)).ok_or_else(|| self.range())
    }
}

impl Value {
    /// The value as a TOML literal; secrets are masked.
    pub fn to_toml(&self) -> String {
        match self {
            Self::Flag(yes) => yes.to_string(),
            Self::Count(n) => n.to_string(),
            Self::Secret(_) => "\"********\"".into(),
            other => toml::Value::String(other.plain()).to_string(),
        }
    }

    /// The value as it is written on a command line.
    pub fn plain(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::Flag(yes) => yes.to_string(),
            Self::Count(n) => n.to_string(),
            Self::Size(size) => size.to_string(),
            Self::Time(t) => show_time(*t),
            Self::Mode(bits) => format!("{bits:04o}"),
            Self::Text(text) => text.clone(),
            Self::Secret(_) => "********".into(),
        }
    }
}

/// Not derived: a secret must not reach a log through `{:?}`.
impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.plain())
    }
}

/// `1`, `yes`, `on` and their opposites, as mount options have always been written.
pub fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

fn mode(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    u16::from_str_radix(digits, 8).ok().filter(|&bits| bits <= 0o777 && !digits.starts_with('+'))
}

fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let milliseconds = match text[digits..].trim() {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(milliseconds).map(Duration::from_millis)
}

fn show_time(t: Duration) -> String {
    if t == NEVER {
        return "-1".into();
    }
    if t.subsec_millis() == 0 { format!("{}s", t.as_secs()) } else { format!("{}ms", t.as_millis()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Kind = Kind::Size { min: ByteSize::mib(1), max: ByteSize::mib(32), step: ByteSize::mib(1), bare_max: 1023, auto: false };
    const TTL: Kind = Kind::Time { min: Duration::ZERO, max: Duration::from_secs(86_400), never: true };

    #[test]
    fn a_bare_chunk_size_counts_in_mebibytes_up_to_its_range() {
        for (text, size) in [("1", 1), ("4", 4), ("32", 32), ("4MiB", 4), ("4194304", 4), ("8m", 8)] {
            assert_eq!(CHUNK.parse(text), Ok(Value::Size(ByteSize::mib(size))), "{text}");
        }
        for text in ["0", "33", "512K", "4194305", "33MiB", "-1", "four", ""] {
            let reason = CHUNK.parse(text).unwrap_err();
            assert!(reason.contains("1MiB..32MiB"), "{text}: {reason}");
        }
    }

    #[test]
    fn times_have_units_and_minus_one_is_never_where_it_is_allowed() {
        for (text, ms) in [("60", 60_000), ("60s", 60_000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000), ("0", 0)] {
            assert_eq!(TTL.parse(text), Ok(Value::Time(Duration::from_millis(ms))), "{text}");
        }
        assert_eq!(TTL.parse("-1"), Ok(Value::Time(NEVER)));
        let strict = Kind::Time { min: Duration::from_secs(1), max: Duration::from_secs(9), never: false };
        for text in ["-1", "0", "10s", "1.5", "5 parsecs"] {
            assert!(strict.parse(text).unwrap_err().contains("1s..9s"), "{text}");
        }
    }

    #[test]
    fn modes_are_octal_whatever_their_prefix() {
        for (text, bits) in [("022", 0o22), ("0022", 0o22), ("0o22", 0o22), ("644", 0o644), ("0", 0)] {
            assert_eq!(Kind::Mode.parse(text), Ok(Value::Mode(bits)), "{text}");
        }
        for text in ["8", "1000", "rwx", "", "+22"] {
            assert!(Kind::Mode.parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_secret_is_shown_nowhere() {
        let secret = Kind::Secret.parse("hunter2").unwrap();
        for shown in [secret.plain(), secret.to_toml(), format!("{secret:?}")] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[test]
    fn what_is_shown_reads_back_as_the_same_value() {
        let count = Kind::Count { min: 0, max: 100, auto: true };
        for (kind, text) in [
            (CHUNK, "7"),
            (TTL, "1500ms"),
            (TTL, "-1"),
            (Kind::Mode, "27"),
            (count, "auto"),
            (count, "100"),
            (Kind::Flag, "yes"),
            (Kind::FlagOrAuto, "auto"),
            (Kind::Text, "a \"quoted\" # text"),
        ] {
            let value = kind.parse(text).unwrap();
            assert_eq!(kind.parse(&value.plain()).as_ref(), Ok(&value), "{text}");
            let line: toml::Table = format!("x = {}", value.to_toml()).parse().unwrap();
            let plain = line["x"].as_str().map_or_else(|| line["x"].to_string(), str::to_owned);
            assert_eq!(kind.parse(&plain), Ok(value), "{text}");
        }
    }
}
