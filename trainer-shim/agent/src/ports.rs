//! Ports of this host: bound, and found free.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::door::tcpstore::serve::{BACKLOG, peer_of};
use crate::keeper::link::KeptPort;
use crate::keeper::recorder::Recorder;

/// Where to look for a free port.
const PORT_MIN: u16 = 20_000;
/// Linux takes ports above it for outgoing connections, unless configured otherwise.
const PORT_END: u16 = 32_768;
const PORT_TRIES: usize = 200;

/// A port that belongs to this process and refuses connections until it
/// listens.
#[derive(Debug)]
pub struct Bound {
    socket: TcpSocket,
    address: SocketAddr,
}

impl Bound {
    /// Binds a port, without listening.
    pub fn take(address: SocketAddr) -> io::Result<Bound> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A port whose last connections are in TIME_WAIT is free.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let address = socket.local_addr()?;
        Ok(Bound { socket, address })
    }

    /// Takes a free loopback port that no outgoing connection would get: at 127.0.0.1, and with
    /// `also_v6` at `::1`, too.
    pub(crate) fn take_free(also_v6: bool) -> io::Result<(Bound, Option<Bound>)> {
        let ports = candidate_ports(&local_port_range());
        for _ in 0..PORT_TRIES {
            let port = rand::random_range(ports.clone());
            if !has_room(port) {
                continue;
            }
            // Another socket of this port that has bound and does not listen
            // yet makes the attempt fail here or when listening.
            let Ok(bound) = Bound::take(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) else {
                continue;
            };
            if !also_v6 {
                return Ok((bound, None));
            }
            if let Ok(second) = Bound::take(SocketAddr::from((Ipv6Addr::LOCALHOST, port))) {
                return Ok((bound, Some(second)));
            }
        }
        Err(io::Error::other(format!(
            "none of {PORT_TRIES} ports tried between {} and {} of 127.0.0.1 is free; \
             choose one with --tcpstore",
            ports.start, ports.end
        )))
    }

    /// Address that is bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections from now on.
    pub fn listen(self) -> io::Result<TcpListener> {
        self.socket.listen(BACKLOG)
    }
}

/// Where connections are accepted.
#[derive(Debug)]
pub enum Listener {
    /// This process accepts them itself.
    Own(TcpListener),
    /// To its keeper, which hands them on.
    Kept(SocketAddr, KeptPort),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Listener {
        Listener::Own(listener)
    }
}

impl Listener {
    /// Its address, if the system gives it.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Own(listener) => listener.local_addr().ok(),
            Listener::Kept(address, _) => Some(*address),
        }
    }

    /// The next connection, with what writes it down.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr, Recorder)> {
        match self {
            Listener::Own(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((stream, peer, Recorder::default()))
            }
            Listener::Kept(_, port) => {
                let (stream, recorder, _) = port.accept().await.open()?;
                let peer = peer_of(&stream);
                Ok((stream, peer, recorder))
            }
        }
    }
}

/// Whether the next port is free: programs open stores of their own there.
fn has_room(port: u16) -> bool {
    let neighbours = [port.checked_sub(1), port.checked_add(1)].into_iter().flatten();
    neighbours.into_iter().all(|port| Bound::take((Ipv4Addr::LOCALHOST, port).into()).is_ok())
}

fn local_port_range() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default()
}

/// Ports below those for outgoing connections, whose first is the first number
/// of the range.
fn candidate_ports(local_port_range: &str) -> Range<u16> {
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
    fn free_ports_lie_below_those_of_outgoing_connections() {
        assert_eq!(candidate_ports("32768\t60999\n"), 20_000..32_768);
        assert_eq!(candidate_ports("25000\t60999\n"), 20_000..25_000);
        assert_eq!(candidate_ports("49152\t65535\n"), 20_000..32_768);
        assert_eq!(candidate_ports("1024\t65535\n"), 20_000..32_768);
        assert_eq!(candidate_ports(""), 20_000..32_768);
    }

    #[tokio::test]
    async fn a_free_port_leaves_room_for_what_programs_open_behind_it() {
        let (listens, _) = Bound::take_free(false).unwrap();
        let port = listens.address().port();
        assert!(has_room(port));
        let _listener = listens.listen().unwrap();
        assert!(!has_room(port - 1) && !has_room(port + 1));
    }

    #[tokio::test]
    async fn a_port_that_listens_is_taken() {
        let (bound, _) = Bound::take_free(false).unwrap();
        let address = bound.address();
        assert!(candidate_ports(&local_port_range()).contains(&address.port()));
        let _listener = bound.listen().unwrap();
        let error = Bound::take(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
