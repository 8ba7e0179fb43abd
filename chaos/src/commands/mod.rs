//! The commands.

use std::fmt::Display;
use std::io::Write;

pub(crate) mod attach;
pub(crate) mod check;
pub(crate) mod heal;
pub(crate) mod list;
mod load;
pub(crate) mod run;
mod verdict;

/// Prints a line for whoever called; nothing, if nobody reads any more.
fn print(line: impl Display) {
    // `holdfast-chaos list | head` is no error.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
