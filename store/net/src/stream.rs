//! A connection.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::simulated::{self, Connection};
use crate::tls::{Secured, explained};

/// A connection to another host.
#[derive(Debug)]
pub enum Stream {
    /// One of the operating system.
    Tcp(TcpStream),
    /// The same with TLS.
    Tls(Secured),
    /// One of a simulated host.
    Simulated(Box<dyn Connection>),
}

/// A connection detached from any runtime: it can be moved to another one.
#[derive(Debug)]
pub enum Detached {
    /// One of the operating system.
    Tcp(std::net::TcpStream),
    /// The same with TLS; the socket inside it is detached.
    Tls(std::net::TcpStream, Secured),
    /// One of a simulated host.
    Simulated(Box<dyn Connection>),
}

/// The reading half of a connection.
#[derive(Debug)]
pub enum ReadHalf {
    /// One of the operating system.
    Tcp(OwnedReadHalf),
    /// The same with TLS.
    Tls(tokio::io::ReadHalf<Secured>),
    /// One of a simulated host.
    Simulated(tokio::io::ReadHalf<Box<dyn Connection>>),
}

/// The writing half of a connection.
#[derive(Debug)]
pub enum WriteHalf {
    /// One of the operating system.
    Tcp(OwnedWriteHalf),
    /// The same with TLS.
    Tls(tokio::io::WriteHalf<Secured>),
    /// One of a simulated host.
    Simulated(tokio::io::WriteHalf<Box<dyn Connection>>),
}

impl Stream {
    /// Connects to `host:port`; Tokio looks the name up.
    pub async fn connect(address: &str) -> io::Result<Stream> {
        match simulated::network() {
            None => TcpStream::connect(address).await.map(Stream::Tcp),
            Some(network) => {
                let address = address.parse().map_err(io::Error::other)?;
                network.connect(address).await.map(Stream::Simulated)
            }
        }
    }

    /// Connects to the first of these addresses that answers.
    pub async fn connect_any(addresses: &[SocketAddr]) -> io::Result<Stream> {
        let Some(network) = simulated::network() else {
            return TcpStream::connect(addresses).await.map(Stream::Tcp);
        };
        let mut failed = io::Error::from(io::ErrorKind::InvalidInput);
        for address in addresses {
            match network.connect(*address).await {
                Ok(connection) => return Ok(Stream::Simulated(connection)),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// The socket of the operating system, for its own options.
    pub fn as_tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Tcp(stream) => Some(stream),
            Stream::Tls(secured) => secured.get_ref().0.get(),
            Stream::Simulated(_) => None,
        }
    }

    /// Sends every write at once, however short (`TCP_NODELAY`).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.as_tcp().map_or(Ok(()), |stream| stream.set_nodelay(nodelay))
    }

    /// Ends the connection once sent data is not acknowledged for this long.
    pub fn set_user_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Simulated(connection) => {
                connection.set_user_timeout(timeout);
                Ok(())
            }
            Stream::Tcp(_) | Stream::Tls(_) => {
                let set = |tcp| SockRef::from(tcp).set_tcp_user_timeout(Some(timeout));
                self.as_tcp().map_or(Ok(()), set)
            }
        }
    }

    /// Address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Simulated(connection) => Ok(connection.peer()),
            Stream::Tcp(_) | Stream::Tls(_) => self.as_tcp().ok_or_else(gone)?.peer_addr(),
        }
    }

    /// Detaches it from its runtime.
    pub fn detach(self) -> io::Result<Detached> {
        match self {
            Stream::Tcp(stream) => stream.into_std().map(Detached::Tcp),
            Stream::Tls(mut secured) => {
                let socket = secured.get_mut().0.take().ok_or_else(gone)?;
                Ok(Detached::Tls(socket.into_std()?, secured))
            }
            Stream::Simulated(connection) => Ok(Detached::Simulated(connection)),
        }
    }

    /// Attaches it to the runtime that polls this.
    pub fn attach(detached: Detached) -> io::Result<Stream> {
        match detached {
            Detached::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Detached::Tls(socket, mut secured) => {
                secured.get_mut().0.put(TcpStream::from_std(socket)?);
                Ok(Stream::Tls(secured))
            }
            Detached::Simulated(connection) => Ok(Stream::Simulated(connection)),
        }
    }

    /// Splits it into a half to read from and a half to write to.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Stream::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), WriteHalf::Tcp(write))
            }
            Stream::Tls(secured) => {
                let (read, write) = tokio::io::split(secured);
                (ReadHalf::Tls(read), WriteHalf::Tls(write))
            }
            Stream::Simulated(connection) => {
                let (read, write) = tokio::io::split(connection);
                (ReadHalf::Simulated(read), WriteHalf::Simulated(write))
            }
        }
    }
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// A connection that ends without TLS's close message has ended all the same: our
/// protocols carry their own lengths.
fn end_of_tls(read: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
    read.map(|read| match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        read => read.map_err(explained),
    })
}

macro_rules! reads {
    ($type:ident) => {
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $type::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buffer),
                    $type::Tls(tls) => end_of_tls(Pin::new(tls).poll_read(cx, buffer)),
                    $type::Simulated(simulated) => Pin::new(simulated).poll_read(cx, buffer),
                }
            }
        }
    };
}

macro_rules! writes {
    ($type:ident) => {
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $type::Tcp(tcp) => Pin::new(tcp).poll_write(cx, bytes),
                    $type::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
                    $type::Simulated(simulated) => Pin::new(simulated).poll_write(cx, bytes),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $type::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
                    $type::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, slices),
                    $type::Simulated(simulated) => {
                        Pin::new(simulated).poll_write_vectored(cx, slices)
                    }
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $type::Tcp(tcp) => tcp.is_write_vectored(),
                    $type::Tls(tls) => tls.is_write_vectored(),
                    $type::Simulated(simulated) => simulated.is_write_vectored(),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $type::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
                    $type::Tls(tls) => Pin::new(tls).poll_flush(cx),
                    $type::Simulated(simulated) => Pin::new(simulated).poll_flush(cx),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $type::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
                    $type::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
                    $type::Simulated(simulated) => Pin::new(simulated).poll_shutdown(cx),
                }
            }
        }
    };
}

reads!(Stream);
reads!(ReadHalf);
writes!(Stream);
writes!(WriteHalf);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::Listener;

    #[tokio::test]
    async fn without_a_simulated_network_it_is_tcp() {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut here = Stream::connect_any(&[address]).await.unwrap();
        let there = listener.accept().await.unwrap();
        assert_eq!(here.peer_addr().unwrap(), address);
        here.set_nodelay(true).unwrap();
        here.write_all(b"over there").await.unwrap();
        let there = Stream::attach(there.detach().unwrap()).unwrap();
        let (mut read, _write) = there.into_split();
        let mut told = [0; 10];
        read.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"over there");
    }
}
