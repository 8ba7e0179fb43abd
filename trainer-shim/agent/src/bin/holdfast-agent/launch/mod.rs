//! `holdfast-agent run`: one command, attached to the agent of its run.
//!
//! | module | holds |
//! | --- | --- |
//! | [`torchrun`] | torchrun in a command, and what in it bypasses the agent |
//! | [`torch_version`] | which torch a command would use |
//! | [`link`] | the agent of a command: attached to, or started |
//! | [`membership`] | whether a command is a launch by itself, or which part of one |
//! | [`environment`] | the variables that a command is started with |
//! | [`launcher`] | what started this process: its job, run and rank |
//! | [`slurm`], [`mpi`] | what Slurm and `mpirun` say of the process that this is |
//! | [`expectation`] | whether TCPStore clients come, and what is said if none does |
//! | [`agent_log`] | the agent's log, shown |
//! | [`restarts`] | how often an agent is started anew |
//! | [`witness`] | whether a signal has reached the command already |
//! | [`bypass`] | which processes got another address, and from which process |
//! | [`own_stores`] | programs that use a store of their own, said while they run |
//! | [`memory`] | process state that only its memory shows |
//! | [`refusal`] | a command that is not started, and the one to use instead |

mod agent_log;
mod bypass;
mod environment;
mod expectation;
mod launcher;
pub mod link;
mod membership;
mod memory;
mod mpi;
mod own_stores;
mod refusal;
mod restarts;
mod slurm;
mod torch_version;
mod torchrun;
pub mod witness;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;
use holdfast_agent::control::protocol::CommandEnded;
use holdfast_agent::programs::exit_of;
use holdfast_api::RunChoice;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::command_line::RunFlags;
use crate::masters::{address_for_command, beside_masters};
use crate::output::Lines;
use crate::program::ProgramError;
use crate::settings::Settings;
use crate::signals::Signals;
use agent_log::AgentLog;
use environment::{CommandSettings, reachable};
use expectation::Expectation;
use launcher::{Launcher, Named};
use link::{LEAVE_TIME_MAX, Link, Start};
use membership::Membership;
use own_stores::Watched;
use torchrun::Rendezvous;
use witness::Witness;

/// Passed on to the command.
const FORWARDED: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// An end that takes longer logs what it waits for.
const LEAVE_NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Attaches to the agent, then starts the command; returns the command's exit code.
pub async fn launch(
    mut settings: Settings,
    flags: RunFlags,
    program: PathBuf,
    command: &[OsString],
    output: &Lines,
) -> anyhow::Result<u8> {
    let mut signals = Signals::catch(&FORWARDED).context("cannot catch signals")?;
    let around = |name: &str| std::env::var(name).ok();
    let launcher = Launcher::read(command, around);
    name_job(&mut settings, &launcher);
    settings.run = settings.run.or_else(|| launcher.run().map(RunChoice::Named));
    settings.tcpstore = beside_masters(&settings.tcpstore);
    let rendezvous = match refusal::judge(&settings, &flags, &launcher, command).await {
        Ok(rendezvous) => rendezvous,
        Err(refusal) => {
            output.say(format_args!("holdfast-agent: {refusal}"));
            return Ok(refusal::EXIT_CODE);
        }
    };
    let membership = Membership::of(command, |name| {
        around(name).filter(|value| !value.is_empty()).or_else(|| launcher.of_mpi(name))
    });
    let usual = if membership.is_whole() { RunChoice::New } else { RunChoice::Held };
    let start = Start::new(&settings, settings.choice(usual), own_flags(command), &membership)?;
    let socket = start.socket().to_owned();
    // Shown to the end of this: the agent's last words are read when it has gone.
    let _shown = AgentLog::show(start.place().clone(), output.clone())
        .context("cannot show the agent's log")?;
    let mut witness = if launcher.is_slurm_step() { witness().await } else { None };
    let attaching = Link::attach(start);
    tokio::pin!(attaching);
    let (mut link, attached) = loop {
        tokio::select! {
            attached = &mut attaching => break attached?,
            caught = signals.next() => match caught.signal {
                Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                signal => {
                    info!("{signal} before the store answered; the command was not started");
                    return Ok(code_of_signal(signal));
                }
            }
        }
    };
    let command_settings = CommandSettings {
        address: address_for_command(&settings.tcpstore, attached.address),
        listens: attached.address,
        keep_master_addr: flags.keep_master_addr,
        rendezvous,
        store: settings.store.join(","),
        token_file: settings.token_file.as_deref(),
        tls: &settings.tls,
        job: attached.job.as_str(),
        run: attached.run.as_str(),
        met: &attached.met,
        control: socket.as_os_str(),
        launcher: &launcher,
    };
    if rendezvous == Rendezvous::Static && torchrun::find(command).is_some() {
        info!(
            "torchrun may print once that its server socket has failed to bind: the agent serves \
             that port, and torchrun goes on as its client"
        );
    }
    let mut child = match start_command(&program, command, &command_settings) {
        Ok(child) => child,
        Err(error) => {
            leave(link, &mut signals, false, None).await;
            output.say(format_args!("holdfast-agent: {error}"));
            return Ok(error.exit_code());
        }
    };
    let expectation = Expectation::new(
        flags.expect_clients_within,
        child.id(),
        &command.join(OsStr::new(" ")).to_string_lossy(),
        reachable(command_settings.address),
    );
    let pid = child.id();
    let watched = pid.filter(|_| !flags.expect_clients_within.is_zero()).map(|root| Watched {
        root,
        words: command.len(),
        ours: reachable(command_settings.address),
        keeps_master_addr: flags.keep_master_addr,
        masters: match command_settings.address != attached.address {
            true => settings.tcpstore.iter().map(SocketAddr::port).collect::<BTreeSet<_>>(),
            false => BTreeSet::new(),
        },
        control: socket.clone(),
    });
    let status =
        attend(&mut child, &mut signals, expectation, &mut link, &mut witness, watched).await;
    let rank = environment::rank(&command_settings, |name| std::env::var_os(name));
    let ended = status.as_ref().ok().and_then(|status| {
        Some(CommandEnded { pid: pid?, rank, exit: exit_of(status.into_raw())? })
    });
    let done = status.as_ref().is_ok_and(ExitStatus::success);
    leave(link, &mut signals, done, ended).await;
    Ok(code_of(status.context("cannot wait for the command")?))
}

