//! The configuration file: TOML with the words of the options, or the `--name=value` lines of ossfs2. Reads one file
//! and gives its words as text; what they mean is decided where they are taken.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Error;
use super::table;
use super::value::Kind;

/// A file that was read.
#[derive(Debug)]
pub struct File {
    /// Names and values in their order.
    pub entries: Vec<(String, Option<String>)>,
    /// Nobody but its owner can read it.
    pub private: bool,
}

/// Reads a configuration file.
///
/// # Errors
/// When it cannot be read or is in neither form.
pub fn read(path: &Path) -> Result<File, Error> {
    let fail = |reason: String| Error::File { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let mode = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?.mode();
    let entries = if is_lines(&text) { lines(&text) } else { toml_entries(&text) };
    Ok(File { entries: entries.map_err(fail)?, private: mode & 0o077 == 0 })
}

fn meaningful(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// No TOML begins with two hyphens and a letter.
fn is_lines(text: &str) -> bool {
    meaningful(text).next().is_some_and(|(_, line)| line.starts_with("--"))
}

type Entries = Vec<(String, Option<String>)>;

fn lines(text: &str) -> Result<Entries, String> {
    let entry = |(number, line): (usize, &str)| {
        let word = line.strip_prefix("--").ok_or_else(|| format!("line {}: expected --name=value", number + 1))?;
        Ok(word.split_once('=').map_or((word.trim().to_owned(), None), |(name, value)| {
            (name.trim().to_owned(), Some(value.trim().trim_matches('"').to_owned()))
        }))
    };
    meaningful(text).map(entry).collect()
}

fn toml_entries(text: &str) -> Result<Entries, String> {
    // The message of the parser shows the line; only its first and last lines are needed for one line of ours.
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        format!("line {line}: {}", e.message())
    })?;
    table.into_iter().map(|(name, value)| scalar(&name, value).map(|text| (name, Some(text)))).collect()
}

fn scalar(name: &str, value: toml::Value) -> Result<String, String> {
    match value {
        // A TOML integer has lost the zero in front that would tell octal from decimal.
        toml::Value::Integer(_) if table::find(name).is_some_and(|(spec, _)| spec.kind == Kind::Mode) => {
            Err(format!("{name} is octal: write it as text, for example {name} = \"0644\""))
        }
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(n) => Ok(n.to_string()),
        toml::Value::Boolean(yes) => Ok(yes.to_string()),
        toml::Value::Array(items) => {
            let texts: Result<Vec<_>, _> = items.into_iter().map(|item| scalar(name, item)).collect();
            Ok(texts?.join(","))
        }
        toml::Value::Table(_) => Err(format!("[{name}]: options stand at the top level, without sections")),
        toml::Value::Float(_) | toml::Value::Datetime(_) => Err(format!("{name}: expected a text, a whole number, true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, text: &str) -> (String, Option<String>) {
        (name.to_owned(), Some(text.to_owned()))
    }

    #[test]
    fn both_forms_of_file_give_words() {
        let toml = "chunk-size = \"8MiB\"\nretries = 3 # few\nallow-other = true\n";
        assert_eq!(toml_entries(toml).unwrap().len(), 3);
        assert!(!is_lines(toml));
        let conf = "# comment\n--oss_endpoint=https://oss-cn-hangzhou.aliyuncs.com\n\n--ro\n--oss_bucket = data\n";
        assert!(is_lines(conf));
        let expected =
            vec![entry("oss_endpoint", "https://oss-cn-hangzhou.aliyuncs.com"), ("ro".to_owned(), None), entry("oss_bucket", "data")];
        assert_eq!(lines(conf).unwrap(), expected);
    }

    #[test]
    fn a_broken_file_names_the_line_or_the_word() {
        for (text, named) in [
            ("retries = 3\nchunk-size = \n", "line 2"),
            ("[reader]\nretries = 1", "[reader]"),
            ("umask = 22", "umask = \"0644\""),
            ("retries = 1.5", "retries"),
        ] {
            let error = toml_entries(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(lines("--ro\nallow_other").unwrap_err().contains("line 2"));
    }
}
