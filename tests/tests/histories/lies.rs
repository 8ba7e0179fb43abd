//! Lies: changes of a recorded history that break a rule.

use std::collections::BTreeSet;

use holdfast_api::{Among, ProcessId};
use holdfast_chaos::check::Rule;
use holdfast_chaos::history::{Arrival, Meaning, Outcome, Record, Verb, VoteVerdict, What};
use holdfast_chaos::{History, check};

/// Changes a history so that a rule is broken; false if it has no place for it.
type Lie = fn(&mut History) -> bool;

/// Each with its name, and the rule that finds it.
pub const LIES: &[(&str, Lie, Rule)] = &[
    ("leave out of a roll call one that lives", leave_out_of_a_roll_call, Rule::Absence),
    ("leave out of a set one that lives", leave_out_of_a_set, Rule::Absence),
    ("leave out of a generation one that has a part", leave_out_of_a_generation, Rule::Absence),
    ("name a former life", name_a_former_incarnation, Rule::Presence),
    ("skip an iteration", skip_an_iteration, Rule::Iteration),
    ("tell one something else", tell_one_something_else, Rule::Agreement),
    ("tell of the vote among another generation", tell_of_another_generation, Rule::Agreement),
    ("list one as absent that was there", list_one_that_was_there, Rule::Scope),
    ("turn a vote", turn_a_vote, Rule::Vote),
    ("change what was gathered", change_what_was_gathered, Rule::Payload),
    ("let a block fail that succeeded", fail_a_block, Rule::Block),
    ("take another branch than the others", take_another_branch, Rule::Branch),
    ("make a quorum of one", make_a_quorum_of_one, Rule::Quorum),
    ("run on in a generation that was followed", run_on, Rule::Hold),
    ("hold again what nobody named", hold_again_unnamed, Rule::Hold),
    ("close a round of a run that is over", close_in_a_former_run, Rule::Run),
    ("let the first one back go on alone", go_on_alone, Rule::Formation),
];

/// The lies that are detected in the history: all those for which it has a place. Known
/// ones need not be tried again.
pub fn found(history: &History, known: &BTreeSet<&'static str>) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    for (name, lie, rule) in LIES.iter().filter(|(name, ..)| !known.contains(name)) {
        let mut told = history.clone();
        if lie(&mut told) {
            let report = check(&told);
            let seen = report.violations.iter().any(|violation| violation.rule == *rule);
            assert!(seen, "{name}: no {rule:?}: {report}");
            found.insert(*name);
        }
    }
    found
}

/// An outcome that a process got, where it stands, and its call.
#[derive(Clone)]
struct Told {
    program: String,
    place: usize,
    arrival: Arrival,
    outcome: Outcome,
    /// The process that got it.
    participant: (ProcessId, u64),
}

/// All outcomes that processes got.
fn told(history: &History) -> Vec<Told> {
    let mut all = Vec::new();
    for (program, records) in &history.programs {
        let Some(participant) = participant(records) else { continue };
        for (n, pair) in records.windows(2).enumerate() {
            if let [
                Record { what: What::Call(arrival), .. },
                Record { what: What::Outcome(outcome), .. },
            ] = pair
            {
                let (arrival, outcome) = (arrival.as_ref().clone(), outcome.as_ref().clone());
                let program = program.clone();
                all.push(Told { program, place: n + 1, arrival, outcome, participant });
            }
        }
    }
    all
}

/// The incarnation that a program has.
fn participant(records: &[Record]) -> Option<(ProcessId, u64)> {
    records.windows(2).find_map(|pair| match (&pair[0].what, &pair[1].what) {
        (What::Join { process, .. }, What::Joined { incarnation, .. }) => {
            Some((*process, *incarnation))
        }
        _ => None,
    })
}

/// A program's records, to be changed.
fn records<'h>(history: &'h mut History, program: &str) -> &'h mut Vec<Record> {
    history.programs.get_mut(program).expect("it was told")
}

/// Changes the outcome that all members of a generation got.
fn retell(history: &mut History, generation: u64, change: impl Fn(&mut Outcome)) {
    for Told { program, place, mut outcome, .. } in told(history) {
        if outcome.generation == generation {
            change(&mut outcome);
            records(history, &program)[place].what = What::Outcome(Box::new(outcome));
        }
    }
}

