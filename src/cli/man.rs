//! `windlass man`: manual pages made from the same table of options as the help.

use std::path::PathBuf;

use clap_mangen::Man;

use super::Failure;

/// Print the manual page, or write one page per subcommand into a directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write windlass.1, windlass-mount.1 and so on into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the page of this subcommand instead of the overview: mount, or bench read.
    #[arg(value_name = "SUBCOMMAND", conflicts_with = "out")]
    subcommand: Vec<String>,
}

/// Prints or writes the pages.
pub fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    if let Some(directory) = &args.out {
        let fail = |e: std::io::Error| Failure::usage(format!("cannot write manual pages into {}: {e}", directory.display()));
        std::fs::create_dir_all(directory).map_err(fail)?;
        return clap_mangen::generate_to(command, directory).map_err(fail);
    }
    command.build();
    let page = args.subcommand.iter().try_fold(command, |page, name| {
        page.find_subcommand(name).cloned().ok_or_else(|| Failure::usage(format!("{page} has no subcommand {name}: see windlass help")))
    })?;
    let mut text = Vec::new();
    Man::new(page).render(&mut text).map_err(|e| Failure::internal(format!("cannot render the manual page: {e}")))?;
    super::print(&text)
}
