//! A training function that is begun again in all ranks: whatever ends an attempt,
//! all of them get the next one, a rank that was killed and came back, too.

use std::path::Path;

use holdfast_tests::python::Torch;
use holdfast_tests::{Agent, Cluster, Script, binaries, python};

const JOB: &str = "train";
const WORLD: usize = 3;

/// Starts `name` as a rank of a job with an agent.
struct Ranks<'a> {
    python: &'a Path,
    control: &'a Path,
    tcpstore: &'a str,
    name: &'a str,
    /// Arguments after the process and the number of ranks.
    more: &'a [&'a str],
}

impl Ranks<'_> {
    fn start(&self, cluster: &mut Cluster, process: usize, world: usize) -> Script {
        let mut command = binaries::without_settings(self.python);
        command.arg("-u").arg(python::script(self.name));
        command.args([process.to_string(), world.to_string()]).args(self.more);
        command.envs(python::on_one_gpu(process));
        command.env("HOLDFAST_CONTROL", self.control).env("HOLDFAST_TCPSTORE", self.tcpstore);
        Script::start_command(cluster, &format!("process-{process}"), command)
    }
}

/// An attempt, as all of its ranks report it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attempt {
    iteration: u64,
    world_size: usize,
    restarts: u64,
}

/// The next attempt of these ranks, which have the ranks 0 and so on in it, with the
/// cause that one of them reports for the end of the one before.
async fn all_begin(ranks: &mut [Script], which: &[usize]) -> (Attempt, String) {
    let (mut begun, mut known_cause) = (Vec::new(), "None".to_owned());
    for (expected, process) in which.iter().enumerate() {
        let line = ranks[*process].says("attempt ").await;
        let mut words = line.splitn(5, ' ');
        let mut number = || -> u64 {
            let word = words.next().and_then(|word| word.parse().ok());
            word.unwrap_or_else(|| panic!("not an attempt: {line}"))
        };
        let (iteration, rank, world_size, restarts) = (number(), number(), number(), number());
        assert_eq!((rank, world_size), (expected as u64, which.len() as u64), "{line}");
        begun.push(Attempt { iteration, world_size: which.len(), restarts });
        let cause = words.next().unwrap_or_else(|| panic!("no cause: {line}"));
        if cause != "None" {
            known_cause = cause.to_owned();
        }
    }
    assert!(begun.iter().all(|one| *one == begun[0]), "{begun:?}");
    (begun.swap_remove(0), known_cause)
}

