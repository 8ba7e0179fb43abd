//! A job whose host is suspended for longer than the store keeps a silent client: SIGSTOP
//! here, the sleep of a laptop or of a virtual machine elsewhere.

use std::time::Duration;

use holdfast_api::{ClusterCommand, Command, Limits};
use holdfast_tests::python::Script;
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Agent, Cluster, eventually, soon};
use nix::sys::signal::Signal;

/// The idle time of every session, which is the time of an agent's absence.
const SESSION_TTL: Duration = Duration::from_secs(2);

async fn shorten_sessions(cluster: &Cluster) {
    let ttl_ms = SESSION_TTL.as_millis() as u64;
    let limits =
        Limits { session_ttl_ms_min: ttl_ms, session_ttl_ms_max: ttl_ms, ..Limits::default() };
    let client = cluster.client();
    let set = Command::Cluster(ClusterCommand::SetLimits { limits });
    client.propose(set, soon()).await.expect("limits");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_job_goes_on_under_a_new_session() {
    let mut cluster = Cluster::start(3).await;
    shorten_sessions(&cluster).await;
    let flags = ["--lease-ttl", "1500ms"];
    let agent = Agent::start_with(&mut cluster, "asleep", &flags).await;
    let (host, port) = agent.host_and_port();
    let mut rank = Script::start(&mut cluster, "store_rounds.py", &[host, port]);
    assert_eq!(rank.says("ready").await, "none");
    let mut raw = TcpStore::connect(agent.address()).await;
    assert_eq!(raw.add("n", 1).await, 1);

    let leader = cluster.leader().await;
    for round in 1..3 {
        rank.signal(Signal::SIGSTOP);
        agent.process.signal(Signal::SIGSTOP);
        for forgotten in ["sessions_active", "leases_active"] {
            let name = format!("holdfast_{forgotten}");
            eventually(&format!("{forgotten} to be none"), async || {
                (cluster.metric(leader, &name).await == 0.0).then_some(())
            })
            .await;
        }
        agent.process.signal(Signal::SIGCONT);
        rank.signal(Signal::SIGCONT);
        rank.order(&format!("word-{round}")).await;
        assert_eq!(rank.says(&format!("round {round}")).await, format!("word-{round}"));
        // A client that was connected before, with an unanswered write.
        raw.set("k", b"v").await;
        assert_eq!(raw.get("k").await, b"v");
        assert_eq!(raw.add("n", 1).await, round + 1);
    }
}
