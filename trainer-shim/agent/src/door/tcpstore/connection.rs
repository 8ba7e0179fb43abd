//! The order of one connection: messages in, store calls out, answers in,
//! reply bytes out. A state machine without I/O; the socket loop drives it.
//!
//! One operation runs at a time and the next starts when it is committed, so that
//! replies come in the order of the requests and a client sees its own writes. A
//! WAIT is not an operation in that sense: it is kept beside the queue until it
//! is released or cancelled, and other operations go on.

use std::collections::VecDeque;

use holdfast_api::{Blob, Condition, KeyValue};

use super::codec::{Message, Op, Reply};
use super::mapping::{Call, CallAnswer, Mapping, Operation, Step, Unanswerable};

/// An action of the socket loop for the connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ask the store, then [`Connection::answered`]. One call is open at a time.
    Call {
        /// Operation it serves; named in logs.
        op: Op,
        /// Call to the store.
        call: Call,
        /// Whether its client waits for a reply.
        replied: bool,
    },
    /// Wait until all of this is true, then [`Connection::released`]. Takes the
    /// place of an earlier wait.
    Wait {
        /// What has to become true.
        conditions: Vec<Condition>,
        /// Whether what has been true since the last answer counts: a BARRIER was counted by it.
        since_answer: bool,
    },
    /// Give up the wait.
    StopWaiting,
}

/// Queue and replies of one client's connection.
#[derive(Debug)]
pub struct Connection {
    mapping: Mapping,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    running: Option<Running>,
    /// The running operation's next call, or the wait of a counted BARRIER:
    /// goes before anything in the queue.
    ready: Option<Action>,
    wait: Waiting,
    /// Operations queued or running whose reply only their own completion gives:
    /// a CANCEL_WAIT after one of them has to queue.
    owed: usize,
    /// WAITs and BARRIERs in the queue that are not given up.
    releases_queued: usize,
    /// Operations without a reply that were received, and how many of them are over.
    silent: Silent,
    output: Output,
    input_ended: bool,
    failed: bool,
}

#[derive(Debug, Default)]
struct Silent {
    received: u64,
    over: u64,
}

#[derive(Debug)]
struct Queued {
    message: Message,
    size: usize,
    /// Given up by CANCEL_WAIT: it still counts, and is not answered.
    muted: bool,
    /// A SET that is not joined to those before it.
    apart: bool,
}

impl Queued {
    /// Whether its client waits for what it gives.
    fn is_replied(&self) -> bool {
        !self.muted && is_replied(self.message.op())
    }

    /// Whether it is a WAIT or BARRIER that is not given up.
    fn is_release(&self) -> bool {
        !self.muted && ends(self.message.op()) == Ends::Released
    }
}

#[derive(Debug)]
struct Running {
    operation: Operation,
    /// How many messages it carries out.
    messages: u64,
    size: usize,
    muted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    No,
    Yes,
    /// Given up, and the socket loop does not know yet.
    Stopping,
}

/// Reply bytes; the first `sent` have left.
#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

/// How an operation ends for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The client gets no reply.
    Silently,
    /// With a release, or with a CANCEL_WAIT.
    Released,
    /// With its own reply.
    Replied,
}

fn is_replied(op: Op) -> bool {
    ends(op) != Ends::Silently
}

fn ends(op: Op) -> Ends {
    match op {
        Op::Validate | Op::Set | Op::Append | Op::MultiSet | Op::QueuePush => Ends::Silently,
        Op::Wait | Op::Barrier => Ends::Released,
        _ => Ends::Replied,
    }
}

/// Memory of a queued message beside its keys and values.
const MESSAGE_OVERHEAD_BYTES: usize = 128;
/// Memory of each of its keys and values beside its bytes.
const BLOB_OVERHEAD_BYTES: usize = 32;
/// While others wait to see a client's writes, this many times `queued_bytes_max`
/// may be queued: bytes left in the socket are not seen.
const QUEUED_FOR_OTHERS_FACTOR: usize = 4;
/// While the store does not answer, this many times `message_bytes_max` may be queued: a WAIT may
/// come behind the longest message, and a CANCEL_WAIT behind that.
const QUEUED_FOR_CANCEL_MESSAGES: usize = 2;
/// A reply buffer larger than this is given back when it is empty.
const IDLE_OUTPUT_BYTES: usize = 1024;

