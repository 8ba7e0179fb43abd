//! Malicious bytes: a clear answer or a closed connection, no panic, bounded memory, and
//! all other clients go on.

use std::time::Duration;

use holdfast_api::{AgentReport, Blob, Condition, Read, RequestBody, Until};
use holdfast_client::Deadline;
use holdfast_tests::cluster::job;
use holdfast_tests::link::Heard;
use holdfast_tests::stream::upgrade;
use holdfast_tests::tcpstore::{MAGIC, TcpStore, key, op, text};
use holdfast_tests::{Adders, Agent, Cluster, RawLink, RawStream, eventually, patiently, soon};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rand::RngExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const MIB: u64 = 1024 * 1024;

/// Memory that a process may gain under attack. Generous: it separates bounded from
/// unbounded, and far more is sent.
const GROWTH_MAX: u64 = 400 * MIB;

/// Connections that are opened and left alone.
const IDLE_CONNECTIONS: u64 = 10_000;

/// How long the other side may take to close a connection by itself before the
/// test closes it.
const ATTACK_TIME: Duration = Duration::from_secs(5);

/// Sends bytes and reads what comes until the connection closes or a while has
/// passed. A reset is an answer too.
async fn attack(address: &str, bytes: &[u8]) {
    let mut stream = connect(address).await;
    let mut answer = Vec::new();
    let exchange = async {
        drop(stream.write_all(bytes).await);
        drop(stream.shutdown().await);
        drop(stream.read_to_end(&mut answer).await);
    };
    drop(tokio::time::timeout(ATTACK_TIME, exchange).await);
}

/// Sends bytes and reads until the head of an HTTP answer is there, or the
/// connection closes without one.
async fn head_of_answer(address: &str, bytes: &[u8]) -> String {
    let mut stream = connect(address).await;
    let mut answer = Vec::new();
    let exchange = async {
        // A node may answer and close before it has read all.
        drop(stream.write_all(bytes).await);
        let mut chunk = [0; 4096];
        while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
            match stream.read(&mut chunk).await {
                Ok(count @ 1..) => answer.extend_from_slice(&chunk[..count]),
                Ok(0) | Err(_) => break,
            }
        }
    };
    patiently("an HTTP answer", exchange).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn connect(address: &str) -> TcpStream {
    let stream = patiently("a connection", TcpStream::connect(address)).await;
    stream.unwrap_or_else(|error| panic!("{address} does not accept: {error}"))
}

fn random_bytes(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rand::rng().fill(&mut bytes[..]);
    bytes
}

/// A frame of the stream that claims `length` bytes and holds `body`.
fn frame(length: u32, body: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes()[..], body].concat()
}

