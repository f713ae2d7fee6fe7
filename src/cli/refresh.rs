//! `windlass refresh`: has a mount forget what it believes of paths, for those who changed the bucket beside it. Looks at no mount itself.

use std::path::PathBuf;

use super::Failure;
use super::locate::{locate, refusal};
use crate::admin::Command;

/// Forget what a mount has cached about paths.
///
/// The next look at them asks the store: what they are, and, of a directory, what is in it. A path need not exist. Files that are open go
/// on reading the version that they were opened with.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or directories in mounts.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// And everything below them.
    #[arg(short, long)]
    recursive: bool,
}

/// One path after the other; the first failure ends it.
pub fn run(args: &Args) -> Result<(), Failure> {
    for path in &args.paths {
        let located = locate(path)?;
        let mut client = located.connect()?;
        let command = Command::Refresh { path: located.inner, recursive: args.recursive };
        client.ask(&command, |_| {}).map_err(|error| refusal(path, &error))?;
        super::print(format!("windlass: {}: forgotten\n", path.display()).as_bytes())?;
    }
    Ok(())
}
