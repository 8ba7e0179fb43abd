//! The exact checker against trying every order, and against the checker of
//! another project, over the same random histories. The other project's checker has
//! a model of a key of its own, [`Key`].

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use super::by_hand::{add, cas, ok, read, some, unknown, write};
use super::exact::{CONFIGURATIONS_MAX, Searched, search};
use super::model;
use crate::operation::{Action, Answer, Operation, Outcome};

/// Random histories that are compared.
const HISTORIES: u64 = 4_000;
/// Histories of a key that works, which are compared also with one false answer.
const RECORDINGS: u64 = 500;
/// Calls in one of them.
const CALLS: usize = 8;
/// Its clients.
const CLIENTS: usize = 3;

/// The kinds of calls in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// Texts are written and swapped.
    Texts,
    /// Numbers are written and added to.
    Numbers,
}

/// The values of a key, the first of which is none.
fn values(calls: Calls) -> [&'static str; 3] {
    match calls {
        Calls::Texts => ["", "a", "b"],
        Calls::Numbers => ["", "1", "2"],
    }
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
    let values = values(calls);
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

/// What a client asks for.
fn asked(calls: Calls, random: &mut StdRng, own: &str, other: String) -> Action {
    match random.random_range(0..8_u32) {
        0..2 => Action::Read,
        2 => Action::Check,
        3 => Action::Delete,
        4 => Action::CompareAndSet { expected: other, value: own.to_owned() },
        5 if calls == Calls::Numbers => Action::Add { delta: random.random_range(1..3_i64) },
        _ => Action::Write { value: own.to_owned() },
    }
}

/// The calls of a few clients on a key that works: each takes effect at a moment between
/// its call and its answer. One that is lost takes effect later, or never.
fn recorded(calls: Calls, seed: u64) -> Vec<Operation> {
    let values = values(calls);
    let mut random = StdRng::seed_from_u64(seed);
    let mut free = [0_u64; CLIENTS];
    let (mut effects, mut operations) = (Vec::new(), Vec::new());
    for n in 0..CALLS {
        let client = random.random_range(0..CLIENTS);
        let call = free[client] + random.random_range(0..3_u64);
        let returned = call + random.random_range(0..8_u64);
        free[client] = returned + 1;
        let other = values[random.random_range(0..3_usize)].to_owned();
        let action = asked(calls, &mut random, values[1 + (n & 1)], other);
        let is_lost = random.random_range(0..6_u32) == 0;
        let late = if is_lost { random.random_range(0..20_u64) } else { 0 };
        if !is_lost || random.random() {
            effects.push((random.random_range(call..=returned) + late, n));
        }
        let operation = match is_lost {
            true => unknown(call, action),
            false => ok(call, returned, action, Answer::Done),
        };
        operations.push(Operation { client: client.to_string(), ..operation });
    }
    effects.sort_unstable();
    let mut key = Key::default();
    for (_, n) in effects {
        let operation = &mut operations[n];
        let answer = key.invoke(&operation.action);
        if !operation.is_unknown() {
            operation.outcome = Outcome::Ok { answer, revision: None };
        }
    }
    operations.sort_by_key(|operation| operation.call);
    operations
}

/// The same history with one false answer; none if it has none that can be false.
fn falsified(operations: &[Operation], calls: Calls, seed: u64) -> Option<Vec<Operation>> {
    let mut random = StdRng::seed_from_u64(seed);
    let value = values(calls)[random.random_range(0..3_usize)];
    let lie = |answer: &Answer| match answer {
        Answer::Value(now) => {
            Answer::Value(some(value).filter(|other| now.as_ref() != Some(other)))
        }
        Answer::Existed(existed) => Answer::Existed(!existed),
        Answer::Exists(exists) => Answer::Exists(!exists),
        Answer::Sum(sum) => Answer::Sum(sum + 1),
        Answer::Swapped { swapped, value } => {
            Answer::Swapped { swapped: !swapped, value: value.clone() }
        }
        other => other.clone(),
    };
    let lies = operations.iter().enumerate().filter_map(|(n, operation)| {
        let answer = operation.answer()?;
        let told = lie(answer);
        (told != *answer).then_some((n, told))
    });
    let mut lies: Vec<(usize, Answer)> = lies.collect();
    if lies.is_empty() {
        return None;
    }
    let (n, answer) = lies.swap_remove(random.random_range(0..lies.len()));
    let mut told = operations.to_vec();
    told[n].outcome = Outcome::Ok { answer, revision: None };
    Some(told)
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

/// A key, for the other checker: written from what [`Action`] promises, and apart from
/// [`model`].
#[derive(Clone, Debug, Default, PartialEq)]
struct Key {
    value: Option<String>,
}

impl SequentialSpec for Key {
    type Op = Action;
    type Ret = Answer;

    fn invoke(&mut self, action: &Action) -> Answer {
        match action {
            Action::Read => Answer::Value(self.value.clone()),
            Action::Check | Action::Wait => Answer::Exists(self.value.is_some()),
            Action::Write { value } => {
                self.value = Some(value.clone());
                Answer::Done
            }
            Action::Delete => Answer::Existed(self.value.take().is_some()),
            Action::Add { delta } => {
                let number = |text: &String| text.parse::<i64>().expect("only numbers are written");
                let sum = self.value.as_ref().map_or(0, number) + delta;
                self.value = Some(sum.to_string());
                Answer::Sum(sum)
            }
            Action::CompareAndSet { expected, value } => {
                // No value is empty: an empty expectation is that of no value.
                let expected = Some(expected).filter(|text| !text.is_empty());
                let swapped = self.value.as_ref() == expected;
                if swapped {
                    self.value = Some(value.clone());
                }
                Answer::Swapped { swapped, value: self.value.clone() }
            }
            other => panic!("no call of these histories: {other}"),
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

/// What all three checkers say of a history: whether it is linearizable.
fn agreed(operations: &[Operation]) -> bool {
    let all: Vec<&Operation> = operations.iter().collect();
    let ours = search(&all, CONFIGURATIONS_MAX) == Searched::Linearizable;
    assert_eq!(ours, by_brute_force(&all, &None), "{operations:#?}");
    assert_eq!(ours, by_the_other(operations), "{operations:#?}");
    ours
}

#[test]
fn three_checkers_agree_on_small_histories() {
    for calls in [Calls::Texts, Calls::Numbers] {
        let (mut right, mut wrong) = (0, 0);
        for seed in 0..HISTORIES {
            if agreed(&history(calls, seed)) { right += 1 } else { wrong += 1 }
        }
        assert!(right > HISTORIES / 10 && wrong > HISTORIES / 10, "{right} right, {wrong} wrong");
    }
}

#[test]
fn three_checkers_accept_a_key_that_works_and_agree_on_one_false_answer() {
    for calls in [Calls::Texts, Calls::Numbers] {
        let mut wrong = 0;
        for seed in 0..RECORDINGS {
            let operations = recorded(calls, seed);
            assert!(agreed(&operations), "{calls:?} {seed}: {operations:#?}");
            let falsified = falsified(&operations, calls, seed);
            wrong += u64::from(falsified.is_some_and(|told| !agreed(&told)));
        }
        assert!(wrong > RECORDINGS / 10, "{calls:?}: {wrong} wrong");
    }
}
