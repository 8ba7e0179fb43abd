//! `holdfast-agent run`: the agent around one command.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context, bail};
use holdfast_agent::agent::{Agent, Handle};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::program::ProgramError;
use crate::settings::Settings;
use crate::signals::Signals;

/// Passed on to the command.
const FORWARDED: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
/// Where to look for a free port.
const PORT_MIN: u16 = 20_000;
/// Above it Linux takes ports for outgoing connections, unless told otherwise.
const PORT_END: u16 = 32_768;
/// Random ports tried.
const PORT_TRIES: usize = 200;

/// Starts the agent, then the command; returns the command's exit code.
pub async fn launch(
    settings: Settings,
    program: PathBuf,
    command: &[OsString],
) -> anyhow::Result<u8> {
    let mut signals = Signals::catch(&FORWARDED).context("cannot catch signals")?;
    let mut options = settings.agent_options();
    if settings.tcpstore.is_none() {
        options.tcpstore = free_address()?;
    }
    let opening = Agent::open(options);
    tokio::pin!(opening);
    let agent = loop {
        tokio::select! {
            agent = &mut opening => break agent?,
            caught = signals.next() => match caught.signal {
                Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                signal => {
                    info!("{signal} before the store answered; the command was not started");
                    return Ok(code_of_signal(signal));
                }
            }
        }
    };
    let handle = agent.handle();
    let shutdown = CancellationToken::new();
    let mut child = match start(&program, command, &settings, &handle) {
        Ok(child) => child,
        Err(error) => {
            shutdown.cancel();
            agent.run(shutdown).await;
            eprintln!("holdfast-agent: {error}");
            return Ok(error.exit_code());
        }
    };
    drop(handle);
    let attending = async {
        let status = attend(&mut child, &mut signals).await;
        // What the command has sent is committed before the agent goes.
        shutdown.cancel();
        status
    };
    let (status, ()) = tokio::join!(attending, agent.run(shutdown.clone()));
    Ok(code_of(status.context("cannot wait for the command")?))
}

fn start(
    program: &Path,
    command: &[OsString],
    settings: &Settings,
    handle: &Handle,
) -> Result<Child, ProgramError> {
    let address = handle.address();
    info!("job {} run {} on {address}; starting {}", handle.job(), handle.run(), program.display());
    Command::new(program)
        .arg0(&command[0])
        .args(&command[1..])
        .env("MASTER_ADDR", reachable(address.ip()).to_string())
        .env("MASTER_PORT", address.port().to_string())
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        .env("HOLDFAST_STORE", settings.store.join(","))
        .envs(settings.token_file.as_ref().map(|path| ("HOLDFAST_TOKEN_FILE", path)))
        .env("HOLDFAST_JOB", handle.job().as_str())
        .env("HOLDFAST_RUN", handle.run().as_str())
        .spawn()
        .map_err(|error| ProgramError::from_spawn(program, &error))
}

/// Waits for the command and passes signals on to it. It is in the agent's
/// process group, so that what the terminal sends has reached it already.
async fn attend(child: &mut Child, signals: &mut Signals) -> std::io::Result<ExitStatus> {
    loop {
        tokio::select! {
            status = child.wait() => return status,
            caught = signals.next() => {
                let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
                if let (Some(pid), false) = (pid, caught.from_terminal) {
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
fn code_of(status: ExitStatus) -> u8 {
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

/// An address at which the listener is met from this host.
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

/// A free loopback port that no outgoing connection will take.
fn free_address() -> anyhow::Result<SocketAddr> {
    let ports = candidate_ports(&local_port_range());
    for _ in 0..PORT_TRIES {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, rand::random_range(ports.clone())));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!(
        "none of {PORT_TRIES} ports tried between {} and {} of 127.0.0.1 is free; choose one with --tcpstore",
        ports.start,
        ports.end
    )
}

fn local_port_range() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default()
}

/// Ports below those for outgoing connections, whose first is the first number
/// of the range.
fn candidate_ports(local_port_range: &str) -> std::ops::Range<u16> {
    let first: Option<u16> =
        local_port_range.split_whitespace().next().and_then(|first| first.parse().ok());
    match first {
        Some(first) if first > PORT_MIN => PORT_MIN..first.min(PORT_END),
        // All ports are for outgoing connections, or nothing is known.
        _ => PORT_MIN..PORT_END,
    }
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

    #[test]
    fn free_ports_lie_below_those_of_outgoing_connections() {
        assert_eq!(candidate_ports("32768\t60999\n"), 20_000..32_768);
        assert_eq!(candidate_ports("25000\t60999\n"), 20_000..25_000);
        assert_eq!(candidate_ports("49152\t65535\n"), 20_000..32_768);
        assert_eq!(candidate_ports("1024\t65535\n"), 20_000..32_768);
        assert_eq!(candidate_ports(""), 20_000..32_768);
        assert!(candidate_ports(&local_port_range()).contains(&free_address().unwrap().port()));
    }

    #[test]
    fn the_command_is_told_an_address_that_it_can_reach() {
        let told = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(told("0.0.0.0"), "127.0.0.1");
        assert_eq!(told("::"), "::1");
        assert_eq!(told("10.0.0.7"), "10.0.0.7");
    }
}
