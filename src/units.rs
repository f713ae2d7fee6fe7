//! Sizes as people write them: `4MiB`, `8M`, `512k`, `1048576`.
//!
//! Suffixes are powers of 1024 with or without the `i`, because that is what users of every other mount client
//! mean when they write `4M`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes. Displays in the largest unit that divides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl ByteSize {
    /// `n` bytes.
    pub const fn bytes(n: u64) -> Self {
        Self(n)
    }

    /// `n` times 1024 bytes.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` times 1024 KiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` times 1024 MiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The number of bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number of bytes, for lengths in memory.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in UNITS {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a size: write a whole number with an optional K, M, G or T, for example 4MiB")]
pub struct ParseSizeError(String);

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseSizeError(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let number: u64 = trimmed[..digits].parse().map_err(|_| fail())?;
        let unit = match trimmed[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            _ => return Err(fail()),
        };
        number.checked_mul(unit).map(Self).ok_or_else(fail)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(n) => Ok(Self(n)),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("4MiB", 4 << 20), ("4M", 4 << 20), ("8 mb", 8 << 20), ("1g", 1 << 30), ("2TiB", 2 << 40)]
        {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize::bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_says_what_is() {
        for text in ["", "MiB", "-1", "4X", "1.5G", "99999999999999999999", "20000000T"] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains("4MiB"), "{text}: {error}");
        }
    }

    #[test]
    fn a_size_is_shown_in_the_largest_unit_that_divides_it() {
        for (size, text) in
            [(ByteSize::mib(4), "4MiB"), (ByteSize::bytes(1536), "1536"), (ByteSize::gib(3), "3GiB"), (ByteSize::bytes(0), "0")]
        {
            assert_eq!(size.to_string(), text);
        }
    }
}
