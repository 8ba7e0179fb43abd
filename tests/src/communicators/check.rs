//! Checks the records of the members: invariants I1 to I9 of the lifecycle, as far as
//! members and their libraries see them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Entry, Event};

/// One incarnation of a process.
type Participant = (u32, u64);

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are what the variant's text names")]
pub enum Broken {
    /// A communicator was opened while one of an earlier generation could run.
    Overlap { generation: u64, earlier: u64, participant: Participant },
    /// Something of a generation counted after a later one had begun.
    Late { generation: u64, later: u64, participant: Participant },
    /// An id was minted twice for one communicator, or one id for two.
    Minted { generation: u64, name: String },
    /// A communicator was opened by an id that is not its own.
    ForeignId { generation: u64, participant: Participant },
    /// A communicator was opened by a process that is no member.
    Stranger { generation: u64, participant: Participant },
    /// Members of one generation have different lists of them.
    Lists { generation: u64, participant: Participant },
    /// A communicator was ended in order that a member did not want to end.
    Closed { generation: u64, participant: Participant },
}

/// When what an incarnation holds of a generation can no longer run.
struct Holding {
    from: u64,
    /// None = it was never freed, nor has its process ended.
    until: Option<u64>,
}

/// Everything that must not be; none of it in a history that may be.
pub fn check(entries: &[Entry]) -> Vec<Broken> {
    let mut broken = overlaps(entries);
    broken.extend(late(entries));
    broken.extend(ids(entries));
    broken.extend(members(entries));
    broken.extend(closed(entries));
    broken
}

/// For each process that was killed, or ended otherwise: the time until each of the
/// others had stopped what it held with it.
pub fn told_after(entries: &[Entry]) -> Vec<Duration> {
    let mut told = Vec::new();
    for (place, entry) in entries.iter().enumerate() {
        if entry.event != Event::Killed {
            continue;
        }
        let Some(generation) = held_by(&entries[..place], entry.process) else { continue };
        let mut heard = BTreeSet::new();
        for later in &entries[place..] {
            let stopped =
                matches!(&later.event, Event::Stopped { generation: g } if *g == generation);
            if stopped && heard.insert(later.process) {
                told.push(Duration::from_nanos(later.at - entry.at));
            }
        }
    }
    told
}

/// The generation that a process had last.
fn held_by(before: &[Entry], process: u32) -> Option<u64> {
    let own = before.iter().rev().filter(|entry| entry.process == process);
    own.into_iter().find_map(|entry| match entry.event {
        Event::Active { generation, .. } => Some(generation),
        _ => None,
    })
}

fn participant(entry: &Entry) -> Participant {
    (entry.process, entry.incarnation)
}

/// From when to when each incarnation may have had something of each generation running.
fn holdings(entries: &[Entry]) -> BTreeMap<(u64, Participant), Holding> {
    let mut open: BTreeMap<(u64, Participant), (BTreeSet<String>, Holding)> = BTreeMap::new();
    for entry in entries {
        match &entry.event {
            Event::Open { generation, name, .. } => {
                let holding = || (BTreeSet::new(), Holding { from: entry.at, until: None });
                let (names, holding) =
                    open.entry((*generation, participant(entry))).or_insert_with(holding);
                names.insert(name.clone());
                holding.until = None;
            }
            Event::Freed { generation, name } => {
                if let Some((names, holding)) = open.get_mut(&(*generation, participant(entry))) {
                    names.remove(name);
                    if names.is_empty() {
                        holding.until.get_or_insert(entry.at);
                    }
                }
            }
            // It ran until the signal at most; the kernel ends what it was doing.
            Event::Killed | Event::Gone => {
                let own = open.iter_mut().filter(|((_, whose), _)| *whose == participant(entry));
                for (_, (_, holding)) in own {
                    holding.until.get_or_insert(entry.at);
                }
            }
            _ => {}
        }
    }
    open.into_iter().map(|(of, (_, holding))| (of, holding)).collect()
}

/// The times in which a process did not run: communicators that it holds then do nothing.
fn pauses(entries: &[Entry]) -> BTreeMap<Participant, Vec<(u64, u64)>> {
    let mut pauses: BTreeMap<Participant, Vec<(u64, u64)>> = BTreeMap::new();
    for entry in entries {
        match (&entry.event, pauses.get_mut(&participant(entry))) {
            (Event::Paused, _) => {
                pauses.entry(participant(entry)).or_default().push((entry.at, u64::MAX));
            }
            (Event::Woken | Event::Gone, Some(own)) => {
                if let Some((_, until)) = own.last_mut().filter(|(_, until)| *until == u64::MAX) {
                    *until = entry.at;
                }
            }
            _ => {}
        }
    }
    pauses
}

