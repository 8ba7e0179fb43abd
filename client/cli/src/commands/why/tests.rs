//! The report, from given facts.

mod held;

use holdfast_api::{
    AgentClient, AgentEnded, AgentProcess, AgentStatus, AgentWait, Among, AtDeadline, Cause,
    Differing, Doing, EndInfo, Exit, LeftAgent, Policy, Quiet, Role, Rule, WaitsFor,
};

use super::report::LINES_MAX;
use super::*;
use crate::commands::activity::tests::activity;
use crate::commands::agents::tests::agent;
use crate::commands::processes::tests::process;
use crate::commands::rounds::tests::{round, until_ms};
use crate::output::{Output, render};

/// At 43 s of log time.
fn why(rounds: Vec<RoundInfo>, processes: Vec<ProcessInfo>, agents: &Agents) -> Why {
    why_held(rounds, processes, Vec::new(), agents)
}

/// The same, with what is held.
fn why_held(
    rounds: Vec<RoundInfo>,
    processes: Vec<ProcessInfo>,
    held: Vec<HeldInfo>,
    agents: &Agents,
) -> Why {
    let iteration = IterationInfo {
        iteration: 3,
        generation: None,
        members: Default::default(),
        ranks: Default::default(),
        member: false,
    };
    let (job, run) = ("train".parse().unwrap(), "r1".parse().unwrap());
    let place = Place { job, run, ended_at_ms: None, cause: None, open: true, present: true };
    let seen = Seen { rounds, processes, held, iteration, revision: 9 };
    Why::of(&place, seen, agents, LogNow::exactly(43_000))
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
    let mut other = until_ms(round("checkpoint", &missing[..8], &[]), 50_000, AtDeadline::Fail);
    other.waits_for = WaitsFor::LastCall { members: 8, expected: 9, at_ms: 48_000 };
    let why = why(vec![open, other], all, &Agents::default());
    let wanted = "\
job train, run r1: open rounds: 2, waits for keys: 0
round epoch (generation 12), open for 41s: 14 arrived, 10 missing; in 19s those missing are evicted if most have arrived, else all these calls fail
  node-2: ranks 16-17 alive for 42s, not arrived, and in no other round
  node-1: ranks 8-15 alive for 42s, not arrived: waiting in round checkpoint
round checkpoint (generation 12), open for 41s: 8 arrived, 0 missing; last call for those who were lost: it would have 8 members, and 9 were there before; in 5s it goes on without them; in 7s all these calls fail
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
    assert!(text(&nothing).contains("no agent is connected to this run"), "{}", text(&nothing));
    assert!(!nothing.is_alive());
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
fn a_round_says_what_the_rule_that_closes_it_waits_for() {
    let mut open = round("start", &[0, 1], &[]);
    open.waits_for = WaitsFor::World { members: 2, world: 4, at_ms: 50_000, enough: 3 };
    let open_json = json(&why(vec![open.clone()], world(2), &Agents::default()));
    assert_eq!(open_json["rounds"][0]["waits_for"]["world"]["enough"], 3);
    let told = text(&why(vec![open.clone()], world(2), &Agents::default()));
    let wanted =
        "a world of 4, and has 2 members: more have to register; in 7s 3 are enough; it has no";
    assert!(told.contains(wanted), "{told}");
    open.terms.rule = Rule::Quorum { min: 4, max: 8, settle_ms: 5 };
    open.waits_for = WaitsFor::Quorum { arrived: 2, min: 4 };
    open.terms.among = Among::Generation(7);
    let told = text(&why(vec![open], world(2), &Agents::default()));
    assert!(told.contains("round start among generation 7 (generation 12)"), "{told}");
    assert!(told.contains("2 of at least 4 are there"), "{told}");
}

#[test]
fn whose_numbers_do_not_govern_is_said_with_both() {
    let mut all = world(4);
    let policy = |world| Policy { world, ..Policy::default() };
    for one in &mut all {
        one.policy = policy(3);
    }
    all[3].policy = Policy { restarts_max: 7, ..policy(4) };
    let mut open = round("advance", &[0, 1, 3], &[2]);
    open.policy = Some(policy(3));
    let fields = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    open.differing = vec![
        Differing { process: 0, fields: fields(&["deadline"]) },
        Differing { process: 1, fields: fields(&["deadline"]) },
        Differing { process: 3, fields: fields(&["world", "restarts_max"]) },
    ];
    let why = why(vec![open], all, &Agents::default());
    let wanted = "; processes 0-1 have another deadline; process 3 has world 4 instead of 3, restarts_max 7 instead of 0; ";
    assert!(text(&why).contains(wanted), "{}", text(&why));
    assert_eq!(json(&why)["rounds"][0]["differing"][2]["fields"][0], "world");
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

/// A rank of an agent that sleeps since its last call.
fn asleep(rank: u64) -> AgentClient {
    let quiet = Quiet {
        last_call: "SET".to_owned(),
        key: Some(format!("/step/{rank}").as_str().into()),
        called_ms_ago: 41_000,
    };
    AgentClient {
        pid: Some(100 + rank as u32),
        rank: Some(rank),
        from: "127.0.0.1".to_owned(),
        connections: 1,
        quiet: Some(quiet),
        activity: Some(activity(Doing::Sleeping, 0, 0)),
    }
}

fn agents(all: Vec<AgentStatus>) -> Agents {
    Agents { agents: all, ..Agents::default() }
}

#[test]
fn the_rank_that_differs_from_the_others_stands_first_with_the_next_step() {
    let mut one = agent("gpu-7", 0..0);
    one.report.clients = (0..4).map(asleep).collect();
    one.report.clients[2].activity = Some(activity(Doing::Busy, 10_000, 10_000));
    let why = why(Vec::new(), Vec::new(), &agents(vec![one]));
    let wanted = "\
job train, run r1: no round is open, and nobody waits for a key
4 ranks neither wait for a key nor stand in a round: if the job hangs, it hangs outside the store, in a collective or in user code; those that differ from the others are listed first
  gpu-7: rank 2 main thread busy for 1m: 100 % of a core; last store call SET /step/2, 41s ago
  gpu-7: ranks 0-1, 3 main thread sleeps for 1m: used 0.00 s of processor time in the last 10s; last store call SET /step/0, 41s ago
next: on host gpu-7, `py-spy dump --pid 102` shows where rank 2 is; compare rank 0: host gpu-7, `py-spy dump --pid 100`; with NCCL, TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (its flight recorder) tells which collective each rank has reached
";
    assert_eq!(text(&why), wanted);
    let json = json(&why);
    assert_eq!(json["outside"][0]["ranks"], serde_json::json!([2]));
    assert_eq!(json["outside"][0]["activity"]["main"], "busy");
}

#[test]
fn a_rank_whose_last_call_is_another_one_differs_too() {
    let mut one = agent("gpu-7", 0..0);
    one.report.clients = (0..8).map(asleep).collect();
    one.report.clients[5].quiet.as_mut().unwrap().key = Some("/other".into());
    let told = text(&why(Vec::new(), Vec::new(), &agents(vec![one])));
    let rows: Vec<&str> = told.lines().skip(2).take(2).collect();
    assert!(rows[0].starts_with("  gpu-7: rank 5 main"), "{told}");
    assert!(rows[1].starts_with("  gpu-7: ranks 0-4, 6-7 main"), "{told}");
}

#[test]
fn ranks_that_use_the_store_go_on() {
    let told = text(&why(Vec::new(), Vec::new(), &agents(vec![agent("gpu-7", 0..2)])));
    assert!(told.contains("all of them use the store: they go on"), "{told}");
    assert!(!told.contains("py-spy"), "{told}");
    let mut older = agent("gpu-7", 0..2);
    older.report.tells_quiet = false;
    let told = text(&why(Vec::new(), Vec::new(), &agents(vec![older])));
    assert!(!told.contains("go on") && told.contains("its agent is older"), "{told}");
}

fn exited(pid: u32, rank: u64, exit: Option<Exit>) -> AgentEnded {
    AgentEnded { pid, rank: Some(rank), exit, ended_ms_ago: 12_000 }
}

#[test]
fn a_rank_that_exited_is_named_with_its_code_and_with_those_who_wait_for_its_key() {
    let mut one = agent("gpu-6", 0..2);
    let wait = |rank| AgentWait {
        pid: Some(100 + rank as u32),
        rank: Some(rank),
        keys: vec!["/default_pg/0//cpu//0/2".into()],
        keys_left_out: 0,
        at_least: None,
        blocked_ms: 11_000,
    };
    one.report.waits = vec![wait(0), wait(1)];
    let left = LeftAgent {
        id: "1".to_owned(),
        job: "train".parse().unwrap(),
        run: "r1".parse().unwrap(),
        host: "gpu-7".to_owned(),
        ended: vec![exited(4_242, 2, Some(Exit::Code(7)))],
    };
    let mut agents = Agents { agents: vec![one], left: vec![left.clone()], ..Agents::default() };
    let told = why(Vec::new(), Vec::new(), &agents);
    let wanted = "\
job train, run r1: programs ended: 1; open rounds: 0, waits for keys: 1
rank 2 (pid 4242, host gpu-7) exited with code 7, 12s ago; 2 wait for its key /default_pg/0//cpu//0/2
keys: rank 2 has not published its gloo address; 2 wait, the longest for 11s
  gpu-6: ranks 0-1 waiting for 11s
";
    assert_eq!(text(&told), wanted);
    assert_eq!(told.trouble(), (true, true));
    let json = json(&told);
    assert_eq!(json["ended"][0]["exit"], serde_json::json!({"code": 7}));
    assert_eq!(json["ended"][0]["waiting"], 2);
    // A rank that is there again, or whose agent is, has not ended.
    agents.left[0].ended[0].rank = Some(1);
    let again = agent("gpu-8", 1..2);
    agents.agents.push(again);
    assert!(!text(&why(Vec::new(), Vec::new(), &agents)).contains("exited"));
    agents.agents.pop();
    agents.left[0].ended[0].rank = Some(2);
    agents.agents[0].report.id = "1".to_owned();
    assert!(!text(&why(Vec::new(), Vec::new(), &agents)).contains("exited"));
    // Exits that were not seen, and many that ended together.
    let host = |n: u32, exit| LeftAgent {
        host: format!("h{n}"),
        ended: (0..8).map(|rank| exited(rank, u64::from(8 * n + rank), exit)).collect(),
        ..left.clone()
    };
    agents.agents[0].report.id = String::new();
    agents.left = vec![host(1, None), host(2, Some(Exit::Signal(9)))];
    let told = text(&why(Vec::new(), Vec::new(), &agents));
    assert!(
        told.contains(
            "ranks 8-15 (host h1) ended, the latest 12s ago; its launcher knows the exit code"
        ),
        "{told}"
    );
    assert!(
        told.contains("ranks 16-23 (host h2) killed by signal 9, the latest 12s ago"),
        "{told}"
    );
}

#[test]
fn a_process_of_the_library_that_does_not_arrive_is_told_with_what_its_main_thread_does() {
    let mut one = agent("node-0", 0..0);
    one.report.processes = (0..3)
        .map(|process| AgentProcess {
            process,
            incarnation: u64::from(process) + 1,
            pid: Some(100 + process),
            last_call: "step".to_owned(),
            called_ms_ago: 9_000,
            waiting: false,
            progress: None,
            silent_ms: 0,
            health: Default::default(),
            main_thread_silent_ms: None,
            activity: Some(activity(Doing::Sleeping, 0, 0)),
        })
        .collect();
    one.report.processes[1].activity = Some(activity(Doing::Busy, 9_900, 9_900));
    let told = text(&why(Vec::new(), world(3), &agents(vec![one])));
    let rows: Vec<&str> = told.lines().skip(2).collect();
    assert!(rows[0].contains("rank 1 alive") && rows[0].contains("99 % of a core"), "{told}");
    assert!(rows[1].contains("ranks 0, 2 alive") && rows[1].contains("used 0.00 s"), "{told}");
    assert!(rows[2].starts_with("next: on host node-0, `py-spy dump --pid 101`"), "{told}");
}

#[test]
fn a_round_says_whose_main_thread_does_not_run_and_where_to_look() {
    let mut one = agent("node-0", 0..0);
    let joined = |process: u32, main_thread_silent_ms| AgentProcess {
        process,
        incarnation: u64::from(process) + 1,
        pid: Some(100 + process),
        last_call: "advance".to_owned(),
        called_ms_ago: 50_000,
        waiting: false,
        progress: None,
        silent_ms: 0,
        health: Default::default(),
        main_thread_silent_ms,
        activity: None,
    };
    one.report.processes = vec![joined(0, None), joined(1, None), joined(2, Some(42_000))];
    let why = why(vec![round("step", &[0], &[1, 2])], world(3), &agents(vec![one]));
    let told = text(&why);
    let rows: Vec<&str> = told.lines().skip(2).collect();
    let wanted = "  node-0: rank 2 alive for 42s, not arrived, and in no other round; last call advance 50s ago, main thread has not run Python for 42s";
    assert_eq!(rows[0], wanted, "{told}");
    assert!(rows[1].contains("rank 1 alive") && !rows[1].contains("main thread"), "{told}");
    assert_eq!(rows[2], "next: on host node-0, `py-spy dump --pid 102` shows where rank 2 is");
    let json = json(&why);
    assert_eq!(json["rounds"][0]["missing"][0]["ago"]["main_thread_silent_ms"], 42_000);
}

#[test]
fn a_run_that_is_over_says_so() {
    let (job, run) = ("train".parse().unwrap(), "r1".parse().unwrap());
    let cause = Some(RunOverCause::LastAgentLeft { host: "a".to_owned() });
    let place = Place { job, run, ended_at_ms: Some(31_000), cause, open: false, present: true };
    let iteration = IterationInfo {
        iteration: 0,
        generation: None,
        members: Default::default(),
        ranks: Default::default(),
        member: false,
    };
    let seen = |processes| Seen {
        rounds: Vec::new(),
        processes,
        held: Vec::new(),
        iteration: iteration.clone(),
        revision: 9,
    };
    let told = |processes| {
        let now = LogNow::exactly(43_000);
        text(&Why::of(&place, seen(processes), &Agents::default(), now))
    };
    let begins = "job train, run r1, which ended 12s ago, after its last agent had left (host a): ";
    let alone = told(Vec::new());
    assert!(alone.starts_with(begins) && alone.lines().count() == 1, "{alone}");
    let mut left = process(0, "a");
    left.end = Some(EndInfo { at: 8, at_ms: 30_000, cause: Cause::Left });
    let of_ranks = told(vec![left]);
    assert!(of_ranks.contains("What became of each rank:"), "{of_ranks}");
    assert!(of_ranks.contains("left") && !of_ranks.contains("if the job hangs"), "{of_ranks}");
}
