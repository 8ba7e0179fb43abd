//! What one connection wrote, all others see.
//!
//! A SET has no answer: PyTorch's `set()` returns once its bytes are in a socket.
//! Its program may notify another rank by other means (a collective), and that
//! rank asks over a connection of its own: it must find the value, although the
//! first socket may not have been read yet, and the store has not committed what
//! was read. So an operation starts only when
//!
//! 1. the bytes that any socket had when the operation came have been read and
//!    taken in (only for operations whose client waits for a reply: of two SETs
//!    under way the order is open), and
//! 2. every write without a reply to one of its keys that was read before it is
//!    committed.
//!
//! Waits form no cycle. A write that counts in 2 is queued only after operations without a reply:
//! a client that waits for a reply has not returned from its call, so that nothing it sends until
//! then counts. And each such operation waits only for writes that were read before it.
//!
//! One client cannot hold up the others for long. A look at the sockets ends after
//! [`LOOK_TIME_MAX`], and the connection that it waited for holds up no other look until it has
//! caught up. A write that counts is committed without its client, and an operation that waits for
//! it keeps its own deadline.
//!
//! The kernel names the sockets that have bytes, in one call for all operations
//! that came in the same time. Where several did the last time, each gives the others
//! a turn before it looks: by then most of what there is to wait for has been read.

mod writes;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_api::{Blob, Command, KvOp, Part, Read};
use parking_lot::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::ioctl_fionread;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use self::writes::{Write, Writes};
use super::codec::Message;
use super::connection::Connection;
use super::mapping::Call;
use crate::keeper::recorder::{Recorder, Taken};
use crate::roster::Origin;

/// Sockets that the kernel names at once.
const NAMED_AT_ONCE: usize = 1024;

/// How long an operation waits for what other sockets had when it came. Taking that
/// in asks nothing of the store, and takes milliseconds unless a client sends more
/// than may be queued; then the operation goes on without the rest.
const LOOK_TIME_MAX: Duration = Duration::from_secs(2);

/// Keys whose writes are looked up under one lock: what is longer lets others in
/// between.
const KEYS_AT_ONCE: usize = 1024;

/// Memory of an open write for each of its keys, beside its message.
const WRITE_OVERHEAD_BYTES: usize = 256;

/// All connections of a door, and their writes without replies.
#[derive(Debug)]
pub struct Visibility {
    /// None where the kernel gives none: then only 2 holds.
    unread: Option<OwnedFd>,
    /// How many operations have asked for a look.
    asked: AtomicU64,
    /// The last of them that is served.
    served: AtomicU64,
    /// Held by the one look in progress.
    looking: tokio::sync::Mutex<()>,
    /// Whether the last look was for several of them.
    is_shared: AtomicBool,
    /// Connections that have read bytes which are not taken in.
    behind: Mutex<HashSet<u64>>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last_connection: u64,
    connections: HashMap<u64, Known>,
    writes: Writes,
}

/// A connection, as the others know it.
#[derive(Debug, Clone)]
struct Known {
    socket: Arc<Socket>,
    /// The last of its writes that counts.
    written: u64,
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    /// How many bytes of its socket have been taken in, but for a message that is
    /// not complete.
    taken_in: u64,
    /// Whether what it sends now counts.
    counts: bool,
    /// How many of its writes without a reply are committed.
    committed: u64,
}

impl Progress {
    /// A connection that is gone commits nothing more, and has nothing to be seen.
    const GONE: Progress = Progress { taken_in: u64::MAX, counts: false, committed: u64::MAX };

    /// Whether this many bytes have been taken in.
    fn has_taken_in(&self, bytes: u64) -> bool {
        self.taken_in >= bytes || !self.counts
    }
}

/// A connection's socket, as looks see it.
#[derive(Debug)]
struct Socket {
    /// The connection's: a look does not keep it open.
    stream: Weak<TcpStream>,
    /// How many bytes have been read from it. Held while it is read, so that a look
    /// finds each byte either here or in the kernel.
    read: Mutex<u64>,
    progress: Mutex<Progress>,
    /// Notified when that changes.
    changed: Notify,
    /// Looks wait until this many bytes are taken in.
    wanted: AtomicU64,
    /// Notified when that grows.
    hurry: Notify,
    /// A look has given it up, and it has not caught up since.
    is_late: AtomicBool,
    is_warned_of: AtomicBool,
    origin: Origin,
}

impl Socket {
    /// How many bytes have come so far.
    fn received(&self) -> u64 {
        let read = self.read.lock();
        // A socket whose count cannot be read is broken, and gives no more bytes.
        let unread = self.stream.upgrade().and_then(|stream| ioctl_fionread(&*stream).ok());
        *read + unread.unwrap_or(0)
    }

