//! Shows what the agent logs, by a thread of its own: the disk that the log is on
//! may be slow.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use holdfast_agent::control::place::Place;
use holdfast_agent::control::shown::NewLines;
use tracing::debug;

use crate::output::Lines;

/// Pause between two looks for new lines.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Pause between two checks whether the process that shows the log has gone.
const TURN_INTERVAL: Duration = Duration::from_secs(1);
/// How long an end waits for the last lines.
const LAST_TIME_MAX: Duration = Duration::from_secs(1);

/// The agent's log, which is shown until this is dropped.
pub struct AgentLog {
    end: SyncSender<()>,
    done: Receiver<()>,
}

impl AgentLog {
    /// Shows the log of the agent at this place, which may not be there yet.
    pub fn show(place: Place, output: Lines) -> io::Result<AgentLog> {
        let mut new = NewLines::of(place);
        // The process that starts the agent has looked before, so every line is shown.
        look(&mut new, false, &output);
        let (end, told) = sync_channel(1);
        let (finished, done) = sync_channel(1);
        thread::Builder::new().name("agent-log".to_owned()).spawn(move || {
            let mut mine = true;
            loop {
                let pause = if mine { LOOK_INTERVAL } else { TURN_INTERVAL };
                let last = told.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
                mine = look(&mut new, last, &output);
                if last {
                    break;
                }
            }
            drop(new);
            // The receiver may be gone.
            let _ = finished.try_send(());
        })?;
        Ok(AgentLog { end, done })
    }
}

impl Drop for AgentLog {
    fn drop(&mut self) {
        let _ = self.end.try_send(());
        // A disk that stalls is not waited for.
        let _ = self.done.recv_timeout(LAST_TIME_MAX);
    }
}

/// Shows what is new, if it is this one's to show; answers whether it is.
fn look(new: &mut NewLines, last: bool, output: &Lines) -> bool {
    let looked = new.are_mine().and_then(|mine| {
        if mine {
            new.show(last, |line| output.push(line.to_vec()))?;
        }
        Ok(mine)
    });
    looked.unwrap_or_else(|error| {
        debug!(%error, "the agent's log cannot be shown");
        false
    })
}
