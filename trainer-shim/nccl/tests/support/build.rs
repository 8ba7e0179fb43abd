//! Builds libraries for tests, with what rustc links with.

use std::path::Path;
use std::process::Command;

/// A library of this source.
pub fn library(source: &Path, library: &Path, options: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-o"]).arg(library).args(options).arg(source);
    assert!(command.status().expect("`cc` is there").success(), "{}", source.display());
}