fn size(message: &Message) -> usize {
    let blob = |blob: &Blob| blob.len() + BLOB_OVERHEAD_BYTES;
    let held = match message {
        Message::Set { key, value }
        | Message::Append { key, value }
        | Message::QueuePush { key, value } => blob(key) + blob(value),
        Message::CompareSet { key, expected, desired } => {
            blob(key) + blob(expected) + blob(desired)
        }
        Message::Get { key }
        | Message::Add { key, .. }
        | Message::DeleteKey { key }
        | Message::QueuePop { key }
        | Message::QueueLen { key }
        | Message::Barrier { key, .. } => blob(key),
        Message::Check { keys } | Message::Wait { keys } | Message::MultiGet { keys } => {
            keys.iter().map(blob).sum()
        }
        Message::MultiSet { entries } => {
            entries.iter().map(|entry| blob(&entry.key) + blob(&entry.value)).sum()
        }
        Message::Validate
        | Message::GetNumKeys
        | Message::CancelWait
        | Message::Ping { .. }
        | Message::ListKeys => 0,
    };
    MESSAGE_OVERHEAD_BYTES + held
}

/// The place of the oldest of so many releases. What is queued before it is not looked at: a client
/// may cancel often.
fn oldest_release<'q>(
    queue: impl DoubleEndedIterator<Item = &'q Queued> + ExactSizeIterator,
    releases: usize,
) -> Option<usize> {
    let places = queue.enumerate().rev().filter(|(_, queued)| queued.is_release());
    places.take(releases).last().map(|(place, _)| place)
}

impl Connection {
    /// A connection that has just been accepted.
    pub fn new(mapping: Mapping) -> Connection {
        Connection {
            mapping,
            queue: VecDeque::new(),
            queued_bytes: 0,
            running: None,
            ready: None,
            wait: Waiting::No,
            owed: 0,
            releases_queued: 0,
            silent: Silent::default(),
            output: Output::default(),
            input_ended: false,
            failed: false,
        }
    }

    /// From now on it is served the namespace of this attempt.
    pub(super) fn enter_attempt(&mut self, attempt: u32) {
        self.mapping.namespace = self.mapping.namespace.with_attempt(attempt);
    }

    /// Takes in a message.
    pub fn receive(&mut self, message: Message) {
        // PyTorch's client sends CANCEL_WAIT when its own timeout has passed and
        // then blocks for the answer without any timeout. The operation before it
        // may be a write that cannot be committed.
        if message == Message::CancelWait && self.owed == 0 {
            self.give_up_queued_releases();
            self.give_up_wait();
            self.reply(&Reply::Cancelled);
            return;
        }
        match ends(message.op()) {
            Ends::Silently => self.silent.received += 1,
            Ends::Released => self.releases_queued += 1,
            Ends::Replied => self.owed += 1,
        }
        let size = size(&message);
        self.queued_bytes += size;
        self.queue.push_back(Queued { message, size, muted: false, apart: false });
    }

    /// Whether what was received last does not start together with what is before it:
    /// it has to wait for more.
    pub fn keep_apart(&mut self, apart: bool) {
        if let Some(queued) = self.queue.back_mut() {
            queued.apart = apart;
        }
    }

    /// It waits, as another one did that was answered everything else.
    pub(super) fn resume_wait(&mut self) {
        self.wait = Waiting::Yes;
    }

    /// Whether only a wait is in progress, and all replies have left.
    pub(super) fn is_at_rest(&self) -> bool {
        self.queue.is_empty()
            && self.running.is_none()
            && self.ready.is_none()
            && self.wait != Waiting::Stopping
            && self.unsent().is_empty()
    }

    /// No more messages will come. Received ones are still carried out; a wait
    /// has no client left to answer.
    pub fn end_input(&mut self) {
        self.input_ended = true;
    }

    /// The next thing to do for the connection, if there is one now.
    pub fn next_action(&mut self) -> Option<Action> {
        if self.failed {
            return None;
        }
        if let Some(action) = self.ready.take() {
            return Some(action);
        }
        loop {
            if self.wait == Waiting::Stopping {
                self.wait = Waiting::No;
                return Some(Action::StopWaiting);
            }
            if self.running.is_some() {
                return None;
            }
            // An operation that adds no reply goes on: others may wait for it.
            if self.is_unread() && self.queue.front().is_some_and(Queued::is_replied) {
                return None;
            }
            let queued = self.queue.pop_front()?;
            if let Some(action) = self.start(queued) {
                return Some(action);
            }
        }
    }

