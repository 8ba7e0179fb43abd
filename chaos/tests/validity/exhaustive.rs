//! Small random histories, judged by the checker and by trying every placement: the
//! definition, word for word, without shortcuts.

use std::collections::BTreeSet;
use std::fmt::Write;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::script::verdict;

const HISTORIES: u64 = 1_500;
const GENERATIONS: usize = 3;
/// Places between two moments of a history: as many as there are closings.
const PLACES: u64 = GENERATIONS as u64;

/// Generation, beginning, end and whether that was an outcome. Every generation
/// is a round of its own.
type Call = (usize, u64, Option<(u64, bool)>);

/// An incarnation; times are whole, all different in a history.
#[derive(Debug)]
struct Participant {
    process: u32,
    incarnation: u64,
    start: u64,
    calls: Vec<Call>,
    dead: Option<u64>,
}

#[derive(Debug)]
struct Small {
    participants: Vec<Participant>,
    members: Vec<Vec<usize>>,
    /// The set that each generation is among; none = all active processes.
    sets: Vec<Option<BTreeSet<u32>>>,
    end: u64,
}

fn random(seed: u64) -> Small {
    let mut random = StdRng::seed_from_u64(seed);
    let mut participants = Vec::new();
    let mut incarnation = 0;
    let mut end = 0;
    for process in 0..3 {
        let mut time = u64::from(process) + 1 + 3 * random.random_range(0..6);
        for _ in 0..random.random_range(1..=2) {
            let mut step = |most| {
                let now = time;
                time += 3 * random.random_range(1..=most);
                now
            };
            let start = step(3);
            let dead_at = step(8);
            incarnation += 1;
            let mut participant =
                Participant { process, incarnation, start, calls: vec![], dead: None };
            let mut now = start;
            let mut next = random.random_range(0..2);
            while next < GENERATIONS {
                let at = now + 3 * random.random_range(1..=3);
                let answered = at + 3 * random.random_range(1..=6);
                let answer = match random.random_range(0..8) {
                    0 => None,
                    1 => Some((answered, false)),
                    _ => Some((answered, true)),
                };
                participant.calls.push((next, at, answer));
                now = answered;
                next += random.random_range(1..=2);
                if !matches!(answer, Some((_, true))) {
                    break;
                }
            }
            let silent = participant.calls.last().is_some_and(|(.., answer)| answer.is_none());
            if silent || random.random_bool(0.5) {
                participant.dead = Some(now.max(dead_at) + 3);
            }
            time = now.max(dead_at) + 3 * random.random_range(2..=5);
            end = end.max(time);
            let goes_on = participant.dead.is_none()
                && !participant.calls.iter().any(|(.., answer)| matches!(answer, Some((_, false))));
            participants.push(participant);
            if goes_on {
                break;
            }
        }
    }
    // A notified process is a member; of the others with a call, some are.
    let told = |participant: &Participant, g| {
        participant.calls.iter().any(|c| c.0 == g && matches!(c.2, Some((_, true))))
    };
    let members = (0..GENERATIONS).map(|g| {
        let mut inside: Vec<usize> = Vec::new();
        for (n, participant) in participants.iter().enumerate() {
            let called = participant.calls.iter().any(|c| c.0 == g);
            if told(participant, g) || called && random.random_bool(0.7) {
                inside.push(n);
            }
        }
        inside
    });
    let members = members.collect();
    let mut random = StdRng::seed_from_u64(!seed);
    let sets = (0..GENERATIONS).map(|g| {
        let callers = participants
            .iter()
            .filter(|participant| participant.calls.iter().any(|call| call.0 == g));
        let mut set: BTreeSet<u32> = callers.map(|participant| participant.process).collect();
        set.extend((0..3).filter(|_| random.random_bool(0.6)));
        random.random_bool(0.5).then_some(set)
    });
    let sets = sets.collect();
    Small { participants, members, sets, end }
}

impl Small {
    fn script(&self) -> String {
        let mut script = String::new();
        for participant in &self.participants {
            let Participant { process, incarnation, start, calls, dead } = participant;
            write!(script, "{process}.{incarnation} start@{start}").expect("a text takes it");
            for (generation, at, answer) in calls {
                let set = self.sets[*generation].as_ref().map_or_else(String::new, |set| {
                    let set: Vec<String> = set.iter().map(ToString::to_string).collect();
                    format!("~{{{}}}", set.join(","))
                });
                write!(script, " call:g{generation}{set}@{at}").expect("a text takes it");
                match answer {
                    None => {}
                    Some((at, false)) => {
                        write!(script, " fenced@{at}").expect("a text takes it");
                    }
                    Some((at, true)) => {
                        let members =
                            self.members[*generation].iter().map(|n| &self.participants[*n]);
                        let names: Vec<String> =
                            members.map(|l| format!("{}.{}", l.process, l.incarnation)).collect();
                        let (names, absent) = (names.join(" "), self.absent(*generation));
                        write!(script, " got#{}({names}){absent}@{at}", generation + 1)
                            .expect("a text takes it");
                    }
                }
            }
            if let Some(dead) = dead {
                write!(script, " dead@{dead}").expect("a text takes it");
            }
            script.push('\n');
        }
        script
    }

