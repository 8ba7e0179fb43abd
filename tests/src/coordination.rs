//! Leases, processes and rounds of the job [`JOB`], made over plain HTTP.

use holdfast_api::LeaseId;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::send_until_served;
use crate::patience::eventually;

/// The job of all these.
pub const JOB: &str = "train";

/// No lease of these tests ends by itself.
const TTL_MS: u64 = 3_600_000;

/// One command over HTTP, on the leader.
pub async fn try_post(cluster: &Cluster, path: &str, body: &Value) -> Result<Value, String> {
    let leader = cluster.leader().await;
    let headers = [("content-type", "application/json")];
    let (node, body) = (cluster.address(leader), body.to_string());
    let answer = send_until_served(node, Method::POST, path, &headers, body).await?;
    match answer.status {
        200 => Ok(answer.json()["outcome"].clone()),
        status => Err(format!("{status}: {}", answer.text())),
    }
}

/// The same; answers its outcome.
///
/// # Panics
///
/// If it was refused.
pub async fn post(cluster: &Cluster, path: &str, body: Value) -> Value {
    match try_post(cluster, path, &body).await {
        Ok(outcome) => outcome,
        Err(error) => panic!("{path} {body}: {error}"),
    }
}

/// A host with a lease. The first one waits until the cluster has raised its
/// feature level.
pub async fn lease(cluster: &Cluster, host: &str, nonce: u64) -> LeaseId {
    let scope = json!({"job": JOB});
    let grant =
        json!({"grant": {"scope": scope, "nonce": [nonce, 0], "host": host, "ttl_ms": TTL_MS}});
    let granted =
        eventually("a lease", async || try_post(cluster, "/v1/lease", &grant).await.ok()).await;
    LeaseId::deserialize(&granted["granted"]["lease"]).expect("a lease has an id")
}

/// Registers a process; answers its incarnation.
pub async fn register(cluster: &Cluster, lease: LeaseId, process: u32) -> u64 {
    register_with(cluster, lease, process, json!({})).await
}

/// Registers a process with these numbers.
pub async fn register_with(cluster: &Cluster, lease: LeaseId, process: u32, policy: Value) -> u64 {
    let nonce = [1_000, process];
    let register = json!({"lease": lease, "process": process, "nonce": nonce, "policy": policy});
    let register = json!({"register": register});
    let registered = post(cluster, "/v1/process", register).await;
    registered["registered"]["incarnation"].as_u64().expect("an incarnation is a number")
}

/// Processes of one host arrive at a round.
pub async fn arrive(
    cluster: &Cluster,
    lease: LeaseId,
    round: &str,
    terms: Value,
    arrivals: &[(u32, u64, u64)],
) -> Value {
    let arrivals: Vec<Value> = arrivals
        .iter()
        .map(|(process, incarnation, call)| {
            json!({"process": process, "incarnation": incarnation, "call": call})
        })
        .collect();
    let arrive = json!({"lease": lease, "round": round, "terms": terms, "arrivals": arrivals});
    post(cluster, "/v1/round", json!({"arrive": arrive})).await
}
