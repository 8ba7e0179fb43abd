//! How scripts show leases, processes and rounds. A life is
//! `PROCESS.INCARNATION`, a call of it `0.1#3`.

use std::fmt::Write;

use holdfast_api::*;

use super::blob;

pub(super) fn lease(outcome: &LeaseOutcome) -> String {
    match outcome {
        LeaseOutcome::Granted { lease, run, ttl_ms } => {
            format!("lease {lease} of run {run}, ttl {ttl_ms} ms")
        }
        LeaseOutcome::Kept => "kept".to_owned(),
        LeaseOutcome::Ended => "ended".to_owned(),
        LeaseOutcome::StillInUse => "still in use".to_owned(),
    }
}

pub(super) fn process(outcome: &ProcessOutcome) -> String {
    match outcome {
        ProcessOutcome::Registered { process, incarnation, since } => {
            format!("process {process}.{incarnation} since {since}")
        }
        ProcessOutcome::Ended { ended } => format!("ended {ended}"),
    }
}

pub(super) fn round(outcome: &RoundOutcome) -> String {
    match outcome {
        RoundOutcome::Arrived(answers) => {
            let answers: Vec<_> = answers.iter().map(answer).collect();
            answers.join(", ")
        }
        RoundOutcome::Done => "done".to_owned(),
        RoundOutcome::Reached => "reached".to_owned(),
        RoundOutcome::StillOpen => "still open".to_owned(),
    }
}

fn answer(answer: &ArrivalAnswer) -> String {
    match answer {
        ArrivalAnswer::Waiting { generation } => format!("waits in {generation}"),
        ArrivalAnswer::Decided => "decided".to_owned(),
        ArrivalAnswer::Refused(refusal) => format!("refused: {refusal}"),
    }
}

pub(super) fn processes(processes: &[ProcessInfo], next: Option<ProcessId>) -> String {
    let mut lines: Vec<_> = processes.iter().map(process_info).collect();
    lines.push(next.map_or("end".to_owned(), |next| format!("next {next}")));
    lines.join("\n")
}

fn process_info(info: &ProcessInfo) -> String {
    let ProcessInfo { process, incarnation, role, host, lease, since, since_ms, .. } = info;
    let role = format!("{role:?}").to_lowercase();
    let mut line = format!(
        "{process}.{incarnation} {role} on {host} (lease {lease}) since {since} ({since_ms} ms)"
    );
    if let Some(rank) = info.rank {
        write!(line, ", rank {rank}").unwrap();
    }
    if !info.waits_in.is_empty() {
        let waits: Vec<_> = info.waits_in.iter().map(blob).collect();
        write!(line, ", waits in {}", waits.join(" ")).unwrap();
    }
    for (label, value) in &info.labels {
        write!(line, ", {label}={value}").unwrap();
    }
    if let Some(EndInfo { at, at_ms, cause }) = &info.end {
        write!(line, ", ended at {at} ({at_ms} ms): {cause}").unwrap();
    }
    line
}

pub(super) fn rounds(rounds: &[RoundInfo]) -> String {
    if rounds.is_empty() {
        return "no round gathers".to_owned();
    }
    let lines: Vec<_> = rounds.iter().map(round_info).collect();
    lines.join("\n")
}

fn round_info(info: &RoundInfo) -> String {
    let RoundInfo { round, generation, opened_at_ms, arrived, missing_count, .. } = info;
    let mut line = format!(
        "{}: generation {generation} since {opened_at_ms} ms, arrived [{}], missing {missing_count}",
        blob(round),
        members(arrived),
    );
    if !info.missing.is_empty() {
        write!(line, " [{}]", all(&info.missing, missing)).unwrap();
    }
    if let Some(at) = info.looks_again_at_ms {
        write!(line, ", looks again at {at} ms").unwrap();
    }
    if let Some(at) = info.deadline_at_ms {
        write!(line, ", deadline at {at} ms").unwrap();
    }
    line
}

fn missing(missing: &Missing) -> String {
    let Missing { process, state, since_ms, host } = missing;
    match state {
        ProcessState::Alive { incarnation, role } => {
            let role = format!("{role:?}").to_lowercase();
            format!("{process}.{incarnation} {role} on {host} since {since_ms} ms")
        }
        ProcessState::Ended { incarnation, cause } => {
            format!("{process}.{incarnation} on {host} at {since_ms} ms: {cause}")
        }
        ProcessState::NeverJoined => format!("{process} never joined"),
    }
}

pub(super) fn closed(closed: &Closed) -> String {
    let Closed { run, round, generation, witness, closed_at_ms, same_as, count, .. } = closed;
    let mut line = format!(
        "{run}/{} generation {generation} closed at {witness} ({closed_at_ms} ms), {count} members",
        blob(round)
    );
    match &closed.members {
        Some(list) => write!(line, " [{}]", members(list)).unwrap(),
        None => write!(line, " as in {same_as}").unwrap(),
    }
    if closed.members.is_some() && same_as != generation {
        write!(line, " as in {same_as}").unwrap();
    }
    if !closed.absent.is_empty() {
        write!(line, ", absent [{}]", all(&closed.absent, missing)).unwrap();
    }
    for (what, list) in [("evicted", &closed.evicted), ("promoted", &closed.promoted)] {
        if !list.is_empty() {
            write!(line, ", {what} [{}]", members(list)).unwrap();
        }
    }
    line.push_str(&concluded(&closed.conclusion));
    if let Some(payloads) = &closed.payloads {
        write!(line, ", payloads [{}]", all(payloads, blob)).unwrap();
    }
    line
}

