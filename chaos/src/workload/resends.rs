//! Numbered additions, each sent several times through several nodes.

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
/// Idle time after which the cluster may forget a session.
const SESSION_TTL_MS: u64 = 600_000;

impl Worker {
    /// Opens a session and sends its numbers, each until it was answered at
    /// least twice.
    pub(super) async fn resend(&mut self) -> anyhow::Result<()> {
        let address = self.any_node();
        let open = json!({"ttl_ms": SESSION_TTL_MS});
        let credentials = self.site.credentials.clone();
        let opened = post(&address, "/v1/session/open", &open, credentials, Vec::new()).await;
        let Ok((body, _)) = opened else {
            tokio::time::sleep(self.site.pause).await;
            return Ok(());
        };
        let Ok(session) = SessionId::deserialize(&body["session"]) else { return Ok(()) };
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
