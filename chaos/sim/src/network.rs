//! The network: TCP connections between hosts whose links can be cut, slow, lossy, or
//! filtered by a firewall.
//!
//! A lost segment is sent again, later each time, as the kernel does; the reader sees a stream
//! that stalls. A killed process's kernel closes its connections. A host without power sends
//! nothing; once it is back, it answers segments of its former connections with a reset.

mod connection;
mod host;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use holdfast_net::simulated;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use self::host::HostNetwork;
use crate::host::HostId;
use crate::journal::Journal;

/// Bytes in flight in one direction of a connection.
const WINDOW_BYTES: usize = 256 * 1024;
/// Most connections of a port that wait to be accepted.
const BACKLOG_MAX: usize = 128;
/// First and longest pause before a segment is sent again, in milliseconds.
const RESEND_MS: u64 = 200;
const RESEND_MS_MAX: u64 = 20_000;
/// First pause before a connect knocks again.
const KNOCK_MS: u64 = 1_000;
/// Port of every node.
pub const PORT: u16 = 7000;

/// Address of a host.
pub fn address(host: HostId) -> SocketAddr {
    let HostId(number) = host;
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, number), PORT))
}

fn host_at(address: SocketAddr) -> io::Result<HostId> {
    match address {
        SocketAddr::V4(v4) if v4.ip().octets()[..3] == [10, 0, 0] => {
            Ok(HostId(v4.ip().octets()[3]))
        }
        _ => Err(ErrorKind::NetworkUnreachable.into()),
    }
}

/// One direction between two hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// No segment gets through.
    pub cut: bool,
    /// A firewall answers every connect with a refusal.
    pub rejects: bool,
    /// Of so many segments one is lost; 0 = none.
    pub loss_one_in: u32,
    /// Milliseconds in flight, at least and at most.
    pub delay_ms: (u64, u64),
    /// Bytes that get through in a millisecond.
    pub bytes_per_ms: u64,
}

impl Default for Link {
    fn default() -> Link {
        Link { cut: false, rejects: false, loss_one_in: 0, delay_ms: (1, 3), bytes_per_ms: 1 << 20 }
    }
}

type ConnectionId = u64;

/// The client's end, and the server's.
const CLIENT: usize = 0;
const SERVER: usize = 1;

#[derive(Debug)]
enum Segment {
    Bytes(Bytes),
    /// The end of the stream.
    End,
    Reset,
}

/// One end of a connection: what it sends, and what it has received.
#[derive(Debug)]
struct End {
    host: HostId,
    /// In flight to the other end: when each may arrive.
    sent: VecDeque<(u64, Segment)>,
    sent_bytes: usize,
    /// When the link has room for the next byte.
    free_at: u64,
    resend_ms: u64,
    /// Since when no segment was confirmed, and how long that may last.
    unconfirmed_since: Option<u64>,
    user_timeout: Option<u64>,
    /// An event will look at what was sent.
    is_due: bool,
    received: VecDeque<Bytes>,
    received_bytes: usize,
    ended: bool,
    reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    state: EndState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndState {
    Open,
    /// Its process let go of it; its kernel still sends what was written.
    Closed,
    /// Its host lost its power.
    Gone,
}

impl End {
    fn new(host: HostId) -> End {
        End {
            host,
            sent: VecDeque::new(),
            sent_bytes: 0,
            free_at: 0,
            resend_ms: RESEND_MS,
            unconfirmed_since: None,
            user_timeout: None,
            is_due: false,
            received: VecDeque::new(),
            received_bytes: 0,
            ended: false,
            reset: false,
            reader: None,
            writer: None,
            state: EndState::Open,
        }
    }

    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

struct Wire {
    ends: [End; 2],
    /// The result of the connect.
    opened: Option<Result<(), ErrorKind>>,
    connector: Option<Waker>,
}

struct Open {
    backlog: VecDeque<ConnectionId>,
    acceptor: Option<Waker>,
}

enum Event {
    /// A connect arrives, for the n-th time.
    Knock {
        id: ConnectionId,
        tries: u32,
    },
    Answer {
        id: ConnectionId,
        refused: bool,
        tries: u32,
    },
    /// Segments sent by an end may arrive.
    Segments {
        id: ConnectionId,
        from: usize,
    },
}

/// The simulated network between all hosts. Cheap to clone.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

struct State {
    now: u64,
    journal: Journal,
    random: SmallRng,
    links: BTreeMap<(HostId, HostId), Link>,
    /// Hosts that have lost their power.
    dark: BTreeSet<HostId>,
    ports: BTreeMap<HostId, Open>,
    wires: BTreeMap<ConnectionId, Wire>,
    next: ConnectionId,
    /// Hosts to which something has happened since their last turn.
    touched: BTreeSet<HostId>,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    events_next: u64,
}

impl Network {
    /// A network without faults.
    pub fn new(seed: u64, journal: Journal) -> Network {
        Network(Arc::new(Mutex::new(State {
            now: 0,
            journal,
            random: SmallRng::seed_from_u64(seed),
            links: BTreeMap::new(),
            dark: BTreeSet::new(),
            ports: BTreeMap::new(),
            wires: BTreeMap::new(),
            next: 1,
            touched: BTreeSet::new(),
            due: BinaryHeap::new(),
            events: BTreeMap::new(),
            events_next: 0,
        })))
    }

