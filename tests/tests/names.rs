//! Nodes that listen on all addresses and are reached by name.

use holdfast_tests::{Cluster, Ended, Process, binaries, eventually};

/// One node of a cluster whose addresses are names.
struct Named {
    port: u16,
    folder: std::path::PathBuf,
    log: std::path::PathBuf,
}

impl Named {
    fn address(&self) -> String {
        format!("localhost:{}", self.port)
    }

    fn start(&self, id: usize, place: &[&str]) -> Process {
        let mut command = binaries::command("holdfast-store");
        command.args(["serve", "--insecure", "--node-id", &id.to_string()]);
        command.arg("--data-dir").arg(&self.folder);
        command.args(["--listen", &format!("0.0.0.0:{}", self.port)]).args(place);
        Process::start(&format!("node {id}"), command, &self.log)
    }
}

/// Ports, folders and logs for that many nodes.
fn named(cluster: &mut Cluster, nodes: usize) -> Vec<Named> {
    let node = |id: usize| Named {
        port: cluster.port(),
        folder: cluster.folder().join(format!("named-{id}")),
        log: cluster.keep_log(&format!("named-{id}")),
    };
    (1..=nodes).map(node).collect()
}

async fn holdfast(store: &str, arguments: &[&str]) -> Ended {
    let mut command = binaries::command("holdfast");
    command.args(["--store", store]).args(arguments);
    Ended::of(command).await
}

#[tokio::test]
async fn nodes_are_reached_by_name_and_the_list_is_ignored_afterwards() {
    let mut cluster = Cluster::plan(0, &[]);
    let nodes = named(&mut cluster, 4);
    let list: Vec<_> = (1..=3).map(|id| format!("{id}={}", nodes[id - 1].address())).collect();
    let place = ["--initial-cluster", &list.join(",")];
    let mut running: Vec<_> = (1..=3).map(|id| nodes[id - 1].start(id, &place)).collect();
    let (first, fourth) = (nodes[0].address(), nodes[3].address());
    let done = holdfast(&first, &["--timeout", "1m", "kv", "put", "k", "v"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");

    // A restarted node has its place in its log; the others find it by name.
    running[2].stop().await;
    running[2] = nodes[2].start(3, &place);
    running[2].says("--initial-cluster is ignored").await;
    eventually("node 3 to follow", async || {
        let got = holdfast(&nodes[2].address(), &["kv", "get", "k"]).await;
        (got.stdout.trim() == "v").then_some(())
    })
    .await;

    // A joining node prints what to do next, word for word.
    let mut joining = nodes[3].start(4, &["--join", &first, "--advertise", &fourth]);
    joining.says(&format!("`holdfast --store {first} node add 4 {fourth}`")).await;
    let elsewhere = format!("127.0.0.1:{}", nodes[3].port);
    let refused = cluster.operate_at(&first, &["node", "add", "4", &elsewhere]).await;
    refused.failed(1, &[&format!("`holdfast node add 4 {fourth}`")]);
    let added = cluster.operate_at(&first, &["node", "add", "4", &fourth]).await;
    assert_eq!(added.code, Some(0), "{added:?}");
}

#[tokio::test]
async fn an_address_that_leads_nowhere_is_refused_with_what_to_write() {
    let mut cluster = Cluster::plan(0, &[]);
    let nodes = named(&mut cluster, 1);
    let node = &nodes[0];
    let all = format!("0.0.0.0:{}", node.port);
    for (place, texts) in [
        (vec!["--join", "localhost:1"], vec!["--advertise HOST:PORT"]),
        (vec!["--join", "localhost:1", "--advertise", &all], vec!["--advertise", "cannot connect"]),
        (
            vec!["--initial-cluster", "1=a:1,2=b:1", "--advertise", "n1:1"],
            vec!["--initial-cluster 1=n1:1,2=b:1"],
        ),
    ] {
        let mut refusing = node.start(1, &place);
        let status = refusing.ended().await;
        let said = refusing.said();
        assert_eq!(status.code(), Some(2), "{said}");
        for text in texts {
            assert!(said.contains(text), "{text:?} is missing in: {said}");
        }
    }
    let mut empty = node.start(1, &[]);
    assert_eq!(empty.ended().await.code(), Some(1));
    let said = empty.said();
    assert!(said.contains("--initial-cluster 1=HOST:PORT") && said.contains("--join"), "{said}");
}
