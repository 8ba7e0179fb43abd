//! One end of a simulated connection, as the programs on a host use it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use bytes::{Buf, Bytes};
use holdfast_net::simulated;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{ConnectionId, End, EndState, Network, Segment, WINDOW_BYTES, address};
use crate::host::HostId;

pub(super) struct Connection {
    pub(super) network: Network,
    pub(super) id: ConnectionId,
    pub(super) side: usize,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection #{}", self.id)
    }
}

impl Connection {
    /// Does something to this end, if the connection is there.
    fn end<T>(&self, with: impl FnOnce(&mut End) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut state = self.network.0.lock();
        match state.wires.get_mut(&self.id) {
            Some(wire) => with(&mut wire.ends[self.side]),
            None => Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
        }
    }
}

impl simulated::Connection for Connection {
    fn set_user_timeout(&mut self, timeout: Duration) {
        let mut state = self.network.0.lock();
        if let Some(wire) = state.wires.get_mut(&self.id) {
            wire.ends[self.side].user_timeout = u64::try_from(timeout.as_millis()).ok();
        }
    }

    fn peer(&self) -> SocketAddr {
        let state = self.network.0.lock();
        let other = state.wires.get(&self.id).map(|wire| wire.ends[1 - self.side].host);
        address(other.unwrap_or(HostId(0)))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut taken = 0;
        let read = self.end(|end| {
            if end.reset {
                return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
            }
            if end.received.is_empty() && !end.ended {
                end.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            while buffer.remaining() > 0
                && let Some(bytes) = end.received.front_mut()
            {
                let count = bytes.len().min(buffer.remaining());
                buffer.put_slice(&bytes[..count]);
                bytes.advance(count);
                taken += count;
                if bytes.is_empty() {
                    end.received.pop_front();
                }
            }
            end.received_bytes -= taken;
            Poll::Ready(Ok(()))
        });
        if taken > 0 {
            // The other end has room again.
            let mut state = self.network.0.lock();
            if let Some(wire) = state.wires.get_mut(&self.id) {
                let other = &mut wire.ends[1 - self.side];
                other.sent_bytes = other.sent_bytes.saturating_sub(taken);
                if let Some(writer) = other.writer.take() {
                    let host = other.host;
                    writer.wake();
                    state.touched.insert(host);
                }
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let room = self.end(|end| {
            if end.reset || end.state != EndState::Open {
                return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
            }
            if end.sent_bytes >= WINDOW_BYTES {
                end.writer = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(Ok(WINDOW_BYTES - end.sent_bytes))
        });
        let room = std::task::ready!(room)?;
        let count = bytes.len().min(room);
        if count > 0 {
            let segment = Segment::Bytes(Bytes::copy_from_slice(&bytes[..count]));
            self.network.0.lock().push(self.id, self.side, segment);
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.0.lock().push(self.id, self.side, Segment::End);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.network.0.lock().close(self.id, self.side);
    }
}
