//! A listening port.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::simulated::{self, Port};
use crate::stream::Stream;

/// A listening port: of the operating system, or simulated.
#[derive(Debug)]
pub enum Listener {
    /// One of the operating system.
    Tcp(TcpListener),
    /// One of a simulated host.
    Simulated(Box<dyn Port>),
}

impl Listener {
    /// Listens at `host:port`; a simulated network takes an IP address as host, and no name.
    pub async fn bind(address: &str) -> io::Result<Listener> {
        match simulated::network() {
            None => TcpListener::bind(address).await.map(Listener::Tcp),
            Some(network) => {
                let address = address.parse().map_err(io::Error::other)?;
                network.listen(address).map(Listener::Simulated)
            }
        }
    }

    /// Waits for the next connection; one of the operating system comes without TLS.
    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => Ok(Stream::Tcp(listener.accept().await?.0)),
            Listener::Simulated(port) => {
                std::future::poll_fn(|cx| port.poll_accept(cx)).await.map(Stream::Simulated)
            }
        }
    }

    /// The address that it listens at, with the port that the system chose for port 0.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Simulated(port) => Ok(port.address()),
        }
    }
}
