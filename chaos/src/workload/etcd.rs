//! Keys of etcd, through its gateway for JSON. Additions and appends, which it does not have,
//! are what its users write for them: a read, and a transaction that compares.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::door::CALL_TIME_MAX;
use crate::cluster::http::{self, Lost, Request};
use crate::operation::{Answer, Outcome};

/// A client of some nodes, which stays with one while that answers.
#[derive(Debug, Clone)]
pub struct Etcd {
    endpoints: Vec<String>,
    current: Arc<AtomicUsize>,
}

/// A key as it was read.
struct Entry {
    value: Option<String>,
    /// Revision of its last change; 0 if it is absent.
    modified: u64,
}

impl Etcd {
    /// For a client with this number.
    pub fn new(endpoints: Vec<String>, client: usize) -> Etcd {
        Etcd { endpoints, current: Arc::new(AtomicUsize::new(client)) }
    }

    pub(super) async fn put(&self, key: &str, value: &str) -> Outcome {
        let body = json!({"key": encode(key), "value": encode(value)});
        match self.call("/v3/kv/put", &body, true).await {
            Ok(_) => done(Answer::Done),
            Err(outcome) => outcome,
        }
    }

    /// Reads a key, and the revision of its last change; 0 if it is absent.
    pub(super) async fn get(&self, key: &str) -> (Outcome, u64) {
        match self.read(key).await {
            Ok(Entry { value, modified }) => (done(Answer::Value(value)), modified),
            Err(outcome) => (outcome, 0),
        }
    }

    pub(super) async fn delete(&self, key: &str) -> Outcome {
        match self.call("/v3/kv/deleterange", &json!({"key": encode(key)}), true).await {
            Ok(body) => done(Answer::Existed(number(&body["deleted"]) > 0)),
            Err(outcome) => outcome,
        }
    }

    pub(super) async fn compare_and_set(&self, key: &str, expected: &str, value: &str) -> Outcome {
        let compare = match expected {
            "" => json!({"key": encode(key), "target": "CREATE", "create_revision": "0"}),
            _ => json!({"key": encode(key), "target": "VALUE", "value": encode(expected)}),
        };
        self.compared(key, compare, value).await
    }

    pub(super) async fn compare_revision_and_set(
        &self,
        key: &str,
        revision: u64,
        value: &str,
    ) -> Outcome {
        self.compared(key, changed_at(key, revision), value).await
    }

    async fn compared(&self, key: &str, compare: Value, value: &str) -> Outcome {
        match self.swap(key, compare, value).await {
            Err(outcome) => outcome,
            Ok(None) => done(Answer::Swapped { swapped: true, value: Some(value.to_owned()) }),
            Ok(Some(Entry { value, .. })) => done(Answer::Swapped { swapped: false, value }),
        }
    }

    pub(super) async fn add(&self, key: &str, delta: i64) -> Outcome {
        let sum = |value: Option<&str>| {
            let before = value.map_or(Ok(0), str::parse::<i64>);
            before.map(|before| before + delta)
        };
        let add = |value: Option<&str>| sum(value).ok().map(|sum| sum.to_string());
        match self.change(key, add).await {
            Ok(text) => text.parse().map_or_else(
                |_| Outcome::Unknown { why: format!("{text:?} is no number") },
                |sum| done(Answer::Sum(sum)),
            ),
            Err(outcome) => outcome,
        }
    }

    pub(super) async fn append(&self, key: &str, element: &str) -> Outcome {
        let append = |value: Option<&str>| Some(format!("{}{element},", value.unwrap_or_default()));
        match self.change(key, append).await {
            Ok(_) => done(Answer::Done),
            Err(outcome) => outcome,
        }
    }

    /// The names of all keys below a prefix, without it.
    pub(super) async fn below(&self, prefix: &str) -> Outcome {
        let body = json!({
            "key": encode(prefix), "range_end": encode(&end_of(prefix)), "keys_only": true,
        });
        match self.call("/v3/kv/range", &body, false).await {
            Err(outcome) => outcome,
            Ok(body) => {
                let entries = body["kvs"].as_array().cloned().unwrap_or_default();
                let keys = entries.iter().map(|entry| decode(&entry["key"]));
                let names = keys.map(|key| key.strip_prefix(prefix).unwrap_or(&key).to_owned());
                done(Answer::Elements(names.collect()))
            }
        }
    }

    /// Changes a value as its users do, again until nobody else came between; answers the new
    /// value.
    async fn change(
        &self,
        key: &str,
        change: impl Fn(Option<&str>) -> Option<String>,
    ) -> Result<String, Outcome> {
        let began = Instant::now();
        loop {
            let Entry { value, modified } = self.read(key).await?;
            let Some(value) = change(value.as_deref()) else {
                return Err(Outcome::Unknown { why: format!("{value:?} is no value of {key}") });
            };
            if self.swap(key, changed_at(key, modified), &value).await?.is_none() {
                return Ok(value);
            }
            if began.elapsed() > CALL_TIME_MAX {
                return Err(Outcome::Refused { why: "others came between each time".to_owned() });
            }
        }
    }

