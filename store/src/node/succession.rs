//! A leader that is lost is succeeded at once.
//!
//! Raft's followers learn of a lost leader by its silence, which takes an
//! election timeout. What this node sees itself says more: the channels of a
//! killed process close and its port refuses new ones; a host that is gone is
//! silent, and so is its port. A follower that sees either asks the other voters
//! whether they see it, too, and stands for election when most do. One that is
//! alone with its loss, whatever its network or firewall makes of the leader,
//! changes nothing. The port of a process that is only paused answers: the
//! voters stay loyal to it for their whole time.

use std::time::Duration;

use holdfast_api::NodeId;

use rand::RngExt;
use tokio::time::Instant;

use super::Node;
use crate::raft::Follows;

/// How often a follower looks at its leader, beside when a channel closes.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The same while it has no channel, so many times: what is killed does not
/// close everything in one moment, so that one look proves little.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOKS_MAX: u32 = 10;

/// The same while it is alone in having lost the leader.
const LOOK_ALONE: Duration = Duration::from_millis(200);

/// Between the candidacies of two followers: enough for the first to win.
const STAGGER: Duration = Duration::from_millis(40);

/// How long an election may take. After that, and some more so that two do not
/// meet again, whoever knows of no leader stands if most would follow.
const ELECTION_TIME: Duration = Duration::from_millis(80);

impl Node {
    /// Looks at the leader for as long as this node follows one. Belongs on the
    /// threads of consensus.
    pub async fn watch_leader(self) {
        let consensus = self.consensus();
        let evidence = consensus.evidence();
        // How often it was looked in vain.
        let (mut looks, mut pause) = (0, LOOK_EVERY);
        // When this node is to stand next, knowing of no leader.
        let mut stands_at = None;
        loop {
            let _ = tokio::time::timeout(pause, evidence.channel_closed()).await;
            pause = LOOK_EVERY;
            let (leader, term, silent) = match consensus.follows() {
                Follows::Leader { leader, term, silent } => (leader, term, silent),
                Follows::Itself => {
                    stands_at = None;
                    continue;
                }
                Follows::Nobody => {
                    let now = Instant::now();
                    let some_more = STAGGER.mul_f64(rand::rng().random_range(0.0..2.0));
                    let at = *stands_at.get_or_insert(now + ELECTION_TIME + some_more);
                    if at <= now && self.turn(self.id()).is_some() {
                        consensus.stand().await;
                        stands_at = None;
                    }
                    continue;
                }
            };
            stands_at = None;
            if evidence.hears(leader) && silent < consensus.silence() {
                looks = 0;
                continue;
            }
            let Some(turn) = self.turn(leader) else { continue };
            if silent >= consensus.loyalty() + turn {
                consensus.stand().await;
            }
            let lost = consensus.has_lost(leader, term).await;
            if lost && consensus.quorum_has_lost(leader, term).await {
                // The first of the followers has most likely won by then.
                tokio::time::sleep(turn).await;
                let same = |now: &Follows| matches!(now, Follows::Leader { leader: l, term: t, .. } if (*l, *t) == (leader, term));
                if same(&consensus.follows()) {
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

    /// How long this node lets others go first in succeeding a leader: the voters
    /// take turns, the lowest id first. None if it does not stand.
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
