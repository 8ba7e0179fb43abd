//! `holdfast-agent serve`

use anyhow::Context;
use holdfast_agent::agent::{self, Agent};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::settings::Settings;
use crate::signals::Signals;

/// Serves until SIGTERM or SIGINT; a second one ends it without waiting.
/// SIGUSR1, or the first SIGTERM if `drain`, lets the trainers that are there
/// come to their end before.
pub async fn serve(settings: Settings, drain: bool) -> anyhow::Result<u8> {
    let mut signals = Signals::catch(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1])
        .context("cannot catch signals")?;
    raise_open_files();
    let options =
        agent::Options { tcpstore: settings.listen_or_usual(), ..settings.agent_options() };
    let agent = tokio::select! {
        agent = Agent::open(options) => agent?,
        caught = signals.next() => {
            info!("{} before the store answered", caught.signal);
            return Ok(0);
        }
    };
    let handle = agent.handle();
    let addresses: Vec<String> = handle.addresses().iter().map(ToString::to_string).collect();
    println!(
        "holdfast-agent: job {} run {} on {}, store {}",
        handle.job(),
        handle.run(),
        addresses.join(" "),
        settings.store.join(","),
    );
    let shutdown = CancellationToken::new();
    let mut running = std::pin::pin!(agent.run(shutdown.clone()));
    let mut draining = false;
    loop {
        tokio::select! {
            () = &mut running => {
                if draining {
                    info!("drained: the last trainer has gone");
                }
                return Ok(0);
            }
            caught = signals.next() => {
                let connections = handle.connections();
                let drains = caught.signal == Signal::SIGUSR1
                    || (drain && caught.signal == Signal::SIGTERM && !draining);
                if !drains {
                    info!("{}: closing {connections} connections", caught.signal);
                    break;
                }
                draining = true;
                info!(
                    "{}: draining; {connections} connections, no new trainers, SIGTERM closes at once",
                    caught.signal
                );
                handle.drain();
            }
        }
    }
    drop(handle);
    shutdown.cancel();
    tokio::select! {
        () = running => Ok(0),
        caught = signals.next() => Ok(crate::launch::code_of_signal(caught.signal)),
    }
}

/// Every connection is an open file, and the usual limit is 1024.
pub fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        debug!(%error, "cannot raise the limit on open files");
    }
}
