//! Which users of this host may use the agent's ports.
//!
//! The TCPStore protocol has no authentication, and every user of a host reaches its loopback. But
//! the kernel knows the user that made the client's end of a connection, if that end is on this
//! host. A client on another host cannot be asked about: only a port that listens beyond
//! loopback has such clients.

use std::io;
use std::sync::Arc;

use holdfast_trainer_shim::link::Users;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::complaints::Complaints;
use crate::diagnosis::{Diagnosis, Owner};
use crate::process::{self, Connection};

/// Admits connections. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Guard(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    users: Users,
    /// Without it the kernel's whole table is read, which takes milliseconds.
    diagnosis: Option<Mutex<Diagnosis>>,
    complaints: Mutex<Complaints>,
}

/// Who made the client's end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// A process of this user.
    Of(u32),
    /// One of this host that has closed it. Its user is not known any more, but what it sent may
    /// be there.
    Gone,
    /// A process of another host.
    Elsewhere,
}

impl Guard {
    /// Admits these users; unless any may come, the kernel is asked who connects.
    pub fn new(users: Users) -> Guard {
        let diagnosis = match users.is_any() {
            true => None,
            false => Diagnosis::open_if_it_answers()
                .inspect_err(|error| {
                    info!(
                        "who connects is looked up in /proc/net/tcp, which takes longer with many \
                         sockets: the kernel does not answer for one socket ({error})"
                    );
                })
                .ok(),
        };
        Guard::with(users, diagnosis)
    }

    fn with(users: Users, diagnosis: Option<Diagnosis>) -> Guard {
        let (diagnosis, complaints) = (diagnosis.map(Mutex::new), Mutex::default());
        Guard(Arc::new(Shared { users, diagnosis, complaints }))
    }

    /// Whether a connection that was just accepted is served. The system call that finds it out
    /// takes microseconds; what takes longer is done beside.
    pub(crate) async fn admits(&self, connection: Connection) -> bool {
        if self.0.diagnosis.is_some() || self.0.users.is_any() {
            return self.admits_each(&[connection]) == [true];
        }
        let guard = self.clone();
        let looking = spawn_blocking(move || guard.admits_each(&[connection]));
        looking.await.is_ok_and(|admitted| admitted == [true])
    }

    /// Which of these connections are served; may block for as long as it takes to read a table.
    pub(crate) fn admits_each(&self, connections: &[Connection]) -> Vec<bool> {
        if self.0.users.is_any() {
            return vec![true; connections.len()];
        }
        let asked = self.0.diagnosis.as_ref().map(|diagnosis| {
            let diagnosis = diagnosis.lock();
            connections.iter().map(|one| owner(&diagnosis, one)).collect::<io::Result<Vec<_>>>()
        });
        let owners = match asked {
            Some(Ok(owners)) => owners,
            Some(Err(error)) => {
                debug!(%error, "the kernel does not answer for one socket");
                process::owners_of(connections)
            }
            None => process::owners_of(connections),
        };
        let clients = connections.iter().zip(owners);
        clients.map(|(connection, owner)| self.admits_client(connection, owner)).collect()
    }

    fn admits_client(&self, connection: &Connection, owner: Option<Owner>) -> bool {
        match client(connection, owner) {
            Client::Of(uid) if self.0.users.include(uid) => true,
            Client::Of(uid) => {
                if let Some(left_out) = self.may_complain() {
                    let peer = connection.peer;
                    warn!(%peer, left_out, "connection refused: {}", refusal(uid));
                }
                false
            }
            Client::Gone => {
                if let Some(left_out) = self.may_complain() {
                    let peer = connection.peer;
                    info!(
                        %peer,
                        left_out,
                        "connection refused: its client closed it before this agent could see whose \
                         it is, so nothing that it sent is done; let the client wait for one answer, \
                         or start the agent with --allow-uid any"
                    );
                }
                false
            }
            Client::Elsewhere => true,
        }
    }

    /// As `admits`, for a connection whose user is known already; or why not.
    pub fn check(&self, uid: u32, pid: Option<i32>) -> Result<(), String> {
        if self.0.users.include(uid) {
            return Ok(());
        }
        let reason = refusal(uid);
        if let Some(left_out) = self.may_complain() {
            warn!(pid, left_out, "control connection refused: {reason}");
        }
        Err(reason)
    }

