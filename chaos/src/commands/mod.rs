//! The commands.

use std::fmt::Display;
use std::io::Write;

pub(crate) mod attach;
pub(crate) mod check;
pub(crate) mod compose;
pub(crate) mod heal;
pub(crate) mod list;
mod load;
#[cfg(feature = "planted")]
pub(crate) mod planted;
pub(crate) mod run;
pub(crate) mod sim;
mod verdict;

/// Prints a line for whoever called; nothing, if nobody reads any more.
fn print(line: impl Display) {
    // `holdfast-chaos list | head` is no error.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
