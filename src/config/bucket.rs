//! From values to a bucket and how it is reached: the source, the options of the store, and what the variables of the stores' own tools say of it.
//! The options of everything else are in `layers`. Invariant: what is said to windlass itself comes before what is said to those tools.

use std::path::PathBuf;

use super::gather::{Origin, Values};
use super::source::{self, Source};
use super::value::Value;
use super::{Error, Program};
use crate::store::{
    self, Arn, Buckets, CaBundle, ContentTypes, CredentialOptions, Dialect, Exit, KeyFiles, Quirks, Signature, Sse, StaticKeys,
    UploadChecksum, WebIdentity,
};

/// How s3fs and ossfs ask for a key that a variable names.
const KMS_WORDS: [&str; 2] = ["kmsid", "k"];

/// Options that say where credentials come from.
const CREDENTIALS: [&str; 8] =
    ["access-key-id", "access-key-id-file", "passwd-file", "credential-process", "ram-role", "role-arn", "oidc-token-file", "profile"];

impl Values {
    /// The bucket. What only the variables of the stores' own tools say of it is added to the values, with its origin.
    pub(super) fn take_source(&mut self, environment: &[(String, String)]) -> Result<Source, Error> {
        let source = self.source(environment)?;
        self.ask_environment_of(source.dialect, environment);
        self.default_signature();
        self.take_keys_of_program(environment);
        Ok(source)
    }

    /// Takes credentials and the key of the encryption from where s3fs and ossfs look for them without an option: their own variables and, for
    /// s3fs, its password files. These come after the variables and files of the AWS tools, and before the metadata service, which s3fs
    /// does not use without an option.
    fn take_keys_of_program(&mut self, environment: &[(String, String)]) {
        let (vendor, is_s3fs) = match self.program {
            Program::S3fs => ("AWS", true),
            Program::Ossfs => ("OSS", false),
            Program::Native | Program::Ossfs2 | Program::Mountpoint => return,
        };
        let own = |name: &str| variable(environment, &[&format!("{vendor}{name}")]);
        if self.text("sse").is_some_and(|text| KMS_WORDS.contains(&text.to_ascii_lowercase().as_str()))
            && self.get("sse-key-id").is_none()
            && let Some((name, key)) = own("SSEKMSID")
        {
            self.put("sse-key-id", Value::Text(key), Origin::Environment(name));
        }
        if CREDENTIALS.iter().any(|option| self.get(option).is_some()) || self.text("signature").as_deref() == Some("none") {
            return;
        }
        if let (Some((id_name, id)), Some((secret_name, secret))) = (own("ACCESSKEYID"), own("SECRETACCESSKEY")) {
            self.put("access-key-id", Value::Text(id), Origin::Environment(id_name));
            self.put("access-key-secret", Value::Secret(secret), Origin::Environment(secret_name));
            if let Some((name, token)) = own("SESSIONTOKEN") {
                self.put("session-token", Value::Secret(token), Origin::Environment(name));
            }
        } else if is_s3fs && variable(environment, &["AWS_ACCESS_KEY_ID"]).is_none() {
            let home = variable(environment, &["HOME"]).map(|(_, home)| PathBuf::from(home));
            if home.as_ref().is_some_and(|home| home.join(".aws/credentials").exists()) {
                return;
            }
            let mut files = home.map(|home| home.join(".passwd-s3fs")).into_iter().chain([PathBuf::from("/etc/passwd-s3fs")]);
            if let Some(path) = files.find(|path| path.exists()).and_then(|path| path.into_os_string().into_string().ok()) {
                self.put("passwd-file", Value::Text(path), Origin::DefaultOf(self.program));
            }
        }
    }

