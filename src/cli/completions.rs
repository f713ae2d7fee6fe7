//! `windlass completions SHELL`: a completion script on stdout.

use clap_complete::{Shell, generate};

use super::Failure;

/// Print a completion script for a shell.
///
/// For example: windlass completions bash > /etc/bash_completion.d/windlass
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args, command: &mut clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(args.shell, command, "windlass", &mut script);
    super::print(&script)
}
