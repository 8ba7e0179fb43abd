//! A call that waits says whom it waits for.

use std::convert::Infallible;

use holdfast_api::{Blob, FailedWhy, Read, ReadOutcome, RoundFailure, RoundInfo, Terms};
use holdfast_client::Deadline;
use tokio::time::{Instant, sleep_until};

use super::{Process, WAITED_FOR_TIME_MAX};
use crate::error::Error;
use crate::outage::known;
use crate::waiting::{
    FIRST_NOTICE, LOOK_TIME_MAX, Look, PROCESSES_READ_MAX, first_notice, is_of, more, pause,
    purpose, waits,
};

impl Process {
    /// The processes that a round waits for; `None` if that cannot be known at once.
    pub(super) async fn waited_for(&self, round: &Blob, terms: &Terms) -> Option<RoundFailure> {
        let deadline = Deadline::after(WAITED_FOR_TIME_MAX);
        let ReadOutcome::Rounds(rounds) = self.read(self.named(round), deadline).await.ok()? else {
            return None;
        };
        let RoundInfo { generation, arrived_count: arrived, missing_count, missing, .. } =
            rounds.into_iter().find(|open| is_of(open, round, terms))?;
        let (why, specs, revoked) = (FailedWhy::Deadline, None, None);
        Some(RoundFailure { generation, why, arrived, missing_count, missing, specs, revoked })
    }

    /// Open rounds of one name, without the arrived processes: with many thousand
    /// waiting the list is not needed.
    fn named(&self, round: &Blob) -> Read {
        let scope = self.host.scope().clone();
        Read::Rounds { scope, round: Some(round.clone()), brief: true }
    }

    /// The outcome of a call. Logs what it waits for, as long as it does.
    pub(super) async fn saying<T>(
        &self,
        round: Option<(&Blob, &Terms)>,
        call: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            biased;
            done = call => done,
            never = self.say_whom(round) => match never {},
        }
    }

    async fn say_whom(&self, round: Option<(&Blob, &Terms)>) -> Infallible {
        let begun = Instant::now();
        let mut outage = self.host.outage();
        // A known outage needs no look.
        let first = match known(&outage) {
            Some(_) => FIRST_NOTICE,
            None => first_notice(self.process),
        };
        let (mut said, mut next) = (0, begun + first);
        loop {
            tokio::select! {
                biased;
                Ok(()) = outage.changed() => {
                    outage.mark_unchanged();
                    match known(&outage) {
                        Some(cause) => self.say_why(round, begun, &cause),
                        None => tracing::warn!("the store answers again"),
                    }
                }
                () = sleep_until(next) => {
                    let may_begin = said > 0 || self.notices.lock().may_begin(Instant::now());
                    match known(&outage) {
                        Some(cause) => self.say_why(round, begun, &cause),
                        None if may_begin => {
                            // An outage that begins in between is logged by itself.
                            let mut begins = outage.clone();
                            tokio::select! {
                                biased;
                                Ok(()) = begins.changed() => {}
                                () = self.say_whom_now(round, begun) => {}
                            }
                        }
                        None => {}
                    }
                    said += 1;
                    next = Instant::now() + pause(said);
                }
            }
        }
    }

    /// Says why the store does not answer.
    fn say_why(&self, round: Option<(&Blob, &Terms)>, begun: Instant, cause: &str) {
        let what = round.map_or_else(|| "the store".to_owned(), |(round, _)| purpose(round));
        let waits = waits(self.process, self.host.scope(), begun.elapsed(), &what);
        tracing::warn!("{waits}: {cause}");
    }

    async fn say_whom_now(&self, round: Option<(&Blob, &Terms)>, begun: Instant) {
        let deadline = Deadline::after(LOOK_TIME_MAX);
        let scope = self.host.scope();
        let nothing = Blob::from("");
        let named = self.named(round.map_or(&nothing, |(round, _)| round));
        let found = async {
            let answer = self.host.look(named, deadline).await?;
            let (after, limit) = (None, PROCESSES_READ_MAX);
            let read = Read::Processes { scope: scope.clone(), after, limit };
            Ok::<_, Error>((answer, self.host.look(read, deadline).await?))
        };
        let (what, whom) = match (found.await, round) {
            (Err(error), _) => {
                return self.say_why(
                    round,
                    begun,
                    &format!("the store does not answer: {error}; {}", more(scope)),
                );
            }
            (Ok((rounds, processes)), Some((round, terms))) => {
                let (ReadOutcome::Rounds(open), ReadOutcome::Processes { processes, .. }) =
                    (rounds.outcome, processes.outcome)
                else {
                    return;
                };
                // It has closed, or is not open yet.
                let Some(open) = open.iter().find(|open| is_of(open, round, terms)) else {
                    return;
                };
                let look = Look { round: open, processes: &processes, now: rounds.time_ms };
                (purpose(round), look.words())
            }
            // It answers again.
            (Ok(_), None) => return,
        };
        let waits = waits(self.process, scope, begun.elapsed(), &what);
        tracing::warn!("{waits}: {whom}; {}", more(scope));
    }
}
