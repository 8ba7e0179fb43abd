//! The root of a unique id: one thread and one listening socket in the process
//! that minted it, until all members have checked in or something goes wrong.
//!
//! It serves one member after the other and waits for each without a limit. The
//! order of a check-in decides what a failure does: a visitor that leaves, or is
//! no member, *before* the handshake is complete is ignored; a failure
//! *afterwards* ends the root, and the other members, which have checked in or
//! will, are not notified.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::RingOptions;
use super::id::{Id, SECRET_BYTES, Secret};
use super::wire::{
    Answer, HANDSHAKE_BYTES, Handshake, INTRODUCTION_BYTES_MAX, Introduction, Purpose,
    read_handshake,
};
use crate::communicator::backend::{MintOptions, Minter, UniqueId};
use crate::communicator::failure::{Failure, Refusal};
use crate::communicator::work::{Event, Work};

const THREAD_NAME: &str = "hf-ring-root";

pub(super) struct RingMinter {
    id: UniqueId,
    root: Arc<Root>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RingMinter {
    pub(super) fn mint(ring: &RingOptions, options: &MintOptions) -> Result<RingMinter, Failure> {
        let system = |call| move |error: io::Error| Failure::system(call, &error);
        let listener = TcpListener::bind((ring.address, 0)).map_err(system("listen"))?;
        let address = listener.local_addr().map_err(system("getsockname"))?;
        let secret: [u8; SECRET_BYTES] = rand::random();
        let id = Id { secret, generation: options.generation, root: address }.encode();
        let listener = Arc::new(listener);
        let sockets = Sockets { listener: Some(listener.clone()), peer: None, killed: false };
        let root = Arc::new(Root {
            secret,
            options: options.clone(),
            sockets: Mutex::new(sockets),
            ended: Mutex::new(Event::new()),
        });
        let served = root.clone();
        let thread = thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(move || served.run(listener))
            .map_err(system("starting a thread"))?;
        Ok(RingMinter { id, root, thread: Mutex::new(Some(thread)) })
    }
}

impl Minter for RingMinter {
    fn id(&self) -> UniqueId {
        self.id
    }

    fn ended(&self) -> Work<()> {
        self.root.ended.lock().wait()
    }

    fn kill(&self) {
        self.root.kill();
    }
}

impl Drop for RingMinter {
    fn drop(&mut self) {
        self.root.kill();
        if let Some(thread) = self.thread.get_mut().take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic was reported by its hook.
            let _ = thread.join();
        }
    }
}

struct Root {
    secret: Secret,
    options: MintOptions,
    sockets: Mutex<Sockets>,
    ended: Mutex<Event>,
}

/// Sockets that the thread may be blocked on, for killing it.
struct Sockets {
    listener: Option<Arc<TcpListener>>,
    peer: Option<Arc<TcpStream>>,
    killed: bool,
}

struct Member {
    stream: Arc<TcpStream>,
    incarnation: u64,
    address: SocketAddr,
}

enum Ended {
    /// The member that is being served is at fault, and gets the reason.
    Refused(Arc<TcpStream>, Refusal),
    Failed(Failure),
}

impl Root {
    fn run(&self, listener: Arc<TcpListener>) {
        let result = self.gather(&listener);
        // The port closes before any member sees the end.
        drop(listener);
        let killed = {
            let mut sockets = self.sockets.lock();
            sockets.listener = None;
            sockets.peer = None;
            sockets.killed
        };
        let result = match result {
            Ok(members) => {
                complete(&members);
                Ok(())
            }
            Err(_) if killed => Err(Failure::Aborted),
            Err(Ended::Refused(stream, refusal)) => {
                let reason = format!("a member was refused: {refusal}");
                // It may be gone.
                let _ = (&*stream).write_all(&Answer::Refused(refusal).encode());
                Err(Failure::RootEnded { reason })
            }
            Err(Ended::Failed(failure)) => Err(failure),
        };
        let told = self.ended.lock().happen(result);
        told.tell();
    }

