//! Files of one JSON object a line, `NAME.jsonl`, one for each program, that are
//! read again after a kill.
//!
//! Each line is written with one `write(2)` and nothing is kept back, so that a
//! kill loses one line at most: only the last line of a file can be cut off.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

const EXTENSION: &str = "jsonl";

/// Why files cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or its folder cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's error on reading it.
        source: std::io::Error,
    },
    /// A whole line is not what is written there.
    #[error("{}:{line}: {why}; the history was edited or damaged, and is not judged", path.display())]
    Line {
        /// The file with the bad line.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the error.
        why: String,
    },
}

/// Path of the lines of one program.
pub fn path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{EXTENSION}"))
}

/// Appends a value to a file, as one line of JSON.
pub fn append(file: &mut File, line: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// The files of a folder, in order of their names, with the names of the programs.
pub fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let failed = |source| Error::File { path: folder.to_owned(), source };
    let entries: Result<Vec<_>, _> = fs::read_dir(folder).map_err(failed)?.collect();
    let paths = entries.map_err(failed)?.into_iter().map(|entry| entry.path());
    let lines = paths.filter(|path| path.extension().is_some_and(|it| it == EXTENSION));
    let named = |path: PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        (name, path)
    };
    let mut files: Vec<(String, PathBuf)> = lines.map(named).collect();
    files.sort();
    Ok(files)
}

/// Says that the last line of a file was cut off.
pub fn cut_off(path: &Path) -> String {
    format!("{}: the last line was cut off, and left out", path.display())
}

/// Hands out the whole lines of a file, in order, until one is refused. Answers
/// whether a last line was cut off, and left out.
pub fn read<T: DeserializeOwned>(
    path: &Path,
    mut take: impl FnMut(T) -> Result<(), String>,
) -> Result<bool, Error> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|source| Error::File { path: path.to_owned(), source })?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for (number, line) in (1..).zip(whole.lines()) {
        let taken = serde_json::from_str(line).map_err(|error| error.to_string());
        taken.and_then(&mut take).map_err(|why| Error::Line {
            path: path.to_owned(),
            line: number,
            why,
        })?;
    }
    Ok(!text.is_empty() && !text.ends_with('\n'))
}
