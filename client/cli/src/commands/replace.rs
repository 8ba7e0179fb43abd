//! `node replace`: a new node in the place of one that is gone. Each step is
//! taken only if the cluster shows that it is still needed, so that the same
//! command goes on where an earlier one stopped.

use std::io::{self, Write};
use std::time::Duration;

use holdfast_api::{Admin, Code, NodeId, NodeRole, NodeStatus, Problem, Status};
use holdfast_client::Error;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{Context, status};
use crate::exit::Failure;
use crate::output::Document;

/// Pause between two tries to give the new node its vote.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// How often the wait for the new node is explained.
const EXPLAIN_EVERY: Duration = Duration::from_secs(5);

/// A new node whose log does not grow for this long is not waited for. A whole
/// snapshot may have to be sent in that time.
const STALL_TIME_MAX: Duration = Duration::from_secs(600);

/// A new node that does not answer for this long is not waited for.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(30);

/// What is still to be done.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// Where the new node is to be added, if it is no member yet.
    add: Option<String>,
    promote: bool,
    remove: bool,
}

/// Replaces `old` by `new`, which runs and waits at `address`; where `old` was,
/// if none is given.
pub(crate) async fn run(
    context: &Context,
    old: NodeId,
    new: NodeId,
    address: Option<String>,
    force: bool,
) -> Result<(), Failure> {
    let status = status::ask(context).await?;
    let plan = plan(&status, old, new, address).map_err(Failure::refused)?;
    if !force {
        is_gone(&status, old, new).map_err(Failure::refused)?;
    }
    let done = carry_out(context, &plan, old, new).await;
    if done.is_err() && plan.add.is_none() {
        context.talk("the same command goes on where this one stopped");
    }
    done?;
    context.emit(&Replaced { node: new, replaced: old })?;
    if plan.remove {
        context.talk(format!("node {old} is out for ever; its id is never used again"));
    } else {
        context.talk(format!("node {old} was out already, and node {new} votes"));
    }
    Ok(())
}

async fn carry_out(
    context: &Context,
    plan: &Plan,
    old: NodeId,
    new: NodeId,
) -> Result<(), Failure> {
    if let Some(address) = plan.add.clone() {
        let add = Admin::AddNode { node: new, address };
        context.client.admin(add, context.deadline()).await?;
        context.talk(format!("node {new} is a learner and catches up"));
    }
    if plan.promote {
        promote(context, new).await?;
        context.talk(format!("node {new} votes"));
    }
    if plan.remove {
        context.client.admin(Admin::RemoveNode { node: old }, context.deadline()).await?;
    }
    Ok(())
}

/// What is to be done, or why nothing is.
fn plan(
    status: &Status,
    old: NodeId,
    new: NodeId,
    address: Option<String>,
) -> Result<Plan, Problem> {
    let find = |id: NodeId| status.nodes.iter().find(|node| node.id == id);
    let (leaving, coming) = (find(old), find(new));
    if old == new {
        let why = format!("a node is replaced by a new one: an id other than {old}, never used");
        return Err(Problem::refused(Code::InvalidRequest, why));
    }
    let add = match (leaving, coming) {
        (None, None) => {
            let why = format!("there is neither a node {old} nor a node {new}");
            return Err(Problem::refused(Code::NodeNotFound, why));
        }
        (_, Some(node)) => {
            if let Some(leaving) = leaving
                && node.voter
                && node.address != *address.as_ref().unwrap_or(&leaving.address)
            {
                return Err(takes_no_place(leaving, node));
            }
            if address.as_ref().is_some_and(|address| *address != node.address) {
                let why = format!(
                    "node {new} is a member already, at {}; to go on: `holdfast node replace {old} {new}`",
                    node.address
                );
                return Err(Problem::refused(Code::Conflict, why));
            }
            None
        }
        (Some(node), None) => Some(address.unwrap_or_else(|| node.address.clone())),
    };
    let promote = coming.is_none_or(|node| !node.voter);
    keeps_quorum(status, old, promote.then_some(new))?;
    Ok(Plan { add, promote, remove: leaving.is_some() })
}

/// Refuses a voter as the new node, unless it is where the command wants the
/// new node: then the command was interrupted before it removed the old one.
/// With another voter in the place of a new id, nothing would be replaced.
fn takes_no_place(leaving: &NodeStatus, coming: &NodeStatus) -> Problem {
    let (old, new, address) = (leaving.id, coming.id, &coming.address);
    Problem::refused(
        Code::Conflict,
        format!(
            "node {new} is a voter already, at {address}: it replaces nobody, and node {old} would be removed for ever; nothing was changed: use an id that was never used (`holdfast node replace {old} NEW`), or `holdfast node remove {old}` if node {old} is to go without a new one, or is what an interrupted replace has left"
        ),
    )
}