    /// The network as a host sees it.
    pub fn of(&self, host: HostId) -> Arc<dyn simulated::Network> {
        Arc::new(HostNetwork { host, network: self.clone() })
    }

    /// Changes one direction between two hosts.
    pub fn change(&self, from: HostId, to: HostId, change: impl FnOnce(&mut Link)) {
        change(self.0.lock().links.entry((from, to)).or_default());
    }

    /// All links are well again.
    pub fn heal(&self) {
        let mut state = self.0.lock();
        let state = &mut *state;
        state.links.clear();
        // Nor is what was sent over a slow link on the way for as long any more.
        let now = state.now;
        let mut sooner = Vec::new();
        for (id, wire) in &mut state.wires {
            for (from, end) in wire.ends.iter_mut().enumerate().filter(|(_, end)| end.free_at > now)
            {
                end.free_at = now;
                end.sent.iter_mut().for_each(|(at, _)| *at = (*at).min(now + 1));
                sooner.push(Event::Segments { id: *id, from });
            }
        }
        sooner.into_iter().for_each(|event| state.later(now + 1, event));
    }

    /// A host loses its power: its connections go without a word.
    pub fn power_off(&self, host: HostId) {
        let mut state = self.0.lock();
        state.dark.insert(host);
        for wire in state.wires.values_mut() {
            for end in wire.ends.iter_mut().filter(|end| end.host == host) {
                end.state = EndState::Gone;
                end.sent.clear();
                end.sent_bytes = 0;
            }
        }
    }

    /// A host has its power again.
    pub fn power_on(&self, host: HostId) {
        self.0.lock().dark.remove(&host);
    }

    /// Resets the connections between two hosts: each of them, or half as chance has it.
    pub fn reset(&self, one: HostId, other: HostId) {
        let mut state = self.0.lock();
        let pair = [one, other];
        let is_between = |wire: &Wire| {
            wire.opened == Some(Ok(()))
                && pair.contains(&wire.ends[CLIENT].host)
                && pair.contains(&wire.ends[SERVER].host)
        };
        let State { wires, journal, touched, random, .. } = &mut *state;
        let all = random.random_bool(0.5);
        for (id, wire) in wires.iter_mut().filter(|(_, wire)| is_between(wire)) {
            if !all && random.random_bool(0.5) {
                continue;
            }
            journal.note(format_args!("#{id} is reset"));
            for end in &mut wire.ends {
                end.reset = true;
                end.sent.clear();
                end.sent_bytes = 0;
                end.wake();
                touched.insert(end.host);
            }
        }
    }

    /// One end of a connection of this host forgets it: the other finds out when
    /// it sends.
    pub fn half_open(&self, host: HostId) {
        let mut state = self.0.lock();
        for wire in state.wires.values_mut() {
            for end in wire.ends.iter_mut().filter(|end| end.host == host) {
                end.state = EndState::Gone;
                end.reset = true;
                end.sent.clear();
                end.sent_bytes = 0;
                end.wake();
            }
        }
    }

