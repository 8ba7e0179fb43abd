//! The shared token: no client gets in without it, and it can be replaced while
//! everything runs.

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::http::Method;
use holdfast_tests::http::{self, Response};
use holdfast_tests::{Agent, Cluster, Ended, Process, TcpStore, binaries, eventually};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

const OLD: &str = "the-old-token-of-the-cluster";
const NEW: &str = "the-new-token-of-the-cluster";

/// Files of tokens, each closed to others.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().expect("the folder for temporary files can be written"))
    }

    /// Writes the file of this name, in one step as an operator's tool would.
    fn write(&self, name: &str, tokens: &[&str]) -> PathBuf {
        let (path, draft) = (self.0.path().join(name), self.0.path().join("draft"));
        std::fs::write(&draft, tokens.join("\n") + "\n").expect("it can be written");
        let closed = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&draft, closed).expect("it is ours");
        std::fs::rename(&draft, &path).expect("both are ours");
        path
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// A running cluster whose nodes ask for the token in this file.
async fn guarded(path: &Path) -> Cluster {
    Cluster::start_with(3, &["--token-file", text(path)]).await
}

async fn cli(cluster: &Cluster, token: &Path, arguments: &[&str]) -> Ended {
    cluster.cli(&[&["--token-file", text(token)], arguments].concat()).await
}

async fn cli_at(address: &str, token: &Path, arguments: &[&str]) -> Ended {
    let mut command = binaries::command("holdfast");
    command.args(["--store", address, "--token-file", text(token)]).args(arguments);
    Ended::of(command).await
}

async fn ask(cluster: &Cluster, path: &str, token: Option<&str>) -> Response {
    let authorization = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> =
        authorization.iter().map(|value| ("authorization", value.as_str())).collect();
    let node = cluster.address(1);
    let answer = http::send_until_served(node, Method::GET, path, &headers, "").await;
    answer.expect("a node answers strangers too")
}

#[tokio::test]
async fn nobody_gets_in_without_the_token_and_everything_works_with_it() {
    let files = Files::new();
    let (token, other) = (files.write("token", &[OLD]), files.write("other", &[NEW]));
    let mut cluster = guarded(&token).await;

    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(ask(&cluster, path, None).await.status, 200, "{path}");
    }
    for path in [
        "/v1/status",
        "/v1/jobs",
        "/v1/stream",
        "/openapi.json",
        "/raft/v1/identity",
        "/raft/v1/status",
        "/raft/v1/channel/append",
        "/nothing",
    ] {
        for wrong in [None, Some(NEW), Some(""), Some(&OLD[1..])] {
            let refused = ask(&cluster, path, wrong).await;
            assert_eq!(refused.status, 401, "{path} {wrong:?}");
            let problem = refused.json();
            assert_eq!(problem["code"], "unauthorized", "{problem}");
            assert_eq!(problem["outcome"], "none", "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains("--token-file"), "{problem}");
            assert_eq!(refused.headers["www-authenticate"], "Bearer");
        }
    }
    assert_eq!(ask(&cluster, "/v1/status", Some(OLD)).await.status, 200);

    // Any node takes it, and passes the call on to the leader.
    let authorization = format!("Bearer {OLD}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    for id in cluster.ids() {
        let put = http::send_until_served(
            cluster.address(id),
            Method::POST,
            "/v1/kv/put",
            &headers,
            r#"{"key": "k", "value": "v"}"#,
        );
        assert_eq!(put.await.unwrap().status, 200, "node {id}");
    }
    let got = cli(&cluster, &token, &["kv", "get", "k"]).await;
    assert_eq!((got.code, got.stdout.trim()), (Some(0), "v"), "{got:?}");

    // Refused at once, not when the time is over.
    let none = cluster.cli(&["--timeout", "never", "kv", "get", "k"]).await;
    none.failed(1, &["--token-file", "HOLDFAST_TOKEN_FILE"]);
    cli(&cluster, &other, &["--timeout", "never", "status"]).await.failed(1, &[text(&other)]);
    cli(&cluster, Path::new("/nonexistent/token"), &["status"]).await.failed(2, &["--token-file"]);

    // A trainer reaches its keys through an agent that has the token.
    let flags = ["--token-file", text(&token)];
    let agent = Agent::start_with(&mut cluster, "train", &flags).await;
    let mut store = TcpStore::connect(agent.address()).await;
    store.set("key", b"value").await;
    assert_eq!(store.get("key").await, b"value");
    let mut lost = binaries::command("holdfast-agent");
    let at = format!("127.0.0.1:{}", cluster.port());
    lost.args(["serve", "--store", &cluster.list(), "--job", "train", "--tcpstore", &at]);
    Ended::of(lost).await.failed(125, &["--token-file"]);
}

