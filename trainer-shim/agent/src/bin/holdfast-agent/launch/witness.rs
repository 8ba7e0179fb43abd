//! Signals of Slurm, which may have reached the command already.
//!
//! Slurm signals the task alone, or every process of its step, as the cluster is
//! configured (`SignalChildrenProcesses`, `ProctrackType`). Nothing in a signal shows which: so a
//! second child runs beside the command, and reports the signals that it gets.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::FORWARDED;
use crate::signals::Caught;

/// How long a witness may take to be there.
const START_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a signal may take to reach all processes of a step: it is passed on
/// after that, if the witness has not seen it.
const SEEN_TIME_MAX: Duration = Duration::from_millis(500);
/// A signal that the witness alone has seen is forgotten then.
const SEEN_KEPT: Duration = Duration::from_secs(5);
/// Process name of the witness: not the agent's, so that killing the agent by name spares it.
const NAME: &str = "signal-witness";
const READY: &str = "ready";

/// A process beside the command, in all of its groups.
pub struct Witness {
    /// The process; the system kills it when this is dropped.
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    seen: VecDeque<(Seen, Instant)>,
    /// It ended: signals that reach the command are no longer known.
    gone: bool,
}

/// A signal, by its number and the process that sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    signal: i32,
    sender: i32,
}

impl Witness {
    /// Starts one, which sees every signal from now on.
    pub async fn start(program: &Path) -> anyhow::Result<Witness> {
        let mut command = std::process::Command::new(program);
        command.arg0(NAME).arg("witness");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Command::from(command).kill_on_drop(true).spawn()?;
        let output = child.stdout.take().context("it has no output")?;
        let mut lines = BufReader::new(output).lines();
        let first = timeout(START_TIME_MAX, lines.next_line()).await;
        let first = first.context("it does not become ready")??;
        anyhow::ensure!(first.as_deref() == Some(READY), "it ended at once");
        Ok(Witness { _child: child, lines, seen: VecDeque::new(), gone: false })
    }

    /// Whether the signal has reached the witness too: then it was sent to all.
    pub async fn has_seen(&mut self, caught: &Caught) -> bool {
        let Some(sender) = caught.sender else { return false };
        let wanted = Seen { signal: caught.signal as i32, sender };
        let until = Instant::now() + SEEN_TIME_MAX;
        loop {
            self.seen.retain(|(_, at)| at.elapsed() < SEEN_KEPT);
            if let Some(at) = self.seen.iter().position(|(seen, _)| *seen == wanted) {
                self.seen.remove(at);
                return true;
            }
            if self.gone {
                return false;
            }
            match timeout_at(until, self.lines.next_line()).await {
                Ok(Ok(Some(line))) => {
                    let seen = read(&line).map(|seen| (seen, Instant::now()));
                    self.seen.extend(seen);
                }
                Ok(ended) => {
                    debug!(?ended, "the witness has ended: signals are passed on");
                    self.gone = true;
                }
                Err(_) => return false,
            }
        }
    }
}

fn read(line: &str) -> Option<Seen> {
    let (signal, sender) = line.split_once(' ')?;
    Some(Seen { signal: signal.parse().ok()?, sender: sender.parse().ok()? })
}

/// The witness process: reports the signals that it gets, until its parent is gone.
pub fn witness() -> anyhow::Result<u8> {
    crate::surroundings::close_inherited();
    // By its name, too, it is not the agent.
    let _ = std::fs::write("/proc/self/comm", NAME);
    let numbers = FORWARDED.iter().map(|signal| *signal as i32);
    let mut signals = SignalsInfo::<WithOrigin>::new(numbers).context("cannot catch signals")?;
    std::thread::Builder::new().name("end".to_owned()).spawn(|| {
        // Nothing is ever written there.
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    })?;
    let mut output = io::stdout();
    writeln!(output, "{READY}")?;
    for origin in signals.forever() {
        if let Some(Caught { signal, sender: Some(sender), .. }) = crate::signals::read(&origin) {
            writeln!(output, "{} {sender}", signal as i32)?;
        }
    }
    Ok(0)
}
