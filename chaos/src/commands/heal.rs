//! `holdfast-chaos heal`.

use holdfast_chaos::cluster::state;

use super::print;

/// Undo what killed runs left behind: node processes, network namespaces, folders, and on
/// clusters of yours the job of `attach` and what its hook broke
///
/// A run writes down what it makes. What belongs to a run that is still under
/// way, and processes that only have the number of a former node, are left alone.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

/// Undoes what killed runs left behind, and prints what was done.
pub(crate) fn run(_: &Arguments) -> anyhow::Result<u8> {
    let done = state::heal()?;
    for line in &done {
        print(line);
    }
    if done.is_empty() {
        print("nothing was left behind");
    }
    Ok(0)
}
