//! How much room a request takes among those under way.

use holdfast_api::{Read, RequestBody};

use super::UNDER_WAY_KIB_MAX;
use crate::node::scans::is_scan;

/// Bytes that a key, a value or another step of a request takes in memory beside its own.
pub(super) const VALUE_BYTES: usize = 48;

/// KiB assumed for a page of a list before it is made.
const PAGE_KIB: u32 = 2 * 1024;

/// KiB that a request counts as.
pub(super) fn cost(body: &RequestBody) -> u32 {
    let kib = |bytes: usize| u32::try_from(bytes / 1024).unwrap_or(u32::MAX).saturating_add(1);
    let cost = match body {
        RequestBody::Propose(proposal) => {
            let size = proposal.command.size();
            kib(size.weight + size.steps * VALUE_BYTES)
        }
        RequestBody::Read { read: Read::Check { keys, .. }, .. } => kib(keys.len() * VALUE_BYTES),
        RequestBody::Read { read: Read::MultiGet { keys, .. }, .. } => kib(keys.len() * 128),
        RequestBody::Read { read, .. } if is_long(read) => PAGE_KIB,
        _ => 1,
    };
    // A request larger than all the room must still pass, alone.
    cost.min(UNDER_WAY_KIB_MAX)
}

/// Reads whose answers can be long.
fn is_long(read: &Read) -> bool {
    is_scan(read) || matches!(read, Read::Closed { .. } | Read::Feed { .. })
}
