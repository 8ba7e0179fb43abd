//! A child process: started, signalled, ended, measured.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::patience::{eventually, patiently};

/// A child whose output goes to a log file. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Where in the log this child's own words begin.
    log_start: u64,
}

impl Process {
    /// Starts it; its output is appended to `log`.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Process {
        let open = || File::options().create(true).append(true).open(log);
        let file = open().unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let log_start = file.metadata().map(|metadata| metadata.len()).unwrap_or(0);
        let copy = file.try_clone().expect("an open file can be opened twice");
        let child = command.stdin(Stdio::null()).stdout(copy).stderr(file).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Process { name: name.to_owned(), child, log: log.to_owned(), log_start }
    }

    /// The process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("process ids are small");
        if let Err(error) = kill(Pid::from_raw(pid), signal) {
            panic!("{signal} to {}: {error}; it said:\n{}", self.name, self.said());
        }
    }

    /// Sends SIGKILL and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// SIGTERM; answers how it ended.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.ended().await
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        eventually(&what, async || self.child.try_wait().expect("a child can be waited for")).await
    }

    /// How it ended; none while it runs.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Its output so far.
    pub fn said(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(self.log_start).unwrap_or(0).min(bytes.len());
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    /// Waits until it has written a line that contains `text`; answers the
    /// line.
    pub async fn says(&mut self, text: &str) -> String {
        let what = format!("{} to say {text:?}", self.name);
        eventually(&what, async || {
            self.said().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
        .await
    }

    /// Memory that it holds, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB"));
        let kibibytes: u64 = kibibytes
            .and_then(|number| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("{path} does not tell how much memory {} holds", self.name));
        kibibytes * 1024
    }
}

/// How a program ended that was run to its end.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// All that it wrote to standard output.
    pub stdout: String,
    /// All that it wrote to standard error.
    pub stderr: String,
}

impl Ended {
    /// Runs a program to its end.
    pub async fn of(command: Command) -> Ended {
        Ended::start(command).await
    }

    /// Starts a program, here and now; its end is awaited.
    pub fn start(mut command: Command) -> impl Future<Output = Ended> {
        let name = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn();
        async move {
            let child = child.unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
            let output = patiently(&format!("the end of {name}"), child.wait_with_output()).await;
            let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            Ended {
                code: output.status.code(),
                stdout: text(output.stdout),
                stderr: text(output.stderr),
            }
        }
    }

    /// It must have failed with this exit code, and its words hold all of
    /// these texts.
    #[track_caller]
    pub fn failed(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for text in texts {
            assert!(self.stderr.contains(text), "{text:?} is missing: {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // It may end by itself in this moment.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}