    /// Waits until all members have checked in.
    fn gather(&self, listener: &TcpListener) -> Result<Vec<Member>, Ended> {
        let mut members: Vec<Option<Member>> = Vec::new();
        members.resize_with(self.options.nranks as usize, || None);
        while members.iter().any(Option::is_none) {
            let stream = match listener.accept() {
                Ok((stream, _)) => Arc::new(stream),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(Ended::Failed(Failure::system("accept", &error))),
            };
            self.serve(&stream)?;
            if !self.shake_hands(&stream) {
                self.sockets.lock().peer = None;
                continue;
            }
            let introduction = self.introduction(&stream)?;
            let place = &mut members[introduction.rank as usize];
            if let Some(Member { incarnation, .. }) = *place {
                let refusal = Refusal::RankTaken { rank: introduction.rank, incarnation };
                return Err(Ended::Refused(stream, refusal));
            }
            let (incarnation, address) = (introduction.incarnation, introduction.address);
            *place = Some(Member { stream, incarnation, address });
        }
        Ok(members.into_iter().flatten().collect())
    }

    /// Makes a member the one that a kill interrupts.
    fn serve(&self, stream: &Arc<TcpStream>) -> Result<(), Ended> {
        let mut sockets = self.sockets.lock();
        if sockets.killed {
            return Err(Ended::Failed(Failure::Aborted));
        }
        sockets.peer = Some(stream.clone());
        Ok(())
    }

    /// Whether it is a member. A member of another generation gets a refusal.
    fn shake_hands(&self, mut stream: &TcpStream) -> bool {
        let mut bytes = [0; HANDSHAKE_BYTES];
        if stream.read_exact(&mut bytes).is_err() {
            return false;
        }
        match read_handshake(&bytes, Purpose::CheckIn, &self.secret) {
            Handshake::Member => true,
            Handshake::Stranger => false,
            Handshake::OtherId => {
                // It may be gone.
                let _ = stream.write_all(&Answer::Refused(Refusal::Id).encode());
                false
            }
        }
    }

    /// Reads a member's introduction.
    fn introduction(&self, stream: &Arc<TcpStream>) -> Result<Introduction, Ended> {
        let lost = |error: io::Error| {
            let reason = format!("a member left during its check-in: {error}");
            Ended::Failed(Failure::RootEnded { reason })
        };
        let refused = |refusal| Ended::Refused(stream.clone(), refusal);
        let mut reader: &TcpStream = stream;
        let mut length = [0; 2];
        reader.read_exact(&mut length).map_err(lost)?;
        let length = usize::from(u16::from_le_bytes(length));
        if length > INTRODUCTION_BYTES_MAX {
            return Err(refused(Refusal::Malformed));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).map_err(lost)?;
        let introduction =
            Introduction::decode(&body).ok_or_else(|| refused(Refusal::Malformed))?;
        introduction.check(&self.options).map_err(refused)?;
        Ok(introduction)
    }

    fn kill(&self) {
        let mut sockets = self.sockets.lock();
        sockets.killed = true;
        // Both wake the thread, and fail if the other end was first.
        if let Some(listener) = sockets.listener.take() {
            let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
        }
        if let Some(peer) = sockets.peer.take() {
            let _ = peer.shutdown(Shutdown::Both);
        }
    }
}

/// Sends every member the addresses of its neighbours. Deaths in that time are
/// not reported; the neighbours find out.
fn complete(members: &[Member]) {
    for (rank, member) in members.iter().enumerate() {
        let next = &members[(rank + 1) % members.len()];
        let previous = &members[(rank + members.len() - 1) % members.len()];
        let answer =
            Answer::Complete { next: next.address, previous_incarnation: previous.incarnation };
        let _ = (&*member.stream).write_all(&answer.encode());
    }
}
