use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::config::{Error, Input, Origin, Settings, Value, Values};

const TABLE: &str = include_str!("../../../tests/data/foreign_options.tsv");

/// A row of the table of options of other programs.
#[derive(Debug)]
struct Row {
    program: Program,
    /// As it is written, with its value.
    option: &'static str,
    kind: &'static str,
    outcome: &'static str,
    trial: &'static str,
}

impl Row {
    fn word(&self) -> &'static str {
        self.option.split('=').next().expect("there is a first part")
    }

    fn value(&self) -> Option<String> {
        self.option.split_once('=').map(|(_, value)| value.to_owned())
    }
}

fn rows() -> Vec<Row> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &'static str| {
        let mut fields = line.split('\t');
        let program = fields.next().and_then(Program::of).expect("it is a program");
        let mut next = || fields.next().unwrap_or_default();
        Row { program, option: next(), kind: next(), outcome: next(), trial: next() }
    };
    lines.map(row).collect()
}

/// A command line of the program that mounts, with another option last.
fn input(program: Program, option: Option<(String, Option<String>)>) -> Input {
    let said = |options: &[(&str, &str)]| options.iter().map(|(name, text)| ((*name).to_owned(), Some((*text).to_owned()))).collect();
    let own = |list: &str| vec![list.to_owned()];
    let mut input = Input { program, places: vec!["data".into(), "/mnt".into()], ..Input::default() };
    match program {
        Program::Ossfs => input.options = own("url=http://oss.example.com"),
        Program::S3fs => input.options = own("url=http://s3.example.com"),
        _ => {
            input.flags = said(&[("oss_endpoint", "http://oss.example.com"), ("oss_bucket", "data"), ("oss_access_key_id", "id")]);
            input.flags.push(("oss_access_key_secret".to_owned(), Some("secret".to_owned())));
            input.places.remove(0);
        }
    }
    match (option, program) {
        (None, _) => {}
        (Some(option), Program::Ossfs2) => input.flags.push(option),
        (Some((name, None)), _) => input.options.push(name),
        (Some((name, Some(value))), _) => input.options.push(format!("{name}={value}")),
    }
    input
}

fn gathered(input: &Input) -> Result<Values, Error> {
    let mut values = Values::gather(input)?;
    Settings::from_values(&mut values, &input.environment)?;
    Ok(values)
}

/// The options that have their value from `word`, in the notation of the table.
fn set_by(values: &Values, word: &str) -> BTreeSet<String> {
    let of_word = |origin: &Origin| matches!(origin, Origin::Flag(name) | Origin::Option(name) if name == word);
    let all = table::OPTIONS.iter().filter_map(|spec| values.get(spec.name).map(|set| (spec.name, set)));
    all.filter(|(_, (_, origin))| of_word(origin)).map(|(name, (value, _))| format!("{name}={}", value.plain())).collect()
}

