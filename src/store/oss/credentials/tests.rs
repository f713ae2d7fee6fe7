use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use reqsign_core::StaticEnv;

use super::*;

/// An environment in which the metadata service is a closed port.
fn env(home: Option<&Path>, vars: &[(&str, &str)]) -> StaticEnv {
    let nowhere = ("ALIBABA_CLOUD_ECS_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1");
    let envs = vars.iter().chain([&nowhere]).map(|&(name, value)| (name.to_owned(), value.to_owned())).collect::<HashMap<_, _>>();
    StaticEnv { home_dir: home.map(Path::to_owned), envs }
}

async fn provide(options: &CredentialOptions, env: StaticEnv) -> reqsign_core::Result<Credential> {
    let sources = Sources::new(options, "data", env).unwrap();
    sources.provide_credential(&Context::new()).await.map(|found| found.expect("found or an error"))
}

fn secret_file(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[tokio::test]
async fn the_environment_is_asked_before_the_users_password_file() {
    let home = tempfile::tempdir().unwrap();
    secret_file(&home.path().join(".passwd-ossfs"), "data:FILE:s\n");
    let vars = [("OSS_ACCESS_KEY_ID", "ENV"), ("OSS_ACCESS_KEY_SECRET", "s"), ("OSS_SESSION_TOKEN", "t")];
    let found = provide(&CredentialOptions::default(), env(Some(home.path()), &vars)).await.unwrap();
    assert_eq!((found.access_key_id.as_str(), found.security_token.as_deref()), ("ENV", Some("t")));
    let found = provide(&CredentialOptions::default(), env(Some(home.path()), &[])).await.unwrap();
    assert_eq!(found.access_key_id, "FILE");
}

#[tokio::test]
async fn an_option_is_asked_instead_of_the_usual_places() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".oss")).unwrap();
    let profiles = "[default]\naccess_key_id=DEF\naccess_key_secret=s\n[work]\naccess_key_id=WORK\naccess_key_secret=s\n";
    secret_file(&home.path().join(".oss/credentials"), profiles);
    let vars = [("OSS_ACCESS_KEY_ID", "ENV"), ("OSS_ACCESS_KEY_SECRET", "s"), ("OSS_PROFILE", "default")];
    let work = CredentialOptions { profile: Some("work".into()), ..CredentialOptions::default() };
    assert_eq!(provide(&work, env(Some(home.path()), &vars)).await.unwrap().access_key_id, "WORK");

    let missing = CredentialOptions { passwd_file: Some(home.path().join("none")), ..CredentialOptions::default() };
    let error = provide(&missing, env(Some(home.path()), &vars)).await.unwrap_err();
    assert!(error.to_string().contains("cannot read the credentials file"), "{error}");
}

#[tokio::test]
async fn nothing_found_names_all_that_was_looked_at_and_what_to_set() {
    let error = provide(&CredentialOptions::default(), env(None, &[])).await.unwrap_err();
    assert_eq!(error.kind(), reqsign_core::ErrorKind::CredentialInvalid);
    for words in ["OSS_ACCESS_KEY_ID", "~/.oss/credentials", "metadata service", "OIDC", "--passwd-file", "--signature none"] {
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
}

#[tokio::test]
async fn keys_of_a_file_are_read_again_and_kept_while_the_file_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("passwd");
    secret_file(&path, "OLD:s\n");
    let options = CredentialOptions { passwd_file: Some(path.clone()), ..CredentialOptions::default() };
    let sources = Sources::new(&options, "data", env(None, &[])).unwrap();
    let ask = async || sources.provide_credential(&Context::new()).await.unwrap().unwrap();
    let first = ask().await;
    assert_eq!(first.access_key_id, "OLD");
    assert!(first.expires_in.is_some_and(|end| end <= Timestamp::now() + RELOAD + FRESH), "else the file is never read again");
    secret_file(&path, "half-written");
    assert_eq!(ask().await.access_key_id, "OLD");
    secret_file(&path, "NEW:s\n");
    assert_eq!(ask().await.access_key_id, "NEW");
}