    fn source(&self, environment: &[(String, String)]) -> Result<Source, Error> {
        let text = match (self.text("source"), self.text("bucket")) {
            (Some(source), _) => source,
            // As an option of ossfs and s3fs it can have a path behind a colon, as SOURCE can.
            (None, Some(bucket)) if bucket.contains(':') && self.get("prefix").is_none() => bucket,
            (None, Some(bucket)) => format!("{bucket}:/{}", self.text("prefix").unwrap_or_default().trim_start_matches('/')),
            (None, None) => return Err(Error::Missing("SOURCE")),
        };
        let endpoint = self.text("endpoint").or_else(|| variable(environment, &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]).map(|v| v.1));
        Source::parse(&text, endpoint.as_deref(), self.program)
    }

    fn ask_environment_of(&mut self, dialect: Dialect, environment: &[(String, String)]) {
        let (endpoints, regions, bundles): (&[_], &[_], &[_]) = match dialect {
            Dialect::S3 => (&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], &["AWS_REGION", "AWS_DEFAULT_REGION"], &["AWS_CA_BUNDLE"]),
            Dialect::Oss => (&["OSS_ENDPOINT"], &["OSS_REGION"], &[]),
        };
        // An endpoint that was given to us is not to be paired with the region of another one, but S3 needs some region.
        for (option, names) in [("endpoint", endpoints), ("region", regions), ("ca-bundle", bundles)] {
            if self.get(option).is_none()
                && let Some((name, text)) = variable(environment, names)
            {
                self.put(option, Value::Text(text), Origin::Environment(name));
            }
        }
    }

    /// ossfs2 signs with V4 when it knows the region, else with V1.
    fn default_signature(&mut self) {
        let untouched = self.get("signature").is_some_and(|(_, origin)| *origin == Origin::Default);
        if self.program == Program::Ossfs2 && untouched && self.get("region").is_none() {
            self.put("signature", Value::Text("v1".into()), Origin::DefaultOf(Program::Ossfs2));
        }
    }

    pub(super) fn store(&self, source: &Source) -> Result<store::Options, Error> {
        if source.dialect == Dialect::Oss {
            let of_aws = ["fips", "dual-stack", "accelerate"].into_iter().find(|option| self.flag(option));
            if let Some(option) = of_aws {
                return Err(Error::Conflict(format!(
                    "{option} is for the addresses of AWS: leave it out, and name that of OSS with endpoint"
                )));
            }
        }
        let endpoint = self.endpoint("endpoint", source)?;
        Ok(store::Options {
            dialect: source.dialect,
            quirks: self.quirks(source, endpoint.as_deref())?,
            bucket: source.bucket.clone(),
            buckets: self.buckets(source)?,
            endpoint,
            read_endpoint: self.endpoint("read-endpoint", source)?,
            region: self.text("region"),
            path_style: self.flag_or_auto("path-style"),
            fips: self.flag_or_auto("fips"),
            dual_stack: self.flag_or_auto("dual-stack"),
            accelerate: self.flag("accelerate"),
            signature: match self.text("signature").as_deref() {
                Some("v1") => Signature::V1,
                Some("none") => Signature::None,
                _ => Signature::V4,
            },
            credentials: self.credentials()?,
            hedge: self.flag("hedge"),
            verify_reads: self.text("verify-reads").as_deref() != Some("off"),
            upload_checksum: match self.text("upload-checksum").as_deref() {
                Some("crc64nvme") => UploadChecksum::Crc64Nvme,
                Some("crc32c") => UploadChecksum::Crc32c,
                Some("md5") => UploadChecksum::Md5,
                Some("none") => UploadChecksum::None,
                _ => UploadChecksum::Auto,
            },
            content_types: self.content_types()?,
            retries: self.count("retries").and_then(|n| n.try_into().ok()).unwrap_or_default(),
            connect_timeout: self.time("connect-timeout"),
            request_timeout: self.time("request-timeout"),
            answer_timeout: self.time("request-timeout"),
            stall_timeout: self.time("stall-timeout"),
            redirect_hosts: self.redirect_hosts()?,
            ca_bundle: self.ca_bundle()?,
            exits: self.exits()?,
            sse: self.sse()?.0,
            sse_key_id: self.sse()?.1,
            storage_class: self.text("storage-class"),
            acl: self.text("acl"),
            requester_pays: self.flag("requester-pays"),
        })
    }

    fn quirks(&self, source: &Source, endpoint: Option<&str>) -> Result<Quirks, Error> {
        let name = self.text("provider").unwrap_or_else(|| store::AUTO.into());
        // What is known of AWS is documented for general purpose buckets.
        if name == store::AUTO && Arn::parse(&source.bucket).is_some_and(|arn| arn.is_of_outposts()) {
            return Ok(Quirks::LEARNED);
        }
        Quirks::of(&name, source.dialect, endpoint).map_err(|reason| self.refused("provider", name, reason))
    }

    /// Which buckets are mounted where SOURCE names none. Whether they are names of buckets is for the store to say.
    fn buckets(&self, source: &Source) -> Result<Option<Buckets>, Error> {
        let list = self.text("buckets");
        if !source.is_account() {
            return match list {
                Some(_) => Err(Error::Conflict(format!("buckets goes with s3:// alone, and the source is {source}: remove one of them"))),
                None => Ok(None),
            };
        }
        if self.text("read-endpoint").is_some() {
            return Err(Error::Conflict("read-endpoint is the address of one bucket: write s3://BUCKET, or remove it".into()));
        }
        let Some(list) = list else { return Ok(Some(Buckets::All)) };
        let names: Vec<String> = list.split([',', ' ']).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        match names.iter().find(|name| !source::is_bucket(name)) {
            Some(name) => Err(self.refused("buckets", list.clone(), format!("\"{name}\" is not a bucket name"))),
            None if names.is_empty() => Err(self.refused("buckets", list, "must name buckets, separated by commas".into())),
            None => Ok(Some(Buckets::Named(names))),
        }
    }

    fn content_types(&self) -> Result<ContentTypes, Error> {
        let own = self.text("content-type").unwrap_or_default();
        ContentTypes::new(self.flag("mime"), &own).map_err(|reason| self.refused("content-type", own.clone(), reason))
    }

    fn endpoint(&self, word: &str, source: &Source) -> Result<Option<String>, Error> {
        let Some(text) = self.text(word) else { return Ok(None) };
        source::endpoint(&text, &source.bucket).map(Some).map_err(|reason| {
            let shown = text.rsplit_once('@').map_or(text.as_str(), |(_, host)| host).to_owned();
            self.refused(word, shown, reason)
        })
    }

    /// How the store encrypts, and with which key. `kmsid:KEY` is how ossfs and s3fs write both.
    fn sse(&self) -> Result<(Sse, Option<String>), Error> {
        let key = self.text("sse-key-id");
        let Some(text) = self.text("sse") else {
            return match key {
                None => Ok((Sse::None, None)),
                Some(_) => Err(Error::Conflict("sse-key-id goes with sse=kms".into())),
            };
        };
        let lower = text.to_ascii_lowercase();
        let sse = match lower.as_str() {
            "on" | "true" | "1" | "aes256" => Sse::Aes256,
            "off" | "false" | "none" => Sse::None,
            "kms" | "aws:kms" => Sse::Kms,
            word if KMS_WORDS.contains(&word) => Sse::Kms,
            _ if lower.starts_with("kmsid:") || lower.starts_with("k:") => Sse::Kms,
            _ => {
                return Err(self.refused(
                    "sse",
                    text,
                    "must be on (AES256), kms, kmsid:KEY or off; keys of the client (SSE-C) are not supported".into(),
                ));
            }
        };
        let inside = text.split_once(':').filter(|_| lower.starts_with("kmsid:") || lower.starts_with("k:")).map(|(_, key)| key.to_owned());
        match (sse, inside.or(key)) {
            (Sse::Kms, key) => Ok((sse, key)),
            (_, None) => Ok((sse, None)),
            (_, Some(_)) => Err(Error::Conflict("sse-key-id goes with sse=kms".into())),
        }
    }

    fn ca_bundle(&self) -> Result<Option<CaBundle>, Error> {
        let Some(path) = self.path("ca-bundle") else { return Ok(None) };
        CaBundle::read(&path).map(Some).map_err(|reason| self.refused("ca-bundle", path.display().to_string(), reason))
    }

    fn exits(&self) -> Result<Vec<Exit>, Error> {
        let Some(list) = self.text("bind") else { return Ok(Vec::new()) };
        let exits: Result<_, String> = list.split([',', ' ', ';']).filter(|word| !word.is_empty()).map(str::parse).collect();
        exits.map_err(|reason| self.refused("bind", list.clone(), reason))
    }

    fn redirect_hosts(&self) -> Result<Vec<String>, Error> {
        let Some(list) = self.text("redirect-hosts") else { return Ok(Vec::new()) };
        let hosts: Vec<_> = list.split([',', ' ']).filter(|host| !host.is_empty()).map(str::to_ascii_lowercase).collect();
        let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']'));
        match hosts.iter().find(|host| host.contains(odd) || host.trim_matches(['.', ':']).is_empty()) {
            None => Ok(hosts),
            Some(host) => {
                let reason = format!("\"{host}\" is not host, host:port or .domain (without http:// and without a path)");
                Err(self.refused("redirect-hosts", list, reason))
            }
        }
    }

    fn credentials(&self) -> Result<CredentialOptions, Error> {
        let keys = match (self.text("access-key-id"), self.text("access-key-secret")) {
            (Some(id), Some(secret)) => Some(StaticKeys { id, secret, token: self.text("session-token") }),
            (None, None) => None,
            _ => return Err(Error::Conflict("access-key-id and access-key-secret go together: one of them is missing".into())),
        };
        let key_files = match (self.path("access-key-id-file"), self.path("access-key-secret-file"), self.path("session-token-file")) {
            (Some(id), Some(secret), token) => Some(KeyFiles { id, secret, token }),
            (None, None, None) => None,
            _ => return Err(Error::Conflict("access-key-id-file and access-key-secret-file go together: one of them is missing".into())),
        };
        let web_identity = WebIdentity {
            role_arn: self.text("role-arn"),
            provider_arn: self.text("oidc-provider-arn"),
            token_file: self.path("oidc-token-file"),
            session_name: self.text("role-session-name"),
            sts_endpoint: self.text("sts-endpoint"),
            then_role_arn: self.text("assume-role-arn"),
            external_id: self.text("assume-role-external-id"),
        };
        Ok(CredentialOptions {
            keys,
            key_files,
            web_identity: Some(web_identity).filter(|identity| *identity != WebIdentity::default()),
            profile: self.text("profile"),
            passwd_file: self.path("passwd-file"),
            process: self.text("credential-process"),
            // ossfs takes the whole address of the metadata service, whose last part is the role.
            ram_role: self.text("ram-role").map(|role| role.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()),
        })
    }
}

