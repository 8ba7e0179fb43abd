//! The keeper of an agent, as a process: the agent's parent.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use holdfast_agent::agent;
use holdfast_agent::descriptors::Room;
use holdfast_agent::keeper::process::{Keeper, Said, Start, UNUSABLE_SETTINGS, in_words};
use nix::sys::signal::Signal;
use nix::unistd::setsid;

use crate::launch::{code_of, link::own_program};
use crate::output::Lines;
use crate::surroundings::raise_open_files;

/// Program of new agents: this one, even if its file was replaced meanwhile.
const OWN: &str = "/proc/self/exe";

/// Flag by which an agent knows that it has a keeper: its second argument.
pub const KEPT: &str = "--kept";

/// Time limit for the next agent's program to print its version, and the pause between looks. No
/// new connection is accepted during the check.
const CHECK_TIME_MAX: Duration = Duration::from_secs(2);
const CHECK_PAUSE: Duration = Duration::from_millis(5);

/// Keeps the agent of `run`, whose control socket is this process's standard input.
pub fn of_host(arguments: Vec<OsString>, output: &Lines) -> anyhow::Result<u8> {
    // As for the agent: what the terminal sends is for the commands.
    let _ = setsid();
    let listener: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let advice = "this is started by `holdfast-agent run`, not by hand";
    let address = UnixListener::from(listener.try_clone()?).local_addr().context(advice)?;
    let path = address.as_pathname().context(advice)?.to_owned();
    let mut all = vec![OsString::from("host"), KEPT.into(), path.into()];
    all.extend(arguments);
    // No signal ends an agent that is up: it goes with the last command.
    let ends = |signal, is_up: bool| signal == Signal::SIGTERM && !is_up;
    keep(all, Some(listener), &crate::host::CAUGHT, ends, output)
}

/// Keeps the agent of `serve`, which was started with the arguments of this process: that one
/// makes its control socket itself. With `drain`, SIGTERM does not end an agent that is up.
pub fn of_server(drain: bool, output: &Lines) -> anyhow::Result<u8> {
    // It holds every connection, too.
    raise_open_files();
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Behind the verb, where `is_kept` looks.
    arguments.insert(1.min(arguments.len()), KEPT.into());
    let ends = move |signal, is_up: bool| match signal {
        Signal::SIGTERM => !(drain && is_up),
        signal => signal == Signal::SIGINT,
    };
    keep(arguments, None, &crate::serve::ORDERS, ends, output)
}

/// Keeps an agent that is started with these arguments, and passes these signals on; answers its
/// exit code. Signals that `ends` names end the keeper itself where no agent comes up.
fn keep(
    arguments: Vec<OsString>,
    control: Option<OwnedFd>,
    signals: &[Signal],
    ends: impl Fn(Signal, bool) -> bool,
    output: &Lines,
) -> anyhow::Result<u8> {
    let start = Agent { arguments, path: own_program(), ends, output: output.clone() };
    let signals = crate::signals::not_ignored(signals);
    let connections_max = Room::of_process().kept_connections();
    let keeper = Keeper::new(start, &signals, connections_max, control);
    let keeper = keeper.context("cannot keep an agent")?;
    match code_of(keeper.run().context("cannot keep the agent")?) {
        UNUSABLE_SETTINGS => Ok(crate::FAILURE),
        code => Ok(code),
    }
}

/// Whether a keeper has started this process, as its arguments say.
pub fn is_kept() -> bool {
    std::env::args_os().nth(2).is_some_and(|word| word == KEPT)
}

/// The exit code of this process if it cannot run with its arguments and settings.
pub fn unusable() -> u8 {
    if is_kept() { UNUSABLE_SETTINGS } else { crate::FAILURE }
}

/// The exit code of this process if it ends with this error. One with a keeper that has opened no
/// run has taken up nothing, as where descriptors have run out: another one may do better.
pub fn code_of_error(error: &anyhow::Error) -> u8 {
    if error.is::<agent::Error>() { crate::FAILURE } else { unusable() }
}

/// Exit status of a command; `None` if it did not end in time, and was killed.
fn within(most: Duration, command: &mut Command) -> io::Result<Option<ExitStatus>> {
    let (mut child, begun) = (command.spawn()?, Instant::now());
    while begun.elapsed() < most {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(CHECK_PAUSE);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

struct Agent<E> {
    arguments: Vec<OsString>,
    path: PathBuf,
    ends: E,
    output: Lines,
}

impl<E: Fn(Signal, bool) -> bool> Start for Agent<E> {
    fn command(&mut self, anew: bool) -> Command {
        let mut command = match anew {
            true => Command::new(&self.path),
            false => Command::new(OWN),
        };
        // In its messages it has the name that was typed.
        command.arg0(std::env::args_os().next().unwrap_or_else(|| self.path.clone().into()));
        command.args(&self.arguments);
        command
    }

    fn check(&mut self) -> Result<(), String> {
        let mut command = Command::new(&self.path);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let path = self.path.display();
        match within(CHECK_TIME_MAX, &mut command) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("{path} --version ended {}", in_words(status))),
            Ok(None) => Err(format!("{path} --version had not ended after {CHECK_TIME_MAX:?}")),
            Err(error) => Err(format!("{path} cannot be started: {error}")),
        }
    }

    fn is_ended_by(&self, signal: i32, is_up: bool) -> bool {
        Signal::try_from(signal).is_ok_and(|signal| (self.ends)(signal, is_up))
    }

    fn say(&mut self, said: Said) {
        let text = match said {
            Said::Again { pid, status, pause } => format!(
                "the agent (process {pid}) has ended {}; its keeper starts it again{}",
                in_words(status),
                if pause.is_zero() { String::new() } else { format!(" in {pause:?}") }
            ),
            Said::NotStarted { reason, pause } => format!(
                "the agent cannot be started ({reason}); its keeper tries again in {pause:?}"
            ),
            Said::GivenUp { connections } => format!(
                "agents end before they have taken up what was kept for them: {connections} \
                 connections are closed; please report this with the log"
            ),
            Said::Ends { signal, connections } => format!(
                "signal {signal}: the keeper ends, for no agent comes up; {connections} connections \
                 are closed"
            ),
            Said::Replaced => format!("the agent is replaced by {}", self.path.display()),
            Said::NotReplaced(reason) => format!("the agent is not replaced: {reason}"),
            Said::NotUnderstood(reason) => format!(
                "the keeper ignores a message of the agent that it cannot read ({reason}); the agent \
                 may be of a newer version"
            ),
        };
        self.output.say(format_args!("holdfast-agent: {text}"));
    }
}
