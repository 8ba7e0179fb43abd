//! Connections that nothing in between reads or changes: TLS 1.3.
//!
//! | Module | Content |
//! |---|---|
//! | `files` | certificates and keys as files, followed when they change |
//! | `dialer` | the side that connects |
//! | `acceptor` | the accepting side; one port for clients and nodes |
//! | `words` | errors, and what to do about them |
//!
//! There are two authorities: one for what clients connect to (and for their own
//! certificates), one for nodes. A node that connects to another names the
//! protocol [`PEER_PROTOCOL`] (ALPN), and both sides show a certificate of the
//! nodes' authority: a client's certificate is not accepted between nodes.

mod acceptor;
mod dialer;
mod files;
mod words;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

pub use acceptor::{AcceptError, Acceptor, AcceptorFiles, Caller, ClientAuthority};
pub use dialer::Dialer;
pub use files::{File, Identity, TlsError, looks};
pub(crate) use words::explained;

/// ALPN protocol of a node that connects to another.
pub const PEER_PROTOCOL: &[u8] = b"holdfast-peer/1";

/// A connection with TLS.
pub type Secured = Box<TlsStream<Socket>>;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A socket that can move between runtimes while the TLS above it stays.
#[derive(Debug)]
pub struct Socket(Option<TcpStream>);

impl Socket {
    fn new(stream: TcpStream) -> Socket {
        Socket(Some(stream))
    }

    pub(crate) fn get(&self) -> Option<&TcpStream> {
        self.0.as_ref()
    }

    pub(crate) fn take(&mut self) -> Option<TcpStream> {
        self.0.take()
    }

    pub(crate) fn put(&mut self, stream: TcpStream) {
        self.0 = Some(stream);
    }

    fn pinned(self: Pin<&mut Self>) -> io::Result<Pin<&mut TcpStream>> {
        let stream = self.get_mut().0.as_mut();
        stream.map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.pinned()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.pinned()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.pinned()?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned()?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
