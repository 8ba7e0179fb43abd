//! The file that holds the cluster's token. It is read for each connection, so
//! that a client that runs for weeks follows when the token is replaced.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use holdfast_api::token::{self, FILE_BYTES_MAX, Token, TokenError, Tokens};
use holdfast_net::regular_file::open_regular;

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("--token-file {path}: {why}; give it the token that the nodes were started with")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The system's error on opening or reading the file.
        why: io::Error,
    },
    /// It does not hold tokens.
    #[error("--token-file {path}: {why}")]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with its content.
        why: TokenError,
    },
}

/// The token to send.
pub(crate) fn read(path: &Path) -> Result<Token, TokenFileError> {
    Ok(open(path)?.0.first().clone())
}

/// Checks a token file before a client is made with it. Answers a warning for
/// its owner, if there is one.
pub fn check_token_file(path: &Path) -> Result<Option<String>, TokenFileError> {
    let (_, mode) = open(path)?;
    let path = path.display();
    Ok(token::exposed(mode).map(|advice| format!("--token-file {path}: {advice} {path}")))
}

fn open(path: &Path) -> Result<(Tokens, u32), TokenFileError> {
    let unreadable = |why| TokenFileError::Unreadable { path: path.to_owned(), why };
    let file = open_regular(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode();
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    let invalid = |why| TokenFileError::Invalid { path: path.to_owned(), why };
    Ok((Tokens::parse(&text).map_err(invalid)?, mode))
}
