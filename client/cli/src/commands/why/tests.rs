//! What is said, from what is known.

use holdfast_api::{AgentWait, Cause, EndInfo, Role};

use super::*;
use crate::commands::agents::tests::agent;
use crate::commands::processes::tests::process;
use crate::commands::rounds::tests::{round, until_ms};
use crate::output::{Output, render};

/// At 43 s of log time.
fn why(rounds: Vec<RoundInfo>, processes: Vec<ProcessInfo>, agents: &Agents) -> Why {
    let iteration = IterationInfo {
        iteration: 3,
        generation: None,
        members: Default::default(),
        ranks: Default::default(),
        member: false,
    };
    let scope = Scope { job: "train".parse().unwrap(), run: Some("r1".parse().unwrap()) };
    let seen = Seen { rounds, processes, iteration, revision: 9 };
    Why::of(&scope, seen, agents, LogNow::exactly(43_000))
}

fn text(why: &Why) -> String {
    String::from_utf8(render(why, Output::Table).unwrap()).unwrap()
}

fn json(why: &Why) -> serde_json::Value {
    serde_json::from_slice(&render(why, Output::Json).unwrap()).unwrap()
}

/// Processes of hosts of eight, with their ranks.
fn world(count: u32) -> Vec<ProcessInfo> {
    let one = |id| ProcessInfo { rank: Some(id), ..process(id, &format!("node-{}", id / 8)) };
    (0..count).map(one).collect()
}

#[test]
fn a_round_says_who_is_missing_and_what_happens_when() {
    let mut all = world(24);
    for one in &mut all[8..16] {
        one.waits_in = vec!["checkpoint".into()];
    }
    let missing: Vec<u32> = (8..18).collect();
    let arrived: Vec<u32> = (0..8).chain(18..24).collect();
    let open = until_ms(round("epoch", &arrived, &missing), 62_000, AtDeadline::Evict);
    let other = until_ms(round("checkpoint", &missing[..8], &[]), 50_000, AtDeadline::Fail);
    let why = why(vec![open, other], all, &Agents::default());
    let wanted = "\
job train, run r1: open rounds: 2, waits for keys: 0
round epoch (generation 12), open for 41s: 14 arrived, 10 missing; in 19s those missing are evicted if most have arrived, else all these calls fail
  node-2: ranks 16-17 alive for 42s, not arrived, and in no other round
  node-1: ranks 8-15 alive for 42s, not arrived: waiting in round checkpoint
round checkpoint (generation 12), open for 41s: 8 arrived, 0 missing; all who live are there, last call for those who were lost; in 7s all these calls fail
";
    assert_eq!(text(&why), wanted);
    let json = json(&why);
    assert_eq!(json["rounds"][0]["then"], "evict");
    assert_eq!(json["rounds"][0]["deadline_in_ms"], 19_000);
    assert_eq!(json["rounds"][0]["missing"][1]["processes"].as_array().map(Vec::len), Some(8));
    assert_eq!(json["idle"], false);
}

#[test]
fn a_cycle_of_waits_is_called_a_deadlock() {
    let all = world(3);
    let rounds = vec![
        until_ms(round("a", &[0], &[1]), 63_000, AtDeadline::Fail),
        round("b", &[1], &[0]),
        round("c", &[2], &[0]),
    ];
    let why = why(rounds, all, &Agents::default());
    let line = "Deadlock: process 0 (node-0) waits in round a for process 1 (node-0), which waits in round b for process 0 (node-0); a deadline ends this in 20s\n";
    assert!(text(&why).contains(line), "{}", text(&why));
    assert_eq!(text(&why).matches("Deadlock").count(), 1);
    let steps = &json(&why)["deadlocks"][0]["steps"];
    assert_eq!((&steps[0]["round"], &steps[0]["process"]), (&"a".into(), &1.into()));
}

