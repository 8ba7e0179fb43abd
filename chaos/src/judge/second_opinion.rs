//! The exact checker against trying every order, and against the checker of
//! another project, over the same random histories.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use super::by_hand::{add, cas, ok, read, unknown, write};
use super::exact::{CONFIGURATIONS_MAX, Searched, search};
use super::model;
use crate::operation::{Action, Answer, Operation, Outcome};

/// Random histories that are compared.
const HISTORIES: u64 = 4_000;

/// The kinds of calls in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// Texts are written and swapped.
    Texts,
    /// Numbers are written and added to.
    Numbers,
}

/// A call of unknown outcome.
fn lost(calls: Calls, random: &mut StdRng, own: &str, other: String) -> Action {
    match (calls, random.random_range(0..7_u32)) {
        (_, 0..2) => Action::Write { value: own.to_owned() },
        (_, 2) => Action::Delete,
        (Calls::Numbers, _) => Action::Add { delta: random.random_range(1..3_i64) },
        (_, 3) => Action::Read,
        (_, 4) => Action::Check,
        (Calls::Texts, _) => Action::CompareAndSet { expected: other, value: own.to_owned() },
    }
}

/// A few calls of a few clients, many of unknown outcome, with answers of which some are wrong.
fn history(calls: Calls, seed: u64) -> Vec<Operation> {
    let values = if calls == Calls::Texts { ["", "a", "b"] } else { ["", "1", "2"] };
    let mut random = StdRng::seed_from_u64(seed);
    let clients = random.random_range(1..4_usize);
    let mut free = vec![0_u64; clients];
    let mut operations = Vec::new();
    for n in 0..random.random_range(1..8_usize) {
        let client = random.random_range(0..clients);
        let call = free[client] + random.random_range(1..4_u64);
        let returned = call + random.random_range(0..6_u64);
        free[client] = returned + 1;
        let value = |random: &mut StdRng| values[random.random_range(0..3_usize)].to_owned();
        let own = values[1 + (n & 1)];
        let operation = match random.random_range(0..13_u32) {
            0..3 => read(call, returned, &value(&mut random)),
            3..5 => write(call, returned, own),
            5 => {
                let (from, to) = (value(&mut random), own);
                let now = if random.random() { to.to_owned() } else { value(&mut random) };
                let now = if from == to { to.to_owned() } else { now };
                cas(call, returned, &from, to, &now)
            }
            6 if calls == Calls::Numbers => add(call, returned, random.random_range(1..6)),
            6 => ok(call, returned, Action::Delete, Answer::Existed(random.random())),
            7 => ok(call, returned, Action::Check, Answer::Exists(random.random())),
            8 => ok(call, returned, Action::Wait, Answer::Exists(true)),
            _ => {
                // The client makes no more calls.
                free[client] = 1_000 * (n as u64 + 1);
                {
                    let other = value(&mut random);
                    unknown(call, lost(calls, &mut random, own, other))
                }
            }
        };
        operations.push(Operation { client: client.to_string(), ..operation });
    }
    operations.sort_by_key(|operation| operation.call);
    operations
}

/// Whether any order of the calls that are left explains all answers.
fn by_brute_force(left: &[&Operation], value: &model::Value) -> bool {
    if left.iter().all(|operation| operation.is_unknown()) {
        return true;
    }
    (0..left.len()).any(|n| {
        let next = left[n];
        let rest: Vec<&Operation> =
            left.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, it)| *it).collect();
        let is_known = |it: &Operation| !it.is_unknown();
        let keeps_order = |other: &Operation| {
            let is_earlier = other.client == next.client && other.call < next.call;
            !(is_earlier && is_known(other) && is_known(next))
        };
        let first = rest.iter().all(|other| !other.is_before(next) && keeps_order(other));
        let step = model::step(value, &next.action, next.answer());
        first && step.is_some_and(|value| by_brute_force(&rest, &value))
    })
}

