//! Mistakes in commands and flags as one line with what to try, in place of the several lines of clap. Invariant: the line names the word that was
//! typed, and what is likely meant where something is near enough.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Failure;
use crate::config::nearest_of;

/// Words that are as near to each other as this mean the same (Jaro-Winkler): `endpiont`, and not `vfs-cache-mode` for `force-mode`.
const NEAR: f64 = 0.82;

/// Commands of rclone, s5cmd, ossutil and the AWS CLI, and what does the same here.
const COMMANDS: [(&[&str], &str); 6] = [
    (&["mnt"], "windlass mount"),
    (&["cp", "copy", "copyto", "mv", "move", "moveto"], "windlass get SOURCE FILE to fetch, windlass put FILE SOURCE to store"),
    (&["sync"], "windlass get --recursive --update to fetch what is new, windlass put --recursive --update to store it"),
    (&["lsf", "lsd", "list"], "windlass ls"),
    (&["del", "delete", "deletefile", "purge"], "windlass rm"),
    (&["head", "info"], "windlass stat"),
];

/// Returns the message for an `error` in `args`. What was asked for, such as the help, is printed instead.
pub fn explain(error: &clap::Error, args: &[OsString], root: &mut clap::Command) -> Failure {
    let asked = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
    if asked.contains(&error.kind()) {
        error.exit()
    }
    root.build();
    let command = command_of(args, root);
    let help = format!("see {} --help", command.get_bin_name().unwrap_or("windlass"));
    let word = text(error, ContextKind::InvalidArg).unwrap_or_default();
    Failure::usage(match error.kind() {
        ErrorKind::UnknownArgument if word.starts_with('-') => {
            let flags = command.get_arguments().filter_map(clap::Arg::get_long);
            match nearest(word.split('=').next().unwrap_or(&word).trim_start_matches('-'), flags) {
                Some(near) => format!("unknown option {word}: did you mean --{near}? Otherwise {help}"),
                None => format!("unknown option {word}: {help}"),
            }
        }
        ErrorKind::UnknownArgument => format!("unexpected argument \"{word}\": {}; {help}", usage(command)),
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let known = COMMANDS.iter().find(|(words, _)| words.contains(&word.as_str())).map(|(_, ours)| *ours);
            match (known, nearest(&word, command.get_subcommands().map(clap::Command::get_name))) {
                (Some(ours), _) => format!("unknown command {word}: use {ours}"),
                (None, Some(near)) => format!("unknown command {word}: did you mean {near}? Otherwise {help}"),
                (None, None) => format!("unknown command {word}: {help}"),
            }
        }
        ErrorKind::MissingRequiredArgument => match word.split(", ").find(|word| word.starts_with('-')) {
            Some(flag) => format!("{flag} is missing: {help}"),
            None => format!("an argument is missing: {}; {help}", usage(command)),
        },
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let flag = word.split([' ', '=', '[']).next().unwrap_or_default();
            let values = text(error, ContextKind::ValidValue).filter(|values| !values.is_empty());
            let values = values.map(|values| format!("must be one of {values}"));
            let reason = error.source().map(ToString::to_string).or(values).unwrap_or_else(|| help.clone());
            match text(error, ContextKind::InvalidValue).filter(|value| !value.is_empty()) {
                Some(value) => format!("{flag} {value}: {reason}"),
                None => format!("{flag} needs a value: {reason}"),
            }
        }
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            format!("{}: {help}", first.trim_start_matches("error: "))
        }
    })
}

/// The subcommand that `args` name.
fn command_of<'c>(args: &[OsString], root: &'c clap::Command) -> &'c clap::Command {
    let mut command = root;
    for word in args.iter().skip(1) {
        let Some(next) = word.to_str().and_then(|word| command.find_subcommand(word)) else { break };
        command = next;
    }
    command
}

/// The arguments of a command without its options.
fn usage(command: &clap::Command) -> String {
    let name = command.get_bin_name().unwrap_or("windlass");
    let arguments: Vec<String> = command.get_positionals().map(|argument| argument.to_string().replace(['<', '>'], "")).collect();
    if arguments.is_empty() { format!("{name} takes none") } else { format!("{name} takes {}", arguments.join(" ")) }
}

fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<String> {
    nearest_of(word, known.map(str::to_owned), NEAR)
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(", ")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::command;
    use super::*;

    fn answer(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = command().try_get_matches_from(&args).expect_err("it is a mistake");
        explain(&error, &args, &mut command()).message
    }

    #[test]
    fn each_mistake_is_one_line_with_the_word_and_what_to_try() {
        for (line, start) in [
            ("windlass mount --endpiont=x", "unknown option --endpiont: did you mean --endpoint?"),
            ("windlass mount --vfs-cache-mode writes", "unknown option --vfs-cache-mode: see windlass mount --help"),
            ("windlass mount a b c", "unexpected argument \"c\": windlass mount takes [SOURCE] [MOUNTPOINT]; see"),
            ("windlass cp a b", "unknown command cp: use windlass get"),
            ("windlass mnt a b", "unknown command mnt: use windlass mount"),
            ("windlass unmout a", "unknown command unmout: did you mean umount?"),
            ("windlass bench nett", "unknown command nett: did you mean net? Otherwise see windlass bench --help"),
            ("windlass get a", "an argument is missing: windlass get takes SOURCE... DEST; see"),
            ("windlass csi --endpoint unix:///x", "--node-id <NAME> is missing: see windlass csi --help"),
            ("windlass ls a --endpoint", "--endpoint needs a value: see windlass ls --help"),
            ("windlass get a b --parallel many", "--parallel many: must be auto or 1..10000"),
            ("windlass mount --compat goofys a", "--compat goofys: must be one of ossfs, ossfs2, s3fs, mountpoint"),
        ] {
            let message = answer(line);
            assert!(message.starts_with(start) && message.lines().count() == 1, "{line}: {message}");
        }
    }
}
