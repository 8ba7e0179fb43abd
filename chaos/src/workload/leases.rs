//! Leases with two processes each: renewed for a while, then left alone until the cluster
//! reports their end.

use std::time::Duration;

use holdfast_api::{
    Cause, Code, Command, LeaseCommand, LeaseId, LeaseOutcome, Nonce, Outcome as Came,
    ProcessCommand, ProcessInfo, ProcessOutcome, Read, ReadOutcome, Role,
};
use holdfast_client::{Client, Consistency, Deadline, Error};
use rand::{Rng, RngExt};

use super::client::Worker;
use super::door::{CALL_TIME_MAX, Door, failed};
use crate::operation::{Action, Answer, Outcome, ProcessSeen};

/// The TTL that is asked for.
const TTL_MS: u64 = 1_500;
/// Processes on each lease.
const PROCESSES: u32 = 2;
/// Bound on the wait for an expiry; nothing is wrong if it comes later.
const EXPIRY_TIME_MAX: Duration = Duration::from_secs(8);

impl Worker {
    /// The incarnation of one lease.
    pub(super) async fn hold_lease(&mut self) -> anyhow::Result<()> {
        // A session ends with the lease that registered its processes.
        self.reopen();
        let Door::Library { client, .. } = self.door.clone() else { return Ok(()) };
        let key = format!("lease/{}", self.place);
        let scope = self.site.scope.clone();
        let nonces = [(); 3].map(|()| Nonce(self.random.next_u64(), self.random.next_u64()));
        let granting = async {
            let grant = LeaseCommand::Grant {
                scope: scope.clone(),
                nonce: nonces[0],
                host: "chaos".to_owned(),
                ttl_ms: TTL_MS,
                store_lost_ms_max: None,
            };
            grant_lease(&client, grant).await
        };
        let action = Action::Grant { ttl_ms: TTL_MS, processes: PROCESSES };
        let granted = self.call(&key, action, granting).await?;
        let Outcome::Ok { answer: Answer::Granted { lease, ttl_ms }, .. } = granted else {
            return Ok(());
        };
        let mut processes = Vec::new();
        for nonce in &nonces[1..] {
            match register(&client, lease, *nonce).await {
                Some(process) => processes.push(process),
                // The lease may be gone, or the cluster: the next one shows which.
                None => return Ok(()),
            }
        }
        let third = Duration::from_millis(ttl_ms / 3);
        for _ in 0..self.random.random_range(1..6_u32) {
            tokio::time::sleep(third).await;
            let action = Action::KeepAlive { lease };
            let kept = self.call(&key, action, keep_alive(&client, lease)).await?;
            if self.shared.is_over()
                || !matches!(kept, Outcome::Ok { answer: Answer::Alive(true), .. })
            {
                break;
            }
        }
        let began = tokio::time::Instant::now();
        while began.elapsed() < EXPIRY_TIME_MAX && !self.shared.is_over() {
            tokio::time::sleep(third / 2).await;
            let looking = look(&client, &scope, &processes);
            let seen = self.call(&key, Action::Observe { lease }, looking).await?;
            if let Outcome::Ok { answer: Answer::Processes(all), .. } = seen
                && all.iter().all(|process| process.ended.is_some())
            {
                break;
            }
        }
        Ok(())
    }
}

async fn grant_lease(client: &Client, grant: LeaseCommand) -> Outcome {
    let granted = client.propose(Command::Lease(grant), Deadline::after(CALL_TIME_MAX)).await;
    match granted {
        Err(error) => failed(&error),
        Ok(answer) => match answer.outcome {
            Came::Lease(LeaseOutcome::Granted { lease, ttl_ms, .. }) => Outcome::Ok {
                answer: Answer::Granted { lease, ttl_ms },
                revision: Some(answer.revision),
            },
            other => Outcome::Unknown { why: format!("an answer of another kind: {other:?}") },
        },
    }
}

async fn register(client: &Client, lease: LeaseId, nonce: Nonce) -> Option<u32> {
    let register = ProcessCommand::Register {
        lease,
        process: None,
        nonce,
        replaces: 0,
        takeover: false,
        role: Role::Active,
        labels: Default::default(),
        policy: Box::default(),
    };
    let deadline = Deadline::after(CALL_TIME_MAX);
    match client.propose(Command::Process(register), deadline).await.ok()?.outcome {
        Came::Process(ProcessOutcome::Registered { process, .. }) => Some(process),
        _ => None,
    }
}

async fn keep_alive(client: &Client, lease: LeaseId) -> Outcome {
    let command = Command::Lease(LeaseCommand::KeepAlive { lease });
    let alive = |alive| Outcome::Ok { answer: Answer::Alive(alive), revision: None };
    match client.propose(command, Deadline::after(CALL_TIME_MAX)).await {
        Ok(_) => alive(true),
        Err(Error::Refused(problem)) if problem.code == Code::LeaseEnded => alive(false),
        Err(error) => failed(&error),
    }
}

async fn look(client: &Client, scope: &holdfast_api::Scope, processes: &[u32]) -> Outcome {
    let Some(first) = processes.iter().min() else {
        return Outcome::Refused { why: "there are no processes".to_owned() };
    };
    // Others may register in between.
    let read = Read::Processes { scope: scope.clone(), after: first.checked_sub(1), limit: 0 };
    let deadline = Deadline::after(CALL_TIME_MAX);
    match client.read(read, Consistency::Linearizable, deadline).await {
        Err(error) => failed(&error),
        Ok(answer) => match answer.outcome {
            ReadOutcome::Processes { processes: page, .. } => {
                let own = page.iter().filter(|it| processes.contains(&it.process));
                let all: Vec<ProcessSeen> = own.map(seen).collect();
                match all.len() == processes.len() {
                    true => Outcome::Ok {
                        answer: Answer::Processes(all),
                        revision: Some(answer.revision),
                    },
                    false => Outcome::Refused { why: "the page does not show all".to_owned() },
                }
            }
            other => Outcome::Unknown { why: format!("an answer of another kind: {other:?}") },
        },
    }
}

fn seen(process: &ProcessInfo) -> ProcessSeen {
    let end = process.end.as_ref();
    ProcessSeen {
        process: process.process,
        ended: end.map(|end| end.at),
        by_expiry: end.is_some_and(|end| end.cause == Cause::LeaseExpired),
    }
}