/// Takes an answer away: the caller does not know the result of its call.
fn unknown(history: &mut History, told: &Told) {
    let why = "a lie".to_owned();
    records(history, &told.program)[told.place].what =
        What::Failed { meaning: Meaning::Unknown, why };
}

/// The incarnations that a process had.
fn participants(history: &History, process: ProcessId) -> BTreeSet<u64> {
    let all = history.programs.values().filter_map(|records| participant(records));
    all.filter(|(of, _)| *of == process).map(|(_, incarnation)| incarnation).collect()
}

/// Outcomes of a process that had others before, beyond its first iteration, and
/// afterwards, and so was certainly alive; other members got the same.
fn amid(history: &History, is_meant: impl Fn(&Arrival) -> bool) -> Vec<Told> {
    let all = told(history);
    let amid = all.windows(3).filter_map(|three| {
        let [before, told, next] = three else { return None };
        let same = |other: &Told| other.outcome.generation == told.outcome.generation;
        let others = all.iter().any(|other| same(other) && other.program != told.program);
        let alone = before.program != told.program || next.program != told.program;
        let fits = before.outcome.advance.is_none() && is_meant(&told.arrival);
        (fits && others && !alone).then(|| told.clone())
    });
    amid.collect()
}

fn is_roll(arrival: &Arrival) -> bool {
    arrival.round.verb == Verb::Live && arrival.round.among == Among::Active
}

/// Removes a member from all outcomes of a generation, and what the member says of it.
fn leave_out(history: &mut History, Told { program, place, outcome, participant, .. }: &Told) {
    retell(history, outcome.generation, |told| {
        told.members.retain(|member| member != participant);
        if let Some(absent) = &mut told.absent {
            absent.push(participant.0);
            absent.sort_unstable();
        }
        if let Some(verdict) = &mut told.verdict {
            *verdict = VoteVerdict { carried: false, value: None, against: vec![*participant] };
        }
    });
    records(history, program).drain(place - 1..=*place);
}

fn leave_out_of_a_roll_call(history: &mut History) -> bool {
    let found = amid(history, is_roll).into_iter().next();
    found.inspect(|told| leave_out(history, told)).is_some()
}

fn leave_out_of_a_set(history: &mut History) -> bool {
    let is_set = |arrival: &Arrival| matches!(arrival.round.among, Among::Set(_));
    let found = amid(history, is_set).into_iter().next();
    found.inspect(|told| leave_out(history, told)).is_some()
}

/// It had an outcome before it went to an advance, and another one before that.
fn leave_out_of_a_generation(history: &mut History) -> bool {
    let is_vote = |arrival: &Arrival| matches!(arrival.round.verb, Verb::Vote(_));
    let all = told(history);
    let at = |told: &Told| history.programs[&told.program][told.place].at;
    let found = amid(history, is_vote).into_iter().find(|one| {
        let others = all.iter().filter(|other| {
            other.outcome.generation == one.outcome.generation && other.program != one.program
        });
        let closed = others.map(at).min();
        let after = history.programs[&one.program][one.place + 1..].iter();
        let mut calls = after.filter(|record| matches!(record.what, What::Call(_)));
        calls.next().zip(closed).is_some_and(|(next, closed)| next.at > closed)
    });
    found.inspect(|told| leave_out(history, told)).is_some()
}

fn name_a_former_incarnation(history: &mut History) -> bool {
    for told in amid(history, is_roll) {
        let (process, incarnation) = told.participant;
        let Some(former) = participants(history, process).range(..incarnation).next_back().copied()
        else {
            continue;
        };
        // An unnamed process got nothing: this is not a mere disagreement.
        unknown(history, &told);
        retell(history, told.outcome.generation, |outcome| {
            for member in &mut outcome.members {
                if *member == (process, incarnation) {
                    member.1 = former;
                }
            }
        });
        return true;
    }
    false
}

fn skip_an_iteration(history: &mut History) -> bool {
    let advances = told(history).into_iter().filter(|told| told.outcome.advance.is_some());
    let Some(last) = advances.max_by_key(|told| told.outcome.generation) else { return false };
    retell(history, last.outcome.generation, |outcome| {
        if let Some(advance) = &mut outcome.advance {
            advance.iteration += 100;
        }
    });
    true
}

