//! How a client reaches the cluster: through the library, which knows all nodes,
//! or by plain HTTP to one node and no other.

use std::time::Duration;

use holdfast_api::{Blob, Effectiveness, KvOp, Problem, Status};
use holdfast_client::{Client, Credentials, Deadline, Error, Keys, Options};
use serde_json::{Value, json};

use super::Workload;
use super::client::{Shared, Site, Way, Worker};
use super::etcd::Etcd;
use crate::cluster::http::{self, Lost, Request};
use crate::cluster::system::System;
use crate::operation::{Answer, Outcome};

/// Bound on a call while faults come and go.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(5);

/// One route to the cluster, with the job that its keys belong to.
#[derive(Debug, Clone)]
pub enum Door {
    /// Through the client library.
    Library {
        /// The client.
        client: Client,
        /// Its keys.
        keys: Keys,
    },
    /// By HTTP to one node.
    Node {
        /// Its address.
        address: String,
        /// The job.
        job: String,
        /// The token, and how TLS is spoken, if it is.
        credentials: Credentials,
    },
    /// To etcd, in the place of a cluster of ours.
    Etcd(Etcd),
}

/// An answer with its revision, or the outcome of a failed operation.
pub type Answered<T> = Result<(T, Option<u64>), Outcome>;

impl Door {
    /// Sends a change of one key or queue.
    async fn change(&self, path: &str, op: KvOp, body: Value) -> Answered<Value> {
        match self {
            Door::Library { client, keys } => {
                let command = holdfast_api::Command::Kv { scope: keys.scope().clone(), op };
                let answer = client.propose(command, Deadline::after(CALL_TIME_MAX)).await;
                let answer = answer.map_err(|error| failed(&error))?;
                let outcome = serde_json::to_value(&answer.outcome).unwrap_or_default();
                let inner = outcome.get("kv").and_then(|kv| match kv {
                    Value::Object(fields) => fields.values().next().cloned(),
                    _ => Some(Value::Null),
                });
                Ok((inner.unwrap_or_default(), Some(answer.revision)))
            }
            Door::Node { address, .. } => self.post(address, path, body).await,
            Door::Etcd(_) => Err(Outcome::Refused { why: "etcd does not have it".to_owned() }),
        }
    }

    async fn post(&self, address: &str, path: &str, mut body: Value) -> Answered<Value> {
        let mut shown = Credentials::default();
        if let Door::Node { job, credentials, .. } = self {
            body["job"] = json!(job);
            shown.clone_from(credentials);
        }
        post(address, path, &body, shown, Vec::new()).await
    }

    /// Sets a key.
    pub async fn put(&self, key: &str, value: &str) -> Outcome {
        if let Door::Etcd(etcd) = self {
            return etcd.put(key, value).await;
        }
        let op = KvOp::Put { key: key.into(), value: value.into() };
        let body = json!({"key": key, "value": value});
        outcome(self.change("/v1/kv/put", op, body).await, |_| Some(Answer::Done))
    }

    /// Reads a key.
    pub async fn get(&self, key: &str) -> Outcome {
        self.get_with_revision(key).await.0
    }

    /// Reads a key, and the revision of its last change; 0 if it is absent.
    pub async fn get_with_revision(&self, key: &str) -> (Outcome, u64) {
        match self {
            Door::Etcd(etcd) => etcd.get(key).await,
            Door::Library { keys, .. } => {
                match keys.get(key, Deadline::after(CALL_TIME_MAX)).await {
                    Ok(entry) => {
                        let modified = entry.as_ref().map_or(0, |entry| entry.modified);
                        let value = entry.and_then(|entry| entry.value).map(|it| text(&it));
                        let answer = Answer::Value(value);
                        (Outcome::Ok { answer, revision: None }, modified)
                    }
                    Err(error) => (failed(&error), 0),
                }
            }
            Door::Node { address, .. } => {
                let body = json!({"key": key});
                match self.post(address, "/v1/kv/get", body).await {
                    Err(Outcome::Refused { why }) if why.starts_with(ABSENT) => {
                        (Outcome::Ok { answer: Answer::Value(None), revision: None }, 0)
                    }
                    answered => {
                        let mut modified = 0;
                        let read = outcome(answered, |body| {
                            modified = body["modified"].as_u64()?;
                            body["value"].as_str().map(|it| Answer::Value(Some(it.to_owned())))
                        });
                        (read, modified)
                    }
                }
            }
        }
    }

    /// Sets a key if its last change is that of this revision; 0 = if it is absent.
    pub async fn compare_revision_and_set(&self, key: &str, revision: u64, value: &str) -> Outcome {
        if let Door::Etcd(etcd) = self {
            return etcd.compare_revision_and_set(key, revision, value).await;
        }
        let op = KvOp::CompareRevisionAndSet { key: key.into(), revision, value: value.into() };
        let body = json!({"key": key, "revision": revision, "value": value});
        outcome(self.change("/v1/kv/cas-revision", op, body).await, swapped)
    }

