//! Command lines that others have fixed: ossfs, ossfs2, s3fs, mount-s3, and what mount(8) passes to its helpers. Takes words apart;
//! what they mean is decided where all options are read. Invariant: a command line that worked there is not refused
//! for its form here.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::CommandFactory;

use super::mount::{Request, environment};
use super::{Cli, Failure, mount, umount};
use crate::config::{Input, Program, bucket_len, takes_value};

/// Whether `windlass mount --compat PROGRAM ...` was typed, and then the rest as that program would see it.
pub fn compat(args: &[OsString]) -> Result<Option<(Program, Vec<OsString>)>, Failure> {
    if args.first().is_none_or(|arg| arg != "mount") {
        return Ok(None);
    }
    let mut rest: Vec<OsString> = args[1..].to_vec();
    let Some(at) = rest.iter().position(|arg| arg == "--compat" || arg.to_string_lossy().starts_with("--compat=")) else {
        return Ok(None);
    };
    let name = match rest.remove(at).to_string_lossy().split_once('=') {
        Some((_, name)) => name.to_owned(),
        None if at < rest.len() => rest.remove(at).to_string_lossy().into_owned(),
        None => String::new(),
    };
    let program = Program::of(&name).ok_or_else(|| Failure::usage(format!("compat={name}: must be ossfs, ossfs2, s3fs or mountpoint")))?;
    Ok(Some((program, rest)))
}

/// Runs the command line of ossfs, ossfs2, s3fs or mount-s3.
pub fn run(program: Program, args: &[OsString]) -> Result<(), Failure> {
    let args = match args.first().and_then(|arg| arg.to_str()) {
        Some("mount") if program == Program::Ossfs2 => &args[1..],
        Some("umount" | "unmount") if program == Program::Ossfs2 => {
            let directories = args[1..].iter().map(PathBuf::from).collect();
            return umount::run(&umount::Args { directories, lazy: false, force: false });
        }
        _ => args,
    };
    match parse(program, args)? {
        Parsed::Mount(request) => mount::run(&request),
        Parsed::Version => {
            super::print(format!("windlass {}, in place of {}\n", super::version(), program.name().unwrap_or("")).as_bytes())
        }
        Parsed::Help => help(),
    }
}

/// Runs what mount(8) passes to mount.windlass: SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type].
pub fn run_for_mount(args: &[OsString]) -> Result<(), Failure> {
    let mut request = Request::default();
    request.input.environment = environment();
    let mut words = Words(args.iter());
    while let Some(word) = words.next() {
        let Some(letters) = word.to_str().and_then(|text| text.strip_prefix('-')).filter(|letters| !letters.is_empty()) else {
            request.input.places.push(word.to_owned());
            continue;
        };
        match letters {
            "-help" | "h" => return help(),
            "-version" | "V" => return super::print(format!("windlass {}\n", super::version()).as_bytes()),
            _ => {}
        }
        for (at, letter) in letters.char_indices() {
            let tail = &letters[at + letter.len_utf8()..];
            match letter {
                's' => request.input.sloppy = true,
                'f' => request.fake = true,
                // No mtab has been written for many years, and there is nothing more to say.
                'n' | 'v' => {}
                'o' => request.input.options.push(words.value("-o", tail)?),
                't' | 'N' => drop(words.value("-t", tail)?),
                other => {
                    return Err(Failure::usage(format!("unknown option -{other}: mount helpers take SOURCE DIR [-sfnv] [-o options]")));
                }
            }
            if matches!(letter, 'o' | 't' | 'N') {
                break;
            }
        }
    }
    mount::run(&request)
}

enum Parsed {
    Mount(Request),
    Help,
    Version,
}

/// Arguments that are left.
struct Words<'a>(std::slice::Iter<'a, OsString>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a OsStr> {
        self.0.next().map(OsString::as_os_str)
    }

    /// What belongs to a letter: the rest of its word, else the word that follows.
    fn value(&mut self, name: &str, tail: &str) -> Result<String, Failure> {
        if !tail.is_empty() {
            return Ok(tail.to_owned());
        }
        let next = self.next().and_then(OsStr::to_str);
        next.map(str::to_owned).ok_or_else(|| Failure::usage(format!("{name} needs a value")))
    }
}

