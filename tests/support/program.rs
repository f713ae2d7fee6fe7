//! The built program as a person runs it: what it said and how it ended.

use std::process::{Command, Output, Stdio};

use super::s3_server::S3Server;

/// The program, and nothing in its environment that could decide anything.
pub fn windlass(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

/// The same for a bucket of `server`.
pub fn windlass_at(server: &S3Server, args: &[&str]) -> Command {
    let mut command = windlass(args);
    command.args(["--endpoint", &server.endpoint()]).envs(server.client_env());
    command
}

/// What a run came to.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs it to its end.
#[track_caller]
pub fn said(mut command: Command) -> Said {
    Said::from(command.output().expect("the program starts"))
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what people read is text");
        Self { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Said {
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    /// Ends with this code and one line that has all these words.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        let last = self.err.lines().last().unwrap_or_default();
        for word in words {
            assert!(last.contains(word), "{word:?} is missing in: {}", self.err);
        }
        self
    }

    /// Its output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}
