//! What counts as the sign of a defect: a promise that a checker saw broken. A cluster that does
//! not recover, or loses its leader, may just be on a machine that is busy: that counts for the
//! defects alone that are known to show so.

use holdfast_chaos::judge::{Verdict, Violation};
use holdfast_chaos::summary::Summary;

/// How defects show that no checker of answers finds: a part of the failure's text, or the
/// violation of the simulator.
const SHOWN_OTHERWISE: &[(&str, &str)] = &[
    // A node refuses a log that ends before what it was seen to hold.
    ("ack-before-sync", "ended unexpectedly, with exit status: 1"),
    ("tail-forgotten", "ended unexpectedly, with exit status: 1"),
    ("blind-scrub", "and it was still so after"),
    ("timer-outside", "panicked"),
    ("all-descriptors", "ended unexpectedly, with exit status: 1"),
    ("absence-is-death", "broke a connection of"),
    ("ended-lease", "broke a connection of"),
    ("loss-of-one", "LeaderReplaced"),
    ("short-loyalty", "LeaderReplaced"),
    ("hasty-elections", "TermRose"),
];

/// Violations of the simulator that say nothing of answers and of what is kept.
const OF_RECOVERY: [&str; 8] = [
    "LeaderReplaced",
    "TermRose",
    "Slowed",
    "NoLeader",
    "NeverEqual",
    "Unanswered",
    "NoIteration",
    "Unknown",
];

/// Whether this text is how the defect is known to show.
fn is_shown_so(name: &str, text: &str) -> bool {
    SHOWN_OTHERWISE.iter().any(|(defect, part)| *defect == name && text.contains(part))
}

/// The first sign in a run.
pub(super) fn in_run(name: &str, summary: &Summary) -> Option<String> {
    if summary.verdict != Verdict::Fail {
        return None;
    }
    let failures = summary.description.failures.iter();
    let shown = failures.filter(|text| is_shown_so(name, text)).cloned();
    let violations = summary.judgements.iter().flat_map(|(workload, judgement)| {
        let checker = judgement.checker.as_str();
        let said = move |it: &Violation| format!("{workload} ({checker}): {}: {}", it.key, it.text);
        judgement.violations.iter().map(said)
    });
    shown.chain(violations).next()
}

/// The first sign in the seeds that failed.
pub(super) fn in_simulator(name: &str, said: &str) -> Option<String> {
    let mut failed = None;
    for line in said.lines() {
        match (line.strip_prefix("  "), failed) {
            (Some(violation), Some(seed)) if is_sign(name, violation) => {
                return Some(format!("{seed}: {violation}"));
            }
            (Some(_), _) => {}
            (None, _) => failed = line.split_once(": fail").map(|(seed, _)| seed),
        }
    }
    None
}

/// Whether this line below a seed is a sign of the defect.
fn is_sign(name: &str, line: &str) -> bool {
    // How many more violations there are, and after which faults, is in small letters.
    line.starts_with(char::is_uppercase)
        && (!OF_RECOVERY.iter().any(|kind| line.starts_with(kind)) || is_shown_so(name, line))
}

/// How many seeds the simulator has tried, by its last line; 0 if it does not say so.
pub(super) fn seeds_tried(said: &str) -> u64 {
    let counts = said.lines().rfind(|line| line.starts_with("seeds "));
    let counts = counts.and_then(|line| line.split_once(": ")).map_or("", |(_, counts)| counts);
    let tried = counts.split(", ").filter_map(|count| count.split_once(' '));
    let tried = tried.filter(|(_, what)| matches!(*what, "passed" | "failed" | "unknown"));
    tried.filter_map(|(count, _)| count.parse::<u64>().ok()).sum()
}

/// Whether `chaos-rounds` ended since its laps were too few, and for nothing else.
pub(super) fn are_laps_too_few(said: &str) -> bool {
    said.lines().any(|line| line.ends_with("laps were not enough: not a pass"))
}

/// The last violation of a history of rounds.
pub(super) fn in_rounds(said: &str) -> Option<String> {
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let end = lines.iter().position(|line| line.starts_with("NOT VALID"))?;
    end.checked_sub(1).map(|last| lines[last].to_owned())
}

