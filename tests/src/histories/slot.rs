//! The place of one process of a job: its incarnations come and go in it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use holdfast_api::{ProcessId, Role};
use holdfast_chaos::Recorder;
use holdfast_chaos::history::What;
use nix::sys::signal::Signal;

use super::plan::{Calls, EXIT_ENDED, EXIT_NOT_JOINED, RankPlan};
use crate::binaries;
use crate::process::Process;

/// Settings that all ranks of a job share.
#[derive(Debug, Clone)]
pub struct JobPlan {
    /// Name of the job.
    pub job: String,
    /// The run that its ranks join.
    pub run: String,
    /// Where the nodes are.
    pub store: Store,
    /// Folder of the history.
    pub folder: PathBuf,
    /// Folder of the ranks' logs.
    pub logs: PathBuf,
    /// TTL of each lease.
    pub ttl: Duration,
    /// The calls of the ranks.
    pub calls: Calls,
}

/// Addresses of the nodes.
#[derive(Debug, Clone)]
pub enum Store {
    /// These addresses, which do not change.
    List(Vec<String>),
    /// This file holds a list with commas, which changes when nodes are replaced.
    File(PathBuf),
}

impl Store {
    /// The addresses at this moment.
    pub fn addresses(&self) -> Vec<String> {
        match self {
            Store::List(list) => list.clone(),
            Store::File(path) => {
                let text = std::fs::read_to_string(path).expect("the file of the nodes is there");
                text.trim().split(',').map(str::to_owned).collect()
            }
        }
    }
}

/// The place of one process of a job.
#[derive(Debug)]
pub struct Slot {
    process: ProcessId,
    /// Programs that were started here.
    started: u32,
    running: Option<Running>,
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    program: String,
    child: Process,
    /// File of its records.
    file: PathBuf,
    /// How much of that was there at the last look that counts.
    mark: u64,
    /// Whether it may be killed for what it holds.
    holds: bool,
}

impl Slot {
    /// A place without a program.
    pub fn new(process: ProcessId) -> Slot {
        Slot { process, started: 0, running: None }
    }

    /// Starts a new incarnation, under an agent or with a lease of its own.
    pub fn start(&mut self, job: &JobPlan, agent: Option<&Path>, role: Role, takeover: bool) {
        self.started += 1;
        let program = format!("rank-{}-{}", self.process, self.started);
        let plan = RankPlan {
            store: job.store.addresses(),
            job: job.job.clone(),
            run: job.run.clone(),
            process: self.process,
            role,
            takeover,
            agent: agent.map(Path::to_owned),
            ttl: job.ttl,
            program: program.clone(),
            folder: job.folder.clone(),
            calls: job.calls.clone(),
        };
        let mut command = binaries::command("recording-rank");
        command.arg(serde_json::to_string(&plan).expect("a plan is plain data"));
        let log = job.logs.join(format!("{}.log", job.job));
        let child = Process::start(&program, command, &log);
        let file = job.folder.join(format!("{program}.jsonl"));
        let holds = job.calls.hold();
        self.running = Some(Running { program, child, file, mark: 0, holds });
    }

    /// The program that runs here.
    pub fn program(&self) -> Option<&str> {
        self.running.as_ref().map(|running| running.program.as_str())
    }

    /// Whether a program runs here, as far as it was looked at.
    pub fn runs(&self) -> bool {
        self.running.is_some()
    }

    /// SIGKILL; records when it was about to die and when it was dead.
    pub fn kill(&mut self, harness: &mut Recorder) {
        let Some(Running { program, mut child, .. }) = self.running.take() else { return };
        record(harness, What::Kill { program: program.clone() });
        child.kill();
        record(harness, What::Dead { program, how: "killed".to_owned() });
    }

