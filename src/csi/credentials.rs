//! Credentials of a volume as files for its daemon: keys of a Secret in the spellings of the known drivers, and tokens of the pod's service
//! account. Decides names and contents; writes nothing. Invariant: no secret is in what is said about the mount, only in the files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::store::KeyField;

/// The files by their names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The fields in the files, as the drivers of Alibaba Cloud mount them.
const FILES: [(&str, KeyField); 4] = [
    ("AccessKeyId", KeyField::Id),
    ("AccessKeySecret", KeyField::Secret),
    ("SecurityToken", KeyField::Token),
    ("Expiration", KeyField::Expiration),
];

/// A token of a service account, as kubelet gives it.
#[derive(Deserialize)]
struct Token {
    token: String,
}

/// The keys in a Secret; none when it has none.
///
/// # Errors
/// When it has half of a pair.
pub fn keys(secrets: &BTreeMap<String, String>) -> Result<Option<Files>, String> {
    let value = |field: KeyField| {
        let found = secrets.iter().find(|(name, text)| KeyField::of(name) == Some(field) && !text.trim().is_empty());
        found.map(|(_, text)| text.trim().as_bytes().to_vec())
    };
    let files: Files = FILES.iter().filter_map(|(file, field)| Some(((*file).to_owned(), value(*field)?))).collect();
    match (files.contains_key("AccessKeyId"), files.contains_key("AccessKeySecret")) {
        (true, true) => Ok(Some(files)),
        (false, false) if files.is_empty() => Ok(None),
        (has_id, _) => {
            let (there, missing) = if has_id { ("a key id", "its secret") } else { ("a secret", "its key id") };
            Err(format!("the Secret has {there} and not {missing}: it needs access-key-id and access-key-secret"))
        }
    }
}

/// The tokens in the attribute csi.storage.k8s.io/serviceAccount.tokens, each under the name of its audience.
///
/// # Errors
/// When it is not what kubelet writes there.
pub fn tokens(attribute: &str) -> Result<Files, String> {
    // Without a look at what it says: that would put the tokens into the message.
    let read: BTreeMap<String, Token> = serde_json::from_str(attribute)
        .map_err(|error| format!("the tokens of the service account cannot be read (column {})", error.column()))?;
    Ok(read.into_iter().map(|(audience, token)| (file_of(&audience), token.token.into_bytes())).collect())
}

/// The name of the file of an audience, which may be a URL.
fn file_of(audience: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let name: String = audience.chars().map(plain).collect();
    format!("token-{}", if name.is_empty() { "default" } else { &name })
}

/// Which role the tokens are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    pub arn: Option<String>,
    /// Alibaba Cloud names the provider too.
    pub provider: Option<String>,
}

/// The variables under which the clouds' libraries look for their tokens, when these lie in `directory`.
pub fn environment(tokens: &Files, role: &Role, directory: &Path) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    let file = |audience: &str| {
        let name = file_of(audience);
        tokens.contains_key(&name).then(|| directory.join(name).to_string_lossy().into_owned())
    };
    let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
    match (file("sts.amazonaws.com"), &role.arn, file("pods.eks.amazonaws.com")) {
        (Some(file), Some(arn), _) => {
            set("AWS_WEB_IDENTITY_TOKEN_FILE", file);
            set("AWS_ROLE_ARN", arn.clone());
        }
        (_, _, Some(file)) => {
            set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file);
            // The address of the agent on every node of EKS (Pod Identity).
            set("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials".into());
        }
        _ => {}
    }
    if let (Some(file), Some(arn), Some(provider)) = (file("sts.aliyuncs.com"), &role.arn, &role.provider) {
        set("ALIBABA_CLOUD_OIDC_TOKEN_FILE", file);
        set("ALIBABA_CLOUD_ROLE_ARN", arn.clone());
        set("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", provider.clone());
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn every_spelling_of_a_pair_is_the_same_pair() {
        for (id, secret) in [
            ("access-key-id", "access-key-secret"),
            ("akId", "akSecret"),
            ("key_id", "access_key"),
            ("AccessKeyId", "AccessKeySecret"),
            ("accessKeyID", "secretAccessKey"),
            ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
            ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET"),
        ] {
            let files = keys(&map(&[(id, "one\n"), (secret, "two"), ("other", "x")])).unwrap().unwrap();
            let expected = [("AccessKeyId".to_owned(), b"one".to_vec()), ("AccessKeySecret".to_owned(), b"two".to_vec())];
            assert_eq!(files, expected.into(), "{id}");
        }
        let all = keys(&map(&[("akId", "1"), ("akSecret", "2"), ("SecurityToken", "3"), ("Expiration", "4")])).unwrap().unwrap();
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn half_a_pair_is_refused_without_showing_it() {
        assert_eq!(keys(&map(&[("endpoint", "x")])), Ok(None));
        let error = keys(&map(&[("akSecret", "hidden")])).unwrap_err();
        assert!(error.contains("access-key-id") && !error.contains("hidden"), "{error}");
    }

    #[test]
    fn tokens_become_files_and_variables() {
        let text = r#"{"sts.amazonaws.com":{"token":"a","expirationTimestamp":"2026-01-01T00:00:00Z"},"sts.aliyuncs.com":{"token":"b"}}"#;
        let files = tokens(text).unwrap();
        assert_eq!(files["token-sts.amazonaws.com"], b"a");
        let role = Role { arn: Some("arn:1".into()), provider: Some("arn:2".into()) };
        let variables = environment(&files, &role, Path::new("/windlass/data/credentials"));
        assert_eq!(variables["AWS_WEB_IDENTITY_TOKEN_FILE"], "/windlass/data/credentials/token-sts.amazonaws.com");
        assert_eq!(variables["ALIBABA_CLOUD_OIDC_TOKEN_FILE"], "/windlass/data/credentials/token-sts.aliyuncs.com");
        assert_eq!((variables["AWS_ROLE_ARN"].as_str(), variables["ALIBABA_CLOUD_OIDC_PROVIDER_ARN"].as_str()), ("arn:1", "arn:2"));
        assert!(environment(&files, &Role::default(), Path::new("/")).is_empty(), "nobody said which role");
        let pod = tokens(r#"{"pods.eks.amazonaws.com":{"token":"c"}}"#).unwrap();
        let variables = environment(&pod, &Role::default(), Path::new("/c"));
        assert_eq!(variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"], "/c/token-pods.eks.amazonaws.com");
        let error = tokens(r#"{"a":"hidden"}"#).err().unwrap();
        assert!(!error.contains("hidden"), "{error}");
        assert_eq!(file_of("https://x/../y"), "token-https___x_.._y");
    }
}
