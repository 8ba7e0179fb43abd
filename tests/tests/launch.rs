//! The launch table: unmodified PyTorch under each launcher, on a store whose leader dies
//! during the launch.

use std::process::Command;

use holdfast_tests::command::COMES;
use holdfast_tests::job::TORCHRUN;
use holdfast_tests::{Agent, Cluster, Ended, Job, Torch, eventually, python};
use nix::sys::signal::Signal;

/// A job of one program: `holdfast-agent run FLAGS -- COMMAND`.
fn job(cluster: &mut Cluster, torch: &Torch, name: &str, flags: &[&str], command: &[&str]) -> Job {
    let mut job = Job::new(cluster, torch, name);
    let command = job.command(cluster, flags, command);
    job.start(cluster, command);
    job
}

/// Runs `RANK=N COMMAND` for two ranks, as the shell scripts do that start
/// ranks by hand.
const TWO_RANKS: &str = "RANK=1 \"$@\" & RANK=0 \"$@\"; code=$?; wait $! && exit $code";

/// The oldest torch whose torchrun can be served.
const TORCHRUN_SINCE: (u32, u32) = (2, 7);

async fn plain_env(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let command = ["env", "WORLD_SIZE=2", "sh", "-c", TWO_RANKS, "ranks", "PYTHON", "JOB"];
    let mut job = job(&mut cluster, torch, "env", &[], &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    let keys = cluster.cli_ok(&["--job", "env", "kv", "list"]).await;
    assert!(keys.contains("beat/1/1"), "{keys}");
    job.finishes("with 2 ranks").await;
}

async fn torchrun_on_one_node(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let command = [&TORCHRUN[..], &["--nproc-per-node=2", "JOB"]].concat();
    let mut job = job(&mut cluster, torch, "torchrun", &[], &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    // Its store is this one: the workers' beats are there, and torchrun's keys.
    let keys = cluster.cli_ok(&["--job", "torchrun", "kv", "list"]).await;
    assert!(keys.contains("beat/1/1") && keys.contains("torchelastic"), "{keys}");
    job.finishes("with 2 ranks").await;
}

async fn torchrun_restarting_in_place_twice(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let options = ["--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1", "JOB"];
    let command = [&TORCHRUN[..], &options].concat();
    let flags = ["--attempts-kept", "2s"];
    let mut job = job(&mut cluster, torch, "restarts", &flags, &command);
    for attempt in 0..2 {
        job.goes_on_without_its_leader(&mut cluster, attempt).await;
        job.order(&format!("fail-{attempt}"));
    }
    job.goes_on_without_its_leader(&mut cluster, 2).await;
    let list = ["--job", "restarts", "kv", "list"];
    eventually("the keys of the attempt before to be deleted", async || {
        let keys = cluster.cli_ok(&list).await;
        for own in ["@#2:/", "torchelastic"] {
            assert!(keys.contains(own), "{own} is missing: {keys}");
        }
        (!keys.contains("@#1:")).then_some(())
    })
    .await;
    job.finishes("with 2 ranks in attempt 2").await;
}

/// Programs open a second store at MASTER_PORT + 1, with rank 0 as the master.
async fn second_store(torch: &Torch, method: &str) {
    let mut cluster = Cluster::start(3).await;
    let (port, behind) = (cluster.port(), cluster.port());
    assert_eq!(behind, port + 1);
    let ports = format!("127.0.0.1:{port}-{behind}");
    let mut command = vec!["env", "WORLD_SIZE=2", "sh", "-c", TWO_RANKS, "ranks", "PYTHON"];
    command.extend(["JOB", method]);
    let mut job = job(&mut cluster, torch, "second", &["--tcpstore", &ports], &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    let keys = cluster.cli_ok(&["--job", "second", "kv", "list"]).await;
    let (own, first) = (format!("@{behind}#0:/beat/1/1"), "\n/default_pg/0//cpu//0/1");
    assert!(keys.contains(&own) && keys.contains(first), "{keys}");
    job.finishes("with 2 ranks").await;
}

async fn second_store_under_torchrun(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let (port, behind) = (cluster.port(), cluster.port());
    let ports = format!("127.0.0.1:{port}-{behind}");
    let options = ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"];
    let command = [&TORCHRUN[..], &options, &["JOB", "second-store"]].concat();
    let mut job = job(&mut cluster, torch, "second", &["--tcpstore", &ports], &command);
    job.first().says("attempt 0 step").await;
    job.order("fail-0");
    job.goes_on_without_its_leader(&mut cluster, 1).await;
    let keys = cluster.cli_ok(&["--job", "second", "kv", "list"]).await;
    assert!(keys.contains(&format!("@{behind}#1:/beat/1/1")), "{keys}");
    job.finishes("with 2 ranks in attempt 1").await;
}

async fn init_method(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let address = format!("127.0.0.1:{}", cluster.port());
    let method = format!("tcp://{address}");
    let command = ["env", "WORLD_SIZE=2", "sh", "-c", TWO_RANKS, "ranks", "PYTHON", "JOB", &method];
    let flags = ["--tcpstore", &address];
    let mut job = job(&mut cluster, torch, "tcp", &flags, &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    job.finishes("with 2 ranks").await;
}

async fn two_jobs(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let command = [&TORCHRUN[..], &["--nproc-per-node=2", "JOB"]].concat();
    let mut first = job(&mut cluster, torch, "one", &[], &command);
    let mut second = job(&mut cluster, torch, "other", &[], &command);
    first.first().says("attempt 0 step").await;
    second.goes_on_without_its_leader(&mut cluster, 0).await;
    first.first().says_anew("attempt 0 step").await;
    // One ends, and the other does not notice.
    first.finishes("with 2 ranks").await;
    second.first().says_anew("attempt 0 step").await;
    second.finishes("with 2 ranks").await;
}

async fn slurm_step(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let mut job = Job::new(&cluster, torch, "step");
    // Simulates srun as its tasks see it: their variables, and an end when all have ended.
    let srun = ["--ntasks-per-node=8", "--job-id=812"];
    let srun = job.under_srun(&cluster, &srun, &["PYTHON", "JOB"]);
    job.start(&mut cluster, srun);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    let runs = cluster.cli_ok(&["--job", "step", "run", "list"]).await;
    assert!(runs.contains("slurm-812.0.0") && !runs.contains("r1"), "{runs}");
    job.finishes("with 8 ranks").await;
}

/// Two launches at once that do not name their jobs: their launchers do.
async fn told_apart(cluster: &mut Cluster, [mut first, mut second]: [Job; 2], ranks: &str) {
    first.first().says("attempt 0 step").await;
    second.goes_on_without_its_leader(cluster, 0).await;
    first.first().says_anew("attempt 0 step").await;
    first.finishes(ranks).await;
    second.first().says_anew("attempt 0 step").await;
    second.finishes(ranks).await;
}

async fn jobs(cluster: &Cluster) -> Vec<String> {
    let listed = cluster.cli_ok(&["-o", "json", "job", "list"]).await;
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("it is JSON");
    let jobs = listed["jobs"].as_array().expect("a list of jobs");
    jobs.iter().map(|job| job["job"].as_str().expect("each has a name").to_owned()).collect()
}

async fn slurm_steps_at_once(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let steps = ["3", "4"].map(|step| {
        let mut job = Job::unnamed(&cluster, torch, &format!("step-{step}"));
        let id = format!("--step-id={step}");
        let srun = ["--ntasks-per-node=2", "--job-id=812", &id];
        let srun = job.under_srun(&cluster, &srun, &["PYTHON", "JOB"]);
        job.start(&mut cluster, srun);
        job
    });
    told_apart(&mut cluster, steps, "with 2 ranks").await;
    assert_eq!(jobs(&cluster).await, ["slurm-812.3", "slurm-812.4"]);
}

async fn mpiruns_at_once(torch: &Torch) {
    if !Command::new("mpirun").arg("--version").output().is_ok_and(|ended| ended.status.success()) {
        eprintln!("SKIPPED: there is no mpirun on this machine");
        return;
    }
    let mut cluster = Cluster::start(3).await;
    let launches = ["one", "other"].map(|label| {
        let mut job = Job::unnamed(&cluster, torch, label);
        let mpirun = job.under_mpirun(&cluster, 3, &["PYTHON", "JOB"]);
        job.start(&mut cluster, mpirun);
        job
    });
    told_apart(&mut cluster, launches, "with 3 ranks").await;
    let jobs = jobs(&cluster).await;
    assert!(jobs.len() == 2 && jobs.iter().all(|job| job.starts_with("mpi-")), "{jobs:?}");
}

async fn torchruns_at_once(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let launches = [("try-7", "--rdzv-id=try-7"), ("try-8", "--rdzv_id=try-8")];
    let mut launches = launches.map(|(id, option)| {
        let mut job = Job::unnamed(&cluster, torch, id);
        let command = [&TORCHRUN[..], &[option, "--nproc-per-node=1", "JOB"]].concat();
        let command = job.command(&cluster, &[], &command);
        job.start(&mut cluster, command);
        job
    });
    for job in &mut launches {
        job.first().says("attempt 0 step").await;
    }
    for id in ["try-7", "try-8"] {
        let line = cluster.logged(&format!("{id}-0"), "torchrun's rendezvous id").await;
        assert!(line.contains(&format!("job {id}, after ")), "{line}");
    }
    eventually("both agents to be listed", async || {
        let list = cluster.cli_ok(&["agent", "list"]).await;
        let mut jobs: Vec<_> = list.lines().skip(1).map(|line| line.split(' ').next()).collect();
        jobs.sort_unstable();
        (jobs == [Some("try-7"), Some("try-8")]).then_some(())
    })
    .await;
    told_apart(&mut cluster, launches, "with 1 ranks").await;
    assert_eq!(jobs(&cluster).await, ["try-7", "try-8"]);
}

/// Under a launcher that starts a store of its own, which the wheel puts on Holdfast.
async fn launched_with_a_store_of_its_own(module: &str, command: &[&str], restarts: bool) {
    let Some(torch) = Torch::with_launcher(module) else { return };
    let mut cluster = Cluster::start(3).await;
    let mut job = Job::new(&cluster, &torch, module);
    let mut command = job.command(&cluster, &[], command);
    // As in a virtual environment that is active: launchers look for tools there.
    let beside = torch.python.parent().expect("a Python is in a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{beside}:{path}"));
    job.start(&mut cluster, command);
    if restarts {
        job.first().says("attempt 0 step").await;
        job.order("fail-0");
    }
    let attempt = u32::from(restarts);
    job.goes_on_without_its_leader(&mut cluster, attempt).await;
    let keys = cluster.cli_ok(&["--job", module, "kv", "list"]).await;
    let of_a_store = format!("#{attempt}:/default_pg/0//beat/1/1 ");
    let is_there = |line: &str| line.starts_with('@') && line.contains(&of_a_store);
    assert!(keys.lines().any(is_there), "{keys}");
    job.finishes(&format!("with 2 ranks in attempt {attempt}")).await;
}

/// NVRx's in-process restart as in its basic example, whose stores the programs open
/// themselves: at MASTER_PORT + 1 that of the wrapper, behind it one for each iteration.
async fn nvrx(torch: &Torch) {
    let mut cluster = Cluster::start(3).await;
    let command = ["env", "WORLD_SIZE=2", "sh", "-c", TWO_RANKS, "ranks", "PYTHON", "JOB", "nvrx"];
    let mut job = job(&mut cluster, torch, "nvrx", &[], &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    job.order("fail-0");
    job.goes_on_without_its_leader(&mut cluster, 1).await;
    let keys = cluster.cli_ok(&["--job", "nvrx", "kv", "list"]).await;
    let own = |line: &str| line.starts_with('@') && line.contains("/beat/1/1 ");
    let wrappers = |line: &str| line.starts_with('@') && line.contains("initial_barrier");
    assert!(keys.lines().any(own) && keys.lines().any(wrappers), "{keys}");
    job.finishes("with 2 ranks in attempt 1").await;
}

/// torchrun of a torch that cannot be served is not started.
async fn torchrun_is_refused(torch: &Torch) {
    let cluster = Cluster::start(1).await;
    let job = Job::new(&cluster, torch, "refused");
    let command = [&TORCHRUN[..], &["--nproc-per-node=2", "JOB"]].concat();
    let ended = Ended::of(job.command(&cluster, &[], &command)).await;
    let found = format!("{}.{}", torch.version.0, torch.version.1);
    ended.failed(2, &["2.7", &found]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_are_told_their_place_in_variables() {
    plain_env(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_on_one_node_without_flags() {
    torchrun_on_one_node(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_with_ranks_that_use_nccl_on_one_gpu() {
    if !python::has_gpu() {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    let command = [&TORCHRUN[..], &["--nproc-per-node=2", "JOB", "nccl"]].concat();
    let mut job = job(&mut cluster, &Torch::newest(), "nccl", &[], &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    job.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_meets_on_holdfast_where_the_python_package_is() {
    let Some(torch) = Torch::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    // A launch that may have more nodes; none of them is given its rank.
    let command = [&TORCHRUN[..], &["--nnodes=1:2", "--nproc-per-node=2", "JOB"]].concat();
    let mut job = job(&mut cluster, &torch, "package", &[], &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    let keys = cluster.cli_ok(&["--job", "package", "kv", "list"]).await;
    assert!(keys.contains("@rendezvous-") && keys.contains("beat/1/1"), "{keys}");
    job.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_that_restarts_its_ranks_in_place_twice() {
    torchrun_restarting_in_place_twice(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_are_told_an_address_as_init_method() {
    init_method(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_on_one_host() {
    two_jobs(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_tasks_of_a_slurm_step_on_one_host() {
    slurm_step(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_slurm_steps_at_once_that_name_no_job() {
    slurm_steps_at_once(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_torchruns_at_once_that_name_no_job_but_their_rendezvous() {
    torchruns_at_once(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accelerate_that_restarts_its_ranks_in_place() {
    let launch = ["PYTHON", "-m", "accelerate.commands.launch", "--multi_gpu"];
    let options = ["--num_processes=2", "--max_restarts=1", "--monitor_interval=0.1"];
    let command = [&launch[..], &options, &["JOB", "accelerate"]].concat();
    launched_with_a_store_of_its_own("accelerate", &command, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lightning_that_starts_its_ranks_itself() {
    let Some(torch) = Torch::with_launcher("lightning") else { return };
    let mut cluster = Cluster::start(3).await;
    let mut job = job(&mut cluster, &torch, "lightning", &[], &["PYTHON", "JOB", "lightning"]);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    let keys = cluster.cli_ok(&["--job", "lightning", "kv", "list"]).await;
    assert!(keys.contains("\n/default_pg/0//beat/1/1 "), "{keys}");
    job.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deepspeed_on_one_node() {
    let launch = ["PYTHON", "-m", "deepspeed.launcher.runner", "--num_gpus=2", "--no_local_rank"];
    let command = [&launch[..], &["JOB", "deepspeed"]].concat();
    launched_with_a_store_of_its_own("deepspeed", &command, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ray_train_in_a_ray_that_the_program_starts() {
    launched_with_a_store_of_its_own("ray", &["PYTHON", "JOB", "ray"], false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nvrx_that_restarts_its_ranks_in_their_processes() {
    let Some(torch) = Torch::with_launcher("nvidia_resiliency_ext") else { return };
    nvrx(&torch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_mpiruns_at_once_that_name_no_job() {
    mpiruns_at_once(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torch_with_plain_variables() {
    let Some(torch) = Torch::older() else { return };
    plain_env(&torch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torch_with_an_address_as_init_method() {
    let Some(torch) = Torch::older() else { return };
    init_method(&torch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torch_in_a_slurm_step() {
    let Some(torch) = Torch::older() else { return };
    slurm_step(&torch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torchrun_on_one_node_and_in_two_jobs() {
    let Some(torch) = Torch::older().filter(|torch| torch.version >= TORCHRUN_SINCE) else {
        return;
    };
    torchrun_on_one_node(&torch).await;
    two_jobs(&torch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torchrun_restarts_its_ranks_in_place_twice_or_is_refused() {
    let Some(torch) = Torch::older() else { return };
    if torch.version < TORCHRUN_SINCE {
        torchrun_is_refused(&torch).await;
    } else {
        torchrun_restarting_in_place_twice(&torch).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_not_on_holdfast_is_told_so_and_why() {
    let mut cluster = Cluster::start(1).await;
    // A launcher that sets its own address.
    let launcher = "trap 'kill $!; exit 7' TERM; MASTER_PORT=1 sleep 60 & wait";
    let flags = ["--job", "away", "--expect-clients-within", "5s"];
    let (mut agent, _) = Agent::run(&mut cluster, "away", &flags, &["sh", "-c", launcher]);
    let line = agent.says("this job is not on Holdfast").await;
    for part in ["sleep 60", "MASTER_PORT=1", "probably set its own address", "sh -c"] {
        assert!(line.contains(part), "{part:?} is missing in: {line}");
    }
    agent.signal(Signal::SIGTERM);
    agent.ended().await;
    assert!(agent.said().contains("no TCPStore client ever came"), "{}", agent.said());

    // A probe is no client.
    let probe = "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT; exec 3>&-; exit 5";
    let flags = ["--job", "probe"];
    let (mut agent, _) = Agent::run(&mut cluster, "probe", &flags, &["bash", "-c", probe]);
    assert_eq!(agent.ended().await.code(), Some(5), "{}", agent.said());
    assert!(agent.said().contains("no TCPStore client ever came"), "{}", agent.said());

    // A client that leaves at once counts.
    let (mut agent, _) = Agent::run(&mut cluster, "client", &flags, &["bash", "-c", COMES]);
    assert_eq!(agent.ended().await.code(), Some(0), "{}", agent.said());
    assert!(!agent.said().contains("Holdfast: no"), "{}", agent.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_rank_that_comes_does_not_hide_seven_that_do_not() {
    let mut cluster = Cluster::start(1).await;
    // The one comes when the others are there: a process has its rank once it is its program.
    let launcher = "trap 'kill $(jobs -p); exit 7' TERM; \
                    for rank in 1 2 3 4 5 6 7; do RANK=$rank sleep 100 & \
                    until grep -q sleep /proc/$!/comm; do sleep 0.01; done; done; \
                    RANK=0 bash -c \"$0; exec sleep 100\" & wait";
    let flags = ["--job", "seven", "--expect-clients-within", "3s"];
    let command = ["bash", "-c", launcher, COMES];
    let (mut agent, _) = Agent::run(&mut cluster, "seven", &flags, &command);
    let line = agent.says("7 of 8 ranks of this command are not on Holdfast").await;
    for part in ["rank 1, process ", "(sleep 100)", "rank 7, process "] {
        assert!(line.contains(part), "{part:?} is missing in: {line}");
    }
    assert!(!line.contains("rank 0,"), "{line}");
    agent.signal(Signal::SIGTERM);
    agent.ended().await;
    assert!(agent.said().contains("before the command ended"), "{}", agent.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_store_at_the_next_port() {
    second_store(&Torch::newest(), "second-store").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_store_at_the_next_port_without_libuv() {
    second_store(&Torch::newest(), "second-store-without-libuv").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torchs_second_store_at_the_next_port() {
    let Some(torch) = Torch::older() else { return };
    second_store(&torch, "second-store").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_store_at_the_next_port_under_torchrun() {
    second_store_under_torchrun(&Torch::newest()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_store_at_the_next_port_under_an_older_torchrun() {
    let Some(torch) = Torch::older().filter(|torch| torch.version >= TORCHRUN_SINCE) else {
        return;
    };
    second_store_under_torchrun(&torch).await;
}
