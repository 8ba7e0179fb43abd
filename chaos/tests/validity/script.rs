//! Histories written as text: an incarnation a line, its events in order.
//!
//! ```text
//! 0.1  start@25 call@50 got#1(0.1 1.2)@250 leave@300 left@310
//! 1.2  start@20-30 call@50 dead@150
//! ```
//!
//! `P.I` is incarnation I of process P. `start@A-B` asks at A and is answered at B;
//! `standby@…` registers as a standby, `attempt@…` is never answered; `start:RUN@…`
//! registers in a run of that name.
//!
//! `call@T` is a call on the round `r`, `call:NAME@T` on another (`advance` is the next
//! iteration), `call!@T` on one that evicts. Other verbs are `vote:`, `unanimous:`,
//! `plurality:`, `gather:`, `enter:`, `exit:`, `quorum:` and `form:`. After the name stands
//! `=VALUE` if the caller brings one (of a quorum `=MIN-MAX`), and `~G`, `~{P,P}` or
//! `~!{P,P}` if the round is among generation G or among a set; `!` requires all of it; at the
//! end `^G` if the caller still holds generation G.
//!
//! `got#G(…)` is generation G with its members; `got#G/ITERATION(…)` an advance, whose
//! promoted members have a `+`, and those without a rank a `-`; `got#G^H(…)` one whose members
//! hold generation H. After the members:
//! `+VALUE` of a vote that carried or a block that succeeded, `-P.I,P.I` with those
//! against it of another, `=A|B` the gathered values, `/P,P` the absent ones. `fenced`,
//! `lost`, `void` and `unknown` are answers without an outcome. `branch#G+` and
//! `branch#G-` are the branches after the block of generation G. `runs#G`: something of the held
//! generation G runs; `revoked#G`: it is revoked. `dead@T`: killed; `suspect@T`: paused.
//!
//! A line `run NAME@T` says from when on a run may be opened; a line `policy WORLD MIN
//! LAST_CALL_MS` which numbers all participants give. A line `store …` is the store's own
//! account: `registered:P.I@R` at revision R, `promoted:P.I@R`,
//! `advanced:ITERATION:GENERATION:MEMBERS@R`, `formed:GENERATION:MEMBERS@R`,
//! `revoked:GENERATION@R`, `drained:GENERATION@R`, `over:RUN@R`, and the ends `expired:P.I@R`,
//! `evicted:`, `signaled:`, `left:`, `superseded:`. Callers get as revisions the
//! incarnation I for a start, and ten times the generation for a closing.

use holdfast_api::{Among, Blob, Cause, Event, EventKind, Policy, RevokeCause, Role, VoteRule};
use holdfast_chaos::history::{
    Advance, Arrival, Meaning, Outcome, Record, Round, Verb, VoteVerdict, What,
};
use holdfast_chaos::{History, Report, check};

/// The history of a script.
pub fn history(script: &str) -> History {
    let mut history = History::default();
    let mut harness = Vec::new();
    let mut policy = Policy::default();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, events) = line.split_once(' ').expect("a life and its events");
        if name == "store" {
            let testimony = events.split(' ').map(testimony).collect();
            history.programs.insert(name.to_owned(), testimony);
            continue;
        }
        if name == "run" {
            let (run, at) = events.split_once('@').expect("a moment");
            let what = What::Opens { run: run.to_owned() };
            harness.push(Record { at: number(at), what });
            continue;
        }
        if name == "policy" {
            let numbers: Vec<u64> = events.split(' ').map(number).collect();
            let (world, members_min) = (numbers[0] as u32, numbers[1] as u32);
            policy = Policy { world, members_min, last_call_ms: numbers[2], ..Policy::default() };
            continue;
        }
        let id = member(name);
        let mut records = Vec::new();
        for event in split(events) {
            let (what, at) = event.rsplit_once('@').unwrap_or_else(|| panic!("{event}"));
            take(name, id, what, at, &policy, &mut records, &mut harness);
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
    let mut run = "r1";
    let what = match what {
        "over" => {
            run = of;
            EventKind::RunEnded { by: None, processes: 0 }
        }
        "advanced" => {
            let numbers: Vec<u64> = of.split(':').map(number).collect();
            let (iteration, generation, members) = (numbers[0], numbers[1], numbers[2] as u32);
            EventKind::Advanced { iteration, generation, members, turnover: None }
        }
        "formed" | "revoked" | "drained" => of_group(what, of),
        _ => of_participant(what, member(of)),
    };
    let run = run.parse().expect("a name");
    let event = Event { revision: number(revision), at_ms: 0, run, what };
    Record { at: 0, what: What::Testimony(Box::new(event)) }
}

/// `GENERATION`, or `GENERATION:MEMBERS`.
fn of_group(what: &str, of: &str) -> EventKind {
    let (generation, members) = of.split_once(':').unwrap_or((of, "0"));
    let (round, generation, count) = ("g".into(), number(generation), number(members) as u32);
    match what {
        "formed" => EventKind::Formed { round, generation, members: count },
        "drained" => EventKind::Drained { round, generation },
        _ => {
            let cause = RevokeCause::Membership;
            EventKind::Revoked { round, generation, cause, holding: count }
        }
    }
}

