//! Numbered additions, each sent several times through several nodes.

use std::time::Duration;

use holdfast_api::{SessionId, routes};
use rand::RngExt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Worker;
use super::door::{Answered, post};
use crate::operation::{Action, Answer, Outcome};

/// Most unanswered tries of one number.
const TRIES_MAX: u32 = 20;
/// Numbers of one session.
const NUMBERS: u64 = 100;
/// Idle time after which the cluster forgets a session, besides the pauses of its client. Each
/// number renews it. It ends what a run that was killed did not close.
const SESSION_TTL: Duration = Duration::from_secs(120);
/// How often a session is closed until that is answered.
const CLOSE_TRIES_MAX: u32 = 3;

impl Worker {
    /// Opens a session, sends its numbers, and closes it.
    pub(super) async fn resend(&mut self) -> anyhow::Result<()> {
        let address = self.any_node();
        let ttl = SESSION_TTL + self.site.pause * 2;
        let open = json!({"ttl_ms": u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)});
        let credentials = self.site.credentials.clone();
        let opened = post(&address, "/v1/session/open", &open, credentials, Vec::new()).await;
        let Ok((body, _)) = opened else {
            tokio::time::sleep(self.site.pause).await;
            return Ok(());
        };
        let Ok(session) = SessionId::deserialize(&body["session"]) else { return Ok(()) };
        let sent = self.send_all(session).await;
        self.close_session(session).await;
        sent
    }

    /// Closes a session. If no node answers, it expires.
    async fn close_session(&mut self, session: SessionId) {
        let body = json!({"session": session});
        for _ in 0..CLOSE_TRIES_MAX {
            let (address, credentials) = (self.any_node(), self.site.credentials.clone());
            let closed = post(&address, "/v1/session/close", &body, credentials, Vec::new()).await;
            if closed.is_ok() {
                break;
            }
        }
    }

    /// Sends the numbers of a session, each until it was answered at least twice.
    async fn send_all(&mut self, session: SessionId) -> anyhow::Result<()> {
        let key = format!("session/{session}");
        for sequence in 1..=NUMBERS {
            if self.shared.is_over() {
                break;
            }
            let (mut tries, mut answers) = (0, 0);
            while answers < 2 && tries < TRIES_MAX {
                answers += self.send_twice(&key, session, sequence).await?;
                tries += 2;
            }
            if answers == 0 {
                // The next number would acknowledge it.
                break;
            }
        }
        Ok(())
    }

    /// Sends a number through two nodes at once; answers how many answered.
    async fn send_twice(
        &mut self,
        key: &str,
        session: SessionId,
        sequence: u64,
    ) -> anyhow::Result<u32> {
        let body = json!({"job": self.site.scope.job.to_string(), "key": key, "delta": 1});
        let (one, other) = (self.any_node(), self.any_node());
        let first = self.begin(key, Action::Resend { sequence })?;
        let second = self.begin(key, Action::Resend { sequence })?;
        let credentials = &self.site.credentials;
        let sending = |address: String| {
            let headers = vec![
                (routes::SESSION_HEADER, session.to_string()),
                (routes::SEQUENCE_HEADER, sequence.to_string()),
            ];
            let (body, credentials) = (&body, credentials.clone());
            async move { post(&address, "/v1/kv/add", body, credentials, headers).await }
        };
        let (one, other) = tokio::join!(sending(one), sending(other));
        let mut answers = 0;
        for (id, answered) in [(first, one), (second, other)] {
            let outcome = sum(answered);
            answers += u32::from(matches!(outcome, Outcome::Ok { .. }));
            self.end(id, outcome)?;
        }
        tokio::time::sleep(self.site.pause).await;
        Ok(answers)
    }

    fn any_node(&mut self) -> String {
        let addresses = self.shared.addresses();
        addresses[self.random.random_range(0..addresses.len())].clone()
    }
}

fn sum(answered: Answered<Value>) -> Outcome {
    match answered {
        Err(outcome) => outcome,
        Ok((body, revision)) => match body["value"].as_i64() {
            Some(sum) => Outcome::Ok { answer: Answer::Sum(sum), revision },
            None => Outcome::Unknown { why: "an answer without a sum".to_owned() },
        },
    }
}