#[test]
fn every_option_of_the_table_has_its_outcome() {
    let mut wrong = Vec::new();
    for row in rows().iter().filter(|row| row.kind != "default") {
        let input = input(row.program, Some((row.word().to_owned(), row.value())));
        // An option that is not complete by itself is looked at without the others.
        let values = match gathered(&input) {
            Err(Error::Conflict(_)) => Values::gather(&input),
            values => values,
        };
        let named = |set: &str| set.split(", ").filter(|text| !text.is_empty()).map(str::to_owned).collect::<BTreeSet<_>>();
        let found = match (row.kind, &values) {
            ("sets", Ok(values)) => {
                (set_by(values, row.word()) == named(row.outcome)).then_some(()).ok_or(format!("{:?}", set_by(values, row.word())))
            }
            ("no-effect", Ok(values)) => {
                let note = format!("option {} has no effect: {}", row.word(), row.outcome);
                let silent = set_by(values, row.word()).is_empty();
                (values.notes.contains(&note) && silent).then_some(()).ok_or(format!("{:?}", values.notes))
            }
            ("refused", Err(error)) if error.to_string().contains(row.outcome) => Ok(()),
            (_, Ok(_)) => Err("it is taken".to_owned()),
            (_, Err(error)) => Err(error.to_string()),
        };
        wrong.extend(found.err().map(|found| format!("{} {}: {found}", row.program.name().unwrap_or_default(), row.option)));
    }
    assert!(wrong.is_empty(), "{} rows\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_table_has_every_default_of_another_program() {
    let rows = rows();
    for program in [Program::Ossfs, Program::Ossfs2, Program::S3fs] {
        let values = gathered(&input(program, None)).expect("it mounts");
        let theirs = table::OPTIONS.iter().filter_map(|spec| values.get(spec.name).map(|(value, origin)| (spec.name, value, origin)));
        let theirs = theirs.filter(|(.., origin)| matches!(origin, Origin::DefaultOf(_)));
        let theirs: BTreeSet<_> = theirs.map(|(name, value, _)| (name, value.plain())).collect();
        let listed = rows.iter().filter(|row| row.kind == "default" && row.program == program);
        let listed: BTreeSet<_> = listed.map(|row| (row.option, row.outcome.to_owned())).collect();
        assert_eq!(theirs, listed, "{program:?}");
    }
}

#[test]
fn the_table_has_every_word_that_is_known_of_another_program() {
    let rows = rows();
    for program in [Program::Ossfs, Program::Ossfs2, Program::S3fs] {
        let listed: BTreeSet<_> = rows.iter().filter(|row| row.program == program).map(Row::word).collect();
        let reasons = reasons(program).into_iter().flatten().flat_map(|(_, words)| words.iter().copied());
        let refused = refusals(program).into_iter().flatten().flat_map(|(_, _, words)| words.iter().copied());
        let known = reasons.chain(refused).chain(translated::of(program).map(Translation::word));
        let missing: Vec<_> = known.filter(|word| !listed.contains(word)).collect();
        assert!(missing.is_empty(), "{program:?}: {missing:?}");
    }
}

#[test]
fn what_is_done_anyway_is_proven_by_a_trial() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["src", "tests"].into_iter().flat_map(|directory| walkdir::WalkDir::new(root.join(directory)));
    let sources = sources.filter_map(Result::ok).filter(|entry| entry.path().extension().is_some_and(|end| end == "rs"));
    let sources: Vec<_> = sources.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect();
    for row in rows() {
        let claims = row.kind == "no-effect" && row.outcome.contains("anyway");
        assert!(!claims || !row.trial.is_empty(), "{row:?} has no trial");
        let names = [format!("fn {}()", row.trial), format!("\"{}\"", row.trial)];
        let is_there = row.trial.is_empty() || sources.iter().any(|source| names.iter().any(|name| source.contains(name)));
        assert!(is_there, "{row:?}: there is no such trial");
    }
}

#[test]
fn a_directory_for_temporary_files_gives_way_to_a_cache() {
    for (program, words) in
        [(Program::S3fs, "use_cache=/c,tmpdir=/t"), (Program::S3fs, "tmpdir=/t,use_cache=/c"), (Program::Ossfs, "use_cache=/c,tmpdir=/t")]
    {
        let mut input = input(program, None);
        input.options.push(words.to_owned());
        assert_eq!(gathered(&input).expect("it mounts").text("spill-dir").as_deref(), Some("/c"), "{words}");
    }
    let mut input = input(Program::Ossfs2, None);
    input.flags.extend([("disk_data_cache_dir", "/c"), ("temp_dir", "/t")].map(|(name, text)| (name.to_owned(), Some(text.to_owned()))));
    assert_eq!(gathered(&input).expect("it mounts").text("spill-dir").as_deref(), Some("/c"));
}

#[test]
fn sizes_of_uploads_are_not_silently_those_of_reads() {
    let notes = |word: &str| {
        let value = if word == "multipart_size" { "20" } else { "7" };
        gathered(&input(Program::Ossfs, Some((word.to_owned(), Some(value.to_owned()))))).expect("it mounts").notes
    };
    assert_eq!(notes("multipart_size"), ["option multipart_size: it applies to uploads; --chunk-size sets the size of a read request"]);
    let expected = "it applies to uploads; --prefetch-concurrency sets how many requests read ahead";
    assert_eq!(notes("parallel_count"), [format!("option parallel_count: {expected}")]);
}

