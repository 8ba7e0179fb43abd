//! A simulated network in place of TCP, for one thread.

use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

/// One end of a simulated connection.
pub trait Connection: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin {
    /// Ends the connection once sent data is not acknowledged for this long.
    fn set_user_timeout(&mut self, timeout: Duration);

    /// Address of the other end.
    fn peer(&self) -> SocketAddr;
}

/// A simulated listening port; dropping it closes the port.
pub trait Port: Debug + Send + Sync {
    /// Polls for the next connection to this port.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Box<dyn Connection>>>;

    /// The address that it listens at.
    fn address(&self) -> SocketAddr;
}

/// The network as one host sees it.
pub trait Network: Send + Sync {
    /// Connects to a port; may be refused or time out like TCP.
    fn connect(&self, to: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Connection>>>;

    /// Listens on a port of this host.
    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Port>>;
}

thread_local! {
    static NETWORK: RefCell<Option<Arc<dyn Network>>> = const { RefCell::new(None) };
}

/// From now on this thread's connections are those of a simulated host, until
/// another takes its place; none = TCP again.
pub fn enter(network: Option<Arc<dyn Network>>) {
    NETWORK.with(|entered| *entered.borrow_mut() = network);
}

/// The network that this thread has entered.
pub(crate) fn network() -> Option<Arc<dyn Network>> {
    NETWORK.with(|entered| entered.borrow().clone())
}