/// The model in the terms of the other checker.
#[derive(Clone, Debug, Default, PartialEq)]
struct Key(model::Value);

impl SequentialSpec for Key {
    type Op = Action;
    type Ret = Answer;

    fn invoke(&mut self, action: &Action) -> Answer {
        let before = self.0.clone();
        self.0 = model::step(&before, action, None).expect("an action of a key");
        match action {
            Action::Read => Answer::Value(before.as_deref().map(str::to_owned)),
            Action::Delete => Answer::Existed(before.is_some()),
            Action::Check | Action::Wait => Answer::Exists(before.is_some()),
            Action::Add { .. } => {
                let sum = self.0.as_deref().and_then(|sum| sum.parse().ok());
                Answer::Sum(sum.expect("only numbers are written"))
            }
            Action::CompareAndSet { expected, .. } => Answer::Swapped {
                swapped: before.as_deref().unwrap_or_default() == expected,
                value: self.0.as_deref().map(str::to_owned),
            },
            _ => Answer::Done,
        }
    }
}

fn by_the_other(operations: &[Operation]) -> bool {
    // Calls go before returns of the same moment: these overlap.
    let mut events: Vec<(u64, u8, usize)> = Vec::new();
    for (n, operation) in operations.iter().enumerate() {
        events.push((operation.call, 0, n));
        if let (Some(returned), Outcome::Ok { .. }) = (operation.returned, &operation.outcome) {
            events.push((returned, 1, n));
        }
    }
    events.sort_unstable();
    let mut tester = LinearizabilityTester::new(Key::default());
    for (_, kind, n) in events {
        let operation = &operations[n];
        // A client whose call never returned goes on as another one.
        let done = if kind == 0 {
            tester.on_invoke(n, operation.action.clone()).map(|_| ())
        } else {
            let answer = operation.answer().expect("it has returned").clone();
            tester.on_return(n, answer).map(|_| ())
        };
        done.expect("calls and returns take turns");
    }
    tester.is_consistent()
}

/// The same history, in which some calls are made before the one before them of the
/// same client has returned.
fn pipelined(operations: &mut [Operation], seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for operation in operations.iter_mut().filter(|it| !it.is_unknown()) {
        if random.random() {
            operation.returned = Some(operation.end() + random.random_range(1..9_u64) * 1_000_000);
        }
    }
}

#[test]
fn calls_of_one_client_keep_their_order_though_they_overlap() {
    let (mut right, mut wrong, mut by_order_alone) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let mut operations = history(Calls::Texts, seed);
        pipelined(&mut operations, seed);
        let all: Vec<&Operation> = operations.iter().collect();
        let ours = search(&all, CONFIGURATIONS_MAX) == Searched::Linearizable;
        assert_eq!(ours, by_brute_force(&all, &None), "{seed}: {operations:#?}");
        if ours {
            right += 1
        } else {
            wrong += 1
        }
        by_order_alone += u64::from(!ours && by_the_other(&operations));
    }
    assert!(right > HISTORIES / 10 && wrong > HISTORIES / 10, "{right} right, {wrong} wrong");
    assert!(by_order_alone > HISTORIES / 100, "{by_order_alone}");
}

#[test]
fn three_checkers_agree_on_small_histories() {
    for calls in [Calls::Texts, Calls::Numbers] {
        let (mut right, mut wrong) = (0, 0);
        for seed in 0..HISTORIES {
            let operations = history(calls, seed);
            let all: Vec<&Operation> = operations.iter().collect();
            let ours = search(&all, CONFIGURATIONS_MAX);
            let ours = ours == Searched::Linearizable;
            assert_eq!(ours, by_brute_force(&all, &None), "{calls:?} {seed}: {operations:#?}");
            assert_eq!(ours, by_the_other(&operations), "{calls:?} {seed}: {operations:#?}");
            if ours { right += 1 } else { wrong += 1 }
        }
        assert!(right > HISTORIES / 10 && wrong > HISTORIES / 10, "{right} right, {wrong} wrong");
    }
}
