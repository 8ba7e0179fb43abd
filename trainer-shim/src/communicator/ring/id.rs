//! Content of the 128 bytes of a unique id of this backend.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::wire::{Fields, put_address};
use crate::communicator::backend::{UNIQUE_ID_BYTES, UniqueId};
use crate::communicator::failure::Failure;

const MAGIC: [u8; 8] = *b"hf-ring1";

/// Bytes of the secret that all members of a generation know.
pub(super) const SECRET_BYTES: usize = 16;

/// Secret by which the root and the members recognise each other.
pub(super) type Secret = [u8; SECRET_BYTES];

/// An id, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) secret: Secret,
    /// The generation that it was minted for.
    pub(super) generation: u64,
    pub(super) root: SocketAddr,
}

impl Id {
    pub(super) fn encode(&self) -> UniqueId {
        let mut bytes = Vec::with_capacity(UNIQUE_ID_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.secret);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        put_address(&mut bytes, self.root);
        bytes.resize(UNIQUE_ID_BYTES, 0);
        UniqueId::from_bytes(bytes.try_into().expect("the fields are shorter than an id"))
    }

    pub(super) fn decode(id: &UniqueId) -> Result<Id, Failure> {
        Id::parse(id).ok_or_else(|| Failure::Invalid {
            what: "unique id",
            reason: "these are not the bytes of an id of this backend".to_owned(),
        })
    }

    fn parse(id: &UniqueId) -> Option<Id> {
        let mut fields = Fields::new(id.as_bytes());
        if fields.take::<8>()? != MAGIC {
            return None;
        }
        let id = Id {
            secret: fields.take()?,
            generation: fields.u64()?,
            root: fields.address().filter(|address| address.port() != 0)?,
        };
        fields.rest().iter().all(|byte| *byte == 0).then_some(id)
    }
}

/// An address as it travels: IPv4 addresses are mapped into IPv6.
pub(super) fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The reverse of [`mapped`].
pub(super) fn unmapped(ip: Ipv6Addr) -> IpAddr {
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), |ip: Ipv4Addr| IpAddr::V4(ip))
}