fn concluded(concluded: &Concluded) -> String {
    match concluded {
        Concluded::Roll => String::new(),
        Concluded::Advance { iteration, ranks: given, world_size, dropped, stop } => {
            let mut line =
                format!(", iteration {iteration}, world {world_size}, ranks [{}]", ranks(given));
            for Dropped { process, incarnation, why } in dropped {
                let why = match why {
                    DroppedWhy::Ended(cause) => cause.to_string(),
                    DroppedWhy::NotThere => "not there".to_owned(),
                    DroppedWhy::LeftOut { step } => format!("left out by step {step}"),
                };
                write!(line, ", dropped {process}.{incarnation}: {why}").unwrap();
            }
            match stop {
                Some(Stop::TooFew { active, active_min }) => {
                    write!(line, ", stop: {active} of {active_min}").unwrap();
                }
                Some(Stop::BudgetSpent { restarts_max }) => {
                    write!(line, ", stop: {restarts_max} restarts are spent").unwrap();
                }
                None => {}
            }
            line
        }
        Concluded::Vote { carried, value, against: list } => {
            let carried = if *carried { "carried" } else { "not carried" };
            let value = value.as_ref().map(|value| format!(": {}", blob(value)));
            format!(", {carried}{}{}", value.unwrap_or_default(), against(list))
        }
        Concluded::Block { succeeded, against: list } => {
            let what = match succeeded {
                None => "no block before",
                Some(true) => "block succeeded",
                Some(false) => "block failed",
            };
            format!(", {what}{}", against(list))
        }
    }
}

fn against(list: &[Against]) -> String {
    let mut line = String::new();
    for Against { process, incarnation, why } in list {
        let why = match why {
            AgainstWhy::Said(what) => format!("said {}", blob(what)),
            AgainstWhy::NotThere => "was not there".to_owned(),
        };
        write!(line, ", {process}.{incarnation} {why}").unwrap();
    }
    line
}

pub(super) fn iteration(info: &IterationInfo) -> String {
    let IterationInfo { iteration, generation, members: list, ranks: given, member } = info;
    let generation = generation.map(|generation| format!(" by generation {generation}"));
    format!(
        "iteration {iteration}{}, members [{}], ranks [{}], member {member}",
        generation.unwrap_or_default(),
        members(list),
        ranks(given)
    )
}

pub(super) fn events(events: &[Event], compacted: Revision, upto: Revision) -> String {
    let mut lines: Vec<_> = events.iter().map(event).collect();
    lines.push(format!("compacted {compacted}, upto {upto}"));
    lines.join("\n")
}

fn event(event: &Event) -> String {
    let Event { revision, at_ms, run, what } = event;
    let what = match what {
        EventKind::Registered { process, incarnation, role, host } => {
            let role = format!("{role:?}").to_lowercase();
            format!("{process}.{incarnation} registered as {role} on {host}")
        }
        EventKind::Ended { process, incarnation, cause, host } => {
            format!("{process}.{incarnation} on {host}: {cause}")
        }
        EventKind::Promoted { process, incarnation, generation } => {
            format!("{process}.{incarnation} promoted by generation {generation}")
        }
        EventKind::Advanced { iteration, generation, members } => {
            format!("iteration {iteration} by generation {generation}, {members} members")
        }
        EventKind::RoundFailed { round, generation, missing } => {
            format!("{} generation {generation} failed, {missing} missing", blob(round))
        }
    };
    format!("{revision} ({at_ms} ms) {run}: {what}")
}

pub(super) fn feed(feed: &Feed) -> String {
    let mut lines = Vec::new();
    for Decision { process, incarnation, call, round, at, decided } in &feed.decisions {
        let decided = match decided {
            Decided::Closed { generation } => format!("closed in {generation}"),
            Decided::Failed(failure) => self::failure(failure),
            Decided::Withdrawn => "withdrawn".to_owned(),
        };
        lines.push(format!("{process}.{incarnation}#{call} at {}: {decided} ({at})", blob(round)));
    }
    lines.extend(feed.closed.iter().map(closed));
    for Ended { process, incarnation, at, cause } in &feed.ended {
        lines.push(format!("{process}.{incarnation} ended at {at}: {cause}"));
    }
    lines.push(format!("upto {}", feed.upto));
    lines.join("\n")
}

fn failure(failure: &RoundFailure) -> String {
    let RoundFailure { generation, arrived, missing_count, missing: list } = failure;
    let missing = all(list, missing);
    format!(
        "generation {generation} failed, {arrived} arrived, {missing_count} missing [{missing}]"
    )
}

fn members(list: &Members) -> String {
    let lives: Vec<_> = list.iter().map(|(process, life)| format!("{process}.{life}")).collect();
    lives.join(" ")
}

fn ranks(list: &Ranks) -> String {
    let ranks: Vec<_> =
        list.iter().map(|rank| rank.map_or("-".to_owned(), |rank| rank.to_string())).collect();
    ranks.join(" ")
}

fn all<T>(things: &[T], one: impl Fn(&T) -> String) -> String {
    let shown: Vec<_> = things.iter().map(one).collect();
    shown.join("; ")
}