    /// Hosts with network events since the last call.
    pub fn take_touched(&self) -> BTreeSet<HostId> {
        std::mem::take(&mut self.0.lock().touched)
    }

    /// Everything that arrives up to this millisecond arrives.
    pub fn advance(&self, now: u64) {
        let mut state = self.0.lock();
        state.now = now;
        while let Some(Reverse((at, event))) = state.due.peek().copied() {
            if at > now {
                break;
            }
            state.due.pop();
            if let Some(event) = state.events.remove(&event) {
                state.happen(event);
            }
        }
    }
}

impl State {
    fn link(&self, from: HostId, to: HostId) -> Link {
        self.links.get(&(from, to)).cloned().unwrap_or_default()
    }

    fn delay(&mut self, link: &Link) -> u64 {
        let (least, most) = link.delay_ms;
        self.random.random_range(least..=most.max(least))
    }

    fn is_lost(&mut self, link: &Link) -> bool {
        link.cut || link.loss_one_in > 0 && self.random.random_range(0..link.loss_one_in) == 0
    }

    fn later(&mut self, at: u64, event: Event) {
        let id = self.events_next;
        self.events_next += 1;
        self.events.insert(id, event);
        self.due.push(Reverse((at, id)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Knock { id, tries } => self.knock(id, tries),
            Event::Answer { id, refused, tries } => self.answer(id, refused, tries),
            Event::Segments { id, from } => self.segments(id, from),
        }
    }

    fn knock(&mut self, id: ConnectionId, tries: u32) {
        let Some(wire) = self.wires.get(&id) else { return };
        if wire.ends[CLIENT].state != EndState::Open {
            self.wires.remove(&id);
            return;
        }
        let (client, server) = (wire.ends[CLIENT].host, wire.ends[SERVER].host);
        let link = self.link(client, server);
        let full = self.ports.get(&server).is_some_and(|port| port.backlog.len() >= BACKLOG_MAX);
        if !link.rejects && (self.is_lost(&link) || self.dark.contains(&server) || full) {
            self.journal.note(format_args!("{client}>{server} #{id} knocks in vain"));
            let again = self.now + (KNOCK_MS << tries.min(4));
            return self.later(again, Event::Knock { id, tries: tries + 1 });
        }
        let refused = link.rejects || !self.ports.contains_key(&server);
        if !refused && let Some(port) = self.ports.get_mut(&server) {
            port.backlog.push_back(id);
            self.touched.insert(server);
            port.acceptor.take().into_iter().for_each(Waker::wake);
        }
        self.journal.note(format_args!(
            "{client}>{server} #{id} {}",
            if refused { "is refused" } else { "connects" }
        ));
        let back = self.link(server, client);
        let delay = self.delay(&back);
        self.later(self.now + delay, Event::Answer { id, refused, tries: 0 });
    }

    fn answer(&mut self, id: ConnectionId, refused: bool, tries: u32) {
        let Some(wire) = self.wires.get(&id) else { return };
        let (client, server) = (wire.ends[CLIENT].host, wire.ends[SERVER].host);
        let link = self.link(server, client);
        let rejects = self.link(client, server).rejects;
        if !rejects && (self.is_lost(&link) || self.dark.contains(&client)) {
            let again = self.now + (KNOCK_MS << tries.min(4));
            return self.later(again, Event::Answer { id, refused, tries: tries + 1 });
        }
        let wire = self.wires.get_mut(&id).expect("it was just looked at");
        let refusal = refused.then_some(ErrorKind::ConnectionRefused);
        wire.opened = Some(refusal.map_or(Ok(()), Err));
        self.touched.insert(client);
        wire.connector.take().into_iter().for_each(Waker::wake);
    }

    fn push(&mut self, id: ConnectionId, from: usize, segment: Segment) {
        let Some(wire) = self.wires.get(&id) else { return };
        let link = self.link(wire.ends[from].host, wire.ends[1 - from].host);
        let delay = self.delay(&link);
        let now = self.now;
        let end = &mut self.wires.get_mut(&id).expect("it was just looked at").ends[from];
        let bytes = match &segment {
            Segment::Bytes(bytes) => bytes.len(),
            Segment::End | Segment::Reset => 0,
        };
        // A slow link takes a moment for each; what was sent before goes first.
        end.free_at = end.free_at.max(now) + bytes as u64 / link.bytes_per_ms.max(1);
        let before = end.sent.back().map_or(0, |(at, _)| *at);
        let at = (end.free_at + delay).max(before);
        end.sent_bytes += bytes;
        end.sent.push_back((at, segment));
        if !std::mem::replace(&mut end.is_due, true) {
            self.later(at, Event::Segments { id, from });
        }
    }

    /// Delivers an end's segments to the other end, or sends them again later.
    fn segments(&mut self, id: ConnectionId, from: usize) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        // They were looked at sooner.
        if wire.ends[from].sent.front().is_some_and(|(at, _)| *at > self.now) {
            return;
        }
        wire.ends[from].is_due = false;
        let (sender, receiver) = (wire.ends[from].host, wire.ends[1 - from].host);
        if wire.ends[from].sent.is_empty() {
            return self.forget(id);
        }
        let link = self.link(sender, receiver);
        let now = self.now;
        let dark = self.dark.contains(&sender) || self.dark.contains(&receiver);
        if dark || self.is_lost(&link) {
            let end = &mut self.wires.get_mut(&id).expect("it was just looked at").ends[from];
            let since = *end.unconfirmed_since.get_or_insert(now);
            if end.user_timeout.is_some_and(|most| now >= since + most) {
                end.reset = true;
                end.sent.clear();
                end.sent_bytes = 0;
                end.wake();
                self.touched.insert(sender);
                self.journal.note(format_args!("{sender}>{receiver} #{id} gives up"));
                return;
            }
            let pause = end.resend_ms;
            end.resend_ms = (pause * 2).min(RESEND_MS_MAX);
            end.is_due = true;
            self.journal.note(format_args!("{sender}>{receiver} #{id} sent in vain"));
            return self.later(self.now + pause, Event::Segments { id, from });
        }
        let wire = self.wires.get_mut(&id).expect("it was just looked at");
        let [client, server] = &mut wire.ends;
        let (end, other) = if from == CLIENT { (client, server) } else { (server, client) };
        (end.resend_ms, end.unconfirmed_since) = (RESEND_MS, None);
        let mut arrived = 0;
        let mut unknown = false;
        while end.sent.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, segment)) = end.sent.pop_front() else { break };
            match segment {
                Segment::Bytes(bytes) if other.state == EndState::Open => {
                    arrived += bytes.len();
                    other.received_bytes += bytes.len();
                    other.received.push_back(bytes);
                }
                Segment::Bytes(bytes) => {
                    end.sent_bytes -= bytes.len();
                    unknown = true;
                }
                Segment::End => {
                    other.ended = true;
                    unknown |= other.state == EndState::Gone;
                }
                Segment::Reset => other.reset = true,
            }
        }
        self.journal.note(format_args!("{sender}>{receiver} #{id} {arrived}"));
        self.touched.insert(receiver);
        other.reader.take().into_iter().for_each(Waker::wake);
        if other.reset {
            other.wake();
        }
        let next = end.sent.front().map(|(at, _)| *at);
        end.is_due = next.is_some();
        if let Some(at) = next {
            self.later(at, Event::Segments { id, from });
        }
        if unknown {
            // Its kernel knows of no such connection.
            self.push(id, 1 - from, Segment::Reset);
        }
        self.forget(id);
    }

    /// Drops a connection that no end holds and that has nothing in flight.
    fn forget(&mut self, id: ConnectionId) {
        let over = |wire: &Wire| {
            wire.ends.iter().all(|end| end.state != EndState::Open && end.sent.is_empty())
        };
        if self.wires.get(&id).is_some_and(over) {
            self.wires.remove(&id);
        }
    }

    /// An end's process let go of it.
    fn close(&mut self, id: ConnectionId, side: usize) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let end = &mut wire.ends[side];
        if end.state != EndState::Open {
            return self.forget(id);
        }
        end.state = EndState::Closed;
        let unread = !end.received.is_empty();
        end.received.clear();
        if end.reset {
            end.sent.clear();
            end.sent_bytes = 0;
            return self.forget(id);
        }
        self.push(id, side, if unread { Segment::Reset } else { Segment::End });
    }
}
