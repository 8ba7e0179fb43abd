//! `holdfast-agent serve`

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_agent::agent::{self, Agent, Kept};
use holdfast_agent::control::lock::Lock;
use holdfast_agent::control::place::{self, FileId, Place};
use holdfast_agent::control::server::Server;
use holdfast_agent::guard::Guard;
use holdfast_agent::keeper::link::{Handed, Keeper};
use holdfast_api::RunChoice;
use nix::sys::signal::Signal;
use nix::unistd::setsid;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::host::meet_keeper;
use crate::output::Lines;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::surroundings::raise_open_files;

/// Signals that end or drain the agent.
pub const ORDERS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1];

/// How long the agent before, which its keeper has seen end, may hold its lock.
const FORMER_TIME_MAX: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT; a second one ends it without waiting.
/// SIGUSR1, or the first SIGTERM if `drain`, lets the trainers that are there
/// come to their end before.
pub async fn serve(
    settings: Settings,
    drain: bool,
    control: Option<PathBuf>,
    is_kept: bool,
) -> anyhow::Result<u8> {
    let own = Signals::catch(&ORDERS).context("cannot catch signals")?;
    raise_open_files();
    let Before { keeper, kept, control: handed, mut orders } = match is_kept {
        true => Before::of_keeper(own)?,
        false => Before { keeper: None, kept: None, control: None, orders: Orders::Own(own) },
    };
    // Written by a thread of its own: a reader may be slow, as that of the log.
    let said = Lines::to(std::io::stdout()).context("cannot write to stdout")?;
    let guard = Guard::new(settings.allow_uid.clone());
    let options = agent::Options {
        tcpstore: settings.listen_or_usual(),
        ..settings.agent_options(RunChoice::Auto, settings.tls.read()?, guard.clone())
    };
    // As the ports, before the run is opened.
    let control = match handed {
        Some(listener) => Some(Control::again(listener).await?),
        None => {
            let control = Control::listen(control, &settings).await?;
            if let (Some(keeper), Some(control)) = (&keeper, &control) {
                control.is_kept_by(keeper)?;
            }
            control
        }
    };
    let goes_on = kept.as_ref().is_some_and(Kept::goes_on);
    let given_up = CancellationToken::new();
    // A run that was opened in the moment of a signal is served until that is obeyed.
    let mut early = None;
    let mut opening =
        std::pin::pin!(Agent::open_unless(options, kept, given_up.clone().cancelled_owned()));
    let agent = loop {
        tokio::select! {
            agent = &mut opening => break agent?,
            signal = orders.next(), if !goes_on => {
                if given_up.is_cancelled() {
                    return Ok(crate::launch::code_of_signal(signal));
                }
                early = Some(signal);
                info!("{signal} before the store answered; another one ends it at once");
                given_up.cancel();
            }
        }
    };
    let Some(agent) = agent else { return Ok(0) };
    let handle = agent.handle();
    let addresses: Vec<String> = handle.addresses().iter().map(ToString::to_string).collect();
    said.say(format_args!(
        "holdfast-agent: job {} run {} on {}, store {}",
        handle.job(),
        handle.run(),
        addresses.join(" "),
        settings.store.join(","),
    ));
    let shutdown = CancellationToken::new();
    let mut offering = std::pin::pin!(offer(control, guard, handle.clone(), said));
    let mut running = std::pin::pin!(agent.run(shutdown.clone()));
    let mut draining = false;
    loop {
        tokio::select! {
            // Connections of an agent before are taken up before a signal is obeyed.
            biased;
            () = &mut running => {
                if draining {
                    info!("drained: the last trainer has gone");
                }
                return Ok(0);
            }
            never = &mut offering => match never {},
            () = gone(keeper.as_ref()) => {
                warn!("the keeper of this agent has ended, and it ends with that");
                return Ok(crate::FAILURE);
            }
            signal = orders.next_after(&mut early) => {
                let connections = handle.connections();
                let drains = signal == Signal::SIGUSR1
                    || (drain && signal == Signal::SIGTERM && !draining);
                if !drains {
                    info!(
                        "{signal}: closing {connections} connections, and leaving the run; another \
                         one ends it at once"
                    );
                    break;
                }
                draining = true;
                info!(
                    "{signal}: draining; {connections} connections, no new trainers, SIGTERM closes \
                     at once"
                );
                handle.drain();
            }
        }
    }
    drop(handle);
    shutdown.cancel();
    tokio::select! {
        () = running => Ok(0),
        signal = orders.next() => Ok(crate::launch::code_of_signal(signal)),
    }
}

/// Returns when the keeper has ended, if there is one.
async fn gone(keeper: Option<&Keeper>) {
    match keeper {
        Some(keeper) => keeper.gone().await,
        None => std::future::pending().await,
    }
}

/// What there is before the run is open.
struct Before {
    keeper: Option<Keeper>,
    kept: Option<Kept>,
    /// The control socket of the agent before.
    control: Option<std::os::unix::net::UnixListener>,
    orders: Orders,
}

