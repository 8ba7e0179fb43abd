//! Clients that are rude while their agent is killed.

use std::time::Duration;

use holdfast_tests::command::{Command, process_at};
use holdfast_tests::tcpstore::{TcpStore, key, op, text};
use holdfast_tests::{Cluster, eventually, patiently};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Kills the agent of a command, and waits for the next one.
async fn kill_agent(command: &Command) {
    let before = process_at(&command.control).await;
    kill(Pid::from_raw(before), Signal::SIGKILL).expect("it is ours");
    eventually("another agent", async || {
        (process_at(&command.control).await != before).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_come_and_go_while_an_agent_is_killed_harm_nobody() {
    const CONNECTIONS: usize = 1_000;
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "crowd", &["--job", "crowd"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    let mut waits = TcpStore::connect(&command.address).await;
    waits.start_wait(&["over"]).await;
    let mut crowd = JoinSet::new();
    for n in 0..CONNECTIONS {
        let address = command.address.clone();
        crowd.spawn(async move {
            tokio::time::sleep(Duration::from_millis(n as u64 * 2)).await;
            match n % 4 {
                // Closed at once, before or after it is accepted.
                0 => drop(TcpStream::connect(&address).await),
                1 => {
                    let mut garbage = TcpStore::connect_as(&address, 7).await;
                    garbage.send_raw(b"GET / HTTP/1.1\r\n\r\n").await;
                }
                // Closed in the middle of a message.
                2 => {
                    let mut cut = TcpStore::connect(&address).await;
                    cut.send_raw(&[&[op::SET][..], &key("cut"), &9_u64.to_le_bytes()].concat())
                        .await;
                }
                _ => {
                    let mut one = TcpStore::connect(&address).await;
                    one.add("crowd", 1).await;
                }
            }
        });
    }
    for kills in 1..4 {
        assert_eq!(store.add("n", 1).await, kills);
        kill_agent(&command).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    while let Some(gone) = crowd.join_next().await {
        gone.expect("a client of the crowd");
    }
    assert_eq!(store.add("n", 1).await, 4);
    assert_eq!(store.add("crowd", 0).await, (CONNECTIONS / 4) as i64, "each once");
    assert!(!store.check(&["cut"]).await, "half a message has no effect");
    store.set("over", b"").await;
    assert_eq!(waits.byte("a WAIT").await, 0);
    // The keeper holds no connection that has ended: two descriptors for each that has not.
    let keeper = parent_of(process_at(&command.control).await);
    eventually("the keeper to let go of the crowd", async || {
        let open = std::fs::read_dir(format!("/proc/{keeper}/fd")).expect("it is ours").count();
        (open < 100).then_some(())
    })
    .await;
    command.end(0).await;
}

fn parent_of(process: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let rest = stat.rsplit(')').next().expect("a name in brackets");
    rest.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()).expect("its parent")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_reads_late_gets_each_answer_once_through_kills() {
    const ANSWERS: usize = 200;
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "late", &["--job", "late"]).await;
    let mut late = TcpStore::connect(&command.address).await;
    let value = vec![b'v'; 64 * 1024];
    late.set("big", &value).await;
    let mut asked = Vec::new();
    for _ in 0..ANSWERS {
        asked.extend([&[op::ADD][..], &key("n"), &1_i64.to_le_bytes()].concat());
        asked.extend([&[op::GET][..], &key("big")].concat());
    }
    // More than the sockets hold, and not read.
    late.send_raw(&asked).await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        kill_agent(&command).await;
    }
    for n in 1..=ANSWERS as i64 {
        assert_eq!(late.integer("an ADD").await, n);
        assert_eq!(late.bytes("a GET").await, value);
    }
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_kills_cut_into_pieces_is_one() {
    const PIECES: usize = 8;
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "cut", &["--job", "cut"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    let value: Vec<u8> = (0..7 * 1024 * 1024).map(|n: u32| (n % 251) as u8).collect();
    let message = [&[op::SET][..], &key("cut"), &text(&value)].concat();
    let mut other = TcpStore::connect(&command.address).await;
    for piece in message.chunks(message.len().div_ceil(PIECES)) {
        assert!(!other.check(&["cut"]).await, "it has no effect before it is complete");
        // The agent is killed while it reads that.
        let (_, ()) = tokio::join!(
            patiently("the agent to read", store.send_raw(piece)),
            kill_agent(&command)
        );
    }
    assert_eq!(store.get("cut").await, value);
    // A message above the limit of a value closes its connection, also after the kills.
    let long = [&[op::SET][..], &key("long"), &(64_u64 << 20).to_le_bytes()].concat();
    store.send_raw(&[long, vec![0; 1024 * 1024]].concat()).await;
    kill_agent(&command).await;
    assert!(store.is_closed().await);
    assert!(!other.check(&["long"]).await);
    command.end(0).await;
}
