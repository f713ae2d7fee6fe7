//! What a volume's attributes say: which bucket, and the options of its daemon. They are those of a static volume, of an inline one or of a
//! StorageClass, in our words or in those of the drivers for ossfs and Mountpoint. Asks nobody. Invariant: a word that means nothing here is
//! refused with its name, never dropped; the few that are about other programs' processes are told in the log.

use std::collections::BTreeMap;

use serde_json::Value;

use super::credentials::Role;
use crate::config::{self, Input, Settings};
use crate::handover::Message;

/// Attributes that Kubernetes adds.
const POD: &str = "csi.storage.k8s.io/pod.uid";
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Words of other drivers for what windlass calls otherwise.
const ALSO: [(&str, &str); 9] = [
    ("bucketName", "bucket"),
    ("path", "prefix"),
    ("url", "endpoint"),
    ("roleName", "ram-role"),
    ("sigVersion", "signature"),
    ("encrypted", "sse"),
    ("kmsKeyId", "sse-key-id"),
    ("storageClass", "storage-class"),
    ("readOnly", "read-only"),
];

/// Words of other drivers about how these run their programs.
const WITHOUT_EFFECT: [&str; 8] =
    ["fuseType", "useSharedPath", "metricsMode", "metricsTop", "authenticationSource", "stsRegion", "allowOther", "dnsPolicy"];

/// Options that the driver decides, or that name files of the sidecar, which takes them itself.
const OURS: [&str; 7] = ["mountpoint", "foreground", "config", "passwd-file", "credential-process", "ready-file", "ca-bundle"];

/// A volume as its attributes describe it.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// What its daemon is told, without credentials.
    pub message: Message,
    pub read_only: bool,
    /// Flags of the mount itself: nosuid and nodev are always set.
    pub no_exec: bool,
    pub role: Role,
    /// What pod it is for, if Kubernetes tells.
    pub pod: Option<String>,
    /// The tokens of its service account.
    pub tokens: Option<String>,
}

/// Reads `context`, and the mount options of the volume.
///
/// # Errors
/// The first word that cannot be used, in words for people.
pub fn describe(context: &BTreeMap<String, String>, mount_flags: &[String]) -> Result<Described, String> {
    let mut role = Role::default();
    let mut options: BTreeMap<String, String> = BTreeMap::new();
    let mut words: Vec<String> = mount_flags.to_vec();
    let mut source = None;
    for (name, text) in context.iter().filter(|(name, _)| !is_of_kubernetes(name)) {
        let name = ALSO.iter().find(|(other, _)| other == name).map_or(name.as_str(), |(_, ours)| ours);
        match name {
            "source" => source = Some(text.clone()),
            "roleArn" => role.arn = Some(text.clone()),
            "oidcProviderArn" => role.provider = Some(text.clone()),
            "mountOptions" | "otherOpts" | "options" => words.push(text.clone()),
            "authType" => authentication(text, &mut options)?,
            "sse" if text == "true" => drop(options.insert("sse".into(), "on".into())),
            _ if text.is_empty() => {}
            _ if WITHOUT_EFFECT.contains(&name) => tracing::info!(attribute = name, "this is about another driver and has no effect"),
            _ => drop(options.insert(option(name)?, text.clone())),
        }
    }
    let args = arguments(&words)?;
    let source = match (source, options.remove("bucket")) {
        (Some(source), None) => source,
        (None, Some(bucket)) => bucket,
        (None, None) => return Err("no bucket: the volume's attributes need bucket, or source (s3://bucket/prefix)".into()),
        (Some(_), Some(_)) => return Err("source and bucket both name the bucket: one of them is enough".into()),
    };
    let source = with_prefix(source, options.remove("prefix"));
    let settings = check(&source, &options, &args)?;
    let has = |flag: &str| settings.fuse.mount_flags.iter().any(|word| word == flag);
    Ok(Described {
        read_only: settings.read_only,
        no_exec: has("noexec"),
        role,
        pod: context.get(POD).cloned(),
        tokens: context.get(TOKENS).cloned(),
        message: Message {
            bucket: settings.source.to_string(),
            options: options.into_iter().map(|(name, text)| (name, Value::String(text))).collect(),
            args,
            ..Message::default()
        },
    })
}

