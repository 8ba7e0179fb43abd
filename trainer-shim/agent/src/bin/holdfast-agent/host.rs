//! The agent of one run on one host, as a process of its own: started by the
//! first `run`, ended when the last has left.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use holdfast_agent::agent::{self, Agent, Kept, Wanted};
use holdfast_agent::control::lock::Lock;
use holdfast_agent::control::log::{KeeperLog, OwnLog};
use holdfast_agent::control::place::Place;
use holdfast_agent::control::protocol::Refused;
use holdfast_agent::control::server::Server;
use holdfast_agent::guard::Guard;
use holdfast_agent::keeper::link::{Handed, Keeper};
use holdfast_api::RunChoice;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid, setsid};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::command_line::Before;
use crate::masters::beside_masters;
use crate::output::Lines;
use crate::settings::Settings;
use crate::signals::Signals;

/// Signals that a launcher sends to all processes that it finds; each of them
/// would end the agent.
pub const CAUGHT: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// A keeper that was killed is gone within this time, looked for so often.
const KEEPER_END_TIME_MAX: Duration = Duration::from_secs(5);
const KEEPER_END_PAUSE: Duration = Duration::from_millis(1);

/// How long the agent before may take to end: it commits what has arrived.
const FORMER_TIME_MAX: Duration = Duration::from_secs(30);

/// Serves the control socket that is this process's standard input, or that its keeper
/// has. The run of an agent `before` is not opened anew.
pub async fn host(
    settings: Settings,
    before: Option<Before>,
    is_kept: bool,
    output: &Lines,
) -> anyhow::Result<u8> {
    // Signals of the terminal are for the commands; fails for a process that
    // leads a group already, which is as good.
    if let Err(error) = setsid() {
        debug!(%error, "no session of its own");
    }
    let mut signals = Signals::catch(&CAUGHT).context("cannot catch signals")?;
    let (listener, kept) = match is_kept {
        true => {
            let (listener, kept) = of_keeper()?;
            (listener, Some(kept))
        }
        false => (UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?), None),
    };
    let place = place_of(&listener)?;
    let (keeper, parent) = (kept.as_ref().map(|kept| kept.keeper().clone()), getppid());
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let own_file = place.file();
    let guard = Guard::new(settings.allow_uid.clone());
    let mut options = settings.agent_options(RunChoice::Held, settings.tls.read()?, guard.clone());
    options.tcpstore = beside_masters(&options.tcpstore);
    if let Some(Before { run, ports, lease }) = before {
        options.run = Wanted::Joined { run, lease };
        options.tcpstore = ports;
    }
    let (tell, agent) = watch::channel(None);
    let over = CancellationToken::new();
    let server = Server::new(listener, guard, agent, over.clone());
    let serving = server.run();
    let running = run(options, kept, &place, &tell, &over);
    tokio::pin!(serving, running);
    let mut code = None;
    // Dropped last: a process that waits for the agent's end sees it then, after
    // the agent's last log lines.
    let mut leaving = None;
    while code.is_none() || leaving.is_none() {
        tokio::select! {
            mut left = &mut serving, if leaving.is_none() => {
                place.clear(own_file).await;
                // From here on the next `run` starts an agent of its own.
                left.stop_listening();
                over.cancel();
                leaving = Some(left);
            }
            ended = &mut running, if code.is_none() => code = Some(ended),
            () = ended(keeper.as_ref(), parent) => {
                warn!("the keeper of this agent has ended, and it ends with that");
                output.flush();
                return Ok(crate::FAILURE);
            }
            caught = signals.next() => info!(
                "{} does not end the agent: it goes with the last command that is attached",
                caught.signal
            ),
        }
    }
    output.flush();
    drop(leaving);
    Ok(code.unwrap_or(crate::FAILURE))
}

/// Returns when the keeper, which is this parent, has ended, if there is one.
async fn ended(keeper: Option<&Keeper>, parent: Pid) {
    let Some(keeper) = keeper else { return std::future::pending().await };
    keeper.gone().await;
    // It has closed the control socket, too, when another process is the parent of this one: to
    // `run`, a socket that still answers means that the keeper is alive.
    let closed = async {
        while getppid() == parent {
            sleep(KEEPER_END_PAUSE).await;
        }
    };
    let _ = timeout(KEEPER_END_TIME_MAX, closed).await;
}

