//! Whether any client is connected to a port of this host, as the kernel knows it.

use std::io::Read;
use std::net::SocketAddr;

const TABLE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// As the kernel writes the state of a connection that both ends keep open.
const ESTABLISHED: &str = "01";

/// Whether a connection to this listener is open at both ends. Where the table
/// cannot be read, it may be.
pub fn is_any(listener: SocketAddr) -> bool {
    let table = if listener.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    let mut text = String::new();
    let read = std::fs::File::open(table)
        .and_then(|file| file.take(TABLE_BYTES_MAX).read_to_string(&mut text));
    read.is_err() || is_in(&text, listener.port())
}

fn is_in(table: &str, port: u16) -> bool {
    let local = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_local = fields.next().is_some_and(|field| field.ends_with(&local));
        is_local && fields.nth(1) == Some(ESTABLISHED)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_counts_until_its_client_has_closed_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(!is_any(address), "a listener alone");
        let client = TcpStream::connect(address).unwrap();
        let (_server, _) = listener.accept().unwrap();
        assert!(is_any(address));
        // Its own end is still open here.
        drop(client);
        assert!(!is_any(address));
    }
}