fn parse(program: Program, args: &[OsString]) -> Result<Parsed, Failure> {
    let mut request = Request { input: Input { program, environment: environment(), ..Input::default() }, ..Request::default() };
    let mut words = Words(args.iter());
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or("");
        match text {
            "--" => request.input.places.extend(words.0.by_ref().cloned()),
            "--help" | "-h" => return Ok(Parsed::Help),
            "--version" | "-V" => return Ok(Parsed::Version),
            "--print-config" => request.print_config = true,
            _ if is_of_uploads(program, text) => return Err(uploads(text)),
            _ if text.starts_with("--") => {
                let flag = long(program, &text[2..], &mut words)?;
                request.input.flags.push(flag);
            }
            _ if text.len() > 1 && text.starts_with('-') => short(program, &text[1..], &mut words, &mut request.input)?,
            _ => request.input.places.push(word.to_owned()),
        }
    }
    if program == Program::Mountpoint {
        in_our_words(&mut request.input)?;
    }
    Ok(Parsed::Mount(request))
}

/// What words of mount-s3 mean here that are more than another name of an option.
fn in_our_words(input: &mut Input) -> Result<(), Failure> {
    let own = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
    let (mut implied, mut said, mut prefix) = (Vec::new(), Vec::new(), None);
    for (name, value) in input.flags.drain(..) {
        match (name.as_str(), value) {
            ("prefix", value) => prefix = value,
            // A cache lets metadata be believed for a minute, unless that is said too.
            ("cache", Some(directory)) => {
                implied.extend([own("stat-cache-ttl", "60s"), own("negative-ttl", "60s")]);
                said.extend([own("spill-dir", &directory), own("read-mode", "cached")]);
            }
            ("debug", _) => said.push(own("log-level", "debug")),
            ("no-log" | "no_log", _) => said.push(own("log-level", "error")),
            (_, value) => said.push((name, value)),
        }
    }
    input.flags = implied.into_iter().chain(said).collect();
    let Some(bucket) = input.places.first_mut() else { return Ok(()) };
    let text = bucket.to_str().unwrap_or_default();
    let source = if text.contains("://") { text.to_owned() } else { format!("s3://{text}") };
    let inside = source.split_once("://").map_or("", |(_, rest)| rest.trim_end_matches('/'));
    let has_prefix = bucket_len(inside.as_bytes()) < inside.len();
    *bucket = match prefix.as_deref().map(|prefix| prefix.trim_start_matches('/')) {
        None | Some("") => source,
        Some(_) if has_prefix => {
            return Err(Failure::usage(format!("--prefix and the prefix of {source} exclude each other")));
        }
        Some(prefix) => format!("{}/{prefix}", source.trim_end_matches('/')),
    }
    .into();
    Ok(())
}

/// `--name=value`, `--name value`, or `--name` where the name is a switch.
fn long(program: Program, text: &str, words: &mut Words<'_>) -> Result<(String, Option<String>), Failure> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), Some(value.to_owned())));
    }
    // Without `=` a switch would swallow the positional argument that follows it. Words without effect may be either,
    // and are written with `=` where they have a value.
    let is_value = text == "config" || takes_value(program, text);
    let value = if is_value { Some(words.value(&format!("--{text}"), "")?) } else { None };
    Ok((text.to_owned(), value))
}

fn short(program: Program, letters: &str, words: &mut Words<'_>, input: &mut Input) -> Result<(), Failure> {
    let mut set = |name: &str, value: &str| input.flags.push((name.to_owned(), Some(value.to_owned())));
    for (at, letter) in letters.char_indices() {
        let tail = &letters[at + letter.len_utf8()..];
        match letter {
            'f' => set("foreground", "true"),
            'd' if program == Program::Mountpoint => set("log-level", "debug"),
            'l' if program == Program::Mountpoint => {
                let directory = words.value("-l", tail)?;
                set("log-directory", tail_of(&directory));
                return Ok(());
            }
            // libfuse stays in the foreground with -d, but s3fs and ossfs keep the first one to themselves.
            'd' if matches!(program, Program::Ossfs | Program::S3fs) => set("log-level", "debug"),
            'd' => {
                set("foreground", "true");
                set("log-level", "debug");
            }
            // Many threads answer faster, and nothing here needs there to be one.
            's' => {}
            'o' => {
                input.options.push(words.value("-o", tail)?);
                return Ok(());
            }
            'c' => {
                let file = words.value("-c", tail)?;
                set("config", tail_of(&file));
                return Ok(());
            }
            'u' if matches!(program, Program::Ossfs | Program::S3fs) => return Err(uploads("-u")),
            other => return Err(Failure::usage(format!("unknown option -{other}"))),
        }
    }
    Ok(())
}