    /// The processes of a set that are not named.
    fn absent(&self, generation: usize) -> String {
        let Some(set) = &self.sets[generation] else { return String::new() };
        let named = |process: &u32| {
            self.members[generation].iter().any(|n| self.participants[*n].process == *process)
        };
        let absent = set.iter().filter(|process| !named(process));
        let absent: Vec<String> = absent.map(ToString::to_string).collect();
        format!("/{}", absent.join(","))
    }

    /// Two incarnations of one process in one generation are covered elsewhere.
    fn makes_sense(&self) -> bool {
        self.members.iter().all(|members| {
            members.windows(2).all(|pair| {
                self.participants[pair[0]].process != self.participants[pair[1]].process
            })
        })
    }

    /// Tries every placement of the closings that were observed.
    fn is_valid(&self) -> bool {
        let told = |g: &usize| {
            self.participants
                .iter()
                .any(|l| l.calls.iter().any(|c| c.0 == *g && matches!(c.2, Some((_, true)))))
        };
        let closings: Vec<usize> = (0..GENERATIONS).filter(told).collect();
        self.place(&closings, &mut Vec::new())
    }

    fn place(&self, closings: &[usize], placed: &mut Vec<(usize, u64)>) -> bool {
        let Some((first, rest)) = closings.split_first() else {
            return (0..self.participants.len())
                .all(|participant| self.can_end(participant, placed));
        };
        // Moments of the history are multiples of PLACES + 1 on this scale.
        (1..self.end * (PLACES + 1)).any(|at| {
            placed.push((*first, at));
            let fits =
                at % (PLACES + 1) != 0 && self.inside(*first, at) && self.place(rest, placed);
            placed.pop();
            fits
        })
    }

    fn inside(&self, generation: usize, at: u64) -> bool {
        self.members[generation].iter().all(|member| {
            self.participants[*member].calls.iter().any(|(of, from, answer)| {
                let until = match answer {
                    Some((until, true)) => until * (PLACES + 1),
                    _ => u64::MAX,
                };
                *of == generation && from * (PLACES + 1) < at && at < until
            })
        })
    }

    /// Whether the end of an incarnation can be after every closing that names it and
    /// before every closing that does not, while it had started.
    fn can_end(&self, n: usize, placed: &[(usize, u64)]) -> bool {
        let participant = &self.participants[n];
        let scale = PLACES + 1;
        let mut earliest = participant.start * scale;
        let mut latest = u64::MAX;
        let mut ends = participant.dead.is_some();
        for (_, at, answer) in &participant.calls {
            match answer {
                None => earliest = earliest.max(at * scale),
                Some((told, true)) => earliest = earliest.max((*told).max(*at) * scale),
                Some((told, false)) => (latest, ends) = (latest.min(told * scale), true),
            }
        }
        if let Some(next) =
            self.participants.get(n + 1).filter(|next| next.process == participant.process)
        {
            (latest, ends) = (latest.min(next.start * scale), true);
        }
        let replaced_by =
            |other: &usize| self.participants[*other].process == participant.process && *other > n;
        let is_first = n == 0 || self.participants[n - 1].process != participant.process;
        for (generation, at) in placed {
            let started = *at > participant.start * scale;
            let named = |other: &usize| self.participants[*other].process == participant.process;
            if let Some(set) = &self.sets[*generation]
                && !self.members[*generation].iter().any(named)
            {
                // A set waits for one that was never there, and for none outside of it.
                if !set.contains(&participant.process) {
                    continue;
                }
                if is_first && !started {
                    return false;
                }
            }
            if self.members[*generation].contains(&n) {
                if !started {
                    return false;
                }
                earliest = earliest.max(*at);
            } else if started && !self.members[*generation].iter().any(replaced_by) {
                if !ends {
                    return false;
                }
                latest = latest.min(*at);
            } else if started {
                latest = latest.min(*at);
            }
        }
        !ends || earliest < latest
    }
}

#[test]
fn the_checker_agrees_with_trying_everything() {
    let mut verdicts = [0, 0];
    for seed in 0..HISTORIES {
        let small = random(seed);
        if !small.makes_sense() {
            continue;
        }
        let script = small.script();
        let report = verdict(&script);
        let expected = small.is_valid();
        assert_eq!(report.violations.is_empty(), expected, "seed {seed}\n{script}{report}");
        verdicts[usize::from(expected)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > HISTORIES / 20), "one-sided: {verdicts:?}");
}
