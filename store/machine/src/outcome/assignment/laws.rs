//! Laws of assignments, tested on random jobs.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn config() -> ProptestConfig {
    ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() }
}

/// A process: with a rank, lost, or a newcomer; its labels; and a key for the
/// order of earlier ranks.
#[derive(Debug, Clone)]
struct Participant {
    kind: Kind,
    labels: Labels,
    turn: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ranked,
    Lost,
    Newcomer,
}

fn participant() -> impl Strategy<Value = Participant> {
    let kind = select(vec![Kind::Ranked, Kind::Ranked, Kind::Lost, Kind::Newcomer]);
    (kind, 0..5u32, 0..3u32, any::<u32>()).prop_map(|(kind, host, rack, turn)| {
        let mut labels = Labels::from([("rack".to_owned(), rack.to_string())]);
        if host > 0 {
            labels.insert("host".to_owned(), host.to_string());
        }
        Participant { kind, labels, turn }
    })
}

/// A job after an iteration: its ranks are 0 to their number.
#[derive(Debug, Clone)]
struct Job(Vec<(Participant, Option<u32>)>);

impl Job {
    fn candidates(&self) -> Vec<Candidate<'_>> {
        let all = (0..).zip(&self.0).filter(|(_, (participant, _))| participant.kind != Kind::Lost);
        all.map(|(process, (participant, rank))| Candidate {
            process,
            previous: *rank,
            labels: &participant.labels,
        })
        .collect()
    }

    fn lost(&self) -> Vec<Lost<'_>> {
        let gone = self.0.iter().filter(|(participant, _)| participant.kind == Kind::Lost);
        gone.filter_map(|(participant, rank)| {
            Some(Lost { rank: (*rank)?, labels: &participant.labels })
        })
        .collect()
    }

    fn assign(&self, steps: &[AssignmentStep]) -> Assigned {
        assign(steps, &self.candidates(), &self.lost())
    }
}

fn job() -> impl Strategy<Value = Job> {
    vec(participant(), 0..40).prop_map(|participants| {
        let had = |n: &usize| participants[*n].kind != Kind::Newcomer;
        let mut turns: Vec<usize> = (0..participants.len()).filter(had).collect();
        turns.sort_by_key(|n| (participants[*n].turn, *n));
        let mut ranks = vec![None; participants.len()];
        for (rank, n) in (0..).zip(turns) {
            ranks[n] = Some(rank);
        }
        Job(participants.into_iter().zip(ranks).collect())
    })
}

fn layer(label: Option<&'static str>) -> impl Strategy<Value = TreeLayer> {
    (0..4u32, 0..12u32, any::<bool>(), any::<bool>()).prop_map(
        move |(ranks_min, ranks_max, reserve, backfill)| TreeLayer {
            label: label.map(str::to_owned),
            ranks_min,
            ranks_max,
            reserve,
            backfill,
        },
    )
}

fn tree() -> impl Strategy<Value = AssignmentStep> {
    (layer(None), layer(Some("rack")), layer(Some("host")), 1..4usize).prop_map(
        |(root, racks, hosts, depth)| {
            let mut layers = vec![root, racks, hosts];
            layers.truncate(depth);
            AssignmentStep::Tree { layers }
        },
    )
}

fn step() -> impl Strategy<Value = AssignmentStep> {
    prop_oneof![
        Just(AssignmentStep::Shift),
        Just(AssignmentStep::FillGaps),
        (select(vec!["host", "rack", "none"]), 0..6u32, 0..6u32).prop_map(|(label, min, max)| {
            AssignmentStep::FilterGrouped { label: label.to_owned(), min, max }
        }),
        (0..40u32).prop_map(|max| AssignmentStep::MaxActive { max }),
        (0..9u32).prop_map(|divisor| AssignmentStep::DivisibleBy { divisor }),
        tree(),
        Just(AssignmentStep::Tree { layers: Vec::new() }),
    ]
}

fn world(assigned: &Assigned) -> usize {
    assigned.ranks.iter().flatten().count()
}

