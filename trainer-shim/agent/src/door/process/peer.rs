//! The program at the other end of a connection: its end, and signals to it.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::debug;

/// A program, as the kernel knows it.
#[derive(Debug)]
pub struct Peer {
    pid: Option<i32>,
    pidfd: Option<AsyncFd<OwnedFd>>,
}

impl Peer {
    /// The program that has connected a socket. `pid`: its number, as the kernel
    /// reports it; `None` if it is in another process namespace. Its end is seen
    /// at its socket in any case.
    ///
    /// Linux before 6.5 has no descriptor of the connected process
    /// (`SO_PEERPIDFD`): it is looked up there by its number. If it ended before
    /// that, another program with its number is taken for it until the socket
    /// closes, and that one's end is reported as its own.
    pub fn of(socket: &impl AsFd, pid: Option<i32>) -> Peer {
        match getsockopt(socket, sockopt::PeerPidfd) {
            Ok(pidfd) => Peer::new(pid, Some(pidfd)),
            Err(Errno::ENOPROTOOPT) => Peer::numbered(pid),
            Err(error) => {
                debug!(%error, ?pid, "a program can be watched by its socket alone");
                Peer::new(pid, None)
            }
        }
    }

    /// Whatever program has this number now.
    pub(crate) fn numbered(pid: Option<i32>) -> Peer {
        let opened = pid.filter(|pid| *pid > 0).and_then(Pid::from_raw).and_then(|pid| {
            let opened = pidfd_open(pid, PidfdFlags::empty());
            opened.inspect_err(|error| debug!(%error, ?pid, "no such program")).ok()
        });
        Peer::new(pid, opened)
    }

    fn new(pid: Option<i32>, pidfd: Option<OwnedFd>) -> Peer {
        Peer { pid: pid.filter(|pid| *pid > 0), pidfd: pidfd.and_then(watched) }
    }

    /// Its process id, where known.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Whether both are one program, which goes on: no other one can have its number then.
    pub(crate) fn is_same(&self, other: &Peer) -> bool {
        let goes_on = || self.pidfd.as_ref().is_some_and(|pidfd| !has_ended(pidfd.get_ref()));
        self.pid.is_some() && self.pid == other.pid && goes_on()
    }

    /// Whether its end can be seen.
    pub(crate) fn is_watched(&self) -> bool {
        self.pidfd.is_some()
    }

    /// Returns when it has ended, even if another one, as a forked child, holds
    /// its socket; never if it cannot be watched.
    pub async fn ended(&self) {
        let Some(pidfd) = &self.pidfd else { return std::future::pending().await };
        loop {
            let Ok(mut ready) = pidfd.readable().await else {
                return std::future::pending().await;
            };
            if has_ended(pidfd.get_ref()) {
                return;
            }
            ready.clear_ready();
        }
    }

    /// Sends it signals, if it can be watched: then no other program can have
    /// taken its number.
    pub fn signal(&self, signals: &[Signal]) {
        let Some(pidfd) = &self.pidfd else { return };
        for signal in signals {
            if let Err(error) = pidfd_send_signal(pidfd.get_ref(), *signal) {
                debug!(%error, pid = self.pid, "a program did not get {signal:?}");
            }
        }
    }
}

fn watched(pidfd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "unsound for types that change their descriptor: OwnedFd keeps its own"
    )]
    let watched = AsyncFd::with_interest(pidfd, Interest::READABLE);
    watched.inspect_err(|error| debug!(%error, "a program can be watched by its socket alone")).ok()
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_program_is_seen_before_anybody_waits_for_it() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let peer = Peer::numbered(i32::try_from(child.id()).ok());
        assert!(peer.pidfd.is_some());
        let early = tokio::time::timeout(Duration::from_millis(50), peer.ended()).await;
        assert!(early.is_err(), "it goes on");
        child.kill().unwrap();
        tokio::time::timeout(Duration::from_secs(60), peer.ended()).await.expect("it has ended");
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn whoever_cannot_be_known_is_never_said_to_have_ended() {
        for pid in [None, Some(0), Some(-1), Some(i32::MAX)] {
            let peer = Peer::numbered(pid);
            assert!(tokio::time::timeout(Duration::from_millis(10), peer.ended()).await.is_err());
        }
    }

    #[tokio::test]
    async fn whoever_has_connected_is_watched_whatever_its_number() {
        let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
        let pid = i32::try_from(std::process::id()).ok();
        // Since Linux 6.5 the kernel names it.
        let named = getsockopt(&ours, sockopt::PeerPidfd).is_ok();
        for (pid, watched) in [(pid, true), (None, named), (Some(0), named)] {
            let peer = Peer::of(&ours, pid);
            assert_eq!(peer.pidfd.is_some(), watched, "{pid:?}");
            assert_eq!(peer.pid(), pid.filter(|pid| *pid > 0));
            let early = tokio::time::timeout(Duration::from_millis(10), peer.ended()).await;
            assert!(early.is_err(), "it goes on");
        }
    }
}