    /// Sets a key if a comparison holds; answers what is there if not.
    async fn swap(&self, key: &str, compare: Value, value: &str) -> Result<Option<Entry>, Outcome> {
        let put = json!({"request_put": {"key": encode(key), "value": encode(value)}});
        let range = json!({"request_range": {"key": encode(key)}});
        let body = json!({"compare": [compare], "success": [put], "failure": [range]});
        let body = self.call("/v3/kv/txn", &body, true).await?;
        Ok(match body["succeeded"].as_bool() {
            Some(true) => None,
            _ => Some(entry(&body["responses"][0]["response_range"])),
        })
    }

    async fn read(&self, key: &str) -> Result<Entry, Outcome> {
        let body = self.call("/v3/kv/range", &json!({"key": encode(key)}), false).await?;
        Ok(entry(&body))
    }

    /// Calls the node that it is with. A node that takes no connection is left for the next
    /// one within the call, one that does not answer after it.
    async fn call(&self, path: &str, body: &Value, changes: bool) -> Result<Value, Outcome> {
        let deadline = Instant::now() + CALL_TIME_MAX;
        let request =
            Request { method: "POST", path, body: body.to_string(), ..Request::default() };
        let mut why = "it has no endpoints".to_owned();
        for _ in 0..self.endpoints.len() {
            let current = self.current.load(Ordering::Relaxed);
            let address = &self.endpoints[current % self.endpoints.len()];
            let left = deadline.saturating_duration_since(Instant::now());
            let is_sent = match http::send(address, &request, left).await {
                Ok(response) if response.status == 200 && response.json()["header"].is_object() => {
                    return Ok(response.json());
                }
                Ok(response) => {
                    let error = response.json()["error"].as_str().map(str::to_owned);
                    why = error.unwrap_or_else(|| format!("status {}", response.status));
                    true
                }
                Err(lost @ Lost::NoAnswer { .. }) => {
                    why = lost.to_string();
                    true
                }
                Err(lost @ Lost::NotSent { .. }) => {
                    why = lost.to_string();
                    false
                }
            };
            self.current.store(current + 1, Ordering::Relaxed);
            if is_sent {
                return Err(match changes {
                    true => Outcome::Unknown { why },
                    false => Outcome::Refused { why },
                });
            }
        }
        Err(Outcome::Refused { why })
    }
}

fn done(answer: Answer) -> Outcome {
    Outcome::Ok { answer, revision: None }
}

fn encode(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// Text as it was encoded. What nobody encoded stays as it is: no client wrote that.
fn decode(value: &Value) -> String {
    let encoded = value.as_str().unwrap_or_default();
    let bytes = BASE64_STANDARD.decode(encoded);
    bytes.map_or_else(|_| encoded.to_owned(), |it| String::from_utf8_lossy(&it).into_owned())
}

/// The comparison that a key was last changed at this revision; 0 = that it is absent.
fn changed_at(key: &str, revision: u64) -> Value {
    json!({"key": encode(key), "target": "MOD", "mod_revision": revision.to_string()})
}

/// Numbers come as text, and those that are 0 not at all.
fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The first entry of a range; an empty value comes not at all.
fn entry(range: &Value) -> Entry {
    let found = &range["kvs"][0];
    Entry {
        value: found.is_object().then(|| decode(&found["value"])),
        modified: number(&found["mod_revision"]),
    }
}

/// The first key behind all that begin with a prefix of plain text.
fn end_of(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    if let Some(last) = end.pop() {
        end.push(char::from_u32(u32::from(last) + 1).unwrap_or(char::MAX));
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_key_is_told_from_an_empty_one() {
        let absent = entry(&json!({}));
        assert_eq!((absent.value, absent.modified), (None, 0));
        let empty = entry(&json!({"kvs": [{"key": "aw==", "mod_revision": "7"}]}));
        assert_eq!((empty.value, empty.modified), (Some(String::new()), 7));
        let one = entry(&json!({"kvs": [{"value": "b25l", "mod_revision": "8"}]}));
        assert_eq!((one.value, one.modified), (Some("one".to_owned()), 8));
        let foreign = entry(&json!({"kvs": [{"value": "no base64"}]}));
        assert_eq!(foreign.value, Some("no base64".to_owned()));
    }

    #[test]
    fn a_prefix_ends_before_its_successor() {
        let end = end_of("set/0/");
        assert_eq!(end, "set/00");
        assert!("set/0/e999" < end.as_str() && end.as_str() < "set/01");
    }

    #[tokio::test]
    async fn what_was_not_sent_has_no_effect_and_what_was_may_have() {
        let closed = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().to_string()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap().to_string();
        let mut breaking = tokio::task::JoinSet::new();
        breaking.spawn(async move {
            // Takes the request, and breaks off.
            while let Ok((stream, _)) = listener.accept().await {
                stream.readable().await.unwrap();
            }
        });
        let nobody = Etcd::new(vec![closed.clone()], 0);
        assert!(matches!(nobody.put("k", "v").await, Outcome::Refused { .. }));
        let breaks_off = Etcd::new(vec![closed, open], 0);
        assert!(matches!(breaks_off.put("k", "v").await, Outcome::Unknown { .. }));
        assert!(matches!(breaks_off.get("k").await.0, Outcome::Refused { .. }));
    }
}
