//! A SET has no answer. Once it has returned, every operation that comes to the agent
//! over another connection sees it, also after a change of the leader. Other hosts see it
//! once any call of the same client was answered.

use holdfast_tests::tcpstore::{key, op, text};
use holdfast_tests::{Agent, Cluster, Script, TcpStore, binaries, python};
use tokio::task::JoinSet;

/// Rounds of a test; leaders die at some of them.
const ROUNDS: u64 = 500;
const KILLS_AT: [u64; 3] = [150, 251, 352];

/// Connections that keep the agent busy with other keys.
const BUSY: usize = 24;

/// Adds all the time, each over a connection of its own.
fn keep_busy(address: &str) -> JoinSet<()> {
    let mut busy = JoinSet::new();
    for n in 0..BUSY {
        let address = address.to_owned();
        busy.spawn(async move {
            let mut store = TcpStore::connect(&address).await;
            loop {
                store.set(&format!("busy-{n}"), b"0").await;
                store.add(&format!("busy-{n}"), 1).await;
            }
        });
    }
    busy
}

/// A key set on one connection is read by another, by each operation that can.
async fn set_and_ask(writer: &mut TcpStore, reader: &mut TcpStore, round: u64) {
    let (key, value) = (format!("k{round}"), format!("{round}"));
    writer.set(&key, b"before").await;
    writer.set(&key, value.as_bytes()).await;
    match round % 5 {
        0 => assert!(reader.check(&[&key]).await, "round {round}"),
        1 => assert_eq!(reader.get_now(&key).await, value.as_bytes(), "round {round}"),
        2 => assert_eq!(reader.add(&key, 1).await, round as i64 + 1, "round {round}"),
        3 => {
            let found = reader.compare_set(&key, value.as_bytes(), b"swapped").await;
            assert_eq!(found, b"swapped", "round {round}");
        }
        _ => {
            // The last SET wins, whatever its connection.
            reader.check(&[&key]).await;
            reader.set(&key, b"after").await;
            assert_eq!(writer.get_now(&key).await, b"after", "round {round}");
        }
    }
}

/// All rounds one after the other, and one more whenever a leader has just died.
async fn through_dying_leaders(cluster: &mut Cluster, mut take: impl AsyncFnMut(u64)) {
    for round in 0..ROUNDS {
        if KILLS_AT.contains(&round) {
            let leader = cluster.leader().await;
            cluster.kill(leader);
            take(ROUNDS + round).await;
            cluster.restart(leader).await;
        }
        take(round).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_is_seen_over_any_other_connection() {
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "seen").await;
    let busy = keep_busy(agent.address());
    let mut writer = TcpStore::connect(agent.address()).await;
    let mut reader = TcpStore::connect(agent.address()).await;
    through_dying_leaders(&mut cluster, async |round| {
        set_and_ask(&mut writer, &mut reader, round).await;
    })
    .await;
    drop(busy);
}

/// A key is written without an answer, in each way that there is; then a call of the same client
/// is answered, each that there is; then a client of another host reads the key.
async fn write_ask_and_read_elsewhere(writer: &mut TcpStore, reader: &mut TcpStore, round: u64) {
    let (name, value) = (format!("k{round}"), round.to_string().into_bytes());
    let written = [key(&name), text(&value)].concat();
    let is_queue = round % 4 == 3;
    match round % 4 {
        0 => writer.send(op::SET, &[&written]).await,
        1 => writer.send(op::APPEND, &[&written]).await,
        2 => writer.send(op::MULTI_SET, &[&1_u64.to_le_bytes(), &written]).await,
        _ => writer.send(op::QUEUE_PUSH, &[&written]).await,
    }
    match round % 5 {
        0 => assert!(writer.check(&[&name]).await, "round {round}"),
        1 => assert!(writer.add("asked", 1).await > 0),
        2 => assert!(writer.get_now("never set").await.is_empty()),
        3 => assert_eq!(writer.compare_set("never set", b"no", b"yes").await, b"no"),
        _ => writer.wait(&[&name]).await,
    }
    match round % 3 {
        _ if is_queue => {
            reader.send(op::QUEUE_POP, &[&key(&name)]).await;
            assert_eq!(reader.integer("a QUEUE_POP").await, 1, "round {round}");
            assert_eq!(reader.bytes("what was pushed").await, value, "round {round}");
        }
        0 => assert!(reader.check(&[&name]).await, "round {round}"),
        1 => assert_eq!(reader.get_now(&name).await, value, "round {round}"),
        _ => {
            let found = reader.compare_set(&name, &value, b"swapped").await;
            assert_eq!(found, b"swapped", "round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_is_seen_on_other_hosts_once_a_call_of_its_client_was_answered() {
    let mut cluster = Cluster::start(3).await;
    // Two agents of one run stand for two hosts.
    let mut agents = Vec::new();
    for host in ["h0", "h1"] {
        let control = cluster.folder().join(format!("{host}.sock")).display().to_string();
        let flags = ["--run", "r", "--control", &control];
        agents.push(Agent::start_with(&mut cluster, "elsewhere", &flags).await);
    }
    let mut writer = TcpStore::connect(agents[0].address()).await;
    let mut reader = TcpStore::connect(agents[1].address()).await;
    through_dying_leaders(&mut cluster, async |round| {
        write_ask_and_read_elsewhere(&mut writer, &mut reader, round).await;
    })
    .await;
}

/// Pipelined writes and reads on both sides, on the same keys, in every order: no client
/// waits for ever.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_wait_for_answers_do_not_stop_each_other() {
    const KEYS: u64 = 3;
    const EACH: u64 = 2_000;
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "pipelined").await;
    let mut clients = JoinSet::new();
    for n in 0..4_u64 {
        let mut store = TcpStore::connect(agent.address()).await;
        clients.spawn(async move {
            let mut asked = 0;
            for step in 0..EACH {
                let key = format!("k{}", (step * 7 + n) % KEYS);
                match (step + n) % 3 {
                    0 => store.set(&key, b"1").await,
                    1 => store.start_add(&key, 1).await,
                    _ => store.set(&key, b"2").await,
                }
                asked += u64::from((step + n) % 3 == 1);
            }
            for _ in 0..asked {
                store.integer("an ADD").await;
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.expect("every ADD is answered");
    }
}

/// Rank 0 sets, a collective notifies the others, and they ask.
#[tokio::test(flavor = "multi_thread")]
async fn ranks_of_pytorch_find_what_a_collective_told_them_of() {
    let mut cluster = Cluster::start(3).await;
    let mut agent = binaries::command("holdfast-agent");
    agent.args(["run", "--store", &cluster.list(), "--job", "seen", "--"]);
    agent.arg(python::python()).arg("-u").arg(python::script("seen_by_all.py"));
    agent.args(["--ranks", "3", "--rounds", &ROUNDS.to_string()]);
    let mut program = Script::start_command(&mut cluster, "seen", agent);
    program.says("round 100").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    program.says_anew("round").await;
    cluster.restart(leader).await;
    program.says("found all").await;
    program.succeeds().await;
}
