//! What a daemon said of its failure, and what that is to Kubernetes. Invariant: it is a word of somebody who is not trusted: of its text no more
//! than a line goes on.

use serde::Deserialize;
use tonic::{Code, Status};

/// Most characters of a message that go into an event of the pod.
const LONGEST: usize = 1024;

/// The last error of a daemon: a line on its socket or its error file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Failed {
    pub code: u8,
    pub reason: String,
    pub message: String,
}

impl Failed {
    /// That of an error file; none when it is no such line.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// As the answer to a request of kubelet.
    pub fn to_status(&self) -> Status {
        let message: String = self.message.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
        Status::new(self.grpc(), format!("the sidecar cannot serve the volume: {message}"))
    }

    /// Reasons where they are known, else the exit code: 2 usage, 3 credentials, 4 bucket or endpoint, 5 not written.
    fn grpc(&self) -> Code {
        match (self.reason.as_str(), self.code) {
            ("usage", _) | ("", 2) => Code::InvalidArgument,
            ("credentials", _) | ("", 3) => Code::PermissionDenied,
            ("bucket", _) | ("", 4) => Code::NotFound,
            ("not-written", _) | ("", 5) => Code::ResourceExhausted,
            _ => Code::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_code() {
        for (text, code) in [
            (r#"{"code":2,"reason":"usage","message":"m"}"#, Code::InvalidArgument),
            (r#"{"code":3,"reason":"credentials","message":"m"}"#, Code::PermissionDenied),
            (r#"{"code":4,"reason":"bucket","message":"m","of-tomorrow":1}"#, Code::NotFound),
            (r#"{"code":5,"reason":"not-written","message":"m"}"#, Code::ResourceExhausted),
            (r#"{"code":1,"reason":"internal","message":"m"}"#, Code::Internal),
            (r#"{"code":4,"message":"m"}"#, Code::NotFound),
        ] {
            let status = Failed::read(text.as_bytes()).unwrap().to_status();
            assert_eq!((status.code(), status.message()), (code, "the sidecar cannot serve the volume: m"), "{text}");
        }
        assert_eq!(Failed::read(b"no line"), None);
    }

    #[test]
    fn a_message_stays_a_line() {
        let failed = Failed { message: format!("a\n\u{1b}[31m{}", "b".repeat(5000)), ..Failed::default() };
        let said = failed.to_status().message().to_owned();
        assert!(!said.contains('\n') && !said.contains('\u{1b}') && said.len() < 1200, "{said}");
    }
}