    fn is_late(&self) -> bool {
        self.is_late.load(Ordering::SeqCst)
    }

    fn progress(&self) -> Progress {
        *self.progress.lock()
    }

    fn go_on(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.lock();
        let before = *progress;
        change(&mut progress);
        let is_changed = *progress != before;
        drop(progress);
        if is_changed {
            self.changed.notify_waiters();
        }
    }

    /// Returns when its connection is so far, or gone.
    async fn is_at(&self, is_so_far: impl Fn(Progress) -> bool) {
        loop {
            // It hears of what changes from here on.
            let changed = self.changed.notified();
            if is_so_far(self.progress()) {
                return;
            }
            changed.await;
        }
    }

    /// No look waits for it until it has caught up.
    fn give_up(&self) {
        self.is_late.store(true, Ordering::SeqCst);
        if !self.is_warned_of.swap(true, Ordering::Relaxed) {
            warn!(
                client = %self.origin,
                waited = ?LOOK_TIME_MAX,
                "a client sends faster than the store commits: others may see its last set() late; let it call check() now and then"
            );
        }
    }
}

impl Visibility {
    /// Starts without connections. Without epoll it works, and a set() that returned may be seen
    /// late.
    pub fn new() -> Arc<Visibility> {
        let unread = epoll::create(CreateFlags::CLOEXEC);
        if let Err(error) = &unread {
            warn!(%error, "sockets cannot be looked at together: a set() that returned may be seen late");
        }
        Arc::new(Visibility {
            unread: unread.ok(),
            asked: AtomicU64::new(0),
            served: AtomicU64::new(0),
            looking: tokio::sync::Mutex::default(),
            is_shared: AtomicBool::new(false),
            behind: Mutex::default(),
            table: Mutex::default(),
        })
    }

    /// A connection comes. It counts from here on: what its client has sent may be read later
    /// than what another sends.
    pub fn enter(self: &Arc<Self>, stream: &Arc<TcpStream>, origin: Origin) -> Sender {
        let socket = Arc::new(Socket {
            stream: Arc::downgrade(stream),
            read: Mutex::default(),
            progress: Mutex::new(Progress { counts: true, ..Progress::default() }),
            changed: Notify::new(),
            wanted: AtomicU64::new(0),
            hurry: Notify::new(),
            is_late: AtomicBool::new(false),
            is_warned_of: AtomicBool::new(false),
            origin,
        });
        let mut table = self.table.lock();
        table.last_connection += 1;
        let id = table.last_connection;
        table.connections.insert(id, Known { socket: Arc::clone(&socket), written: 0 });
        drop(table);
        if let Some(unread) = &self.unread {
            // Without room for it in the kernel its writes are seen once they are read.
            let _ = epoll::add(unread, &**stream, EventData::new_u64(id), EventFlags::IN);
        }
        let visibility = Arc::clone(self);
        Sender {
            visibility,
            id,
            socket,
            read: 0,
            taken_in: 0,
            is_behind: false,
            open: VecDeque::new(),
            open_keys: 0,
        }
    }

    /// Returns when the bytes that any socket had have been taken in, or when that
    /// has taken too long.
    async fn look(&self) {
        let Some(unread) = &self.unread else { return };
        let mine = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        if self.is_shared.load(Ordering::Relaxed) {
            yield_now().await;
        }
        if self.served.load(Ordering::SeqCst) >= mine {
            return;
        }
        let _looking = self.looking.lock().await;
        let served = self.served.load(Ordering::SeqCst);
        if served >= mine {
            return;
        }
        let all = self.asked.load(Ordering::SeqCst);
        let mut ids = with_bytes(unread);
        // Afterwards: what was read before that is there, or is taken in.
        ids.extend(self.behind.lock().iter());
        let mut waited_for: Vec<Unread> =
            self.known(ids).into_iter().filter_map(unread_of).collect();
        // In two parts: when this process was frozen, the first is over at once.
        for _ in 0..2 {
            let until = Instant::now() + LOOK_TIME_MAX / 2;
            let mut left = Vec::new();
            for unread in waited_for {
                if timeout_at(until, unread.taken_in()).await.is_err() {
                    left.push(unread);
                }
            }
            waited_for = left;
        }
        waited_for.iter().for_each(|unread| unread.socket.give_up());
        self.is_shared.store(all - served > 1, Ordering::Relaxed);
        self.served.store(all, Ordering::SeqCst);
    }

    fn known(&self, ids: HashSet<u64>) -> Vec<Known> {
        if ids.is_empty() {
            return Vec::new();
        }
        let table = self.table.lock();
        ids.iter().filter_map(|id| table.connections.get(id)).cloned().collect()
    }

