//! How long a generation is known as a scope: for a number of closings, whether or not
//! they were acknowledged. And how long the members of a quorum are.

use holdfast_api::*;
use holdfast_machine::{FEATURE_LEVEL, Machine};

use crate::restored;

/// What the host of all processes chose for its lease.
const GRANT: Nonce = Nonce(1, 1);

fn first_lease() -> LeaseId {
    SecretId::of(GRANT, 1)
}

/// One process, alone in its job.
struct Alone {
    machine: Machine,
    call: u64,
}

impl Alone {
    fn new() -> Alone {
        let mut alone = Alone { machine: Machine::new(), call: 0 };
        alone.tell(Command::Cluster(ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL }));
        alone.tell(Command::Lease(LeaseCommand::Grant {
            scope: Scope::default(),
            nonce: GRANT,
            host: "host".to_owned(),
            ttl_ms: 60_000,
            store_lost_ms_max: None,
        }));
        alone.tell(Command::Process(ProcessCommand::Register {
            lease: first_lease(),
            process: Some(0),
            nonce: Nonce(2, 2),
            replaces: 0,
            takeover: false,
            role: Role::Active,
            labels: Labels::new(),
            policy: Box::default(),
        }));
        alone
    }

    fn tell(&mut self, command: Command) -> Outcome {
        let commands = vec![Proposal { session: None, command }];
        self.machine.apply(&Entry { time: 0, commands }).answers.remove(0).outcome
    }

    /// Acknowledges all calls before.
    fn arrive(&mut self, round: &str, among: Among, conclusion: Conclusion) -> ArrivalAnswer {
        self.arrive_with(round, Terms { among, conclusion, ..Terms::default() })
    }

    fn meets_quorum(&mut self, round: &str, among: Among) -> ArrivalAnswer {
        let rule = Rule::Quorum { min: 1, max: 1, settle_ms: 0 };
        self.arrive_with(round, Terms { among, rule, ..Terms::default() })
    }

    fn arrive_with(&mut self, round: &str, terms: Terms) -> ArrivalAnswer {
        self.call += 1;
        let (call, payload) = (self.call, "succeeded".into());
        let arrival = Arrival { process: 0, incarnation: 1, call, ack: call, payload, holds: 0 };
        let terms = Box::new(terms);
        let arrivals = vec![arrival];
        let arrive =
            RoundCommand::Arrive { lease: first_lease(), round: round.into(), terms, arrivals };
        match self.tell(Command::Round(arrive)) {
            Outcome::Round(RoundOutcome::Arrived(answers)) => answers[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    fn closes(&mut self, conclusion: Conclusion) -> Generation {
        match self.arrive("round", Among::Active, conclusion) {
            ArrivalAnswer::Waiting { generation } => generation,
            other => panic!("{other:?}"),
        }
    }

    /// Whether a vote among it is possible.
    fn is_known(&self, generation: Generation) -> bool {
        let mut alone = Alone { machine: restored(&self.machine), call: self.call };
        let vote = Conclusion::Vote(VoteRule::And);
        match alone.arrive("vote", Among::Generation(generation), vote) {
            ArrivalAnswer::Waiting { .. } => true,
            ArrivalAnswer::Refused(Refusal::GenerationUnknown { generation: unknown }) => {
                assert_eq!(unknown, generation);
                false
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_generation_is_known_for_64_closings_of_its_kind() {
    let mut alone = Alone::new();
    let first = alone.closes(Conclusion::Roll);
    for _ in 0..63 {
        alone.closes(Conclusion::Roll);
    }
    assert!(alone.is_known(first));
    alone.closes(Conclusion::Vote(VoteRule::And));
    assert!(!alone.is_known(first));
}

#[test]
fn rounds_between_advances_do_not_make_an_iteration_unknown() {
    let mut alone = Alone::new();
    let first = alone.closes(Conclusion::Advance);
    let roll = alone.closes(Conclusion::Roll);
    // Each advance ends its part in what closed before.
    let scope = |machine: &Alone, generation| {
        let mut alone = Alone { machine: restored(&machine.machine), call: machine.call };
        alone.arrive("vote", Among::Generation(generation), Conclusion::Vote(VoteRule::And))
    };
    let is_unknown = |answer: &ArrivalAnswer| {
        matches!(answer, ArrivalAnswer::Refused(Refusal::GenerationUnknown { .. }))
    };
    for _ in 0..200 {
        alone.closes(Conclusion::Roll);
    }
    assert!(alone.is_known(first) && !alone.is_known(roll));
    let latest = alone.closes(Conclusion::Roll);
    for _ in 0..63 {
        alone.closes(Conclusion::Advance);
    }
    for generation in [first, latest] {
        let answer = scope(&alone, generation);
        let over = matches!(answer, ArrivalAnswer::Refused(Refusal::PartOver { .. }));
        assert!(over, "{answer:?}");
    }
    alone.closes(Conclusion::Advance);
    assert!(is_unknown(&scope(&alone, first)));
    assert!(!is_unknown(&scope(&alone, latest)));
}

/// The exit of a block is possible however much has closed since, up to 256 blocks that
/// no process has left.
#[test]
fn a_block_is_known_until_it_is_left() {
    let mut alone = Alone::new();
    let enter = |alone: &mut Alone, name: &str| match alone.arrive(
        name,
        Among::Active,
        Conclusion::Block,
    ) {
        ArrivalAnswer::Waiting { generation } => generation,
        other => panic!("{other:?}"),
    };
    let block = enter(&mut alone, "block");
    for _ in 0..500 {
        alone.closes(Conclusion::Roll);
    }
    let other = enter(&mut alone, "other");
    let left = alone.arrive("block", Among::Generation(block), Conclusion::Exit);
    assert!(matches!(left, ArrivalAnswer::Waiting { .. }), "{left:?}");
    // Left once, and again: it still gets the verdict.
    let again = alone.arrive("block", Among::Generation(block), Conclusion::Exit);
    assert!(!matches!(again, ArrivalAnswer::Refused(_)), "{again:?}");
    for n in 0..256 {
        enter(&mut alone, &format!("block {n}"));
    }
    let forgotten = alone.arrive("other", Among::Generation(other), Conclusion::Exit);
    let unknown = Refusal::GenerationUnknown { generation: other };
    assert_eq!(forgotten, ArrivalAnswer::Refused(unknown));
}

/// The members of a quorum among a generation are kept as long as a round can be among it: a
/// quorum in each iteration has room for ever, and one with a name of its own for each has not.
#[test]
fn a_quorum_is_known_while_a_later_one_is_possible() {
    let mut alone = Alone::new();
    let mut limits = Limits::default();
    limits.coordination.quorums_per_run_max = 80;
    alone.tell(Command::Cluster(ClusterCommand::SetLimits { limits }));
    for _ in 0..200 {
        let generation = alone.closes(Conclusion::Advance);
        let among = Among::Generation(generation);
        let answer = alone.meets_quorum("quorum", among);
        assert!(matches!(answer, ArrivalAnswer::Waiting { .. }), "{answer:?}");
    }
    let refused =
        (0..80).find_map(|n| match alone.meets_quorum(&format!("step {n}"), Among::Active) {
            ArrivalAnswer::Waiting { .. } => None,
            other => Some((n, other)),
        });
    let (names, refused) = refused.expect("the limit is reached");
    assert_eq!(names, 80 - 64, "the latest iterations are still known");
    let ArrivalAnswer::Refused(Refusal::RunFull { what, limit, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((&*what, limit), ("quorums_per_run_max", 80));
}
