//! The commands.

use std::fmt::Display;
use std::io::Write;

pub(crate) mod attach;
pub(crate) mod check;
pub(crate) mod compose;
#[cfg(feature = "planted")]
pub(crate) mod crash;
pub(crate) mod heal;
pub(crate) mod list;
mod load;
#[cfg(feature = "planted")]
pub(crate) mod planted;
pub(crate) mod run;
pub(crate) mod sim;
mod verdict;

/// Prints a line to stdout; nothing if its reader has gone.
fn print(line: impl Display) {
    // `holdfast-chaos list | head` is no error.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
