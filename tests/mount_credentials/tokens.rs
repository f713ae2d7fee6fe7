//! Projected tokens: the file changes, and the token service sees the new one, gives out new keys, and these sign.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::clouds::{Cloud, OBJECT};
use crate::readers::Readers;
use crate::support::mounts::{Daemon, trial};
use crate::support::sts::{Minted, TokenService};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_new_web_identity_token_of_aws_is_sent_and_its_keys_sign", || {
            let environment = |sts: &TokenService, daemon: Daemon<'static>, token: &str| {
                let daemon = daemon.env("AWS_WEB_IDENTITY_TOKEN_FILE", token).env("AWS_ROLE_ARN", ROLE);
                daemon.env("AWS_ENDPOINT_URL_STS", sts.url())
            };
            replaced(&Cloud::s3(), "AssumeRoleWithWebIdentity", &environment);
        }),
        trial("a_new_token_of_pod_identity_is_sent_and_its_keys_sign", || {
            let environment = |sts: &TokenService, daemon: Daemon<'static>, token: &str| {
                let daemon = daemon.env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token);
                daemon.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}/v1/credentials", sts.url()))
            };
            replaced(&Cloud::s3(), "/v1/credentials", &environment);
        }),
        trial("a_new_token_of_rrsa_is_sent_and_its_keys_sign", || {
            let environment = |sts: &TokenService, daemon: Daemon<'static>, token: &str| {
                let daemon = daemon.env("ALIBABA_CLOUD_OIDC_TOKEN_FILE", token).env("ALIBABA_CLOUD_ROLE_ARN", ROLE);
                let daemon = daemon.env("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "acs:ram::1:oidc-provider/ack-rrsa");
                daemon.env("ALIBABA_CLOUD_STS_ENDPOINT", sts.url())
            };
            replaced(&Cloud::oss(), "AssumeRoleWithOIDC", &environment);
        }),
        trial("rrsa_can_be_said_by_options", || {
            let options = |sts: &TokenService, daemon: Daemon<'static>, token: &str| {
                let daemon = daemon.arg("--role-arn", ROLE).arg("--oidc-provider-arn", "acs:ram::1:oidc-provider/ack-rrsa");
                daemon.arg("-o", &format!("rrsa_token_file={token},rrsa_endpoint={}", sts.url()))
            };
            replaced(&Cloud::oss(), "AssumeRoleWithOIDC", &options);
        }),
        trial("keys_that_expire_are_replaced_ahead_of_time_by_the_token_that_is_there", ahead),
    ]
}

pub const ROLE: &str = "arn:of:the:role";

/// A token as Kubernetes projects it.
pub struct Token {
    dir: TempDir,
    generation: usize,
}

impl Token {
    pub fn new(text: &str) -> Self {
        let mut token = Self { dir: tempfile::tempdir().expect("a temporary directory can be made"), generation: 0 };
        token.replace(text);
        symlink("..data/token", token.path()).expect("it is not there yet");
        token
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    pub fn replace(&mut self, text: &str) {
        self.generation += 1;
        let name = format!("..{}", self.generation);
        let at = |name: &str| -> PathBuf { Path::new(self.dir.path()).join(name) };
        fs::create_dir(at(&name)).expect("it is a new one");
        fs::write(at(&name).join("token"), text).expect("it can be written");
        symlink(&name, at("..tmp")).expect("it is not there");
        fs::rename(at("..tmp"), at("..data")).expect("a link can be renamed over another");
    }
}

/// Has the service give out `id` for `token`, and the store let it in.
pub fn give(sts: &TokenService, cloud: &Cloud, token: &str, id: &str, lives: Duration) {
    let minted = Minted::new(id, lives);
    cloud.keyring().admit(id, &minted.secret, Some(&minted.token));
    sts.give(token, minted);
}

/// Has the service give out `id` to who asks a second time, and the store let it in.
pub fn give_then(sts: &TokenService, cloud: &Cloud, token: &str, id: &str, lives: Duration) {
    let minted = Minted::new(id, lives);
    cloud.keyring().admit(id, &minted.secret, Some(&minted.token));
    sts.give_then(token, minted);
}

pub const HOUR: Duration = Duration::from_secs(3600);

fn replaced(cloud: &Cloud, action: &str, say: &dyn Fn(&TokenService, Daemon<'static>, &str) -> Daemon<'static>) {
    let (sts, mut token) = (TokenService::start(), Token::new("jwt-one"));
    give(&sts, cloud, "jwt-one", "STSone", HOUR);
    let path = token.path();
    let daemon = say(&sts, cloud.daemon(), path.to_str().expect("the test names it"));
    let mount = daemon.start();
    let readers = Readers::start(&mount.join(OBJECT), cloud.size(), cloud.content());
    readers.read_on();
    let asked = sts.asked();
    assert!(asked.iter().all(|question| question.action == action && question.token == "jwt-one"), "{asked:?}");
    assert_eq!(asked.len(), 1, "keys of an hour are asked for once: {asked:?}");
    assert!(action.starts_with('/') || asked[0].role == ROLE, "{asked:?}");

    give(&sts, cloud, "jwt-two", "STStwo", HOUR);
    token.replace("jwt-two");
    cloud.wait_for("STStwo");
    readers.read_on();
    cloud.keyring().forget("STSone");
    readers.read_on();
    assert_eq!(sts.asked().last().map(|question| question.token.clone()), Some("jwt-two".into()));

    // A token that the service does not take changes nothing.
    token.replace("jwt-unknown");
    mount.wait_for_log(|log| log.contains("could not be asked for again"));
    readers.read_on();
    readers.stop();
    assert_eq!(cloud.seen().iter().filter(|(_, let_in)| !let_in).count(), 0, "{}", mount.log());
    assert!(!mount.log().contains("jwt-"), "a token is in the log:\n{}", mount.log());
}

/// The last quarter of four seconds begins after three.
fn ahead() {
    let cloud = Cloud::oss();
    let (sts, token) = (TokenService::start(), Token::new("jwt"));
    give(&sts, &cloud, "jwt", "STSshort", Duration::from_secs(4));
    give_then(&sts, &cloud, "jwt", "STSlong", HOUR);
    let path = token.path();
    let daemon = cloud.daemon().env("ALIBABA_CLOUD_OIDC_TOKEN_FILE", path.to_str().expect("the test names it"));
    let daemon = daemon.env("ALIBABA_CLOUD_ROLE_ARN", ROLE).env("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "acs:ram::1:oidc-provider/p");
    let mount = daemon.env("ALIBABA_CLOUD_STS_ENDPOINT", sts.url()).start();
    let readers = Readers::start(&mount.join(OBJECT), cloud.size(), cloud.content());
    cloud.wait_for("STSlong");
    // Whatever was signed before is answered by now.
    readers.read_on();
    cloud.keyring().forget("STSshort");
    readers.read_on();
    readers.stop();
    assert_eq!(sts.asked().len(), 2);
}