#[tokio::test]
async fn a_token_is_replaced_while_everything_runs() {
    let files = Files::new();
    let token = files.write("token", &[OLD]);
    let (old, new) = (files.write("old", &[OLD]), files.write("new", &[NEW]));
    let mut cluster = guarded(&token).await;
    let mine = files.write("mine", &[OLD]);
    let agent = Agent::start_with(&mut cluster, "train", &["--token-file", text(&mine)]).await;
    let mut store = TcpStore::connect(agent.address()).await;
    store.set("step", b"1").await;

    // Both are accepted, then the new one is sent, then the old one is removed.
    let admitted = async |cluster: &Cluster, tokens: [(&str, bool); 2]| {
        eventually("the nodes to have read the file", async || {
            for id in cluster.ids() {
                for (token, wanted) in tokens {
                    let header = format!("Bearer {token}");
                    let headers = [("authorization", header.as_str())];
                    let answer =
                        http::send(cluster.address(id), Method::GET, "/v1/status", &headers, "");
                    if (answer.await.ok()?.status == 200) != wanted {
                        return None;
                    }
                }
            }
            Some(())
        })
        .await;
    };
    files.write("token", &[OLD, NEW]);
    admitted(&cluster, [(OLD, true), (NEW, true)]).await;
    files.write("token", &[NEW, OLD]);
    files.write("mine", &[NEW]);
    files.write("token", &[NEW]);
    admitted(&cluster, [(OLD, false), (NEW, true)]).await;
    cli(&cluster, &old, &["status"]).await.failed(1, &["--token-file"]);

    // Nodes and agents connect again with the new one.
    let shown = cli(&cluster, &new, &["-o", "json", "leader", "show"]).await;
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    let leader = shown["leader"].as_u64().unwrap();
    cluster.kill(leader);
    store.set("step", b"2").await;
    cluster.restart(leader).await;
    assert_eq!(store.get("step").await, b"2");
}

#[tokio::test]
async fn nodes_of_different_tokens_do_not_found_a_cluster_together() {
    let files = Files::new();
    let (token, other) = (files.write("token", &[OLD]), files.write("other", &[NEW]));
    let mut cluster = Cluster::plan(2, &[]);
    let mut first = cluster.command(1);
    first.args(["--token-file", text(&token)]);
    cluster.launch_as(1, first);
    let mut second = cluster.command(2);
    second.args(["--token-file", text(&other)]);
    cluster.launch_as(2, second);
    // The one that asks first; the other then waits for it.
    let first = eventually("a node to refuse", async || {
        [1, 2].into_iter().find(|id| cluster.process(*id).end().is_some())
    });
    let first = first.await;
    cluster.refuses(first, &["does not accept this node's token", "--token-file"]).await;
}

#[tokio::test]
async fn beyond_loopback_a_node_needs_a_token_and_tls_or_a_decision() {
    let files = Files::new();
    let token = files.write("token", &[OLD]);
    let mut cluster = Cluster::plan(1, &[]);
    let port = cluster.port();
    let folder = files.0.path().join("data");
    let serve = |flags: &[&str]| {
        let mut command = binaries::command("holdfast-store");
        command.args(["serve", "--node-id", "1", "--data-dir", text(&folder)]);
        command.args(["--listen", &format!("0.0.0.0:{port}")]).args(flags);
        command.args(["--initial-cluster", &format!("1=127.0.0.1:{port}")]);
        command
    };
    Ended::of(serve(&[])).await.failed(2, &["--token-file", "--insecure", "openssl rand"]);
    let plain = ["--token-file", text(&token)];
    Ended::of(serve(&plain)).await.failed(2, &["no TLS", "tls init", "--insecure"]);
    assert!(!folder.exists(), "nothing was touched");
    let log = cluster.keep_log("serve");
    let plain = [plain[0], plain[1], "--insecure"];
    let mut decided = serve(&[]);
    decided.env("HOLDFAST_INSECURE", "true");
    for command in [decided, serve(&["--insecure"]), serve(&plain)] {
        let mut node = Process::start("the node", command, &log);
        node.says("listening").await;
        assert!(node.stop().await.success());
    }
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let mut node = Process::start("the node", serve(&plain), &log);
    node.says("chmod 600").await;
    assert!(node.stop().await.success());
}

/// Descriptors of each node, and connections that send nothing or have no token.
const DESCRIPTORS: usize = 800;
const STRANGERS: usize = 480;

