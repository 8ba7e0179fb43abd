//! Arrivals of several programs at one round: those that come at once, or during
//! a command, go together. In a restart all ranks of a host arrive within a
//! moment, and the store carries out a command or two, not one for each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use holdfast_api::{
    Answer, Arrival, Blob, Code, Command, Effectiveness, LeaseId, Outcome, RoundCommand,
    RoundOutcome, Terms,
};
use holdfast_client::{Client, Deadline, Error};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::begin::{Begun, begin};
use super::relay::Participant;

/// Arrivals that one command carries, at most, and bytes of their payloads.
const ARRIVALS_MAX: usize = 4_096;
const PAYLOADS_MAX: usize = 1024 * 1024;
/// A program with more of them in one call, or longer payloads, goes alone: it
/// must not be the reason why others are refused.
const ARRIVALS_OF_ONE_MAX: usize = 64;
/// Payload bytes of one call that goes together with others.
const PAYLOADS_OF_ONE_MAX: usize = 16 * 1024;
/// How long after the client's own deadline a caller gives up.
const DEADLINE_SLACK: Duration = Duration::from_millis(100);

/// A round that a program arrives at, and its terms.
pub type Entrance = (Blob, Box<Terms>);

/// An entrance with a command in progress, and the callers that wait for its end.
type Turn = (Entrance, Vec<Caller>);

/// All arrivals that are in progress or queued. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    /// Entrances with a command in progress, each with the callers queued after it.
    behind: Arc<Mutex<Vec<Turn>>>,
}

#[derive(Debug)]
struct Caller {
    arrivals: Vec<Arrival>,
    deadline: Deadline,
    reply: oneshot::Sender<Result<Answer, Error>>,
}

/// Whether arrivals may go together with those of others.
pub fn are_few(arrivals: &[Arrival]) -> bool {
    arrivals.len() <= ARRIVALS_OF_ONE_MAX && payload_bytes(arrivals) <= PAYLOADS_OF_ONE_MAX
}

fn payload_bytes(arrivals: &[Arrival]) -> usize {
    arrivals.iter().map(|arrival| arrival.payload.len()).sum()
}

impl Arrivals {
    /// Has `arrivals` carried to the store, and waits for their part of the
    /// answer. `spawn` runs what is done for several programs at once.
    pub async fn arrive(
        &self,
        client: Client,
        lease: LeaseId,
        entrance: Entrance,
        arrivals: Vec<Arrival>,
        deadline: Deadline,
        spawn: impl FnOnce(BoxFuture<'static, ()>),
    ) -> Result<Answer, Error> {
        let (reply, answered) = oneshot::channel();
        if self.come(&entrance, Caller { arrivals, deadline, reply }) {
            spawn(Box::pin(self.clone().carry(client, lease, entrance)));
        }
        let lost = |outcome| Err(Error::Closed { outcome });
        match deadline.instant() {
            None => answered.await.unwrap_or_else(|_| lost(Effectiveness::Unknown)),
            Some(at) => match tokio::time::timeout_at(at + DEADLINE_SLACK, answered).await {
                Ok(answer) => answer.unwrap_or_else(|_| lost(Effectiveness::Unknown)),
                Err(_) => Err(Error::Timeout {
                    outcome: Effectiveness::Unknown,
                    reason: "the node has not answered yet".to_owned(),
                }),
            },
        }
    }

    /// Adds a caller; true if no command is in progress at this entrance, so that
    /// one has to start.
    fn come(&self, entrance: &Entrance, caller: Caller) -> bool {
        let mut behind = self.behind.lock();
        match behind.iter_mut().find(|(of, _)| of == entrance) {
            Some((_, waiting)) => {
                waiting.retain(|caller| !caller.reply.is_closed());
                waiting.push(caller);
                false
            }
            None => {
                behind.push((entrance.clone(), vec![caller]));
                true
            }
        }
    }

    /// Takes out callers that wait for their turn with arrivals of these processes. Those at
    /// `here` stay: they have their turn before what comes after them there.
    fn take(&self, participants: &[Participant], here: Option<&Entrance>) -> Vec<Turn> {
        if participants.is_empty() {
            return Vec::new();
        }
        let participants: BTreeSet<Participant> = participants.iter().copied().collect();
        let of_them = |caller: &mut Caller| {
            caller.arrivals.iter().any(|one| participants.contains(&(one.process, one.incarnation)))
        };
        let mut behind = self.behind.lock();
        let others = behind.iter_mut().filter(|(entrance, _)| Some(entrance) != here);
        let taken = others.map(|(entrance, waiting)| {
            let callers: Vec<Caller> = waiting.extract_if(.., of_them).collect();
            (entrance.clone(), callers)
        });
        taken.filter(|(_, callers)| !callers.is_empty()).collect()
    }

    /// Carries what waits for its turn with arrivals of these processes, each caller's alone:
    /// what a process does next, as its end, must not come before. What is proposed after the
    /// first poll comes after them, unless the store puts them off. None if nothing waits.
    pub fn ahead(
        &self,
        client: &Client,
        lease: LeaseId,
        participants: &[Participant],
        here: Option<&Entrance>,
    ) -> Option<BoxFuture<'static, ()>> {
        let turns = self.take(participants, here);
        if turns.is_empty() {
            return None;
        }
        let each = turns.into_iter().flat_map(|(entrance, callers)| {
            callers.into_iter().map(move |caller| (entrance.clone(), caller))
        });
        let carried =
            each.map(|(entrance, caller)| carry_alone(client.clone(), lease, entrance, caller));
        Some(join_all(carried).map(drop).boxed())
    }

