//! A second, warm connection: to a node that does not lead, which reports who does.
//!
//! When the host of the leader is lost, nothing on the connection to it shows that.
//! The voters know first, and notify a client here. Pure: time is handed in.

use std::time::Duration;

use holdfast_api::version::MINOR_LEADER;
use holdfast_api::{Blob, Hello, NodeId, Read, ReplyBody, Request, RequestBody, Scope};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::connection::Connection;
use crate::liveness::{Liveness, PeerState};

/// A leader is connected for this long at least before a lookout is made, and for up
/// to twice as long: a command that asks once needs none, and clients that lost the
/// same leader do not come together.
pub(crate) const LOOKOUT_AFTER: Duration = Duration::from_secs(1);
/// Longest pause after the first failure; it doubles with each further one, up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A lookout that is silent for this long is probed, and given up when it does not
/// answer.
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The id of the one subscription on its stream, and of its probes.
const SUBSCRIPTION: u64 = 1;
const PROBE: u64 = 2;

/// State of a client's lookout, and when to make one.
#[derive(Debug)]
pub(crate) struct Lookout {
    backoff: Backoff,
    failures: u32,
    not_before: Option<Instant>,
    state: State,
}

#[derive(Debug)]
enum State {
    None,
    Connecting,
    Connected(Box<Connected>),
}

#[derive(Debug)]
struct Connected {
    node: NodeId,
    connection: Connection,
    liveness: Liveness,
}

/// What the client has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation {
    /// The leader that is connected, and since when.
    pub(crate) leader: Option<(NodeId, Instant)>,
    /// Whether anything depends on it.
    pub(crate) needed: bool,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Connect to another node than the leader.
    Connect,
    /// Nothing until then, or until something happens.
    Wait(Option<Instant>),
}

impl Lookout {
    pub(crate) fn new() -> Lookout {
        let backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        Lookout { backoff, failures: 0, not_before: None, state: State::None }
    }

    /// What to do now. Call it again after each connect.
    pub(crate) fn next(&mut self, now: Instant, situation: Situation, random: f64) -> Look {
        if !situation.needed {
            *self = Lookout::new();
            return Look::Wait(None);
        }
        let leader = situation.leader;
        let is_leader = |one: &Connected| leader.is_some_and(|(node, _)| node == one.node);
        if matches!(&self.state, State::Connected(one) if is_leader(one)) {
            // It reports nothing that the leader would not.
            self.state = State::None;
        }
        match &mut self.state {
            State::Connecting => Look::Wait(None),
            State::Connected(one) => {
                match one.liveness.check(now, one.connection.activity(), true) {
                    PeerState::Fine(at) => Look::Wait(at),
                    PeerState::Probe(at) => {
                        one.ask(PROBE, probe());
                        Look::Wait(Some(at))
                    }
                    PeerState::Dead => {
                        self.failed(now, random);
                        Look::Wait(self.not_before)
                    }
                }
            }
            State::None => {
                let Some((_, since)) = leader else { return Look::Wait(None) };
                let first = since + LOOKOUT_AFTER;
                let at = *self
                    .not_before
                    .get_or_insert_with(|| first + LOOKOUT_AFTER.mul_f64(random.clamp(0.0, 1.0)));
                if at.max(first) > now {
                    return Look::Wait(Some(at.max(first)));
                }
                self.state = State::Connecting;
                Look::Connect
            }
        }
    }

    /// A connection was made.
    pub(crate) fn connected(
        &mut self,
        hello: &Hello,
        connection: Connection,
        now: Instant,
        random: f64,
    ) {
        let leads = hello.leader.as_ref().is_some_and(|leader| leader.node == hello.node);
        if leads || hello.minor < MINOR_LEADER || !matches!(self.state, State::Connecting) {
            return self.failed(now, random);
        }
        let connected = Connected {
            node: hello.node,
            connection,
            liveness: Liveness::new(PROBE_AFTER, PROBE_TIMEOUT, now),
        };
        connected.ask(SUBSCRIPTION, RequestBody::WatchLeader);
        (self.failures, self.not_before) = (0, None);
        self.state = State::Connected(Box::new(connected));
    }

    /// The connection failed, or was lost.
    pub(crate) fn failed(&mut self, now: Instant, random: f64) {
        self.state = State::None;
        self.not_before = Some(now + self.backoff.pause(self.failures, random));
        self.failures = self.failures.saturating_add(1);
    }

    /// The node that it is connected to.
    pub(crate) fn node(&self) -> Option<NodeId> {
        match &self.state {
            State::Connected(one) => Some(one.node),
            State::None | State::Connecting => None,
        }
    }

    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            State::Connected(one) => Some(&mut one.connection),
            State::None | State::Connecting => None,
        }
    }
}

impl Connected {
    /// A lookout asks so little that there is room for it.
    fn ask(&self, id: u64, body: RequestBody) {
        // If the writer is gone, the reader's end says so.
        let _ = self.connection.outgoing.try_send(vec![Request { id, body }]);
    }
}

/// A question that every node answers at once.
fn probe() -> RequestBody {
    let read = Read::QueueLength { scope: Scope::default(), key: Blob::from("") };
    RequestBody::Read { read, stale: true }
}

/// Whether a reply ends the subscription.
pub(crate) fn is_over(id: u64, body: &ReplyBody) -> bool {
    id == SUBSCRIPTION && matches!(body, ReplyBody::Problem(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn it_is_made_once_a_leader_is_kept_and_again_after_pauses() {
        let start = Instant::now();
        let mut lookout = Lookout::new();
        let led = Situation { leader: Some((1, start)), needed: true };
        assert_eq!(lookout.next(start, led, 0.5), Look::Wait(Some(start + S * 3 / 2)));
        assert_eq!(lookout.next(start + 2 * S, led, 0.5), Look::Connect);
        assert_eq!(lookout.next(start + 2 * S, led, 0.5), Look::Wait(None));
        lookout.failed(start + 3 * S, 1.0);
        assert_eq!(lookout.next(start + 3 * S, led, 0.5), Look::Wait(Some(start + 4 * S)));
        assert_eq!(lookout.next(start + 4 * S, led, 0.5), Look::Connect);
        lookout.failed(start + 4 * S, 1.0);
        assert_eq!(lookout.next(start + 4 * S, led, 0.5), Look::Wait(Some(start + 6 * S)));
    }

    #[test]
    fn there_is_none_without_a_leader_or_without_need() {
        let now = Instant::now();
        let mut lookout = Lookout::new();
        let seeking = Situation { leader: None, needed: true };
        assert_eq!(lookout.next(now, seeking, 0.0), Look::Wait(None));
        let idle = Situation { leader: Some((1, now - 9 * S)), needed: false };
        assert_eq!(lookout.next(now, idle, 0.0), Look::Wait(None));
    }
}
