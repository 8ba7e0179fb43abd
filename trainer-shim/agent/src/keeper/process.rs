//! The keeper: the agent's parent. It accepts connections, holds them, and restarts the agent when
//! that has ended by a signal. It does not know the bytes on the connections.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, accept_with, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use super::journal::memory;
use super::link::About;
use super::pace::Pace;
use super::wire::{self, ToAgent, ToKeeper};

/// Messages that wait for an agent; at this number no connection is accepted.
const WAITING_MAX: usize = 64;
/// Pause when no connection can be accepted: when descriptors run out, one must close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often one signal is passed on: the third SIGTERM is the last that says something new.
const SAME_SIGNAL_MAX: usize = 3;
/// Agents that end in a defect before they have taken up what was kept. Then it is given up:
/// something in it ends them.
const DEATHS_MAX: u32 = 5;
/// The same for agents that are killed: by somebody, or where memory has run out for a while.
const KILLS_MAX: u32 = 60;
/// For how long an agent is tried again that ends because it cannot use its settings: shorter than
/// `run` waits for an answer of the agent.
const UNFIT_TIME_MAX: Duration = Duration::from_secs(60);
/// Pause before an agent that could not be started is tried again.
const START_PAUSE: Duration = Duration::from_millis(100);
/// The exit code of a program that ended in a defect.
const PANICKED: i32 = 101;
/// The exit code of an agent that cannot use its settings, as the files that they name: EX_CONFIG
/// of sysexits.h. One that takes over ends with it before it has taken up anything.
pub const UNUSABLE_SETTINGS: u8 = 78;

/// Events of the keeper, for a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// An agent has ended, and is started again after this time.
    Again {
        /// Process id of the agent that has ended.
        pid: u32,
        /// How that agent ended: its exit code, or a signal.
        status: ExitStatus,
        /// Pause before the next agent.
        pause: Duration,
    },
    /// An agent cannot be started, and is tried again after this time.
    NotStarted {
        /// Error of the start.
        reason: String,
        /// Pause before the next try.
        pause: Duration,
    },
    /// All kept connections are given up.
    GivenUp {
        /// How many connections are closed.
        connections: usize,
    },
    /// The keeper ends by this signal: no agent comes up that could obey it.
    Ends {
        /// Number of the signal that ends it.
        signal: i32,
        /// How many connections it has.
        connections: usize,
    },
    /// The agent is replaced.
    Replaced,
    /// The agent is not replaced, for this reason.
    NotReplaced(String),
    /// A message of the agent is ignored, for this reason: a newer agent may have others.
    NotUnderstood(String),
}

/// How agents are started.
pub trait Start {
    /// The command; `anew`: of the program that is there now.
    fn command(&mut self, anew: bool) -> Command;
    /// Whether the program that is there now runs at all.
    fn check(&mut self) -> Result<(), String>;
    /// Whether this signal ends a keeper whose next agent does not come up; `is_up`: it came while
    /// an agent was up, which obeys it.
    fn is_ended_by(&self, signal: i32, is_up: bool) -> bool;
    /// Writes an event of the keeper where people read it.
    fn say(&mut self, said: Said);
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    about: String,
    accepts: bool,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    memory: OwnedFd,
    listener: u64,
}

/// Parent of the agent; see the module.
pub struct Keeper<S> {
    start: S,
    signals: SignalDelivery<UnixStream, WithOrigin>,
    state: OwnedFd,
    session: OwnedFd,
    listeners: BTreeMap<u64, Listener>,
    connections: BTreeMap<u64, Connection>,
    /// Beyond it none is accepted: there are no descriptors for more.
    connections_max: usize,
    /// The last id of a connection.
    last: u64,
    pace: Pace,
    lost: Lost,
    /// Agents are of the program that is there now, not of the keeper's own.
    is_new: bool,
    /// One of that program has taken up what was kept.
    is_proven: bool,
    /// Since when agents have ended because they are unfit.
    unfit_since: Option<Instant>,
    paused_until: Option<Instant>,
    /// All signals so far: the next agent goes on with what they asked for, as to drain.
    passed_on: Vec<Waiting>,
    /// A signal that ends the keeper if no agent comes up.
    ending: Option<i32>,
    /// No agent could be started, or those that were came to nothing.
    is_stuck: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Waiting {
    Hello { again: bool },
    Listener(u64),
    Connection(u64),
    Ready,
    Signal { number: i32, from_terminal: bool },
}

struct Agent {
    child: Child,
    watch: OwnedFd,
    /// `None` once the agent has closed its end.
    socket: Option<OwnedFd>,
    waiting: VecDeque<Waiting>,
    is_ready: bool,
    is_up: bool,
    is_replaced: bool,
}

impl<S: Start> Keeper<S> {
    /// A keeper that passes on these signals, holds so many connections at a time, and keeps this
    /// control socket from the beginning.
    pub fn new(
        start: S,
        signals: &[i32],
        connections_max: usize,
        control: Option<OwnedFd>,
    ) -> io::Result<Keeper<S>> {
        let (read, write) = UnixStream::pair()?;
        let signals = SignalDelivery::with_pipe(read, write, WithOrigin::default(), signals)?;
        let mut listeners = BTreeMap::new();
        if let Some(socket) = control {
            let about = serde_json::to_string(&About::Control)?;
            listeners.insert(0, Listener { socket, about, accepts: false });
        }
        Ok(Keeper {
            start,
            signals,
            state: memory("holdfast-state")?,
            session: memory("holdfast-session")?,
            listeners,
            connections: BTreeMap::new(),
            connections_max,
            last: 0,
            pace: Pace::default(),
            lost: Lost::default(),
            is_new: false,
            is_proven: false,
            unfit_since: None,
            paused_until: None,
            passed_on: Vec::new(),
            ending: None,
            is_stuck: false,
        })
    }