    async fn carry(self, client: Client, lease: LeaseId, entrance: Entrance) {
        // Callers whose frames are here already go together with the first.
        tokio::task::yield_now().await;
        loop {
            // Proposed before anybody sees that they wait no longer: what their processes do next
            // comes after them.
            let (callers, begun) = {
                let mut behind = self.behind.lock();
                let callers = next(&mut behind, &entrance);
                if callers.is_empty() {
                    return;
                }
                let begun = begin(propose(client.clone(), lease, &entrance, &callers));
                (callers, begun)
            };
            let answer = match begun {
                Begun::Done(answer) => answer,
                Begun::UnderWay(proposed) => proposed.await,
            };
            if callers.len() == 1 || !is_too_much(&answer) {
                hand_out(&answer, callers);
                continue;
            }
            let alone = |caller| carry_alone(client.clone(), lease, entrance.clone(), caller);
            join_all(callers.into_iter().map(alone)).await;
        }
    }
}

/// Queued callers that still wait, as many as go together; if empty, the turn of this entrance
/// ends.
fn next(behind: &mut Vec<Turn>, entrance: &Entrance) -> Vec<Caller> {
    let Some(place) = behind.iter().position(|(of, _)| of == entrance) else {
        return Vec::new();
    };
    let waiting = &mut behind[place].1;
    waiting.retain(|caller| !caller.reply.is_closed());
    let (mut arrivals, mut bytes) = (0, 0);
    let fit = waiting.iter().take_while(|caller| {
        arrivals += caller.arrivals.len();
        bytes += payload_bytes(&caller.arrivals);
        arrivals <= ARRIVALS_MAX && bytes <= PAYLOADS_MAX
    });
    let count = fit.count();
    let next: Vec<Caller> = waiting.drain(..count).collect();
    if next.is_empty() {
        behind.swap_remove(place);
    }
    next
}

/// Carries the arrivals of all these callers to the store.
fn propose(
    client: Client,
    lease: LeaseId,
    entrance: &Entrance,
    callers: &[Caller],
) -> BoxFuture<'static, Result<Answer, Error>> {
    let (round, terms) = entrance.clone();
    let arrivals = callers.iter().flat_map(|caller| caller.arrivals.clone()).collect();
    let command = RoundCommand::Arrive { lease, round, terms, arrivals };
    let deadline = latest(callers);
    async move { client.propose(Command::Round(command), deadline).await }.boxed()
}

