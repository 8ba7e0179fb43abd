//! How many descriptors of a process are for what others open.
//!
//! A TCPStore connection takes a descriptor of the agent. Under a keeper it takes two, its socket
//! and its record, and two of the keeper. If connections took all of them, the agent could not
//! follow the next leader, and the keeper could start no other agent. So some are reserved, and
//! connections get a part of the rest.
//!
//! | for | parts of the rest |
//! | --- | --- |
//! | TCPStore connections | 11 of 16 |
//! | connections to the control socket, with the programs at their other ends | 2 of 16 |
//! | ports of stores that programs open for themselves | 1 of 16 |
//! | clients whose end is watched | 1 of 16 |
//! | programs that have left the library and go on | 1 of 16 |

use nix::sys::resource::{Resource, getrlimit};

/// Reserved descriptors: for files, the nodes, ports of the run, look-ups in `/proc`, the start of
/// an agent, and connections on their way from the keeper to the agent.
const RESERVED: usize = 192;
/// Parts of the rest, and those of them for each kind.
const PARTS: usize = 16;
const CONNECTION_PARTS: usize = 11;
const CONTROL_PARTS: usize = 2;
const STORE_PARTS: usize = 1;
const WATCH_PARTS: usize = 1;
const DEPARTED_PARTS: usize = 1;
/// Connections that a keeper has accepted and its agent has neither admitted nor closed yet. Beyond
/// that the keeper accepts none.
const ON_THEIR_WAY_MAX: usize = 32;
/// So many connections of either kind are admitted however few descriptors there are, and so many
/// of the others.
const CONNECTIONS_MIN: usize = 16;
const OTHERS_MIN: usize = 4;

/// The descriptors that a process may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room(usize);

impl Room {
    /// As many descriptors as this process may have now.
    pub fn of_process() -> Room {
        let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        Room(usize::try_from(soft).unwrap_or(usize::MAX))
    }

    /// Most TCPStore connections of an agent, which has a keeper or not.
    fn connections(self, has_keeper: bool) -> usize {
        let of_each = if has_keeper { 2 } else { 1 };
        (self.part(CONNECTION_PARTS) / of_each).max(CONNECTIONS_MIN)
    }

    /// Most connections of a keeper: those of its agent, and some on their way there.
    pub fn kept_connections(self) -> usize {
        self.connections(true).saturating_add(ON_THEIR_WAY_MAX)
    }

    /// Most connections to the control socket: a program with the library takes two descriptors,
    /// one of which tells its end.
    pub(crate) fn control_connections(self) -> usize {
        (self.part(CONTROL_PARTS) / 2).max(CONNECTIONS_MIN)
    }

    /// Most ports for stores that programs open for themselves.
    pub(crate) fn store_ports(self) -> usize {
        self.part(STORE_PARTS).max(OTHERS_MIN)
    }

    /// Most clients whose end is watched at a time.
    pub(crate) fn watched(self) -> usize {
        self.part(WATCH_PARTS).max(OTHERS_MIN)
    }

    /// Most programs that have left the library whose exit is waited for.
    pub(crate) fn departed(self) -> usize {
        self.part(DEPARTED_PARTS).max(OTHERS_MIN)
    }

    /// The bound on an agent's TCPStore connections if these descriptors make it lower than
    /// `wanted`, and what to say of that.
    pub(crate) fn lowers(self, wanted: usize, has_keeper: bool) -> Option<(usize, String)> {
        let Room(descriptors) = self;
        let max = self.connections(has_keeper);
        (max < wanted).then(|| {
            let text = format!(
                "at most {max} TCPStore connections are open at a time, not {wanted} \
                 (limits.connections_max): this process may have {descriptors} descriptors; for more \
                 connections raise the hard limit of open files (`ulimit -Hn`, LimitNOFILE)"
            );
            (max, text)
        })
    }

    /// So many of the parts.
    fn part(self, parts: usize) -> usize {
        self.0.saturating_sub(RESERVED) / PARTS * parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_agent_and_keeper_descriptors_for_what_comes() {
        /// For the next leader, and for the start of another agent.
        const LEFT_MIN: usize = 64;
        for limit in [256, 600, 1_024, 4_096, 20_000, 1_048_576, usize::MAX] {
            let room = Room(limit);
            let programs = room.watched() + room.departed();
            let others = 2 * room.control_connections() + room.store_ports() + programs;
            assert!(room.connections(false) + others <= limit - LEFT_MIN, "{limit}");
            assert!(2 * room.kept_connections() + others <= limit - LEFT_MIN, "{limit}");
            assert!(room.connections(true) < room.kept_connections(), "some are on their way");
        }
        assert_eq!(Room(0).connections(true), CONNECTIONS_MIN);
    }

    #[test]
    fn a_bound_is_lowered_only_where_descriptors_do_not_suffice_for_it() {
        let (max, text) = Room(1_024).lowers(16_384, true).unwrap();
        assert_eq!(max, 286);
        for part in ["286", "16384", "1024 descriptors", "ulimit -Hn"] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
        assert_eq!(Room(1_024).lowers(16_384, false).unwrap().0, 572);
        assert_eq!(Room(1_024).lowers(286, true), None);
        assert_eq!(Room(1_048_576).lowers(16_384, true), None);
    }
}