/// Whether a word asks s3fs or ossfs for unfinished uploads instead of a mount.
fn is_of_uploads(program: Program, text: &str) -> bool {
    let name = text.split('=').next().unwrap_or(text);
    matches!(program, Program::Ossfs | Program::S3fs) && matches!(name, "--incomplete-mpu-list" | "--incomplete-mpu-abort")
}

fn uploads(text: &str) -> Failure {
    Failure::usage(format!(
        "{text} (unfinished uploads) is a command of its own here: windlass mpu list SOURCE, windlass mpu abort SOURCE --older-than 24h"
    ))
}

/// `-c=FILE` is taken for `-c FILE`.
fn tail_of(file: &str) -> &str {
    file.strip_prefix('=').unwrap_or(file)
}

fn help() -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let page = command.find_subcommand_mut("mount").map(|mount| mount.render_long_help().to_string());
    super::print(page.unwrap_or_default().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(program: Program, line: &str) -> Input {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(program, &args) {
            Ok(Parsed::Mount(request)) => request.input,
            _ => panic!("{line} is no mount"),
        }
    }

    fn flag(name: &str, value: &str) -> (String, Option<String>) {
        (name.to_owned(), Some(value.to_owned()))
    }

    #[test]
    fn the_two_ways_to_write_o_are_one() {
        let read = input(Program::Ossfs, "data:/p /mnt -ourl=http://x.aliyuncs.com -o allow_other,ro -fo umask=022");
        assert_eq!(read.places, ["data:/p", "/mnt"]);
        assert_eq!(read.options, ["url=http://x.aliyuncs.com", "allow_other,ro", "umask=022"]);
        assert_eq!(read.flags, [flag("foreground", "true")]);
    }

    #[test]
    fn a_switch_does_not_swallow_what_follows() {
        let read = input(Program::Ossfs2, "--allow_other /mnt -c /etc/ossfs2.conf --attr_timeout 30 --ro=true -d");
        assert_eq!(read.places, ["/mnt"]);
        let expected = [
            ("allow_other".to_owned(), None),
            flag("config", "/etc/ossfs2.conf"),
            flag("attr_timeout", "30"),
            flag("ro", "true"),
            flag("foreground", "true"),
            flag("log-level", "debug"),
        ];
        assert_eq!(read.flags, expected);
    }

    #[test]
    fn the_words_of_mountpoint_are_said_in_ours() {
        let line = "data /dev/fd/3 --foreground --prefix=a/b/ --cache /cache --metadata-ttl 5 --user-agent-prefix us --no-sign-request -d";
        let read = input(Program::Mountpoint, line);
        assert_eq!(read.places, ["s3://data/a/b/", "/dev/fd/3"]);
        let expected = [
            flag("stat-cache-ttl", "60s"),
            flag("negative-ttl", "60s"),
            ("foreground".to_owned(), None),
            flag("spill-dir", "/cache"),
            flag("read-mode", "cached"),
            flag("metadata-ttl", "5"),
            flag("user-agent-prefix", "us"),
            ("no-sign-request".to_owned(), None),
            flag("log-level", "debug"),
        ];
        assert_eq!(read.flags, expected);
        assert_eq!(input(Program::Mountpoint, "s3://data/a/ /mnt").places, ["s3://data/a/", "/mnt"]);
        let both: Vec<OsString> = ["s3://data/a/", "/mnt", "--prefix=b/"].map(OsString::from).into();
        assert!(parse(Program::Mountpoint, &both).is_err_and(|failure| failure.message.contains("exclude")));
    }

    #[test]
    fn compat_is_found_wherever_it_stands() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in ["mount --compat ossfs data /mnt", "mount data --compat=ossfs /mnt"] {
            let (program, rest) = compat(&words(line)).unwrap().unwrap();
            assert_eq!((program, rest), (Program::Ossfs, words("data /mnt")), "{line}");
        }
        assert!(compat(&words("mount data /mnt")).unwrap().is_none());
        assert!(compat(&words("mount --compat goofys data /mnt")).unwrap_err().message.contains("ossfs2"));
    }
}
