//! The programs under test: those of this workspace, beside the test executable or above
//! it, and those of the last release.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file of a program of this workspace.
///
/// # Panics
///
/// If it was not built.
pub fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a file");
    let folder = test.parent().expect("a program lies in a folder");
    // Tests run from TARGET/PROFILE/deps, programs from TARGET/PROFILE.
    let folder = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    let path = folder.expect("deps lies in a folder").join(name);
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build --bins` first (`make test` does)",
        path.display()
    );
    path
}

/// A command for a program of this workspace, without Holdfast's variables of the test's
/// environment.
pub fn command(name: &str) -> Command {
    without_settings(path(name))
}

/// Where `make upgrade-test` has put the programs of the last release.
const RELEASE_VARIABLE: &str = "HOLDFAST_RELEASE_BINARIES";

/// Programs of one version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Build {
    /// Folder of the programs; `None` for those of this workspace.
    folder: Option<PathBuf>,
}

impl Build {
    /// The programs of this workspace.
    pub fn this() -> Build {
        Build::default()
    }

    /// Of the last release. Says `SKIPPED` where they were not built.
    ///
    /// # Panics
    ///
    /// If they are not where they should be.
    pub fn last_release() -> Option<Build> {
        let Some(folder) = std::env::var_os(RELEASE_VARIABLE).map(PathBuf::from) else {
            eprintln!("SKIPPED: `make upgrade-test` builds the last release, and then runs this");
            return None;
        };
        assert!(
            folder.join("holdfast-store").is_file(),
            "{} holds no holdfast-store; {RELEASE_VARIABLE} names the folder",
            folder.display()
        );
        Some(Build { folder: Some(folder) })
    }

    /// The file of one of its programs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().map_or_else(|| path(name), |folder| folder.join(name))
    }

    /// A command for one of its programs, as [`command`].
    pub fn command(&self, name: &str) -> Command {
        without_settings(self.path(name))
    }
}

/// A command whose environment holds none of Holdfast's variables.
pub fn without_settings(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        // Programs that were built with defects go on with theirs.
        if name.to_string_lossy().starts_with("HOLDFAST_") && name != "HOLDFAST_PLANTED" {
            command.env_remove(name);
        }
    }
    command
        .env("NO_COLOR", "1")
        .env("RUST_BACKTRACE", "1")
        .env_remove("RUST_LOG")
        // The command line looks for a configuration file there.
        .env("XDG_CONFIG_HOME", "/nonexistent");
    command
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the tests lie in the workspace").to_owned()
}

/// The same command, with this many descriptors.
pub fn with_descriptors(command: &Command, descriptors: usize) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {descriptors}; exec \"$@\""), "sh"]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}