/// Names the job after the launcher, where no name is set: unrelated launches do
/// not meet.
fn name_job(settings: &mut Settings, launcher: &Launcher) {
    if settings.job.is_some() {
        return;
    }
    if let Some(id) = launcher.unusable_id() {
        warn!("torchrun's rendezvous id {id:?} cannot name a job; name one with --job");
    }
    if let Some(Named { job, after }) = launcher.job() {
        info!("job {job}, after {after}; --job names another");
        settings.job = Some(job);
    }
}

/// Leaves the agent. Says that it waits, if that takes long; from then on a signal
/// ends the wait, and the agent goes on by itself.
async fn leave(link: Link, signals: &mut Signals, done: bool, ended: Option<CommandEnded>) {
    let log = link.log();
    let mut leaving = std::pin::pin!(link.leave(done, ended));
    tokio::select! {
        () = &mut leaving => return,
        () = sleep(LEAVE_NOTICE_AFTER) => {}
    }
    // Signals that ended the command do not end this process, too.
    signals.forget();
    info!(
        "the command has ended; waiting up to {} s for the agent to report it to the store; Ctrl-C \
         or SIGTERM ends the wait",
        (LEAVE_TIME_MAX - LEAVE_NOTICE_AFTER).as_secs()
    );
    loop {
        tokio::select! {
            () = &mut leaving => return,
            caught = signals.next() => {
                if matches!(caught.signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                    continue;
                }
                return warn!(
                    "{}: not waited for; the agent goes on by itself; its log is {}",
                    caught.signal,
                    log.display()
                );
            }
        }
    }
}

/// The flags of this `run`: the words between its name and the command.
fn own_flags(command: &[OsString]) -> Vec<OsString> {
    let all: Vec<OsString> = std::env::args_os().collect();
    let before = all.len().saturating_sub(command.len());
    let mut flags: Vec<OsString> = all.into_iter().take(before).skip(2).collect();
    if flags.last().is_some_and(|last| last == "--") {
        flags.pop();
    }
    flags
}

fn start_command(
    program: &Path,
    command: &[OsString],
    command_settings: &CommandSettings<'_>,
) -> Result<Child, ProgramError> {
    let CommandSettings { job, run, met, address, .. } = command_settings;
    info!("job {job} run {run} ({met}) on {address}; starting {}", program.display());
    let mut child = Command::new(program);
    child.arg0(&command[0]).args(&command[1..]);
    for (name, value) in environment::changes(command_settings, |name| std::env::var_os(name)) {
        match value {
            Some(value) => child.env(name, value),
            None => child.env_remove(name),
        };
    }
    child.spawn().map_err(|error| ProgramError::from_spawn(program, &error))
}

/// A witness of what reaches the command; without one all signals are passed on.
async fn witness() -> Option<Witness> {
    let started = Witness::start(&link::own_program()).await;
    started.inspect_err(|error| debug!(%error, "no witness of signals")).ok()
}

/// Waits for the command and passes signals on to it. It is in this process's
/// group, so that what the terminal sends has reached it already; so has what the
/// witness has seen.
async fn attend(
    child: &mut Child,
    signals: &mut Signals,
    mut expectation: Expectation,
    link: &mut Link,
    witness: &mut Option<Witness>,
    watched: Option<Watched>,
) -> std::io::Result<ExitStatus> {
    let watching = async {
        match watched {
            Some(watched) => own_stores::watch(watched).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(watching);
    loop {
        tokio::select! {
            status = child.wait() => {
                if let Some(seen) = link.clients_ever().await {
                    expectation.at_the_end(seen.clients);
                }
                return status;
            }
            () = expectation.due() => match link.clients_ever().await {
                Some(seen) => expectation.look(&seen),
                None => expectation.postpone(),
            },
            () = link.keep() => {}
            never = &mut watching => match never {},
            caught = signals.next() => {
                let mut has_it = caught.from_terminal;
                if let Some(witness) = witness && !has_it {
                    has_it = witness.has_seen(&caught).await;
                }
                let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
                if let (Some(pid), false) = (pid, has_it) {
                    debug!("passing {} on to the command", caught.signal);
                    if let Err(error) = kill(Pid::from_raw(pid), caught.signal) {
                        debug!(%error, "the command did not get the signal");
                    }
                }
            }
        }
    }
}

/// The command's exit code as a shell would give it.
pub fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_le_bytes()[0],
        (None, Some(signal)) => signal_code(signal),
        // An ended process has either.
        (None, None) => crate::FAILURE,
    }
}

/// The exit code of a process that this signal ended.
pub fn code_of_signal(signal: Signal) -> u8 {
    signal_code(signal as i32)
}

fn signal_code(signal: i32) -> u8 {
    u8::try_from(signal).map_or(crate::FAILURE, |signal| signal.saturating_add(128))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        // As the kernel reports them: the code in the second byte, else the signal.
        for (raw, code) in [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, 137), (15, 143)] {
            assert_eq!(code_of(ExitStatus::from_raw(raw)), code);
        }
    }
}