/// A frame with a correct length.
fn whole_frame(body: &[u8]) -> Vec<u8> {
    frame(u32::try_from(body.len()).expect("a short frame"), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_survives_any_bytes_on_its_port() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), 8);
    load.progress(20).await;
    let leader = cluster.leader().await;
    let node = cluster.address(leader).to_owned();
    let before = cluster.process(leader).resident_bytes();

    let deep = "[".repeat(200_000);
    let deep = format!(
        "POST /v1/kv/put HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{deep}",
        deep.len()
    );
    let header =
        format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let body = "POST /v1/kv/put HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let attacks: Vec<Vec<u8>> = vec![
        b"GET /v1/kv".to_vec(),
        b"\r\n\r\n\r\n".to_vec(),
        header.into_bytes(),
        format!("{body}content-length: 1000000\r\n\r\n{{").into_bytes(),
        format!("{body}content-length: 18446744073709551615\r\n\r\n{{").into_bytes(),
        format!("{body}content-length: -1\r\n\r\n").into_bytes(),
        format!("{body}transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n").into_bytes(),
        deep.into_bytes(),
        // HTTP/2, and then not.
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), random_bytes(5000)].concat(),
        // A TCPStore client at the wrong door.
        [&[op::VALIDATE][..], &MAGIC.to_le_bytes(), &random_bytes(50)].concat(),
    ];
    for bytes in &attacks {
        attack(&node, bytes).await;
    }
    for length in (0..60).map(|n| n * 100) {
        attack(&node, &random_bytes(length)).await;
    }
    // A body longer than any command is refused with words.
    let huge = vec![b' '; 40 << 20];
    let huge = [format!("{body}content-length: {}\r\n\r\n", huge.len()).as_bytes(), &huge].concat();
    let answer = head_of_answer(&node, &huge).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");

    // Half requests that never go on, while the others do.
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = connect(&node).await;
        stream
            .write_all(b"POST /v1/kv/put HTTP/1.1\r\nhost: localhost\r\ncontent-le")
            .await
            .expect("open");
        slow.push(stream);
    }
    load.progress(50).await;
    drop(slow);

    let grown = cluster.process(leader).resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the node gained {} MiB", grown / MIB);
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_survives_any_frames_on_its_stream() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), 8);
    load.progress(20).await;
    let leader = cluster.leader().await;
    let node = cluster.address(leader).to_owned();
    let before = cluster.process(leader).resident_bytes();

    // Each of these ends its connection.
    for bytes in [
        frame(u32::MAX, b""),
        frame(64 * 1024 * 1024 + 1, b"x"),
        whole_frame(&random_bytes(100)),
        whole_frame(b""),
        // A list of 4 294 967 295, a text of as many bytes, a map of as many.
        whole_frame(&[0xdd, 0xff, 0xff, 0xff, 0xff]),
        whole_frame(&[0x91, 0xdb, 0xff, 0xff, 0xff, 0xff]),
        whole_frame(&[0x91, 0xdf, 0xff, 0xff, 0xff, 0xff]),
        // Lists in lists, deeper than any stack.
        whole_frame(&vec![0x91; 1 << 20]),
        // A list with a number.
        whole_frame(&[0x91, 0x07]),
    ] {
        let mut stream = RawStream::open(&node).await.expect("a stream");
        drop(stream.send_raw(&bytes).await);
        stream.closed().await;
    }
    for _ in 0..100 {
        let mut stream = upgrade(&node).await.expect("a stream");
        let length = rand::random_range(0..2000);
        drop(stream.write_all(&random_bytes(length)).await);
    }
    // Long frames that were announced and never come.
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let mut stream = upgrade(&node).await.expect("a stream");
        stream.write_all(&frame(64 * 1024 * 1024, b"begun")).await.expect("it reads");
        waiting.push(stream);
    }
    load.progress(50).await;
    let grown = cluster.process(leader).resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "100 announced frames cost {} MiB", grown / MIB);
    drop(waiting);

    // A client that asks and never reads.
    let mut deaf = upgrade(&node).await.expect("a stream");
    let ask = holdfast_api::Request { id: 1, body: RequestBody::Status };
    let asks = rmp_serde::to_vec_named(&vec![ask; 1000]).expect("requests are values");
    let asking = async {
        for _ in 0..100 {
            if deaf.write_all(&whole_frame(&asks)).await.is_err() {
                break;
            }
        }
    };
    drop(tokio::time::timeout(ATTACK_TIME, asking).await);
    load.progress(50).await;
    let grown = cluster.process(leader).resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the node gained {} MiB", grown / MIB);
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
}

