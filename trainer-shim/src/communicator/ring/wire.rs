//! Messages while a ring is built, and before each operation. Pure: bytes in,
//! messages out. Every length is bounded, and nothing panics.
//!
//! ```text
//! handshake     magic 8 · purpose 1 · secret 16
//! introduction  length 2 · generation 8 · incarnation 8 · rank 4 · nranks 4 ·
//!               address 18 · group
//! answer        length 2 · tag 1 · fields
//! heading       sequence 8 · elements 8 · root 4 · operation 1 · type 1 · reduction 1 · zero 1
//! ```
//!
//! Numbers are little-endian. An address is an IPv6 address and a port.

use std::net::SocketAddr;

use super::id::{SECRET_BYTES, Secret, mapped, unmapped};
use crate::communicator::backend::{GROUP_BYTES_MAX, InitOptions, MintOptions};
use crate::communicator::failure::Refusal;

const MAGIC: [u8; 8] = *b"hf-ring\x01";

pub(super) const HANDSHAKE_BYTES: usize = MAGIC.len() + 1 + SECRET_BYTES;

const ADDRESS_BYTES: usize = 16 + 2;

const INTRODUCTION_FIXED_BYTES: usize = 8 + 8 + 4 + 4 + ADDRESS_BYTES;

/// Most bytes of an introduction after its length.
pub(super) const INTRODUCTION_BYTES_MAX: usize = INTRODUCTION_FIXED_BYTES + GROUP_BYTES_MAX;

/// Most bytes of an answer after its length: a refusal with two names of groups.
pub(super) const ANSWER_BYTES_MAX: usize = 2 + 2 * (2 + GROUP_BYTES_MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// From a member to the root.
    CheckIn,
    /// From a rank to the next one.
    Neighbour,
}

impl Purpose {
    fn byte(self) -> u8 {
        match self {
            Purpose::CheckIn => 1,
            Purpose::Neighbour => 2,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Handshake {
    /// A member of the generation.
    Member,
    /// A peer with this protocol and another id.
    OtherId,
    /// A peer with another protocol, or that comes for another purpose.
    Stranger,
}

pub(super) fn handshake(purpose: Purpose, secret: &Secret) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(purpose.byte());
    bytes.extend_from_slice(secret);
    bytes
}

pub(super) fn read_handshake(
    bytes: &[u8; HANDSHAKE_BYTES],
    purpose: Purpose,
    secret: &Secret,
) -> Handshake {
    let mut fields = Fields::new(bytes);
    let known = fields.take() == Some(MAGIC)
        && fields.take().map(u8::from_le_bytes) == Some(purpose.byte());
    match known {
        false => Handshake::Stranger,
        true if fields.rest() == secret => Handshake::Member,
        true => Handshake::OtherId,
    }
}

/// Identity that a member claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) generation: u64,
    pub(super) incarnation: u64,
    pub(super) rank: u32,
    pub(super) nranks: u32,
    /// Where it waits for the rank before it.
    pub(super) address: SocketAddr,
    pub(super) group: String,
}

impl Introduction {
    pub(super) fn new(options: &InitOptions, address: SocketAddr) -> Introduction {
        Introduction {
            generation: options.generation,
            incarnation: options.incarnation,
            rank: options.rank,
            nranks: options.nranks,
            address,
            group: options.group.clone(),
        }
    }

    /// With its length before it.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(INTRODUCTION_BYTES_MAX);
        body.extend_from_slice(&self.generation.to_le_bytes());
        body.extend_from_slice(&self.incarnation.to_le_bytes());
        body.extend_from_slice(&self.rank.to_le_bytes());
        body.extend_from_slice(&self.nranks.to_le_bytes());
        put_address(&mut body, self.address);
        body.extend_from_slice(self.group.as_bytes());
        framed(body)
    }

    /// Reads an introduction without the length before it; `None` if it is malformed.
    pub(super) fn decode(body: &[u8]) -> Option<Introduction> {
        let mut fields = Fields::new(body);
        Some(Introduction {
            generation: fields.u64()?,
            incarnation: fields.u64()?,
            rank: fields.u32()?,
            nranks: fields.u32()?,
            address: fields.address()?,
            group: fields.text(body.len().checked_sub(INTRODUCTION_FIXED_BYTES)?)?,
        })
    }

    /// Whether it is of this generation of this group.
    pub(super) fn check(&self, expected: &MintOptions) -> Result<(), Refusal> {
        if self.group != expected.group {
            let (expected, actual) = (expected.group.clone(), self.group.clone());
            return Err(Refusal::Group { expected, actual });
        }
        if self.generation != expected.generation {
            let (expected, actual) = (expected.generation, self.generation);
            return Err(Refusal::Generation { expected, actual });
        }
        if self.nranks != expected.nranks {
            let (expected, actual) = (expected.nranks, self.nranks);
            return Err(Refusal::Members { expected, actual });
        }
        if self.rank >= expected.nranks {
            return Err(Refusal::Rank { actual: self.rank, nranks: expected.nranks });
        }
        Ok(())
    }
}