/// Whether Kubernetes has added the attribute `name`: its own have a domain, as labels do.
pub fn is_of_kubernetes(name: &str) -> bool {
    name.contains('/')
}

/// The canonical name of an option.
fn option(name: &str) -> Result<String, String> {
    let Some((spec, _)) = config::find(name) else {
        return Err(format!(
            "unknown attribute {name}: attributes of a volume are bucket, prefix, endpoint, region, mountOptions, and options of windlass mount"
        ));
    };
    if spec.is_secret() || spec.name == "access-key-id" {
        return Err(format!(
            "{name} does not belong among the attributes, which everybody can read: put it into a Secret (nodePublishSecretRef)"
        ));
    }
    if OURS.contains(&spec.name) {
        return Err(format!("{name} is decided by the driver"));
    }
    Ok(spec.name.to_owned())
}

/// What the driver of Alibaba Cloud calls ways to sign.
fn authentication(kind: &str, options: &mut BTreeMap<String, String>) -> Result<(), String> {
    match kind {
        "public" => drop(options.insert("signature".into(), "none".into())),
        // What is there of keys, tokens and roles says by itself how to sign.
        "" | "ak" | "sts" | "rrsa" | "csi-secret-store" => {}
        _ => return Err(format!("authType {kind}: known are rrsa, sts, public and none of them")),
    }
    Ok(())
}

/// Options as a command line has them: `-o a,b=c`, `--name value`, `--name=value`, `name value`, `name=value` or `name`.
fn arguments(words: &[String]) -> Result<Vec<String>, String> {
    let mut list = Vec::new();
    for text in words {
        let mut parts = text.split_whitespace().peekable();
        while let Some(part) = parts.next() {
            let word = match part.strip_prefix("-o") {
                Some("") => parts.next().ok_or("-o stands at the end of the mount options, and nothing after it")?.to_owned(),
                Some(rest) => rest.to_owned(),
                None => {
                    let name = part.trim_start_matches('-');
                    // A value may follow after a space, as in the mount options of Mountpoint.
                    let takes_value = config::find(name).is_some_and(|(spec, _)| !spec.kind.is_flag());
                    match parts.next_if(|next| takes_value && !next.starts_with('-')) {
                        Some(value) => format!("{name}={}", value.replace(',', "\\,")),
                        None => name.to_owned(),
                    }
                }
            };
            list.push(word);
        }
    }
    let named = |word: &str| word.split('=').next().unwrap_or(word).to_owned();
    for name in list.iter().flat_map(|word| word.split(',')).map(named).filter(|name| config::find(name).is_some()) {
        option(&name)?;
    }
    Ok(if list.is_empty() { Vec::new() } else { vec!["-o".into(), list.join(",")] })
}

fn with_prefix(source: String, prefix: Option<String>) -> String {
    match prefix.as_deref().map(|prefix| prefix.trim_matches('/')) {
        None | Some("") => source,
        Some(prefix) if source.contains("://") => format!("{}/{prefix}", source.trim_end_matches('/')),
        // What has no scheme is told by the endpoint.
        Some(prefix) => format!("{source}:/{prefix}"),
    }
}