impl Before {
    /// What the keeper has.
    fn of_keeper(own: Signals) -> anyhow::Result<Before> {
        let (keeper, handed) = meet_keeper()?;
        // The terminal's signals reach the keeper; fails for the leader of a group, which is as good.
        let _ = setsid();
        let Handed { state, session, control, ports, signals, .. } = handed;
        let kept = Kept::read(keeper.clone(), (state, session), ports)?;
        Ok(Before {
            keeper: Some(keeper),
            kept: Some(kept),
            control: control.map(Into::into),
            orders: Orders::OfKeeper { signals, _own: own },
        })
    }
}

/// Signals that are meant for this agent.
enum Orders {
    /// Those that reach it.
    Own(Signals),
    /// Those that reach its keeper. A service manager may send the same to both: its own are
    /// caught, and count no second time.
    OfKeeper { signals: mpsc::UnboundedReceiver<(i32, bool)>, _own: Signals },
}

impl Orders {
    /// The signal that came early, then those that come.
    async fn next_after(&mut self, early: &mut Option<Signal>) -> Signal {
        match early.take() {
            Some(signal) => signal,
            None => self.next().await,
        }
    }

    async fn next(&mut self) -> Signal {
        match self {
            Orders::Own(signals) => signals.next().await.signal,
            Orders::OfKeeper { signals, .. } => loop {
                match signals.recv().await.map(|(number, _)| Signal::try_from(number)) {
                    Some(Ok(signal)) => return signal,
                    Some(Err(_)) => {}
                    // The keeper has ended, which is seen elsewhere.
                    None => std::future::pending().await,
                }
            },
        }
    }
}

/// Where programs with the library find this agent.
struct Control {
    listener: Option<UnixListener>,
    place: Place,
    /// The socket's file: a different file there belongs to another process.
    own_file: Option<FileId>,
    /// No other agent takes the socket while it is held.
    _alive: Lock,
}

impl Control {
    /// Listens at the given path, or in the usual folder. If that cannot be used,
    /// there is no socket.
    async fn listen(
        named: Option<PathBuf>,
        settings: &Settings,
    ) -> anyhow::Result<Option<Control>> {
        if let Some(path) = named {
            let path = std::path::absolute(&path)
                .with_context(|| format!("--control {}", path.display()))?;
            return Control::at(Place::named(path), settings).await.map(Some);
        }
        let usual = async {
            let folder = place::folder(&settings.allow_uid)?;
            let port = settings.listen_or_usual()[0];
            let place = Place::of_server(&folder, &settings.store, &settings.job(), port);
            match Control::at(place, settings).await {
                // Another one on this host has the same port, in a network of its own.
                Err(_) => Control::at(Place::of_nobody(&folder), settings).await,
                control => control,
            }
        };
        match usual.await {
            Ok(control) => Ok(Some(control)),
            Err(error) => {
                warn!("programs with the library cannot join this agent: {error:#}");
                Ok(None)
            }
        }
    }

    async fn at(place: Place, settings: &Settings) -> anyhow::Result<Control> {
        let (socket, chosen_by) = (place.socket().display(), place.chosen_by());
        let Some(alive) = place.live(Duration::ZERO).await? else {
            bail!("another agent serves at {socket}; {chosen_by}");
        };
        // A listener without that lock is no agent of this version.
        if UnixStream::connect(place.socket()).await.is_ok() {
            bail!("another program listens at {socket}; {chosen_by}");
        }
        Control::of(place.listen(&settings.allow_uid)?, place, alive)
    }

    /// The socket of the agent before, which its keeper has.
    async fn again(listener: std::os::unix::net::UnixListener) -> anyhow::Result<Control> {
        let address = listener.local_addr()?;
        let path = address.as_pathname().context("the control socket has no path")?.to_owned();
        let place = Place::at(path);
        let Some(alive) = place.live(FORMER_TIME_MAX).await? else {
            bail!("another agent serves at {}", place.socket().display());
        };
        Control::of(listener, place, alive)
    }

    fn of(
        listener: std::os::unix::net::UnixListener,
        place: Place,
        alive: Lock,
    ) -> anyhow::Result<Control> {
        listener.set_nonblocking(true)?;
        let listener = Some(UnixListener::from_std(listener)?);
        Ok(Control { listener, own_file: place.file(), place, _alive: alive })
    }

    /// The socket outlives this agent.
    fn is_kept_by(&self, keeper: &Keeper) -> anyhow::Result<()> {
        if let Some(listener) = &self.listener {
            let copy = listener.as_fd().try_clone_to_owned()?;
            keeper.keep_control(copy).context("the control socket is not kept")?;
        }
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.own_file.is_some() && self.place.file() == self.own_file {
            // A file that stays is replaced by the next agent there.
            let _ = std::fs::remove_file(self.place.socket());
        }
    }
}

/// Serves the control socket for as long as it is awaited.
async fn offer(
    mut control: Option<Control>,
    guard: Guard,
    handle: agent::Handle,
    said: Lines,
) -> std::convert::Infallible {
    if let Some(control) = &mut control
        && let Some(listener) = control.listener.take()
    {
        said.say(format_args!(
            "holdfast-agent: programs join at HOLDFAST_CONTROL={}",
            control.place.socket().display()
        ));
        let (_tell, agent) = watch::channel(Some(Ok(handle)));
        let _left = Server::lasting(listener, guard, agent, CancellationToken::new()).run().await;
    }
    std::future::pending().await
}
