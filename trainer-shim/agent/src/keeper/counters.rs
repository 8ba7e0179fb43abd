//! How many bytes of a TCP connection its owner has read and written: the kernel counts, and goes
//! on counting after the end of the process. Bytes read are all bytes received less the unread
//! ones; bytes written are all acknowledged ones and the unacknowledged.

use std::io;
use std::net::SocketAddr;

use crate::diagnosis::{Bytes, Diagnosis};

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

impl Counters {
    /// The counters of a connection that no process reads or writes now; an error of the kind
    /// [`io::ErrorKind::NotFound`] for one that is over.
    pub fn of(local: SocketAddr, peer: SocketAddr) -> io::Result<Counters> {
        let diagnosis = Diagnosis::open()?;
        let closed = || io::Error::from(io::ErrorKind::NotFound);
        let look = || diagnosis.look(local, peer)?.bytes.ok_or_else(closed);
        let mut before = look()?;
        for _ in 0..LOOKS_MAX {
            let now = look()?;
            if now == before {
                let Bytes { received, unread, acknowledged, open } = now;
                let consumed = received.saturating_sub(unread);
                return Ok(Counters { consumed, written: acknowledged.saturating_add(open) });
            }
            before = now;
        }
        Err(io::Error::other("the connection does not come to rest"))
    }
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
        Counters::of(local, peer)
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
        let error = Counters::of(local, peer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
