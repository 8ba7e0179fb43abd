//! What the kernel knows of one TCP socket, asked by its addresses over `sock_diag(7)`. It finds the
//! socket as it does for a packet, however many there are, and answers within the call. No
//! privilege is needed for sockets of one's own network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const INET_DIAG_INFO: u16 = 2;
/// State of a socket that listens.
const TCP_LISTEN: u8 = 10;
const HEADING_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 72;
const ANSWER_BYTES_MAX: usize = 8192;
/// How long a connection to this process itself may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// The socket for queries to the kernel; for one query at a time.
#[derive(Debug)]
pub struct Diagnosis(OwnedFd);

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The user of its socket, and its number among the open files.
    pub owner: Owner,
    /// Its bytes; of one that is closed at both ends nothing is known.
    pub bytes: Option<Bytes>,
}

/// Whose a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user that made it.
    pub uid: u32,
    /// Its number among the open files; 0 if no process has it any more, and then the user says
    /// nothing.
    pub inode: u64,
}

/// Bytes of a connection, counted from its accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    /// All bytes that came, those that no process has read included.
    pub received: u64,
    /// Those of them that no process has read.
    pub unread: u64,
    /// Those that went out and arrived.
    pub acknowledged: u64,
    /// Those that were written and have not arrived.
    pub open: u64,
}

impl Diagnosis {
    /// Opens a netlink socket for queries.
    pub fn open() -> io::Result<Diagnosis> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::DGRAM;
        Ok(Diagnosis(socket_with(AddressFamily::NETLINK, kind, flags, Some(SOCK_DIAG))?))
    }

    /// The same, if the kernel then finds a socket of this process.
    pub fn open_if_it_answers() -> io::Result<Diagnosis> {
        let diagnosis = Diagnosis::open()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let peer = listener.local_addr()?;
        let own = TcpStream::connect_timeout(&peer, CONNECT_TIME_MAX)?;
        let found = diagnosis.look(own.local_addr()?, peer)?.owner;
        if found.inode == 0 || found.uid != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::other("it takes a socket of this process for another's"));
        }
        Ok(diagnosis)
    }

    /// The end of a connection that is at `local`, as that end sees it; an error of the kind
    /// [`io::ErrorKind::NotFound`] if there is none on this host.
    pub fn look(&self, local: SocketAddr, peer: SocketAddr) -> io::Result<Found> {
        send(&self.0, &question(local, peer), SendFlags::DONTWAIT)?;
        let mut answer = [0; ANSWER_BYTES_MAX];
        let (_, length) = recv(&self.0, &mut answer, RecvFlags::DONTWAIT)?;
        found(&answer[..length.min(ANSWER_BYTES_MAX)], local, peer)
    }
}

fn question(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let device = match local {
        SocketAddr::V6(local) => local.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let mut bytes = Vec::with_capacity(MESSAGE_BYTES);
    bytes.extend((MESSAGE_BYTES as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    // No number and no sender.
    bytes.extend([0; 8]);
    let family = family.as_raw().to_ne_bytes()[0];
    bytes.extend([family, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
    // In any state.
    bytes.extend([0xff; 4]);
    bytes.extend(ports(local, peer));
    for address in [local.ip(), peer.ip()] {
        let mut octets = [0; 16];
        match address {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets.copy_from_slice(&address.octets()),
        }
        bytes.extend(octets);
    }
    // With any cookie.
    bytes.extend(device.to_ne_bytes());
    bytes.extend([0xff; 8]);
    bytes
}

fn ports(local: SocketAddr, peer: SocketAddr) -> [u8; 4] {
    let ([a, b], [c, d]) = (local.port().to_be_bytes(), peer.port().to_be_bytes());
    [a, b, c, d]
}

pub(crate) fn found(answer: &[u8], local: SocketAddr, peer: SocketAddr) -> io::Result<Found> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is too short");
    let u16_at = |at: usize| {
        let bytes = answer.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u16::from_ne_bytes).ok_or_else(short)
    };
    let u32_at = |at: usize| {
        let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or_else(short)
    };
    let u64_at = |at: usize| {
        let bytes = answer.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_ne_bytes).ok_or_else(short)
    };
    match u16_at(4)? {
        SOCK_DIAG_BY_FAMILY => {}
        NLMSG_ERROR => {
            let number = u32_at(HEADING_BYTES)?.cast_signed();
            return Err(io::Error::from_raw_os_error(number.saturating_neg()));
        }
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer of another kind")),
    }
    let unread = u32_at(HEADING_BYTES + 56)?.into();
    let open = u32_at(HEADING_BYTES + 60)?.into();
    let uid = u32_at(HEADING_BYTES + 64)?;
    let inode = u32_at(HEADING_BYTES + 68)?.into();
    // Where there is no connection, the kernel answers for who listens at that port.
    let is_connection = answer[HEADING_BYTES + 1] != TCP_LISTEN;
    if !is_connection || answer[HEADING_BYTES + 4..][..4] != ports(local, peer) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut bytes = None;
    let mut at = HEADING_BYTES + MESSAGE_BYTES;
    while at + 4 <= answer.len() {
        let length = usize::from(u16_at(at)?);
        if u16_at(at + 2)? == INET_DIAG_INFO {
            // `tcpi_bytes_acked` and `tcpi_bytes_received` of tcp_info.
            let (acknowledged, received) = (u64_at(at + 4 + 120)?, u64_at(at + 4 + 128)?);
            bytes = Some(Bytes { received, unread, acknowledged, open });
        }
        at += length.max(4).next_multiple_of(4);
    }
    Ok(Found { owner: Owner { uid, inode }, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_at_the_port_of_an_end_that_has_gone_is_not_that_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let diagnosis = Diagnosis::open_if_it_answers().unwrap();
        let error = diagnosis.look(local, peer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        let (own, listens) = (TcpStream::connect(local).unwrap(), local);
        assert!(diagnosis.look(own.local_addr().unwrap(), listens).is_ok());
    }

    #[test]
    fn answers_that_are_cut_off_or_of_another_connection_are_errors() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let mut answer = vec![0; HEADING_BYTES + MESSAGE_BYTES];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        for length in 0..answer.len() {
            assert!(found(&answer[..length], address, address).is_err(), "{length}");
        }
        let error = found(&answer, address, address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "of other ports");
        answer[HEADING_BYTES + 4..][..4].copy_from_slice(&ports(address, address));
        assert!(found(&answer, address, address).is_ok());
    }
}
