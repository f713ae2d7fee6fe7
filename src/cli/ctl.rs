//! `windlass ctl`: options of a mount that runs, shown and changed. Which these are the daemon says. It only prints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::Failure;
use super::locate::{connect, refusal};
use crate::admin::{Command, Done};

/// Show or change options of a mount while it runs.
///
/// For example: windlass ctl set log-level debug /mnt/data. A change holds until the mount ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The options that can be changed, with their values.
    Get {
        /// The mount, or any path in it; or the path of its --control-socket.
        #[arg(value_name = "MOUNTPOINT")]
        mountpoint: PathBuf,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Change one of them. It holds for what begins after it.
    Set {
        /// As in `windlass ctl get`, or another spelling of it.
        name: String,
        /// As at the mount.
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// The mount, or any path in it; or the path of its --control-socket.
        #[arg(value_name = "MOUNTPOINT")]
        mountpoint: PathBuf,
    },
}

/// Asks and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Get { mountpoint, json } => {
            let options = ask(mountpoint, &Command::Get {})?;
            let text = if *json {
                let json = serde_json::to_string(&options).map_err(|error| Failure::internal(error.to_string()))?;
                format!("{json}\n")
            } else {
                options.iter().map(|(name, value)| format!("{name} = {value}\n")).collect()
            };
            super::print(text.as_bytes())
        }
        What::Set { name, value, mountpoint } => {
            let options = ask(mountpoint, &Command::Set { name: name.clone(), value: value.clone() })?;
            let lines: String =
                options.iter().map(|(name, value)| format!("windlass: {}: {name} = {value}\n", mountpoint.display())).collect();
            super::print(lines.as_bytes())
        }
    }
}

fn ask(mountpoint: &Path, command: &Command) -> Result<BTreeMap<String, String>, Failure> {
    match connect(mountpoint)?.ask(command, |_| {}) {
        Ok(Done::Options(options)) => Ok(options),
        Ok(_) => Err(Failure::internal(format!("{}: the daemon answered something else", mountpoint.display()))),
        // What it says no to is a word of the person's.
        Err(error @ crate::admin::Error::Answer(_)) => Err(Failure { code: 2, ..refusal(mountpoint, &error) }),
        Err(error) => Err(refusal(mountpoint, &error)),
    }
}
