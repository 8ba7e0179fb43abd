//! Each step by example. Examples from NVRx's tests and docs are marked; in them
//! a process's number is its initial rank.

use super::*;

/// A job from iteration to iteration.
struct Job {
    labels: Vec<Labels>,
    ranks: Vec<Option<u32>>,
    alive: Vec<bool>,
    left_out: Vec<(usize, u32)>,
}

impl Job {
    /// `world` processes, in hosts of `per_host`, and their first iteration.
    fn start(world: usize, per_host: usize, steps: &[AssignmentStep]) -> Job {
        let host =
            |process| Labels::from([("host".to_owned(), format!("h{}", process / per_host))]);
        let labels = (0..world).map(host).collect();
        let alive = vec![true; world];
        let mut job = Job { labels, ranks: vec![None; world], alive, left_out: Vec::new() };
        job.iterate(steps);
        job
    }

    /// The next iteration, without these processes.
    fn lose(&mut self, gone: &[usize], steps: &[AssignmentStep]) -> Vec<Option<u32>> {
        gone.iter().for_each(|process| self.alive[*process] = false);
        self.iterate(steps)
    }

    /// The next iteration, in which these take part again, as newcomers.
    fn rejoin(&mut self, back: &[usize], steps: &[AssignmentStep]) -> Vec<Option<u32>> {
        back.iter().for_each(|process| self.alive[*process] = true);
        self.iterate(steps)
    }

    fn iterate(&mut self, steps: &[AssignmentStep]) -> Vec<Option<u32>> {
        let alive = |process: &usize| self.alive[*process];
        let processes: Vec<usize> = (0..self.alive.len()).filter(alive).collect();
        let candidate = |process: &usize| Candidate {
            process: *process as u32,
            previous: self.ranks[*process],
            labels: &self.labels[*process],
        };
        let candidates: Vec<_> = processes.iter().map(candidate).collect();
        let gone = (0..self.alive.len()).filter(|process| !alive(process));
        let lost: Vec<_> = gone
            .filter_map(|p| self.ranks[p].map(|rank| Lost { rank, labels: &self.labels[p] }))
            .collect();
        let assigned = assign(steps, &candidates, &lost);
        let mut ranks = vec![None; self.alive.len()];
        for (process, rank) in processes.iter().zip(assigned.ranks) {
            ranks[*process] = rank;
        }
        self.left_out =
            assigned.left_out.iter().map(|(place, step)| (processes[*place], *step)).collect();
        self.ranks = ranks;
        self.ranks.clone()
    }
}