    fn may_complain(&self) -> Option<u64> {
        self.0.complaints.lock().admit(Instant::now())
    }
}

fn refusal(uid: u32) -> String {
    format!(
        "user {uid} may not use this agent; to serve that user, too, start the agent with \
         --allow-uid {uid} (HOLDFAST_ALLOW_UID)"
    )
}

/// Whose the client's end of a connection is, if that is on this host.
fn owner(diagnosis: &Diagnosis, connection: &Connection) -> io::Result<Option<Owner>> {
    match diagnosis.look(connection.peer, connection.local) {
        Ok(found) => Ok(Some(found.owner)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Who is at the client's end, given the owner of the socket there.
fn client(Connection { peer, local }: &Connection, owner: Option<Owner>) -> Client {
    let (from, to) = (peer.ip().to_canonical(), local.ip().to_canonical());
    match owner {
        Some(Owner { inode: 0, .. }) => Client::Gone,
        Some(Owner { uid, .. }) => Client::Of(uid),
        // That of a connection that was reset is unspecified.
        None if from.is_loopback() || from == to || from.is_unspecified() => Client::Gone,
        None => Client::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection, and both of its ends.
    fn connected(listen: &str, connect: &str) -> (Connection, TcpStream, TcpStream) {
        let listener = TcpListener::bind(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((connect, port)).unwrap();
        let (server, peer) = listener.accept().unwrap();
        (Connection { peer, local: server.local_addr().unwrap() }, client, server)
    }

    #[tokio::test]
    async fn both_ways_find_the_user_of_a_client_while_it_is_there() {
        let own = nix::unistd::geteuid().as_raw();
        for (listen, connect) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            let (connection, end, _server) = connected(listen, connect);
            let found = process::owners_of(&[connection])[0].unwrap();
            let diagnosis = Diagnosis::open_if_it_answers().unwrap();
            assert_eq!(owner(&diagnosis, &connection).unwrap(), Some(found), "{listen}");
            assert_eq!(client(&connection, Some(found)), Client::Of(own));
            let ways = [Some(diagnosis), None];
            let guards = ways.map(|diagnosis| Guard::with(Users::default(), diagnosis));
            for guard in &guards {
                assert!(guard.admits(connection).await);
            }
            // From here on its user would be taken for root.
            drop(end);
            for guard in &guards {
                assert!(!guard.admits(connection).await, "{listen}");
            }
            assert!(Guard::new("any".parse().unwrap()).admits(connection).await);
        }
    }

    #[test]
    fn only_clients_of_this_host_can_be_asked_about() {
        let at = |peer: &str, local: &str| Connection {
            peer: peer.parse().unwrap(),
            local: local.parse().unwrap(),
        };
        let socket = |inode| Some(Owner { uid: 7, inode });
        let remote = at("192.0.2.1:9", "192.0.2.2:29500");
        assert_eq!(client(&remote, None), Client::Elsewhere);
        assert_eq!(client(&remote, socket(5)), Client::Of(7));
        assert_eq!(client(&remote, socket(0)), Client::Gone);
        for here in [
            at("127.0.0.1:9", "127.0.0.1:29500"),
            at("[::ffff:127.0.0.1]:9", "[::ffff:127.0.0.1]:29500"),
            at("192.0.2.2:9", "192.0.2.2:29500"),
            at("0.0.0.0:0", "127.0.0.1:29500"),
        ] {
            assert_eq!(client(&here, None), Client::Gone);
        }
    }

    #[test]
    fn a_stranger_is_refused_with_the_flag_to_use() {
        let stranger = nix::unistd::getuid().as_raw() + 4711;
        let reason = Guard::new(Users::default()).check(stranger, None).unwrap_err();
        assert!(reason.contains(&format!("--allow-uid {stranger}")), "{reason}");
        let (connection, ..) = connected("127.0.0.1:0", "127.0.0.1");
        let socket = Some(Owner { uid: stranger, inode: 5 });
        assert!(!Guard::new(Users::default()).admits_client(&connection, socket));
        let users: Users = stranger.to_string().parse().unwrap();
        assert!(Guard::new(users).admits_client(&connection, socket));
    }
}
