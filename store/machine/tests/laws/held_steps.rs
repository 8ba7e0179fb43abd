//! Random steps of held rounds: their terms, the generations that arrivals name, releases
//! and revocations.

use holdfast_api::*;
use holdfast_machine::Machine;
use proptest::prelude::*;

use super::coordination_steps::scope;

/// A step on a held generation, before that generation is chosen.
#[derive(Debug, Clone)]
pub enum HeldStep {
    Release { round: usize, member: usize, generation: Which, why: ReleaseWhy },
    Revoke { round: usize, member: Option<usize>, generation: Which },
}

/// Which generation of a round is meant.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    Latest,
    Older,
    Unknown,
    /// Generation 0: in a release all that the process holds, elsewhere none.
    Zero,
}

pub fn step() -> impl Strategy<Value = HeldStep> {
    let why = prop_oneof![
        3 => Just(ReleaseWhy::Stopped),
        2 => Just(ReleaseWhy::Exited),
        1 => Just(ReleaseWhy::Excused),
    ];
    prop_oneof![
        5 => (0usize..8, 0usize..4, which(), why).prop_map(|(round, member, generation, why)| {
            HeldStep::Release { round, member, generation, why }
        }),
        1 => (0usize..8, proptest::option::of(0usize..4), which()).prop_map(
            |(round, member, generation)| HeldStep::Revoke { round, member, generation }
        ),
    ]
}

pub fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        8 => Just(Which::Latest),
        1 => Just(Which::Older),
        1 => Just(Which::Unknown),
        3 => Just(Which::Zero),
    ]
}

impl Which {
    fn of(self, latest: Generation) -> Generation {
        match self {
            Which::Latest => latest,
            Which::Older => latest.saturating_sub(1),
            Which::Unknown => 1_000_000,
            Which::Zero => 0,
        }
    }
}

/// Every held round of the job.
pub fn held(machine: &Machine) -> Vec<HeldInfo> {
    let read = Read::Held { scope: scope(), round: None, brief: false };
    match machine.read(&read).outcome {
        ReadOutcome::Held(held) => held,
        _ => Vec::new(),
    }
}

/// The generation that an arrival at a round reports as held.
pub fn named(machine: &Machine, round: &Blob, which: Which) -> Generation {
    let latest = held(machine).into_iter().find(|info| info.round == *round);
    which.of(latest.map_or(0, |info| info.generation))
}

pub fn resolve(machine: &Machine, step: &HeldStep) -> RoundCommand {
    let all = held(machine);
    let pick = |round: usize| all.get(round % all.len().max(1));
    let latest = |round: usize| pick(round).map_or(0, |info| info.generation);
    let member = |round: usize, member: usize| {
        let members = pick(round).map(|info| info.members.iter().collect::<Vec<_>>());
        let members = members.unwrap_or_default();
        let found = members.get(member % members.len().max(1));
        found.copied().unwrap_or((0, 1))
    };
    match step {
        HeldStep::Release { round, member: which, generation, why } => {
            let (process, incarnation) = member(*round, *which);
            let generation = generation.of(latest(*round));
            let releases = vec![Release { process, incarnation, generation }];
            RoundCommand::Release { scope: scope(), releases, why: *why }
        }
        HeldStep::Revoke { round, member: which, generation } => {
            let by = which.map(|which| {
                let (process, incarnation) = member(*round, which);
                Member { process, incarnation }
            });
            let generation = generation.of(latest(*round));
            RoundCommand::Revoke { scope: scope(), generation, by, reason: "it fails".to_owned() }
        }
    }
}

/// Names of rounds that are held, or among a generation that is.
pub const HELD_ROUNDS: [&str; 11] = [
    "group", "group", "group/2", "team", "team", "held-go", "lock", "lock", "ready", "ready",
    "close",
];

/// Their terms; none if it is no such round.
pub fn terms(machine: &Machine, name: &str) -> Option<Terms> {
    let hold = |spec: &str, form_ms_max| {
        Some(Hold { spec: Blob::from(spec), stop_ms_max: 700, form_ms_max })
    };
    let deadline = |then| Some(Deadline { after_ms: 500, then });
    let fail = deadline(AtDeadline::Fail);
    let plain = Terms::default();
    let form = Terms { conclusion: Conclusion::Form, ..plain.clone() };
    Some(match name {
        "group" => Terms { hold: hold("a", 0), deadline: fail, ..form },
        "group/2" => Terms { hold: hold("b", 0), deadline: fail, ..form },
        "team" => {
            let rule = Rule::Quorum { min: 1, max: 3, settle_ms: 0 };
            Terms { hold: hold("", 1_200), deadline: fail, rule, ..form }
        }
        "held-go" => {
            let deadline = deadline(AtDeadline::Evict);
            Terms { hold: hold("", 0), deadline, conclusion: Conclusion::Advance, ..plain }
        }
        "lock" => {
            let rule = Rule::Quorum { min: 1, max: 1, settle_ms: 0 };
            Terms { hold: hold("", 0), rule, ..form }
        }
        "ready" | "close" => {
            let conclusion = if name == "ready" { Conclusion::Ready } else { Conclusion::Close };
            // Of what is being built, or of whatever else there is.
            let rank = |info: &HeldInfo| (info.phase == Phase::Forming, info.generation);
            let latest = held(machine).into_iter().max_by_key(rank);
            let among = Among::Generation(latest.map_or(1, |info| info.generation));
            Terms { conclusion, among, require_all: true, ..plain }
        }
        _ => return None,
    })
}