    /// Keeps until an agent ends by itself, or a signal ends the keeper; answers how.
    pub fn run(mut self) -> io::Result<ExitStatus> {
        let mut again = false;
        loop {
            if let Some(signal) = self.ending.filter(|_| self.is_stuck) {
                self.start.say(Said::Ends { signal, connections: self.connections.len() });
                return Ok(ExitStatus::from_raw(signal));
            }
            let mut agent = match self.begin(again) {
                Ok(agent) => agent,
                // As after what ended the one before: memory that has run out.
                Err(error) if again => {
                    self.try_again_later(error.to_string())?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let status = self.attend(&mut agent)?;
            if again && !agent.is_up && !agent.is_replaced && self.is_unfit(status) {
                let since = *self.unfit_since.get_or_insert_with(Instant::now);
                if since.elapsed() < UNFIT_TIME_MAX {
                    self.try_again_later(format!("it ended {}", in_words(status)))?;
                    continue;
                }
            }
            let ended = status.code().is_some_and(|code| code != PANICKED);
            if ended && !agent.is_replaced {
                return Ok(status);
            }
            if self.lost.is_too_much(status, agent.is_up) {
                self.give_up()?;
            }
            if !agent.is_replaced {
                let pause = self.pace.pause(Instant::now());
                self.start.say(Said::Again { pid: agent.child.id(), status, pause });
                self.pause(pause)?;
            }
            again = true;
        }
    }

    /// Whether an agent that took up nothing ended because it cannot run as it was started. Of a
    /// program that is new here any end means that, except by somebody's SIGKILL.
    fn is_unfit(&self, status: ExitStatus) -> bool {
        let is_untried = self.is_new && !self.is_proven;
        match (status.code(), status.signal()) {
            (Some(code), _) if code == i32::from(UNUSABLE_SETTINGS) => true,
            (Some(code), _) => is_untried && code != 0,
            (None, signal) => is_untried && signal != Some(Signal::SIGKILL as i32),
        }
    }

    /// Waits before the next try, which is made with the keeper's own program if the new one has
    /// never come up.
    fn try_again_later(&mut self, reason: String) -> io::Result<()> {
        let pause = self.pace.pause(Instant::now()).max(START_PAUSE);
        self.start.say(Said::NotStarted { reason, pause });
        self.is_new &= self.is_proven;
        self.is_stuck = true;
        self.pause(pause)
    }

    /// Closes what ends each agent that takes it up. The state stays: it names the run.
    fn give_up(&mut self) -> io::Result<()> {
        self.start.say(Said::GivenUp { connections: self.connections.len() });
        self.connections.clear();
        self.session = memory("holdfast-session")?;
        self.lost = Lost::default();
        self.is_stuck = true;
        Ok(())
    }

    /// Waits without an agent, for this time or until a signal ends the keeper.
    fn pause(&mut self, most: Duration) -> io::Result<()> {
        let until = Instant::now() + most;
        loop {
            self.take_signals(false);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || (self.is_stuck && self.ending.is_some()) {
                return Ok(());
            }
            let mut signals = [PollFd::new(self.signals.get_read(), PollFlags::IN)];
            match poll(&mut signals, Some(&Timespec::try_from(left).unwrap_or_default())) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes the signals that have come; answers those that an agent has to hear.
    fn take_signals(&mut self, is_up: bool) -> Vec<Waiting> {
        let mut new = Vec::new();
        for origin in self.signals.pending() {
            let from_terminal = origin.cause == Cause::Kernel;
            let signal = Waiting::Signal { number: origin.signal, from_terminal };
            if self.start.is_ended_by(origin.signal, is_up) {
                self.ending = Some(origin.signal);
            }
            let same = self.passed_on.iter().filter(|passed_on| **passed_on == signal);
            if same.count() < SAME_SIGNAL_MAX {
                self.passed_on.push(signal.clone());
                new.push(signal);
            }
        }
        new
    }

    fn begin(&mut self, again: bool) -> io::Result<Agent> {
        let flags = SocketFlags::CLOEXEC;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&own, true)?;
        let mut command = self.start.command(self.is_new);
        let mut child = command.stdin(Stdio::from(other)).spawn()?;
        drop(command);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let watch = match pidfd_open(pid.unwrap_or(Pid::INIT), PidfdFlags::empty()) {
            Ok(watch) => watch,
            Err(error) => {
                // There are never two of them.
                child.kill()?;
                child.wait()?;
                return Err(error.into());
            }
        };
        let mut waiting: VecDeque<Waiting> = [Waiting::Hello { again }].into();
        waiting.extend(self.listeners.keys().map(|id| Waiting::Listener(*id)));
        waiting.extend(self.connections.keys().map(|id| Waiting::Connection(*id)));
        waiting.push_back(Waiting::Ready);
        waiting.extend(self.passed_on.iter().cloned());
        let socket = Some(own);
        let (is_ready, is_up, is_replaced) = (false, false, false);
        Ok(Agent { child, watch, socket, waiting, is_ready, is_up, is_replaced })
    }

    /// Serves an agent until it has ended, and was waited for.
    fn attend(&mut self, agent: &mut Agent) -> io::Result<ExitStatus> {
        loop {
            let ready = self.wait(agent)?;
            if ready.signals {
                let signals = self.take_signals(agent.is_up);
                agent.waiting.extend(signals);
            }
            if ready.agent {
                self.hear(agent);
            }
            for id in ready.listeners {
                self.accept(agent, id);
            }
            self.send(agent);
            if ready.ended {
                // Its last messages are read: it may have closed something.
                self.hear(agent);
                return agent.child.wait();
            }
        }
    }

    fn wait(&mut self, agent: &Agent) -> io::Result<Ready> {
        let now = Instant::now();
        let pause = self.paused_until.and_then(|until| until.checked_duration_since(now));
        let can_take = agent.is_ready && agent.waiting.len() < WAITING_MAX;
        let accepts = can_take && self.has_room() && pause.is_none();
        let polled: Vec<u64> = match accepts {
            true => self.listeners.iter().filter(|(_, l)| l.accepts).map(|(id, _)| *id).collect(),
            false => Vec::new(),
        };
        let mut descriptors = vec![
            PollFd::new(self.signals.get_read(), PollFlags::IN),
            PollFd::new(&agent.watch, PollFlags::IN),
        ];
        let first = descriptors.len();
        for id in &polled {
            descriptors.push(PollFd::new(&self.listeners[id].socket, PollFlags::IN));
        }
        if let Some(socket) = &agent.socket {
            let sends = !agent.waiting.is_empty();
            let flags = if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            descriptors.push(PollFd::new(socket, flags));
        }
        let most = pause.map(|pause| Timespec::try_from(pause).unwrap_or_default());
        match poll(&mut descriptors, most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: usize| !descriptors[at].revents().is_empty();
        Ok(Ready {
            signals: is_ready(0),
            ended: is_ready(1),
            listeners: (first..)
                .zip(&polled)
                .filter(|(at, _)| is_ready(*at))
                .map(|(_, id)| *id)
                .collect(),
            agent: agent.socket.is_some() && is_ready(first + polled.len()),
        })
    }

    fn hear(&mut self, agent: &mut Agent) {
        while let Some(socket) = &agent.socket {
            match wire::receive::<ToKeeper>(socket, RecvFlags::DONTWAIT) {
                Ok(Some((message, descriptors))) => self.obey(agent, message, descriptors),
                Ok(None) => agent.socket = None,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    // The kernel reports once that an agent ended with messages unread; those
                    // that it had sent follow.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset => {}
                    io::ErrorKind::InvalidData => {
                        self.start.say(Said::NotUnderstood(error.to_string()));
                    }
                    _ => agent.socket = None,
                },
            }
        }
    }

    fn obey(&mut self, agent: &mut Agent, message: ToKeeper, mut descriptors: Vec<OwnedFd>) {
        match message {
            ToKeeper::Listener { id, about } => {
                if let Some(socket) = descriptors.pop() {
                    self.listeners.insert(id, Listener { socket, about, accepts: false });
                }
            }
            ToKeeper::Accept { id } => {
                if let Some(listener) = self.listeners.get_mut(&id) {
                    listener.accepts = true;
                }
            }
            ToKeeper::Close { id } => {
                self.listeners.remove(&id);
                self.connections.remove(&id);
            }
            ToKeeper::Up => {
                (agent.is_up, self.is_stuck) = (true, false);
                (self.is_proven, self.unfit_since) = (self.is_new, None);
                self.ending = self.ending.filter(|signal| self.start.is_ended_by(*signal, true));
            }
            ToKeeper::Replace => match self.start.check() {
                Ok(()) => {
                    self.start.say(Said::Replaced);
                    (self.is_new, self.is_proven, agent.is_replaced) = (true, false, true);
                    // It may have ended by itself.
                    let _ = agent.child.kill();
                }
                Err(reason) => self.start.say(Said::NotReplaced(reason)),
            },
        }
    }

    /// Whether one more connection leaves descriptors for the next agent.
    fn has_room(&self) -> bool {
        self.connections.len() < self.connections_max
    }

    fn accept(&mut self, agent: &mut Agent, listener: u64) {
        if !self.has_room() {
            return;
        }
        let Some(Listener { socket, .. }) = self.listeners.get(&listener) else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = accept_with(socket, flags).map_err(io::Error::from);
        match accepted.and_then(|socket| Ok((socket, memory("holdfast-connection")?))) {
            Ok((socket, memory)) => {
                self.last += 1;
                // Never that of a listener, which is random and large.
                let id = self.last;
                self.connections.insert(id, Connection { socket, memory, listener });
                agent.waiting.push_back(Waiting::Connection(id));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.paused_until = Some(Instant::now() + ACCEPT_PAUSE),
        }
    }

    fn send(&mut self, agent: &mut Agent) {
        while let (Some(socket), Some(next)) = (&agent.socket, agent.waiting.front()) {
            match self.send_one(socket, next) {
                Ok(()) => {
                    if agent.waiting.pop_front() == Some(Waiting::Ready) {
                        agent.is_ready = true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It is full, or the peer is gone: seen when polled.
                Err(_) => return,
            }
        }
    }

    fn send_one(&self, socket: &OwnedFd, next: &Waiting) -> io::Result<()> {
        let send = |message: ToAgent, descriptors: &[BorrowedFd<'_>]| {
            wire::send(socket, &message, descriptors)
        };
        match next {
            Waiting::Hello { again } => {
                let memory = [self.state.as_fd(), self.session.as_fd()];
                send(ToAgent::Hello { again: *again }, &memory)
            }
            Waiting::Listener(id) => match self.listeners.get(id) {
                Some(Listener { socket, about, .. }) => {
                    let message = ToAgent::Listener { id: *id, about: about.clone() };
                    send(message, &[socket.as_fd()])
                }
                None => Ok(()),
            },
            Waiting::Connection(id) => match self.connections.get(id) {
                Some(Connection { socket, memory, listener }) => {
                    let message = ToAgent::Connection { id: *id, listener: *listener };
                    send(message, &[socket.as_fd(), memory.as_fd()])
                }
                None => Ok(()),
            },
            Waiting::Ready => send(ToAgent::Ready, &[]),
            Waiting::Signal { number, from_terminal } => {
                let (number, from_terminal) = (*number, *from_terminal);
                send(ToAgent::Signal { number, from_terminal }, &[])
            }
        }
    }
}

/// Agents in a row that ended before they had taken up what was kept.
#[derive(Debug, Default)]
struct Lost {
    deaths: u32,
    kills: u32,
}

impl Lost {
    /// Counts one that has ended; returns whether what is kept is to be given up.
    fn is_too_much(&mut self, status: ExitStatus, was_up: bool) -> bool {
        match (was_up, status.signal()) {
            (true, _) => *self = Lost::default(),
            (false, Some(signal)) if signal == Signal::SIGKILL as i32 => self.kills += 1,
            (false, _) => self.deaths += 1,
        }
        self.deaths >= DEATHS_MAX || self.kills >= KILLS_MAX
    }
}

#[derive(Debug)]
struct Ready {
    signals: bool,
    ended: bool,
    agent: bool,
    listeners: Vec<u64>,
}

/// How a process ended, in words.
pub fn in_words(status: ExitStatus) -> String {
    let signal = status.signal().and_then(|signal| Signal::try_from(signal).ok());
    match (signal, status.code()) {
        (Some(signal), _) => format!("by {signal}"),
        (None, Some(code)) => format!("with code {code}"),
        (None, None) => "somehow".to_owned(),
    }
}

#[cfg(test)]
mod tests;
