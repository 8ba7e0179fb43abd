//! The ports that a development cluster needs: their holders before it is
//! started, and the nodes that answer there afterwards.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use holdfast_api::NodeId;

use super::folder::Shape;
use crate::access::Access;
use crate::formation::{Identity, ask_identity};

/// How long the process that has a port may take to identify itself.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);

/// Holder of a port that a node needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A node, with its cluster if it has one.
    Node(NodeId, Option<String>),
    /// Something else, or a node that does not identify itself.
    Other,
}

/// The first node whose port is taken, and the holder of that port.
pub(crate) async fn taken(shape: Shape, access: &Access) -> Option<(u16, Holder)> {
    let id = (1..=shape.nodes).find(|id| TcpListener::bind(shape.address(*id)).is_err())?;
    let holder = match ask_identity(access, &shape.address(id), ASK_TIME_MAX).await {
        Ok(Identity { node, cluster_id, .. }) => Holder::Node(node, cluster_id),
        Err(_) => Holder::Other,
    };
    Some((id, holder))
}

/// Why nothing is started while another process has a port, and what to do.
/// `cluster_id` is that of the folder's cluster, if it holds one.
pub(crate) fn refusal(
    dir: &Path,
    shape: Shape,
    cluster_id: Option<&str>,
    (id, holder): &(u16, Holder),
) -> String {
    let (address, dir) = (shape.address(*id), dir.display());
    let port = shape.base_port + id;
    let elsewhere = match cluster_id {
        None => ", or give another --base-port",
        Some(_) => "",
    };
    match holder {
        Holder::Node(node, Some(theirs)) if cluster_id == Some(theirs) => {
            let all: Vec<String> = (1..=shape.nodes).map(|id| shape.address(id)).collect();
            format!(
                "the cluster in {dir} runs already: its node {node} answers at {address}; use it (export HOLDFAST_STORE={}), or stop it first: Ctrl-C where it was started; `pgrep -af {dir}/node-` shows nodes that were left behind",
                all.join(",")
            )
        }
        Holder::Node(node, theirs) => {
            let cluster = match theirs {
                Some(theirs) => format!("of another cluster ({theirs})"),
                None => "of a cluster that is being founded".to_owned(),
            };
            format!(
                "node {node} {cluster} answers at {address}, which node {id} of the cluster in {dir} needs; nothing was started: stop that cluster first{elsewhere}"
            )
        }
        Holder::Other => format!(
            "port {port}, which node {id} of the cluster in {dir} needs, is in use; nothing was started: stop what has it (`ss -ltnp 'sport = :{port}'` shows it){elsewhere}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_a_port_is_named_with_what_to_do() {
        let shape = Shape { nodes: 3, base_port: 4_000 };
        let said = |cluster_id: Option<&str>, holder| {
            refusal(Path::new("/tmp/h"), shape, cluster_id, &(2, holder))
        };
        let node = |cluster: Option<&str>| Holder::Node(2, cluster.map(str::to_owned));
        let own = said(Some("c1"), node(Some("c1")));
        assert!(own.contains("runs already") && own.contains("127.0.0.1:4003)"), "{own}");
        for (ours, holder, part) in [
            (Some("c1"), node(Some("c2")), "another cluster (c2) answers at 127.0.0.1:4002"),
            (None, node(None), "or give another --base-port"),
            (None, Holder::Other, "port 4002, which node 2"),
            (Some("c1"), Holder::Other, "'sport = :4002'"),
        ] {
            let said = said(ours, holder);
            assert!(said.contains(part) && said.contains("nothing was started"), "{said}");
            assert_eq!(said.contains("--base-port"), ours.is_none(), "{said}");
        }
    }
}
