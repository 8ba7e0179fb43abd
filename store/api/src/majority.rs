//! Which voters answer: the text is the same in every command, agent and
//! library.

use serde::{Deserialize, Serialize};

use crate::name::NodeId;
use crate::span::span;

/// Which voters answer, as the answering node knows it without any quorum: the
/// leader by what its followers answer, another node by its leader's report, or,
/// without one, by asking the voters itself, and by the entries and heartbeats that
/// reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Majority {
    /// How many voters there are.
    pub of: u32,
    /// How many of them must answer for anything to be written.
    pub needed: u32,
    /// How many of them answer, as far as is known: at least as many as are needed while
    /// entries are committed.
    pub answering: u32,
    /// Those of which the answering node heard nothing, in order of their ids.
    pub missing: Vec<MissingVoter>,
    /// For how long too few have answered, in milliseconds; null while enough
    /// do.
    pub lost_ms: Option<u64>,
}

/// A voter that does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MissingVoter {
    /// Id of the node, chosen by the operator, never 0.
    pub node: NodeId,
    /// Where clients and other nodes reach it, `host:port`.
    pub address: String,
    /// For how long it has not answered, in milliseconds; a node counts no
    /// further back than its own start.
    pub silent_ms: u64,
}

impl Majority {
    /// Whether too few voters answer.
    pub fn is_lost(&self) -> bool {
        self.answering < self.needed
    }

    /// Which voters are missing, since when, how many are needed, and what to do;
    /// none if enough answer.
    pub fn lost_in_words(&self) -> Option<String> {
        let Majority { of, needed, answering, missing, .. } = self;
        if !self.is_lost() {
            return None;
        }
        let answer = if *answering == 1 { "answers" } else { "answer" };
        let until = match needed - answering {
            1 => "one is back: start it with its old data folder".to_owned(),
            more => format!("{more} of them are back: start them with their old data folders"),
        };
        Some(format!(
            "the majority is lost: {}; {needed} of {of} are needed, {answering} {answer}; writes, waits and rounds stand still until {until}; if the disks are gone, see operate.md#a-lost-majority",
            silent(missing)
        ))
    }

    /// Which voters are missing although enough answer; none if all do.
    pub fn weakened_in_words(&self) -> Option<String> {
        let Majority { of, needed, answering, missing, .. } = self;
        if self.is_lost() || missing.is_empty() {
            return None;
        }
        let more = match answering - needed {
            0 => "none more may fail".to_owned(),
            spare => format!("{spare} more may fail"),
        };
        Some(format!(
            "{}; {needed} of {of} are needed, {answering} answer: {more}",
            silent(missing)
        ))
    }
}

/// `voters 2 (n2:1) and 3 (n3:1) have not answered for 35s`; where the times differ,
/// `voters have not answered: 2 (n2:1) for 35s, 3 (n3:1) for 5s`.
fn silent(missing: &[MissingVoter]) -> String {
    let name = |voter: &MissingVoter| format!("{} ({})", voter.node, voter.address);
    let all_for = missing.first().map(|first| span(first.silent_ms));
    let together = missing.iter().all(|voter| Some(span(voter.silent_ms)) == all_for);
    match (missing, all_for) {
        ([voter], Some(time)) => format!("voter {} has not answered for {time}", name(voter)),
        ([all @ .., last], Some(time)) if together => {
            let all: Vec<String> = all.iter().map(name).collect();
            format!("voters {} and {} have not answered for {time}", all.join(", "), name(last))
        }
        (all, _) => {
            let each =
                |voter: &MissingVoter| format!("{} for {}", name(voter), span(voter.silent_ms));
            let each: Vec<String> = all.iter().map(each).collect();
            format!("voters have not answered: {}", each.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn majority(of: u32, silent: &[(u64, u64)]) -> Majority {
        let voter = |(node, seconds): &(u64, u64)| MissingVoter {
            node: *node,
            address: format!("10.0.0.{node}:21001"),
            silent_ms: seconds * 1_000,
        };
        Majority {
            of,
            needed: of / 2 + 1,
            answering: of - silent.len() as u32,
            missing: silent.iter().map(voter).collect(),
            lost_ms: None,
        }
    }

    #[test]
    fn a_lost_majority_is_told_with_who_since_when_and_what_to_do() {
        assert_eq!(
            majority(3, &[(2, 35), (3, 35)]).lost_in_words().unwrap(),
            "the majority is lost: voters 2 (10.0.0.2:21001) and 3 (10.0.0.3:21001) have not answered for 35s; 2 of 3 are needed, 1 answers; writes, waits and rounds stand still until one is back: start it with its old data folder; if the disks are gone, see operate.md#a-lost-majority"
        );
        let of_five = majority(5, &[(1, 5), (2, 90), (3, 90), (4, 90)]).lost_in_words().unwrap();
        for part in [
            "have not answered: 1 (10.0.0.1:21001) for 5s, 2 (10.0.0.2:21001) for 1m 30s, ",
            "3 of 5 are needed, 1 answers;",
            "until 2 of them are back: start them with their old data folders",
        ] {
            assert!(of_five.contains(part), "{part:?} in {of_five}");
        }
        assert!(
            majority(2, &[(2, 1)])
                .lost_in_words()
                .unwrap()
                .contains("voter 2 (10.0.0.2:21001) has not")
        );
    }

    #[test]
    fn enough_voters_are_no_lost_majority() {
        assert_eq!(majority(3, &[(3, 35)]).lost_in_words(), None);
        assert_eq!(majority(1, &[]).lost_in_words(), None);
        assert_eq!(majority(3, &[]).weakened_in_words(), None);
        assert_eq!(majority(3, &[(1, 2), (2, 2)]).weakened_in_words(), None);
        assert_eq!(
            majority(3, &[(3, 35)]).weakened_in_words().unwrap(),
            "voter 3 (10.0.0.3:21001) has not answered for 35s; 2 of 3 are needed, 2 answer: none more may fail"
        );
        assert!(majority(5, &[(3, 35)]).weakened_in_words().unwrap().ends_with("1 more may fail"));
    }
}
