//! Histories written as text: a life a line, its events in order.
//!
//! ```text
//! 0.1  start@25 call@50 got#1(0.1 1.2)@250 leave@300 left@310
//! 1.2  start@20-30 call@50 dead@150
//! ```
//!
//! `P.I` is incarnation I of process P. `start@A-B` asks at A and is told at B;
//! `standby@…` registers as a standby, `attempt@…` is never told. `call@T` is a
//! call on the round `r`, `call:NAME@T` on another, `call!@T` on one that
//! evicts. `got#G(…)` is generation G with its members; `got#G/ITERATION(…)` an
//! advance, whose promoted members have a `+`. `fenced`, `lost`, `void` and
//! `unknown` are answers without an outcome. `dead@T`: killed; `suspect@T`: paused.
//!
//! A line `store …` is what the store says: `registered:P.I@R` at revision R,
//! `promoted:P.I@R`, `advanced:ITERATION:GENERATION:MEMBERS@R`, and the ends
//! `expired:P.I@R`, `evicted:`, `signaled:`, `left:`, `superseded:`. What lives
//! and callers were told are the revisions I for a start, and ten times the
//! generation for a closing.

use holdfast_api::{Cause, Event, EventKind, Role};
use holdfast_chaos::history::{Advance, Meaning, Outcome, Record, What};
use holdfast_chaos::{History, Report, check};

/// The history that a script tells.
pub fn history(script: &str) -> History {
    let mut history = History::default();
    let mut harness = Vec::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, events) = line.split_once(' ').expect("a life and its events");
        if name == "store" {
            let testimony = events.split(' ').map(testimony).collect();
            history.programs.insert(name.to_owned(), testimony);
            continue;
        }
        let id = member(name);
        let mut records = Vec::new();
        for event in split(events) {
            let (what, at) = event.rsplit_once('@').unwrap_or_else(|| panic!("{event}"));
            take(name, id, what, at, &mut records, &mut harness);
        }
        history.programs.insert(name.to_owned(), records);
    }
    harness.sort_by_key(|record| record.at);
    history.programs.insert("harness".to_owned(), harness);
    history
}

/// The verdict on a script.
pub fn verdict(script: &str) -> Report {
    check(&history(script))
}

/// Splits at blanks outside of parentheses.
fn split(events: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut depth = 0;
    for c in events.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        match c == ' ' && depth == 0 {
            true => found.push(String::new()),
            false => found.last_mut().expect("there is one").push(c),
        }
    }
    found.retain(|event| !event.is_empty());
    found
}

fn testimony(event: &str) -> Record {
    let (what, revision) = event.rsplit_once('@').expect("a revision");
    let (what, of) = what.split_once(':').expect("a life");
    let what = match what {
        "advanced" => {
            let numbers: Vec<u64> = of.split(':').map(|n| n.parse().expect("a number")).collect();
            let (iteration, generation, members) = (numbers[0], numbers[1], numbers[2] as u32);
            EventKind::Advanced { iteration, generation, members, turnover: None }
        }
        _ => of_life(what, member(of)),
    };
    let run = "r1".parse().expect("a name");
    let event = Event { revision: revision.parse().expect("a number"), at_ms: 0, run, what };
    Record { at: 0, what: What::Testimony(Box::new(event)) }
}

fn of_life(what: &str, (process, incarnation): (u32, u64)) -> EventKind {
    let host = String::new();
    let cause = match what {
        "registered" => {
            return EventKind::Registered { process, incarnation, role: Role::Active, host };
        }
        "promoted" => return EventKind::Promoted { process, incarnation, generation: 0 },
        "expired" => Cause::LeaseExpired,
        "evicted" => Cause::Evicted { round: "r".into(), generation: 0 },
        "signaled" => Cause::Signaled { signal: 9 },
        "left" => Cause::Left,
        "superseded" => Cause::Superseded { by: 0 },
        _ => panic!("{what}"),
    };
    EventKind::Ended { process, incarnation, cause, host }
}

fn member(text: &str) -> (u32, u64) {
    let (process, incarnation) = text.split_once('.').unwrap_or_else(|| panic!("{text}"));
    (process.parse().expect("a number"), incarnation.parse().expect("a number"))
}

fn take(
    name: &str,
    id: (u32, u64),
    what: &str,
    at: &str,
    records: &mut Vec<Record>,
    harness: &mut Vec<Record>,
) {
    let (from, to) = at.split_once('-').unwrap_or((at, at));
    let (from, to): (u64, u64) = (from.parse().expect("a number"), to.parse().expect("a number"));
    let program = name.to_owned();
    let failed = |meaning| What::Failed { meaning, why: String::new() };
    let call = |round: &str, evicts| What::Call { round: round.to_owned(), evicts };
    let what = match what {
        "start" | "standby" | "attempt" => {
            let role = if what == "standby" { Role::Standby } else { Role::Active };
            records.push(Record { at: from, what: What::Join { process: id.0, role } });
            if what == "attempt" {
                return;
            }
            What::Joined { incarnation: id.1, since: id.1 }
        }
        "call" => call("r", false),
        "call!" => call("r", true),
        "fenced" => failed(Meaning::Ended),
        "void" => failed(Meaning::Void),
        "unknown" => failed(Meaning::Unknown),
        "lost" => failed(Meaning::Lost),
        "leave" => What::Leave,
        "left" => What::Left,
        "dead" => {
            harness.push(Record { at: from, what: What::Kill { program } });
            return;
        }
        "suspect" => {
            let what = What::Suspect { programs: vec![program], why: "paused".to_owned() };
            harness.push(Record { at: from, what });
            return;
        }
        _ => match what.strip_prefix("call:") {
            Some(round) => call(round, false),
            None => What::Outcome(Box::new(outcome(id, what))),
        },
    };
    records.push(Record { at: to, what });
}

/// `got#GENERATION(MEMBERS)` or `got#GENERATION/ITERATION(MEMBERS)`.
fn outcome(caller: (u32, u64), what: &str) -> Outcome {
    let what = what.strip_prefix("got#").unwrap_or_else(|| panic!("{what}"));
    let (number, rest) = what.split_once('(').expect("members");
    let names: Vec<&str> = rest.trim_end_matches(')').split(' ').collect();
    let members: Vec<(u32, u64)> =
        names.iter().map(|name| member(name.trim_end_matches('+'))).collect();
    let (generation, iteration) = match number.split_once('/') {
        Some((generation, iteration)) => (generation, iteration.parse().ok()),
        None => (number, None),
    };
    let generation = generation.parse().expect("a number");
    let advance = iteration.map(|iteration| Advance {
        iteration,
        ranks: (0..members.len() as u32).map(Some).collect(),
        rank: members.iter().position(|m| *m == caller).map(|place| place as u32),
        promoted: names
            .iter()
            .filter(|n| n.ends_with('+'))
            .map(|n| member(n.trim_end_matches('+')))
            .collect(),
    });
    Outcome { generation, witness: generation * 10, members, advance }
}