    /// The store's answer to the open call, or why there is none. An error is
    /// final: the operation cannot be answered, later ones do not start, and the
    /// connection has to be closed.
    pub fn answered(&mut self, answer: CallAnswer) -> Result<(), Unanswerable> {
        let Some(mut running) = self.running.take() else {
            return Err(Unanswerable::OutOfTurn);
        };
        let step = match running.operation.resume(&self.mapping, answer) {
            Ok(step) => step,
            Err(error) => {
                self.fail();
                return Err(error);
            }
        };
        if let Step::Call(call) = step {
            let op = running.operation.op();
            let replied = is_replied(op) && !running.muted;
            self.ready = Some(Action::Call { op, call, replied });
            self.running = Some(running);
            return Ok(());
        }
        let Running { operation, messages, size, muted } = running;
        self.queued_bytes -= size;
        self.is_over(operation.op(), messages);
        match step {
            Step::Reply(reply) if !muted => self.reply(&reply),
            Step::Wait(conditions) if !muted => {
                self.wait = Waiting::Yes;
                self.ready = Some(Action::Wait { conditions, since_answer: true });
            }
            _ => {}
        }
        Ok(())
    }

    /// The wait is over: all its conditions were true.
    pub fn released(&mut self) {
        if self.wait == Waiting::Yes {
            self.wait = Waiting::No;
            self.reply(&Reply::Released);
        }
    }

    /// The connection is lost: nothing that is queued will start.
    fn fail(&mut self) {
        self.failed = true;
        self.queue.clear();
    }

    /// Whether to read on. Pauses while enough is queued or left unread; later if
    /// others wait to see what its client has written.
    pub fn wants_input(&self, others_wait: bool) -> bool {
        let factor = if others_wait { QUEUED_FOR_OTHERS_FACTOR } else { 1 };
        self.has_room(self.mapping.limits.queued_bytes_max.saturating_mul(factor))
    }

    /// Whether to read on although enough is queued, while the store does not answer: its client
    /// may wait, and a CANCEL_WAIT is answered at once unless a reply is owed before.
    pub fn wants_cancel(&self) -> bool {
        let message_bytes_max = self.mapping.limits.message_bytes_max;
        self.owed == 0
            && self.has_room(message_bytes_max.saturating_mul(QUEUED_FOR_CANCEL_MESSAGES))
    }

    fn has_room(&self, queued_bytes_max: usize) -> bool {
        !self.input_ended
            && !self.failed
            && !self.is_unread()
            && self.queued_bytes < queued_bytes_max
    }

    /// Whether what comes now is seen by others once its client goes on: the client
    /// waits for nothing, and its bytes will be read.
    pub fn counts(&self) -> bool {
        let releases = |running: &Running| ends(running.operation.op()) == Ends::Released;
        let waits = self.owed > 0
            || self.releases_queued > 0
            || self.running.as_ref().is_some_and(releases);
        !waits && !self.input_ended && !self.failed && !self.is_unread()
    }

    /// The keys of the store that a message without a reply writes; empty for other messages.
    pub(super) fn written_in_silence(&self, message: &Message) -> Vec<Blob> {
        let keys: Vec<&Blob> = match message {
            Message::Set { key, .. }
            | Message::Append { key, .. }
            | Message::QueuePush { key, .. } => vec![key],
            Message::MultiSet { entries } => entries.iter().map(|entry| &entry.key).collect(),
            _ => Vec::new(),
        };
        keys.into_iter().map(|key| self.mapping.namespace.to_store(key.clone())).collect()
    }

    /// How many messages without a reply have come.
    pub(super) fn silent_received(&self) -> u64 {
        self.silent.received
    }

    /// How many of them are carried out.
    pub(super) fn silent_over(&self) -> u64 {
        self.silent.over
    }

    /// Whether everything received has been carried out and answered after
    /// the end of the input.
    pub fn is_finished(&self) -> bool {
        self.input_ended
            && self.queue.is_empty()
            && self.running.is_none()
            && self.unsent().is_empty()
    }

    /// Reply bytes to send.
    pub fn unsent(&self) -> &[u8] {
        &self.output.bytes[self.output.sent..]
    }

    /// Notes that so many reply bytes were sent.
    pub fn sent(&mut self, count: usize) {
        self.output.sent = (self.output.sent + count).min(self.output.bytes.len());
        if self.output.sent == self.output.bytes.len() {
            self.output.sent = 0;
            self.output.bytes.clear();
            if self.output.bytes.capacity() > IDLE_OUTPUT_BYTES {
                self.output.bytes = Vec::new();
            }
        }
    }

    /// The client reads no more replies; what was received is still carried out.
    pub fn discard_replies(&mut self) {
        self.sent(self.unsent().len());
    }

    /// Bytes of the messages that are not carried out.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Bytes that the connection holds.
    pub fn held_bytes(&self) -> usize {
        let gathered = self.running.as_ref().map_or(0, |running| running.operation.held_bytes());
        self.queued_bytes + gathered + self.unsent().len()
    }

    fn is_unread(&self) -> bool {
        self.unsent().len() >= self.mapping.limits.unread_bytes_max
    }

