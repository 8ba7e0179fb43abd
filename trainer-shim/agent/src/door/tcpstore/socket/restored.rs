//! A connection that another process served before: what happened to it happens again, and
//! then it goes on.

use std::io;

use anyhow::{Context, bail, ensure};
use holdfast_client::{Deadline, InFlight, Mark};
use rustix::net::{RecvFlags, recv};

use super::*;
use crate::keeper::counters::Counters;
use crate::keeper::recorder::{Happened, Recorded};

/// A call of the store that has no answer yet.
struct Pending {
    op: Op,
    call: Call,
    replied: bool,
    mark: Option<Mark>,
}

impl Task {
    /// Goes on from the record.
    pub(in super::super) fn restore(mut self, recorded: Recorded) -> anyhow::Result<Task> {
        let Recorded { base, happened, input } = recorded;
        let written_before = base.output;
        self.begin_as(base)?;
        let (mut pending, mut sent) = (None, 0);
        for event in happened {
            if let Happened::Sent(count) = &event {
                sent += count;
            }
            self.happens(event, &mut pending)?;
        }
        self.meet_kernel(input, written_before + sent)?;
        if let Some(pending) = pending {
            self.ask_again(pending)?;
        }
        let lacks_call = |last| self.shared.unclaimed.has_later(last);
        ensure!(!self.recorder.last_call().is_some_and(lacks_call), "a call is not recorded");
        if let Some(conditions) = self.wait_conditions.take() {
            self.wait_account.resume(encoded_bytes(&conditions));
            self.wait_for(conditions, self.wait_since);
        }
        // Others see from the beginning what its client wrote before.
        self.decode();
        if self.begin_anew()? {
            // The journal may have had no room for complete messages.
            self.decode();
        }
        let counts = self.counts();
        self.sender.took_in(self.is_taken_in, false, counts);
        let held = self.held_bytes();
        self.account.resume(held);
        Ok(self)
    }

    fn begin_as(&mut self, base: Base) -> anyhow::Result<()> {
        if base.is_client {
            self.is_client = true;
            self.decoder.go_on();
            self.shared.clients.fetch_add(1, Ordering::Relaxed);
        }
        self.may_tell_attempt &= base.may_tell_attempt;
        if base.is_launcher {
            self.shared.attempts.had_launcher();
        }
        if let Some(attempt) = base.attempt {
            self.enter_again(attempt)?;
        }
        self.decoder.feed(&base.tail);
        if base.waits.is_some() {
            self.connection.resume_wait();
            (self.wait_conditions, self.wait_since) = (base.waits, base.waits_since);
        }
        Ok(())
    }

    fn enter_again(&mut self, attempt: u32) -> anyhow::Result<()> {
        self.asking = None;
        let namespace = self.guest.namespace().with_attempt(attempt);
        self.guest = self.shared.presence.enter(namespace)?;
        self.connection.enter_attempt(attempt);
        Ok(())
    }

    fn happens(&mut self, event: Happened, pending: &mut Option<Pending>) -> anyhow::Result<()> {
        match event {
            Happened::Input(bytes) => self.decoder.feed(&bytes),
            Happened::Received { apart } => {
                let message = self.decoder.next_message()?.context("a message is missing")?;
                self.meet(&message);
                self.entry.calls(message.op().name(), message.first_key());
                self.sender.receive(&mut self.connection, message);
                self.connection.keep_apart(apart);
            }
            Happened::Started => self.start_again(pending),
            Happened::Answered(answer) => {
                ensure!(pending.take().is_some(), "an answer to nothing");
                self.connection.answered(answer)?;
                self.sender.committed(self.connection.silent_over());
            }
            Happened::WaitBegan(revision) => self.wait_since = Some(revision),
            Happened::Released => {
                (self.wait_conditions, self.wait_since) = (None, None);
                self.connection.released();
            }
            Happened::Sent(count) => {
                let count = usize::try_from(count)?;
                ensure!(count <= self.connection.unsent().len(), "more was sent than answered");
                self.connection.sent(count);
            }
            Happened::Entered(attempt) => self.enter_again(attempt)?,
            Happened::Launches => self.shared.attempts.had_launcher(),
        }
        Ok(())
    }

    fn start_again(&mut self, pending: &mut Option<Pending>) {
        while let Some(action) = self.connection.next_action() {
            match action {
                Action::Call { op, call, replied } => {
                    let mark = self.recorder.calls();
                    *pending = Some(Pending { op, call, replied, mark });
                }
                Action::Wait { conditions, .. } => {
                    (self.wait_conditions, self.wait_since) = (Some(conditions), None);
                }
                Action::StopWaiting => (self.wait_conditions, self.wait_since) = (None, None),
            }
        }
    }

    /// Discards bytes in the socket that are recorded already; records bytes as sent that were.
    fn meet_kernel(&mut self, input: u64, sent: u64) -> anyhow::Result<()> {
        let (local, peer) = (self.stream.local_addr()?, self.stream.peer_addr());
        let counters = match peer {
            Ok(peer) => Counters::of(local, peer),
            Err(error) => Err(error),
        };
        let counters = match counters {
            Ok(counters) => counters,
            // Reset: received messages are carried out, but the answers have no reader.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotConnected
                ) =>
            {
                self.recorder.sent(self.connection.unsent().len());
                self.connection.discard_replies();
                self.ended = true;
                return Ok(());
            }
            Err(error) => bail!("the kernel does not tell how far it is: {error}"),
        };
        // The end of the input counts as a byte once it was read.
        ensure!(counters.consumed <= input + 1, "bytes were consumed that are not recorded");
        discard(&self.stream, input.saturating_sub(counters.consumed))?;
        let more = counters.written.checked_sub(sent).context("less was sent than recorded")?;
        let more = usize::try_from(more)?;
        ensure!(more <= self.connection.unsent().len(), "bytes were sent that are not recorded");
        if more > 0 {
            self.connection.sent(more);
            self.recorder.sent(more);
        }
        Ok(())
    }

    fn ask_again(&mut self, pending: Pending) -> anyhow::Result<()> {
        let Pending { op, call, replied, mark } = pending;
        (self.calling, self.calling_since) = (op, Instant::now());
        let in_flight = mark.and_then(|mark| self.shared.unclaimed.claim(mark));
        self.call = Some(match in_flight {
            Some(in_flight) => {
                ensure!(
                    call == Call::Propose(in_flight.command().clone()),
                    "another command was sent than is recorded"
                );
                self.shared.answer_to(in_flight)
            }
            None => {
                let before = self.sender.before(replied);
                self.shared.call(self.client.clone(), call, before, None, mark)
            }
        });
        Ok(())
    }
}

impl Shared {
    /// The answer to what another process had sent.
    fn answer_to(&self, in_flight: InFlight) -> BoxFuture<'static, Answered> {
        let patience = self.options.store_lost_deadline;
        Box::pin(async move {
            let (answer, settled) = in_flight.answer(Deadline::after(patience)).await;
            Answered::proposed(answer, Some(settled))
        })
    }
}

fn discard(stream: &TcpStream, mut count: u64) -> anyhow::Result<()> {
    let mut scratch = [0; 4096];
    while count > 0 {
        let most = scratch.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        match recv(stream, &mut scratch[..most], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => bail!("bytes are missing that were not consumed"),
            Ok((_, read)) => count -= read as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => bail!("bytes are missing that were not consumed: {error}"),
        }
    }
    Ok(())
}
