//! A command that prints credentials as JSON: `{"AccessKeyId": …, "AccessKeySecret": …, "SecurityToken": …,
//! "Expiration": "2026-01-01T00:00:00Z"}`, the last two optional. Its output never reaches a message.

use std::process::Stdio;
use std::time::Duration;

use reqsign_aliyun_oss::Credential;
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, ProvideCredential};
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

use crate::store::credentials::own_variables;

/// A process that fetches from a vault needs a second or two; a mount that gets no credentials must fail within five.
const DEADLINE: Duration = Duration::from_secs(4);

/// The command, run by `sh -c`.
#[derive(Debug)]
pub(super) struct Process {
    command: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Output {
    access_key_id: String,
    access_key_secret: String,
    security_token: Option<String>,
    expiration: Option<String>,
}

impl Process {
    pub fn new(command: &str) -> Self {
        Self { command: command.to_owned() }
    }

    async fn run(&self) -> Result<Vec<u8>, String> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command).stdin(Stdio::null()).kill_on_drop(true);
        own_variables().iter().for_each(|name| _ = command.env_remove(name));
        let output = timeout(DEADLINE, command.output()).await.map_err(|_| format!("it did not end within {DEADLINE:?}"))?;
        let output = output.map_err(|error| format!("it cannot be started: {error}"))?;
        if output.status.success() { Ok(output.stdout) } else { Err(format!("it failed: {}", output.status)) }
    }
}

impl ProvideCredential for Process {
    type Credential = Credential;

    async fn provide_credential(&self, _: &Context) -> reqsign_core::Result<Option<Credential>> {
        let stdout = self.run().await.map_err(Error::config_invalid)?;
        parse(&stdout).map(Some).map_err(Error::config_invalid)
    }
}

fn parse(stdout: &[u8]) -> Result<Credential, &'static str> {
    // serde's own message would quote what it found.
    let output: Output = serde_json::from_slice(stdout).map_err(|_| "it did not print JSON with AccessKeyId and AccessKeySecret")?;
    let expires_in = match output.expiration.filter(|text| !text.is_empty()) {
        Some(text) => Some(text.parse::<Timestamp>().map_err(|_| "its Expiration is not a time such as 2026-01-01T00:00:00Z")?),
        None => None,
    };
    Ok(Credential {
        access_key_id: output.access_key_id,
        access_key_secret: output.access_key_secret,
        security_token: output.security_token.filter(|token| !token.is_empty()),
        expires_in,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(command: &str) -> Result<Credential, String> {
        let provided = Process::new(command).provide_credential(&Context::new()).await;
        provided.map(|found| found.unwrap()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_process_prints_credentials() {
        let found = run(r#"echo '{"AccessKeyId":"STS.A","AccessKeySecret":"s","SecurityToken":"t","Expiration":"2030-01-01T00:00:00Z"}'"#);
        let found = found.await.unwrap();
        assert_eq!((found.access_key_id.as_str(), found.security_token.as_deref()), ("STS.A", Some("t")));
        assert_eq!(found.expires_in.map(Timestamp::as_second), Some(1_893_456_000));
        let plain = run(r#"echo '{"AccessKeyId":"A","AccessKeySecret":"s"}'"#).await.unwrap();
        assert!(plain.security_token.is_none() && plain.expires_in.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_does_not_end_is_given_up_before_a_mount_must_have_failed() {
        let start = tokio::time::Instant::now();
        let error = run("exec sleep 60").await.unwrap_err();
        assert!(error.contains("did not end within 4s"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_failing_process_is_told_without_its_output() {
        for (command, words) in [
            ("echo topsecret; exit 3", "exit status: 3"),
            ("echo '\"topsecret\"'", "did not print JSON"),
            (r#"echo '{"AccessKeyId":"topsecret","AccessKeySecret":"s","Expiration":"topsecret"}'"#, "Expiration"),
        ] {
            let error = run(command).await.unwrap_err();
            assert!(error.contains(words) && !error.contains("topsecret"), "{error}");
        }
    }
}