    /// Starts an operation; no action if it was over at once.
    fn start(&mut self, queued: Queued) -> Option<Action> {
        self.releases_queued -= usize::from(queued.is_release());
        let Queued { message, mut size, muted, .. } = queued;
        let op = message.op();
        let mut messages = 1;
        let (operation, step) = match message {
            Message::Set { key, value } if self.next_joins() => {
                let entries = self.take_sets_behind(KeyValue { key, value }, &mut size);
                messages = entries.len() as u64;
                let entries = match holdfast_api::planted!(FirstSetStays) {
                    true => entries.into_iter().rev().collect(),
                    false => entries,
                };
                self.mapping.begin_joined_sets(entries)
            }
            message => self.mapping.begin(message),
        };
        if let Step::Call(call) = step {
            self.running = Some(Running { operation, messages, size, muted });
            return Some(Action::Call { op, call, replied: is_replied(op) && !muted });
        }
        self.queued_bytes -= size;
        self.is_over(op, messages);
        if matches!(op, Op::Wait | Op::CancelWait) {
            // A WAIT takes the place of the one before, which stays unanswered.
            self.give_up_wait();
        }
        match step {
            Step::Wait(conditions) => {
                self.wait = Waiting::Yes;
                return Some(Action::Wait { conditions, since_answer: false });
            }
            Step::Reply(reply) => self.reply(&reply),
            Step::Call(_) | Step::Done => {}
        }
        None
    }

    fn is_over(&mut self, op: Op, messages: u64) {
        match ends(op) {
            Ends::Silently => self.silent.over += messages,
            Ends::Replied => self.owed -= 1,
            Ends::Released => {}
        }
    }

    fn next_joins(&self) -> bool {
        matches!(
            self.queue.front(),
            Some(Queued { message: Message::Set { .. }, apart: false, .. })
        )
    }

    /// The SETs directly after `first`, as many as one command takes.
    fn take_sets_behind(&mut self, first: KeyValue, size: &mut usize) -> Vec<KeyValue> {
        let limits = &self.mapping.limits;
        let mut bytes = first.key.len() + first.value.len();
        let mut entries = vec![first];
        while entries.len() < limits.command_keys_max {
            let Some(Queued { message: Message::Set { key, value }, apart: false, .. }) =
                self.queue.front()
            else {
                break;
            };
            bytes += key.len() + value.len();
            if bytes > limits.command_bytes_max {
                break;
            }
            if let Some(Queued { message: Message::Set { key, value }, size: more, .. }) =
                self.queue.pop_front()
            {
                *size += more;
                entries.push(KeyValue { key, value });
            }
        }
        entries
    }

    /// CANCEL_WAIT overtakes what it gives up: a queued WAIT is dropped, a
    /// queued or running BARRIER is counted and not answered.
    fn give_up_queued_releases(&mut self) {
        if let Some(running) = &mut self.running {
            running.muted |= ends(running.operation.op()) == Ends::Released;
        }
        let oldest = oldest_release(self.queue.iter(), self.releases_queued);
        let Some(oldest) = oldest else { return };
        self.releases_queued = 0;
        for queued in self.queue.split_off(oldest) {
            match queued.message.op() {
                Op::Wait => self.queued_bytes -= queued.size,
                Op::Barrier => self.queue.push_back(Queued { muted: true, ..queued }),
                _ => self.queue.push_back(queued),
            }
        }
    }

    fn give_up_wait(&mut self) {
        if self.wait == Waiting::Yes {
            self.wait = Waiting::Stopping;
            self.ready = self.ready.take().filter(|action| !matches!(action, Action::Wait { .. }));
        }
    }

    fn reply(&mut self, reply: &Reply) {
        reply.encode(&mut self.output.bytes);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Scope;

    use super::*;
    use crate::door::tcpstore::Limits;
    use crate::namespace::Namespace;

    #[test]
    fn cancel_wait_looks_at_nothing_that_is_queued_before_what_it_gives_up() {
        const BEFORE: usize = 100;
        let (scope, limits) = (Scope::default(), Limits::default());
        let mapping = Mapping { scope, namespace: Namespace::first(), limits };
        let mut connection = Connection::new(mapping);
        let set = || Message::Set { key: "/a".into(), value: "1".into() };
        (0..BEFORE).for_each(|_| connection.receive(set()));
        for message in [Message::Wait { keys: vec!["/b".into()] }, set()] {
            connection.receive(message);
        }
        let looked_at = |connection: &Connection| {
            let mut looks = 0;
            let queue = connection.queue.iter().inspect(|_| looks += 1);
            (oldest_release(queue, connection.releases_queued), looks)
        };
        assert_eq!(looked_at(&connection), (Some(BEFORE), 2));
        connection.receive(Message::CancelWait);
        assert_eq!(looked_at(&connection), (None, 0));
    }
}
