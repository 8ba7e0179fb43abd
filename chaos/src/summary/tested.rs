//! Whether a workload was tested at all: a checker passes a history in which nothing
//! could be wrong.

use std::collections::HashSet;

use crate::operation::{Action, Answer, Operation};
use crate::workload::Workload;

/// Why a pass of this workload would prove nothing; none if it proves something.
/// `is_final` selects the clients that only read at the end.
pub fn untested(
    workload: Workload,
    operations: &[&Operation],
    is_final: impl Fn(&str) -> bool,
) -> Option<String> {
    let changes = operations.iter().filter(|it| is_change(it) && !is_final(&it.client));
    let Some(changed) = changes.map(|it| it.end()).min() else {
        let what = "no change by any of its clients was acknowledged";
        return Some(format!("workload {workload} was not tested: {what}"));
    };
    let seen = operations.iter().filter(|it| it.call > changed);
    let (is_fed, food) = match workload {
        Workload::Register
        | Workload::Transaction
        | Workload::Counter
        | Workload::Tcpstore
        | Workload::TcpstoreCounter => {
            (seen.into_iter().any(|it| is_read(it)), "no read was answered after a change")
        }
        Workload::Append | Workload::Set => {
            let is_list = |it: &&&Operation| matches!(it.answer(), Some(Answer::Elements(_)));
            (seen.filter(is_list).count() > 0, "no read of all elements was answered")
        }
        Workload::Queue => {
            let is_empty = |it: &&Operation| {
                it.action == Action::Pop && it.answer() == Some(&Answer::Value(None))
            };
            (seen.into_iter().any(is_empty), "no queue was seen empty after a push")
        }
        Workload::Session => (is_repeated(operations), "no number was answered twice"),
        Workload::Watch => {
            let is_delivery =
                |it: &&Operation| it.action == Action::Deliver && it.answer().is_some();
            let food = "no watch handed out anything; it takes two clients, of which one watches";
            (seen.into_iter().any(is_delivery), food)
        }
        Workload::Wait => {
            let is_woken = |it: &&Operation| it.action == Action::Wait && it.answer().is_some();
            let food = "nobody was woken; it takes two clients, of which one sets keys";
            (operations.iter().copied().any(|it| is_woken(&it)), food)
        }
        // Their calls are in histories of their own.
        Workload::Rounds
        | Workload::Advance
        | Workload::Vote
        | Workload::Block
        | Workload::Hold => (true, ""),
        Workload::Lease => (seen.into_iter().any(|it| shows_end(it)), "no lease was seen to end"),
        Workload::Fence => {
            let accepted = Some(&Answer::Accepted(true));
            (seen.into_iter().any(|it| it.answer() == accepted), "the file took no guarded write")
        }
    };
    (!is_fed).then(|| format!("workload {workload} was not tested: {food}"))
}

/// Whether it changed something and was acknowledged.
fn is_change(operation: &Operation) -> bool {
    match (&operation.action, operation.answer()) {
        (_, None) => false,
        (Action::CompareAndSet { .. }, Some(answer)) => {
            matches!(answer, Answer::Swapped { swapped: true, .. })
        }
        (action, Some(_)) => matches!(
            action,
            Action::Write { .. }
                | Action::WriteBelow { .. }
                | Action::Add { .. }
                | Action::Append { .. }
                | Action::Insert { .. }
                | Action::Push { .. }
                | Action::Resend { .. }
                | Action::Grant { .. }
                | Action::Acquire
        ),
    }
}

fn is_read(operation: &Operation) -> bool {
    operation.action == Action::Read && operation.answer().is_some()
}

/// Whether any number of a session was answered more than once.
fn is_repeated(operations: &[&Operation]) -> bool {
    let mut answered: HashSet<(&str, u64)> = HashSet::new();
    operations.iter().any(|operation| match (&operation.action, operation.answer()) {
        (Action::Resend { sequence }, Some(_)) => !answered.insert((&operation.key, *sequence)),
        _ => false,
    })
}

/// Whether it shows that a lease has ended.
fn shows_end(operation: &Operation) -> bool {
    match operation.answer() {
        Some(Answer::Alive(alive)) => !alive,
        Some(Answer::Processes(all)) => all.iter().any(|process| process.ended.is_some()),
        _ => false,
    }
}
