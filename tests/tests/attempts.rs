//! Attempts of ranks with real PyTorch: of those that reach the agent by its address, and of those
//! that have written over their variables, as setproctitle leaves them.

use holdfast_tests::job::TORCHRUN;
use holdfast_tests::python::{script, with_hook};
use holdfast_tests::{Cluster, Job, Torch};

/// Runs `RANK=N COMMAND` for two ranks.
const TWO_RANKS: [&str; 6] = [
    "env",
    "WORLD_SIZE=2",
    "sh",
    "-c",
    "RANK=1 \"$@\" & RANK=0 \"$@\"; code=$?; wait $! && exit $code",
    "ranks",
];

/// Starts `holdfast-agent run FLAGS -- LAUNCHER hidden_rank.py`, whose ranks hide in
/// these attempts.
fn start(
    cluster: &mut Cluster,
    torch: &Torch,
    flags: &[&str],
    launcher: &[&str],
    attempts: &str,
) -> Job {
    let mut job = Job::new(cluster, torch, "hidden");
    let (program, folder) = (script("hidden_rank.py"), job.folder().to_owned());
    let text = |path: &std::path::Path| path.to_str().expect("paths of tests are text").to_owned();
    let (program, folder) = (text(&program), text(&folder));
    let command = [launcher, &[&program, &folder, attempts]].concat();
    let command = job.command(cluster, flags, &command);
    job.start(cluster, command);
    job
}

async fn is_refused_after_a_restart(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let options = ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"];
    let launcher = [&TORCHRUN[..], &options].concat();
    let mut job = start(&mut cluster, torch, &[], &launcher, "1");
    job.first().says("attempt 0 step").await;
    job.order("fail-0");
    // They fail at once, and not after their time.
    job.fails().await;
    let said = std::fs::read_to_string(cluster.folder().join("hidden-0.log"));
    let said = said.unwrap_or_else(|error| panic!("{error}"));
    for part in ["cannot be read any more", "may restart", "SPT_NOENV=1", "--single-attempt"] {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
    let keys = cluster.cli_ok(&["--job", "hidden", "kv", "list"]).await;
    assert!(!keys.contains("@#1:"), "{keys}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_was_restarted_and_hides_it_is_refused_by_name() {
    is_refused_after_a_restart(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_of_an_older_torch_that_was_restarted_and_hides_it_is_refused_by_name() {
    let Some(torch) = Torch::older().filter(|torch| torch.version >= (2, 7)) else { return };
    is_refused_after_a_restart(&torch).await;
}

async fn goes_on(flags: &[&str], launcher: &[&str]) {
    let mut cluster = Cluster::start(3).await;
    let mut job = start(&mut cluster, &Torch::newest(), flags, launcher, "0");
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    let keys = cluster.cli_ok(&["--job", "hidden", "kv", "list"]).await;
    assert!(keys.contains("beat/1/1"), "{keys}");
    job.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_nothing_restarts_may_hide() {
    goes_on(&[], &[&TWO_RANKS[..], &["PYTHON"]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_of_a_torchrun_that_does_not_restart_them_may_hide() {
    goes_on(&[], &[&TORCHRUN[..], &["--nproc-per-node=2"]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_may_hide_where_the_agent_is_told_that_there_is_one_attempt() {
    let options = ["--nproc-per-node=2", "--max-restarts=1"];
    goes_on(&["--single-attempt"], &[&TORCHRUN[..], &options].concat()).await;
}

/// Under a torchrun in a script, which has a store of its own and restarts its ranks, the ranks use
/// the agent by its address.
async fn has_attempts_at_the_agents_address(torch: &Torch, variables: &[(&str, &str)]) {
    let mut cluster = Cluster::start(1).await;
    let mut job = Job::new(&cluster, torch, "elsewhere");
    let address = format!("127.0.0.1:{}", cluster.port());
    let script = "exec \"$0\" -m torch.distributed.run --standalone --max-restarts=1 \
                  --monitor-interval=0.1 --nproc-per-node=2 \"$@\"";
    let method = format!("tcp://{address}");
    let words = ["sh", "-c", script, "PYTHON", "JOB", &method];
    let mut command = job.command(&cluster, &["--tcpstore", &address], &words);
    command.envs(variables.iter().copied());
    job.start(&mut cluster, command);
    job.first().says("attempt 0 step").await;
    job.order("fail-0");
    job.first().says("attempt 1 step").await;
    let keys = cluster.cli_ok(&["--job", "elsewhere", "kv", "list"]).await;
    assert!(keys.lines().any(|line| line.starts_with("@#1:") && line.contains("beat")), "{keys}");
    job.finishes("with 2 ranks in attempt 1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_ranks_that_name_the_agent_have_keys_of_their_own() {
    let folder = with_hook();
    let path = folder.path().display().to_string();
    has_attempts_at_the_agents_address(&Torch::newest(), &[("PYTHONPATH", &path)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_ranks_of_an_older_torch_that_name_the_agent_have_keys_of_their_own() {
    let Some(torch) = Torch::older().filter(|torch| torch.version >= (2, 7)) else { return };
    has_attempts_at_the_agents_address(&torch, &[]).await;
}
