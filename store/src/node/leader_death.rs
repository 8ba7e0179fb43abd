//! A dead leader is succeeded at once.
//!
//! Raft's followers detect a lost leader by its silence, which takes an election
//! timeout. What this node sees itself says more: the channels of a killed
//! process close and its port refuses new ones; a host that is gone is silent,
//! and so is its port. A follower that sees either asks the other voters whether
//! they see it, too, and stands for election when most do. One that alone has
//! lost the leader, by its network or firewall, changes nothing. The port of a
//! process that is only paused answers: the voters keep to it until its leader
//! lease ends.

use std::time::Duration;

use holdfast_api::NodeId;

use rand::RngExt;
use tokio::time::Instant;

use super::Node;
use crate::raft::Follows;
use crate::storage::Log;

/// How often a follower checks its leader, besides when a channel closes.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The same while it has no channel, up to this many times: a killed process does
/// not close everything at one moment, so that one look proves little.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOKS_MAX: u32 = 10;

/// The same while it alone has lost the leader.
const LOOK_ALONE: Duration = Duration::from_millis(200);

/// Pause between the candidacies of two followers: enough for the first to win.
const STAGGER: Duration = Duration::from_millis(40);

/// How long an election may take. After that, and some more so that two do not
/// meet again, a node that knows of no leader stands if most would follow; each
/// time it is given twice as long.
const ELECTION_TIME: Duration = Duration::from_millis(80);

/// Writes that an election waits for, one after the other: the vote of the candidate for itself,
/// another's for it, and that it leads. One more for all else. Whoever stands sooner ends an
/// election that is being won.
const WRITES: u32 = 4;

/// Tries after which the timeout stops growing.
const TRIES_MAX: u32 = 8;

impl Node {
    /// Watches the leader for as long as this node follows one; its disk tells how long an
    /// election takes. Runs on the threads of consensus.
    pub(crate) async fn watch_leader(self, log: Log) {
        let consensus = self.consensus();
        let evidence = consensus.evidence();
        // Checks so far without a result.
        let (mut looks, mut pause) = (0, LOOK_EVERY);
        let mut search = Search::default();
        loop {
            let _ = tokio::time::timeout(pause, evidence.channel_closed()).await;
            pause = LOOK_EVERY;
            let (leader, term, silent) = match consensus.follows() {
                Follows::Leader { leader, term, silent } => (leader, term, silent),
                Follows::Itself => {
                    search = Search::default();
                    continue;
                }
                Follows::Nobody { term, candidate } => {
                    let time_max = consensus.leader_lease();
                    let is_due = search.is_due((term, candidate), log.write_time(), time_max);
                    if is_due && self.turn(self.id()).is_some() {
                        consensus.stand().await;
                    }
                    continue;
                }
            };
            search = Search::default();
            if evidence.is_heard(leader, consensus.silence()) {
                looks = 0;
                continue;
            }
            let Some(turn) = self.turn(leader) else { continue };
            if silent >= consensus.leader_lease() + turn {
                consensus.stand().await;
            }
            let lost = consensus.has_lost(leader, term).await;
            if lost && consensus.quorum_has_lost(leader, term).await {
                // The first of the followers has most likely won by then.
                tokio::time::sleep(turn).await;
                let same = matches!(consensus.follows(), Follows::Leader { leader: l, term: t, .. } if (l, t) == (leader, term));
                if same && !evidence.is_heard(leader, consensus.silence()) {
                    tracing::info!(leader, term, "the leader is lost; standing for election");
                    consensus.succeed(leader).await;
                }
                continue;
            }
            if evidence.hears(leader) && !lost {
                continue;
            }
            looks += 1;
            pause = if looks < LOOKS_MAX { LOOK_AGAIN } else { LOOK_ALONE };
            if lost && looks == LOOKS_MAX {
                tracing::info!(
                    leader,
                    "the leader cannot be reached from this node alone; it goes on leading"
                );
            }
        }
    }

    /// How long this node lets others stand first: the voters take turns, the lowest
    /// id first. None if it does not stand.
    fn turn(&self, leader: NodeId) -> Option<Duration> {
        let view = self.view();
        if !view.voters.contains(&view.id) || self.is_draining() {
            return None;
        }
        let others = view.voters.iter().filter(|voter| **voter != leader);
        let turn = others.take_while(|voter| **voter != view.id).count();
        Some(STAGGER * u32::try_from(turn).unwrap_or(u32::MAX))
    }
}

/// The time since this node last knew of a leader.
#[derive(Default)]
struct Search {
    /// Term and candidate as last seen: a granted vote restarts the timeout.
    vote: Option<(u64, NodeId)>,
    stands_at: Option<Instant>,
    tries: u32,
}

impl Search {
    /// Whether to stand now, where a write to the disk takes this long.
    fn is_due(&mut self, vote: (u64, NodeId), write: Duration, time_max: Duration) -> bool {
        let now = Instant::now();
        if self.vote.replace(vote) != Some(vote) {
            self.stands_at = None;
        }
        let tries = self.tries;
        let at = *self.stands_at.get_or_insert_with(|| {
            let writes = if holdfast_api::planted!(HastyElections) { 0 } else { WRITES };
            let time = ELECTION_TIME.max(write.saturating_mul(writes));
            let time = time.saturating_mul(2_u32.pow(tries)).min(time_max);
            now + time.mul_f64(rand::rng().random_range(1.0..2.0))
        });
        let is_due = at <= now;
        if is_due {
            self.stands_at = None;
            self.tries = (tries + 1).min(TRIES_MAX);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn elections_are_given_ever_more_time_and_a_vote_begins_it_anew() {
        let most = Duration::from_millis(500);
        for (write, times) in [(20, [80, 160, 320, 500, 500]), (50, [200, 400, 500, 500, 500])] {
            let write = Duration::from_millis(write);
            let (mut search, mut tries) = (Search::default(), Vec::new());
            let mut begun = Instant::now();
            while tries.len() < 5 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if search.is_due((7, 1), write, most) {
                    tries.push(begun.elapsed());
                    begun = Instant::now();
                }
            }
            for (nth, time) in times.map(Duration::from_millis).iter().enumerate() {
                let slack = Duration::from_millis(2);
                assert!((*time..*time * 2 + slack).contains(&tries[nth]), "{nth}: {tries:?}");
            }
            for term in 8..1_000 {
                tokio::time::sleep(Duration::from_millis(70)).await;
                let is_due = search.is_due((term, 1), write, most);
                assert!(!is_due, "somebody was voted for a moment ago");
            }
        }
    }
}
