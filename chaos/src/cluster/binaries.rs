//! Paths of Holdfast's programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
#[cfg(feature = "planted")]
use holdfast_api::planted;

/// A folder with the binaries.
#[derive(Debug, Clone)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// These programs, in this folder, or else beside this one.
    pub fn find(folder: Option<&Path>, programs: &[&str]) -> anyhow::Result<Binaries> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => {
                let own = std::env::current_exe().context("where this program is")?;
                own.parent().context("a program lies in a folder")?.to_owned()
            }
        };
        let mut paths = programs.iter().map(|name| folder.join(name));
        if let Some(missing) = paths.find(|path| !path.is_file()) {
            bail!(
                "{} is missing: run `make build`, or name the folder of the binaries with --binaries or HOLDFAST_BINARIES",
                missing.display()
            );
        }
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        Ok(Binaries { folder })
    }

    /// A command for one of them, without Holdfast's variables of this environment.
    pub fn command(&self, name: &str) -> Command {
        without_settings(&self.folder.join(name))
    }
}

/// The same command, for a process that may have so many descriptors.
pub fn with_descriptors(command: &Command, most: usize) -> Command {
    let mut limited = without_settings(Path::new("prlimit"));
    limited.arg(format!("--nofile={most}")).arg(command.get_program()).args(command.get_args());
    limited
}

/// The same command, for a process whose monotonic clock is so far ahead.
pub fn with_clock_ahead(command: &Command, ahead: Duration) -> Command {
    let mut shifted = without_settings(Path::new("unshare"));
    let seconds = ahead.as_secs().to_string();
    shifted.args(["--time", "--monotonic", &seconds, "--boottime", &seconds]);
    shifted.arg(command.get_program()).args(command.get_args());
    shifted
}

/// A command whose environment holds none of Holdfast's variables.
pub fn without_settings(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HOLDFAST_") {
            command.env_remove(name);
        }
    }
    command.env("NO_COLOR", "1").env_remove("RUST_LOG");
    #[cfg(feature = "planted")]
    if let Some(defect) = planted::planted() {
        command.env(planted::VARIABLE, planted::name(defect));
    }
    command
}
