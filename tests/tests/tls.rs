//! TLS: everything works with it, nothing without it, and certificates are replaced
//! while everything runs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::http::Method;
use holdfast_client::{Credentials, TlsFiles, fetch};
use holdfast_tests::{Agent, Cluster, Ended, TcpStore, binaries, eventually, http};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const TOKEN: &str = "the-token-of-the-cluster";
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// A running cluster of three nodes with certificates and a token; and the folder of
/// certificates.
async fn secured() -> (Cluster, PathBuf) {
    let mut cluster = Cluster::plan(3, &[]);
    let (folder, token) = (cluster.make_certificates().await, cluster.folder().join("token"));
    std::fs::write(&token, TOKEN).expect("the folder is ours");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).expect("it is ours");
    cluster.use_token(&token);
    for id in cluster.ids() {
        start(&mut cluster, id, &folder);
    }
    cluster.wait_all_ready().await;
    (cluster, folder)
}

fn start(cluster: &mut Cluster, id: u64, folder: &Path) {
    let mut command = cluster.command(id);
    command.arg("--token-file").arg(cluster.folder().join("token"));
    command.arg("--tls-client-ca").arg(folder.join("client/ca.crt"));
    cluster.launch_as(id, command);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// `holdfast` with only these arguments.
async fn holdfast(cluster: &Cluster, arguments: &[&str]) -> Ended {
    let mut command = binaries::command("holdfast");
    let timeout = ["--timeout", "5s"];
    command.args(["--store", &cluster.list()]).args(timeout).args(arguments);
    Ended::of(command).await
}

#[tokio::test]
async fn everything_works_with_tls_and_nothing_without_it() {
    let (mut cluster, folder) = secured().await;
    cluster.cli_ok(&["kv", "put", "k", "v"]).await;
    assert_eq!(cluster.cli_ok(&["kv", "get", "k"]).await.trim(), "v");
    cluster.cli_ok(&["doctor"]).await;

    // A certificate replaces the token; an endpoint may say that it is secure.
    let client = |file: &str| folder.join("client").join(file);
    let (ca, cert, key) = (client("ca.crt"), client("client.crt"), client("client.key"));
    let store = format!("https://{}", cluster.address(1));
    let certified = ["--store", &store, "--tls-ca", text(&ca), "--tls-cert", text(&cert)];
    let mut command = binaries::command("holdfast");
    command.args(certified).args(["--tls-key", text(&key), "kv", "get", "k"]);
    let got = Ended::of(command).await;
    assert_eq!((got.code, got.stdout.trim()), (Some(0), "v"), "{got:?}");

    // Neither one nor the other; another authority; half of a pair; no TLS.
    let tls = ["--tls-ca", text(&ca), "kv", "get", "k"];
    holdfast(&cluster, &tls).await.failed(1, &["--token-file"]);
    let other = folder.join("authority/peer-ca.crt");
    let (token, peer_ca) = (cluster.folder().join("token"), text(&other));
    let stranger = ["--token-file", text(&token), "--tls-ca", peer_ca, "kv", "get", "k"];
    holdfast(&cluster, &stranger).await.failed(3, &["not trusted", "--tls-ca"]);
    let half = ["--tls-ca", text(&ca), "--tls-cert", text(&cert), "status"];
    holdfast(&cluster, &half).await.failed(2, &["--tls-cert", "--tls-key"]);
    let plain = ["--token-file", text(&token), "kv", "get", "k"];
    holdfast(&cluster, &plain).await.failed(1, &["speaks TLS", "--tls-ca"]);
    let answer = http::send(cluster.address(1), Method::GET, "/v1/status", &[], "").await.unwrap();
    assert_eq!(answer.status, 400);
    assert!(answer.json()["detail"].as_str().unwrap().contains("--tls-ca"), "{}", answer.json());

    // Trainers, while the leader dies.
    let flags = ["--token-file", text(&token), "--tls-ca", text(&ca)];
    let agent = Agent::start_with(&mut cluster, "j", &flags).await;
    let mut store = TcpStore::connect(agent.address()).await;
    store.set("rank", b"0").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    store.set("rank", b"1").await;
    assert_eq!(store.get("rank").await, b"1");
    start(&mut cluster, leader, &folder);
    cluster.wait_all_ready().await;
    drop(agent);
}

#[tokio::test]
async fn no_token_and_no_certificate_of_a_client_opens_what_is_between_nodes() {
    let (cluster, folder) = secured().await;
    let client = |file: &str| Some(folder.join("client").join(file));
    let (ca, cert, key) = (client("ca.crt"), client("client.crt"), client("client.key"));
    let tls = TlsFiles { ca, cert, key }.read().unwrap();
    let credentials = Credentials { tls, ..cluster.credentials() };
    for path in ["/raft/v1/identity", "/raft/v1/status", "/raft/v1/channel/append"] {
        let asked = fetch(cluster.address(1), path, &credentials, ANSWER_TIME_MAX).await.unwrap();
        let said = String::from_utf8_lossy(&asked.body).into_owned();
        assert_eq!(asked.status, 401, "{path}: {said}");
        assert!(said.contains("--peer-tls-ca"), "{path}: {said}");
    }
    let asked = fetch(cluster.address(1), "/v1/status", &credentials, ANSWER_TIME_MAX).await;
    assert_eq!(asked.unwrap().status, 200);
}

#[tokio::test]
async fn certificates_are_replaced_while_everything_runs() {
    let (mut cluster, folder) = secured().await;
    let cert = folder.join("node-1/tls.crt");
    let whole = std::fs::read_to_string(&cert).unwrap();
    // Half of a copy changes nothing, and is reported.
    std::fs::write(&cert, &whole[..whole.len() / 2]).unwrap();
    cluster.process(1).says("the certificates read before stay in use").await;
    let credentials = cluster.credentials();
    let asked = fetch(cluster.address(1), "/readyz", &credentials, ANSWER_TIME_MAX);
    assert_eq!(asked.await.unwrap().status, 200);

    // All of them anew: the authorities stay.
    cluster.make_certificates().await;
    cluster.process(1).says("read new certificates").await;
    for id in cluster.ids() {
        let asked = fetch(cluster.address(id), "/readyz", &credentials, ANSWER_TIME_MAX);
        assert_eq!(asked.await.unwrap().status, 200);
    }
    // Nodes connect to each other with the new ones.
    let leader = cluster.leader().await;
    cluster.kill(leader);
    start(&mut cluster, leader, &folder);
    cluster.wait_all_ready().await;
    cluster.cli_ok(&["kv", "put", "k", "v"]).await;
}

#[tokio::test]
async fn a_node_whose_files_are_of_no_use_does_not_start() {
    let mut cluster = Cluster::plan(2, &[]);
    let folder = cluster.make_certificates().await;
    for (flag, file, words) in [
        ("--tls-cert", "node-1/tls.key", "no certificate"),
        ("--tls-key", "node-2/tls.key", "cannot be used together"),
        ("--peer-tls-ca", "missing", "tls init"),
    ] {
        let mut arguments = vec![
            "serve".to_owned(),
            "--node-id".into(),
            "9".into(),
            "--data-dir".into(),
            cluster.folder().join("nine").display().to_string(),
            "--listen".into(),
            "127.0.0.1:0".into(),
        ];
        for (name, path) in [
            ("--tls-cert", "node-1/tls.crt"),
            ("--tls-key", "node-1/tls.key"),
            ("--peer-tls-cert", "node-1/peer.crt"),
            ("--peer-tls-key", "node-1/peer.key"),
            ("--peer-tls-ca", "node-1/peer-ca.crt"),
        ] {
            let path = if name == flag { file } else { path };
            arguments.extend([name.to_owned(), folder.join(path).display().to_string()]);
        }
        let mut command = binaries::command("holdfast-store");
        command.args(arguments);
        Ended::of(command).await.failed(2, &[words]);
    }
}

/// More than the bound on unknown connections.
const SILENT: usize = 1_100;

#[tokio::test]
async fn handshakes_that_stop_do_not_keep_others_out() {
    let (mut cluster, _) = secured().await;
    let leader = cluster.leader().await;
    let address = cluster.address(leader).to_owned();
    // The first bytes of a handshake, and nothing after them.
    let begun = [0x16, 3, 1, 2, 0, 1];
    let mut silent = Vec::new();
    for n in 0..SILENT {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        if n % 2 == 0 {
            drop(stream.write_all(&begun).await);
        }
        silent.push(stream);
    }
    for n in 0..5 {
        let put = cluster.cli_at(&address, &["kv", "put", "k", &n.to_string()]).await;
        assert_eq!(put.code, Some(0), "{put:?}");
    }
    assert_eq!(cluster.leader().await, leader, "nothing of this is a reason to change the leader");
    assert!(cluster.process(leader).end().is_none());
    // They are closed in time, without a word.
    eventually("the silent handshakes to be cut off", async || {
        let mut open = 0;
        for stream in &silent {
            match stream.try_read(&mut [0]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => open += 1,
                _ => {}
            }
        }
        (open == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_development_cluster_speaks_tls_and_says_how_to_reach_it() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let mut ports = holdfast_tests::ports::Ports::take();
    let port = ports.give();
    let mut command = binaries::command("holdfast-store");
    let base = (port - 1).to_string();
    command.args(["dev", "--tls", "--nodes", "1", "--base-port", &base, "--data-dir"]);
    command.arg(folder.path().join("dev"));
    let log = folder.path().join("dev.log");
    let mut dev = holdfast_tests::Process::start("dev", command, &log);
    let line = dev.says("HOLDFAST_TLS_CA=").await;
    dev.says("ready").await;
    let (_, ca) = line.split_once("HOLDFAST_TLS_CA=").expect("it was looked for");
    let mut command = binaries::command("holdfast");
    command.args(["--store", &format!("127.0.0.1:{port}"), "--tls-ca", ca.trim(), "status"]);
    let status = Ended::of(command).await;
    assert_eq!(status.code, Some(0), "{status:?}");
    let mut command = binaries::command("holdfast-store");
    command.args(["health", "--address", &format!("127.0.0.1:{port}"), "--tls-ca", ca.trim()]);
    assert_eq!(Ended::of(command).await.code, Some(0));
    assert!(dev.stop().await.success());
}
