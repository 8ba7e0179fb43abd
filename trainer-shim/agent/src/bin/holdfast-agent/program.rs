//! Finding the command before anything is started: a command that cannot be
//! run must not open a run, which would end the one before.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Why the command cannot be started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// There is no such file, at the path or in a folder of `PATH`.
    #[error("{name}: command not found")]
    NotFound {
        /// As it was given.
        name: String,
    },
    /// There is one, without permission or without being a program.
    #[error("{name}: cannot be executed: {why}")]
    NotExecutable {
        /// As it was given.
        name: String,
        /// Why it cannot be executed, in words.
        why: String,
    },
}

impl ProgramError {
    /// The exit code that a shell would give.
    pub fn exit_code(&self) -> u8 {
        match self {
            ProgramError::NotExecutable { .. } => 126,
            ProgramError::NotFound { .. } => 127,
        }
    }

    /// Error of a start that failed after all.
    pub fn from_spawn(program: &Path, error: &std::io::Error) -> ProgramError {
        let name = program.display().to_string();
        match error.kind() {
            // The file is there, or was a moment ago: its interpreter is not.
            std::io::ErrorKind::NotFound => ProgramError::NotFound { name },
            _ => ProgramError::NotExecutable { name, why: error.to_string() },
        }
    }
}

/// Where the command is, by the rules of `execvp`.
pub fn find(command: &OsStr) -> Result<PathBuf, ProgramError> {
    find_in(command, &std::env::var_os("PATH").unwrap_or_default())
}

fn find_in(command: &OsStr, path: &OsStr) -> Result<PathBuf, ProgramError> {
    let name = || command.to_string_lossy().into_owned();
    let candidates: Vec<PathBuf> = if command.as_bytes().contains(&b'/') {
        vec![PathBuf::from(command)]
    } else if command.is_empty() {
        Vec::new()
    } else {
        std::env::split_paths(path).map(|folder| folder.join(command)).collect()
    };
    let mut found = None;
    for candidate in candidates {
        match executable(&candidate) {
            Ok(true) => return Ok(candidate),
            Ok(false) => {}
            Err(why) => found = Some(ProgramError::NotExecutable { name: name(), why }),
        }
    }
    Err(found.unwrap_or_else(|| ProgramError::NotFound { name: name() }))
}

/// Whether there is such a file; an error if it is there and not a program.
fn executable(path: &Path) -> Result<bool, String> {
    let Ok(metadata) = path.metadata() else { return Ok(false) };
    if metadata.is_dir() {
        return Err("it is a folder".to_owned());
    }
    access(path, AccessFlags::X_OK).map(|()| true).map_err(|error| error.desc().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_command_is_searched_in_the_path_and_past_files_that_are_no_programs() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["1", "2"].map(|name| folder.path().join(name));
        for (place, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::create_dir(place).unwrap();
            let file = place.join("train");
            std::fs::write(&file, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([&first, &second]).unwrap();
        assert_eq!(find_in(OsStr::new("train"), &path), Ok(second.join("train")));
        let error = find_in(OsStr::new("train"), first.as_os_str()).unwrap_err();
        assert_eq!(error.exit_code(), 126);
        let error = find_in(first.as_os_str(), &path).unwrap_err();
        assert_eq!(error.exit_code(), 126, "a folder");
        for missing in ["no-such-command", "./no/such/file", ""] {
            assert_eq!(find_in(OsStr::new(missing), &path).unwrap_err().exit_code(), 127);
        }
    }
}