#[test]
fn s3fs_looks_for_keys_in_its_variables_and_then_in_its_files() {
    let home = tempfile::tempdir().unwrap();
    let at_home = home.path().to_str().unwrap().to_owned();
    let shown = |environment: &[(&str, &str)], words: &str| {
        let mut input = input(Program::S3fs, None);
        input.options.push(words.to_owned());
        input.environment = environment.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        input.environment.push(("HOME".to_owned(), at_home.clone()));
        let values = gathered(&input).expect("it mounts");
        let secret = values.get("access-key-secret").is_some_and(|(value, _)| *value == Value::Secret("s".into()));
        (values.text("access-key-id"), secret, values.text("passwd-file"), values.text("sse-key-id"))
    };
    let file = home.path().join(".passwd-s3fs");
    std::fs::write(&file, "a:b\n").unwrap();
    let of_home = Some(file.to_str().unwrap().to_owned());
    let keys = [("AWSACCESSKEYID", "k"), ("AWSSECRETACCESSKEY", "s")];
    assert_eq!(shown(&keys, ""), (Some("k".into()), true, None, None));
    assert_eq!(shown(&[], ""), (None, false, of_home, None));
    assert_eq!(shown(&keys, "passwd_file=/p"), (None, false, Some("/p".into()), None));
    assert_eq!(shown(&keys, "iam_role").0, None);
    assert_eq!(shown(&[("AWS_ACCESS_KEY_ID", "k")], "").2, None);
    assert_eq!(shown(&[("AWSSSEKMSID", "K")], "use_sse=kmsid").3.as_deref(), Some("K"));
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    std::fs::write(home.path().join(".aws/credentials"), "[default]\n").unwrap();
    assert_eq!(shown(&[], "").2, None);
}

#[test]
fn ossfs_takes_keys_from_its_variables() {
    let mut input = input(Program::Ossfs, None);
    let keys = [("OSSACCESSKEYID", "k"), ("OSSSECRETACCESSKEY", "s"), ("OSSSESSIONTOKEN", "t")];
    input.environment = keys.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    let values = gathered(&input).expect("it mounts");
    let shown = |name: &str| values.text(name).unwrap_or_default();
    assert_eq!([shown("access-key-id"), shown("access-key-secret"), shown("session-token")], ["k", "s", "t"]);
}

#[test]
fn a_bucket_named_by_an_option_can_have_a_path() {
    let mut input = Input { program: Program::S3fs, places: vec!["/mnt".into()], ..Input::default() };
    input.options = vec!["bucket=data:/a/b,url=http://s3.example.com".into()];
    assert_eq!(gathered(&input).expect("it mounts").text("source").as_deref(), Some("s3://data/a/b"));
}

#[test]
fn natively_an_option_of_another_program_is_refused_by_its_name() {
    let native = |option: &str| {
        let input = Input { places: vec!["s3://data".into(), "/mnt".into()], options: vec![option.to_owned()], ..Input::default() };
        gathered(&input).expect_err("it is not ours").to_string()
    };
    for (option, program) in [("curldbg", "s3fs"), ("noshallowcopyapi", "ossfs"), ("bind_cpus=1", "ossfs2"), ("sigv2", "s3fs")] {
        let error = native(option);
        assert!(error.contains(&format!("--compat {program}")) && !error.contains("did you mean"), "{option}: {error}");
    }
    assert!(native("chunk_sise=4").contains("did you mean chunk_size?"));
}

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
    let programs = [Program::Ossfs, Program::Ossfs2, Program::S3fs, Program::Mountpoint];
    let own = programs.into_iter().flat_map(reasons).flatten().flat_map(|(_, words)| *words);
    let all = own.chain(FUSE.iter().flat_map(|(_, words)| *words)).chain(&KERNEL).chain(&ADMINISTRATIVE);
    // Words of s3fs and ossfs for other things, the kernel's attribute timeout and a file of types: the list of the program is read first.
    for word in all.filter(|word| !["attr_timeout", "mime"].contains(*word)) {
        assert!(table::find(word).is_none(), "{word}");
    }
}

#[test]
fn natively_nothing_is_silently_without_effect() {
    assert_eq!(without_effect(Program::Native, "curldbg"), None);
    assert!(without_effect(Program::Ossfs, "curldbg").is_some());
    assert!(without_effect(Program::Mountpoint, "allow-delete").is_some());
    assert_eq!(demand(Program::Native, "expected-bucket-owner", None), None);
    assert!(matches!(demand(Program::Mountpoint, "expected-bucket-owner", None), Some(Demand::Impossible(_))));
}