/// `0 . 2`: a rank, or a dot, for each process.
fn ranks(text: &str) -> Vec<Option<u32>> {
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

fn layer(label: Option<&str>, ranks_min: u32, ranks_max: u32, flags: &str) -> TreeLayer {
    TreeLayer {
        label: label.map(str::to_owned),
        ranks_min,
        ranks_max,
        reserve: flags.contains('r'),
        backfill: flags.contains('b'),
    }
}

/// A tree of the root and of hosts.
fn tree(root: TreeLayer, hosts: TreeLayer) -> [AssignmentStep; 1] {
    [AssignmentStep::Tree { layers: vec![root, hosts] }]
}

fn grouped(min: u32, max: u32) -> AssignmentStep {
    AssignmentStep::FilterGrouped { label: "host".to_owned(), min, max }
}

const SHIFT: &[AssignmentStep] = &[AssignmentStep::Shift];
const FILL: &[AssignmentStep] = &[AssignmentStep::FillGaps];

#[test]
fn without_steps_ranks_follow_the_processes() {
    let mut job = Job::start(6, 1, &[]);
    assert_eq!(job.ranks, ranks("0 1 2 3 4 5"));
    assert_eq!(job.lose(&[0, 3], &[]), ranks(". 0 1 . 2 3"));
    assert_eq!(job.rejoin(&[0], &[]), ranks("0 1 2 . 3 4"), "whatever the ranks were");
    assert_eq!(job.left_out, []);
    assert_eq!(assign(&[], &[], &[]), Assigned { ranks: Vec::new(), left_out: Vec::new() });
}

/// NVRx: the picture of `ShiftRanks`, its tests `test`, `test_compose`, `test_all`.
#[test]
fn shift_keeps_the_order_and_closes_the_gaps() {
    let mut job = Job::start(8, 1, &[]);
    assert_eq!(job.lose(&[1, 4, 5], SHIFT), ranks("0 . 1 2 . . 3 4"));
    let mut job = Job::start(8, 1, &[]);
    let twice = [AssignmentStep::Shift, AssignmentStep::Shift];
    assert_eq!(job.lose(&[1, 2, 7], &twice), ranks("0 . . 1 2 3 4 ."));
    assert_eq!(job.lose(&[0, 3, 4, 5, 6], SHIFT), [None; 8]);
    let mut job = Job::start(4, 1, &[]);
    job.lose(&[0], SHIFT);
    assert_eq!(job.rejoin(&[0], SHIFT), ranks("3 0 1 2"), "newcomers come last");
}

/// NVRx: the picture of `FillGaps` (its test `test` expects rank 5 in a world
/// of 5) and its test `test_compose`.
#[test]
fn fill_gaps_moves_the_highest() {
    let mut job = Job::start(8, 1, &[]);
    assert_eq!(job.lose(&[1, 4, 5], FILL), ranks("0 . 2 3 . . 1 4"));
    let mut job = Job::start(8, 1, &[]);
    let twice = [AssignmentStep::FillGaps, AssignmentStep::FillGaps];
    assert_eq!(job.lose(&[1, 2, 7], &twice), ranks("0 . . 3 4 1 2 ."));
}

#[test]
fn fill_gaps_gives_a_lost_rank_to_a_newcomer() {
    let mut job = Job::start(4, 1, &[]);
    job.alive[0] = false;
    job.alive.push(true);
    job.labels.push(Labels::new());
    job.ranks.push(None);
    assert_eq!(job.iterate(FILL), ranks(". 1 2 3 0"));
}

/// NVRx: its test of `FilterCountGroupedByKey`, followed by a shift.
#[test]
fn groups_stay_whole_or_go() {
    let exact = [grouped(2, 2), AssignmentStep::Shift];
    let mut job = Job::start(8, 2, &[]);
    assert_eq!(job.lose(&[1, 4, 5, 6], &exact), ranks(". . 0 1 . . . ."));
    assert_eq!(job.left_out, [(0, 0), (7, 0)]);
    let mut job = Job::start(8, 2, &[]);
    assert_eq!(job.lose(&[1, 4, 5], &exact), ranks(". . 0 1 . . 2 3"), "the picture in its docs");
    // The lowest rank that filtering leaves is 2: gaps are closed in any case.
    assert_eq!(Job::start(6, 4, &[grouped(0, 3)]).ranks, ranks(". . . . 0 1"));
    assert_eq!(Job::start(6, 4, &[grouped(4, 0)]).ranks, ranks("0 1 2 3 . ."));
}

#[test]
fn those_without_the_label_are_a_group() {
    let step = AssignmentStep::FilterGrouped { label: "rack".to_owned(), min: 3, max: 0 };
    let mut job = Job::start(5, 1, &[]);
    job.labels[4] = Labels::from([("rack".to_owned(), String::new())]);
    assert_eq!(job.iterate(&[step]), ranks("0 1 2 3 ."));
}

/// NVRx's guide: the largest multiple of M that is not above N.
#[test]
fn the_number_is_limited_and_divisible() {
    let steps = [
        AssignmentStep::Shift,
        AssignmentStep::MaxActive { max: 6 },
        AssignmentStep::DivisibleBy { divisor: 4 },
    ];
    let mut job = Job::start(10, 1, &steps);
    assert_eq!(job.ranks, ranks("0 1 2 3 . . . . . ."));
    assert_eq!(job.left_out, [(4, 2), (5, 2), (6, 1), (7, 1), (8, 1), (9, 1)]);
    assert_eq!(job.lose(&[1], &steps), ranks("0 . 1 2 3 . . . . ."), "a spare is next in line");
    assert_eq!(job.lose(&[5, 6, 7, 8, 9, 2], &steps), [None; 10], "nobody is a multiple, too");
    let max = [AssignmentStep::MaxActive { max: 3 }, AssignmentStep::FillGaps];
    assert_eq!(Job::start(8, 1, &[]).lose(&[0, 2], &max), ranks(". 1 . 0 2 . . ."), "gaps or not");
}

/// NVRx: `test_full_backfill`, `test_partial_backfill`, `test_no_backfill`,
/// `test_group_backfill_order`, `test_no_termination`, `test_all_terminated`.
#[test]
fn a_tree_backfills_within_its_domains() {
    let hosts = |flags| layer(Some("host"), 1, 0, flags);
    for (root, leaves, expected) in [
        ("b", "b", "0 . 2 3 4 5 6 1"),
        ("", "b", "0 . 2 1 3 4 5 6"),
        ("", "", "0 . 1 2 3 4 5 6"),
        ("b", "", "0 . 1 2 3 4 5 6"),
    ] {
        let steps = tree(layer(None, 1, 0, root), hosts(leaves));
        let mut job = Job::start(8, 4, &steps);
        assert_eq!(job.ranks, ranks("0 1 2 3 4 5 6 7"));
        assert_eq!(job.lose(&[1], &steps), ranks(expected), "{root:?} {leaves:?}");
    }
    let steps = tree(layer(None, 1, 0, "b"), hosts("b"));
    let mut job = Job::start(8, 2, &steps);
    assert_eq!(job.lose(&[2, 3], &steps), ranks("0 1 . . 4 5 2 3"));
    assert_eq!(job.lose(&[0, 1, 4, 5, 6, 7], &steps), [None; 8]);
    // The highest ranks themselves were lost: no rank moves for them.
    let mut job = Job::start(8, 8, &steps);
    assert_eq!(job.lose(&[1, 6, 7], &steps), ranks("0 . 2 3 4 1 . ."));
}

/// NVRx: its test `test_reserve`.
#[test]
fn a_reserve_stands_in_from_the_nearest_domain() {
    let steps = tree(layer(None, 1, 0, "r"), layer(Some("host"), 1, 3, "r"));
    let mut job = Job::start(8, 4, &steps);
    assert_eq!(job.ranks, ranks("0 1 2 . 3 4 5 ."));
    assert_eq!(job.left_out, [(3, 0), (7, 0)]);
    assert_eq!(job.lose(&[1], &steps), ranks("0 . 2 1 3 4 5 ."));
    assert_eq!(job.lose(&[4], &steps), ranks("0 . 2 1 . 4 5 3"));
    assert_eq!(job.lose(&[2], &steps), ranks("0 . . 1 . 3 4 2"));
}

#[test]
fn a_reserve_of_another_domain_comes_through_reserve_layers_alone() {
    // Otherwise it comes after the others, like any newcomer.
    for (root, hosts, expected) in
        [("r", "r", ". . 2 3 4 5 0 1"), ("", "r", ". . 0 1 2 3 4 5"), ("r", "", ". . 0 1 2 3 4 5")]
    {
        // Hosts 0 to 2 work, host 3 is a spare, since the root is full.
        let steps = tree(layer(None, 1, 6, root), layer(Some("host"), 2, 2, hosts));
        let mut job = Job::start(8, 2, &steps);
        assert_eq!(job.ranks, ranks("0 1 2 3 4 5 . ."));
        assert_eq!(job.lose(&[1], &steps), ranks(expected), "{root:?} {hosts:?}");
    }
}

/// NVRx: `test_propagation` and `test_root_propagation`.
#[test]
fn too_small_a_domain_goes_as_a_whole() {
    let steps = tree(layer(None, 1, 0, ""), layer(Some("host"), 3, 0, ""));
    let mut job = Job::start(8, 4, &steps);
    assert_eq!(job.lose(&[0, 2], &steps), ranks(". . . . 0 1 2 3"));
    assert_eq!(job.left_out, [(1, 0), (3, 0)]);
    let steps = tree(layer(None, 7, 0, ""), layer(Some("host"), 1, 0, ""));
    let mut job = Job::start(8, 4, &steps);
    assert_eq!(job.lose(&[0, 5], &steps), [None; 8]);
    // Ranks lost with a host are missing in the domains around it, too.
    let steps = tree(layer(None, 5, 0, ""), layer(Some("host"), 4, 0, ""));
    assert_eq!(Job::start(8, 4, &steps).lose(&[0], &steps), [None; 8]);
}

/// NVRx: `test_propagate_reserve_backfill`. There the two stand-ins, processes 7
/// and 11, come in a dictionary's order: 11 first.
#[test]
fn a_tree_propagates_then_replaces_then_backfills() {
    let steps = tree(layer(None, 1, 0, "rb"), layer(Some("host"), 2, 3, "rb"));
    let mut job = Job::start(12, 4, &steps);
    assert_eq!(job.ranks, ranks("0 1 2 . 3 4 5 . 6 7 8 ."));
    assert_eq!(job.lose(&[0, 1, 2], &steps), ranks(". . . . 3 4 5 0 6 7 2 1"));
    assert_eq!(job.left_out, [(3, 0)]);
}

/// NVRx: the example of `Tree`, of 4 hosts with 8 each and at most 24 ranks.
#[test]
fn a_spare_host_stands_in_for_a_host() {
    let steps = tree(layer(None, 16, 24, "r"), layer(Some("host"), 8, 8, "r"));
    let mut job = Job::start(32, 8, &steps);
    let of = |job: &Job, host: usize| job.ranks[8 * host..8 * host + 8].to_vec();
    let from = |rank: u32| (rank..rank + 8).map(Some).collect::<Vec<_>>();
    job.lose(&[11], &steps);
    assert_eq!(of(&job, 0), from(0));
    assert_eq!(of(&job, 1), [None; 8], "the others of the host go with it");
    assert_eq!(of(&job, 2), from(16));
    assert_eq!(of(&job, 3), from(8));
    job.rejoin(&[11], &steps);
    assert_eq!(of(&job, 1), [None; 8], "the host is back, as a spare");
    job.lose(&[0], &steps);
    assert_eq!(of(&job, 1), from(0));
    job.lose(&[31], &steps);
    assert_eq!(of(&job, 1), from(0));
    assert_eq!(of(&job, 2), from(8), "nobody is left to stand in");
    job.lose(&[16], &steps);
    assert_eq!(job.ranks, [None; 32], "fewer than 16");
}

#[test]
fn newcomers_fill_a_tree_depth_first() {
    let steps = tree(layer(None, 1, 7, ""), layer(Some("host"), 1, 3, ""));
    let mut job = Job::start(9, 3, &steps);
    assert_eq!(job.ranks, ranks("0 1 2 3 4 5 6 . ."));
    assert_eq!(job.lose(&[1], &steps), ranks("0 . 1 2 3 4 5 6 ."), "a spare enters at the end");
    assert_eq!(job.rejoin(&[1], &steps), ranks("0 . 1 2 3 4 5 6 ."), "full");
    // Domains that are not adjacent are numbered together.
    let mut job = Job::start(6, 6, &[]);
    job.ranks = vec![None; 6];
    for process in 0..6 {
        let host = format!("h{}", process % 2);
        job.labels[process] = Labels::from([("host".to_owned(), host)]);
    }
    assert_eq!(job.iterate(&steps), ranks("0 3 1 4 2 5"));
}

#[test]
fn terms_that_changed_hold_for_the_root() {
    let mut job = Job::start(6, 3, &[]);
    let steps = tree(layer(None, 1, 4, "rb"), layer(Some("host"), 1, 0, "rb"));
    assert_eq!(job.lose(&[0], &steps), ranks(". 1 2 3 . 0"));
    assert_eq!(job.left_out, [(4, 0)]);
}

/// NVRx: its test `test_perf_reserve_backfill`.
#[test]
fn a_big_job_keeps_almost_all_ranks() {
    let layers = vec![layer(None, 1, 15_000, "rb"), layer(Some("host"), 8, 0, "rb")];
    let steps = [AssignmentStep::Tree { layers }];
    let mut job = Job::start(16_384, 8, &steps);
    let before = job.ranks.clone();
    let gone: Vec<usize> = (0..128).map(|n| n * 97).collect();
    let after = job.lose(&gone, &steps);
    let kept = before.iter().zip(&after).filter(|(a, b)| a.is_some() && a == b).count();
    let world = after.iter().flatten().count();
    assert_eq!(world, 15_000);
    assert_eq!(kept, 15_000 - 8 * gone.iter().filter(|p| before[**p].is_some()).count());
}

#[test]
fn steps_that_make_no_sense_are_refused_with_a_reason() {
    let tree = |layers: Vec<TreeLayer>| vec![AssignmentStep::Tree { layers }];
    let root = || layer(None, 0, 0, "");
    let long = "l".repeat(LABEL_BYTES_MAX + 1);
    for (steps, why) in [
        (vec![AssignmentStep::Shift; STEPS_MAX + 1], "17 assignment steps: give at most 16"),
        (
            vec![AssignmentStep::MaxActive { max: 0 }],
            "assignment step 0: max is 0: give at least 1, or leave out the step for no limit",
        ),
        (
            vec![AssignmentStep::Shift, AssignmentStep::DivisibleBy { divisor: 0 }],
            "assignment step 1: divisor is 0: give at least 1",
        ),
        (
            vec![grouped(3, 2)],
            "assignment step 0: min 3 is above max 2: lower it, or give max 0 for no limit",
        ),
        (
            vec![AssignmentStep::FilterGrouped { label: String::new(), min: 1, max: 0 }],
            "assignment step 0: the label is empty: name a label of the processes",
        ),
        (
            vec![AssignmentStep::FilterGrouped { label: long, min: 1, max: 0 }],
            "assignment step 0: a label of 129 bytes: give at most 128",
        ),
        (
            [vec![AssignmentStep::Shift], tree(vec![root()])].concat(),
            "assignment step 1: a tree builds on the ranks of the latest iteration: make it the \
             first step, and the only tree",
        ),
        (tree(Vec::new()), "assignment step 0: a tree without layers: give at least the root"),
        (tree(vec![root(); LAYERS_MAX + 1]), "assignment step 0: 9 layers: give at most 8"),
        (
            tree(vec![layer(Some("host"), 0, 0, "")]),
            "assignment step 0: the first layer is the root, which takes in everybody: leave out \
             its label, or put a layer without one before it",
        ),
        (
            tree(vec![root(), layer(Some("host"), 9, 8, "")]),
            "assignment step 0: layer 1: ranks_min 9 is above ranks_max 8: lower it, or give \
             ranks_max 0 for no limit",
        ),
    ] {
        assert_eq!(check(&steps), Err(why.to_owned()));
    }
    let good = [
        AssignmentStep::Tree { layers: vec![root(); LAYERS_MAX] },
        grouped(2, 0),
        grouped(0, 2),
        AssignmentStep::MaxActive { max: 1 },
        AssignmentStep::DivisibleBy { divisor: 1 },
        AssignmentStep::FillGaps,
    ];
    assert_eq!(check(&good), Ok(()));
    assert_eq!(check(&[]), Ok(()));
}
