//! Waits for keys, as one of several sections.

use std::collections::BTreeMap;

use super::fit::{Row, Section};
use crate::commands::waits;
use crate::log_time::span;
use crate::output::printable;
use crate::pytorch::ranges;

/// The waiters of the same keys, a line for each host.
pub(super) fn section(group: &waits::Group) -> Section {
    type Host<'a> = (Vec<u64>, u64, u64);
    let mut hosts: BTreeMap<Option<&str>, Host<'_>> = BTreeMap::new();
    for waiter in &group.waiters {
        let (ranks, count, blocked_ms) = hosts.entry(waiter.host.as_deref()).or_default();
        ranks.extend(waiter.rank);
        *count += 1;
        *blocked_ms = (*blocked_ms).max(waiter.blocked_ms);
    }
    let rows = hosts.into_iter().map(|(host, (mut ranks, count, blocked_ms))| {
        ranks.sort_unstable();
        let who = match (ranks.len() as u64 == count, count) {
            (true, 1) => format!("rank {}", ranges(&ranks)),
            (true, _) => format!("ranks {}", ranges(&ranks)),
            (false, 1) => "1 process".to_owned(),
            (false, _) => format!("{count} processes"),
        };
        let place = host.map_or_else(|| "no agent tells where".into(), printable);
        let text = format!("{place}: {who} waiting for {}", span(blocked_ms));
        Row { text, host: host.map(str::to_owned), processes: count }
    });
    let (words, count) = (group.words(), group.count());
    let waits = if count == 1 { "waits" } else { "wait" };
    let head = format!(
        "keys: {}; {count} {waits}, the longest for {}",
        printable(&words),
        span(group.blocked_ms)
    );
    Section { head, rows: rows.collect() }
}