async fn carry_alone(client: Client, lease: LeaseId, entrance: Entrance, caller: Caller) {
    let alone = vec![caller];
    hand_out(&propose(client, lease, &entrance, &alone).await, alone);
}

/// The client gives up when the last of them does.
fn latest(callers: &[Caller]) -> Deadline {
    let instants: Option<Vec<_>> = callers.iter().map(|one| one.deadline.instant()).collect();
    instants.and_then(|all| all.into_iter().max()).map_or(Deadline::never(), Deadline::at)
}

/// Together they are more than one command may carry: each has to go alone.
fn is_too_much(answer: &Result<Answer, Error>) -> bool {
    answer.as_ref().is_err_and(|error| error.code() == Code::LimitExceeded)
}

/// Sends each caller its part. A failure goes to all: they sent the same call.
fn hand_out(answer: &Result<Answer, Error>, callers: Vec<Caller>) {
    let mut parts = match answer {
        Ok(Answer { outcome: Outcome::Round(RoundOutcome::Arrived(parts)), .. }) => parts.iter(),
        _ => [].iter(),
    };
    for Caller { arrivals, reply, .. } in callers {
        let mut answer = answer.clone();
        if let Ok(Answer { outcome: Outcome::Round(RoundOutcome::Arrived(part)), .. }) = &mut answer
        {
            *part = parts.by_ref().take(arrivals.len()).cloned().collect();
        }
        // The caller may have gone.
        let _ = reply.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{ArrivalAnswer, Problem};
    use tokio::time::Instant;

    use super::*;

    type Heard = oneshot::Receiver<Result<Answer, Error>>;

    fn entrance(round: &str) -> Entrance {
        (round.into(), Box::default())
    }

    fn caller(processes: std::ops::Range<u32>) -> (Caller, Heard) {
        let arrival = |process| Arrival {
            process,
            incarnation: 1,
            call: 1,
            ack: 1,
            payload: Blob::default(),
            holds: 0,
        };
        let (reply, heard) = oneshot::channel();
        let arrivals = processes.map(arrival).collect();
        (Caller { arrivals, deadline: Deadline::never(), reply }, heard)
    }

    fn waiting(generation: u64) -> ArrivalAnswer {
        ArrivalAnswer::Waiting { generation }
    }

    #[test]
    fn those_that_come_while_one_is_under_way_go_together() {
        let gate = Arrivals::default();
        let (one, _heard_one) = caller(0..1);
        assert!(gate.come(&entrance("r"), one), "somebody has to start");
        assert_eq!(next(&mut gate.behind.lock(), &entrance("r")).len(), 1);
        let (two, _heard_two) = caller(1..2);
        let (gone, heard_gone) = caller(2..3);
        let (three, _heard_three) = caller(3..5);
        let (other, _heard_other) = caller(5..6);
        drop(heard_gone);
        for caller in [two, gone, three] {
            assert!(!gate.come(&entrance("r"), caller), "it is under way");
        }
        assert!(gate.come(&entrance("other"), other));
        let together: Vec<u32> = next(&mut gate.behind.lock(), &entrance("r"))
            .iter()
            .flat_map(|one| &one.arrivals)
            .map(|a| a.process)
            .collect();
        assert_eq!(together, [1, 3, 4]);
        assert!(next(&mut gate.behind.lock(), &entrance("r")).is_empty());
        let (again, _heard_again) = caller(0..1);
        assert!(gate.come(&entrance("r"), again), "the turn was over");
    }

    #[test]
    fn what_waits_for_its_turn_goes_ahead_of_what_its_process_does_next() {
        let gate = Arrivals::default();
        let (here, there) = (entrance("here"), entrance("there"));
        let mut heard = Vec::new();
        let mut come = |at: &Entrance, process| {
            let (one, hears) = caller(process..process + 1);
            gate.come(at, one);
            heard.push(hears);
        };
        for at in [&here, &there] {
            come(at, 0);
            assert_eq!(next(&mut gate.behind.lock(), at).len(), 1, "one is under way");
            come(at, 1);
            come(at, 2);
        }
        let processes = |turns: Vec<Turn>| -> Vec<(Blob, u32)> {
            let each = turns.into_iter().flat_map(|((round, _), callers)| {
                callers.into_iter().map(move |caller| (round.clone(), caller.arrivals[0].process))
            });
            each.collect()
        };
        assert_eq!(processes(gate.take(&[(0, 1), (1, 2)], None)), []);
        assert_eq!(processes(gate.take(&[(1, 1)], Some(&here))), [("there".into(), 1)]);
        assert_eq!(processes(gate.take(&[(1, 1)], None)), [("here".into(), 1)]);
        assert_eq!(next(&mut gate.behind.lock(), &here).len(), 1, "the other one keeps its turn");
    }

    #[test]
    fn one_command_carries_so_many() {
        let gate = Arrivals::default();
        let few = ARRIVALS_OF_ONE_MAX as u32;
        let mut heard = Vec::new();
        for n in 0..=(ARRIVALS_MAX / ARRIVALS_OF_ONE_MAX) as u32 {
            let (one, hears) = caller(n * few..(n + 1) * few);
            assert!(are_few(&one.arrivals));
            gate.come(&entrance("r"), one);
            heard.push(hears);
        }
        let sizes = [(); 3].map(|()| next(&mut gate.behind.lock(), &entrance("r")).len());
        assert_eq!(sizes, [ARRIVALS_MAX / ARRIVALS_OF_ONE_MAX, 1, 0]);
        assert!(!are_few(&caller(0..few + 1).0.arrivals));
        let long = |bytes| {
            let (mut caller, heard) = caller(0..1);
            caller.arrivals[0].payload = Blob::from(vec![0; bytes]);
            (caller, heard)
        };
        assert!(!are_few(&long(PAYLOADS_OF_ONE_MAX + 1).0.arrivals));
        for _ in 0..=PAYLOADS_MAX / PAYLOADS_OF_ONE_MAX {
            let (one, hears) = long(PAYLOADS_OF_ONE_MAX);
            gate.come(&entrance("r"), one);
            heard.push(hears);
        }
        let sizes = [(); 3].map(|()| next(&mut gate.behind.lock(), &entrance("r")).len());
        assert_eq!(sizes, [PAYLOADS_MAX / PAYLOADS_OF_ONE_MAX, 1, 0]);
    }

    #[test]
    fn each_hears_its_part_and_all_hear_a_failure() {
        let (callers, heard): (Vec<_>, Vec<_>) = [0..1, 1..3].map(caller).into_iter().unzip();
        let parts = vec![waiting(7), ArrivalAnswer::Decided, waiting(9)];
        let outcome = Outcome::Round(RoundOutcome::Arrived(parts));
        hand_out(&Ok(Answer { revision: 5, outcome, replayed: false }), callers);
        let heard = heard.into_iter().map(|mut heard| heard.try_recv().unwrap().unwrap().outcome);
        let expected = [vec![waiting(7)], vec![ArrivalAnswer::Decided, waiting(9)]];
        assert_eq!(
            heard.collect::<Vec<_>>(),
            expected.map(|parts| Outcome::Round(RoundOutcome::Arrived(parts)))
        );
        let (callers, heard): (Vec<_>, Vec<_>) = [0..1, 1..3].map(caller).into_iter().unzip();
        let refused = Error::Refused(Box::new(Problem::refused(Code::LeaseEnded, "over")));
        hand_out(&Err(refused.clone()), callers);
        for mut heard in heard {
            assert_eq!(heard.try_recv().unwrap(), Err(refused.clone()));
        }
    }

    #[test]
    fn the_client_gives_up_with_the_last_of_them() {
        let now = Instant::now();
        let until = |seconds| Deadline::at(now + Duration::from_secs(seconds));
        let of = |deadlines: [Deadline; 2]| {
            latest(&deadlines.map(|deadline| Caller { deadline, ..caller(0..1).0 })).instant()
        };
        assert_eq!(of([until(1), until(2)]), until(2).instant());
        assert_eq!(of([until(1), Deadline::never()]), None);
    }
}
