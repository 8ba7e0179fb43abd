//! Rounds of real 4-process jobs, with ranks, agents and nodes killed, paused
//! and started again, judged by what the ranks saw; and the same recordings
//! with one lie in them.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_chaos::check::Rule;
use holdfast_chaos::history::{Meaning, Outcome, What};
use holdfast_chaos::{History, check};
use holdfast_tests::Cluster;
use holdfast_tests::histories::{Lap, PROVEN, lap};

const SEED: u64 = 20_260_801;
const JOBS: u32 = 12;

#[tokio::test(flavor = "multi_thread")]
async fn no_round_names_the_dead_or_leaves_out_the_living() {
    let mut cluster = Cluster::start(3).await;
    let folder = tempfile::Builder::new().prefix("holdfast-histories-").tempdir();
    let folder = folder.expect("the folder for temporary files can be written").keep();
    println!("seed {SEED}; the histories are in {}", folder.display());
    let size = Lap {
        name: "short".to_owned(),
        jobs: JOBS,
        lasts: Duration::from_secs(20),
        pause: Duration::from_millis(100),
        node_faults_every: Duration::from_secs(4),
        seed: SEED,
        folder: folder.clone(),
    };
    let report = lap(&mut cluster, &size).await;
    println!("{report}");
    assert_eq!(report.violations, [], "seed {SEED}; histories in {}", folder.display());
    for kind in PROVEN {
        assert!(report.kinds.contains_key(&kind), "no round {kind}; seed {SEED}\n{report}");
    }
    let mut found = BTreeSet::new();
    for job in 0..JOBS {
        let history = History::read(&folder.join(format!("short-{job}"))).expect("it was judged");
        for (lie, rule) in LIES {
            let mut told = history.clone();
            if lie(&mut told) {
                let report = check(&told);
                assert!(report.violations.iter().any(|v| v.rule == *rule), "{rule:?}: {report}");
                found.insert(*rule);
            }
        }
    }
    assert_eq!(found.len(), LIES.len(), "there was no place for a lie: {found:?}");
    // What passed is of no further use.
    std::fs::remove_dir_all(folder).expect("the folder was made here");
}

/// Changes a history so that a rule is broken; false if it has no place for it.
type Lie = fn(&mut History) -> bool;

const LIES: &[(Lie, Rule)] = &[
    (leave_out_one_that_lives, Rule::Absence),
    (name_a_former_life, Rule::Presence),
    (skip_an_iteration, Rule::Iteration),
    (tell_one_something_else, Rule::Agreement),
];

/// Everything that somebody was told, with the program and the place.
fn told(history: &History) -> Vec<(String, usize, Outcome)> {
    let mut all = Vec::new();
    for (program, records) in &history.programs {
        for (n, record) in records.iter().enumerate() {
            if let What::Outcome(outcome) = &record.what {
                all.push((program.clone(), n, Outcome::clone(outcome)));
            }
        }
    }
    all
}

/// Changes what everybody was told of a generation.
fn retell(history: &mut History, generation: u64, change: impl Fn(&mut Outcome)) {
    for (program, n, mut outcome) in told(history) {
        if outcome.generation == generation {
            change(&mut outcome);
            let records = history.programs.get_mut(&program).expect("it was told");
            records[n].what = What::Outcome(Box::new(outcome));
        }
    }
}

/// A roll call of several, one of whom was told of a later one, too: that
/// program, the place of the first outcome, and its process there.
fn roll_in_a_life(history: &History) -> Option<(String, usize, Outcome, (u32, u64))> {
    let all = told(history);
    all.windows(2).find_map(|pair| {
        let [(program, n, outcome), (next, ..)] = pair else { return None };
        let incarnation =
            history.programs[program].iter().find_map(|record| match record.what {
                What::Joined { incarnation, .. } => Some(incarnation),
                _ => None,
            })?;
        let me = *outcome.members.iter().find(|(_, i)| *i == incarnation)?;
        let others = all.iter().any(|(p, _, o)| o.generation == outcome.generation && p != program);
        let fits = program == next && outcome.advance.is_none() && others;
        fits.then(|| (program.clone(), *n, outcome.clone(), me))
    })
}

fn leave_out_one_that_lives(history: &mut History) -> bool {
    let Some((program, n, outcome, me)) = roll_in_a_life(history) else { return false };
    retell(history, outcome.generation, |told| told.members.retain(|member| *member != me));
    let records = history.programs.get_mut(&program).expect("it was told");
    records.drain(n - 1..=n);
    true
}

fn name_a_former_life(history: &mut History) -> bool {
    for (program, n, outcome) in told(history) {
        for (place, (process, incarnation)) in outcome.members.iter().enumerate() {
            let records = history.programs.values().flat_map(|records| records.windows(2));
            let former = records.filter_map(|pair| match (&pair[0].what, &pair[1].what) {
                (What::Join { process: of, .. }, What::Joined { incarnation, .. })
                    if of == process =>
                {
                    Some(*incarnation)
                }
                _ => None,
            });
            let Some(former) = former.filter(|former| former < incarnation).max() else { continue };
            let own = history.programs[&program].iter().any(|record| {
                matches!(record.what, What::Joined { incarnation: i, .. } if i == *incarnation)
            });
            if own || outcome.advance.is_some() {
                continue;
            }
            let generation = outcome.generation;
            // Who was named was told nothing, so that this is not a mere disagreement.
            for (program, n, other) in told(history) {
                let mine = history.programs[&program].iter().any(|record| {
                    matches!(record.what, What::Joined { incarnation: i, .. } if i == *incarnation)
                });
                if mine && other.generation == generation {
                    let why = "a lie".to_owned();
                    let records = history.programs.get_mut(&program).expect("it was told");
                    records[n].what = What::Failed { meaning: Meaning::Unknown, why };
                }
            }
            retell(history, generation, |told| told.members[place].1 = former);
            return n > 0;
        }
    }
    false
}

fn skip_an_iteration(history: &mut History) -> bool {
    let advances = told(history).into_iter().filter(|(.., outcome)| outcome.advance.is_some());
    let Some((.., last)) = advances.max_by_key(|(.., outcome)| outcome.generation) else {
        return false;
    };
    retell(history, last.generation, |told| {
        if let Some(advance) = &mut told.advance {
            advance.iteration += 100;
        }
    });
    true
}

fn tell_one_something_else(history: &mut History) -> bool {
    let Some((program, n, mut outcome, me)) = roll_in_a_life(history) else { return false };
    outcome.members = vec![me];
    let records = history.programs.get_mut(&program).expect("it was told");
    records[n].what = What::Outcome(Box::new(outcome));
    true
}
