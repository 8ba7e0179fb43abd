//! The raw limit of a durable write: append and fdatasync.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Bytes of one append: the size of a small put's log record.
pub const APPEND_BYTES: usize = 512;

/// Times `count` appends, each followed by fdatasync, to a new file in `dir`.
pub fn append_and_sync(dir: &Path, count: usize) -> anyhow::Result<Vec<Duration>> {
    let path = dir.join("raw-append");
    let context = || format!("appending to {}", path.display());
    let mut file = File::create(&path).with_context(context)?;
    let block = [0x5a; APPEND_BYTES];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        file.write_all(&block).with_context(context)?;
        file.sync_data().with_context(context)?;
        times.push(begun.elapsed());
    }
    std::fs::remove_file(&path).with_context(context)?;
    Ok(times)
}
