//! Which process is at the other end of a connection, from `/proc`.
//!
//! Walking through the open files of all processes takes milliseconds: it is done
//! for many connections at once, and never while a trainer waits for an answer.
//! Unreadable processes (of another user, host or process namespace) stay
//! unknown, and nothing depends on them.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::diagnosis::Owner;

const TABLE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most open files looked at in one walk.
const FILES_MAX: usize = 1_000_000;
/// Most bytes read of a process's environment.
const ENVIRONMENT_BYTES_MAX: u64 = 1024 * 1024;
/// The variable that launchers give each rank.
const RANK: &[u8] = b"RANK=";
/// How often torchrun has restarted a rank in place: its keys are apart then.
const RESTARTS: &[u8] = b"TORCHELASTIC_RESTART_COUNT=";

/// A process on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its process id, as the agent sees it.
    pub pid: u32,
    /// The `RANK` that it was started with, if it has one.
    pub rank: Option<u64>,
    /// How often its launcher had restarted it in place.
    pub restarts: u64,
}

/// A connection as its server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Address of the client's end.
    pub peer: SocketAddr,
    /// Address of the server's end.
    pub local: SocketAddr,
}

/// The processes that hold the clients' ends; blocks while it looks.
pub fn clients_of(connections: &[Connection]) -> Vec<Option<Process>> {
    let proc = Path::new("/proc");
    let inode = |owner: Option<Owner>| owner.map(|owner| owner.inode).filter(|inode| *inode > 0);
    let wanted: Vec<Option<u64>> = owners_of(connections).into_iter().map(inode).collect();
    let pids = holders(proc, wanted.iter().flatten().copied().map(|inode| (inode, None)).collect());
    wanted
        .into_iter()
        .map(|inode| {
            let pid = pids.get(&inode?).copied().flatten()?;
            let environment = proc.join(pid.to_string()).join("environ");
            let environment = read(&environment, ENVIRONMENT_BYTES_MAX);
            let restarts = number(&environment, RESTARTS).unwrap_or(0);
            Some(Process { pid, rank: number(&environment, RANK), restarts })
        })
        .collect()
}

/// Whose the clients' ends are, of connections from this host; blocks while it reads a table of all
/// sockets.
pub(crate) fn owners_of(connections: &[Connection]) -> Vec<Option<Owner>> {
    let mut owners = HashMap::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        read_table(&read(Path::new(table), TABLE_BYTES_MAX), &mut owners);
    }
    // The client's end is local to the client.
    let owner = |one: &Connection| owners.get(&(canonical(one.peer), canonical(one.local)));
    connections.iter().map(|one| owner(one).copied()).collect()
}

fn read(path: &Path, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // An unreadable file counts as unknown.
    let _ = fs::File::open(path).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes));
    bytes
}

/// Adds the lines of `/proc/net/tcp` or `tcp6`: owners by local and remote
/// address.
pub(crate) fn read_table(table: &[u8], owners: &mut HashMap<(SocketAddr, SocketAddr), Owner>) {
    let table = String::from_utf8_lossy(table);
    for line in table.lines().skip(1) {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1).and_then(address);
        let remote = fields.next().and_then(address);
        let uid = fields.nth(4).and_then(|uid| uid.parse().ok());
        let inode = fields.nth(1).and_then(|inode| inode.parse().ok());
        if let (Some(local), Some(remote), Some(uid), Some(inode)) = (local, remote, uid, inode) {
            owners.insert((local, remote), Owner { uid, inode });
        }
    }
}

/// An address as the kernel prints it: words in the host's byte order, a port
/// as a number.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok();
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

/// An IPv4 address in IPv6's clothes is the IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Fills in the owners of these sockets. Of several, as after a fork, the one
/// with the lowest id.
fn holders(proc: &Path, mut sockets: HashMap<u64, Option<u32>>) -> HashMap<u64, Option<u32>> {
    let mut missing = sockets.len();
    let mut files = 0;
    let Ok(processes) = fs::read_dir(proc) else { return sockets };
    let mut pids: Vec<u32> = processes
        .flatten()
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    for pid in pids {
        let Ok(open) = fs::read_dir(proc.join(pid.to_string()).join("fd")) else { continue };
        for file in open.flatten() {
            if missing == 0 || files == FILES_MAX {
                return sockets;
            }
            files += 1;
            let target = fs::read_link(file.path()).unwrap_or_default();
            let inode = target.to_str().and_then(socket_inode);
            if let Some(holder @ None) = inode.and_then(|inode| sockets.get_mut(&inode)) {
                *holder = Some(pid);
                missing -= 1;
            }
        }
    }
    sockets
}

fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn number(environment: &[u8], name: &[u8]) -> Option<u64> {
    let value = environment.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(name))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        let read = |text: &str| address(text).map(|address| address.to_string());
        if cfg!(target_endian = "little") {
            assert_eq!(read("0100007F:733C").as_deref(), Some("127.0.0.1:29500"));
            assert_eq!(
                read("0000000000000000FFFF00000100007F:733C").as_deref(),
                Some("127.0.0.1:29500"),
                "an IPv4 client of an IPv6 socket"
            );
            assert_eq!(read("00000000000000000000000001000000:0050").as_deref(), Some("[::1]:80"));
        }
        for bad in ["", "0100007F", "0100007:1", "0100007F:10000", "é100007F:1", "zz00007F:1"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn tables_that_end_early_or_hold_rubbish_are_read_as_far_as_they_go() {
        let table = "  sl  local_address rem_address\n   0: 0100007F:0001 0100007F:0002 01 00000000:00000000 00:00000000 00000000     7        0 77 1\n   1: 0100007F:0003 0100007F:0004 06 0:0 0:0 0 0 0 0 1\n   2: rubbish\n   3: 0100007F";
        let mut owners = HashMap::new();
        read_table(table.as_bytes(), &mut owners);
        let mut owners: Vec<(u32, u64)> =
            owners.into_values().map(|owner| (owner.uid, owner.inode)).collect();
        owners.sort_unstable();
        assert_eq!(owners, [(0, 0), (7, 77)], "TIME_WAIT has no inode");
    }

    #[test]
    fn the_holder_of_a_connection_is_found_and_a_stranger_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let client = TcpStream::connect(local).unwrap();
        let peer = client.local_addr().unwrap();
        let nobody = SocketAddr::from(([192, 0, 2, 1], 9));
        let connections = [Connection { peer, local }, Connection { peer: nobody, local }];
        let found = clients_of(&connections);
        assert_eq!(found[0].map(|process| process.pid), Some(std::process::id()));
        assert_eq!(found[1], None);
    }

    #[test]
    fn the_rank_is_a_number_in_the_environment() {
        assert_eq!(number(b"A=1\0RANK=12\0B=2\0", RANK), Some(12));
        assert_eq!(number(b"TORCHELASTIC_RESTART_COUNT=2\0", RESTARTS), Some(2));
        for environment in [&b""[..], b"LOCAL_RANK=1\0", b"RANK=\0", b"RANK=-1\0", b"RANK=\xff\0"] {
            assert_eq!(number(environment, RANK), None);
        }
    }
}
