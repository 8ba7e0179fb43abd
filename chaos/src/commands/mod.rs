//! The commands.

use std::fmt::Display;
use std::io::Write;

pub(crate) mod attach;
pub(crate) mod check;
pub(crate) mod heal;
pub(crate) mod list;
pub(crate) mod run;

/// Prints a line for whoever called; nothing, if nobody reads any more.
fn print(line: impl Display) {
    // `holdfast-chaos list | head` is no error.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
