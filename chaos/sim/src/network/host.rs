//! The network as one host sees it: connects and listens.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::{fmt, io};

use futures::future::BoxFuture;
use holdfast_net::simulated;

use super::connection::Connection;
use super::{CLIENT, End, Event, Network, Open, PORT, SERVER, Wire, address, host_at};
use crate::host::HostId;

/// The network as one host sees it.
pub(super) struct HostNetwork {
    pub(super) host: HostId,
    pub(super) network: Network,
}

impl simulated::Network for HostNetwork {
    fn connect(
        &self,
        to: SocketAddr,
    ) -> BoxFuture<'static, io::Result<Box<dyn simulated::Connection>>> {
        let (host, network) = (self.host, self.network.clone());
        Box::pin(async move {
            let to = host_at(to)?;
            let id = {
                let mut state = network.0.lock();
                let id = state.next;
                state.next += 1;
                let ends = [End::new(host), End::new(to)];
                state.wires.insert(id, Wire { ends, opened: None, connector: None });
                let link = state.link(host, to);
                let at = state.now + state.delay(&link);
                state.later(at, Event::Knock { id, tries: 0 });
                id
            };
            // Dropped while it waits, it lets go of the connection.
            let held = Connection { network: network.clone(), id, side: CLIENT };
            std::future::poll_fn(|cx| {
                let mut state = network.0.lock();
                let Some(wire) = state.wires.get_mut(&id) else {
                    return Poll::Ready(Err(io::Error::from(ErrorKind::ConnectionReset)));
                };
                match wire.opened {
                    Some(opened) => Poll::Ready(opened.map_err(io::Error::from)),
                    None => {
                        wire.connector = Some(cx.waker().clone());
                        Poll::Pending
                    }
                }
            })
            .await?;
            Ok(Box::new(held) as Box<dyn simulated::Connection>)
        })
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn simulated::Port>> {
        if host_at(at)? != self.host || at.port() != PORT {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        let mut state = self.network.0.lock();
        if state.ports.contains_key(&self.host) {
            return Err(ErrorKind::AddrInUse.into());
        }
        state.ports.insert(self.host, Open { backlog: VecDeque::new(), acceptor: None });
        Ok(Box::new(Port { host: self.host, network: self.network.clone() }))
    }
}

pub(super) struct Port {
    host: HostId,
    network: Network,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the port of {}", self.host)
    }
}

impl simulated::Port for Port {
    fn poll_accept(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Box<dyn simulated::Connection>>> {
        let mut state = self.network.0.lock();
        let Some(port) = state.ports.get_mut(&self.host) else {
            return Poll::Ready(Err(ErrorKind::NotConnected.into()));
        };
        match port.backlog.pop_front() {
            Some(id) => {
                let network = self.network.clone();
                Poll::Ready(Ok(Box::new(Connection { network, id, side: SERVER })))
            }
            None => {
                port.acceptor = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn address(&self) -> SocketAddr {
        address(self.host)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut state = self.network.0.lock();
        let Some(port) = state.ports.remove(&self.host) else { return };
        for id in port.backlog {
            state.close(id, SERVER);
        }
    }
}
