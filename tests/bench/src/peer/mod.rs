//! Other servers to compare with, where they are installed.

pub mod etcd;
pub mod redis;
pub mod torch;

use std::path::PathBuf;

/// Path of a program, if it is on the PATH.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}
