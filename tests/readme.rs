//! README.md is held true: what it says of options, defaults, flags, commands, paths and exit codes is compared with the
//! program. It mounts nothing. Invariant: a claim is found by its form, so each test says how many it must have found.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use windlass::config::{OPTIONS, Spec, find};
use windlass::metrics::{self, Row};
use windlass::mount;
use windlass::store::{self, AUTO, ErrorKind, Key, Location, Op, PROVIDERS, Quirks, Support};

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("README.md is part of the sources")
}

/// The text below a heading of the second level, up to the next one.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("there is no section {heading}"));
    rest.split("\n## ").next().unwrap_or(rest)
}

/// The cells of the tables in a text, without headings and rules.
fn rows(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| {
        line.trim_matches('|').replace("\\|", "\u{0}").split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect::<Vec<_>>()
    };
    lines.map(cells).filter(|row| !row[0].starts_with("---")).skip(1).collect()
}

/// What stands in backquotes, outside of blocks.
fn quoted(text: &str) -> Vec<String> {
    let outside: String = text.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    outside.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The lines of ```sh blocks.
fn shell(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest));
    blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn row_of(spec: &Spec) -> [String; 4] {
    let name = if spec.has_flag { format!("`--{}`", spec.name) } else { format!("`{}`", spec.name) };
    let default = spec.default.map_or_else(|| "-".to_owned(), |text| format!("`{text}`"));
    let aliases: Vec<_> = spec.aliases.iter().map(|alias| format!("`{}`", alias.word)).collect();
    [name, default, spec.help.to_owned(), aliases.join(", ")]
}

#[test]
fn the_table_of_options_is_the_table_of_the_program() {
    let said = rows(section(&readme(), "Options"));
    let expected: Vec<_> = OPTIONS.iter().map(|spec| row_of(spec).to_vec()).collect();
    assert!(expected.len() > 40, "{}", expected.len());
    for (said, expected) in said.iter().zip(&expected) {
        let wanted = format!("| {} |", expected.join(" | "));
        assert_eq!(said, expected, "README should say\n{wanted}");
    }
    assert_eq!(said.len(), expected.len());
}

#[test]
fn the_table_of_providers_is_the_table_of_the_program() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md")).expect("it is part of the sources");
    let row = |name: &str, domains: &[&str], quirks: &Quirks| {
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let yes_or = |is: bool, no: &str| if is { "yes" } else { no }.to_owned();
        let learned = |is: bool| if is { "auto" } else { "no" }.to_owned();
        let support = |support: Support| match support {
            Support::Learned => "auto".to_owned(),
            Support::Yes => "yes".to_owned(),
            Support::No => "no".to_owned(),
        };
        let Quirks {
            path_style, region, dotted_buckets, crc64nvme, object_acls, object_tags, equal_parts, conditional_part_copies, ..
        } = *quirks;
        vec![
            format!("`{name}`"),
            or_dash(domains.join(", ")),
            path_style.map_or_else(|| "auto".to_owned(), |is| yes_or(is, "no")),
            or_dash(region.unwrap_or_default().to_owned()),
            yes_or(dotted_buckets, "no"),
            learned(crc64nvme),
            support(quirks.conditional_writes),
            support(quirks.conditional_deletes),
            yes_or(conditional_part_copies, "no"),
            learned(object_acls),
            learned(object_tags),
            yes_or(equal_parts, "no"),
        ]
    };
    let mut expected = vec![row(AUTO, &[], &Quirks::LEARNED)];
    expected.extend(PROVIDERS.iter().map(|provider| row(provider.name, provider.domains, &provider.quirks)));
    let said = rows(section(&text, "Providers"));
    for (said, expected) in said.iter().zip(&expected) {
        assert_eq!(said, expected, "docs/configuration.md should say\n| {} |", expected.join(" | "));
    }
    assert_eq!(said.len(), expected.len());
    // Each fact has its source in both places.
    let (code, _) = include_str!("../src/store/provider.rs").split_once("#[cfg(test)]").expect("it has tests");
    let words = code.split_whitespace().filter(|word| word.starts_with("https://"));
    let sources: BTreeSet<&str> = words.map(|word| word.trim_end_matches(',')).collect();
    assert!(sources.len() > 20, "{}", sources.len());
    for source in sources {
        assert!(text.contains(&format!("({source})")), "docs/configuration.md lacks {source}");
    }
}

#[test]
fn the_table_of_metrics_is_the_table_of_the_program() {
    let said = rows(section(&readme(), "Metrics"));
    let quoted = |label: &&str| format!("`{label}`");
    let by = |row: &Row| if row.labels.is_empty() { "-".into() } else { row.labels.iter().map(quoted).collect::<Vec<_>>().join(", ") };
    let kind = |row: &Row| format!("{:?}", row.kind).to_ascii_lowercase();
    let expected: Vec<_> = metrics::rows().map(|row| vec![format!("`{}`", row.name), kind(row), by(row), row.help.to_owned()]).collect();
    assert!(expected.len() > 40, "{}", expected.len());
    for (said, expected) in said.iter().zip(&expected) {
        assert_eq!(said, expected, "README should say\n| {} |", expected.join(" | "));
    }
    assert_eq!(said.len(), expected.len());
}

/// Flags and subcommands, by name.
fn vocabulary() -> (BTreeSet<String>, BTreeSet<String>) {
    let command = windlass::cli::command();
    let names = command.get_subcommands().flat_map(|sub| sub.get_name_and_visible_aliases());
    let commands = names.map(str::to_owned).collect();
    let nested = command.get_subcommands().flat_map(|sub| sub.get_subcommands());
    let all = command.get_subcommands().chain(nested);
    let flags = all.flat_map(|sub| sub.get_arguments()).filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
    (commands, flags)
}

#[test]
fn every_flag_and_subcommand_exists() {
    let (commands, mut flags) = vocabulary();
    // Words of other programs, and of every program of clap.
    flags.extend(["help", "release", "bench", "test", "device", "cap-add"].map(str::to_owned));
    // Of docker, kubectl and mount-s3.
    flags.extend(["target", "from-file", "prefix", "cache", "allow-delete"].map(str::to_owned));
    // Of the side-by-side harness.
    flags.extend(["bin", "plan", "w7-large"].map(str::to_owned));
    let text = readme();
    let words: Vec<_> = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).collect();
    let named: Vec<_> =
        words.iter().filter_map(|word| word.strip_prefix("--")).filter(|word| !word.is_empty() && !word.starts_with('-')).collect();
    assert!(named.len() > 50, "{}", named.len());
    for flag in named {
        assert!(flags.contains(flag), "--{flag} is no flag");
    }
    let spoken = quoted(&text).into_iter().chain(shell(&text));
    let spoken: Vec<_> = spoken.filter_map(|line| line.split("windlass ").nth(1)?.split_whitespace().next().map(str::to_owned)).collect();
    assert!(spoken.len() > 10, "{spoken:?}");
    for word in spoken {
        assert!(commands.contains(&word) || word == "mount", "windlass {word} is no command");
    }
}

#[test]
fn every_path_of_the_sources_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = readme();
    let ours = |word: &&str| ["src/", "tests/", "fio-jobs/", "benches/", "deploy/", ".ci/"].iter().any(|folder| word.starts_with(folder));
    let quoted = quoted(&text);
    let shell = shell(&text);
    let words: Vec<_> = quoted.iter().chain(&shell).flat_map(|text| text.split_whitespace()).filter(ours).collect();
    assert!(words.len() > 15, "{words:?}");
    for path in words.into_iter().chain(["LICENSE", "deny.toml"]) {
        assert!(root.join(path).exists(), "{path} does not exist");
    }
}

/// A line of the shell as words, without the variables before it.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().skip_while(|word| *word != "windlass").collect()
}

#[test]
fn every_command_line_is_understood() {
    let text = readme();
    let lines: Vec<_> = shell(&text).into_iter().filter(|line| words(line).len() > 1).collect();
    assert!(lines.len() >= 9, "{lines:?}");
    for line in lines.iter().filter(|line| !line.contains("--compat")) {
        let parsed = windlass::cli::command().try_get_matches_from(words(line));
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
}

#[test]
fn every_mount_has_settings_that_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("ossfs2.conf");
    fs::write(&conf, "--oss_endpoint=https://oss-cn-hangzhou.aliyuncs.com\n--oss_bucket=bucket\n").unwrap();
    let text = readme();
    let lines: Vec<_> = shell(&text).into_iter().filter(|line| words(line).get(1) == Some(&"mount")).collect();
    assert!(lines.len() >= 8, "{lines:?}");
    for line in lines {
        let line = line.replace("/etc/ossfs2.conf", conf.to_str().unwrap());
        let args: Vec<_> = words(&line).split_off(1);
        let output = Command::new(env!("CARGO_BIN_EXE_windlass")).args(args).arg("--print-config").env_clear().output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("chunk-size"), "{line}");
    }
}

#[test]
fn the_example_file_is_a_file_of_options() {
    let text = readme();
    let toml = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let names: Vec<_> = toml.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
    assert!(names.len() >= 3 && names.iter().all(|name| find(name).is_some_and(|(spec, _)| spec.name == *name)), "{names:?}");
}

#[test]
fn exit_codes_are_those_of_the_program() {
    let text = readme();
    let codes = rows(section(&text, "Exit codes"));
    assert_eq!(codes.len(), 6);
    let mut command = windlass::cli::command();
    let help = command.find_subcommand_mut("mount").unwrap().render_long_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in &codes {
        let word = row[1].split([':', ';']).next().unwrap();
        assert!(help.contains(&format!("{} {word}", row[0])), "mount --help does not say {} {word}", row[0]);
    }
    let code = |kind| {
        let location = Box::new(Location::describe(&store::Options::default()));
        mount::Error::Store { location, source: Box::new(store::Error::new(kind, Op::List, &Key::root(), "it")) }.exit_code()
    };
    assert_eq!([ErrorKind::NoCredentials, ErrorKind::AccessDenied, ErrorKind::BadCredentials].map(code), [3, 3, 3]);
    assert_eq!([ErrorKind::NoSuchBucket, ErrorKind::Connect, ErrorKind::WrongEndpoint, ErrorKind::Timeout].map(code), [4, 4, 4, 4]);
    let wrong = Command::new(env!("CARGO_BIN_EXE_windlass")).args(["mount", "--chunk-sise", "4MiB"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