#[tokio::test(flavor = "multi_thread")]
async fn strangers_without_the_token_keep_nobody_out() {
    let files = Files::new();
    let token = files.write("token", &[OLD]);
    strangers_keep_nobody_out(Cluster::plan(3, &["--token-file", text(&token)]), &token).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_without_the_token_keep_nobody_out_over_tls() {
    let files = Files::new();
    let token = files.write("token", &[OLD]);
    let mut cluster = Cluster::plan(3, &["--token-file", text(&token)]);
    cluster.make_certificates().await;
    strangers_keep_nobody_out(cluster, &token).await;
}

async fn strangers_keep_nobody_out(mut cluster: Cluster, token: &Path) {
    cluster.use_token(token);
    for id in cluster.ids() {
        let command = binaries::with_descriptors(&cluster.command(id), DESCRIPTORS);
        cluster.launch_as(id, command);
    }
    cluster.wait_all_ready().await;
    let leader = cluster.leader().await;
    let address = cluster.address(leader).to_owned();
    let mut flood = JoinSet::new();
    let closed = Arc::new(AtomicU64::new(0));
    for first in [
        "",
        "GET /v1/stream HTTP/1.1\r\nHost: lo",
        "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    .into_iter()
    .cycle()
    .take(8)
    {
        let (address, counted) = (address.clone(), closed.clone());
        let tls = cluster.credentials().tls;
        flood.spawn(async move {
            let mut open = VecDeque::new();
            loop {
                match http::connect(tls.as_ref(), &address).await {
                    Ok(mut stream) => {
                        drop(stream.write_all(first.as_bytes()).await);
                        open.push_back(stream);
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
                // The next one comes when the node has closed one, as fast as it can.
                if open.len() >= STRANGERS / 8
                    && let Some(mut oldest) = open.pop_front()
                {
                    let mut read = Vec::new();
                    drop(oldest.read_to_end(&mut read).await);
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    eventually("every place to be asked for many times", async || {
        (closed.load(Ordering::Relaxed) >= 4 * STRANGERS as u64).then_some(())
    })
    .await;
    for n in 0..10 {
        let put = cluster.cli_at(&address, &["kv", "put", "k", &n.to_string()]).await;
        assert_eq!(put.code, Some(0), "{put:?}");
    }
    assert_eq!(cluster.leader().await, leader, "nothing of this is a reason to change the leader");
    flood.abort_all();
}

#[tokio::test]
async fn a_foreign_name_is_refused_where_no_token_is_asked_for() {
    let cluster = Cluster::start_with(1, &["--allow-host", "store.example,lb.example"]).await;
    let ask = async |host: &str, path: &str| {
        let headers = [("host", host)];
        let answer =
            http::send_until_served(cluster.address(1), Method::GET, path, &headers, "").await;
        answer.expect("a node answers strangers too")
    };
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""] {
        for path in ["/v1/status", "/v1/jobs", "/raft/v1/identity", "/openapi.json"] {
            let refused = ask(host, path).await;
            assert_eq!(refused.status, 400, "{host} {path}");
            let problem = refused.json();
            assert!(problem["detail"].as_str().unwrap().contains("--allow-host"), "{problem}");
        }
        assert_eq!(ask(host, "/metrics").await.status, 200, "{host}");
        // The headers of a page's WebSocket.
        let headers = [("host", host), ("connection", "Upgrade"), ("upgrade", "websocket")];
        let refused = http::send(cluster.address(1), Method::GET, "/v1/status", &headers, "").await;
        assert_eq!(refused.expect("an answer").status, 400, "{host}");
    }
    for host in [cluster.address(1), "localhost", "[::1]:7", "STORE.example:443", "lb.example"] {
        assert_eq!(ask(host, "/v1/status").await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn the_token_of_a_job_opens_nothing_between_nodes_that_have_their_own() {
    let files = Files::new();
    let (token, peers) = (files.write("token", &[OLD]), files.write("peers", &[NEW]));
    let flags = ["--token-file", text(&token), "--peer-token-file", text(&peers)];
    let mut cluster = Cluster::start_with(3, &flags).await;
    for path in ["/raft/v1/identity", "/raft/v1/status", "/raft/v1/channel/append"] {
        assert_eq!(ask(&cluster, path, Some(OLD)).await.status, 401, "{path}");
        assert_ne!(ask(&cluster, path, Some(NEW)).await.status, 401, "{path}");
    }
    assert_eq!(ask(&cluster, "/v1/status", Some(OLD)).await.status, 200);
    assert_eq!(ask(&cluster, "/v1/status", Some(NEW)).await.status, 401);
    // Any node takes a call, passes it on, and knows the others.
    for id in cluster.ids() {
        let put = cli_at(cluster.address(id), &token, &["kv", "put", "k", "v"]).await;
        assert_eq!(put.code, Some(0), "node {id}: {put:?}");
        // A node that was busy at that moment is shown so.
        eventually(&format!("node {id} to reach all nodes"), async || {
            let status = cli_at(cluster.address(id), &token, &["status"]).await;
            let reached = status.code == Some(0) && !status.stdout.contains("unreachable");
            reached.then_some(())
        })
        .await;
    }
    cluster.use_token(&token);
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let put = cli(&cluster, &token, &["kv", "put", "k", "after"]).await;
    assert_eq!(put.code, Some(0), "{put:?}");

    let mut lonely = binaries::command("holdfast-store");
    lonely.args(["serve", "--node-id", "1", "--data-dir", "/nonexistent/x"]);
    lonely.args(["--listen", "127.0.0.1:1", "--peer-token-file", text(&peers)]);
    Ended::of(lonely).await.failed(2, &["--peer-token-file", "--token-file"]);
}
