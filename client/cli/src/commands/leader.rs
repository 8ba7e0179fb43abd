//! The leader.

use std::io::{self, Write};
use std::time::Duration;

use holdfast_api::{Admin, NodeId, Status};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{Context, status};
use crate::cli::LeaderCommand;
use crate::exit::Failure;
use crate::output::{Document, write_rows};

/// How long the nodes may take to learn who leads after a transfer.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(2);

/// Pause between two looks at who leads.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Carries a command on the leader out.
pub(crate) async fn run(context: &Context, command: LeaderCommand) -> Result<(), Failure> {
    match command {
        LeaderCommand::Show => {
            let status = status::ask(context).await?;
            match Leader::of(&status) {
                Some(leader) => context.emit(&leader),
                None => Err(Failure::Unreachable(status::leaderless(&status))),
            }
        }
        LeaderCommand::Transfer { id } => {
            let from = Leader::of(&status::ask(context).await?);
            context.client.admin(Admin::TransferLeader { to: id }, context.deadline()).await?;
            let to = successor(context, from.as_ref().map(|leader| leader.leader), id).await?;
            context.emit(&Transferred { from: from.map(|leader| leader.leader), to })
        }
    }
}

/// The leader after a transfer: the node that answers may not know it yet.
async fn successor(
    context: &Context,
    from: Option<NodeId>,
    wanted: Option<NodeId>,
) -> Result<Leader, Failure> {
    let began = Instant::now();
    loop {
        let status = status::ask(context).await?;
        let known = Leader::of(&status);
        let settled = |leader: &Leader| match wanted {
            Some(wanted) => leader.leader == wanted,
            None => Some(leader.leader) != from,
        };
        match known {
            Some(leader) if settled(&leader) || began.elapsed() > SETTLE_TIME_MAX => {
                return Ok(leader);
            }
            None if began.elapsed() > SETTLE_TIME_MAX => {
                return Err(Failure::Unreachable(status::leaderless(&status)));
            }
            _ => sleep(LOOK_EVERY).await,
        }
    }
}

/// The answer of `leader show`.
#[derive(Debug, PartialEq, Serialize)]
struct Leader {
    leader: NodeId,
    address: Option<String>,
    term: u64,
}

impl Leader {
    fn of(status: &Status) -> Option<Leader> {
        let leader = status.leader?;
        let node = status.nodes.iter().find(|node| node.id == leader);
        Some(Leader { leader, address: node.map(|node| node.address.clone()), term: status.term })
    }
}

impl Document for Leader {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let address = self.address.clone().unwrap_or_else(|| "-".to_owned());
        write_rows(
            out,
            Some(["NODE", "ADDRESS", "TERM"]),
            [[self.leader.to_string(), address, self.term.to_string()]],
        )
    }
}

/// The answer of `leader transfer`.
#[derive(Debug, PartialEq, Serialize)]
struct Transferred {
    from: Option<NodeId>,
    #[serde(serialize_with = "id_of")]
    to: Leader,
}

fn id_of<S: serde::Serializer>(leader: &Leader, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(leader.leader)
}

impl Document for Transferred {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Leader { leader, address, .. } = &self.to;
        let at = address.as_ref().map_or(String::new(), |address| format!(" ({address})"));
        match self.from {
            Some(from) if from == *leader => writeln!(out, "node {leader}{at} leads, as before"),
            Some(from) => writeln!(out, "node {leader}{at} leads now, node {from} led before"),
            None => writeln!(out, "node {leader}{at} leads now"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::tests::cluster;
    use crate::output::{Output, render};

    #[test]
    fn the_leader_is_shown_with_its_address_and_term() {
        let leader = Leader::of(&cluster(&[2, 3])).unwrap();
        assert_eq!(
            render(&leader, Output::Json).unwrap(),
            b"{\"leader\":2,\"address\":\"127.0.0.1:21002\",\"term\":4}\n"
        );
        assert_eq!(
            render(&leader, Output::Table).unwrap(),
            b"NODE  ADDRESS          TERM\n2     127.0.0.1:21002  4\n"
        );
    }

    #[test]
    fn without_a_leader_there_is_nothing_to_show() {
        assert_eq!(Leader::of(&cluster(&[1])), None);
    }

    #[test]
    fn a_transfer_names_who_led_and_who_leads() {
        let to = |from| Transferred { from, to: Leader::of(&cluster(&[2, 3])).unwrap() };
        assert_eq!(render(&to(Some(1)), Output::Json).unwrap(), b"{\"from\":1,\"to\":2}\n");
        let table = |from| String::from_utf8(render(&to(from), Output::Table).unwrap()).unwrap();
        assert_eq!(table(Some(1)), "node 2 (127.0.0.1:21002) leads now, node 1 led before\n");
        assert_eq!(table(Some(2)), "node 2 (127.0.0.1:21002) leads, as before\n");
    }
}
