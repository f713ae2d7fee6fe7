//! `windlass evict`: has a mount drop what its disk holds of files or directories. Looks at no mount itself.

use std::path::PathBuf;

use indicatif::HumanBytes;

use super::Failure;
use super::locate::{locate, refusal};
use crate::admin::{Command, Done};

/// Drop what the disk of a mount holds of files, or of everything below directories.
///
/// The next read asks the store again. Nothing in the bucket is touched, and files that are open can be read on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or directories in mounts. They need not exist in the bucket any more.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// One path after the other; the first failure ends it.
pub fn run(args: &Args) -> Result<(), Failure> {
    for path in &args.paths {
        let located = locate(path)?;
        let mut client = located.connect()?;
        let answer = client.ask(&Command::Evict { path: located.inner }, |_| {}).map_err(|error| refusal(path, &error))?;
        let Done::Evicted { bytes } = answer else {
            return Err(Failure::internal(format!("{}: the daemon answered something else", path.display())));
        };
        super::print(format!("windlass: {}: {} freed\n", path.display(), HumanBytes(bytes)).as_bytes())?;
    }
    Ok(())
}
