//! A command under `holdfast-agent run`, and the process of its agent.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::agent::Agent;
use crate::cluster::Cluster;
use crate::patience::eventually;
use crate::process::Process;

/// Prints its agent's address, and ends with the code that it reads from a file, or after a
/// minute, or as many times 50 ms as `WAIT_TURNS` says, in case the test fails and leaves it.
pub const WAITS: &str = "echo place $MASTER_ADDR:$MASTER_PORT of $HOLDFAST_CONTROL.; \
                     for n in $(seq ${WAIT_TURNS:-1200}); do test -s \"$0\" && exit $(cat \"$0\"); sleep 0.05; done; \
                     exit 99";

/// For bash: a TCPStore client on file descriptor 3 that the agent has seen. It sends
/// VALIDATE and PING, and waits for the answer to the latter.
pub const COMES: &str = r"exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT
    printf '\x00\xce\xf7\x85\x3c\x0d\x01\x00\x00\x00' >&3; head -c4 <&3 >/dev/null";

/// A command under `holdfast-agent run`.
#[derive(Debug)]
pub struct Command {
    /// The process of `holdfast-agent run`.
    pub agent: Process,
    /// Where its TCPStore clients connect.
    pub address: String,
    /// The control socket of its agent.
    pub control: PathBuf,
    /// The file that ends it, with its exit code.
    pub order: PathBuf,
}

impl Command {
    /// Starts it; its agent is there.
    pub async fn start(cluster: &mut Cluster, name: &str, flags: &[&str]) -> Command {
        Command::start_with(cluster, name, &[], flags).await
    }

    /// The same, with these variables.
    pub async fn start_with(
        cluster: &mut Cluster,
        name: &str,
        variables: &[(&str, &str)],
        flags: &[&str],
    ) -> Command {
        let order = cluster.folder().join(format!("end-{name}"));
        let path = order.display().to_string();
        let command = ["sh", "-c", WAITS, &path];
        let (mut agent, _) = Agent::run_with(cluster, name, variables, flags, &command);
        let line = agent.says("place 127.0.0.1:").await;
        let (address, control) = line
            .strip_prefix("place ")
            .and_then(|rest| rest.strip_suffix('.')?.split_once(" of "))
            .unwrap_or_else(|| panic!("{line:?}"));
        let (address, control) = (address.to_owned(), PathBuf::from(control));
        Command { agent, address, control, order }
    }

    /// Ends with this code; answers its output.
    pub async fn end(mut self, code: i32) -> String {
        std::fs::write(&self.order, code.to_string()).expect("the folder is ours");
        assert_eq!(self.agent.ended().await.code(), Some(code), "{}", self.agent.said());
        self.agent.said()
    }
}

/// The agent at a control socket: its process id is in a file beside it.
pub async fn process_at(control: &Path) -> i32 {
    eventually("the agent's process id", async || {
        let mut path = control.as_os_str().to_owned();
        path.push(".alive");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse().ok()
    })
    .await
}

/// Waits until that process has ended.
pub async fn gone(process: i32) {
    eventually("the agent to end", async || {
        // An ended process that was not reaped yet counts as ended.
        let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let state = state.rsplit(')').next().unwrap_or_default().trim();
        (state.is_empty() || state.starts_with('Z')).then_some(())
    })
    .await;
}

/// Lets a process open no descriptor, or as many as this one may.
pub fn allow_descriptors(process: i32, allowed: bool) {
    let own = getrlimit(Resource::Nofile);
    // Those that are open stay.
    let limit = if allowed { own } else { Rlimit { current: Some(3), ..own } };
    let process = Pid::from_raw(process);
    assert!(process.is_some(), "the caller's own limit is not meant");
    prlimit(process, Resource::Nofile, limit).expect("it is ours");
}