    /// Sets a key if it has this value; empty = if it is absent.
    pub async fn compare_and_set(&self, key: &str, expected: &str, value: &str) -> Outcome {
        if let Door::Etcd(etcd) = self {
            return etcd.compare_and_set(key, expected, value).await;
        }
        let op = KvOp::CompareAndSet {
            key: key.into(),
            expected: expected.into(),
            desired: value.into(),
        };
        let body = json!({"key": key, "expected": expected, "desired": value});
        outcome(self.change("/v1/kv/cas", op, body).await, swapped)
    }

    /// Deletes a key.
    pub async fn delete(&self, key: &str) -> Outcome {
        if let Door::Etcd(etcd) = self {
            return etcd.delete(key).await;
        }
        let op = KvOp::Delete { key: key.into() };
        let answered = self.change("/v1/kv/delete", op, json!({"key": key})).await;
        outcome(answered, |body| body["existed"].as_bool().map(Answer::Existed))
    }

    /// Adds to a number.
    pub async fn add(&self, key: &str, delta: i64) -> Outcome {
        if let Door::Etcd(etcd) = self {
            return etcd.add(key, delta).await;
        }
        let op = KvOp::Add { key: key.into(), delta };
        let body = json!({"key": key, "delta": delta});
        let answered = self.change("/v1/kv/add", op, body).await;
        outcome(answered, |body| body["value"].as_i64().map(Answer::Sum))
    }

    /// Appends an element to a list.
    pub async fn append(&self, key: &str, element: &str) -> Outcome {
        if let Door::Etcd(etcd) = self {
            return etcd.append(key, element).await;
        }
        let value = format!("{element},");
        let op = KvOp::Append { key: key.into(), value: value.as_str().into() };
        let body = json!({"key": key, "value": value});
        outcome(self.change("/v1/kv/append", op, body).await, |_| Some(Answer::Done))
    }

    /// Reads a list that was appended to.
    pub async fn list(&self, key: &str) -> Outcome {
        match self.get(key).await {
            Outcome::Ok { answer: Answer::Value(value), revision } => {
                let value = value.unwrap_or_default();
                let all = value.split_terminator(',').map(str::to_owned).collect();
                Outcome::Ok { answer: Answer::Elements(all), revision }
            }
            other => other,
        }
    }

    /// Puts an element into a set: a key for each.
    pub async fn insert(&self, set: &str, element: &str) -> Outcome {
        self.put(&format!("{set}/{element}"), "1").await
    }

    /// Reads a set, page by page if it is long.
    pub async fn elements(&self, set: &str) -> Outcome {
        let prefix = format!("{set}/");
        let name = |key: &str| key.strip_prefix(&prefix).unwrap_or(key).to_owned();
        let all = match self {
            Door::Etcd(etcd) => return etcd.below(&prefix).await,
            Door::Library { keys, .. } => {
                let deadline = Deadline::after(CALL_TIME_MAX);
                match keys.list(prefix.as_str(), None, 0, deadline).await {
                    Err(error) => return failed(&error),
                    Ok(page) if page.next.is_some() => return too_long(),
                    Ok(page) => page.entries.iter().map(|entry| name(&text(&entry.key))).collect(),
                }
            }
            Door::Node { address, .. } => {
                let body = json!({"prefix": prefix});
                match self.post(address, "/v1/kv/list", body).await {
                    Err(outcome) => return outcome,
                    Ok((body, _)) if !body["next"].is_null() => return too_long(),
                    Ok((body, _)) => {
                        let entries = body["entries"].as_array().cloned().unwrap_or_default();
                        entries.iter().filter_map(|it| it["key"].as_str()).map(name).collect()
                    }
                }
            }
        };
        Outcome::Ok { answer: Answer::Elements(all), revision: None }
    }

    /// Puts an element at the end of a queue.
    pub async fn push(&self, queue: &str, element: &str) -> Outcome {
        let op = KvOp::QueuePush { key: queue.into(), value: element.into() };
        let body = json!({"key": queue, "value": element});
        outcome(self.change("/v1/kv/push", op, body).await, |_| Some(Answer::Done))
    }

    /// Takes the element at the front of a queue.
    pub async fn pop(&self, queue: &str) -> Outcome {
        let op = KvOp::QueuePop { key: queue.into() };
        let answered = self.change("/v1/kv/pop", op, json!({"key": queue})).await;
        outcome(answered, |body| Some(Answer::Value(body["value"].as_str().map(str::to_owned))))
    }
}

