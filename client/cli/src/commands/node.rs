//! The nodes of the cluster.

use std::io::{self, Write};

use holdfast_api::{Admin, CAUGHT_UP_ENTRIES, NodeId, NodeRole, NodeStatus, Status};
use holdfast_client::parse_endpoints;
use serde::Serialize;

use super::{Context, replace, status};
use crate::cli::NodeCommand;
use crate::exit::Failure;
use crate::log_time::span;
use crate::output::{Document, cell, write_rows};

/// Carries a command on nodes out.
pub(crate) async fn run(context: &Context, command: NodeCommand) -> Result<(), Failure> {
    match command {
        NodeCommand::List => context.emit(&Nodes::of(&status::ask(context).await?)),
        NodeCommand::Add { id, address } => {
            let address = one_address(&address)?;
            change(context, Admin::AddNode { node: id, address }, id).await?;
            context.talk(format!(
                "node {id} is a learner; once `holdfast node list` shows that it has caught up, make it a voter: `holdfast node promote {id}`"
            ));
            Ok(())
        }
        NodeCommand::Promote { id } => change(context, Admin::PromoteNode { node: id }, id).await,
        NodeCommand::Replace { old, new, address, force } => {
            let address = address.as_deref().map(one_address).transpose()?;
            replace::run(context, old, new, address, force).await
        }
        NodeCommand::Remove { id } => {
            context.client.admin(Admin::RemoveNode { node: id }, context.deadline()).await?;
            let removed = Removed::of(id, status::ask(context).await.ok().as_ref());
            context.emit(&removed)?;
            context.talk(removed.next());
            Ok(())
        }
    }
}

async fn change(context: &Context, admin: Admin, node: NodeId) -> Result<(), Failure> {
    context.client.admin(admin, context.deadline()).await?;
    context.emit(&NodeChanged { node })
}

/// A node has one address.
fn one_address(text: &str) -> Result<String, Failure> {
    let mut endpoints = parse_endpoints(text).map_err(|error| Failure::Usage(error.to_string()))?;
    match (endpoints.pop(), endpoints.is_empty()) {
        (Some(address), true) => Ok(address),
        _ => Err(Failure::Usage(format!("a node has one address HOST:PORT, not {text}"))),
    }
}

/// The answer of `node list`.
#[derive(Debug, Serialize)]
struct Nodes {
    leader: Option<NodeId>,
    nodes: Vec<Listed>,
}

/// A node of `node list`.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    node: NodeStatus,
    /// Entries that the leader's log is ahead of its own.
    behind: Option<u64>,
    #[serde(skip)]
    silent_ms: Option<u64>,
}

impl Nodes {
    fn of(status: &Status) -> Nodes {
        let leader = status.nodes.iter().find(|node| Some(node.id) == status.leader);
        let end = leader.and_then(|leader| leader.last_log);
        let missing = status.majority.iter().flat_map(|majority| &majority.missing);
        let silent = |id| missing.clone().find(|voter| voter.node == id).map(|it| it.silent_ms);
        let listed = |node: &NodeStatus| Listed {
            node: node.clone(),
            behind: end.zip(node.last_log).map(|(end, own)| end.saturating_sub(own)),
            silent_ms: silent(node.id),
        };
        Nodes { leader: status.leader, nodes: status.nodes.iter().map(listed).collect() }
    }
}

impl Listed {
    /// Whether it answers, or since when it does not.
    fn state(&self) -> String {
        match (self.node.role, self.silent_ms) {
            (NodeRole::Unreachable, Some(ms)) => format!("silent for {}", span(ms)),
            (NodeRole::Unreachable, None) => "does not answer".to_owned(),
            _ => "answers".to_owned(),
        }
    }

    fn caught_up(&self) -> String {
        match self.behind {
            Some(..=CAUGHT_UP_ENTRIES) => "yes".to_owned(),
            Some(behind) => format!("{behind} entries behind"),
            None => "-".to_owned(),
        }
    }
}

impl Document for Nodes {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        write_rows(
            out,
            Some(["NODE", "ADDRESS", "ROLE", "VOTER", "STATE", "CAUGHT-UP", "VERSION"]),
            self.nodes.iter().map(|listed| {
                let node = &listed.node;
                [
                    node.id.to_string(),
                    node.address.clone(),
                    status::role(node.role).to_owned(),
                    if node.voter { "yes" } else { "no" }.to_owned(),
                    listed.state(),
                    listed.caught_up(),
                    cell(node.version.as_ref()),
                ]
            }),
        )
    }
}