/// The agent itself; answers the exit code.
async fn run(
    options: agent::Options,
    kept: Option<Kept>,
    place: &Place,
    tell: &watch::Sender<Option<Result<agent::Handle, Refused>>>,
    over: &CancellationToken,
) -> u8 {
    let (_alive, agent) = match Box::pin(open(options, kept, place, over)).await {
        Ok(Some(opened)) => opened,
        Ok(None) => return 0,
        Err(error) => {
            let refused = match error.downcast_ref::<agent::Error>() {
                Some(error) => Refused::from(error),
                None => format!("{error:#}").into(),
            };
            tell.send_replace(Some(Err(refused)));
            return crate::FAILURE;
        }
    };
    let handle = agent.handle();
    tell.send_replace(Some(Ok(handle.clone())));
    let closing = CancellationToken::new();
    // Connections are counted before they are all cut off.
    let report = async {
        over.cancelled().await;
        match handle.connections() {
            0 => {}
            left => warn!(
                "the last command has ended and left processes behind that still use the store: \
                 {left} connections are closed"
            ),
        }
        closing.cancel();
    };
    tokio::join!(agent.run(closing.clone()), report);
    0
}

/// Opens the run as the only agent of this place; `None` if the caller has gone.
async fn open(
    mut options: agent::Options,
    kept: Option<Kept>,
    place: &Place,
    over: &CancellationToken,
) -> anyhow::Result<Option<(Lock, Agent)>> {
    let Some(alive) = over.run_until_cancelled(place.live(FORMER_TIME_MAX)).await else {
        return Ok(None);
    };
    let alive = alive?.ok_or_else(|| {
        anyhow!(
            "the previous agent of this run has not ended within {FORMER_TIME_MAX:?}: \
             end it with `kill -9 $(cat {})`",
            place.participant_lock().display()
        )
    })?;
    if alive.is_left() && options.run == Wanted::Chosen(RunChoice::Held) {
        options.run = Wanted::AfterKilled;
    }
    let agent = Box::pin(Agent::open_unless(options, kept, over.cancelled())).await?;
    Ok(agent.map(|agent| (alive, agent)))
}

/// The log of this process, which `run` or the keeper started; `None` if neither did.
pub fn own_log(kept: Option<&Path>) -> Option<OwnLog> {
    let place = match kept {
        Some(socket) => Place::at(socket.to_owned()),
        None => place_of_stdin()?,
    };
    OwnLog::of(place).ok()
}

/// The log of the agent of this process, which is its keeper.
pub fn keeper_log() -> Option<KeeperLog> {
    KeeperLog::of(&place_of_stdin()?).ok()
}

fn place_of_stdin() -> Option<Place> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().ok()?;
    place_of(&UnixListener::from(stdin)).ok()
}

/// What the keeper holds for this process.
fn of_keeper() -> anyhow::Result<(UnixListener, Kept)> {
    let (keeper, handed) = meet_keeper()?;
    let Handed { state, session, control, ports, .. } = handed;
    let control = control.context("the keeper has no control socket")?;
    Ok((UnixListener::from(control), Kept::read(keeper, (state, session), ports)?))
}

/// The keeper at the other end of this process's standard input.
pub fn meet_keeper() -> anyhow::Result<(Keeper, Handed)> {
    // Its end also ends this process: there are never two agents of one place.
    let _ = set_pdeathsig(Signal::SIGKILL);
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    Keeper::meet(socket).context("cannot talk to the keeper; this is started by it, not by hand")
}

/// Where the socket is that `run` made before it started this process.
fn place_of(listener: &UnixListener) -> anyhow::Result<Place> {
    let advice = "this is started by `holdfast-agent run`, not by hand";
    let address = listener.local_addr().context(advice)?;
    let path: PathBuf = address.as_pathname().context(advice)?.to_owned();
    Ok(Place::at(path))
}
