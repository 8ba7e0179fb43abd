//! The leader.

use std::io::{self, Write};

use holdfast_api::{Admin, Code, NodeId, Problem, Status};
use holdfast_client::Error;
use serde::Serialize;

use super::{Context, status};
use crate::cli::LeaderCommand;
use crate::exit::Failure;
use crate::output::{Document, write_rows};

/// Carries a command on the leader out.
pub(crate) async fn run(context: &Context, command: LeaderCommand) -> Result<(), Failure> {
    match command {
        LeaderCommand::Show => {
            let status = context.client.status(context.deadline()).await?;
            match Leader::of(&status) {
                Some(leader) => context.emit(&leader),
                None => Err(Failure::Client(Error::Refused(Box::new(Problem::retryable(
                    Code::Unavailable,
                    status::leaderless(&status),
                ))))),
            }
        }
        LeaderCommand::Transfer { id } => {
            context.client.admin(Admin::TransferLeader { to: id }, context.deadline()).await?;
            context.emit(&Transferred { to: id })
        }
    }
}

/// `leader show`.
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

/// `leader transfer`.
#[derive(Debug, PartialEq, Serialize)]
struct Transferred {
    to: Option<NodeId>,
}

impl Document for Transferred {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "ok")
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
    fn a_transfer_names_its_target_if_it_has_one() {
        let json = |to| render(&Transferred { to }, Output::Json).unwrap();
        assert_eq!(json(Some(3)), b"{\"to\":3}\n");
        assert_eq!(json(None), b"{\"to\":null}\n");
    }
}
