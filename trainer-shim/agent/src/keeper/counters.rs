//! How many bytes of a TCP connection its owner has read and written: the kernel counts, and goes
//! on counting whatever becomes of the process.
//!
//! Asked over `sock_diag(7)`, which needs no privilege for connections of one's own network. Bytes
//! read are all bytes received (`tcpi_bytes_received`) less the unread ones; bytes written are all
//! acknowledged ones (`tcpi_bytes_acked`) and the unacknowledged.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const INET_DIAG_INFO: u16 = 2;
const HEADING_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 72;
const ANSWER_BYTES_MAX: usize = 8192;
/// Most reads until two agree: a peer may send between them.
const LOOKS_MAX: usize = 1_000;

/// A connection, counted from its accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that were read; one more once the end was.
    pub consumed: u64,
    /// Bytes that were written.
    pub written: u64,
}

/// The socket for queries to the kernel.
#[derive(Debug)]
pub struct Diagnosis(OwnedFd);

impl Diagnosis {
    /// Opens a netlink socket for queries.
    pub fn open() -> io::Result<Diagnosis> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::DGRAM;
        Ok(Diagnosis(socket_with(AddressFamily::NETLINK, kind, flags, Some(SOCK_DIAG))?))
    }

    /// The counters of a connection that no process reads or writes now; an error of the kind
    /// [`io::ErrorKind::NotFound`] for one that is over.
    pub fn of(&self, local: SocketAddr, peer: SocketAddr) -> io::Result<Counters> {
        let mut before = self.look(local, peer)?;
        for _ in 0..LOOKS_MAX {
            let now = self.look(local, peer)?;
            if now == before {
                let [received, unread, acknowledged, open] = now;
                let consumed = received.saturating_sub(unread);
                return Ok(Counters { consumed, written: acknowledged.saturating_add(open) });
            }
            before = now;
        }
        Err(io::Error::other("the connection does not come to rest"))
    }

    /// Received, unread, acknowledged, not acknowledged.
    fn look(&self, local: SocketAddr, peer: SocketAddr) -> io::Result<[u64; 4]> {
        send(&self.0, &question(local, peer), SendFlags::empty())?;
        let mut answer = [0; ANSWER_BYTES_MAX];
        let (_, length) = recv(&self.0, &mut answer, RecvFlags::empty())?;
        counters(&answer[..length.min(ANSWER_BYTES_MAX)])
    }
}

fn question(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
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
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(peer.port().to_be_bytes());
    for address in [local.ip(), peer.ip()] {
        let mut octets = [0; 16];
        match address {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets.copy_from_slice(&address.octets()),
        }
        bytes.extend(octets);
    }
    // On any device, whatever its cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

fn counters(answer: &[u8]) -> io::Result<[u64; 4]> {
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
    let mut at = HEADING_BYTES + MESSAGE_BYTES;
    while at + 4 <= answer.len() {
        let length = usize::from(u16_at(at)?);
        if u16_at(at + 2)? == INET_DIAG_INFO {
            // `tcpi_bytes_acked` and `tcpi_bytes_received` of tcp_info.
            return Ok([u64_at(at + 4 + 128)?, unread, u64_at(at + 4 + 120)?, open]);
        }
        at += length.max(4).next_multiple_of(4);
    }
    Err(short())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn of(server: &TcpStream) -> io::Result<Counters> {
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        Diagnosis::open().unwrap().of(local, peer)
    }

    #[test]
    fn what_was_read_and_written_is_known_to_the_byte() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut client, mut server) = pair(address);
            assert_eq!(of(&server).unwrap(), Counters { consumed: 0, written: 0 });
            client.write_all(&[1; 1000]).unwrap();
            let mut some = [0; 300];
            server.read_exact(&mut some).unwrap();
            server.write_all(&[2; 77]).unwrap();
            assert_eq!(of(&server).unwrap(), Counters { consumed: 300, written: 77 });
            // Unread at the other end, or not even sent.
            server.set_nonblocking(true).unwrap();
            let mut written = 77;
            while let Ok(count) = server.write(&[3; 65_536]) {
                written += count as u64;
            }
            assert_eq!(of(&server).unwrap(), Counters { consumed: 300, written });
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(of(&server).unwrap().consumed, 300, "an end is no byte");
            server.set_nonblocking(false).unwrap();
            let mut rest = Vec::new();
            server.read_to_end(&mut rest).unwrap();
            assert_eq!(rest.len(), 700);
            assert_eq!(of(&server).unwrap().consumed, 1001, "unless it was read");
        }
    }

    #[test]
    fn a_connection_that_is_over_is_not_found() {
        let (client, server) = pair("127.0.0.1:0");
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        let error = Diagnosis::open().unwrap().of(local, peer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
