//! Roles that are assumed by others, and the role of an instance: the keys of the last one sign, and those of the first never reach the store.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::clouds::{Cloud, OBJECT};
use crate::readers::Readers;
use crate::support::mounts::{Daemon, Mount, trial};
use crate::support::sts::{Minted, Question, ROLE_OF_EC2, TokenService};
use crate::tokens::{HOUR, ROLE, Token, give, give_then};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_role_of_a_token_assumes_another_on_oss", second_role_of_oss),
        trial("a_role_of_a_profile_assumes_another_on_s3", second_role_of_s3),
        trial("the_role_of_an_instance_signs_and_its_keys_are_replaced_ahead_of_time", instance),
        trial("the_role_of_an_instance_signs_on_s3_under_its_name_and_without", instance_of_s3),
    ]
}

const SECOND: &str = "arn:of:the:second:role";

/// What stands for a role: the token that comes with its keys.
fn token_of(id: &str) -> String {
    Minted::new(id, HOUR).token
}

/// Gives out `first` for `token`, which the store does not know, and `second` to who has that.
fn chain(sts: &TokenService, cloud: &Cloud, token: &str, (first, second): (&str, &str)) {
    sts.give(token, Minted::new(first, HOUR));
    give(sts, cloud, &token_of(first), second, HOUR);
}

fn asked(action: &str, role: &str, token: &str) -> Question {
    Question { action: action.into(), role: role.into(), token: token.into() }
}

#[track_caller]
fn only_signed(cloud: &Cloud, mount: &Mount, ids: &[&str]) {
    let seen = cloud.seen();
    let others: Vec<_> = seen.iter().filter(|(id, let_in)| !*let_in || !ids.contains(&&**id)).collect();
    assert!(!seen.is_empty() && others.is_empty(), "{others:?}\n{}", mount.log());
}

fn second_role_of_oss() {
    let (cloud, sts, mut token) = (Cloud::oss(), TokenService::start(), Token::new("jwt-one"));
    chain(&sts, &cloud, "jwt-one", ("STSfirst", "STSsecond"));
    let path = token.path();
    let daemon = cloud.daemon().arg("--role-arn", ROLE).arg("--oidc-provider-arn", "acs:ram::1:oidc-provider/ack-rrsa");
    let daemon = daemon.arg("--oidc-token-file", path.to_str().expect("the test names it")).arg("--sts-endpoint", &sts.url());
    let mount = daemon.arg("--assume-role-arn", SECOND).arg("--assume-role-external-id", "outside").start();
    let readers = Readers::start(&mount.join(OBJECT), cloud.size(), cloud.content());
    readers.read_on();
    let expected = [asked("AssumeRoleWithOIDC", ROLE, "jwt-one"), asked("AssumeRole", SECOND, &token_of("STSfirst"))];
    assert_eq!(sts.asked(), expected);
    only_signed(&cloud, &mount, &["STSsecond"]);

    // Another token is another first role, and that assumes the second one again.
    chain(&sts, &cloud, "jwt-two", ("STSfirst2", "STSsecond2"));
    token.replace("jwt-two");
    cloud.wait_for("STSsecond2");
    readers.read_on();
    cloud.keyring().forget("STSsecond");
    readers.read_on();
    readers.stop();
    only_signed(&cloud, &mount, &["STSsecond", "STSsecond2"]);
}

fn second_role_of_s3() {
    let (cloud, sts, token) = (Cloud::s3(), TokenService::start(), Token::new("jwt"));
    chain(&sts, &cloud, "jwt", ("STSfirst", "STSsecond"));
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let (config, path) = (home.path().join("config"), token.path());
    let profiles = format!(
        "[profile first]\nrole_arn = {ROLE}\nrole_session_name = s\nweb_identity_token_file = {}\n\
         [profile second]\nrole_arn = {SECOND}\nrole_session_name = s\nsource_profile = first\n",
        path.display()
    );
    fs::write(&config, profiles).expect("it can be written");
    let daemon: Daemon<'static> = cloud.daemon().arg("--profile", "second").env("AWS_ENDPOINT_URL_STS", sts.url());
    let daemon = daemon.env("AWS_CONFIG_FILE", config.to_str().expect("the test names it"));
    let mount = daemon.env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null").start();
    let readers = Readers::start(&mount.join(OBJECT), cloud.size(), cloud.content());
    readers.read_on();
    readers.stop();
    let expected = [asked("AssumeRoleWithWebIdentity", ROLE, "jwt"), asked("AssumeRole", SECOND, &token_of("STSfirst"))];
    assert_eq!(sts.asked(), expected);
    only_signed(&cloud, &mount, &["STSsecond"]);
}

/// The keys of the environment are not asked: they are those that the store does not know.
fn instance_of_s3() {
    for role in [ROLE_OF_EC2, "auto"] {
        let (cloud, sts) = (Cloud::s3(), TokenService::start());
        give(&sts, &cloud, ROLE_OF_EC2, "STSec2", HOUR);
        let daemon: Daemon<'static> = cloud.daemon().arg("--ram-role", role).env("AWS_EC2_METADATA_SERVICE_ENDPOINT", sts.url());
        let daemon = daemon.env("AWS_EC2_METADATA_DISABLED", "false");
        let mount = daemon.env("AWS_ACCESS_KEY_ID", "other").env("AWS_SECRET_ACCESS_KEY", "other").start();
        let readers = Readers::start(&mount.join(OBJECT), cloud.size(), cloud.content());
        readers.read_on();
        readers.stop();
        only_signed(&cloud, &mount, &["STSec2"]);
    }
}

/// The last quarter of four seconds begins after three.
fn instance() {
    let (cloud, sts) = (Cloud::oss(), TokenService::start());
    give(&sts, &cloud, "reader", "STSshort", Duration::from_secs(4));
    give_then(&sts, &cloud, "reader", "STSlong", HOUR);
    let daemon = cloud.daemon().arg("--ram-role", "reader").env("ALIBABA_CLOUD_ECS_METADATA_SERVICE_ENDPOINT", sts.url());
    let mount = daemon.start();
    let readers = Readers::start(&mount.join(OBJECT), cloud.size(), cloud.content());
    cloud.wait_for("STSlong");
    // Whatever was signed before is answered by now.
    readers.read_on();
    cloud.keyring().forget("STSshort");
    readers.read_on();
    readers.stop();
    assert_eq!(sts.asked(), [(); 2].map(|()| asked("/latest/meta-data/ram/security-credentials/reader", "", "reader")));
    only_signed(&cloud, &mount, &["STSshort", "STSlong"]);
}
