//! How much of the log was made durable: a number in its own file.
//!
//! ```text
//! offset 0..8    sequence number, little-endian
//! offset 8..12   crc32c of those 8 bytes, little-endian
//! ```
//!
//! It is raised after each synced write and not synced itself, so it costs next
//! to nothing. After a killed process it is exact; after a power failure it may
//! lag, but is never ahead.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use holdfast_api::crash_point;

use super::error::StorageError;

const BYTES: usize = 12;

/// The open file and its number.
#[derive(Debug)]
pub struct Watermark {
    file: File,
    path: PathBuf,
    value: u64,
}

fn encode(value: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..8]);
    bytes[8..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

impl Watermark {
    /// Makes the file, at 0.
    pub fn create(path: &Path) -> Result<Watermark, StorageError> {
        let make = || -> io::Result<File> {
            let file =
                File::options().read(true).write(true).create(true).truncate(true).open(path)?;
            crash_point!(before WatermarkCreate);
            file.write_all_at(&encode(0), 0)?;
            file.sync_all()?;
            crash_point!(after WatermarkCreate);
            Ok(file)
        };
        let file = make().map_err(StorageError::io(path, "creating it"))?;
        Ok(Watermark { file, path: path.to_owned(), value: 0 })
    }

    /// Opens the file and reads its number; a missing or damaged one is an error.
    pub fn open(path: &Path) -> Result<Watermark, StorageError> {
        let damaged = |what: &str| StorageError::damaged(path, what);
        let file = match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(damaged("it is missing"));
            }
            other => other.map_err(StorageError::io(path, "opening it"))?,
        };
        let length = file.metadata().map_err(StorageError::io(path, "reading it"))?.len();
        if length != BYTES as u64 {
            return Err(damaged(&format!("it has {length} bytes in place of {BYTES}")));
        }
        let mut bytes = [0; BYTES];
        file.read_exact_at(&mut bytes, 0).map_err(StorageError::io(path, "reading it"))?;
        let value = bytes.first_chunk().map_or(0, |value| u64::from_le_bytes(*value));
        if bytes != encode(value) {
            return Err(damaged("its checksum does not match"));
        }
        Ok(Watermark { file, path: path.to_owned(), value })
    }

    /// Sequence number up to which the log is durable.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Path of its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the number durable.
    pub fn sync(&self) -> Result<(), StorageError> {
        crash_point!(before WatermarkSync);
        self.file
            .sync_all()
            .map_err(StorageError::io(&self.path, "making the watermark durable"))?;
        crash_point!(after WatermarkSync);
        Ok(())
    }

    /// Raises the number without syncing it; a lower one changes nothing.
    pub(crate) fn raise(&mut self, value: u64) -> Result<(), StorageError> {
        if value > self.value {
            crash_point!(before WatermarkRaise);
            self.file
                .write_all_at(&encode(value), 0)
                .map_err(StorageError::io(&self.path, "raising the watermark"))?;
            self.value = value;
            crash_point!(after WatermarkRaise);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_survives_and_never_falls() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("watermark");
        let mut watermark = Watermark::create(&path).unwrap();
        watermark.raise(7).unwrap();
        watermark.raise(3).unwrap();
        assert_eq!(Watermark::open(&path).unwrap().value(), 7);
    }

    #[test]
    fn any_changed_bit_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("watermark");
        Watermark::create(&path).unwrap().raise(7).unwrap();
        let good = std::fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(Watermark::open(&path), Err(StorageError::Damaged { .. })));
        }
        std::fs::write(&path, &good[..11]).unwrap();
        assert!(matches!(Watermark::open(&path), Err(StorageError::Damaged { .. })));
    }
}
