//! Distinguishes a silent connection from a dead one.

use std::time::Duration;

use tokio::time::Instant;

/// Watches one connection. It is fed with a counter that moves whenever the
/// peer sends anything.
#[derive(Debug)]
pub(crate) struct Liveness {
    probe_after: Duration,
    probe_timeout: Duration,
    counter: u64,
    /// When the counter was last seen moving, or there was nothing to expect.
    quiet_since: Instant,
    probed: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// Look again at this time; none = nothing is expected of the peer.
    Fine(Option<Instant>),
    /// Ask it something that it answers at once, and look again.
    Probe(Instant),
    /// It did not answer in time.
    Dead,
}

impl Liveness {
    pub(crate) fn new(probe_after: Duration, probe_timeout: Duration, now: Instant) -> Self {
        Liveness { probe_after, probe_timeout, counter: 0, quiet_since: now, probed: false }
    }

    /// `expecting`: whether any answer is due.
    pub(crate) fn check(&mut self, now: Instant, counter: u64, expecting: bool) -> PeerState {
        if counter != self.counter || !expecting {
            self.counter = counter;
            self.quiet_since = now;
            self.probed = false;
        }
        if !expecting {
            return PeerState::Fine(None);
        }
        let probe_at = self.quiet_since + self.probe_after;
        let dead_at = probe_at + self.probe_timeout;
        match self.probed {
            false if now < probe_at => PeerState::Fine(Some(probe_at)),
            false => {
                self.probed = true;
                // A client that was itself stopped for a while gives the peer
                // its whole time to answer.
                self.quiet_since = now - self.probe_after;
                PeerState::Probe(now + self.probe_timeout)
            }
            true if now < dead_at => PeerState::Fine(Some(dead_at)),
            true => PeerState::Dead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn fresh(now: Instant) -> Liveness {
        Liveness::new(2 * S, S, now)
    }

    #[test]
    fn a_silent_peer_is_probed_and_then_given_up() {
        let start = Instant::now();
        let mut liveness = fresh(start);
        assert_eq!(liveness.check(start, 0, true), PeerState::Fine(Some(start + 2 * S)));
        assert_eq!(liveness.check(start + 2 * S, 0, true), PeerState::Probe(start + 3 * S));
        assert_eq!(
            liveness.check(start + 5 * S / 2, 0, true),
            PeerState::Fine(Some(start + 3 * S))
        );
        assert_eq!(liveness.check(start + 3 * S, 0, true), PeerState::Dead);
    }

    #[test]
    fn any_activity_starts_the_time_anew() {
        let start = Instant::now();
        let mut liveness = fresh(start);
        assert_eq!(liveness.check(start + 2 * S, 0, true), PeerState::Probe(start + 3 * S));
        assert_eq!(liveness.check(start + 3 * S, 1, true), PeerState::Fine(Some(start + 5 * S)));
    }

    #[test]
    fn silence_is_fine_while_nothing_is_due() {
        let start = Instant::now();
        let mut liveness = fresh(start);
        assert_eq!(liveness.check(start + 100 * S, 0, false), PeerState::Fine(None));
        assert_eq!(
            liveness.check(start + 101 * S, 0, true),
            PeerState::Fine(Some(start + 102 * S))
        );
    }

    #[test]
    fn a_client_that_slept_does_not_blame_its_peer() {
        let start = Instant::now();
        let mut liveness = fresh(start);
        assert_eq!(liveness.check(start + 60 * S, 0, true), PeerState::Probe(start + 61 * S));
    }
}