/// Clients that send many requests and read nothing, and the requests of each.
const DEAF: usize = 70;
const LISTINGS: usize = 400;
/// Bound on serving others at the same time.
const SERVED_TIME_MAX: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_ask_for_much_and_read_nothing_hold_up_nobody() {
    others_are_served_beside_deaf_clients(Cluster::start(3).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_ask_for_much_and_read_nothing_hold_up_nobody_over_tls() {
    let mut cluster = Cluster::plan(3, &[]);
    cluster.make_certificates().await;
    for id in cluster.ids() {
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    others_are_served_beside_deaf_clients(cluster).await;
}

async fn others_are_served_beside_deaf_clients(cluster: Cluster) {
    let keys = cluster.client().keys(job("listed"));
    for n in 0..64 {
        keys.put(format!("k{n}").as_str(), vec![b'v'; 16 * 1024], soon()).await.expect("a put");
    }
    let leader = cluster.leader().await;
    let node = cluster.address(leader).to_owned();
    let list = Read::List {
        scope: job("listed"),
        prefix: Blob::default(),
        after: None,
        limit: 0,
        keys_only: false,
    };
    let list = RequestBody::Read { read: list, stale: false };
    let asks: Vec<_> = (0..LISTINGS)
        .map(|id| holdfast_api::Request { id: id as u64, body: list.clone() })
        .collect();
    let asks = whole_frame(&rmp_serde::to_vec_named(&asks).expect("requests are values"));
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        let tls = cluster.credentials().tls;
        let mut stream = RawStream::open_with(tls.as_ref(), &node, &[]).await.expect("a stream");
        stream.send_raw(&asks).await.expect("it reads");
        deaf.push(stream);
    }
    // After all of them, on a connection of its own.
    let keys = cluster.client_of(&[leader]).keys(job("served"));
    for _ in 0..10 {
        let soon = Deadline::after(SERVED_TIME_MAX);
        keys.put("k", "v", soon).await.expect("a put beside them");
        let listed = keys.list("k", None, 0, soon).await.expect("a listing beside them");
        assert_eq!(listed.entries.len(), 1);
    }
    drop(deaf);
}

/// Streams that each announce the longest frame: several times as many as there is room for
/// among those that name no job.
const SLOW: usize = 12;

/// What an agent of this job reports.
fn report(job: &str) -> AgentReport {
    AgentReport {
        id: String::new(),
        host: "h".to_owned(),
        pid: 1,
        version: "0".to_owned(),
        job: job.parse().expect("a name"),
        run: "r1".parse().expect("a name"),
        listens: "127.0.0.1:1".to_owned(),
        draining: false,
        clients: Vec::new(),
        clients_left_out: 0,
        waits: Vec::new(),
        waits_left_out: 0,
        processes: Vec::new(),
        ended: Vec::new(),
        tells_quiet: true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_frames_that_come_slowly_hold_up_no_other_job() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let node = cluster.address(leader).to_owned();
    let mut slow = JoinSet::new();
    for _ in 0..SLOW {
        let mut stream = upgrade(&node).await.expect("a stream");
        stream.write_all(&frame(64 * 1024 * 1024, b"begun")).await.expect("it reads");
        slow.spawn(async move {
            // Half a MiB each second, until it is closed.
            let piece = vec![0_u8; 128 * 1024];
            while stream.write_all(&piece).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        });
    }
    // An agent comes back: its report, and then a frame that needs room.
    let many = (0..4_000).map(|n| Blob::from(format!("{n:0>100}"))).collect();
    let check = Read::Check { scope: job("served"), keys: many };
    for _ in 0..10 {
        let mut stream = RawStream::open(&node).await.expect("a stream");
        let exchange = async {
            let told = RequestBody::Report(report("served"));
            stream.post(told).await.expect("it reads");
            stream.ask(RequestBody::Status).await.expect("a status");
            let read = RequestBody::Read { read: check.clone(), stale: false };
            stream.ask(read).await.expect("an answer")
        };
        let answer = tokio::time::timeout(SERVED_TIME_MAX, exchange).await;
        let answer = answer.expect("it waits for streams that name no job");
        assert!(matches!(answer, holdfast_api::ReplyBody::Read(_)), "{answer:?}");
    }
    // All that is held is given back by those that are slow while others wait.
    let named = cluster.process(leader);
    named.says("came too slowly while others waited for room").await;
    drop(slow);
}

/// Asks for a vote in the last term that there can be, past every leader lease.
fn of_the_last_term(ask: &str) -> Vec<u8> {
    let vote = serde_json::json!({ "term": u64::MAX, "node": 77, "committed": false });
    let last = serde_json::json!({ "term": u64::MAX, "node": 77, "index": u64::MAX });
    let ballot = serde_json::json!({ "vote": vote, "last": last, "transfer": true });
    rmp_serde::to_vec_named(&serde_json::json!({ ask: ballot })).expect("it can be encoded")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_survives_any_bytes_between_nodes() {
    // Patient nodes: a leader that is unseated here was attacked, not starved.
    let flags = ["--election-min", "6s", "--election-max", "9s"];
    let mut cluster = Cluster::start_with(3, &flags).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), 8);
    load.progress(20).await;
    let (follower, leader) = cluster.follower_and_leader().await;
    let term = cluster.status_of(leader).await.term;
    let cluster_id = cluster.status_of(leader).await.cluster_id;
    let hello = |cluster_id: &str, to: u64| {
        serde_json::json!({
            "cluster_id": cluster_id, "node": 77, "to": to, "version": "0", "feature_level": 1,
            "boot": 7, "log_at_boot": 0, "witness": null,
        })
        .to_string()
    };
    for target in [leader, follower] {
        let node = cluster.address(target).to_owned();
        let before = cluster.process(target).resident_bytes();
        let open = |channel: &str, hello: &str| {
            format!(
                "GET /raft/v1/channel/{channel} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: holdfast-raft/1\r\nholdfast-peer: {hello}\r\n\r\n"
            )
        };
        let stranger = open("append", &hello("another", target));
        let stranger = head_of_answer(&node, stranger.as_bytes()).await;
        assert!(stranger.starts_with("HTTP/1.1 409"), "{stranger}");
        for wrong in ["{}", "x", ""] {
            let answer = head_of_answer(&node, open("append", wrong).as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{wrong:?}: {answer}");
        }
        let mut announced = Vec::new();
        for channel in ["append", "heartbeat", "control", "snapshot"] {
            let opened = open(channel, &hello(&cluster_id, target));
            for garbage in [
                random_bytes(300),
                vec![0xff; 64],
                frame(u32::MAX, b""),
                frame(3, b"\xdd\xff\xff"),
                [0; 4].repeat(100),
                whole_frame(&vec![0x91; 1 << 20]),
                whole_frame(&of_the_last_term("vote")),
                whole_frame(&of_the_last_term("pre_vote")),
            ] {
                attack(&node, &[opened.as_bytes(), &garbage].concat()).await;
            }
            for length in [8 * 1024 * 1024_u32, 256 * 1024 * 1024] {
                for bytes in [length.to_le_bytes(), length.to_be_bytes()] {
                    let mut stream = connect(&node).await;
                    drop(stream.write_all(&[opened.as_bytes(), &bytes, b"begun"].concat()).await);
                    announced.push(stream);
                }
            }
        }
        load.progress(30).await;
        let named = cluster.process(target);
        named.says("belongs to cluster another, this one is").await;
        named.says("it is of term 18446744073709551615, and this node is in term").await;
        named.says("frame size too big").await;
        let grown = cluster.process(target).resident_bytes().saturating_sub(before);
        assert!(grown < GROWTH_MAX, "node {target} gained {} MiB", grown / MIB);
    }
    load.progress(50).await;
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
    let status = cluster.status_of(leader).await;
    assert_eq!((status.term, status.leader), (term, Some(leader)), "a stranger was believed");
    cluster.agreement(&job("load")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_survives_any_bytes_on_its_port() {
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "hostile").await;
    let address = agent.address().to_owned();
    let mut good = TcpStore::connect(&address).await;
    good.set("k", b"v").await;
    assert_eq!(good.get("k").await, b"v");
    let before = agent.process.resident_bytes();

    let hello = [&[op::VALIDATE][..], &MAGIC.to_le_bytes()].concat();
    let long = u64::MAX.to_le_bytes();
    // Each of these closes its one connection, with a reason in the log.
    let mut closed: Vec<(&str, Vec<u8>)> = vec![
        ("not VALIDATE", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("no TCPStore client", [&[op::VALIDATE][..], b"abcd"].concat()),
    ];
    for (reason, message) in [
        ("second VALIDATE", hello.clone()),
        ("unknown operation 99", vec![99]),
        ("key_bytes_max", [&[op::SET][..], &long].concat()),
        ("key_bytes_max", [&[op::GET][..], &8193_u64.to_le_bytes()].concat()),
        ("value_bytes_max", [&[op::SET][..], &key("k"), &long].concat()),
        ("value_bytes_max", [&[op::APPEND][..], &key("k"), &(8 * MIB + 1).to_le_bytes()].concat()),
        ("keys_per_message_max", [&[op::WAIT][..], &long].concat()),
        ("keys_per_message_max", [&[op::MULTI_SET][..], &131_073_u64.to_le_bytes()].concat()),
    ] {
        closed.push((reason, [&hello[..], &message].concat()));
    }
    for (reason, bytes) in closed {
        let mut stream = connect(&address).await;
        let peer = stream.local_addr().expect("a connected socket").to_string();
        drop(stream.write_all(&bytes).await);
        let mut answer = Vec::new();
        drop(patiently(reason, stream.read_to_end(&mut answer)).await);
        let line = eventually("a reason in the log", async || {
            agent.process.said().lines().find(|line| line.contains(&peer)).map(str::to_owned)
        })
        .await;
        assert!(line.contains(reason), "{reason:?} is missing: {line}");
    }
    for _ in 0..200 {
        let length = rand::random_range(0..3000);
        let mut bytes = hello.clone();
        bytes.extend(random_bytes(length));
        let mut stream = connect(&address).await;
        drop(stream.write_all(&bytes).await);
    }
    // Half of the biggest value, a hundred times, left lying.
    let mut halves = Vec::new();
    for _ in 0..100 {
        let mut stream = connect(&address).await;
        let message =
            [&hello[..], &[op::SET], &key("half"), &(8 * MIB).to_le_bytes(), &[7; 65_536]].concat();
        stream.write_all(&message).await.expect("it reads");
        halves.push(stream);
    }
    // A slow friendly client: one byte at a time is a whole message in the end.
    let mut slow = TcpStore::connect(&address).await;
    for byte in [&[op::SET][..], &key("slow"), &text(b"but sure")].concat() {
        slow.send_raw(&[byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(slow.get("slow").await, b"but sure");

    assert_eq!(good.get("k").await, b"v", "the first connection goes on");
    assert!(!good.check(&["half"]).await, "half a message is none");
    let grown = agent.process.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the agent gained {} MiB", grown / MIB);
}

/// Waits of one program, and the keys of each: nearly as many as fit into a frame.
const LARGE_WAITS: u64 = 34;
const LONG_KEYS: usize = 520;

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_waits_for_much_keeps_no_other_from_waiting() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "waits").await;
    let control = agent.control().await;
    let asking = tokio::task::spawn_blocking(move || {
        let mut link = RawLink::open(&control).expect("an agent");
        let scope = link.scope();
        for seq in 1..=LARGE_WAITS {
            let key = |n| Blob::from(format!("{seq}-{n:08000}"));
            let conditions =
                (0..LONG_KEYS).map(|n| Condition { key: key(n), until: Until::Exists });
            let (scope, conditions) = (scope.clone(), conditions.collect());
            let wait = RequestBody::Wait { scope, conditions, since: None };
            link.begin(seq, wait).expect("the agent reads");
        }
        // Answered when all of them are taken in.
        let mut heard = link.ask(0, Read::Get { scope, key: "/k".into() });
        let mut refused = Vec::new();
        loop {
            match heard.expect("an answer") {
                Heard::Problem { seq, problem } => refused.push((seq, problem)),
                Heard::ReadAnswer { seq: 0 } => break (link, refused),
                other => panic!("{other:?}"),
            }
            heard = link.hear();
        }
    });
    let (link, refused) = asking.await.expect("all was answered");

    let mut waiting = TcpStore::connect(agent.address()).await;
    let mut setting = TcpStore::connect(agent.address()).await;
    waiting.start_wait(&["k"]).await;
    setting.set("k", b"v").await;
    assert_eq!(waiting.byte("a WAIT").await, 0);

    assert_eq!(refused.len() as u64, LARGE_WAITS - 1, "the first is one that may be");
    for (seq, problem) in refused {
        assert!(seq > 1 && problem.retryable, "{seq}: {problem}");
        assert!(problem.message.contains("bytes long together"), "{problem}");
    }
    drop(link);
}

/// As many open files as the system allows this process and its children.
fn raise_open_files() -> u64 {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to the hard limit");
    hard
}

/// Opens connections that send nothing, or the bytes of `first`.
async fn open_idle(address: &str, count: u64, first: &'static [u8]) -> Vec<TcpStream> {
    const AT_ONCE: u64 = 100;
    let mut idle = Vec::new();
    while (idle.len() as u64) < count {
        let mut opening = JoinSet::new();
        for _ in 0..AT_ONCE.min(count - idle.len() as u64) {
            let address = address.to_owned();
            opening.spawn(async move {
                let mut stream = connect(&address).await;
                stream.write_all(first).await.expect("a connection that is accepted");
                stream
            });
        }
        while let Some(opened) = opening.join_next().await {
            idle.push(opened.expect("connecting does not panic"));
        }
    }
    idle
}

/// How many idle connections this machine allows.
fn idle_count() -> u64 {
    let allowed = raise_open_files().saturating_sub(500);
    if allowed < IDLE_CONNECTIONS {
        eprintln!(
            "only {allowed} connections: raise the hard limit of open files for {IDLE_CONNECTIONS}"
        );
    }
    allowed.min(IDLE_CONNECTIONS)
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_idle_connections_cost_a_node_little() {
    let count = idle_count();
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), 8);
    load.progress(20).await;
    let leader = cluster.leader().await;
    let before = cluster.process(leader).resident_bytes();
    let idle = open_idle(cluster.address(leader), count, b"GET").await;
    load.progress(50).await;
    // One more is served as well.
    cluster.status_of(leader).await;
    let grown = cluster.process(leader).resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{count} connections cost {} MiB", grown / MIB);
    drop(idle);
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_idle_connections_cost_an_agent_little() {
    // It keeps descriptors back for other things.
    let count = idle_count().min(raise_open_files() / 2);
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "idle").await;
    let before = agent.process.resident_bytes();
    let mut idle = open_idle(agent.address(), count, b"\x00\xce\xf7\x85\x3c").await;
    let mut store = TcpStore::connect(agent.address()).await;
    assert_eq!(store.add("n", 1).await, 1);
    let grown = agent.process.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{count} connections cost {} MiB", grown / MIB);
    // Each of them is alive: a PING comes back.
    for stream in &mut idle {
        stream.write_all(&[op::PING, 1, 2, 3, 4]).await.expect("it is open");
        let mut nonce = [0; 4];
        patiently("a PING", stream.read_exact(&mut nonce)).await.expect("it is open");
        assert_eq!(nonce, [1, 2, 3, 4]);
    }
}
