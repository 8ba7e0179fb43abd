//! Commands under everything that can happen to them.

use super::*;

/// What can happen to a client.
#[derive(Debug, Clone)]
enum Happening {
    Propose,
    /// Too large to go with others.
    ProposeLarge,
    /// The next connection is to a node that knows of pipelines, or not.
    Link {
        pipelines: bool,
    },
    /// A frame goes out and the node takes in this share of it, in percent;
    /// the rest is lost with the connection, if `lose` says so, or is turned away
    /// and has no effect.
    Frame {
        taken: usize,
        lose: bool,
    },
    /// The oldest answers arrive.
    Answers(usize),
    /// One command on the wire is turned away without effect.
    TurnAway(usize),
    GiveUp(usize),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        6 => Just(Happening::Propose),
        1 => Just(Happening::ProposeLarge),
        1 => prop::bool::ANY.prop_map(|pipelines| Happening::Link { pipelines }),
        3 => (0_usize..=100, prop::bool::weighted(0.2))
            .prop_map(|(taken, lose)| Happening::Frame { taken, lose }),
        3 => (1_usize..4).prop_map(Happening::Answers),
        1 => (0_usize..50).prop_map(Happening::TurnAway),
        1 => (0_usize..50).prop_map(Happening::GiveUp),
    ];
    prop::collection::vec(one, 0..120)
}

/// A minimal model of the session table.
#[derive(Default)]
struct Table {
    ack: u64,
    answers: BTreeMap<u64, Vec<i64>>,
    /// How often each command was applied.
    applied: BTreeMap<i64, u32>,
}

impl Table {
    fn apply(&mut self, at: SessionRef, numbers: Vec<i64>, window: u64) -> ReplyBody {
        self.ack = self.ack.max(at.ack);
        self.answers = self.answers.split_off(&self.ack);
        if at.sequence < self.ack {
            let refusal = Refusal::Stale { session: at.id, sequence: at.sequence, ack: self.ack };
            return refused(refusal);
        }
        assert!(at.sequence < self.ack + window, "outside of the window: {at:?}");
        let replayed = self.answers.contains_key(&at.sequence);
        let kept = self.answers.entry(at.sequence).or_insert_with(|| numbers.clone());
        assert_eq!(*kept, numbers, "sequence {} was used for two commands", at.sequence);
        if !replayed {
            for n in &numbers {
                *self.applied.entry(*n).or_default() += 1;
            }
        }
        let added = |n: &i64| KvOutcome::Added { value: *n };
        let outcome = match &numbers[..] {
            [n] => Outcome::Kv(added(n)),
            several => {
                let one = |n| Pipelined { revision: 5, outcome: PipelinedOutcome::Kv(added(n)) };
                Outcome::Pipeline(several.iter().map(one).collect())
            }
        };
        answer(outcome, replayed)
    }
}

/// What the additions of a command add, each another number.
fn command_of(request: &Request) -> Option<(SessionRef, Vec<i64>)> {
    let RequestBody::Propose(Proposal { session: Some(reference), command }) = &request.body else {
        return None;
    };
    let delta = |op: &KvOp| match op {
        KvOp::Add { delta, .. } => *delta,
        other => panic!("nobody asked for {other:?}"),
    };
    let deltas = match command {
        Command::Kv { op, .. } => vec![delta(op)],
        Command::Pipeline { ops, .. } => ops.iter().map(delta).collect(),
        _ => return None,
    };
    Some((*reference, deltas))
}

proptest! {
    /// With any losses, refusals and cancellations: a command is applied at most
    /// once, one that was answered exactly once, and its answer is its own.
    #[test]
    fn commands_are_applied_exactly_once(
        happenings in happenings(),
        window in 1_u64..6,
        linked in prop::bool::ANY,
    ) {
        let mut bench = Bench::with_session(window);
        if linked {
            bench.calls.linked(MINOR, PIPELINE_LEVEL);
        }
        let mut table = Table::default();
        let mut open: Vec<(i64, Open<Answer>)> = Vec::new();
        let mut answers: Vec<Reply> = Vec::new();
        let mut turned_away: Vec<u64> = Vec::new();
        let mut proposed = 0;
        let settle = Happening::Frame { taken: 100, lose: false };
        let ending = (0..200).flat_map(|_| [settle.clone(), Happening::Answers(usize::MAX)]);
        for happening in happenings.into_iter().chain(ending) {
            match happening {
                Happening::Propose => {
                    proposed += 1;
                    let call = bench.propose(proposed);
                    open.push((proposed, call));
                }
                Happening::ProposeLarge => {
                    proposed += 1;
                    let call = bench.propose_large(proposed);
                    open.push((proposed, call));
                }
                Happening::Link { pipelines } => {
                    bench.calls.link_lost("gone");
                    answers.clear();
                    let level = if pipelines { PIPELINE_LEVEL } else { 0 };
                    bench.calls.linked(MINOR, level);
                }
                Happening::Frame { taken, lose } => {
                    bench.pass(SECOND);
                    let frame = bench.sent();
                    let taken = (frame.len() * taken).div_ceil(100);
                    for request in &frame[..taken] {
                        if let Some((reference, numbers)) = command_of(request) {
                            let body = table.apply(reference, numbers, window);
                            answers.push(Reply { id: request.id, body });
                        }
                    }
                    for request in frame[taken..].iter().filter(|_| !lose) {
                        let busy = Problem::retryable(Code::Overloaded, "busy");
                        bench.problem(request.id, busy);
                    }
                    if lose {
                        bench.calls.link_lost("gone");
                        answers.clear();
                    }
                }
                Happening::Answers(count) => {
                    for reply in answers.drain(..count.min(answers.len())) {
                        if turned_away.contains(&reply.id) {
                            continue;
                        }
                        bench.reply(reply.id, reply.body);
                    }
                }
                Happening::TurnAway(pick) if !answers.is_empty() => {
                    let id = answers[pick % answers.len()].id;
                    turned_away.push(id);
                    bench.problem(id, Problem::unknown(Code::Unavailable, "leadership lost"));
                }
                Happening::GiveUp(pick) if !open.is_empty() => {
                    let (_, call) = open.remove(pick % open.len());
                    bench.calls.abandon(call.id);
                }
                Happening::TurnAway(_) | Happening::GiveUp(_) => {}
            }
        }
        for (n, call) in open {
            let answer = call.now().unwrap();
            prop_assert_eq!(answer.outcome, Outcome::Kv(KvOutcome::Added { value: n }));
            prop_assert_eq!(table.applied.get(&n), Some(&1));
        }
        prop_assert!(table.applied.values().all(|times| *times == 1));
        prop_assert!(bench.calls.open.is_empty() && bench.calls.on_wire.is_empty());
        prop_assert!(bench.calls.queues.small.is_idle() && bench.calls.queues.reads.is_idle());
    }
}
