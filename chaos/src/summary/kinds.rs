//! Which of the planned kinds of faults a run injected, and which were seen to act.

use std::collections::BTreeSet;

use super::Summary;
use crate::run::{Description, FaultRecord};

/// The kinds of faults that were planned, by what came of them. Faults that are injected at
/// the same time are one kind.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Kinds {
    /// How many were planned.
    pub planned: usize,
    /// Names of those that never began.
    pub not_injected: Vec<String>,
    /// Names of those that began each time, and ended with an error and without evidence.
    pub failed: Vec<String>,
    /// Names of those that were injected without evidence that they acted.
    pub not_seen: Vec<String>,
}

impl Summary {
    /// The kinds of faults of the run.
    pub fn kinds(&self) -> Kinds {
        Kinds::of(&self.description)
    }
}

impl Kinds {
    fn of(description: &Description) -> Kinds {
        let faults = &description.faults;
        let planned = description.planned.iter().map(String::as_str);
        let kinds: BTreeSet<&str> =
            planned.chain(faults.iter().map(FaultRecord::planned_as)).collect();
        let (not_injected, failed, not_seen) = (vec![], vec![], vec![]);
        let mut found = Kinds { planned: kinds.len(), not_injected, failed, not_seen };
        for kind in kinds {
            if !faults.iter().any(|fault| fault.planned_as() == kind) {
                found.not_injected.push(kind.to_owned());
            } else if !is_injected(kind, faults) {
                found.failed.push(kind.to_owned());
            } else if !is_seen(kind, faults) {
                found.not_seen.push(kind.to_owned());
            }
        }
        found
    }

    /// How many of them were injected, for people; none if no faults were planned.
    pub fn counted(&self) -> Option<String> {
        let injected = self.planned - self.not_injected.len() - self.failed.len();
        (self.planned > 0).then(|| format!("{injected} of {} kinds injected", self.planned))
    }

    /// What a pass says nothing of, for people.
    pub fn missing(&self) -> Vec<String> {
        let line = |what: &str, names: &[String]| {
            (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")))
        };
        let lines = [
            line("not injected in this time", &self.not_injected),
            line("began, and failed", &self.failed),
            line("injected, not seen to act", &self.not_seen),
        ];
        lines.into_iter().flatten().collect()
    }
}

/// Whether each fault of a kind was injected, and undone unless it was seen to act. One whose
/// injection failed has a record that does not say what was done.
fn is_injected(kind: &str, faults: &[FaultRecord]) -> bool {
    let is_done = |fault: &FaultRecord| !fault.what.is_empty() && fault.error.is_none();
    is_there(kind, faults, |fault| is_done(fault) || fault.evidence.is_some())
}

fn is_seen(kind: &str, faults: &[FaultRecord]) -> bool {
    is_there(kind, faults, |fault| fault.evidence.is_some())
}

/// Whether the faults of a kind were once there together, each like that.
fn is_there(kind: &str, faults: &[FaultRecord], is: impl Fn(&FaultRecord) -> bool) -> bool {
    let names: Vec<&str> = kind.split('+').collect();
    faults.windows(names.len()).any(|together| {
        together
            .iter()
            .zip(&names)
            .all(|(fault, name)| fault.planned_as() == kind && fault.nemesis == *name && is(fault))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(nemesis: &str, what: &str, evidence: Option<&str>) -> FaultRecord {
        FaultRecord {
            nemesis: nemesis.to_owned(),
            what: what.to_owned(),
            evidence: evidence.map(str::to_owned),
            ..FaultRecord::default()
        }
    }

    fn kinds(planned: &[&str], faults: Vec<FaultRecord>) -> Kinds {
        let planned = planned.iter().map(|name| (*name).to_owned()).collect();
        Kinds::of(&Description { planned, faults, ..Description::default() })
    }

    #[test]
    fn kinds_that_were_not_injected_or_not_seen_are_named() {
        let faults = vec![
            fault("kill-leader", "killed node 1", Some("signal 9")),
            fault("loss", "lost packets", None),
            fault("loss", "lost packets", None),
            fault("resize", "", None),
            fault("kill-leader", "killed node 2", None),
            FaultRecord {
                error: Some("it is still there".to_owned()),
                ..fault("slow-link", "slowed node 1", None)
            },
        ];
        let kinds = kinds(&["ring", "resize", "loss", "kill-leader", "slow-link"], faults);
        assert_eq!(kinds.counted().as_deref(), Some("2 of 5 kinds injected"));
        assert_eq!(
            kinds.missing(),
            [
                "not injected in this time: ring",
                "began, and failed: resize, slow-link",
                "injected, not seen to act: loss"
            ]
        );
    }

    #[test]
    fn faults_at_the_same_time_are_one_kind_and_must_be_seen_together() {
        let pair = "loss+kill-leader";
        let part = |nemesis: &str, evidence| FaultRecord {
            group: Some(pair.to_owned()),
            ..fault(nemesis, "done", evidence)
        };
        let (seen, unseen) = (Some("seen"), None);
        let apart = vec![
            part("loss", seen),
            part("kill-leader", unseen),
            part("loss", unseen),
            part("kill-leader", seen),
        ];
        let found = kinds(&[pair], apart);
        assert_eq!((found.planned, found.not_injected.len(), found.failed.len()), (1, 0, 0));
        assert_eq!(found.not_seen, [pair]);
        let half = vec![part("loss", seen)];
        assert_eq!(kinds(&[pair], half).failed, [pair]);
        let together = vec![part("loss", seen), part("kill-leader", seen)];
        assert_eq!(kinds(&[pair], together).missing(), [""; 0]);
    }

    #[test]
    fn a_run_without_faults_counts_no_kinds() {
        let none = kinds(&[], Vec::new());
        assert_eq!((none.counted(), none.missing()), (None, Vec::new()));
    }
}
