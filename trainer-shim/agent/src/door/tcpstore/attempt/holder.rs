//! Whether a client is the process that it calls itself.
//!
//! A process id is a number of a process namespace. In the namespace of the agent, the id that a
//! container's rank gives is that of another process, or of none. But the kernel knows which
//! processes have the socket at the client's end of a connection.
//!
//! The open files of another user's process are not readable for every agent. Then the id counts
//! if the process has that user, and no other process calls itself so: the kernel shows everyone
//! the ids of a process in its own namespaces. That is certain only for an agent that sees all
//! processes.

use std::fs;
use std::io;
use std::path::Path;

use parking_lot::Mutex;

use crate::diagnosis::{Diagnosis, Owner};
use crate::process::{self, Connection};

/// Open files of a process that are looked at.
const FILES_MAX: usize = 1_000_000;
/// The process namespace in which Linux starts, as the kernel names it.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Finds out whose the client's end of a connection is.
#[derive(Debug)]
pub struct Sockets(Option<Mutex<Diagnosis>>);

/// Whether a process has a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Has {
    Yes,
    No,
    /// Its open files cannot be read.
    Unreadable,
}

/// Answer to the question whether a client is the process with an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// It is.
    Itself,
    /// It is another one, which has this id elsewhere.
    Another,
    /// It may be.
    Unproven,
}

impl Sockets {
    /// Asks the kernel for one socket, or, where it does not answer, reads its whole table.
    pub fn new() -> Sockets {
        Sockets(Diagnosis::open_if_it_answers().ok().map(Mutex::new))
    }

    /// Whether the client of a connection is the process with this id; blocks while it looks.
    pub fn client(&self, process: u32, connection: &Connection) -> Client {
        let owner = self.owner(connection).filter(|owner| owner.inode > 0);
        let Some(Owner { uid, inode }) = owner else { return Client::Another };
        match has(process, inode) {
            Has::Yes => Client::Itself,
            Has::No => Client::Another,
            Has::Unreadable => {
                let of_process = Status::of(process).ok();
                match of_process.filter(|status| status.may_be_client(process, uid)) {
                    None => Client::Another,
                    Some(_) if sees_all() && is_only_one(process) => Client::Itself,
                    Some(_) => Client::Unproven,
                }
            }
        }
    }

    fn owner(&self, connection: &Connection) -> Option<Owner> {
        let Connection { peer, local } = *connection;
        let asked = self.0.as_ref().map(|diagnosis| diagnosis.lock().look(peer, local));
        match asked {
            Some(Ok(found)) => Some(found.owner),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => None,
            _ => process::owners_of(&[*connection]).into_iter().next().flatten(),
        }
    }
}

/// Whether a process has the socket with this number among its open files.
fn has(process: u32, inode: u64) -> Has {
    let folder = Path::new("/proc").join(process.to_string()).join("fd");
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) if is_gone(&error) => return Has::No,
        Err(_) => return Has::Unreadable,
    };
    let socket = format!("socket:[{inode}]");
    let mut answer = Has::No;
    // The newest first: the connection is new, and the process may have thousands.
    let files: Vec<_> = files.take(FILES_MAX).collect();
    for file in files.into_iter().rev() {
        // A file may be closed meanwhile.
        match file.and_then(|file| fs::read_link(file.path())) {
            Ok(target) if target.as_os_str() == socket.as_str() => return Has::Yes,
            Err(error) if !is_gone(&error) => answer = Has::Unreadable,
            _ => {}
        }
    }
    answer
}

/// Whether there is no such process, or no such file of it.
fn is_gone(error: &io::Error) -> bool {
    let no_such_process = rustix::io::Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(no_such_process)
}

/// Whether all processes of this host have an id here.
fn sees_all() -> bool {
    let own = fs::read_link("/proc/self/ns/pid");
    own.is_ok_and(|own| own.as_os_str() == FIRST_NAMESPACE)
}