    /// SIGSTOP; records before it that the program is suspect.
    pub fn pause(&self, harness: &mut Recorder) {
        let Some(Running { program, child, .. }) = &self.running else { return };
        let programs = vec![program.clone()];
        record(harness, What::Suspect { programs, why: "paused".to_owned() });
        child.signal(Signal::SIGSTOP);
    }

    /// SIGCONT, if a program runs here.
    pub fn resume(&self) {
        if let Some(running) = &self.running {
            running.child.signal(Signal::SIGCONT);
        }
    }

    /// Takes a paused program out of its place, for a successor.
    pub fn set_aside(&mut self) -> Option<Running> {
        self.running.take()
    }

    /// Counts the answers of the program here from now on.
    pub fn mark(&mut self) {
        if let Some(running) = &mut self.running {
            running.mark = running.file.metadata().map_or(0, |metadata| metadata.len());
        }
    }

    /// Whether the program here got an outcome since the mark, or since its start.
    pub fn heard(&self) -> bool {
        let heard = |Running { file, mark, .. }: &Running| -> std::io::Result<bool> {
            let mut file = File::open(file)?;
            file.seek(SeekFrom::Start(*mark))?;
            let mut told = String::new();
            file.read_to_string(&mut told)?;
            Ok(told.contains("\"outcome\""))
        };
        self.running.as_ref().is_some_and(|running| heard(running).unwrap_or(false))
    }

    /// Whether the program here has ended by itself, or was killed for what it holds: only a
    /// notice that its incarnation is over, or the end of its lease before it had joined, allows
    /// that.
    ///
    /// # Panics
    ///
    /// If it ended otherwise.
    pub fn has_ended(&mut self, harness: &mut Recorder) -> bool {
        let Some(running) = &mut self.running else { return true };
        let Some(status) = running.child.end() else { return false };
        let said = running.child.said();
        let program = running.program.clone();
        assert!(running.ended_well(status), "{program} ended with {status}: {said}");
        record(harness, What::Dead { program, how: status.to_string() });
        self.running = None;
        true
    }

    /// Sends SIGTERM; the rank leaves.
    pub async fn stop(&mut self, harness: &mut Recorder) {
        let Some(mut running) = self.running.take() else { return };
        let status = running.child.stop().await;
        // One that had only just begun does not know the signal yet.
        let terminated = status.signal() == Some(Signal::SIGTERM as i32);
        let good = status.success() || running.ended_well(status) || terminated;
        let Running { program, child, .. } = running;
        assert!(good, "{program} was asked to leave and ended with {status}: {}", child.said());
        record(harness, What::Dead { program, how: status.to_string() });
    }
}

impl Running {
    /// Wakes a paused program whose successor is alive; it must find out that its own incarnation
    /// is over. One that had none yet would wait for the successor to end, and is killed.
    pub async fn put_down(mut self, harness: &mut Recorder) {
        let program = self.program.clone();
        let told = std::fs::read_to_string(&self.file).unwrap_or_default();
        let how = if told.contains("\"joined\"") {
            self.child.signal(Signal::SIGCONT);
            let status = self.child.ended().await;
            let said = self.child.said();
            assert!(self.ended_well(status), "{program} ended with {status}: {said}");
            status.to_string()
        } else {
            record(harness, What::Kill { program: program.clone() });
            self.child.kill();
            "killed".to_owned()
        };
        record(harness, What::Dead { program, how });
    }

    /// Whether it was notified that its incarnation is over, or its lease before it joined. One
    /// that may hold something may have been killed before it was.
    fn ended_well(&self, status: ExitStatus) -> bool {
        let codes = [EXIT_ENDED, EXIT_NOT_JOINED].map(i32::from);
        let is_killed = status.signal() == Some(Signal::SIGKILL as i32);
        status.code().is_some_and(|code| codes.contains(&code)) || self.holds && is_killed
    }
}

/// Writes down what is done to programs.
pub fn record(harness: &mut Recorder, what: What) {
    harness.record(what).expect("the folder of a history can be written");
}