    /// Returns when a write of another connection is committed, or never will be.
    async fn committed(&self, write: Write) {
        let known = self.table.lock().connections.get(&write.connection).cloned();
        if let Some(Known { socket, .. }) = known {
            socket.is_at(|progress| progress.committed >= write.nth).await;
        }
    }

    /// Returns when the writes of other connections to these keys that are below a
    /// number are committed.
    async fn all_committed(&self, keys: &[&Blob], number: u64, own: u64) {
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let last = || {
                let table = self.table.lock();
                keys.iter().find_map(|key| table.writes.last_before(key, number, own))
            };
            // It has waited for those before it, unless it was given up.
            while let Some(write) = last() {
                self.committed(write).await;
            }
        }
    }

    /// The last write of each other connection that has open ones.
    fn written(&self, own: u64) -> Vec<Write> {
        let table = self.table.lock();
        let is_open = |known: &Known| known.socket.progress().committed < known.written;
        let others = table.connections.iter().filter(|(id, known)| **id != own && is_open(known));
        others.map(|(id, known)| Write { connection: *id, nth: known.written }).collect()
    }
}

struct Unread {
    socket: Arc<Socket>,
    received: u64,
}

impl Unread {
    async fn taken_in(&self) {
        self.socket.is_at(|progress| progress.has_taken_in(self.received)).await;
    }
}

/// Received bytes of a connection that count and are not taken in. Its task is
/// notified to hurry.
fn unread_of(Known { socket, .. }: Known) -> Option<Unread> {
    if socket.is_late() || !socket.progress().counts {
        return None;
    }
    let received = socket.received();
    if socket.progress().has_taken_in(received) {
        return None;
    }
    socket.wanted.fetch_max(received, Ordering::SeqCst);
    socket.hurry.notify_one();
    Some(Unread { socket, received })
}

/// The connections whose sockets have bytes now, or an end.
fn with_bytes(unread: &OwnedFd) -> HashSet<u64> {
    let mut found = HashSet::new();
    let mut events = [const { MaybeUninit::<Event>::uninit() }; NAMED_AT_ONCE];
    loop {
        let waited = epoll::wait(unread, &mut events[..], Some(&Timespec::default()));
        let Ok((named, _)) = waited else { return found };
        let before = found.len();
        found.extend(named.iter().map(|event| event.data.u64()));
        // A repeated name means that all were named.
        if named.len() < NAMED_AT_ONCE || found.len() == before {
            return found;
        }
    }
}

enum Touched<'c> {
    Keys(Vec<&'c Blob>),
    All,
}

fn touched(call: &Call) -> Touched<'_> {
    let keys = match call {
        Call::Propose(Command::Kv { op: KvOp::Transaction { .. }, .. }) => return Touched::All,
        Call::Propose(Command::Kv { op, .. }) => {
            let mut keys = Vec::new();
            let Ok(()) = op.each_part(|part| {
                if let Part::Key(key) | Part::WrittenKey(key) = part {
                    keys.push(key);
                }
                Ok::<(), Infallible>(())
            });
            keys
        }
        Call::Read(Read::Get { key, .. } | Read::QueueLength { key, .. }) => vec![key],
        Call::Read(Read::Check { keys, .. } | Read::MultiGet { keys, .. }) => keys.iter().collect(),
        Call::Propose(_) | Call::Read(_) => return Touched::All,
    };
    Touched::Keys(keys)
}

/// A connection, as the others see it. Dropping it ends that.
#[derive(Debug)]
pub struct Sender {
    visibility: Arc<Visibility>,
    id: u64,
    socket: Arc<Socket>,
    /// How many bytes it has read.
    read: u64,
    /// How many of them are taken in.
    taken_in: u64,
    /// Whether it is among those that lag.
    is_behind: bool,
    /// Its writes that are not committed: each with its number in the table.
    open: VecDeque<Open>,
    /// How many keys they have together.
    open_keys: usize,
}

#[derive(Debug)]
struct Open {
    nth: u64,
    number: u64,
    keys: Vec<Blob>,
}

impl Sender {
    /// Reads its socket into `chunk`, and answers what came; from then on it lags.
    pub fn read(
        &mut self,
        stream: &TcpStream,
        chunk: &mut [u8],
        recorder: &mut Recorder,
    ) -> io::Result<Taken> {
        if !self.is_behind {
            self.is_behind = true;
            self.visibility.behind.lock().insert(self.id);
        }
        let mut read = self.socket.read.lock();
        if recorder.is_behind() {
            *read += recorder.commit_read(stream)? as u64;
        }
        let taken = recorder.read(stream, chunk)?;
        if !recorder.is_on() {
            *read += taken.count as u64;
        }
        self.read = *read;
        Ok(taken)
    }

