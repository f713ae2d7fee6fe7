//! What is said about a mount that is handed over. One JSON object; names that are not known here are left aside, so that a newer sender
//! is understood by an older receiver. The names of the Mountpoint driver for S3 (bucketName, args, env as a list) are understood too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is to be served on the descriptors that come with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Message {
    /// `s3://bucket/prefix`, `oss://bucket/prefix`, or the name of a bucket.
    #[serde(alias = "bucketName", alias = "source")]
    pub bucket: String,
    /// The key prefix, where `bucket` does not name it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Options under their names; true and false for switches.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, Value>,
    /// Words of a command line, in place of `options` or besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// What the process that serves it finds in its environment.
    #[serde(skip_serializing_if = "Environment::is_empty")]
    pub env: Environment,
    /// What the daemon before agreed on with the kernel: this one goes on from there and asks for nothing. As that daemon wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Value>,
}

/// Variables, written as an object or as a list of `NAME=value`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Environment(#[serde(deserialize_with = "either")] pub BTreeMap<String, String>);

impl Environment {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn either<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Object(BTreeMap<String, String>),
        List(Vec<String>),
        Nothing(()),
    }
    Ok(match Form::deserialize(from)? {
        Form::Object(variables) => variables,
        // A word without `=` sets nothing, as in env(1) of a process.
        Form::List(words) => {
            words.iter().filter_map(|word| word.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        }
        Form::Nothing(()) => BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Message {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_what_is_not_known_is_left_aside() {
        let options = [("allow-other".to_owned(), Value::Bool(true)), ("chunk-size".to_owned(), "4MiB".into())];
        let message = Message {
            bucket: "s3://data".into(),
            prefix: "a/".into(),
            options: options.into(),
            env: Environment([("AWS_REGION".to_owned(), "eu-central-1".to_owned())].into()),
            session: Some(serde_json::json!({"minor": 45})),
            ..Message::default()
        };
        let mut written = serde_json::to_value(&message).unwrap();
        written["of-tomorrow"] = 7.into();
        assert_eq!(serde_json::from_value::<Message>(written).unwrap(), message);
    }

    #[test]
    fn the_words_of_mountpoint_are_understood() {
        let message = read(r#"{"fd":3,"bucketName":"data","args":["--read-only"],"env":["A=b=c","odd"],"other":null}"#);
        assert_eq!((message.bucket.as_str(), message.args.as_slice()), ("data", ["--read-only".to_owned()].as_slice()));
        assert_eq!(message.env.0, [("A".to_owned(), "b=c".to_owned())].into());
        assert!(read(r#"{"env":null}"#).env.is_empty());
    }
}