fn of_participant(what: &str, (process, incarnation): (u32, u64)) -> EventKind {
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

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
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
    policy: &Policy,
    records: &mut Vec<Record>,
    harness: &mut Vec<Record>,
) {
    let (from, to) = at.split_once('-').unwrap_or((at, at));
    let (from, to) = (number(from), number(to));
    let program = name.to_owned();
    let failed = |meaning| What::Failed { meaning, why: String::new() };
    let (verb, run) = what.split_once(':').unwrap_or((what, ""));
    let (kind, held) = what.split_once('#').unwrap_or((what, ""));
    let what = match kind {
        _ if matches!(verb, "start" | "standby" | "attempt") => {
            let role = if verb == "standby" { Role::Standby } else { Role::Active };
            let (run, policy) = (run.to_owned(), Box::new(policy.clone()));
            let what = What::Join { run, process: id.0, role, policy };
            records.push(Record { at: from, what });
            if verb == "attempt" {
                return;
            }
            What::Joined { incarnation: id.1, since: id.1 }
        }
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
        "runs" => What::Runs { generation: number(held) },
        "revoked" => What::Revoked { generation: number(held) },
        _ => match (what.strip_prefix("got#"), what.strip_prefix("branch#")) {
            (Some(what), _) => What::Outcome(Box::new(outcome(id, what))),
            (_, Some(what)) => {
                let block = number(what.trim_end_matches(['+', '-']));
                What::Branch { block, succeeded: what.ends_with('+') }
            }
            _ => What::Call(Box::new(arrival(what))),
        },
    };
    records.push(Record { at: to, what });
}

/// Reads an arrival, written as `VERB:NAME=VALUE~SCOPE^HELD`.
fn arrival(what: &str) -> Arrival {
    let (what, holds) = what.split_once('^').map_or((what, None), |(what, h)| (what, Some(h)));
    let (what, scope) = what.split_once('~').map_or((what, None), |(what, s)| (what, Some(s)));
    let (what, value) = what.split_once('=').unwrap_or((what, ""));
    let (verb, name) = what.split_once(':').unwrap_or((what, "r"));
    let verb = match verb {
        "call" | "call!" if name == "advance" => Verb::Advance,
        "call" | "call!" => Verb::Live,
        "vote" => Verb::Vote(VoteRule::And),
        "unanimous" => Verb::Vote(VoteRule::Unanimous),
        "plurality" => Verb::Vote(VoteRule::Plurality),
        "gather" => Verb::Gather,
        "quorum" => Verb::Quorum,
        "enter" => Verb::Enter,
        "exit" => Verb::Exit,
        "form" => Verb::Form,
        _ => panic!("{what}"),
    };
    let set = |text: &str| text.split(',').map(|p| number(p) as u32).collect();
    let among = match scope.map(|scope| scope.trim_matches(['!', '{', '}'])) {
        None => Among::Active,
        Some(inner) if scope.is_some_and(|scope| scope.ends_with('}')) => Among::Set(set(inner)),
        Some(generation) => Among::Generation(number(generation)),
    };
    let size = value.split_once('-').filter(|_| verb == Verb::Quorum);
    let quorum = size.map(|(min, max)| (number(min) as u32, number(max) as u32));
    let require_all = scope.is_some_and(|scope| scope.starts_with('!'));
    let round = Round { name: name.to_owned(), verb, among };
    let evicts = what.starts_with("call!");
    let holds = holds.map(number);
    Arrival { round, value: value.into(), quorum, evicts, require_all, holds }
}

/// `GENERATION(MEMBERS)`, `GENERATION/ITERATION(MEMBERS)` or `GENERATION^HELD(MEMBERS)`, and its
/// result.
fn outcome(caller: (u32, u64), what: &str) -> Outcome {
    let (generation, rest) = what.split_once('(').expect("members");
    let (names, rest) = rest.split_once(')').expect("members");
    let names: Vec<&str> = names.split(' ').collect();
    let members: Vec<(u32, u64)> =
        names.iter().map(|name| member(name.trim_end_matches(['+', '-']))).collect();
    let (generation, held) =
        generation.split_once('^').map_or((generation, None), |(it, held)| (it, Some(held)));
    let held = held.map(number);
    let (generation, iteration) = match generation.split_once('/') {
        Some((generation, iteration)) => (generation, Some(number(iteration))),
        None => (generation, None),
    };
    let generation = number(generation);
    let advance = iteration.map(|iteration| {
        let mut next = 0..;
        let ranks = names.iter().map(|name| (!name.ends_with('-')).then(|| next.next()).flatten());
        let ranks: Vec<Option<u32>> = ranks.collect();
        let place = members.iter().position(|m| *m == caller);
        let promoted = names.iter().filter_map(|name| name.strip_suffix('+')).map(member);
        let (rank, promoted) = (place.and_then(|place| ranks[place]), promoted.collect());
        Advance { iteration, ranks, rank, promoted }
    });
    let mut outcome = Outcome {
        generation,
        witness: generation * 10,
        members,
        advance,
        held,
        ..Outcome::default()
    };
    let of = |participants: &str| {
        participants.split(',').filter(|participant| !participant.is_empty()).map(member).collect()
    };
    match rest.split_at_checked(1) {
        None => {}
        Some(("+", value)) => {
            let value = (!value.is_empty()).then(|| Blob::from(value));
            outcome.verdict = Some(VoteVerdict { carried: true, value, against: Vec::new() });
        }
        Some(("-", participants)) => {
            outcome.verdict =
                Some(VoteVerdict { carried: false, value: None, against: of(participants) });
        }
        Some(("=", values)) => {
            outcome.values = Some(values.split('|').map(Blob::from).collect());
        }
        Some(("/", absent)) => {
            let absent = absent.split(',').filter(|process| !process.is_empty());
            outcome.absent = Some(absent.map(|process| number(process) as u32).collect());
        }
        Some(_) => panic!("{rest}"),
    }
    outcome
}