/// Refuses to evict a node that answers: a mistyped id would cost a good voter
/// for ever.
fn is_gone(status: &Status, old: NodeId, new: NodeId) -> Result<(), Problem> {
    let leaving = status.nodes.iter().find(|node| node.id == old);
    match leaving.filter(|node| node.role != NodeRole::Unreachable) {
        None => Ok(()),
        Some(NodeStatus { address, .. }) => Err(Problem::refused(
            Code::Conflict,
            format!(
                "node {old} answers at {address}, and would be out for ever; nothing was changed: add `--force` if it is to go (`holdfast node replace {old} {new} --force`), or `holdfast node add {new} ADDRESS` for one more node"
            ),
        )),
    }
}

/// Refuses before anything is changed if too few voters would answer, once the
/// new node votes and once the old one is out. The leader looks again.
fn keeps_quorum(status: &Status, old: NodeId, new: Option<NodeId>) -> Result<(), Problem> {
    let voters = || status.nodes.iter().filter(|node| node.voter);
    let answers = |node: &&NodeStatus| node.role != NodeRole::Unreachable;
    let added = usize::from(new.is_some());
    let staying = || voters().filter(|node| node.id != old);
    for (all, alive) in [
        (voters().count() + added, voters().filter(answers).count() + added),
        (staying().count() + added, staying().filter(answers).count() + added),
    ] {
        let needed = all / 2 + 1;
        if alive < needed {
            return Err(Problem::retryable(
                Code::QuorumWouldBeLost,
                format!(
                    "of {all} voters {needed} would be needed, and {alive} would answer; nothing was changed: start the unreachable ones first (`holdfast node list`)"
                ),
            ));
        }
    }
    Ok(())
}

/// Gives the new node its vote as soon as it has caught up.
async fn promote(context: &Context, new: NodeId) -> Result<(), Failure> {
    let began = Instant::now();
    let mut patience = Patience { heard: began, grown: began, last_log: None };
    let mut explained = began;
    loop {
        let admin = Admin::PromoteNode { node: new };
        let problem = match context.client.admin(admin, context.deadline()).await {
            Ok(()) => return Ok(()),
            Err(Error::Refused(problem)) if problem.code == Code::QuorumWouldBeLost => problem,
            Err(error) => return Err(error.into()),
        };
        let status = status::ask(context).await?;
        let node = status.nodes.iter().find(|node| node.id == new);
        if patience.is_over(node.and_then(|node| node.last_log), Instant::now()) {
            return Err(Failure::Refused(problem));
        }
        if explained.elapsed() >= EXPLAIN_EVERY {
            explained = Instant::now();
            context.talk(format!("waiting for node {new}: {problem}"));
        }
        sleep(TRY_EVERY).await;
    }
}

/// How long the new node has been silent, or has not moved.
struct Patience {
    heard: Instant,
    grown: Instant,
    last_log: Option<u64>,
}

impl Patience {
    /// Whether to give up, given where the node's log ends now; none if it
    /// does not answer.
    fn is_over(&mut self, last_log: Option<u64>, now: Instant) -> bool {
        if last_log.is_some() {
            self.heard = now;
        }
        if last_log > self.last_log {
            (self.grown, self.last_log) = (now, last_log);
        }
        now - self.heard > SILENCE_TIME_MAX || now - self.grown > STALL_TIME_MAX
    }
}

/// The answer of `node replace`.
#[derive(Debug, Serialize)]
struct Replaced {
    node: NodeId,
    replaced: NodeId,
}