async fn sleeps(script: &mut Script, order: &str, says: &str) {
    script.order(order).await;
    script.says(says).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_ranks_get_the_next_attempt_whatever_ends_one() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, JOB).await;
    let control = agent.control().await;
    let start = Ranks {
        python: &python,
        control: &control,
        tcpstore: agent.address(),
        name: "job_restart.py",
        more: &[],
    };
    let mut ranks: Vec<Script> =
        (0..WORLD).map(|process| start.start(&mut cluster, process, WORLD)).collect();
    let (mut before, _) = all_begin(&mut ranks, &[0, 1, 2]).await;
    assert_eq!(before, Attempt { iteration: 1, world_size: 3, restarts: 0 });
    let mut follows = |attempt: Attempt| {
        assert_eq!(attempt.iteration, before.iteration + 1, "{attempt:?} after {before:?}");
        assert_eq!(attempt.restarts, attempt.iteration - 1, "{attempt:?}");
        before = attempt;
    };

    // One raises; the others sleep, and run Python without a pause.
    sleeps(&mut ranks[0], "sleep", "sleeps").await;
    sleeps(&mut ranks[2], "spin", "spins").await;
    ranks[1].order("raise").await;
    let said = ranks[0].says_all("finalize").await;
    assert_eq!(said, ["abort holdfast-restart"], "`except Exception` lets it pass");
    let (next, cause) = all_begin(&mut ranks, &[0, 1, 2]).await;
    assert!(cause.contains("process 1 reports: ValueError: as it was told"), "{cause}");
    follows(next);

    // One is killed with the leader of the store; one swallows what interrupts it, one writes a
    // checkpoint.
    sleeps(&mut ranks[0], "swallow", "sleeps").await;
    sleeps(&mut ranks[2], "write", "writes").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    ranks[1].kill();
    ranks[0].says("swallowed AttemptEnded").await;
    assert_eq!(ranks[2].says_all("abort").await, ["has written"], "abort waits for it");
    let (next, cause) = all_begin(&mut ranks, &[0, 2]).await;
    assert!(cause.starts_with("process 1: "), "{cause}");
    follows(next);
    cluster.restart(leader).await;

    // It is started again, and is in the next attempt, with the number that the others have.
    ranks[1] = start.start(&mut cluster, 1, WORLD);
    let (next, cause) = all_begin(&mut ranks, &[0, 1, 2]).await;
    assert_eq!(cause, "a process that came late, or back, is taken in");
    follows(next);

    // An operator ends one.
    let revoke = ["--job", JOB, "comm", "revoke", "advance", "--reason", "test"];
    cluster.cli_ok(&revoke).await;
    let (next, cause) = all_begin(&mut ranks, &[0, 1, 2]).await;
    assert_eq!(cause, "revoked by an operator: test");
    follows(next);

    // Two have returned, and begin again, since the third one dies.
    for process in [0, 1] {
        ranks[process].order("return").await;
    }
    ranks[2].kill();
    let (next, _) = all_begin(&mut ranks, &[0, 1]).await;
    follows(next);
    ranks[2] = start.start(&mut cluster, 2, WORLD);
    let (next, _) = all_begin(&mut ranks, &[0, 1, 2]).await;
    follows(next);

    // One is not healthy any more, and leaves with its error.
    ranks[1].order("sick").await;
    let error = ranks[1].says("raised ").await;
    assert_eq!(error, "OSError the GPU is lost");
    let (next, cause) = all_begin(&mut ranks, &[0, 2]).await;
    assert!(cause.contains("a GPU is sick"), "{cause}");
    follows(next);

    // All return, and later arrivals are not needed.
    let value = format!("value {}", before.iteration);
    for process in [0, 2] {
        ranks[process].order("return").await;
    }
    for process in [0, 2] {
        ranks[process].says("completion").await;
        assert_eq!(ranks[process].says("returned ").await, value);
    }
    ranks.remove(1).fails().await;
    let mut late = start.start(&mut cluster, 1, WORLD);
    assert_eq!(late.says("returned ").await, "None");
    ranks.push(late);
    for script in ranks {
        script.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_refusals_and_limits_in_a_job_of_one_process() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut command = binaries::without_settings(&python);
    command.arg("-u").arg(python::script("restart_alone.py"));
    command.env("HOLDFAST_STORE", cluster.list());
    let mut script = Script::start_command(&mut cluster, "alone", command);
    script.says("all good").await;
    script.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_in_a_collective_with_a_killed_one_goes_on_in_another_process_group() {
    let Some(Torch { python, .. }) = Torch::with_package() else { return };
    a_rank_is_killed_in_a_collective(&python, "gloo").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_in_a_collective_of_nccl_goes_on_in_another_process_group() {
    if !python::has_gpu() {
        return;
    }
    let Some(Torch { python, .. }) = Torch::with_package() else { return };
    a_rank_is_killed_in_a_collective(&python, "nccl").await;
}

async fn a_rank_is_killed_in_a_collective(python: &Path, backend: &str) {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, JOB).await;
    let control = agent.control().await;
    let (control, tcpstore) = (control.as_path(), agent.address());
    let start = Ranks { python, control, tcpstore, name: "group_restart.py", more: &[backend] };
    let mut first = start.start(&mut cluster, 0, 2);
    let mut second = start.start(&mut cluster, 1, 2);
    assert_eq!(first.says("attempt ").await, "1 0 2");
    first.says("sums").await;
    sleeps(&mut second, "hold", "holds").await;
    second.kill();
    assert_eq!(first.says("attempt ").await, "2 0 1");
    first.says("sums").await;
    first.order("return").await;
    let returned = first.says("returned ").await;
    assert!(returned.ends_with("True"), "the last group is its maker's: {returned}");
    first.succeeds().await;
}