/// Whether no process of a namespace below calls itself so. Where one cannot be looked at, there
/// may be another.
fn is_only_one(process: u32) -> bool {
    let Ok(all) = fs::read_dir("/proc") else { return false };
    let mut pids = all.flatten().filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
    pids.all(|pid| match Status::of(pid) {
        Ok(status) => pid == process || status.calls_itself() != Some(process),
        Err(error) => is_gone(&error),
    })
}

/// What everyone may know of a process.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    uids: Vec<u32>,
    /// Its ids, from this namespace down to its own.
    ids: Vec<u32>,
    has_memory: bool,
}

impl Status {
    fn of(process: u32) -> io::Result<Status> {
        let path = Path::new("/proc").join(process.to_string()).join("status");
        Ok(Status::read(&String::from_utf8_lossy(&fs::read(path)?)))
    }

    fn read(text: &str) -> Status {
        let mut status = Status::default();
        for (name, values) in text.lines().filter_map(|line| line.split_once(':')) {
            let numbers = || values.split_ascii_whitespace().map_while(|one| one.parse().ok());
            match name {
                "Uid" => status.uids = numbers().collect(),
                "NSpid" => status.ids = numbers().collect(),
                "VmSize" => status.has_memory = true,
                _ => {}
            }
        }
        status
    }

    /// What it sends as its id; `None` if the kernel does not know of namespaces.
    fn calls_itself(&self) -> Option<u32> {
        self.ids.last().copied()
    }

    /// Whether it can be the client that calls itself so, and made its socket as this user. A
    /// thread of the kernel, and a process that has ended, have no memory.
    fn may_be_client(&self, process: u32, uid: u32) -> bool {
        let is_called_so = self.calls_itself().is_none_or(|id| id == process);
        self.has_memory && self.uids.contains(&uid) && is_called_so
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    fn sleeps(input: Stdio) -> Killed {
        Killed(Command::new("sleep").arg("600").stdin(input).spawn().unwrap())
    }

    #[test]
    fn a_client_is_the_process_that_has_the_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let connection = Connection { peer, local: server.local_addr().unwrap() };
        let stranger = sleeps(Stdio::null());
        let holder = sleeps(OwnedFd::from(client.try_clone().unwrap()).into());
        // As the kernel is asked, and as its table is read.
        for sockets in [Sockets::new(), Sockets(None)] {
            let is = |process| sockets.client(process, &connection);
            assert_eq!(is(std::process::id()), Client::Itself);
            assert_eq!(is(holder.0.id()), Client::Itself);
            assert_eq!(is(stranger.0.id()), Client::Another);
            assert_eq!(is(u32::MAX), Client::Another);
        }
        drop((client, holder));
        for sockets in [Sockets::new(), Sockets(None)] {
            assert_eq!(sockets.client(std::process::id(), &connection), Client::Another);
        }
    }

    #[test]
    fn a_process_whose_files_cannot_be_read_may_be_a_client_of_its_user() {
        let text = "Name:\tpython\nUid:\t1000\t1001\t1001\t1001\nNSpid:\t57\nVmSize:\t 7 kB\n";
        let status = Status::read(text);
        assert!(status.may_be_client(57, 1000) && status.may_be_client(57, 1001));
        assert!(!status.may_be_client(57, 0), "another user made the socket");
        let inside = Status::read(&text.replace("\t57", "\t57\t9"));
        assert!(!inside.may_be_client(57, 1000), "it calls itself 9");
        assert_eq!(inside.calls_itself(), Some(9));
        let thread = Status::read(&text.replace("VmSize", "Threads"));
        assert!(!thread.may_be_client(57, 1000), "of the kernel");
        let old = Status::read(&text.replace("NSpid", "Tgid"));
        assert!(old.may_be_client(57, 1000), "without namespaces");
        assert!(!Status::read("").may_be_client(57, 1000));
        let own = Status::of(std::process::id()).unwrap();
        assert!(own.may_be_client(std::process::id(), nix::unistd::geteuid().as_raw()));
    }
}
