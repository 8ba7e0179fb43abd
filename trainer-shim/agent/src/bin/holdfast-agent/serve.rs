//! `holdfast-agent serve`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_agent::agent::{self, Agent};
use holdfast_agent::control::lock::Lock;
use holdfast_agent::control::place::{self, FileId, Place};
use holdfast_agent::control::server::Server;
use holdfast_api::RunChoice;
use nix::sys::signal::Signal;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::output::Lines;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::surroundings::raise_open_files;

/// Serves until SIGTERM or SIGINT; a second one ends it without waiting.
/// SIGUSR1, or the first SIGTERM if `drain`, lets the trainers that are there
/// come to their end before.
pub async fn serve(
    settings: Settings,
    drain: bool,
    control: Option<PathBuf>,
) -> anyhow::Result<u8> {
    let mut signals = Signals::catch(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1])
        .context("cannot catch signals")?;
    raise_open_files();
    // Written by a thread of its own: a reader may be slow, as that of the log.
    let said = Lines::to(std::io::stdout()).context("cannot write to stdout")?;
    let options = agent::Options {
        tcpstore: settings.listen_or_usual(),
        ..settings.agent_options(RunChoice::Auto, settings.tls.read()?)
    };
    // As the ports, before the run is opened.
    let control = Control::listen(control, &settings).await?;
    let given_up = CancellationToken::new();
    let mut opening =
        std::pin::pin!(Agent::open_unless(options, None, given_up.clone().cancelled_owned()));
    let agent = loop {
        tokio::select! {
            agent = &mut opening => break agent?,
            caught = signals.next() => {
                if given_up.is_cancelled() {
                    return Ok(crate::launch::code_of_signal(caught.signal));
                }
                info!("{} before the store answered; another one ends it at once", caught.signal);
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
    let mut offering = std::pin::pin!(offer(control, handle.clone(), said));
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
            never = &mut offering => match never {},
            caught = signals.next() => {
                let connections = handle.connections();
                let drains = caught.signal == Signal::SIGUSR1
                    || (drain && caught.signal == Signal::SIGTERM && !draining);
                if !drains {
                    info!(
                        "{}: closing {connections} connections, and leaving the run; another one \
                         ends it at once",
                        caught.signal
                    );
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
            return Control::at(Place::named(path)).await.map(Some);
        }
        let usual = async {
            let folder = place::folder()?;
            let port = settings.listen_or_usual()[0];
            let place = Place::of_server(&folder, &settings.store, &settings.job(), port);
            match Control::at(place).await {
                // Another one on this host has the same port, in a network of its own.
                Err(_) => Control::at(Place::of_nobody(&folder)).await,
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

    async fn at(place: Place) -> anyhow::Result<Control> {
        let (socket, chosen_by) = (place.socket().display(), place.chosen_by());
        let Some(alive) = place.live(Duration::ZERO).await? else {
            bail!("another agent serves at {socket}; {chosen_by}");
        };
        // A listener without that lock is no agent of this version.
        if UnixStream::connect(place.socket()).await.is_ok() {
            bail!("another program listens at {socket}; {chosen_by}");
        }
        let listener = place.listen()?;
        listener.set_nonblocking(true)?;
        let listener = Some(UnixListener::from_std(listener)?);
        Ok(Control { listener, own_file: place.file(), place, _alive: alive })
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
        let _left = Server::lasting(listener, agent, CancellationToken::new()).run().await;
    }
    std::future::pending().await
}