/// I1: no two generations run at the same time. A process that was paused for too long is
/// killed by its agent, and gone for a while when the test says so: whether it wrote
/// anything is checked by `late`.
fn overlaps(entries: &[Entry]) -> Vec<Broken> {
    let (holdings, pauses) = (holdings(entries), pauses(entries));
    let gone: BTreeSet<Participant> =
        entries.iter().filter(|one| one.event == Event::Gone).map(participant).collect();
    let mut broken = Vec::new();
    for entry in entries {
        let Event::Open { generation, .. } = &entry.event else { continue };
        for ((earlier, whose), holding) in &holdings {
            let runs = earlier < generation
                && holding.from < entry.at
                && holding.until.is_none_or(|until| until > entry.at);
            let paused = pauses.get(whose).is_some_and(|pauses| {
                pauses.iter().any(|(from, until)| *from < entry.at && entry.at < *until)
            });
            let last_word = entries.iter().rev().find(|one| {
                let is_own = !matches!(
                    one.event,
                    Event::Killed | Event::Paused | Event::Woken | Event::Gone
                );
                participant(one) == *whose && is_own
            });
            let was_killed = pauses.contains_key(whose)
                && gone.contains(whose)
                && last_word.is_some_and(|word| word.at < entry.at);
            if runs && !paused && !was_killed {
                let (generation, earlier, participant) = (*generation, *earlier, *whose);
                broken.push(Broken::Overlap { generation, earlier, participant });
            }
        }
    }
    broken
}

/// I1, I2, I7: once a later generation has begun, nothing of an earlier one is held or
/// counts, also when a process was paused in between.
fn late(entries: &[Entry]) -> Vec<Broken> {
    let mut newest = 0;
    let mut broken = Vec::new();
    for entry in entries {
        match &entry.event {
            Event::Open { generation, .. } if *generation >= newest => newest = *generation,
            Event::Open { generation, .. }
            | Event::Active { generation, .. }
            | Event::Step { generation }
                if *generation < newest =>
            {
                let (generation, later, participant) = (*generation, newest, participant(entry));
                broken.push(Broken::Late { generation, later, participant });
            }
            _ => {}
        }
    }
    broken
}

/// I5: one id for each communicator of a generation, which no other communicator has and
/// no non-member opens.
fn ids(entries: &[Entry]) -> Vec<Broken> {
    let mut of: BTreeMap<(u64, &str), &str> = BTreeMap::new();
    let mut used = BTreeSet::new();
    let mut broken = Vec::new();
    for entry in entries {
        match &entry.event {
            Event::Minted { generation, name, id } => {
                let twice = of.insert((*generation, name), id).is_some();
                if twice || !used.insert(id) {
                    broken.push(Broken::Minted { generation: *generation, name: name.clone() });
                }
            }
            Event::Open { generation, name, id }
                if of.get(&(*generation, name)) != Some(&id.as_str()) =>
            {
                let (generation, participant) = (*generation, participant(entry));
                broken.push(Broken::ForeignId { generation, participant });
            }
            _ => {}
        }
    }
    broken
}

/// All members have the same member list, and no other process opened anything.
fn members(entries: &[Entry]) -> Vec<Broken> {
    let mut lists: BTreeMap<u64, &Vec<Participant>> = BTreeMap::new();
    let mut broken = Vec::new();
    for entry in entries {
        let Event::Active { generation, members, rank } = &entry.event else { continue };
        let same = *lists.entry(*generation).or_insert(members) == members;
        if !same || members.get(*rank as usize) != Some(&participant(entry)) {
            broken.push(Broken::Lists { generation: *generation, participant: participant(entry) });
        }
    }
    for entry in entries {
        let Event::Open { generation, .. } = &entry.event else { continue };
        if lists.get(generation).is_some_and(|members| !members.contains(&participant(entry))) {
            broken.push(Broken::Stranger {
                generation: *generation,
                participant: participant(entry),
            });
        }
    }
    broken
}

