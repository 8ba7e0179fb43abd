//! Unmodified PyTorch, in front of a store whose leaders die.

use holdfast_tests::python::{python, script};
use holdfast_tests::{Agent, Cluster, Script, Torch, binaries};

/// Kills after which a test that saw no replayed answer gives up.
const ROUNDS_MAX: u32 = 15;

/// Kills the leader while the program works, until a retry was answered from the session
/// table. The program always has calls in flight, and reports its progress in lines that
/// begin with `word`.
async fn kill_leaders(cluster: &mut Cluster, program: &mut Script, word: &str, rounds_min: u32) {
    let mut replayed = 0.0;
    for round in 1..=ROUNDS_MAX {
        program.says_anew(word).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        program.says_anew(word).await;
        replayed += cluster.duplicates_answered().await;
        eprintln!("leader {leader} killed in round {round}: {replayed} answers replayed");
        cluster.restart(leader).await;
        if replayed > 0.0 && round >= rounds_min {
            return;
        }
    }
    panic!(
        "the leader was killed {ROUNDS_MAX} times, and no retry was answered from the session table"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pytorchs_client_does_not_notice_that_leaders_die() {
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "torch").await;
    let (host, port) = agent.host_and_port();
    let mut program = Script::start(&mut cluster, "store_ops.py", &[host, port]);
    program.says("operations").await;
    kill_leaders(&mut cluster, &mut program, "round", 3).await;
    program.order("stop").await;
    program.says("counted").await;
    program.succeeds().await;
}

/// The job under `holdfast-agent run`, in a run of its own.
fn job(cluster: &mut Cluster, name: &str) -> Script {
    let mut agent = binaries::command("holdfast-agent");
    agent.args(["run", "--store", &cluster.list(), "--job", "ddp", "--"]);
    agent.arg(python()).arg("-u").arg(script("ddp_job.py"));
    Script::start_command(cluster, name, agent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_trains_through_dying_leaders_and_can_be_run_again() {
    let mut cluster = Cluster::start(3).await;
    let mut first = job(&mut cluster, "first-run");
    kill_leaders(&mut cluster, &mut first, "step", 2).await;
    // A group is formed while there is no leader.
    let leader = cluster.leader().await;
    cluster.kill(leader);
    first.order("group").await;
    first.says("grouped").await;
    cluster.restart(leader).await;
    first.order("finish").await;
    first.says("trained").await;
    first.succeeds().await;

    // The same job once more: its ranks would hang on the addresses of the
    // first run's, if they could see them.
    let mut second = job(&mut cluster, "second-run");
    second.order("finish").await;
    second.says("trained").await;
    second.succeeds().await;
    let runs = cluster.cli_ok(&["--job", "ddp", "run", "list"]).await;
    assert!(runs.contains("r1") && runs.contains("r2"), "{runs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_multi_get_answers_as_much_as_the_limit_says_and_no_more() {
    const MIB: usize = 1024 * 1024;
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, "big").await;
    let (host, port) = agent.host_and_port();
    let mut program = Script::start(&mut cluster, "store_rounds.py", &[host, port]);
    program.says("ready").await;
    // 64 MiB each: the store reads 16 MiB at a time.
    for (count, size) in [(8, 8 * MIB), (64, MIB), (16_384, 4096), (3, 8 * MIB)] {
        program.order(&format!("multi-get {count} {size}")).await;
        assert_eq!(program.says("multi-get").await, "equal", "{count} of {size} bytes");
    }
    program.order(&format!("multi-get 9 {}", 8 * MIB)).await;
    assert_eq!(program.says("multi-get").await, "closed");
    agent.process.says("limits.answer_bytes_max").await;
}

/// Both back ends of PyTorch's client ask its own servers and the agent.
async fn answers_are_those_of_pytorchs_servers(torch: &Torch) {
    /// At least this many: operations that a version lacks are not asked.
    const ANSWERS_MIN: u32 = 200;
    let mut cluster = Cluster::start(3).await;
    let with_libuv = Agent::start(&mut cluster, "libuv").await;
    let without = Agent::start(&mut cluster, "legacy").await;
    let (host, first) = with_libuv.host_and_port();
    let (_, second) = without.host_and_port();
    let mut command = binaries::without_settings(&torch.python);
    command.arg("-u").arg(script("same_answers.py")).args([host, first, second]);
    let program = Script::start_command(&mut cluster, "answers-asked", command);
    let said = program.succeeds().await;
    let [line] = said.as_slice() else { panic!("answers differ: {said:#?}") };
    let count =
        line.strip_prefix("compared ").and_then(|rest| rest.split(' ').next()?.parse().ok());
    assert!(count.is_some_and(|count: u32| count >= ANSWERS_MIN), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_answers_as_pytorchs_own_servers_do() {
    answers_are_those_of_pytorchs_servers(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_answers_as_the_servers_of_an_older_pytorch_do() {
    let Some(torch) = Torch::older() else { return };
    answers_are_those_of_pytorchs_servers(&torch).await;
}

/// Intended differences stand in the documents, by the same name.
#[test]
fn intended_differences_are_documented() {
    let mut listing = std::process::Command::new("python3");
    let listed = listing.arg(script("same_answers.py")).arg("--list").output().expect("it can run");
    let text = std::fs::read_to_string(binaries::workspace().join("trainer-shim/docs/tcpstore.md"));
    let text =
        text.expect("the document is there").split_whitespace().collect::<Vec<_>>().join(" ");
    let names = String::from_utf8(listed.stdout).expect("names are text");
    assert_eq!(names.lines().count(), 3, "{names}");
    for name in names.lines() {
        assert!(text.contains(&format!("* {name}")), "tcpstore.md does not say: {name}");
    }
}