    /// Records what happened, and consumes what was read.
    pub fn commit(&mut self, stream: &TcpStream, recorder: &mut Recorder) -> io::Result<()> {
        if !recorder.is_behind() {
            return recorder.commit(stream).map(drop);
        }
        let mut read = self.socket.read.lock();
        *read += recorder.commit(stream)? as u64;
        self.read = *read;
        Ok(())
    }

    /// `all`: everything that it has read is taken in, but for a message that is not
    /// complete. `dry`: there was no more. `counts`: its client waits for no reply,
    /// and what comes will be read.
    pub fn took_in(&mut self, all: bool, dry: bool, counts: bool) {
        if all && self.is_behind {
            self.is_behind = false;
            self.visibility.behind.lock().remove(&self.id);
        }
        if all && dry && self.socket.is_late() {
            self.socket.is_late.store(false, Ordering::SeqCst);
        }
        if all {
            self.taken_in = self.read;
        }
        self.socket.go_on(|progress| {
            progress.taken_in = self.taken_in;
            progress.counts = counts;
        });
    }

    /// Whether a look waits for bytes that it has not taken in.
    pub fn is_wanted(&self) -> bool {
        self.socket.wanted.load(Ordering::SeqCst) > self.taken_in && !self.socket.is_late()
    }

    /// Returns when a look begins to wait for it.
    pub async fn wanted(&self) {
        self.socket.hurry.notified().await;
    }

    /// Its connection takes in a message. A write that counts is noted, and starts
    /// apart from those before it if it has to wait for another connection's: answers
    /// whether it does.
    pub fn receive(&mut self, connection: &mut Connection, message: Message) -> bool {
        let written = match connection.counts() {
            true => connection.written_in_silence(&message),
            false => Vec::new(),
        };
        connection.receive(message);
        let apart = !written.is_empty() && self.wrote(connection.silent_received(), written);
        connection.keep_apart(apart);
        apart
    }

    /// Its `nth` write without a reply was read, to these keys of the store. Whether it is queued
    /// after another connection's.
    fn wrote(&mut self, nth: u64, keys: Vec<Blob>) -> bool {
        let mut table = self.visibility.table.lock();
        let write = Write { connection: self.id, nth };
        let (number, is_behind_another) = table.writes.add(write, &keys);
        if let Some(known) = table.connections.get_mut(&self.id) {
            known.written = nth;
        }
        drop(table);
        self.open_keys += keys.len();
        self.open.push_back(Open { nth, number, keys });
        is_behind_another
    }

    /// So many of its writes without a reply are committed.
    pub fn committed(&mut self, count: u64) {
        if self.open.front().is_none_or(|open| open.nth > count) {
            return;
        }
        let mut table = self.visibility.table.lock();
        while let Some(open) = self.open.front().filter(|open| open.nth <= count) {
            table.writes.remove(open.number, &open.keys);
            self.open_keys -= open.keys.len();
            self.open.pop_front();
        }
        drop(table);
        self.socket.go_on(|progress| progress.committed = count);
    }

    /// Writes to wait for before a call of this connection starts. `replied`: its client waits for
    /// a reply.
    pub fn before(&self, replied: bool) -> Before {
        let number = self.open.front().map(|open| open.number);
        Before { visibility: Arc::clone(&self.visibility), own: self.id, replied, number }
    }

    /// Bytes that its open writes hold.
    pub fn held_bytes(&self) -> usize {
        self.open_keys * WRITE_OVERHEAD_BYTES
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.is_behind {
            self.visibility.behind.lock().remove(&self.id);
        }
        let mut table = self.visibility.table.lock();
        table.connections.remove(&self.id);
        for open in &self.open {
            table.writes.remove(open.number, &open.keys);
        }
        drop(table);
        self.socket.go_on(|progress| *progress = Progress::GONE);
    }
}

/// Writes to wait for before a call starts.
#[derive(Debug)]
pub struct Before {
    visibility: Arc<Visibility>,
    own: u64,
    replied: bool,
    /// The number of its own write, or of the next one after it; `None` if none
    /// counts.
    number: Option<u64>,
}

impl Before {
    /// Returns when it is over.
    pub async fn passed(self, call: &Call) {
        let Before { visibility, own, replied, number } = self;
        if holdfast_api::planted!(UnseenSet) {
            return;
        }
        if replied {
            visibility.look().await;
        }
        let number = {
            let table = visibility.table.lock();
            if table.writes.is_empty() {
                return;
            }
            if replied { table.writes.next_number() } else { number.unwrap_or(0) }
        };
        match touched(call) {
            Touched::Keys(keys) => visibility.all_committed(&keys, number, own).await,
            Touched::All if replied => {
                for write in visibility.written(own) {
                    visibility.committed(write).await;
                }
            }
            // No write without a reply touches all.
            Touched::All => {}
        }
    }
}