/// I9: a communicator is ended in order only if no member has stopped it before.
fn closed(entries: &[Entry]) -> Vec<Broken> {
    let mut stopped = BTreeSet::new();
    let mut broken = Vec::new();
    for entry in entries {
        match entry.event {
            Event::Stopped { generation } => drop(stopped.insert(generation)),
            Event::Closing { generation } if stopped.contains(&generation) => {
                broken.push(Broken::Closed { generation, participant: participant(entry) });
            }
            _ => {}
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Participant = (0, 10);
    const SECOND: Participant = (1, 11);

    fn history(events: &[(Participant, Event)]) -> Vec<Entry> {
        let entry = |(at, (participant, event)): (usize, &(Participant, Event))| Entry {
            at: at as u64 + 1,
            process: participant.0,
            incarnation: participant.1,
            event: event.clone(),
        };
        events.iter().enumerate().map(entry).collect()
    }

    fn minted(generation: u64) -> Event {
        Event::Minted { generation, name: "g".into(), id: generation.to_string() }
    }

    fn open(generation: u64) -> Event {
        Event::Open { generation, name: "g".into(), id: generation.to_string() }
    }

    fn freed(generation: u64) -> Event {
        Event::Freed { generation, name: "g".into() }
    }

    fn active(generation: u64, rank: u32) -> Event {
        Event::Active { generation, rank, members: vec![FIRST, SECOND] }
    }

    fn both(generation: u64) -> Vec<(Participant, Event)> {
        vec![
            (FIRST, minted(generation)),
            (FIRST, open(generation)),
            (SECOND, open(generation)),
            (FIRST, active(generation, 0)),
            (SECOND, active(generation, 1)),
        ]
    }

    fn with(more: &[(Participant, Event)]) -> Vec<Broken> {
        check(&history(&[&both(5)[..], more].concat()))
    }

    #[test]
    fn a_generation_after_another_may_be() {
        let next = [(FIRST, freed(5)), (SECOND, freed(5)), (FIRST, minted(9)), (FIRST, open(9))];
        assert_eq!(with(&next), []);
        let killed =
            [(FIRST, freed(5)), (SECOND, Event::Killed), (FIRST, minted(9)), (FIRST, open(9))];
        assert_eq!(with(&killed), []);
        // Its agent killed one that was paused: it said nothing after the next one began.
        let by_agent = |paused: &[(Participant, Event)]| {
            let next = [(FIRST, minted(9)), (FIRST, open(9)), (SECOND, Event::Gone)];
            with(&[&[(FIRST, freed(5))], paused, &next[..]].concat())
        };
        assert_eq!(by_agent(&[(SECOND, Event::Paused), (SECOND, Event::Woken)]), []);
        let overlap = Broken::Overlap { generation: 9, earlier: 5, participant: SECOND };
        assert_eq!(by_agent(&[]), [overlap], "it sat there");
    }

    #[test]
    fn two_generations_at_once_are_found() {
        let next = [(FIRST, freed(5)), (FIRST, minted(9)), (FIRST, open(9)), (SECOND, freed(5))];
        let overlap = Broken::Overlap { generation: 9, earlier: 5, participant: SECOND };
        assert_eq!(with(&next), [overlap]);
    }

    #[test]
    fn one_that_sleeps_holds_nothing_up_but_must_not_go_on() {
        let mut events = vec![(FIRST, freed(5)), (SECOND, Event::Paused), (FIRST, minted(9))];
        events.extend([(FIRST, open(9)), (SECOND, Event::Woken), (SECOND, freed(5))]);
        assert_eq!(with(&events), []);
        events.push((SECOND, Event::Step { generation: 5 }));
        assert_eq!(with(&events), [Broken::Late { generation: 5, later: 9, participant: SECOND }]);
    }

    #[test]
    fn ids_serve_one_communicator() {
        let again = [(SECOND, minted(5))];
        assert_eq!(with(&again), [Broken::Minted { generation: 5, name: "g".into() }; 1]);
        let other = Event::Open { generation: 5, name: "g".into(), id: "4".into() };
        assert_eq!(
            with(&[(FIRST, other)]),
            [Broken::ForeignId { generation: 5, participant: FIRST }]
        );
    }

    #[test]
    fn all_members_know_the_same_ones() {
        let other = Event::Active { generation: 5, rank: 0, members: vec![FIRST] };
        assert_eq!(with(&[(FIRST, other)]), [Broken::Lists { generation: 5, participant: FIRST }]);
        let stranger = (2, 12);
        let found = with(&[(stranger, open(5))]);
        assert_eq!(found, [Broken::Stranger { generation: 5, participant: stranger }]);
    }

    #[test]
    fn what_was_stopped_is_not_closed() {
        let events =
            [(FIRST, Event::Stopped { generation: 5 }), (FIRST, Event::Closing { generation: 5 })];
        assert_eq!(with(&events), [Broken::Closed { generation: 5, participant: FIRST }]);
    }

    #[test]
    fn how_long_it_takes_to_be_told_is_counted_from_the_kill() {
        let events = [(FIRST, Event::Killed), (SECOND, Event::Stopped { generation: 5 })];
        let entries = history(&[&both(5)[..], &events].concat());
        assert_eq!(told_after(&entries), [Duration::from_nanos(1)]);
    }
}