/// Ranks are 0 to their number, and each process without one was left out by one
/// step.
fn sound(assigned: &Assigned, candidates: usize, steps: usize) -> Result<(), TestCaseError> {
    prop_assert_eq!(assigned.ranks.len(), candidates);
    let mut ranks: Vec<u32> = assigned.ranks.iter().flatten().copied().collect();
    ranks.sort_unstable();
    prop_assert!(ranks.iter().copied().eq(0..ranks.len() as u32), "{ranks:?}");
    let without = (0..candidates).filter(|place| assigned.ranks[*place].is_none());
    prop_assert!(assigned.left_out.iter().map(|(place, _)| *place).eq(without));
    prop_assert!(assigned.left_out.iter().all(|(_, step)| (*step as usize) < steps));
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn ranks_are_sound_whatever_is_put_in(
        job in job(),
        previous in vec(prop_oneof![Just(None), (0..9u32).prop_map(Some), any::<Option<u32>>()], 40),
        steps in vec(step(), 0..6),
    ) {
        let (mut candidates, lost) = (job.candidates(), job.lost());
        sound(&assign(&steps, &candidates, &lost), candidates.len(), steps.len())?;
        for (candidate, previous) in candidates.iter_mut().zip(previous) {
            candidate.previous = previous;
        }
        sound(&assign(&steps, &candidates, &lost), candidates.len(), steps.len())?;
    }

    #[test]
    fn the_order_in_which_losses_are_told_does_not_matter(job in job(), steps in vec(step(), 1..6)) {
        let mut lost = job.lost();
        let assigned = assign(&steps, &job.candidates(), &lost);
        lost.reverse();
        prop_assert_eq!(assign(&steps, &job.candidates(), &lost), assigned);
    }

    #[test]
    fn a_step_changes_nothing_the_second_time(job in job(), step in step()) {
        let steps = [step];
        let mut candidates = job.candidates();
        let first = assign(&steps, &candidates, &job.lost());
        for (candidate, rank) in candidates.iter_mut().zip(&first.ranks) {
            candidate.previous = *rank;
        }
        prop_assert_eq!(assign(&steps, &candidates, &[]), first);
    }

    #[test]
    fn numbers_are_as_the_last_steps_say(
        job in job(), steps in vec(step(), 0..4), max in 1..40u32, divisor in 1..9u32,
    ) {
        let before = world(&job.assign(&steps));
        let mut with = steps.clone();
        with.push(AssignmentStep::MaxActive { max });
        let limited = world(&job.assign(&with));
        prop_assert_eq!(limited, before.min(max as usize));
        with.push(AssignmentStep::DivisibleBy { divisor });
        let divisible = world(&job.assign(&with));
        prop_assert_eq!(divisible, limited / divisor as usize * divisor as usize);
    }

    #[test]
    fn groups_are_in_or_out_as_a_whole(job in job(), min in 0..6u32, max in 0..6u32) {
        let step = AssignmentStep::FilterGrouped { label: "host".to_owned(), min, max };
        let (assigned, candidates) = (job.assign(&[step]), job.candidates());
        for (place, rank) in assigned.ranks.iter().enumerate() {
            let host = |place: usize| candidates[place].labels.get("host");
            let together = (0..candidates.len()).filter(|other| host(*other) == host(place)).count();
            let suits = together >= min as usize && (max == 0 || together <= max as usize);
            prop_assert_eq!(rank.is_some(), suits);
        }
    }

    #[test]
    fn shift_keeps_the_order(job in job()) {
        let candidates = job.candidates();
        let ranks = job.assign(&[AssignmentStep::Shift]).ranks;
        let mut before: Vec<usize> = (0..candidates.len()).collect();
        before.sort_by_key(|n| (candidates[*n].previous.is_none(), candidates[*n].previous, *n));
        prop_assert!(before.iter().map(|n| ranks[*n]).eq((0..).map(Some).take(before.len())));
    }

    /// A process whose rank still exists keeps it.
    #[test]
    fn fill_gaps_moves_the_fewest(job in job()) {
        let candidates = job.candidates();
        let ranks = job.assign(&[AssignmentStep::FillGaps]).ranks;
        for (candidate, rank) in candidates.iter().zip(&ranks) {
            if candidate.previous.is_some_and(|previous| (previous as usize) < ranks.len()) {
                prop_assert_eq!(*rank, candidate.previous);
            }
        }
    }

    #[test]
    fn a_bare_tree_shifts(job in job()) {
        let bare = TreeLayer {
            label: None, ranks_min: 0, ranks_max: 0, reserve: false, backfill: false,
        };
        let shifted = job.assign(&[AssignmentStep::Shift]);
        prop_assert_eq!(job.assign(&[AssignmentStep::Tree { layers: vec![bare.clone()] }]), shifted);
        // With reserves and backfill it fills gaps: newcomers first, then the highest.
        let filling = TreeLayer { reserve: true, backfill: true, ..bare };
        let tree = job.assign(&[AssignmentStep::Tree { layers: vec![filling] }]);
        let kept = |assigned: &Assigned| {
            let candidates = job.candidates();
            let all = candidates.iter().zip(&assigned.ranks);
            all.filter(|(candidate, rank)| candidate.previous == **rank).count()
        };
        prop_assert_eq!(kept(&tree), kept(&job.assign(&[AssignmentStep::FillGaps])));
    }

    /// No rank moves while there are enough stand-ins.
    #[test]
    fn who_stays_keeps_its_rank_while_there_are_reserves(job in job()) {
        let layer = |label: Option<&str>| TreeLayer {
            label: label.map(str::to_owned),
            ranks_min: 0, ranks_max: 0, reserve: true, backfill: false,
        };
        let layers = vec![layer(None), layer(Some("rack")), layer(Some("host"))];
        let (candidates, lost) = (job.candidates(), job.lost());
        let waiting = candidates.iter().filter(|candidate| candidate.previous.is_none()).count();
        let ranks = job.assign(&[AssignmentStep::Tree { layers }]).ranks;
        if waiting >= lost.len() {
            for (candidate, rank) in candidates.iter().zip(ranks) {
                prop_assert!(candidate.previous.is_none() || candidate.previous == rank);
            }
        }
    }

    #[test]
    fn trees_keep_to_their_limits(job in job(), tree in tree()) {
        let AssignmentStep::Tree { layers } = &tree else { unreachable!() };
        let (candidates, lost) = (job.candidates(), job.lost());
        let ranks = assign(std::slice::from_ref(&tree), &candidates, &lost).ranks;
        let dismissed = |(candidate, rank): &(&Candidate<'_>, &Option<u32>)| {
            candidate.previous.is_some() && rank.is_none()
        };
        let vacancies = lost.len() + candidates.iter().zip(&ranks).filter(dismissed).count();
        let reserve = layers.iter().any(|layer| layer.reserve);
        let path = |place: usize, depth: usize| -> Vec<Option<&String>> {
            let value = |label: &Option<String>| candidates[place].labels.get(label.as_ref()?);
            layers[1..=depth].iter().map(|layer| value(&layer.label)).collect()
        };
        for (depth, layer) in layers.iter().enumerate() {
            for place in (0..ranks.len()).filter(|place| ranks[*place].is_some()) {
                let with = |other: &usize| path(*other, depth) == path(place, depth);
                let domain: Vec<usize> = (0..ranks.len()).filter(with).collect();
                prop_assert!(domain.len() >= layer.ranks_min as usize);
                let active = domain.iter().filter(|other| ranks[**other].is_some());
                let newcomers = active.clone().filter(|n| candidates[**n].previous.is_none());
                let (active, newcomers) = (active.count(), newcomers.count());
                // Only processes that had a rank before, and stand-ins for a loss, may exceed the
                // limit.
                let stand_ins = newcomers.min(if reserve { vacancies } else { 0 });
                let max = layer.ranks_max as usize;
                let most = if depth == 0 { max } else { max.max(active - newcomers + stand_ins) };
                prop_assert!(max == 0 || active <= most, "{active} of {most}");
            }
        }
        // No process waits while there is room for it and no other rule forbids it.
        if layers.iter().all(|layer| layer.ranks_min == 0 && layer.ranks_max == 0) {
            prop_assert!(ranks.iter().all(Option::is_some));
        }
    }
}
