//! Ports that no other test process gets.
//!
//! A port cannot be kept bound for a node that is started, killed and started
//! again. So whole blocks are taken by locking a file, which the system
//! unlocks however the process ends. All lie below the ports that outgoing
//! connections get.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use nix::fcntl::{Flock, FlockArg};

/// Ports in one block.
const BLOCK: u16 = 16;
const FIRST: u16 = 20_000;
const END: u16 = 31_000;

/// A block of ports that belongs to this process.
#[derive(Debug)]
pub struct Ports {
    first: u16,
    given: u16,
    _lock: Flock<File>,
}

impl Ports {
    /// Takes a block of which every port is free.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn take() -> Ports {
        let folder = lock_folder();
        let blocks = (END - FIRST) / BLOCK;
        let start: u16 = rand::random_range(0..blocks);
        for step in 0..blocks {
            let first = FIRST + (start + step) % blocks * BLOCK;
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(folder.join(first.to_string()))
                .expect("the folder for locks was made");
            let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
            if (first..first + BLOCK).all(is_free) {
                return Ports { first, given: 0, _lock: lock };
            }
        }
        panic!("no {BLOCK} free ports in a row between {FIRST} and {END}");
    }

    /// The next port of the block.
    ///
    /// # Panics
    ///
    /// If all were given.
    pub fn give(&mut self) -> u16 {
        assert!(self.given < BLOCK, "a test uses at most {BLOCK} ports");
        let port = self.first + self.given;
        self.given += 1;
        port
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// One folder for all tests of this user.
fn lock_folder() -> PathBuf {
    let user = nix::unistd::getuid();
    let folder = std::env::temp_dir().join(format!("holdfast-test-ports-{user}"));
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    folder
}
