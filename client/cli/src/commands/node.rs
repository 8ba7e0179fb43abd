//! The nodes of the cluster.

use std::io::{self, Write};

use holdfast_api::{Admin, NodeId, NodeStatus};
use holdfast_client::parse_endpoints;
use serde::Serialize;

use super::{Context, replace, status};
use crate::cli::NodeCommand;
use crate::exit::Failure;
use crate::output::Document;

/// Carries a command on nodes out.
pub(crate) async fn run(context: &Context, command: NodeCommand) -> Result<(), Failure> {
    match command {
        NodeCommand::List => {
            let status = context.client.status(context.deadline()).await?;
            context.emit(&Nodes { leader: status.leader, nodes: status.nodes })
        }
        NodeCommand::Add { id, address } => {
            let address = one_address(&address)?;
            change(context, Admin::AddNode { node: id, address }, id).await?;
            context.talk(format!(
                "node {id} is a learner; once `holdfast node list` shows that it has caught up, make it a voter: `holdfast node promote {id}`"
            ));
            Ok(())
        }
        NodeCommand::Promote { id } => change(context, Admin::PromoteNode { node: id }, id).await,
        NodeCommand::Replace { old, new, address } => {
            let address = address.as_deref().map(one_address).transpose()?;
            replace::run(context, old, new, address).await
        }
        NodeCommand::Remove { id } => {
            change(context, Admin::RemoveNode { node: id }, id).await?;
            context.talk(format!(
                "node {id} is out for ever; stop its process and delete its data folder"
            ));
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

/// `node list`.
#[derive(Debug, Serialize)]
struct Nodes {
    leader: Option<NodeId>,
    nodes: Vec<NodeStatus>,
}

impl Document for Nodes {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        status::write_nodes(out, &self.nodes)
    }
}

/// `node add`, `node promote`, `node remove`.
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
        let status = status::tests::cluster(&[1, 2]);
        let nodes = Nodes { leader: status.leader, nodes: status.nodes.clone() };
        let printed: Value =
            serde_json::from_slice(&render(&nodes, Output::Json).unwrap()).unwrap();
        assert_eq!(printed, json!({"leader": 1, "nodes": status.nodes}));
        let table = String::from_utf8(render(&nodes, Output::Table).unwrap()).unwrap();
        assert_eq!(table.lines().count(), 4);
    }

    #[test]
    fn a_change_names_its_node() {
        let printed = render(&NodeChanged { node: 4 }, Output::Json).unwrap();
        assert_eq!(printed, b"{\"node\":4}\n");
    }
}
