//! What a round waits for, in words: by the rule that closes it.

use holdfast_api::{ProcessId, WaitsFor};

use crate::log_time::{LogNow, span};
use crate::output::counted;
use crate::pytorch::ranges;

/// What a round needs besides the live processes that have not arrived.
pub(super) fn needs(waits_for: &WaitsFor, now: LogNow) -> Option<String> {
    let members = |count: u32| counted(u64::from(count), "member");
    let needs = match *waits_for {
        WaitsFor::Arrivals { missing: 0 } => "no active process has arrived".to_owned(),
        WaitsFor::Arrivals { .. } => return None,
        WaitsFor::World { members: so_far, world, at_ms, enough } => {
            let then = match enough {
                enough if enough >= world => String::new(),
                enough if now.until(at_ms) > 0 => {
                    format!("; {} {enough} are enough", after(now.until(at_ms)))
                }
                enough => format!("; {enough} are enough by now"),
            };
            let so_far = members(so_far);
            format!(
                "it waits for a world of {world}, and has {so_far}: more have to register{then}"
            )
        }
        WaitsFor::Members { members: so_far, members_min } => format!(
            "it would have {}, and members_min is {members_min}: more have to register",
            members(so_far)
        ),
        WaitsFor::LastCall { members: so_far, expected, at_ms } => format!(
            "last call for those who were lost: it would have {}, and {expected} were there before; {} it goes on without them",
            members(so_far),
            after(now.until(at_ms))
        ),
        WaitsFor::Quorum { arrived, min } => format!("{arrived} of at least {min} are there"),
        WaitsFor::Majority { arrived, living } => format!(
            "{arrived} of the {living} that live of the latest one are there, and more than half have to be"
        ),
        WaitsFor::Release { holders, ended, free_at_ms, revoked } => {
            let what = if revoked { "the revoked generation" } else { "the present generation" };
            let hold = if holders == 1 { "holds" } else { "hold" };
            let processes = match holders {
                1 => "1 process".to_owned(),
                many => format!("{many} processes"),
            };
            let then = match free_at_ms {
                Some(at) => format!(
                    "; their agent can report nothing any more: {} they count as stopped",
                    after(now.until(at))
                ),
                None if ended > 0 => format!(
                    "; {ended} of them ended, and nobody saw the exit: their agents report it, or `comm excuse` does"
                ),
                None => String::new(),
            };
            format!("{processes} still {hold} {what}{then}")
        }
        WaitsFor::Settle { at_ms } => {
            format!("enough are there; {} it closes with them", after(now.until(at_ms)))
        }
    };
    Some(needs)
}

/// `in 19s`, or at once.
pub(super) fn after(ms: u64) -> String {
    match ms {
        0 => "at any moment".to_owned(),
        ms => format!("in {}", span(ms)),
    }
}

/// `process 8`, `processes 2-3`.
pub(super) fn numbers(processes: impl Iterator<Item = ProcessId>) -> String {
    let mut numbers: Vec<u64> = processes.map(u64::from).collect();
    numbers.sort_unstable();
    let noun = if numbers.len() == 1 { "process" } else { "processes" };
    format!("{noun} {}", ranges(&numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_round_needs_is_said_with_its_times() {
        let now = LogNow::exactly(43_000);
        for (waits_for, wanted) in [
            (WaitsFor::Arrivals { missing: 3 }, None),
            (WaitsFor::Arrivals { missing: 0 }, Some("no active process has arrived")),
            (
                WaitsFor::World { members: 1, world: 4, at_ms: 50_000, enough: 2 },
                Some(
                    "it waits for a world of 4, and has 1 member: more have to register; in 7s 2 are enough",
                ),
            ),
            (
                WaitsFor::World { members: 3, world: 4, at_ms: 50_000, enough: 4 },
                Some("it waits for a world of 4, and has 3 members: more have to register"),
            ),
            (
                WaitsFor::World { members: 1, world: 4, at_ms: 43_000, enough: 2 },
                Some(
                    "it waits for a world of 4, and has 1 member: more have to register; 2 are enough by now",
                ),
            ),
            (
                WaitsFor::Members { members: 1, members_min: 2 },
                Some("it would have 1 member, and members_min is 2: more have to register"),
            ),
            (
                WaitsFor::LastCall { members: 3, expected: 4, at_ms: 48_000 },
                Some(
                    "last call for those who were lost: it would have 3 members, and 4 were there before; in 5s it goes on without them",
                ),
            ),
            (WaitsFor::Quorum { arrived: 1, min: 2 }, Some("1 of at least 2 are there")),
            (
                WaitsFor::Majority { arrived: 1, living: 3 },
                Some(
                    "1 of the 3 that live of the latest one are there, and more than half have to be",
                ),
            ),
            (
                WaitsFor::Release { holders: 2, ended: 1, free_at_ms: None, revoked: true },
                Some(
                    "2 processes still hold the revoked generation; 1 of them ended, and nobody saw the exit: their agents report it, or `comm excuse` does",
                ),
            ),
            (
                WaitsFor::Release { holders: 1, ended: 1, free_at_ms: Some(50_000), revoked: true },
                Some(
                    "1 process still holds the revoked generation; their agent can report nothing any more: in 7s they count as stopped",
                ),
            ),
            (
                WaitsFor::Settle { at_ms: 43_000 },
                Some("enough are there; at any moment it closes with them"),
            ),
        ] {
            assert_eq!(needs(&waits_for, now).as_deref(), wanted, "{waits_for:?}");
        }
    }
}