/// Answer to an introduction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// By the root: all are there.
    Complete {
        /// Where the next rank waits.
        next: SocketAddr,
        /// Incarnation that the rank before must have.
        previous_incarnation: u64,
    },
    /// By the next rank.
    Welcome,
    Refused(Refusal),
}

impl Answer {
    /// With its length before it.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(ANSWER_BYTES_MAX);
        match self {
            Answer::Complete { next, previous_incarnation } => {
                body.push(0);
                put_address(&mut body, *next);
                body.extend_from_slice(&previous_incarnation.to_le_bytes());
            }
            Answer::Welcome => body.push(1),
            Answer::Refused(refusal) => {
                body.push(2);
                put_refusal(&mut body, refusal);
            }
        }
        framed(body)
    }

    /// Reads an answer without the length before it; `None` if it is malformed.
    pub(super) fn decode(body: &[u8]) -> Option<Answer> {
        let mut fields = Fields::new(body);
        let answer = match fields.u8()? {
            0 => Answer::Complete { next: fields.address()?, previous_incarnation: fields.u64()? },
            1 => Answer::Welcome,
            2 => Answer::Refused(refusal(&mut fields)?),
            _ => return None,
        };
        fields.rest().is_empty().then_some(answer)
    }
}

fn put_refusal(body: &mut Vec<u8>, refusal: &Refusal) {
    match refusal {
        Refusal::Id => body.push(0),
        Refusal::IdUsed { rank } => {
            body.push(1);
            body.extend_from_slice(&rank.to_le_bytes());
        }
        Refusal::Group { expected, actual } => {
            body.push(2);
            for group in [expected, actual] {
                let length = u16::try_from(group.len()).expect("a group's name is bounded");
                body.extend_from_slice(&length.to_le_bytes());
                body.extend_from_slice(group.as_bytes());
            }
        }
        Refusal::Generation { expected, actual } => {
            body.push(3);
            body.extend_from_slice(&expected.to_le_bytes());
            body.extend_from_slice(&actual.to_le_bytes());
        }
        Refusal::Members { expected, actual } => {
            body.push(4);
            body.extend_from_slice(&expected.to_le_bytes());
            body.extend_from_slice(&actual.to_le_bytes());
        }
        Refusal::Rank { actual, nranks } => {
            body.push(5);
            body.extend_from_slice(&actual.to_le_bytes());
            body.extend_from_slice(&nranks.to_le_bytes());
        }
        Refusal::RankTaken { rank, incarnation } => {
            body.push(6);
            body.extend_from_slice(&rank.to_le_bytes());
            body.extend_from_slice(&incarnation.to_le_bytes());
        }
        Refusal::Incarnation { rank, expected, actual } => {
            body.push(7);
            body.extend_from_slice(&rank.to_le_bytes());
            body.extend_from_slice(&expected.to_le_bytes());
            body.extend_from_slice(&actual.to_le_bytes());
        }
        Refusal::Malformed => body.push(8),
    }
}

fn refusal(fields: &mut Fields<'_>) -> Option<Refusal> {
    Some(match fields.u8()? {
        0 => Refusal::Id,
        1 => Refusal::IdUsed { rank: fields.u32()? },
        2 => Refusal::Group { expected: fields.group()?, actual: fields.group()? },
        3 => Refusal::Generation { expected: fields.u64()?, actual: fields.u64()? },
        4 => Refusal::Members { expected: fields.u32()?, actual: fields.u32()? },
        5 => Refusal::Rank { actual: fields.u32()?, nranks: fields.u32()? },
        6 => Refusal::RankTaken { rank: fields.u32()?, incarnation: fields.u64()? },
        7 => Refusal::Incarnation {
            rank: fields.u32()?,
            expected: fields.u64()?,
            actual: fields.u64()?,
        },
        8 => Refusal::Malformed,
        _ => return None,
    })
}

/// A body with its length before it.
fn framed(body: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("bodies are bounded by far less");
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(body);
    bytes
}

pub(super) fn put_address(bytes: &mut Vec<u8>, address: SocketAddr) {
    bytes.extend_from_slice(&mapped(address.ip()).octets());
    bytes.extend_from_slice(&address.port().to_le_bytes());
}

/// Reads fields one after the other; None once there are too few bytes.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn address(&mut self) -> Option<SocketAddr> {
        let ip = unmapped(self.take::<16>()?.into());
        Some(SocketAddr::new(ip, self.take().map(u16::from_le_bytes)?))
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn group(&mut self) -> Option<String> {
        let length = self.take().map(u16::from_le_bytes)?;
        self.text(length.into())
    }

    fn text(&mut self, length: usize) -> Option<String> {
        if length > GROUP_BYTES_MAX {
            return None;
        }
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}
