//! A request with a slip has no effect, and its answer names the slip.

use std::time::{Duration, Instant};

use holdfast_tests::Cluster;
use holdfast_tests::http::{Connection, Response, get_until_served, send_until_served};
use holdfast_tests::slips::{BadRequest, calls};
use http::Method;
use serde_json::{Value, json};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Bound on the refusal of a slip: two seconds, and room for a slow machine. An answer
/// that waits for anything takes longer.
const TIME_MAX: Duration = Duration::from_secs(10);

/// A description without this many slips was not understood by this test.
const SLIPS_MIN: usize = 3_000;

/// The content of a cluster, and its members.
async fn state(address: &str) -> Vec<Value> {
    let mut state = Vec::new();
    for path in ["/v1/jobs", "/v1/limits", "/v1/nodes"] {
        let answer = get_until_served(address, path).await.expect("an answer");
        let mut answer = answer.json();
        if let Some(nodes) = answer["nodes"].as_array() {
            let membership = |node: &Value| json!([node["id"], node["voter"]]);
            answer = nodes.iter().map(membership).collect();
        }
        state.push(answer);
    }
    state
}

/// Missing parts of the answer to a slip.
fn fault(request: &BadRequest, answer: &Response, took: Duration) -> Option<String> {
    if answer.status != 400 || answer.headers["content-type"] != "application/problem+json" {
        return Some(format!("status {}", answer.status));
    }
    let problem = answer.json();
    let detail = problem["detail"].as_str().unwrap_or_default();
    let right = [
        ("a code", problem["code"] == "invalid_request"),
        ("an outcome", problem["outcome"] == "none"),
        ("the place of the slip", detail.contains(&request.names)),
        ("an example", detail.contains("works: ")),
        ("haste", took < TIME_MAX),
    ];
    let missing = right.iter().find(|(_, right)| !right);
    missing.map(|(what, _)| format!("without {what}, {}, after {took:?}", request.names))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_slip_is_named_and_does_nothing() {
    let cluster = Cluster::start(3).await;
    let node = cluster.address(cluster.follower().await).to_owned();
    let document = get_until_served(&node, "/openapi.json").await.expect("an answer").json();
    let put = json!({"job": "web", "key": "greeting", "value": "hello"}).to_string();
    let put = send_until_served(&node, Method::POST, "/v1/kv/put", &[JSON], put).await;
    assert_eq!(put.expect("an answer").status, 200);
    let before = state(&node).await;
    let mut connection = Connection::open(&node).await.expect("a connection");
    let (mut count, mut faults) = (0, Vec::new());
    for call in calls(&document) {
        let method: Method = call.method.parse().expect("a method");
        for request in call.slips() {
            let headers = request.body.as_ref().map(|_| JSON);
            let body = request.body.clone().unwrap_or_default();
            let began = Instant::now();
            let answer = connection.send(&method, &request.address, headers.as_slice(), body).await;
            let answer = answer.unwrap_or_else(|error| panic!("{request:?}: {error}"));
            if let Some(fault) = fault(&request, &answer, began.elapsed()) {
                let (address, text) = (&request.address, answer.text());
                faults.push(format!("{fault}: {method} {address} {:?}\n{text}", request.body));
            }
            count += 1;
        }
    }
    assert!(
        faults.is_empty(),
        "{} of {count}:\n{}",
        faults.len(),
        faults[..faults.len().min(20)].join("\n")
    );
    assert!(count > SLIPS_MIN, "{count} slips");
    assert_eq!(state(&node).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_says_the_same_of_a_slip_and_keeps_what_the_key_holds() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.address(cluster.leader().await).to_owned();
    let post = async |node: &str, path: &str, body: Value| {
        let answer = send_until_served(node, Method::POST, path, &[JSON], body.to_string()).await;
        answer.expect("an answer")
    };
    let put = json!({"key": "lock", "value": "held by a"});
    let put = post(&leader, "/v1/kv/put", put).await.json();
    let then = json!([{"put": {"key": "lock", "value": "held by b"}}]);
    let etcd = json!({"target": "VALUE", "key": "lock", "value": "free"});
    let free = json!({"value": {"key": "lock", "value": "free"}});
    for (body, words) in [
        (json!({"compare": [etcd], "then": then}), "unknown variant `compare[0]."),
        (json!({"compares": [free], "then": then}), "did you mean `compare`?"),
        (json!({"compare": [{}], "then": then}), "`compare[0]` is empty"),
        (json!({"compare": [{"vlaue": free["value"]}], "then": then}), "`compare[0].vlaue`"),
        (json!({"then": then}), "`compare` is missing"),
        (json!({"compare": [], "then": then}), "`compare` is empty"),
        (json!({"compare": [], "then": then, "or_else": then}), "`compare` is empty"),
    ] {
        let mut said = Vec::new();
        for id in cluster.ids() {
            let node = cluster.address(id);
            let refused = post(node, "/v1/kv/transaction", body.clone()).await;
            assert_eq!(refused.status, 400, "{}", refused.text());
            said.push(refused.text());
        }
        assert!(said[0].contains(words), "{}", said[0]);
        assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
    }
    let kept = get_until_served(&leader, "/v1/kv/get?key=lock").await.expect("an answer").json();
    assert_eq!((&kept["value"], &kept["revision"]), (&json!("held by a"), &put["revision"]));
    let wrong_job = json!({"jbo": "web", "key": "k", "value": "v"});
    let refused = post(&leader, "/v1/kv/put", wrong_job).await.text();
    assert!(refused.contains("unknown field `jbo`; did you mean `job`?"), "{refused}");
}

/// Examples of the description can be copied: no node calls them a bad request.
#[tokio::test(flavor = "multi_thread")]
async fn every_example_of_the_description_is_understood() {
    // They change the members of the cluster, or never end.
    const APART: [&str; 5] = [
        "/v1/node/add",
        "/v1/node/promote",
        "/v1/node/remove",
        "/v1/leader/transfer",
        "/v1/kv/watch",
    ];
    let cluster = Cluster::start(1).await;
    let node = cluster.address(1).to_owned();
    let document = get_until_served(&node, "/openapi.json").await.expect("an answer").json();
    for call in calls(&document) {
        if APART.contains(&call.path.as_str()) {
            continue;
        }
        for body in call.examples() {
            let body = body.to_string();
            let answer = send_until_served(&node, Method::POST, &call.path, &[JSON], body.clone());
            let answer = answer.await.expect("an answer");
            assert_ne!(answer.status, 400, "{} {body}: {}", call.path, answer.text());
            assert_ne!(answer.status, 500, "{} {body}: {}", call.path, answer.text());
        }
        if call.method == "GET" {
            let answer = get_until_served(&node, &call.example_address()).await;
            let answer = answer.expect("an answer");
            assert_ne!(answer.status, 400, "{}: {}", call.path, answer.text());
        }
    }
}
