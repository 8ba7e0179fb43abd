//! The launch table: unmodified PyTorch under each launcher, on a store whose
//! leader dies meanwhile.

use std::path::PathBuf;

use holdfast_tests::python::{python, script};
use holdfast_tests::{Agent, Cluster, Script, binaries, eventually};
use nix::sys::signal::Signal;

/// A job of a launcher: how it is told what to do.
struct Job {
    program: Script,
    folder: PathBuf,
}

impl Job {
    /// `holdfast-agent run FLAGS -- COMMAND`; `JOB` in the command stands for
    /// the job's program and its arguments.
    fn start(cluster: &mut Cluster, name: &str, flags: &[&str], command: &[&str]) -> Job {
        let mut agent = binaries::command("holdfast-agent");
        agent.args(["run", "--store", &cluster.list(), "--job", name]).args(flags).arg("--");
        let folder = Job::folder(cluster, name);
        for word in command {
            match *word {
                "PYTHON" => agent.arg(python()),
                "JOB" => agent.arg(script("launch_job.py")).arg(&folder),
                word => agent.arg(word),
            };
        }
        Job { program: Script::start_command(cluster, name, agent), folder }
    }

    fn folder(cluster: &Cluster, name: &str) -> PathBuf {
        let folder = cluster.folder().join(format!("orders-{name}"));
        std::fs::create_dir(&folder).expect("each job has a name of its own");
        folder
    }

    fn order(&self, order: &str) {
        std::fs::write(self.folder.join(order), "").expect("the folder was made");
    }

    /// Steps happen, the leader dies, and steps happen.
    async fn goes_on_without_its_leader(&mut self, cluster: &mut Cluster, attempt: u32) {
        let step = format!("attempt {attempt} step");
        self.program.says(&step).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        self.program.says_anew(&step).await;
        cluster.restart(leader).await;
    }

    async fn finishes(mut self, words: &str) {
        self.order("finish");
        let line = self.program.says("trained").await;
        assert!(line.contains(words), "{line}");
        self.program.succeeds().await;
    }
}

/// torchrun, as whoever has it in their path.
const TORCHRUN: [&str; 3] = ["PYTHON", "-m", "torch.distributed.run"];

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_on_one_node_without_flags() {
    let mut cluster = Cluster::start(3).await;
    let command = [&TORCHRUN[..], &["--nproc-per-node=2", "JOB"]].concat();
    let mut job = Job::start(&mut cluster, "torchrun", &[], &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    // Its store is this one: the workers' beats are there, and torchrun's keys.
    let keys = cluster.cli_ok(&["--job", "torchrun", "kv", "list"]).await;
    assert!(keys.contains("beat/1/1") && keys.contains("torchelastic"), "{keys}");
    job.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_are_told_an_address_as_init_method() {
    let mut cluster = Cluster::start(3).await;
    let address = format!("127.0.0.1:{}", cluster.port());
    let method = format!("tcp://{address}");
    let ranks = "RANK=1 \"$@\" & RANK=0 \"$@\"; code=$?; wait $! && exit $code";
    let command = ["env", "WORLD_SIZE=2", "sh", "-c", ranks, "ranks", "PYTHON", "JOB", &method];
    let flags = ["--tcpstore", &address];
    let mut job = Job::start(&mut cluster, "tcp", &flags, &command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    job.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_on_one_host() {
    let mut cluster = Cluster::start(3).await;
    let command = [&TORCHRUN[..], &["--nproc-per-node=2", "JOB"]].concat();
    let mut first = Job::start(&mut cluster, "one", &[], &command);
    let mut second = Job::start(&mut cluster, "other", &[], &command);
    first.program.says("attempt 0 step").await;
    second.goes_on_without_its_leader(&mut cluster, 0).await;
    first.program.says_anew("attempt 0 step").await;
    // One ends, and the other does not notice.
    first.finishes("with 2 ranks").await;
    second.program.says_anew("attempt 0 step").await;
    second.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_tasks_of_a_slurm_step_on_one_host() {
    let mut cluster = Cluster::start(3).await;
    let folder = Job::folder(&cluster, "step");
    // What srun does as far as its tasks can see: their variables, and an end
    // when all have ended.
    let mut srun = binaries::without_settings(python());
    srun.arg("-u").arg(script("srun.py")).args(["--ntasks-per-node=8", "--job-id=812"]);
    srun.arg(binaries::path("holdfast-agent")).args(["run", "--store", &cluster.list()]);
    srun.args(["--job", "step", "--"]).arg(python()).arg(script("launch_job.py")).arg(&folder);
    let mut job = Job { program: Script::start_command(&mut cluster, "srun", srun), folder };
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    let runs = cluster.cli_ok(&["--job", "step", "run", "list"]).await;
    assert!(runs.contains("slurm-812.0.0") && !runs.contains("r1"), "{runs}");
    job.finishes("with 8 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_not_on_holdfast_is_told_so_and_why() {
    let mut cluster = Cluster::start(1).await;
    // A launcher that sets its own address.
    let launcher = "trap 'kill $!; exit 7' TERM; MASTER_PORT=1 sleep 60 & wait";
    let flags = ["--job", "away", "--expect-clients-within", "1s"];
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

    // A client that leaves at once is one.
    let validate =
        r"exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT; printf '\x00\xce\xf7\x85\x3c' >&3; sleep 0.2";
    let (mut agent, _) = Agent::run(&mut cluster, "client", &flags, &["bash", "-c", validate]);
    assert_eq!(agent.ended().await.code(), Some(0), "{}", agent.said());
    assert!(!agent.said().contains("Holdfast: no"), "{}", agent.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_that_restarts_its_ranks_in_place_twice() {
    let mut cluster = Cluster::start(3).await;
    let options = ["--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1", "JOB"];
    let command = [&TORCHRUN[..], &options].concat();
    let flags = ["--attempts-kept", "2s"];
    let mut job = Job::start(&mut cluster, "restarts", &flags, &command);
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
