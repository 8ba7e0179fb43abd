//! `holdfast-chaos sim`.

use std::os::unix::process::CommandExt;

use holdfast_chaos::cluster::binaries::Binaries;

/// Simulate whole clusters in one thread, from seeds
///
/// Runs `holdfast-sim`, the program beside this one: all flags are its own, and so
/// are the exit codes (0 all promises kept, 1 one broken, 3 unknown). What
/// simulates links the store, which this program must not.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Flags of the simulator, such as --seeds 1..100 or --help.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAG")]
    flags: Vec<String>,
}

/// Replaces this process by the simulator; returns only if that fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let binaries = Binaries::find(None, &["holdfast-sim"])?;
    let error = binaries.command("holdfast-sim").args(&arguments.flags).exec();
    Err(anyhow::Error::new(error).context("cannot run holdfast-sim"))
}