#[test]
fn sixteen_thousand_ranks_are_twenty_lines() {
    let all = world(16_384);
    let ids: Vec<u32> = (0..16_384).collect();
    let mut open = round("epoch", &[], &ids);
    open.missing.truncate(64);
    open.arrived = [(16_383, 16_384)].into_iter().collect();
    open.missing_count = 16_383;
    let cycles = (0..20).flat_map(|n| {
        let (a, b) = (2 * n, 2 * n + 1);
        [round(&format!("a{n}"), &[a], &[b]), round(&format!("b{n}"), &[b], &[a])]
    });
    let mut waiting = agent("node-0", 0..0);
    waiting.report.waits = (0..50)
        .map(|n| AgentWait {
            pid: None,
            rank: Some(n),
            keys: vec![format!("/{n}").as_str().into()],
            keys_left_out: 0,
            at_least: None,
            blocked_ms: 5_000,
        })
        .collect();
    let crowd = Agents { agents: vec![waiting], ..Agents::default() };
    let one = why(vec![open.clone()], all.clone(), &Agents::default());
    let all_told = text(&one);
    assert_eq!(all_told.lines().count(), LINES_MAX, "{all_told}");
    assert!(all_told.contains("\n  node-0: ranks 0-7 alive for 42s"), "{all_told}");
    assert!(all_told.ends_with("  … and 2031 more hosts (16247 processes)\n"), "{all_told}");
    let many = why([open].into_iter().chain(cycles).collect(), all.clone(), &crowd);
    let told = text(&many);
    assert_eq!(told.lines().count(), LINES_MAX, "{told}");
    assert!(told.contains("more deadlocks") && told.contains("more that wait"), "{told}");
    let idle = why(Vec::new(), all, &Agents::default());
    assert_eq!(text(&idle).lines().count(), LINES_MAX, "{}", text(&idle));
    assert!(text(&idle).lines().all(|line| line.len() < 300));
}

#[test]
fn when_nothing_waits_the_control_plane_is_idle() {
    let mut all = world(16);
    all[9].end = Some(EndInfo { at: 5, at_ms: 40_000, cause: Cause::Signaled { signal: 9 } });
    all[15].role = Role::Standby;
    all[15].rank = None;
    let idle = why(Vec::new(), all, &Agents::default());
    let wanted = "\
job train, run r1: no round is open, and nobody waits for a key
the control plane is idle: if the job hangs, it hangs in a collective or in user code (latest iteration: 3). What is known of each rank:
  node-1: rank 9 ended 3s ago: killed by signal 9
  node-0: ranks 0-7 alive for 42s, in no round
  node-1: ranks 8, 10-14 alive for 42s, in no round
  node-1: process 15 standby, alive for 42s, in no round
";
    assert_eq!(text(&idle), wanted);
    assert_eq!(json(&idle)["hosts"][0]["cause"], "killed by signal 9");
    assert_eq!(json(&idle)["idle"], true);
    let nothing = why(Vec::new(), Vec::new(), &Agents::default());
    assert!(text(&nothing).contains("no process is registered"), "{}", text(&nothing));
}

#[test]
fn waits_for_keys_stand_with_their_hosts() {
    let mut one = agent("node-a", 0..2);
    let wait = |rank| AgentWait {
        pid: None,
        rank: Some(rank),
        keys: vec!["/default_pg/0//cpu//0/5".into()],
        keys_left_out: 0,
        at_least: None,
        blocked_ms: 41_000 - rank,
    };
    one.report.waits = vec![wait(0), wait(1)];
    let mut elsewhere = agent("node-b", 0..1);
    elsewhere.report.run = "r0".parse().unwrap();
    elsewhere.report.waits = vec![wait(0)];
    let why =
        why(Vec::new(), Vec::new(), &Agents { agents: vec![one, elsewhere], ..Agents::default() });
    let wanted = "\
job train, run r1: open rounds: 0, waits for keys: 1
keys: rank 5 has not published its gloo address; 2 wait, the longest for 41s
  node-a: ranks 0-1 waiting for 41s
";
    assert_eq!(text(&why), wanted);
}

#[test]
fn a_round_whose_processes_have_yet_to_register_says_so() {
    let mut open = round("start", &[0, 1], &[]);
    open.terms.world = 4;
    let told = text(&why(vec![open.clone()], world(2), &Agents::default()));
    assert!(told.contains("declares a world of 4: more have to register; it has no"), "{told}");
    open.terms.members_min = 3;
    let told = text(&why(vec![open.clone()], world(2), &Agents::default()));
    assert!(told.contains("it needs 3 at least"), "{told}");
    open.terms.rule = Rule::Quorum { min: 4, max: 8, settle_ms: 5 };
    let told = text(&why(vec![open], world(2), &Agents::default()));
    assert!(told.contains("enough with 4 to 8"), "{told}");
}

#[test]
fn names_of_others_do_not_reach_the_terminal_as_they_are() {
    let mut all = world(2);
    all[1].host = "\u{1b}[31m".to_owned();
    let mut open = round("r\u{1b}", &[0], &[1]);
    open.missing[0].host = "\u{1b}[31m".to_owned();
    let other = round("s", &[1], &[0]);
    let told = text(&why(vec![open, other], all, &Agents::default()));
    assert!(!told.contains('\u{1b}') && told.contains(r"\x1b[31m"), "{told}");
}