fn tell_one_something_else(history: &mut History) -> bool {
    let Some(mut told) = amid(history, is_roll).into_iter().next() else { return false };
    told.outcome.members = vec![told.participant];
    records(history, &told.program)[told.place].what = What::Outcome(Box::new(told.outcome));
    true
}

/// One name, two generations, one outcome.
fn tell_of_another_generation(history: &mut History) -> bool {
    let all = told(history);
    let votes = all.iter().filter(|told| matches!(told.arrival.round.verb, Verb::Vote(_)));
    for one in votes.clone() {
        let name = |told: &Told| (told.arrival.round.name.clone(), told.arrival.round.verb);
        let other = votes.clone().find(|other| {
            name(other) == name(one)
                && other.arrival.round.among != one.arrival.round.among
                && other.outcome.members.len() > 1
                && other.outcome.members.contains(&one.participant)
                && other.outcome.generation != one.outcome.generation
        });
        let shared = |other: &&Told| {
            let same = |told: &Told| told.outcome.generation == other.outcome.generation;
            all.iter().any(|told| same(told) && told.participant != one.participant)
        };
        if let Some(other) = other.filter(shared) {
            let outcome = other.outcome.clone();
            records(history, &one.program)[one.place].what = What::Outcome(Box::new(outcome));
            return true;
        }
    }
    false
}

fn list_one_that_was_there(history: &mut History) -> bool {
    let Some(one) = told(history).into_iter().find(|told| told.outcome.absent.is_some()) else {
        return false;
    };
    retell(history, one.outcome.generation, |outcome| {
        outcome.absent = Some(vec![one.participant.0]);
    });
    true
}

fn turn_a_vote(history: &mut History) -> bool {
    let is_vote = |told: &Told| matches!(told.arrival.round.verb, Verb::Vote(_));
    let Some(one) = told(history).into_iter().find(is_vote) else { return false };
    retell(history, one.outcome.generation, |outcome| {
        if let Some(verdict) = &mut outcome.verdict {
            verdict.carried = !verdict.carried;
        }
    });
    true
}

fn change_what_was_gathered(history: &mut History) -> bool {
    let several = |told: &Told| told.outcome.values.as_ref().is_some_and(|all| all.len() > 1);
    let Some(one) = told(history).into_iter().find(several) else { return false };
    retell(history, one.outcome.generation, |outcome| {
        if let Some(values) = &mut outcome.values {
            values.reverse();
        }
    });
    true
}

/// The exit of a block that succeeded.
fn success(history: &History) -> Option<Told> {
    let succeeded = |told: &Told| {
        let verdict = told.outcome.verdict.as_ref();
        told.arrival.round.verb == Verb::Exit && verdict.is_some_and(|verdict| verdict.carried)
    };
    told(history).into_iter().find(succeeded)
}

/// Changes the branches of programs after a block; answers of how many.
fn turn(history: &mut History, entry: &Among, most: usize) -> usize {
    let all = history.programs.values_mut().flatten();
    let branches = all.filter_map(|record| match &mut record.what {
        What::Branch { block, succeeded } if *entry == Among::Generation(*block) => Some(succeeded),
        _ => None,
    });
    branches.take(most).map(|succeeded| *succeeded = !*succeeded).count()
}

/// For all members: all go on as after a failure.
fn fail_a_block(history: &mut History) -> bool {
    let Some(exit) = success(history) else { return false };
    retell(history, exit.outcome.generation, |outcome| {
        let against = vec![exit.participant];
        outcome.verdict = Some(VoteVerdict { carried: false, value: None, against });
    });
    turn(history, &exit.arrival.round.among, usize::MAX);
    true
}

fn take_another_branch(history: &mut History) -> bool {
    let Some(exit) = success(history) else { return false };
    turn(history, &exit.arrival.round.among, 1) == 1
}

fn make_a_quorum_of_one(history: &mut History) -> bool {
    let is_quorum = |told: &Told| told.arrival.round.verb == Verb::Quorum;
    let all = told(history);
    let Some(one) = all.iter().find(|told| is_quorum(told)) else { return false };
    let generation = one.outcome.generation;
    for other in all.iter().filter(|told| told.outcome.generation == generation) {
        if other.participant != one.participant {
            unknown(history, other);
        }
    }
    retell(history, generation, |outcome| outcome.members = vec![one.participant]);
    true
}

