//! Wall-clock time, for the headers of files that people read, and for the expiry of
//! signed tokens.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970. Nothing that is logged is decided by it.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
