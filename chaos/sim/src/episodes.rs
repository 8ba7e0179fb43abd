//! Episodes: something goes wrong for some time, and is put right. If it is known how many
//! elections follow from that, the leader and its term are judged.

use holdfast_api::NodeId;
use rand::RngExt;

use crate::faults::Fault;
use crate::simulation::Simulation;
use crate::violation::Violation;

/// How long all is well before faults after which the leader is judged.
const CALM_MS: u64 = 1_600;

/// Terms that an election takes at most where links and clocks are good, however slow the disks
/// are: two may stand at once, and then one of them again.
const TERMS_MAX: u64 = 3;

/// How many elections follow from these faults, if that is certain.
fn elections(faults: &[Fault]) -> Option<u64> {
    match faults {
        [fault] if fault.spares_leader() => Some(0),
        [fault] | [Fault::SlowDisks, fault] | [fault, Fault::SlowDisks]
            if fault.unseats_leader() =>
        {
            Some(1)
        }
        _ => None,
    }
}

impl Simulation {
    /// Something goes wrong, is put right, and goes wrong again.
    pub fn torment(&mut self, episodes: u32) {
        for _ in 0..episodes {
            let faults = self.draw_faults();
            let time = self.draw_time(&faults);
            let judged = elections(&faults);
            let before = judged.and_then(|elections| Some((self.settle()?, elections)));
            self.arm();
            for fault in &faults {
                self.note_fault(format!("{} {fault:?}", self.journal.now()));
                self.harm(*fault);
            }
            self.steps(time);
            self.put_right();
            let quiet = self.random.random_range(300..1_200);
            self.steps(quiet);
            // A replacement that began meanwhile may hand leadership over.
            if let Some((leader, elections)) = before.filter(|_| !self.replaced) {
                self.judge_leader(leader, elections, &faults);
            }
        }
    }

    /// Waits until slow requests are over. The leader, if nothing is about to replace it.
    fn settle(&mut self) -> Option<(u64, NodeId)> {
        // Asked before the wait: a hand-over that the operator's client has given up may still be
        // under way at a node.
        let is_idle = self.records.lock().orders == 0;
        self.steps(CALM_MS);
        self.settled_leader().filter(|_| is_idle)
    }

    /// The leader, if it leads all nodes and nobody is about to change that.
    fn settled_leader(&self) -> Option<(u64, NodeId)> {
        let members = self.members();
        let well = members.iter().all(|node| self.nodes[node].slot.node().is_some());
        let leaders: Vec<_> = members.iter().filter_map(|node| self.follows(*node)).collect();
        let agreed = leaders.windows(2).all(|two| two[0] == two[1]);
        let left_alone = self.crash_point.is_none() && !self.replaced;
        self.leader().filter(|_| left_alone && well && agreed)
    }

    fn follows(&self, node: NodeId) -> Option<(u64, Option<NodeId>)> {
        let view = self.nodes.get(&node)?.slot.node()?.view();
        Some((view.term, view.leader.map(|leader| leader.node)))
    }

    /// After so many elections at most.
    fn judge_leader(&mut self, from: (u64, NodeId), elections: u64, faults: &[Fault]) {
        let by = format!("{faults:?}");
        if let Some(to) = self.leader().filter(|to| elections == 0 && *to != from) {
            self.report(Violation::LeaderReplaced { by: by.clone(), from, to });
        }
        let terms = self.nodes.values().filter_map(|machine| machine.slot.node());
        let term = terms.map(|node| node.consensus().leadership().0).max().unwrap_or(from.0);
        let rise = term.saturating_sub(from.0);
        if elections > 0 {
            self.terms_max = self.terms_max.max(rise);
        }
        if rise > elections * TERMS_MAX {
            self.report(Violation::TermRose { by, from: from.0, to: term });
        }
    }
}

#[test]
fn elections_are_counted_where_links_and_clocks_are_good() {
    let (kill, slow) = (Fault::Kill { leader: true }, Fault::SlowDisks);
    assert_eq!(elections(&[slow]), Some(0));
    assert_eq!(elections(&[kill]), Some(1));
    assert_eq!((elections(&[slow, kill]), elections(&[kill, slow])), (Some(1), Some(1)));
    assert_eq!(elections(&[kill, Fault::Partition]), None);
    for fault in [Fault::SlowDisk, Fault::LeaderAlone, Fault::HandOver] {
        assert_eq!(elections(&[fault]), None, "{fault:?}");
    }
}
