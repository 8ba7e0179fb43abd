//! A launch that would end another one, or read its keys, is not started.

use holdfast_tests::command::{COMES, Command, WAITS, process_at};
use holdfast_tests::tcpstore::{TcpStore, key, op};
use holdfast_tests::{Agent, Cluster, Process, binaries, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Every part stands in the text.
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_launch_of_a_job_ends_the_first_only_on_purpose() {
    let mut cluster = Cluster::start(1).await;
    let mut first = Command::start(&mut cluster, "first", &["--job", "guard"]).await;
    first.agent.says("job guard run r1 (a new run)").await;
    let mut store = TcpStore::connect(&first.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    eventually("the client to be known", async || {
        let agents = cluster.cli_ok(&["--job", "guard", "-o", "json", "agent", "list"]).await;
        agents.contains("\"connections\":1").then_some(())
    })
    .await;

    let flags = ["--job", "guard"];
    let (mut second, _) = Agent::run(&mut cluster, "second", &flags, &["sh", "-c", "exit 3"]);
    assert_eq!(second.ended().await.code(), Some(125), "{}", second.said());
    let (said, list) = (second.said(), cluster.list());
    let other = format!("holdfast-agent run --job guard-2 --store {list} -- sh -c 'exit 3'");
    let over =
        format!("holdfast-agent run --takeover --store {list} --job guard -- sh -c 'exit 3'");
    let held = "not started: job guard is in use: its run r1 has been open for";
    assert_says(&said, &[held, "1 agent holds it", "1 process is connected", &other, &over]);
    let refused = cluster.cli_fails(1, &["--job", "guard", "run", "open", "mine"]).await;
    assert_says(&refused, &["its run r1 has been open for", "run open NAME --takeover"]);
    let address = format!("127.0.0.1:{}", cluster.port());
    let mut serve = binaries::command("holdfast-agent");
    serve.args(["serve", "--store", &list, "--job", "guard", "--run", "mine"]);
    serve.args(["--tcpstore", &address]);
    let ended = holdfast_tests::Ended::of(serve).await;
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert_says(&ended.stderr, &["its run r1 has been open for", "serve --takeover"]);
    assert_eq!(store.add("n", 1).await, 2, "nothing has ended it");

    let flags = ["--job", "guard", "--takeover"];
    let (mut third, _) = Agent::run(&mut cluster, "third", &flags, &["sh", "-c", "exit 4"]);
    assert_eq!(third.ended().await.code(), Some(4), "{}", third.said());
    third.says("this ended run r1 of job guard").await;
    store.send(op::ADD, &[&key("n"), &1_i64.to_le_bytes()]).await;
    assert!(store.is_closed().await, "its run is over");
    first.end(0).await;
    // No agent holds the job any more: no takeover is needed, and one does no harm.
    cluster.cli_ok(&["--job", "guard", "run", "open", "mine"]).await;
    cluster.cli_ok(&["--job", "guard", "run", "open", "yours", "--takeover"]).await;
}

/// For sh: runs its arguments eight times at once, and prints how each has ended.
const EIGHT_AT_ONCE: &str = "for n in 1 2 3 4 5 6 7 8; do \
                             { \"$@\"; echo \"ended with $?\"; } & done; wait";

/// Nothing names them: no flag, and no launcher's variables.
#[tokio::test(flavor = "multi_thread")]
async fn of_eight_commands_that_a_shell_starts_at_once_one_runs_and_the_others_are_told_of_it() {
    let mut cluster = Cluster::start(1).await;
    let (order, list) = (cluster.folder().join("end"), cluster.list());
    let mut shell = binaries::without_settings("sh");
    shell.args(["-c", EIGHT_AT_ONCE, "shell"]).arg(binaries::path("holdfast-agent"));
    shell.args(["run", "--store", &list, "--", "sh", "-c", WAITS]).arg(&order);
    // Two minutes, for as long as others may take to be refused.
    shell.env("WAIT_TURNS", "2400");
    let mut shell = Process::start("the shell", shell, &cluster.keep_log("shell"));
    let line = shell.says("place 127.0.0.1:").await;
    let place = line.strip_prefix("place ").and_then(|rest| rest.split_once(" of "));
    let (address, _) = place.unwrap_or_else(|| panic!("{line:?}"));
    let mut store = TcpStore::connect(address).await;
    assert_eq!(store.add("n", 1).await, 1);
    eventually("seven of them to be refused", async || {
        (shell.said().matches("ended with 125").count() == 7).then_some(())
    })
    .await;
    assert_eq!(store.add("n", 1).await, 2, "none of them has ended it");
    let runs = cluster.cli_ok(&["--job", "default", "run", "list"]).await;
    let names: Vec<_> = runs.lines().skip(1).map(|run| run.split_whitespace().next()).collect();
    assert_eq!(names, [Some("r1")], "{runs}");

    let said = shell.said();
    let refused = "not started: job default is in use: its run r1 has been open for ";
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("it has a name");
    let holder = format!(", and 1 agent holds it ({})", host.trim());
    let told = said.lines().filter(|line| line.contains(refused) && line.contains(&holder));
    assert_eq!(told.count(), 7, "{said}");
    let beside = format!("holdfast-agent run --job default-2 --store {list} -- sh -c ");
    let over = format!("holdfast-agent run --takeover --store {list} -- sh -c ");
    for line in [beside, over] {
        assert_eq!(said.matches(&line).count(), 7, "{line:?} in {said}");
    }
    std::fs::write(&order, "0").expect("the folder is ours");
    assert!(shell.ended().await.success());
    assert_eq!(shell.said().matches("ended with 0").count(), 1, "{}", shell.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_are_started_one_by_one_meet_and_none_is_there_twice() {
    let mut cluster = Cluster::start(1).await;
    let rank = |rank: &'static str| [("RANK", rank), ("WORLD_SIZE", "2")];
    let flags = ["--job", "ranks"];
    let mut first = Command::start_with(&mut cluster, "rank-0", &rank("0"), &flags).await;
    let mut second = Command::start_with(&mut cluster, "rank-1", &rank("1"), &flags).await;
    first.agent.says("job ranks run r1 (a new run)").await;
    second.agent.says("job ranks run r1 (the run of another command of this host)").await;
    assert_eq!(first.address, second.address);

    let again = async |cluster: &mut Cluster, name: &str| {
        let command = ["sh", "-c", WAITS, "/dev/null"];
        let (mut twice, _) = Agent::run_with(cluster, name, &rank("0"), &flags, &command);
        assert_eq!(twice.ended().await.code(), Some(125), "{}", twice.said());
        twice.said()
    };
    let said = again(&mut cluster, "twice").await;
    let here = "in its run r1, rank 0 is running here already: process ";
    assert_says(&said, &[here, "run --job ranks-2 ", "run --takeover "]);
    // A rank that has ended does not come back while the others run.
    first.end(0).await;
    let said = again(&mut cluster, "late").await;
    assert_says(&said, &["rank 0 has ended here already", "run --job ranks-2 "]);
    second.end(0).await;
    let next = Command::start_with(&mut cluster, "next", &rank("0"), &flags).await;
    next.end(0).await;
    let runs = cluster.cli_ok(&["--job", "ranks", "run", "list"]).await;
    assert_says(&runs, &["r1", "r2"]);
}

/// Variables of a rank on a host of its own: with another agent.
fn rank_on<'v>(
    folder: &'v str,
    rank: &'v str,
    world_size: &'v str,
) -> [(&'static str, &'v str); 3] {
    [("RANK", rank), ("WORLD_SIZE", world_size), ("HOLDFAST_RUNTIME_DIR", folder)]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_launch_on_other_hosts_does_not_join_the_first() {
    let mut cluster = Cluster::start(1).await;
    let folders = ["h0", "h1", "h2"].map(|host| cluster.folder().join(host).display().to_string());
    let flags = ["--job", "ranks"];
    let [on_0, on_1] = [rank_on(&folders[0], "0", "2"), rank_on(&folders[1], "1", "2")];
    let first = Command::start_with(&mut cluster, "first-0", &on_0, &flags).await;
    let mut second = Command::start_with(&mut cluster, "first-1", &on_1, &flags).await;
    second.agent.says("job ranks run r1 (an open run, 1 other agent is in it)").await;

    let refused = async |cluster: &mut Cluster, name: &str, rank: &str, world_size: &str| {
        let command = ["sh", "-c", WAITS, "/dev/null"];
        let variables = rank_on(&folders[2], rank, world_size);
        let (mut other, _) = Agent::run_with(cluster, name, &variables, &flags, &command);
        assert_eq!(other.ended().await.code(), Some(125), "{}", other.said());
        other.said()
    };
    let here = "in its run r1, rank 1 is running on host ";
    let said = refused(&mut cluster, "second-1", "1", "2").await;
    assert_says(&said, &[here, " already: process ", "run --job ranks-2 ", "run --takeover "]);
    let said = refused(&mut cluster, "larger", "3", "4").await;
    let here = "of a launch with WORLD_SIZE=2 is running on host ";
    assert_says(&said, &[here, "WORLD_SIZE=4", "run --job ranks-2 ", "run --takeover "]);

    // A rank that has failed comes back on any host.
    second.agent.signal(Signal::SIGTERM);
    assert_ne!(second.agent.ended().await.code(), Some(0));
    let moved = rank_on(&folders[2], "1", "2");
    let mut moved = Command::start_with(&mut cluster, "moved", &moved, &flags).await;
    moved.agent.says("job ranks run r1 (").await;
    // As when its host loses power.
    let agent = Pid::from_raw(process_at(&moved.control).await);
    moved.agent.signal(Signal::SIGSTOP);
    kill_with_keeper(agent);
    moved.agent.kill();
    std::fs::write(&moved.order, "0").expect("the folder is ours");
    let mut back = Command::start_with(&mut cluster, "back", &on_1, &flags).await;
    back.agent.says("job ranks run r1 (").await;
    back.end(0).await;
    first.end(0).await;
}

/// Kills an agent, and its keeper first: as when the host of both loses power.
fn kill_with_keeper(agent: Pid) {
    let status = std::fs::read_to_string(format!("/proc/{agent}/status")).expect("it runs");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("it has one");
    let keeper = Pid::from_raw(parent.trim().parse().expect("a number"));
    kill(keeper, Signal::SIGKILL).expect("it is ours");
    // It may have ended with its keeper.
    let _ = kill(agent, Signal::SIGKILL);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_is_done_does_not_come_back_when_its_agent_is_replaced() {
    let mut cluster = Cluster::start(1).await;
    let rank = |rank: &'static str| [("RANK", rank), ("WORLD_SIZE", "2")];
    let flags = ["--job", "done"];
    let first = Command::start_with(&mut cluster, "rank-0", &rank("0"), &flags).await;
    let mut second = Command::start_with(&mut cluster, "rank-1", &rank("1"), &flags).await;
    first.end(0).await;
    eventually("the end to be noted", async || {
        let keys = ["--job", "done", "kv", "get", "@launch:part:rank 0"];
        cluster.cli_ok(&keys).await.contains("\"is_done\":true").then_some(())
    })
    .await;
    let agent = Pid::from_raw(process_at(&second.control).await);
    kill(agent, Signal::SIGKILL).expect("it is ours");
    second.agent.says("another agent serves run r1").await;
    let command = ["sh", "-c", WAITS, "/dev/null"];
    let (mut late, _) = Agent::run_with(&mut cluster, "late", &rank("0"), &flags, &command);
    assert_eq!(late.ended().await.code(), Some(125), "{}", late.said());
    assert_says(&late.said(), &["rank 0 has ended on host ", "run --job done-2 "]);
    second.end(0).await;
}

/// A TCPStore client with this rank, which runs until it is killed.
fn rank_at(cluster: &mut Cluster, name: &str, agent: &Agent, rank: &str) -> Process {
    let mut command = binaries::without_settings("bash");
    let (host, port) = agent.host_and_port();
    command.args(["-c", &format!("{COMES}\necho there; exec sleep 600")]);
    command.envs([("RANK", rank), ("MASTER_ADDR", host), ("MASTER_PORT", port)]);
    Process::start(name, command, &cluster.keep_log(name))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_launch_of_plain_ranks_is_told_whose_keys_it_meets() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "plain").await;
    let mut launch = Vec::new();
    for (name, rank) in [("first-0", "0"), ("first-1", "1")] {
        let mut process = rank_at(&mut cluster, name, &agent, rank);
        process.says("there").await;
        launch.push(process);
    }
    let known = async |ranks: usize| {
        eventually("the ranks to be known", async || {
            let agents = cluster.cli_ok(&["--job", "plain", "-o", "json", "agent", "list"]).await;
            let agents: serde_json::Value = serde_json::from_str(&agents).expect("a document");
            let report = &agents["agents"][0];
            let clients = report["clients"].as_array()?.iter();
            let here = clients.filter(|client| client["rank"].is_u64()).count();
            (here == ranks).then_some(())
        })
        .await;
    };
    known(2).await;
    for process in &mut launch {
        process.kill();
    }
    known(0).await;
    let mut again = rank_at(&mut cluster, "second-1", &agent, "1");
    let line = agent.process.says("a second launch uses the keys of the one before").await;
    assert_says(&line, &["rank 1 (process ", "--run new", "holdfast-agent run"]);
    let mut other = rank_at(&mut cluster, "second-0", &agent, "0");
    other.says("there").await;
    again.kill();
    other.kill();
    let said = agent.process.said();
    assert_eq!(said.matches("a second launch").count(), 1, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_its_last_agent_has_left_is_entered_by_nobody() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "tr3", "--run", "n1"];
    let (mut first, _) = Agent::run(&mut cluster, "first", &flags, &["true"]);
    assert_eq!(first.ended().await.code(), Some(0), "{}", first.said());
    let over = "run n1 of job tr3 is over: its last agent left";
    let line = format!("holdfast-agent run --store {} --job tr3 -- true", cluster.list());
    for name in ["again", "once-more"] {
        let (mut again, _) = Agent::run(&mut cluster, name, &flags, &["true"]);
        assert_eq!(again.ended().await.code(), Some(125), "{}", again.said());
        assert_says(&again.said(), &[over, " ago (host ", &line]);
    }
    let (mut new, _) = Agent::run(&mut cluster, "new", &["--job", "tr3"], &["true"]);
    assert_eq!(new.ended().await.code(), Some(0), "{}", new.said());
    let refused = cluster.cli_fails(1, &["--job", "tr3", "run", "open", "n1"]).await;
    assert_says(&refused, &[over, "a name never used before"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_behind_one_of_which_nothing_is_left_meets_none_of_its_keys() {
    let mut cluster = Cluster::start(1).await;
    let variables = [("RANK", "0"), ("WORLD_SIZE", "2")];
    let flags = ["--job", "lost", "--lease-ttl", "1s", "--no-keeper"];
    let mut lost = Command::start_with(&mut cluster, "lost", &variables, &flags).await;
    let mut store = TcpStore::connect(&lost.address).await;
    assert_eq!(store.add("rank0", 1).await, 1);
    // As when its host loses power: neither leaves.
    lost.agent.signal(Signal::SIGSTOP);
    let agent = Pid::from_raw(process_at(&lost.control).await);
    kill(agent, Signal::SIGKILL).expect("it is ours");
    lost.agent.kill();
    std::fs::write(&lost.order, "0").expect("the folder is ours");
    eventually("its lease to end", async || {
        (cluster.metric(1, "holdfast_leases_active").await == 0.0).then_some(())
    })
    .await;
    let mut again = Command::start_with(&mut cluster, "again", &variables, &flags).await;
    again.agent.says("job lost run r2 (a new run)").await;
    let mut store = TcpStore::connect(&again.address).await;
    assert_eq!(store.add("rank0", 1).await, 1, "it is a key of the dead");
    again.end(0).await;
}

/// As an operator does after killing a job that hangs: starts it again at once, while the
/// leases of its agents still last.
#[tokio::test(flavor = "multi_thread")]
async fn a_launch_at_once_behind_agents_that_were_killed_meets_none_of_their_keys() {
    let mut cluster = Cluster::start(1).await;
    let folders = ["h0", "h1"].map(|host| cluster.folder().join(host).display().to_string());
    let flags = ["--job", "killed", "--lease-ttl", "6s", "--no-keeper"];
    let launch = async |cluster: &mut Cluster, name: &str| {
        let mut commands = Vec::new();
        for (rank, folder) in ["0", "1"].into_iter().zip(&folders) {
            let variables =
                [("RANK", rank), ("WORLD_SIZE", "2"), ("HOLDFAST_RUNTIME_DIR", folder.as_str())];
            let name = format!("{name}-{rank}");
            commands.push(Command::start_with(cluster, &name, &variables, &flags).await);
        }
        commands
    };
    let mut killed = launch(&mut cluster, "killed").await;
    let mut store = TcpStore::connect(&killed[1].address).await;
    assert_eq!(store.add("n", 1).await, 1);
    for command in &mut killed {
        command.agent.signal(Signal::SIGSTOP);
        let agent = Pid::from_raw(process_at(&command.control).await);
        kill(agent, Signal::SIGKILL).expect("it is ours");
        command.agent.kill();
        std::fs::write(&command.order, "0").expect("the folder is ours");
    }
    let mut again = launch(&mut cluster, "again").await;
    again[0].agent.says("job killed run r2 (a new run)").await;
    again[1].agent.says("job killed run r2").await;
    let mut store = TcpStore::connect(&again[1].address).await;
    assert_eq!(store.add("n", 1).await, 1, "it is a key of the dead");

    // Where other agents are alive, the next agent of a host joins them.
    let last = again.pop().expect("two were started");
    let agent = Pid::from_raw(process_at(&last.control).await);
    let mut last = last;
    last.agent.signal(Signal::SIGSTOP);
    kill(agent, Signal::SIGKILL).expect("it is ours");
    last.agent.kill();
    std::fs::write(&last.order, "0").expect("the folder is ours");
    let variables = [("RANK", "1"), ("WORLD_SIZE", "2"), ("HOLDFAST_RUNTIME_DIR", &*folders[1])];
    let mut back = Command::start_with(&mut cluster, "back", &variables, &flags).await;
    back.agent.says("job killed run r2").await;
    assert_eq!(TcpStore::connect(&back.address).await.add("n", 1).await, 2);
    for command in again.into_iter().chain([back]) {
        command.end(0).await;
    }
}