impl Document for Replaced {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "ok")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::tests::cluster;
    use crate::output::{Output, render};

    /// Three voters, these of which answer, and maybe a fourth node, at the
    /// address of the third.
    fn status(alive: &[NodeId], fourth: Option<bool>) -> Status {
        let mut status = cluster(alive);
        if let Some(voter) = fourth {
            let address = "127.0.0.1:21003".to_owned();
            let node = status.nodes.iter().find(|node| node.role != NodeRole::Unreachable);
            let node = NodeStatus { id: 4, address, voter, ..node.unwrap().clone() };
            status.nodes.push(node);
        }
        status
    }

    #[test]
    fn what_was_done_is_not_done_again() {
        let at = |status: &Status| plan(status, 3, 4, None);
        let add = Some("127.0.0.1:21003".to_owned());
        let whole = Plan { add, promote: true, remove: true };
        assert_eq!(at(&status(&[1, 2], None)), Ok(whole));
        let added = Plan { add: None, promote: true, remove: true };
        assert_eq!(at(&status(&[1, 2], Some(false))), Ok(added));
        let promoted = Plan { add: None, promote: false, remove: true };
        assert_eq!(at(&status(&[1, 2], Some(true))), Ok(promoted));
        let mut done = status(&[1, 2], Some(true));
        done.nodes.retain(|node| node.id != 3);
        assert_eq!(at(&done), Ok(Plan { add: None, promote: false, remove: false }));
    }

    #[test]
    fn a_voter_takes_no_place_unless_it_is_where_the_new_node_is_to_be() {
        let refused = plan(&status(&[1, 2], None), 3, 2, None).unwrap_err();
        for part in ["node 2 is a voter already", "nothing was changed", "`holdfast node remove 3`"]
        {
            assert!(refused.message.contains(part), "{part:?} in {refused}");
        }
        let other = Some("127.0.0.1:21009".to_owned());
        let refused = plan(&status(&[1, 2], None), 3, 2, other).unwrap_err();
        assert!(refused.message.contains("`holdfast node remove 3`"), "{refused}");
        let rest = Plan { add: None, promote: false, remove: true };
        let said = Some("127.0.0.1:21002".to_owned());
        assert_eq!(plan(&status(&[1, 2], None), 3, 2, said), Ok(rest));
    }

    #[test]
    fn the_new_node_is_where_it_is_said_or_where_the_old_one_was() {
        let said = Some("n4:1".to_owned());
        let add = |address| plan(&status(&[1, 2], None), 3, 4, address).unwrap().add;
        assert_eq!(add(said.clone()), said);
        assert_eq!(add(None).as_deref(), Some("127.0.0.1:21003"));
        let elsewhere = plan(&status(&[1, 2], Some(false)), 3, 4, said).unwrap_err();
        assert!(elsewhere.message.contains("`holdfast node replace 3 4`"), "{elsewhere}");
    }

    #[test]
    fn nothing_is_begun_that_would_lose_the_quorum() {
        let refused = plan(&status(&[1], None), 3, 4, None).unwrap_err();
        assert_eq!(refused.code, Code::QuorumWouldBeLost);
        assert!(refused.message.contains("nothing was changed"), "{refused}");
        // Only nodes 1 and 4 answer, and node 4 is to replace node 2.
        let there = Some("127.0.0.1:21003".to_owned());
        let refused = plan(&status(&[1], Some(true)), 2, 4, there).unwrap_err();
        assert_eq!(refused.code, Code::QuorumWouldBeLost, "2 of 4 answer, 3 are needed");
        assert!(plan(&status(&[1, 2, 3], None), 1, 4, None).is_ok(), "a healthy one may go");
    }

    #[test]
    fn a_node_that_answers_is_not_replaced_by_a_slip() {
        let refused = is_gone(&status(&[1, 2, 3], None), 3, 4).unwrap_err();
        for part in ["node 3 answers at 127.0.0.1:21003", "nothing was changed", "--force"] {
            assert!(refused.message.contains(part), "{part:?} in {refused}");
        }
        assert_eq!(is_gone(&status(&[1, 2], None), 3, 4), Ok(()));
        let mut done = status(&[1, 2], Some(true));
        done.nodes.retain(|node| node.id != 3);
        assert_eq!(is_gone(&done, 3, 4), Ok(()));
    }

    #[test]
    fn nodes_that_nobody_knows_are_named() {
        let refused = plan(&status(&[1, 2, 3], None), 8, 9, None).unwrap_err();
        assert_eq!(refused.code, Code::NodeNotFound);
        let same = plan(&status(&[1, 2, 3], None), 3, 3, None).unwrap_err();
        assert_eq!(same.code, Code::InvalidRequest);
    }

    #[test]
    fn patience_ends_with_silence_and_with_a_log_that_does_not_grow() {
        let began = Instant::now();
        let mut patience = Patience { heard: began, grown: began, last_log: None };
        let second = Duration::from_secs(1);
        assert!(!patience.is_over(None, began + SILENCE_TIME_MAX));
        assert!(!patience.is_over(Some(5), began + SILENCE_TIME_MAX + second));
        assert!(!patience.is_over(Some(5), began + STALL_TIME_MAX));
        assert!(!patience.is_over(Some(6), began + STALL_TIME_MAX + second));
        assert!(patience.is_over(Some(6), began + (STALL_TIME_MAX + second) * 2));
        assert!(patience.is_over(None, began + (STALL_TIME_MAX + second) * 2 + SILENCE_TIME_MAX));
    }

    #[test]
    fn the_document_names_both() {
        let printed = render(&Replaced { node: 4, replaced: 2 }, Output::Json).unwrap();
        assert_eq!(printed, b"{\"node\":4,\"replaced\":2}\n");
    }
}
