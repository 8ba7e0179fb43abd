//! The example trainer, started as its first page describes.

use holdfast_tests::process::Process;
use holdfast_tests::{Agent, Cluster, binaries};

const WORLD: usize = 4;

fn trainer(cluster: &mut Cluster, rank: usize, variables: &[(&str, &str)]) -> Process {
    let mut command = binaries::command("examples/trainer");
    command.env("HOLDFAST_JOB", "example").env("RANK", rank.to_string());
    command.env("WORLD_SIZE", WORLD.to_string()).envs(variables.iter().copied());
    let log = cluster.keep_log(&format!("trainer-{rank}"));
    Process::start(&format!("trainer {rank}"), command, &log)
}

/// The numbers of the iterations that a trainer has printed.
fn iterations(trainer: &Process) -> Vec<u64> {
    let said = trainer.said();
    let numbers = said.lines().filter_map(|line| line.strip_prefix("iteration ")?.split_once(':'));
    numbers.map(|(number, _)| number.parse().expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_trainer_is_done_without_and_comes_back() {
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, "example").await;
    let control = agent.control().await.display().to_string();
    // Long enough for one to come back in between.
    let variables = [("HOLDFAST_CONTROL", control.as_str()), ("ITERATIONS", "100")];
    let mut trainers: Vec<Process> =
        (0..WORLD).map(|rank| trainer(&mut cluster, rank, &variables)).collect();
    trainers[0].says("iteration 3: rank Some(0) of 4, 0 lost").await;
    trainers[3].kill();
    trainers[0].says("of 3, 1 lost").await;
    trainers[3] = trainer(&mut cluster, 3, &variables);
    trainers[3].says("rank Some(3) of 4, 0 lost").await;
    for trainer in &mut trainers {
        let status = trainer.ended().await;
        assert!(status.success(), "{status}: {}", trainer.said());
    }
    let last: Vec<_> = trainers.iter().map(|trainer| iterations(trainer).pop()).collect();
    assert!(last[0] >= Some(100), "{last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_each_holds_a_lease() {
    let mut cluster = Cluster::start(1).await;
    let list = cluster.list();
    let mut trainers: Vec<Process> =
        (0..WORLD).map(|rank| trainer(&mut cluster, rank, &[("HOLDFAST_STORE", &list)])).collect();
    for trainer in &mut trainers {
        let status = trainer.ended().await;
        assert!(status.success(), "{status}: {}", trainer.said());
    }
    // All of them, and more if the wait for a process was in vain.
    let all = iterations(&trainers[0]);
    assert!(all.len() >= 20 && all.is_sorted_by(|one, next| one + 1 == *next), "{all:?}");
}