/// The answer of `node remove`.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Removed {
    node: NodeId,
    voters: Option<u64>,
    may_fail: Option<u64>,
}

impl Removed {
    /// A node that was removed, and what remains as far as it is known; the
    /// node that answered may not know yet that it is gone.
    fn of(node: NodeId, status: Option<&Status>) -> Removed {
        let remain = |status: &Status| {
            status.nodes.iter().filter(|other| other.voter && other.id != node).count() as u64
        };
        let voters = status.map(remain);
        Removed { node, voters, may_fail: voters.map(|count| count.saturating_sub(1) / 2) }
    }

    fn next(&self) -> String {
        let gone = format!(
            "node {} is out for ever; stop its process and delete its data folder",
            self.node
        );
        let fail = match self.may_fail {
            Some(0) => "none may fail".to_owned(),
            Some(count) => format!("{count} may fail"),
            None => return gone,
        };
        match self.voters.unwrap_or(0) {
            1 => format!("{gone}\n1 voter remains: {fail}"),
            count => format!("{gone}\n{count} voters remain: {fail}"),
        }
    }
}

impl Document for Removed {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "ok")
    }
}

/// `node add`, `node promote`.
#[derive(Debug, Serialize)]
struct NodeChanged {
    node: NodeId,
}

impl Document for NodeChanged {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "ok")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::output::{Output, render};

    #[test]
    fn a_node_has_exactly_one_address() {
        assert_eq!(one_address("10.0.0.4:21001").unwrap(), "10.0.0.4:21001");
        for bad in ["", "10.0.0.4", "a:1,b:2"] {
            assert!(matches!(one_address(bad), Err(Failure::Usage(_))), "{bad:?}");
        }
    }

    #[test]
    fn the_list_names_the_leader_and_all_nodes() {
        let mut status = status::tests::cluster(&[1, 2]);
        status.nodes[1].last_log = Some(4);
        let printed: Value =
            serde_json::from_slice(&render(&Nodes::of(&status), Output::Json).unwrap()).unwrap();
        let mut nodes = serde_json::to_value(&status.nodes).unwrap();
        for (n, behind) in [json!(0), json!(6), Value::Null].into_iter().enumerate() {
            nodes[n]["behind"] = behind;
        }
        assert_eq!(printed, json!({"leader": 1, "nodes": nodes}));
    }

    #[test]
    fn the_table_says_who_answers_and_who_has_caught_up() {
        let mut status = status::tests::cluster(&[1, 2]);
        status.nodes[0].last_log = Some(1_244);
        status.nodes.push(NodeStatus { id: 4, last_log: Some(244), ..status.nodes[1].clone() });
        let table = render(&Nodes::of(&status), Output::Table).unwrap();
        let wanted = "\
NODE  ADDRESS          ROLE         VOTER  STATE           CAUGHT-UP            VERSION
1     127.0.0.1:21001  leader       yes    answers         yes                  0.1.0
2     127.0.0.1:21002  follower     yes    answers         1234 entries behind  0.1.0
3     127.0.0.1:21003  unreachable  yes    silent for 35s  -                    -
4     127.0.0.1:21002  follower     yes    answers         yes                  0.1.0
";
        assert_eq!(String::from_utf8(table).unwrap(), wanted);
        let older = Status { majority: None, leader: None, ..status };
        let table = String::from_utf8(render(&Nodes::of(&older), Output::Table).unwrap()).unwrap();
        assert!(table.contains("does not answer") && !table.contains("behind"), "{table}");
    }

    #[test]
    fn a_removal_says_what_remains() {
        let of_three = Removed::of(3, Some(&status::tests::cluster(&[1, 2])));
        assert_eq!(of_three, Removed { node: 3, voters: Some(2), may_fail: Some(0) });
        assert!(of_three.next().ends_with("2 voters remain: none may fail"), "{}", of_three.next());
        let of_four = Removed::of(4, Some(&status::tests::cluster(&[1, 2, 3])));
        assert!(of_four.next().ends_with("3 voters remain: 1 may fail"), "{}", of_four.next());
        assert!(Removed::of(4, None).next().contains("out for ever"));
    }

    #[test]
    fn a_change_names_its_node() {
        let printed = render(&NodeChanged { node: 4 }, Output::Json).unwrap();
        assert_eq!(printed, b"{\"node\":4}\n");
    }
}