/// Something that was released runs on beside its successor: in a program that was never
/// disturbed, since others may be left out.
fn run_on(history: &mut History) -> bool {
    let is_disturbed = |program: &String| {
        let mut all = history.programs.values().flatten();
        all.any(|record| {
            matches!(&record.what, What::Suspect { programs, .. } if programs.contains(program))
        })
    };
    let mut found = None;
    for (program, records) in &history.programs {
        if is_disturbed(program) {
            continue;
        }
        let ran = records.iter().enumerate().filter_map(|(place, record)| match record.what {
            What::Runs { generation } => Some((place, generation)),
            _ => None,
        });
        let ran: Vec<(usize, u64)> = ran.collect();
        let next = ran.windows(2).find(|pair| pair[0].1 != pair[1].1);
        found = found.or(next.map(|pair| (program.clone(), pair[1].0, pair[0].1)));
    }
    let Some((program, place, generation)) = found else { return false };
    records(history, &program)[place].what = What::Runs { generation };
    true
}

fn hold_again_unnamed(history: &mut History) -> bool {
    let is_again = |told: &Told| {
        let held = told.outcome.held;
        held.is_some_and(|held| held != told.outcome.generation)
    };
    let Some(mut one) = told(history).into_iter().find(is_again) else { return false };
    one.arrival.holds = None;
    records(history, &one.program)[one.place - 1].what = What::Call(Box::new(one.arrival));
    true
}

/// A process of a run that another one has ended gets a closing that came later: only the
/// process itself was in it.
fn close_in_a_former_run(history: &mut History) -> bool {
    let joined = |run: &str| {
        let all = history.programs.values().filter_map(|records| {
            let [
                Record { what: What::Join { run: of, .. }, .. },
                Record { what: What::Joined { .. }, at },
                ..,
            ] = &records[..]
            else {
                return None;
            };
            (of == run).then_some(*at)
        });
        all.min()
    };
    let opened: Vec<&String> = history
        .programs
        .values()
        .flatten()
        .filter_map(|record| match &record.what {
            What::Opens { run } => Some(run),
            _ => None,
        })
        .collect();
    let Some(opened_by) = opened.first().and_then(|run| joined(run)) else { return false };
    let generations = told(history).into_iter().map(|told| told.outcome.generation);
    let (next, mut found) = (generations.max().unwrap_or(0) + 1, None);
    for (program, records) in &history.programs {
        // A program that was killed early has written nothing.
        let first = records.first().map(|record| &record.what);
        let first = matches!(first, Some(What::Join { run, .. }) if !opened.contains(&run));
        if let Some(participant) = participant(records).filter(|_| first) {
            found = Some((program.clone(), participant));
        }
    }
    let Some((program, participant)) = found else { return false };
    let records = records(history, &program);
    let at = records.last().map_or(0, |record| record.at).max(opened_by);
    let call = What::Call(Box::default());
    let outcome = Outcome {
        generation: next,
        witness: u64::MAX,
        members: vec![participant],
        ..Outcome::default()
    };
    // The notices of its end are left out.
    records.retain(|record| !matches!(record.what, What::Failed { .. } | What::Left));
    if matches!(records.last(), Some(Record { what: What::Call(_), .. })) {
        records.pop();
    }
    records.push(Record { at: at + 1, what: call });
    records.push(Record { at: at + 2, what: What::Outcome(Box::new(outcome)) });
    true
}

/// Of the processes that form a run, all but one get nothing.
fn go_on_alone(history: &mut History) -> bool {
    let all = told(history);
    let first = all.iter().filter(|told| told.arrival.round.is_of_all());
    let first = first.min_by_key(|told| told.outcome.generation);
    let Some(one) = first.filter(|told| told.outcome.members.len() > 1) else { return false };
    let generation = one.outcome.generation;
    for other in all.iter().filter(|told| told.outcome.generation == generation) {
        if other.participant != one.participant {
            unknown(history, other);
        }
    }
    retell(history, generation, |outcome| {
        let place = outcome.members.iter().position(|member| *member == one.participant);
        outcome.members = vec![one.participant];
        if let (Some(advance), Some(place)) = (&mut outcome.advance, place) {
            advance.ranks = vec![advance.ranks[place]];
        }
    });
    true
}