impl Way for Door {
    fn class(bound: Option<usize>) -> &'static str {
        if bound.is_some() { "one node" } else { "cluster" }
    }

    fn open(client: usize, bound: Option<usize>, site: &Site, shared: &Shared) -> Door {
        let addresses = shared.addresses();
        if site.system == System::Etcd {
            let one = bound.and_then(|node| addresses.iter().cycle().nth(node).cloned());
            let nodes = one.map_or(addresses, |one| vec![one]);
            return Door::Etcd(Etcd::new(nodes, client));
        }
        if let Some(address) = bound.and_then(|node| addresses.iter().cycle().nth(node)) {
            return Door::Node {
                address: address.clone(),
                job: site.scope.job.to_string(),
                credentials: site.credentials.clone(),
            };
        }
        let endpoints = match site.endpoints.is_empty() {
            true => addresses,
            false => site.endpoints.clone(),
        };
        let Credentials { token_file, tls } = site.credentials.clone();
        let client = Client::new(Options { token_file, tls, ..Options::new(endpoints) });
        let keys = client.keys(site.scope.clone());
        Door::Library { client, keys }
    }

    fn reopen(&mut self, client: usize, bound: Option<usize>, site: &Site, shared: &Shared) {
        *self = Door::open(client, bound, site, shared);
    }

    fn is_gone(&self, shared: &Shared) -> bool {
        matches!(self, Door::Node { address, .. } if !shared.addresses().contains(address))
    }

    async fn step(worker: &mut Worker) -> anyhow::Result<()> {
        match worker.workload {
            Workload::Session => Box::pin(worker.resend()).await,
            Workload::Watch => Box::pin(worker.watch_or_write()).await,
            Workload::Wait => Box::pin(worker.wait_or_set()).await,
            Workload::Lease => Box::pin(worker.hold_lease()).await,
            Workload::Fence => Box::pin(worker.lock()).await,
            _ => Box::pin(worker.data()).await,
        }
    }

    async fn last_look(worker: &mut Worker, key: &str) -> anyhow::Result<()> {
        worker.read_at_last(key).await
    }

    async fn close(worker: &mut Worker) -> anyhow::Result<()> {
        if let Door::Library { client, .. } = &worker.door {
            client.clone().close().await;
        }
        Ok(())
    }
}

/// Code at the start of a refusal because a key is absent.
const ABSENT: &str = "key_not_found";

fn too_long() -> Outcome {
    Outcome::Refused { why: "the set is longer than a page".to_owned() }
}

/// A value, which workloads write in plain text.
pub fn text(blob: &Blob) -> String {
    blob.as_text().map_or_else(|| blob.escaped(), str::to_owned)
}

/// The outcome of an operation that an error of the library implies.
pub fn failed(error: &Error) -> Outcome {
    let why = format!("{}: {error}", error.code().as_str());
    match error.outcome() {
        Effectiveness::None => Outcome::Refused { why },
        Effectiveness::Applied | Effectiveness::Unknown => Outcome::Unknown { why },
    }
}

fn outcome(answered: Answered<Value>, read: impl FnOnce(&Value) -> Option<Answer>) -> Outcome {
    match answered {
        Err(outcome) => outcome,
        Ok((body, revision)) => match read(&body) {
            Some(answer) => Outcome::Ok { answer, revision },
            None => Outcome::Unknown { why: format!("an answer of another kind: {body}") },
        },
    }
}

/// The answer to a comparison.
fn swapped(body: &Value) -> Option<Answer> {
    let value = body["value"].as_str().map(str::to_owned);
    Some(Answer::Swapped { swapped: body["swapped"].as_bool()?, value })
}

/// Posts JSON to one node.
pub async fn post(
    address: &str,
    path: &str,
    body: &Value,
    credentials: Credentials,
    headers: Vec<(&'static str, String)>,
) -> Answered<Value> {
    let request = Request { method: "POST", path, credentials, headers, body: body.to_string() };
    match http::send(address, &request, CALL_TIME_MAX).await {
        Err(lost @ Lost::NotSent { .. }) => Err(Outcome::Refused { why: lost.to_string() }),
        Err(lost @ Lost::NoAnswer { .. }) => Err(Outcome::Unknown { why: lost.to_string() }),
        Ok(response) if response.status == 200 => {
            let body = response.json();
            let revision = body["revision"].as_u64();
            Ok((body, revision))
        }
        Ok(response) => Err(match serde_json::from_slice::<Problem>(&response.body) {
            Ok(problem) => {
                let why = format!("{}: {}", problem.code.as_str(), problem.message);
                match problem.outcome {
                    Effectiveness::None => Outcome::Refused { why },
                    Effectiveness::Applied | Effectiveness::Unknown => Outcome::Unknown { why },
                }
            }
            Err(_) => Outcome::Unknown { why: format!("status {}", response.status) },
        }),
    }
}

/// The status of a cluster; an error that names the fix if it is none of Holdfast.
pub async fn recognize(client: &Client, list: &str) -> anyhow::Result<Status> {
    match client.status(Deadline::after(CALL_TIME_MAX * 2)).await {
        Ok(status) => Ok(status),
        Err(error) => anyhow::bail!(
            "{list} does not answer as a Holdfast store does ({error}); name its nodes with --store HOST:PORT,…"
        ),
    }
}