#[cfg(test)]
mod tests {
    use holdfast_api::planted::DEFECTS;
    use holdfast_chaos::operation::{Action, Answer, Operation, Outcome};
    use holdfast_chaos::recording::Recording;
    use holdfast_chaos::run::Description;
    use holdfast_chaos::summary::summarize;

    use super::*;

    fn failed(failures: &[&str]) -> Summary {
        let failures = failures.iter().map(|text| (*text).to_owned()).collect();
        let description = Description { failures, ended: Some(1), ..Description::default() };
        summarize(Recording { description: Some(description), ..Recording::default() })
    }

    #[test]
    fn each_of_them_is_a_defect() {
        for (name, _) in SHOWN_OTHERWISE {
            assert!(DEFECTS.iter().any(|(known, _)| known == name), "{name}");
        }
    }

    #[test]
    fn a_cluster_that_does_not_recover_is_no_sign() {
        let busy = ["the cluster did not recover: 2 of 3 nodes were ready after 60s"];
        assert_eq!(in_run("stale-read", &failed(&busy)), None);
        let end = "node 1 ended unexpectedly, with exit status: 1; it says why in /tmp/log";
        assert_eq!(in_run("stale-read", &failed(&[end])), None);
        assert_eq!(in_run("tail-forgotten", &failed(&[busy[0], end])).as_deref(), Some(end));
    }

    #[test]
    fn what_a_checker_finds_is_a_sign_of_any() {
        let read = Operation {
            client: "a".to_owned(),
            workload: "register".to_owned(),
            key: "k".to_owned(),
            call: 1,
            returned: Some(2),
            action: Action::Read,
            outcome: Outcome::Ok {
                answer: Answer::Value(Some("never written".to_owned())),
                revision: None,
            },
        };
        let description = Description {
            failures: vec!["the cluster did not recover".to_owned()],
            ended: Some(3),
            ..Description::default()
        };
        let mut summary = summarize(Recording {
            description: Some(description),
            operations: vec![read],
            ..Recording::default()
        });
        let sign = in_run("stale-read", &summary).unwrap();
        assert!(sign.starts_with("register (exact): k: "), "{sign}");
        summary.verdict = Verdict::Unknown;
        assert_eq!(in_run("stale-read", &summary), None);
    }

    #[test]
    fn a_simulated_leader_that_is_replaced_is_a_sign_of_some_defects_alone() {
        let said = "seed 1: unknown; 9 lines\n  Unknown { what: \"x\" }\nseed 4: fail; 9 lines\n  LeaderReplaced { by: \"x\" }\n  NoLeader\n  and 2 more\n  after Cut\nseeds 1..4: 0 passed";
        assert_eq!(in_simulator("stale-read", said), None);
        let sign = in_simulator("short-loyalty", said).unwrap();
        assert_eq!(sign, "seed 4: LeaderReplaced { by: \"x\" }");
        let lost = said.replace("  NoLeader", "  LostPut { key: \"k\" }");
        assert_eq!(in_simulator("stale-read", &lost).unwrap(), "seed 4: LostPut { key: \"k\" }");
        assert_eq!(in_simulator("stale-read", "seeds 1..4: 4 passed, 0 failed"), None);
    }

    #[test]
    fn a_sign_may_be_in_any_seed_that_failed() {
        let said = "seed 2: fail; 9 lines\n  NoLeader\n  after Cut\nseed 3: unknown; 9 lines\n  LostPut { key: \"i\" }\nseed 5: fail; 9 lines\n  LostPut { key: \"k\" }\nseeds 1..20: 2 passed, 2 failed, 1 unknown, 0 passed before; 9 s";
        assert_eq!(in_simulator("stale-read", said).unwrap(), "seed 5: LostPut { key: \"k\" }");
        assert_eq!(seeds_tried(said), 5);
        assert_eq!(seeds_tried("cannot find this program"), 0);
    }

    #[test]
    fn a_violation_of_rounds_is_a_sign() {
        let said = "seed 7\n  a dead process is in it\nNOT VALID: 1\nseed 7; the histories";
        assert_eq!(in_rounds(said).as_deref(), Some("a dead process is in it"));
        assert_eq!(in_rounds("4 laps were not enough: not a pass"), None);
        assert!(are_laps_too_few("seed 7\n4 laps were not enough: not a pass\n"));
        assert!(!are_laps_too_few(said) && !are_laps_too_few(""));
    }
}
