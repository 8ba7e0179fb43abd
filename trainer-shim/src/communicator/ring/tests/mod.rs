//! Tests that speak the protocol byte by byte.

mod check_in;
mod codecs;
mod neighbours;
mod streams;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::id::Id;
use super::wire::{Answer, Introduction, Purpose, handshake};
use super::*;
use crate::communicator::{Refusal, Refuser, State, UniqueId, Work};

/// How long anything may take before the test counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

const GROUP: &str = "gradients";
const GENERATION: u64 = 7;

fn ring() -> Ring {
    Ring::new(RingOptions { connect_retries: 0, ..RingOptions::default() })
}

fn minted(nranks: u32) -> Box<dyn Minter> {
    let options = MintOptions { group: GROUP.to_owned(), generation: GENERATION, nranks };
    ring().mint(&options).unwrap()
}

fn member(id: UniqueId, rank: u32, nranks: u32) -> InitOptions {
    let incarnation = 100 + u64::from(rank);
    let group = GROUP.to_owned();
    InitOptions { group, generation: GENERATION, incarnation, nranks, rank, id }
}

fn ended<T>(mut work: Work<T>) -> Result<T, Failure> {
    work.wait_for(PATIENCE).expect("it ends")
}

/// A member that sends what the test wants.
struct Raw(TcpStream);

impl Raw {
    fn connect(id: &Id) -> Raw {
        Raw::from(TcpStream::connect(id.root).unwrap())
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Connects to the root, and sends handshake and introduction.
    fn check_in(id: &Id, introduction: &Introduction) -> Raw {
        let mut raw = Raw::connect(id);
        let mut bytes = handshake(Purpose::CheckIn, &id.secret);
        bytes.extend(introduction.encode());
        raw.send(&bytes);
        raw
    }

    /// Waits for an answer; None if the connection ends.
    fn answer(&mut self) -> Option<Answer> {
        let mut length = [0; 2];
        self.read(&mut length)?;
        let mut body = vec![0; u16::from_le_bytes(length).into()];
        self.read(&mut body)?;
        Some(Answer::decode(&body).expect("an answer"))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.0.read_exact(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing came"),
            read => read.ok(),
        }
    }
}

impl From<TcpStream> for Raw {
    fn from(stream: TcpStream) -> Raw {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Raw(stream)
    }
}

fn introduction(rank: u32, nranks: u32) -> Introduction {
    let address = "127.0.0.1:9".parse().unwrap();
    Introduction::new(&member(UniqueId::from_bytes([0; 128]), rank, nranks), address)
}
