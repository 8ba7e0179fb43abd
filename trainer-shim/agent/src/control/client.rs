//! One connection to an agent.

use std::io;
use std::path::Path;
use std::time::Duration;

use holdfast_trainer_shim::link::{ALLOW_UID_VARIABLE, Users};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::protocol::{LINE_BYTES_MAX, Request, Response, line};

/// How long a connection may take that the system answers by itself.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// One connection to an agent.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Connection {
    /// Connects to the agent of this user that listens there. Without a listener:
    /// [`io::ErrorKind::NotFound`] or [`io::ErrorKind::ConnectionRefused`].
    pub async fn open(socket: &Path) -> io::Result<Connection> {
        let connecting = UnixStream::connect(socket);
        let stream = tokio::time::timeout(CONNECT_TIME_MAX, connecting)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        // Credentials of the process that made the socket: its user is the
        // agent's, the process is the command that started the agent.
        let peer = stream.peer_cred()?;
        if !Users::from_environment()?.include(peer.uid()) {
            let (uid, socket) = (peer.uid(), socket.display());
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "user {uid} listens on {socket}; if it may, set {ALLOW_UID_VARIABLE}={uid}"
                ),
            ));
        }
        let (reader, writer) = stream.into_split();
        Ok(Connection { reader: BufReader::new(reader), writer })
    }

    /// Asks, and waits for the answer. An agent that ends is
    /// [`io::ErrorKind::UnexpectedEof`], or a broken connection.
    pub async fn ask(&mut self, request: &Request) -> io::Result<Response> {
        let told = self.tell(request).await;
        let mut text = Vec::new();
        let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
        // An agent that did not even read the request may have sent the reason.
        let heard = (&mut self.reader).take(limit).read_until(b'\n', &mut text).await;
        if text.is_empty() {
            told.and(heard)?;
        }
        if !text.ends_with(b"\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_slice(&text).map_err(|error| {
            let text = format!("the agent answers in another way than this version: {error}");
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }

    /// Says something that has no answer but the end of the connection.
    pub async fn tell(&mut self, request: &Request) -> io::Result<()> {
        self.writer.write_all(&line(request)).await
    }

    /// Ready once the agent has closed the connection, or sends what nobody has asked for; answers
    /// whether it has closed. Send no request while waiting; may be dropped and called again.
    pub async fn closed(&mut self) -> bool {
        self.reader.fill_buf().await.map_or(true, <[u8]>::is_empty)
    }
}