/// What the daemon will make of it: whatever it would refuse is refused here.
fn check(source: &str, options: &BTreeMap<String, String>, args: &[String]) -> Result<Settings, String> {
    let has_store = source.contains("://")
        || options.contains_key("endpoint")
        || args.iter().any(|arg| arg.contains("endpoint") || arg.contains("url="));
    let source = if has_store { source.to_owned() } else { format!("s3://{}", source.replacen(":/", "/", 1)) };
    let input = Input {
        places: vec![source.into(), "/dev/fd/3".into()],
        flags: options.iter().map(|(name, text)| (name.clone(), Some(text.clone()))).collect(),
        options: args.iter().filter(|arg| *arg != "-o").cloned().collect(),
        ..Input::default()
    };
    let settings = Settings::gather(&input).map_err(|error| match error {
        // A volume has no command line to be called by another name.
        config::Error::OfAnother { word, program, .. } => {
            let program = program.name().unwrap_or_default();
            format!("{word} is an option of {program} that volumes do not take: leave it out, or use an option of windlass mount")
        }
        error => error.to_string(),
    })?;
    // An empty attribute of a volume must not give access to every bucket of the node's credentials.
    if settings.source.is_account() {
        return Err("no bucket: a volume is one bucket, or a prefix of one (s3://bucket/prefix)".into());
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn described(pairs: &[(&str, &str)], flags: &[&str]) -> Result<Described, String> {
        describe(&map(pairs), &flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_volume_is_described_in_the_words_of_every_driver() {
        let oss = "https://oss-cn-hangzhou.aliyuncs.com";
        for (pairs, flags, bucket, args) in [
            (&[("source", "s3://data/a"), ("region", "eu-central-1")][..], &[][..], "s3://data/a", ""),
            (&[("bucket", "data"), ("prefix", "/a/b/")], &[], "s3://data/a/b", ""),
            (
                &[("bucketName", "data")],
                &["region us-west-2", "--read-only", "prefetch-chunks=8"],
                "s3://data",
                "region=us-west-2,read-only,prefetch-chunks=8",
            ),
            (
                &[("bucket", "data"), ("url", oss), ("path", "/a"), ("otherOpts", "-o max_stat_cache_size=0 -o allow_other,umask=022")],
                &[],
                "oss://data/a",
                "max_stat_cache_size=0,allow_other,umask=022",
            ),
        ] {
            let volume = described(pairs, flags).unwrap();
            assert_eq!(volume.message.bucket, bucket, "{pairs:?}");
            assert_eq!(volume.message.args.last().map_or("", String::as_str), args, "{pairs:?}");
        }
        let volume =
            described(&[("bucket", "data"), ("chunk-size", "8MiB"), ("authType", "public"), ("fuseType", "ossfs")], &["ro", "noexec"])
                .unwrap();
        assert!(volume.read_only && volume.no_exec);
        assert_eq!(volume.message.options, [("chunk-size".into(), "8MiB".into()), ("signature".into(), "none".into())].into());
    }

    #[test]
    fn what_kubernetes_adds_is_no_option() {
        let pairs = [
            ("bucket", "data"),
            (POD, "7"),
            ("csi.storage.k8s.io/ephemeral", "true"),
            (TOKENS, "{}"),
            ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
        ];
        let volume = described(&pairs, &[]).unwrap();
        assert_eq!((volume.pod.as_deref(), volume.tokens.as_deref()), (Some("7"), Some("{}")));
        assert!(volume.message.options.is_empty());
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        for (pairs, flags, word) in [
            (&[("region", "x")][..], &[][..], "no bucket"),
            (&[("bucket", "data"), ("chunksize", "1")], &[], "chunksize"),
            (&[("bucket", "data"), ("chunk-size", "1GiB")], &[], "chunk-size"),
            (&[("bucket", "data")], &["alow_other"], "did you mean allow_other"),
            (&[("bucket", "data"), ("access-key-secret", "hidden")], &[], "nodePublishSecretRef"),
            (&[("bucket", "data"), ("passwd-file", "/etc/shadow")], &[], "decided by the driver"),
            (&[("bucket", "data")], &["multireq_max=3"], "multireq_max is an option of s3fs that volumes do not take: leave it out"),
            (&[("bucket", "data")], &["passwd_file=/etc/shadow"], "decided by the driver"),
            (&[("bucket", "data"), ("source", "s3://data")], &[], "both"),
            (&[("source", "s3://")], &[], "a volume is one bucket"),
            (&[("source", "")], &[], "a volume is one bucket"),
            (&[("bucket", "no such name")], &[], "bucket"),
        ] {
            let error = described(pairs, flags).unwrap_err();
            assert!(error.contains(word) && !error.contains("hidden"), "{error}");
        }
    }
}
