//! Ports that no other run on this machine gets: whole blocks are taken by
//! locking a file, which the system unlocks however the run ends. All lie below
//! the ports that outgoing connections get.

use std::collections::VecDeque;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};

use super::private;

const FIRST: u16 = 31_040;
const END: u16 = 32_640;
/// Ports in one block.
const BLOCK: u16 = 32;

/// A block of ports that belongs to this process.
#[derive(Debug)]
pub struct Ports {
    left: VecDeque<u16>,
    _lock: Flock<File>,
}

impl Ports {
    /// Takes a block of which every port is free.
    pub fn take() -> anyhow::Result<Ports> {
        let folder = private::folder("ports")?;
        for first in (FIRST..END).step_by(usize::from(BLOCK)) {
            let path = folder.join(first.to_string());
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            let file = file.with_context(|| format!("cannot open {}", path.display()))?;
            let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
            let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
            if (first..first + BLOCK).all(is_free) {
                return Ok(Ports { left: (first..first + BLOCK).collect(), _lock: lock });
            }
        }
        bail!("no {BLOCK} free ports in a row between {FIRST} and {END}: end other runs first")
    }

    /// The port that was not used for the longest time.
    pub fn give(&mut self) -> anyhow::Result<u16> {
        self.left.pop_front().with_context(|| format!("a run uses at most {BLOCK} ports at once"))
    }

    /// Takes a port back that is used no more.
    pub fn take_back(&mut self, port: u16) {
        self.left.push_back(port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_was_given_back_is_given_again_as_the_last_one() {
        let mut ports = Ports::take().unwrap();
        let first = ports.give().unwrap();
        ports.take_back(first);
        let later: Vec<u16> = (0..BLOCK).map(|_| ports.give().unwrap()).collect();
        assert_eq!(later.last(), Some(&first));
        assert!(ports.give().is_err());
    }
}