fn variable(environment: &[(String, String)], names: &[&str]) -> Option<(String, String)> {
    names.iter().find_map(|name| environment.iter().find(|(n, text)| n == name && !text.is_empty()).cloned())
}

#[cfg(test)]
mod tests {
    use super::super::gather::Input;
    use super::*;

    fn store(environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<store::Options, Error> {
        let environment: Vec<(String, String)> = environment.iter().map(|&(name, text)| (name.into(), text.into())).collect();
        let flags = flags.iter().map(|&(name, text)| (name.into(), Some(text.into()))).collect();
        let mut values = Values::gather(&Input { places: vec!["s3://data".into()], flags, ..Input::default() })?;
        let source = values.take_source(&environment)?;
        values.store(&source)
    }

    #[test]
    fn what_was_said_to_us_comes_before_what_was_said_to_other_tools() {
        let environment = [("AWS_REGION", "there"), ("AWS_ENDPOINT_URL", "http://there.example.com"), ("OSS_REGION", "elsewhere")];
        let found = |flags: &[_]| store(&environment, flags).map(|store| (store.region, store.endpoint)).unwrap();
        let both = |region: &str, host: &str| (Some(region.to_owned()), Some(format!("http://{host}.example.com")));
        assert_eq!(found(&[]), both("there", "there"));
        assert_eq!(found(&[("region", "here")]), both("here", "there"));
        assert_eq!(found(&[("region", "here"), ("endpoint", "http://here.example.com")]), both("here", "here"));
    }

    #[test]
    fn a_provider_says_what_is_known_of_the_store() {
        let quirks = |flags: &[_]| store(&[], flags).map(|store| store.quirks);
        let r2 = Quirks::of("r2", Dialect::S3, Some("http://127.0.0.1")).unwrap();
        assert_ne!(r2, Quirks::LEARNED);
        assert_eq!(quirks(&[("provider", "r2"), ("endpoint", "http://127.0.0.1:9000")]).unwrap(), r2);
        assert_eq!(quirks(&[("endpoint", "https://0123.r2.cloudflarestorage.com")]).unwrap(), r2);
        assert_eq!(quirks(&[("endpoint", "http://127.0.0.1:9000")]).unwrap(), Quirks::LEARNED);
        let of_environment = store(&[("AWS_ENDPOINT_URL", "https://0123.r2.cloudflarestorage.com")], &[]).unwrap();
        assert_eq!(of_environment.quirks, r2);
    }

    #[test]
    fn buckets_of_outposts_are_not_taken_for_those_of_a_region() {
        let quirks = |arn: &str| {
            let source = Source { dialect: Dialect::S3, bucket: arn.into(), prefix: String::new() };
            Values::gather(&Input::default()).unwrap().store(&source).unwrap().quirks
        };
        assert_eq!(quirks("arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-01/accesspoint/test"), Quirks::LEARNED);
        assert_eq!(quirks("arn:aws:s3:us-west-2:123456789012:accesspoint/test"), Quirks::of("aws", Dialect::S3, None).unwrap());
    }

    #[test]
    fn a_provider_that_cannot_be_is_one_clear_line() {
        let line = |source: &str, flags: &[(&str, &str)]| {
            let flags = flags.iter().map(|&(name, text)| (name.into(), Some(text.into()))).collect();
            let gathered = Values::gather(&Input { places: vec![source.into()], flags, ..Input::default() });
            gathered.and_then(|mut values| values.take_source(&[]).and_then(|source| values.store(&source))).unwrap_err().to_string()
        };
        for (source, flags, expected) in [
            ("oss://data", &[("provider", "minio")][..], "write s3://BUCKET for minio"),
            ("s3://data", &[("provider", "r2")][..], "add --endpoint"),
            ("s3://data", &[("provider", "azure")][..], "versitygw"),
        ] {
            let line = line(source, flags);
            assert!(line.contains("provider") && line.contains(expected) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn the_values_of_provider_are_the_providers() {
        let spec = crate::config::OPTIONS.iter().find(|spec| spec.name == "provider").unwrap();
        for name in std::iter::once(store::AUTO).chain(store::PROVIDERS.iter().map(|provider| provider.name)) {
            assert!(spec.kind.parse(name).is_ok() && spec.help.contains(name), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_told_with_its_origin() {
        for (name, text) in [("sse", "rot13"), ("bind", "eth 0:1"), ("redirect-hosts", "http://x/y"), ("content-type", "parquet")] {
            let Err(Error::Value { word, text: told, origin, .. }) = store(&[], &[(name, text)]) else { panic!("{name}={text}") };
            assert_eq!((word.as_str(), told.as_str(), origin), (name, text, Origin::Flag(name.into())));
        }
        assert!(matches!(store(&[], &[("sse-key-id", "k")]), Err(Error::Conflict(_))));
    }
}
