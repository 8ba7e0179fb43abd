//! The report on held generations.

use holdfast_api::{Conclusion, Phase, RevokeCause};

use super::*;
use crate::commands::holders::tests::{alive, held, revoked, unseen};

/// The next generation of `world`, in which these have arrived.
fn next_of(held: &HeldInfo, arrived: &[u32], missing: &[u32]) -> RoundInfo {
    let mut next = round("world", arrived, missing);
    next.terms = held.terms.clone();
    until_ms(next, 83_000, AtDeadline::Fail)
}

fn told(rounds: Vec<RoundInfo>, held: HeldInfo) -> Why {
    why_held(rounds, world(3), vec![held], &Agents::default())
}

#[test]
fn whoever_keeps_the_next_generation_from_closing_is_named_with_what_ends_that() {
    let info = revoked(held(&[0, 1, 2]), vec![alive(0), unseen(1)]);
    let mut next = next_of(&info, &[2], &[0]);
    next.waits_for = WaitsFor::Release { holders: 2, ended: 1, free_at_ms: None, revoked: true };
    let why = told(vec![next], info);
    let wanted = "\
job train, run r1: open rounds: 1, waits for keys: 0
round world (generation 12), open for 41s: 1 arrived, 1 missing; 2 processes still hold the revoked generation; 1 of them ended, and nobody saw the exit: their agents report it, or `comm excuse` does; generation 4 was revoked 12s ago (process 1: gone); in 40s all these calls fail
  host-0: process 1 ended 3s ago (gone), exit unseen: the agent reports it, or `holdfast --job train comm excuse world 1` vouches for it
  host-0: process 0 alive for 42s, has not stopped: in 18s declared dead, and ended by the agent
";
    assert_eq!(text(&why), wanted);
    let holding = &json(&why)["rounds"][0]["holding"];
    assert_eq!((&holding["generation"], &holding["phase"]), (&4.into(), &"revoked".into()));
    assert_eq!(holding["cause"]["ended"]["process"], 1);
    assert_eq!(holding["holders"][0]["ended"], "gone");
    assert_eq!(json(&why)["held"], serde_json::json!([]));
}

#[test]
fn a_round_that_waits_for_arrivals_names_each_of_those_once() {
    let info = revoked(held(&[0, 1, 2]), vec![alive(0), unseen(1)]);
    let next = next_of(&info, &[2], &[0]);
    let said = text(&told(vec![next], info));
    assert!(said.contains("  host-0: process 1 ended 3s ago (gone), exit unseen"), "{said}");
    assert_eq!(said.matches("alive for 42s").count(), 1, "{said}");
    assert!(said.contains("  node-0: rank 0 alive for 42s, not arrived"), "{said}");
}

#[test]
fn a_revoked_generation_that_nobody_waits_for_and_somebody_holds_is_told() {
    let info = revoked(held(&[0, 1, 2]), vec![unseen(1)]);
    let why = told(Vec::new(), info.clone());
    let said = text(&why);
    let wanted = "group world: generation 4 was revoked 12s ago (process 1: gone); 1 process holds it still, and nobody waits for the next one\n  host-0: process 1 ended 3s ago (gone), exit unseen";
    assert!(said.contains(wanted), "{said}");
    assert_eq!(json(&why)["held"][0]["unreleased"], 1);
    assert_eq!(why.trouble(), (false, true));
    // In use, and drained, needs no report.
    let drained = HeldInfo { phase: Phase::Drained, ..revoked(held(&[0]), Vec::new()) };
    for fine in [held(&[0, 1]), drained] {
        let why = told(Vec::new(), fine);
        assert!(!text(&why).contains("group world"), "{}", text(&why));
        assert_eq!(why.trouble(), (false, false));
    }
}

#[test]
fn a_cause_of_somebody_else_cannot_speak_to_the_terminal() {
    let mut info = revoked(held(&[0]), vec![alive(0)]);
    let cause = RevokeCause::Operator { reason: "\u{1b}[2J".to_owned() };
    info.revoked.as_mut().unwrap().cause = cause;
    assert!(!text(&told(Vec::new(), info)).contains('\u{1b}'));
}

#[test]
fn a_generation_that_is_forming_for_long_names_who_is_not_ready() {
    let forming = |formed_at_ms| HeldInfo {
        phase: Phase::Forming,
        formed_at_ms,
        looks_again_at_ms: Some(62_000),
        ..held(&[0, 1, 2])
    };
    let said = text(&told(Vec::new(), forming(2_000)));
    let wanted = "group world: generation 4 has been forming for 41s: 3 of 3 members are not ready; in 19s it is revoked\n  node-0: ranks 0-2 alive for 42s, not ready\n";
    assert!(said.contains(wanted), "{said}");
    assert!(!text(&told(Vec::new(), forming(39_000))).contains("forming"));
    // Some have come to the round that reports them ready: it names the others.
    let mut up = round("up", &[0, 2], &[1]);
    up.terms.conclusion = Conclusion::Ready;
    up.terms.among = Among::Generation(4);
    let why = told(vec![up], forming(2_000));
    let said = text(&why);
    let wanted =
        "forming for 41s: 1 of 3 members are not ready (see round up); in 19s it is revoked";
    assert!(said.contains(wanted), "{said}");
    assert_eq!(said.matches("rank 1 alive").count(), 1, "{said}");
    assert_eq!(json(&why)["held"][0]["not_ready"][0]["processes"], serde_json::json!([1]));
}
