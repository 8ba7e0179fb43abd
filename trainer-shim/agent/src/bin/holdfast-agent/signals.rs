//! Signals, and whether they came from the terminal.

use std::io;
use std::thread::JoinHandle;

use nix::sys::signal::Signal;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;
use tokio::sync::mpsc;

/// Signals that were caught and not yet looked at; more are dropped, as the
/// kernel does with signals that are pending already.
const CAUGHT_MAX: usize = 64;

/// A signal that reached the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caught {
    /// The signal that was caught.
    pub signal: Signal,
    /// Sent by the kernel to the whole foreground process group: Ctrl-C, or
    /// the terminal went away. A child process has got it too.
    pub from_terminal: bool,
    /// The process that sent it, if one did.
    pub sender: Option<i32>,
}

/// Catches signals until it is dropped.
#[derive(Debug)]
pub struct Signals {
    caught: mpsc::Receiver<Caught>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// Catches these signals. A signal that was ignored when the agent was
    /// started (`nohup`) stays ignored, in the agent and in its child process.
    pub fn catch(signals: &[Signal]) -> io::Result<Signals> {
        let mut info = SignalsInfo::<WithOrigin>::new(not_ignored(signals))?;
        let handle = info.handle();
        let (sender, caught) = mpsc::channel(CAUGHT_MAX);
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in info.forever() {
                if let Some(one) = read(&origin) {
                    // Full or closed: no reader needs it.
                    let _ = sender.try_send(one);
                }
            }
        })?;
        Ok(Signals { caught, handle, thread: Some(thread) })
    }

    /// Forgets those that were caught and not looked at.
    pub fn forget(&mut self) {
        while self.caught.try_recv().is_ok() {}
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Caught {
        match self.caught.recv().await {
            Some(caught) => caught,
            // The thread ends with self.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It only ends, and has nothing to report.
            let _ = thread.join();
        }
    }
}

/// The numbers of those of these signals that were not ignored when this process was
/// started.
pub fn not_ignored(signals: &[Signal]) -> Vec<i32> {
    let ignored = ignored_signals();
    let numbers = signals.iter().map(|signal| *signal as i32);
    numbers.filter(|number| ignored & (1 << (number - 1)) == 0).collect()
}

/// Origin of a signal, as far as it is known.
pub fn read(origin: &Origin) -> Option<Caught> {
    let signal = Signal::try_from(origin.signal).ok()?;
    let sender = origin.process.map(|process| process.pid);
    Some(Caught { signal, from_terminal: origin.cause == Cause::Kernel, sender })
}

/// The set of ignored signals, bit n - 1 for signal n; empty where it cannot
/// be known.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_ignored(&status)
}

fn parse_ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_process_status() {
        let status = "Name:\tagent\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(parse_ignored(status), 1 | 1 << 12);
        assert_eq!(parse_ignored("Name:\tagent\n"), 0);
    }

    #[tokio::test]
    async fn a_signal_sent_by_a_process_is_not_from_the_terminal() {
        let mut signals = Signals::catch(&[Signal::SIGUSR2]).unwrap();
        nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
        let sender = i32::try_from(std::process::id()).ok();
        let expected = Caught { signal: Signal::SIGUSR2, from_terminal: false, sender };
        assert_eq!(signals.next().await, expected);
    }
}
