//! Files that users name: only regular ones, read within a bound. Reading a pipe
//! could block for ever, and a device never ends.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file for reading; anything else is refused before it is
/// opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() {
        let what = if kind.is_dir() {
            "it is a folder, not a regular file"
        } else {
            "it is not a regular file"
        };
        return Err(io::Error::other(what));
    }
    File::open(path)
}

/// The bytes of a regular file that is not longer than this.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// The same as text.
pub fn read_regular_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let bytes = read_regular(path, bytes_max)?;
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text (UTF-8)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_alone_are_read_and_within_their_bound() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "four").unwrap();
        assert_eq!(read_regular_text(&file, 4).unwrap(), "four");
        let said = |path: &Path, most| read_regular_text(path, most).unwrap_err().to_string();
        assert_eq!(said(&file, 3), "it is longer than 3 bytes");
        std::fs::write(&file, [0xff]).unwrap();
        assert!(said(&file, 4).contains("UTF-8"));
        assert_eq!(said(folder.path(), 4), "it is a folder, not a regular file");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for strange in [&*pipe, Path::new("/dev/zero")] {
            assert_eq!(said(strange, 4), "it is not a regular file");
        }
        let missing = read_regular(&folder.path().join("none"), 4).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
