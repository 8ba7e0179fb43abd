//! How scripts show leases, processes and rounds. An incarnation is
//! `PROCESS.INCARNATION`, a call of it `0.1#3`.

use std::fmt::Write;

use holdfast_api::*;

use super::blob;

pub(super) fn lease(outcome: &LeaseOutcome) -> String {
    match outcome {
        LeaseOutcome::Granted { lease, run, ttl_ms, opened, ended, others, .. } => {
            let mut line = format!("lease {lease} of run {run}, ttl {ttl_ms} ms");
            if *opened {
                line.push_str(", opened");
            }
            if let Some(ended) = ended {
                write!(line, ", ended {ended}").unwrap();
            }
            if *others > 0 {
                write!(line, ", beside {others}").unwrap();
            }
            line
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
    if let Some(generation) = info.member_since {
        write!(line, ", member since {generation}").unwrap();
    }
    if let Some(rank) = info.rank {
        write!(line, ", rank {rank}").unwrap();
    }
    if !info.waits_in.is_empty() {
        let waits: Vec<_> = info.waits_in.iter().map(blob).collect();
        write!(line, ", waits in {}", waits.join(" ")).unwrap();
    }
    if info.policy != Policy::default() {
        write!(line, ", {}", policy(&info.policy)).unwrap();
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

/// The numbers that are not zero.
fn policy(policy: &Policy) -> String {
    let Policy {
        world,
        members_min,
        last_call_ms,
        assignment,
        active_min,
        restarts_max,
        restarts_window_ms,
    } = policy;
    let mut shown = Vec::new();
    for (name, number) in [
        ("world", u64::from(*world)),
        ("min", u64::from(*members_min)),
        ("last_call", *last_call_ms),
        ("active_min", u64::from(*active_min)),
        ("restarts_max", u64::from(*restarts_max)),
        ("window", *restarts_window_ms),
    ] {
        if number > 0 {
            shown.push(format!("{name}={number}"));
        }
    }
    if !assignment.is_empty() {
        shown.push(format!("{} steps", assignment.len()));
    }
    shown.join(" ")
}

/// The parts that distinguish a round from others of its name.
fn key(terms: &Terms) -> String {
    let mut parts = Vec::new();
    match &terms.among {
        Among::Active => {}
        Among::Set(set) => parts.push(format!("set {}", all(set, u32::to_string))),
        Among::Generation(generation) => parts.push(format!("among generation {generation}")),
    }
    if let Rule::Quorum { min, max, settle_ms } = terms.rule {
        parts.push(format!("quorum {min}..{max}/{settle_ms}"));
    }
    match terms.conclusion {
        Conclusion::Roll => {}
        Conclusion::Advance => parts.push("advance".to_owned()),
        Conclusion::Vote(rule) => parts.push(format!("vote {rule:?}").to_lowercase()),
        Conclusion::Block => parts.push("block".to_owned()),
        Conclusion::Exit => parts.push("exit".to_owned()),
        Conclusion::Form => parts.push("form".to_owned()),
        Conclusion::Ready => parts.push("ready".to_owned()),
        Conclusion::Close => parts.push("close".to_owned()),
    }
    if let Some(hold) = &terms.hold {
        parts.push(format!("held {}", blob(&hold.spec)).trim_end().to_owned());
    }
    if terms.require_all {
        parts.push("requires all".to_owned());
    }
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn round_info(info: &RoundInfo) -> String {
    let RoundInfo { round, generation, opened_at_ms, arrived, missing_count, .. } = info;
    let mut line = format!(
        "{}{}: generation {generation} since {opened_at_ms} ms, arrived [{}], missing {missing_count}",
        blob(round),
        key(&info.terms),
        members(arrived),
    );
    if !info.missing.is_empty() {
        write!(line, " [{}]", all(&info.missing, missing)).unwrap();
    }
    write!(line, ", waits for {}", waits_for(&info.waits_for)).unwrap();
    if let Some(governing) = info.policy.as_ref().filter(|given| **given != Policy::default()) {
        write!(line, ", policy {}", policy(governing)).unwrap();
    }
    line.push_str(&differing(&info.differing));
    if let Some(at) = info.looks_again_at_ms {
        write!(line, ", looks again at {at} ms").unwrap();
    }
    if let Some(at) = info.deadline_at_ms {
        write!(line, ", deadline at {at} ms").unwrap();
    }
    line
}

fn waits_for(waits_for: &WaitsFor) -> String {
    match waits_for {
        WaitsFor::Arrivals { missing } => format!("{missing} to arrive"),
        WaitsFor::World { members, world, at_ms, enough } => {
            format!("a world of {world}, has {members}, from {at_ms} ms {enough} are enough")
        }
        WaitsFor::Members { members, members_min } => {
            format!("{members_min} members, has {members}")
        }
        WaitsFor::LastCall { members, expected, at_ms } => {
            format!("the last call until {at_ms} ms, has {members} of {expected}")
        }
        WaitsFor::Quorum { arrived, min } => format!("a quorum of {min}, has {arrived}"),
        WaitsFor::Majority { arrived, living } => {
            format!("more than half of {living}, has {arrived}")
        }
        WaitsFor::Release { holders, ended, free_at_ms, revoked } => {
            let revoked = if *revoked { ", revoked" } else { "" };
            let free = free_at_ms.map(|at| format!(", free at {at} ms")).unwrap_or_default();
            format!("{holders} holders, {ended} ended{free}{revoked}")
        }
        WaitsFor::Settle { at_ms } => format!("more until {at_ms} ms"),
    }
}

/// Processes whose numbers do not govern, and the fields that differ.
fn differing(list: &[Differing]) -> String {
    let one = |differing: &Differing| {
        let Differing { process, fields } = differing;
        format!("{process} in {}", fields.join(" "))
    };
    if list.is_empty() { String::new() } else { format!(", differing [{}]", all(list, one)) }
}

pub(super) fn plan(plan: &Plan) -> String {
    let Plan { waits_for: waits, closed: would } = plan;
    let waits = waits.as_ref().map(|waits| format!("would wait for {}", waits_for(waits)));
    let would = would.as_ref().map(|would| format!("would close: {}", closed(would)));
    let lines: Vec<_> = waits.into_iter().chain(would).collect();
    lines.join("\n")
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
    line.push_str(&differing(&closed.differing));
    if let Some(Held { generation, again }) = &closed.held {
        write!(line, ", holds {generation}{}", if *again { " again" } else { "" }).unwrap();
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
                Some(Stop::BudgetSpent { restarts_max, incidents }) => {
                    write!(line, ", stop: {incidents} incidents, {restarts_max} may be").unwrap();
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
            let what = if *succeeded { "succeeded" } else { "failed" };
            format!(", block {what}{}", against(list))
        }
    }
}

fn against(list: &[Against]) -> String {
    let mut line = String::new();
    for Against { process, incarnation, why } in list {
        let why = match why {
            AgainstWhy::Said(what) => format!("said {}", blob(what)),
            AgainstWhy::Ended(cause) => cause.to_string(),
            AgainstWhy::NotThere => "was not there".to_owned(),
            AgainstWhy::Withdrawn => "withdrew its exit".to_owned(),
            AgainstWhy::Deadline => "was at the exit when its deadline passed".to_owned(),
            AgainstWhy::EnteredAgain => "entered again".to_owned(),
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
        EventKind::Advanced { iteration, generation, members, turnover } => {
            let turnover = turnover.as_deref().map(self::turnover).unwrap_or_default();
            format!("iteration {iteration} by generation {generation}, {members} members{turnover}")
        }
        EventKind::RunEnded { by, processes } => {
            let by = by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            format!("the run ended{by}, {processes} processes were alive")
        }
        EventKind::Formed { round, generation, members } => {
            format!("{} generation {generation} formed, {members} members", blob(round))
        }
        EventKind::Revoked { round, generation, cause, holding } => {
            let round = blob(round);
            format!("{round} generation {generation} revoked, {holding} hold it: {cause}")
        }
        EventKind::Drained { round, generation } => {
            format!("{} generation {generation} drained", blob(round))
        }
        EventKind::Excused { round, generation, process, incarnation } => {
            format!("{} generation {generation}: {process}.{incarnation} excused", blob(round))
        }
        EventKind::RoundFailed { round, generation, missing } => {
            format!("{} generation {generation} failed, {missing} missing", blob(round))
        }
    };
    format!("{revision} ({at_ms} ms) {run}: {what}")
}

fn turnover(turnover: &Turnover) -> String {
    let Turnover { left, joined, faults, first_fault } = turnover;
    let list = |list: &ProcessList| {
        let stretch = |s: &ProcessStretch| match s.first == s.last {
            true => s.first.to_string(),
            false => format!("{}-{}", s.first, s.last),
        };
        list.stretches.iter().map(stretch).collect::<Vec<_>>().join(",")
    };
    let first = first_fault.as_ref().map(|fault| {
        let Fault { process, incarnation, rank, host, cause, at, at_ms } = fault;
        let rank = rank.map(|rank| format!(" rank {rank}")).unwrap_or_default();
        format!(": {process}.{incarnation}{rank} on {host} at {at} ({at_ms} ms): {cause}")
    });
    let (left, joined) = (list(left), list(joined));
    format!("; left [{left}], joined [{joined}], {faults} faults{}", first.unwrap_or_default())
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
    for HeldNews { round, generation, at, holders, ready, newcomer, revoked } in &feed.held {
        let mut line = format!(
            "{} generation {generation} at {at}, held by [{}]",
            blob(round),
            members(holders)
        );
        for (is_so, what) in [(*ready, "ready"), (*newcomer, "somebody waits")] {
            line.push_str(&if is_so { format!(", {what}") } else { String::new() });
        }
        line.push_str(&revoked.as_ref().map(revocation).unwrap_or_default());
        lines.push(line);
    }
    lines.push(format!("upto {}", feed.upto));
    lines.join("\n")
}

fn failure(failure: &RoundFailure) -> String {
    let RoundFailure { generation, why, arrived, missing_count, missing: list, specs, revoked } =
        failure;
    let missing = all(list, missing);
    let why = match why {
        FailedWhy::Deadline => "failed",
        FailedWhy::Regroup => "regroups",
        FailedWhy::Over => "is over",
        FailedWhy::SpecMismatch => "disagrees",
        FailedWhy::Revoked => "is revoked",
    };
    let specs = specs.as_ref().map(|SpecMismatch { most, differing }| {
        let other = |other: &OtherSpec| format!("{} {}", other.process, blob(&other.spec));
        format!(", most want {}, but [{}]", blob(most), all(differing, other))
    });
    let revoked = revoked.as_ref().map(revocation).unwrap_or_default();
    format!(
        "generation {generation} {why}, {arrived} arrived, {missing_count} missing [{missing}]{}{revoked}",
        specs.unwrap_or_default()
    )
}

fn revocation(Revocation { at, at_ms, cause }: &Revocation) -> String {
    format!(", revoked at {at} ({at_ms} ms): {cause}")
}

pub(super) fn held(all_held: &[HeldInfo]) -> String {
    if all_held.is_empty() {
        return "nothing is held".to_owned();
    }
    let lines: Vec<_> = all_held.iter().map(held_info).collect();
    lines.join("\n")
}

fn held_info(info: &HeldInfo) -> String {
    let HeldInfo { round, terms, generation, phase, formed_at_ms, .. } = info;
    let phase = format!("{phase:?}").to_lowercase();
    let mut line = format!(
        "{}{}: generation {generation} {phase} since {formed_at_ms} ms, members [{}], {} hold it",
        blob(round),
        key(terms),
        members(&info.members),
        info.holding,
    );
    if !info.unreleased.is_empty() {
        let unreleased = |one: &Unreleased| {
            let free = one.free_at_ms.map(|at| format!(", free at {at} ms")).unwrap_or_default();
            let exit = if one.ended { ", exit unseen" } else { "" };
            format!("{} as {}{exit}{free}", missing(&one.process), one.incarnation)
        };
        let out = all(&info.unreleased, unreleased);
        write!(line, ", {} out [{out}]", info.unreleased_count).unwrap();
    }
    write!(line, ", {} wait, {} new", info.waiting, info.newcomers).unwrap();
    if let Some(at) = info.looks_again_at_ms {
        write!(line, ", looks again at {at} ms").unwrap();
    }
    line.push_str(&info.revoked.as_ref().map(revocation).unwrap_or_default());
    line
}

fn members(list: &Members) -> String {
    let participants: Vec<_> =
        list.iter().map(|(process, incarnation)| format!("{process}.{incarnation}")).collect();
    participants.join(" ")
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
