//! The example trainer, as its first page says to start it.

use holdfast_tests::process::Process;
use holdfast_tests::{Agent, Cluster, binaries};

const WORLD: usize = 4;

fn trainer(cluster: &mut Cluster, rank: usize, variable: (&str, &str)) -> Process {
    let mut command = binaries::command("examples/trainer");
    command.env("HOLDFAST_JOB", "example").env("RANK", rank.to_string());
    command.env("WORLD_SIZE", WORLD.to_string()).env(variable.0, variable.1);
    let log = cluster.keep_log(&format!("trainer-{rank}"));
    Process::start(&format!("trainer {rank}"), command, &log)
}

/// The iterations that a trainer has printed.
fn iterations(trainer: &Process) -> Vec<String> {
    trainer
        .said()
        .lines()
        .filter(|line| line.starts_with("iteration "))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_trainer_is_done_without_and_comes_back() {
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, "example").await;
    let control = agent.control().await.display().to_string();
    let variable = ("HOLDFAST_CONTROL", control.as_str());
    let mut trainers: Vec<Process> =
        (0..WORLD).map(|rank| trainer(&mut cluster, rank, variable)).collect();
    trainers[0].says("iteration 3: rank Some(0) of 4, 0 lost").await;
    trainers[3].kill();
    trainers[0].says("of 3, 1 lost").await;
    trainers[3] = trainer(&mut cluster, 3, variable);
    trainers[3].says("rank Some(3) of 4, 0 lost").await;
    for trainer in &mut trainers {
        let status = trainer.ended().await;
        assert!(status.success(), "{status}: {}", trainer.said());
    }
    let last: Vec<_> = trainers.iter().map(|trainer| iterations(trainer).pop()).collect();
    assert!(last[0].as_ref().is_some_and(|line| line.starts_with("iteration 2")), "{last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_each_holds_a_lease() {
    let mut cluster = Cluster::start(1).await;
    let list = cluster.list();
    let mut trainers: Vec<Process> =
        (0..WORLD).map(|rank| trainer(&mut cluster, rank, ("HOLDFAST_STORE", &list))).collect();
    for trainer in &mut trainers {
        let status = trainer.ended().await;
        assert!(status.success(), "{status}: {}", trainer.said());
    }
    assert_eq!(iterations(&trainers[0]).len(), 20, "{}", trainers[0].said());
}
