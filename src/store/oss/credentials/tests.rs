use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use reqsign_core::StaticEnv;

use super::*;
use crate::store::StaticKeys;
use crate::store::wire::{Fake, Reply};

/// An environment in which the metadata service is a closed port.
fn env(home: Option<&Path>, vars: &[(&str, &str)]) -> StaticEnv {
    let nowhere = ("ALIBABA_CLOUD_ECS_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1");
    let envs = vars.iter().chain([&nowhere]).map(|&(name, value)| (name.to_owned(), value.to_owned())).collect::<HashMap<_, _>>();
    StaticEnv { home_dir: home.map(Path::to_owned), envs }
}

async fn provide(options: &CredentialOptions, env: StaticEnv) -> Result<Keys, Missing> {
    Sources::new(options, "data", env).unwrap().fetch().await
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
    assert_eq!((found.id.as_str(), found.token.as_deref()), ("ENV", Some("t")));
    let found = provide(&CredentialOptions::default(), env(Some(home.path()), &[])).await.unwrap();
    assert_eq!(found.id, "FILE");
}

#[tokio::test]
async fn an_option_is_asked_instead_of_the_usual_places() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".oss")).unwrap();
    let profiles = "[default]\naccess_key_id=DEF\naccess_key_secret=s\n[work]\naccess_key_id=WORK\naccess_key_secret=s\n";
    secret_file(&home.path().join(".oss/credentials"), profiles);
    let vars = [("OSS_ACCESS_KEY_ID", "ENV"), ("OSS_ACCESS_KEY_SECRET", "s"), ("OSS_PROFILE", "default")];
    let work = CredentialOptions { profile: Some("work".into()), ..CredentialOptions::default() };
    assert_eq!(provide(&work, env(Some(home.path()), &vars)).await.unwrap().id, "WORK");

    let missing = CredentialOptions { passwd_file: Some(home.path().join("none")), ..CredentialOptions::default() };
    let error = provide(&missing, env(Some(home.path()), &vars)).await.unwrap_err();
    assert!(error.to_string().contains("cannot read the credentials file"), "{error}");
}

#[tokio::test]
async fn a_profile_file_that_others_can_write_is_no_source_of_keys() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".oss/credentials");
    std::fs::create_dir(home.path().join(".oss")).unwrap();
    secret_file(&file, "[default]\naccess_key_id=DEF\naccess_key_secret=s\n");
    let named = CredentialOptions { profile: Some("default".into()), ..CredentialOptions::default() };
    let usual = CredentialOptions::default();
    for options in [&named, &usual] {
        assert_eq!(provide(options, env(Some(home.path()), &[])).await.unwrap().id, "DEF");
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    for options in [&named, &usual] {
        let error = provide(options, env(Some(home.path()), &[])).await.unwrap_err();
        let words = format!("{} can be written by others (mode 666): chmod 600", file.display());
        assert!(error.to_string().contains(&words), "{error}");
    }
    // Its keys are not used.
    let vars = [("OSS_ACCESS_KEY_ID", "ENV"), ("OSS_ACCESS_KEY_SECRET", "s")];
    assert_eq!(provide(&usual, env(Some(home.path()), &vars)).await.unwrap().id, "ENV");
}

#[tokio::test]
async fn keys_of_the_configuration_go_before_everything_else() {
    let vars = [("OSS_ACCESS_KEY_ID", "ENV"), ("OSS_ACCESS_KEY_SECRET", "s")];
    let keys = StaticKeys { id: "GIVEN".into(), secret: "gs".into(), token: Some("gt".into()) };
    let options = CredentialOptions { keys: Some(keys), passwd_file: Some("/nonexistent/passwd".into()), ..CredentialOptions::default() };
    let found = provide(&options, env(None, &vars)).await.unwrap();
    assert_eq!((found.id.as_str(), found.secret.as_str()), ("GIVEN", "gs"));
    assert_eq!(found.token.as_deref(), Some("gt"));
}

#[tokio::test]
async fn nothing_found_names_all_that_was_looked_at_and_what_to_set() {
    let error = provide(&CredentialOptions::default(), env(None, &[])).await.unwrap_err();
    for words in ["OSS_ACCESS_KEY_ID", "~/.oss/credentials", "metadata service", "OIDC", "--passwd-file", "--signature none"] {
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
}

fn json(body: &str) -> Reply {
    Reply::Keep(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

fn temporary(id: &str) -> String {
    format!(r#"{{"AccessKeyId":"{id}","AccessKeySecret":"s","SecurityToken":"t","Expiration":"2099-01-01T00:00:00Z","Code":"Success"}}"#)
}

#[tokio::test]
async fn the_web_identity_of_a_pod_is_asked_before_the_role_of_its_node() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "jwt").unwrap();
    let fake = Fake::start(vec![json(&format!(r#"{{"Credentials":{}}}"#, temporary("POD")))]).await;
    let url = format!("http://{}", fake.address());
    let token = dir.path().join("token").display().to_string();
    let mut env = env(None, &[("ALIBABA_CLOUD_OIDC_TOKEN_FILE", token.as_str()), ("ALIBABA_CLOUD_STS_ENDPOINT", url.as_str())]);
    for (name, value) in [("ROLE_ARN", "arn"), ("OIDC_PROVIDER_ARN", "idp"), ("ECS_METADATA_SERVICE_ENDPOINT", url.as_str())] {
        env.envs.insert(format!("ALIBABA_CLOUD_{name}"), value.into());
    }
    let found = provide(&CredentialOptions::default(), env).await.unwrap();
    assert_eq!((found.id.as_str(), found.token.as_deref()), ("POD", Some("t")));
    let heads = fake.heads();
    assert!(heads.len() == 1 && heads[0].contains("assumerolewithoidc"), "{heads:?}");
}

#[tokio::test]
async fn a_named_role_is_asked_of_the_metadata_service() {
    let fake = Fake::start(vec![json("metadata-token"), json(&temporary("ROLE"))]).await;
    let mut env = env(None, &[("OSS_ACCESS_KEY_ID", "ENV"), ("OSS_ACCESS_KEY_SECRET", "s")]);
    env.envs.insert("ALIBABA_CLOUD_ECS_METADATA_SERVICE_ENDPOINT".into(), format!("http://{}", fake.address()));
    let options = CredentialOptions { ram_role: Some("reader".into()), ..CredentialOptions::default() };
    assert_eq!(provide(&options, env).await.unwrap().id, "ROLE");
    assert!(fake.heads()[1].starts_with("get /latest/meta-data/ram/security-credentials/reader "));
}

#[tokio::test(start_paused = true)]
async fn a_metadata_service_that_never_answers_costs_less_than_two_seconds() {
    // Connections are taken by the kernel's backlog and nobody reads them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut env = env(None, &[]);
    let url = format!("http://{}", silent.local_addr().unwrap());
    env.envs.insert("ALIBABA_CLOUD_ECS_METADATA_SERVICE_ENDPOINT".into(), url);
    let start = tokio::time::Instant::now();
    provide(&CredentialOptions::default(), env).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
