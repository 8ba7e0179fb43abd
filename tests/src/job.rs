//! A training job under a launcher: real PyTorch, which takes steps until it is asked to finish.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries;
use crate::cluster::Cluster;
use crate::hosts::Host;
use crate::python::{Script, Torch, script};

/// torchrun, from the user's path.
pub const TORCHRUN: [&str; 3] = ["PYTHON", "-m", "torch.distributed.run"];

/// A job, and how the test controls it. Its programs are started one by one: that of the
/// first has rank 0, which reports for all.
#[derive(Debug)]
pub struct Job {
    name: String,
    /// Its launcher names it, and no flag does.
    unnamed: bool,
    torch: Torch,
    programs: Vec<Script>,
    folder: PathBuf,
}

impl Job {
    /// A job without running programs.
    pub fn new(cluster: &Cluster, torch: &Torch, name: &str) -> Job {
        let folder = cluster.folder().join(format!("orders-{name}"));
        std::fs::create_dir(&folder).expect("each job has a name of its own");
        let programs = Vec::new();
        Job { name: name.to_owned(), unnamed: false, torch: torch.clone(), programs, folder }
    }

    /// One that its launcher names; `label` is what the test calls it.
    pub fn unnamed(cluster: &Cluster, torch: &Torch, label: &str) -> Job {
        Job { unnamed: true, ..Job::new(cluster, torch, label) }
    }

    /// Through which it gets its orders.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `holdfast-agent run FLAGS -- COMMAND` for this job. In the command
    /// `PYTHON` stands for the Python with PyTorch, and `JOB` for the job's
    /// program and its arguments.
    pub fn command(&self, cluster: &Cluster, flags: &[&str], command: &[&str]) -> Command {
        let mut agent = binaries::command("holdfast-agent");
        agent.args(["run", "--store", &cluster.list()]);
        if !self.unnamed {
            agent.args(["--job", &self.name]);
        }
        agent.args(flags).arg("--");
        self.add_words(&mut agent, command);
        agent
    }

    /// The same by each task of a Slurm step: `srun OPTIONS holdfast-agent run
    /// … -- COMMAND`, as far as one host's tasks can see.
    pub fn under_srun(&self, cluster: &Cluster, options: &[&str], command: &[&str]) -> Command {
        let mut srun = binaries::without_settings(&self.torch.python);
        srun.arg("-u").arg(script("srun.py")).args(options);
        let task = self.command(cluster, &[], command);
        srun.arg(task.get_program()).args(task.get_args());
        srun
    }

    /// The same by each process of a real `mpirun`.
    pub fn under_mpirun(&self, cluster: &Cluster, processes: u32, command: &[&str]) -> Command {
        let mut mpirun = binaries::without_settings("mpirun");
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", &processes.to_string()]);
        // Two that begin at once would make the same folder, and one of them fail.
        mpirun.args(["--mca", "orte_tmpdir_base"]).arg(&self.folder);
        let each = self.command(cluster, &[], command);
        mpirun.arg(each.get_program()).args(each.get_args());
        mpirun
    }

    /// Adds words, some of which stand for the job, as in [`Job::command`].
    pub fn add_words(&self, command: &mut Command, words: &[&str]) {
        for word in words {
            match *word {
                "PYTHON" => command.arg(&self.torch.python),
                "JOB" => command.arg(script("launch_job.py")).arg(&self.folder),
                word => command.arg(word),
            };
        }
    }

    /// Starts another of its programs.
    pub fn start(&mut self, cluster: &mut Cluster, command: Command) {
        let label = self.next_label();
        self.programs.push(Script::start_command(cluster, &label, command));
    }

    /// Starts another of its programs, on a host.
    pub fn start_on(&mut self, host: &Host, cluster: &mut Cluster, command: Command) {
        let label = self.next_label();
        self.programs.push(host.program(cluster, &label, command));
    }

    fn next_label(&self) -> String {
        format!("{}-{}", self.name, self.programs.len())
    }

    /// The program with rank 0.
    pub fn first(&mut self) -> &mut Script {
        self.programs.first_mut().expect("a program was started")
    }

    /// Gives all ranks an order.
    pub fn order(&self, order: &str) {
        std::fs::write(self.folder.join(order), "").expect("the folder was made");
    }

    /// Steps happen, the leader dies, and steps happen.
    pub async fn goes_on_without_its_leader(&mut self, cluster: &mut Cluster, attempt: u32) {
        let step = format!("attempt {attempt} step");
        self.first().says(&step).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        self.first().says_anew(&step).await;
        cluster.restart(leader).await;
    }

    /// All of its programs end without success.
    pub async fn fails(self) {
        for program in self.programs {
            program.fails().await;
        }
    }

    /// Asks it to finish. All of its programs end well, and rank 0's last line holds these words.
    pub async fn finishes(mut self, words: &str) {
        self.order("finish");
        let line = self.first().says("trained").await;
        assert!(line.contains(words), "{line}");
        for program in self.programs {
            program.succeeds().await;
        }
    }
}
