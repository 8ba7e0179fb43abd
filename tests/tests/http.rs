//! JSON over HTTP: any node answers any call, and a retry has one effect.

use holdfast_api::routes;
use holdfast_api::version::SHARES_LEVEL;
use holdfast_tests::http::{Response, get, get_until_served, send_until_served};
use holdfast_tests::{Cluster, eventually};
use http::Method;
use serde_json::{Value, json};

const JSON: (&str, &str) = ("content-type", "application/json");

/// An election would leave it open whether a call without a session was applied.
const PATIENT: [&str; 4] = ["--election-min", "6s", "--election-max", "9s"];

async fn post(address: &str, path: &str, headers: &[(&str, &str)], body: Value) -> Response {
    let headers = [&[JSON], headers].concat();
    let body = body.to_string();
    let answer = send_until_served(address, Method::POST, path, &headers, body).await;
    answer.unwrap_or_else(|error| panic!("POST {path} to {address}: {error}"))
}

async fn post_ok(address: &str, path: &str, body: Value) -> Value {
    let answer = post(address, path, &[], body).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_answers_every_call() {
    let cluster = Cluster::start_with(3, &PATIENT).await;
    for (n, id) in cluster.ids().into_iter().enumerate() {
        let node = cluster.address(id);
        let key = format!("k{n}");
        post_ok(node, "/v1/kv/put", json!({"key": key, "value": "v"})).await;
        assert_eq!(
            post_ok(node, "/v1/kv/add", json!({"key": "n", "delta": 1})).await["value"],
            n + 1
        );
        let cas = json!({"key": "c", "expected": "", "desired": "x"});
        assert_eq!(post_ok(node, "/v1/kv/cas", cas).await["swapped"], n == 0);
        post_ok(node, "/v1/kv/append", json!({"key": "a", "value": "+"})).await;
        post_ok(node, "/v1/kv/push", json!({"key": "q", "value": key})).await;
        let waited = json!({"keys": [key], "timeout_ms": 60_000});
        assert_eq!(post_ok(node, "/v1/kv/wait", waited).await["met"], true);
        // What one node answered, each node answers.
        for other in cluster.ids() {
            let path = format!("/v1/kv/get?key={key}");
            let entry = get_until_served(cluster.address(other), &path).await;
            assert_eq!(entry.expect("an answer").json()["value"], "v");
        }
    }
    let node = cluster.address(cluster.follower().await);
    let list = post_ok(node, "/v1/kv/list", json!({"prefix": "k"})).await;
    let keys: Vec<&Value> =
        list["entries"].as_array().expect("a list").iter().map(|e| &e["key"]).collect();
    assert_eq!(keys, ["k0", "k1", "k2"]);
    assert_eq!(post_ok(node, "/v1/kv/pop", json!({"key": "q"})).await["value"], "k0");
    assert_eq!(post_ok(node, "/v1/kv/count", json!({"prefix": "k"})).await["count"], 3);
    let status = get_until_served(node, routes::STATUS).await.expect("an answer").json();
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(3));
    let document = get_until_served(node, routes::OPENAPI).await.expect("an answer").json();
    for path in ["/v1/kv/put", "/v1/kv/watch", "/v1/node/add", "/v1/status"] {
        assert!(document["paths"][path].is_object(), "{path} is not described");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_guesses_the_session_or_the_lease_of_another() {
    let cluster = Cluster::start_with(1, &[]).await;
    let node = cluster.address(1).to_owned();
    let secret = |id: &Value| {
        let text = id.as_str().unwrap_or_else(|| panic!("{id} is no text"));
        assert!(text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
        text.to_owned()
    };
    // The level at which ids are secret is reached soon after the founding.
    let opened = eventually("a session with a secret id", async || {
        let opened = post_ok(&node, "/v1/session/open", json!({"ttl_ms": 60_000})).await;
        opened["session"].is_string().then_some(opened)
    })
    .await;
    let other = post_ok(&node, "/v1/session/open", json!({"ttl_ms": 60_000})).await;
    let (session, other) = (secret(&opened["session"]), secret(&other["session"]));
    assert_ne!(session[..16], other[..16], "nothing of one tells of another");
    for guess in 0..200 {
        post_ok(&node, "/v1/session/close", json!({"session": guess})).await;
    }
    for written in [session.clone(), format!("\"{session}\""), session.to_uppercase()] {
        let headers = [(routes::SESSION_HEADER, written.as_str()), (routes::SEQUENCE_HEADER, "1")];
        let add = post(&node, "/v1/kv/add", &headers, json!({"key": "n", "delta": 7})).await;
        assert_eq!((add.status, &add.json()["value"]), (200, &json!(7)), "{written}");
    }
    post_ok(&node, "/v1/session/close", json!({"session": session})).await;
    let headers = [(routes::SESSION_HEADER, session.as_str()), (routes::SEQUENCE_HEADER, "2")];
    let late = post(&node, "/v1/kv/add", &headers, json!({"key": "n", "delta": 7})).await;
    assert_eq!((late.status, &late.json()["code"]), (410, &json!("session_expired")));
    for wrong in [json!("7f"), json!(-1), json!(""), json!(null), json!(1.5)] {
        let refused = post(&node, "/v1/session/close", &[], json!({"session": wrong})).await;
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.text());
    }
    let scope = json!({"job": "j", "run": "r1"});
    post_ok(&node, "/v1/run/open", scope.clone()).await;
    let grant = json!({"grant": {"scope": scope, "nonce": [rand::random::<u64>(), 1], "host": "h", "ttl_ms": 60_000}});
    let granted = post_ok(&node, "/v1/lease", grant).await;
    secret(&granted["outcome"]["granted"]["lease"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_job_leaves_sessions_and_leases_to_others() {
    let cluster = Cluster::start_with(1, &[]).await;
    let node = cluster.address(1).to_owned();
    eventually("the feature level to rise", async || {
        let status = cluster.status(1).await?;
        (status.feature_level >= SHARES_LEVEL).then_some(())
    })
    .await;
    post_ok(&node, "/v1/limits", json!({"sessions_max": 4, "life": {"leases_max": 4}})).await;
    let grant = |job: &str| {
        let (scope, nonce) = (json!({"job": job}), [rand::random::<u64>(), 1]);
        let grant = json!({"scope": scope, "nonce": nonce, "host": "h", "ttl_ms": 60_000});
        json!({"grant": grant})
    };
    for _ in 0..2 {
        post_ok(&node, "/v1/session/open", json!({"job": "greedy"})).await;
        post_ok(&node, "/v1/lease", grant("greedy")).await;
    }
    for (path, body, what) in [
        ("/v1/session/open", json!({"job": "greedy"}), "sessions_max"),
        ("/v1/lease", grant("greedy"), "leases_max"),
    ] {
        let refused = post(&node, path, &[], body).await;
        assert_eq!((refused.status, &refused.json()["code"]), (507, &json!("quota_exceeded")));
        let said = format!("job greedy holds 2 of 4 ({what})");
        assert!(refused.text().contains(&said), "{}", refused.text());
    }
    post_ok(&node, "/v1/session/open", json!({"job": "other"})).await;
    post_ok(&node, "/v1/lease", grant("other")).await;
    // Its end needs nothing of its share.
    cluster.cli_ok(&["--job", "greedy", "run", "end", "default"]).await;
    cluster.cli_ok(&["job", "delete", "greedy"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_in_a_session_has_one_effect_through_any_node_and_leader() {
    let mut cluster = Cluster::start_with(3, &PATIENT).await;
    let follower = cluster.address(cluster.follower().await).to_owned();
    let opened = post_ok(&follower, "/v1/session/open", json!({"ttl_ms": 60_000})).await;
    let session =
        opened["session"].as_str().map_or_else(|| opened["session"].to_string(), str::to_owned);
    let headers = [
        (routes::SESSION_HEADER, session.as_str()),
        (routes::SEQUENCE_HEADER, "1"),
        (routes::ACK_HEADER, "1"),
    ];
    let add = json!({"key": "n", "delta": 7});
    let first = post(&follower, "/v1/kv/add", &headers, add.clone()).await.json();
    assert_eq!((&first["value"], &first["replayed"]), (&json!(7), &Value::Null));
    for id in cluster.ids() {
        let again = post(cluster.address(id), "/v1/kv/add", &headers, add.clone()).await.json();
        assert_eq!((&again["value"], &again["replayed"]), (&json!(7), &json!(true)));
        assert_eq!(again["revision"], first["revision"]);
    }
    eventually("the nodes to count their answers to retries", async || {
        (cluster.duplicates_answered().await >= 3.0).then_some(())
    })
    .await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    for id in cluster.awake() {
        let again = eventually("an answer behind the failover", async || {
            let again = post(cluster.address(id), "/v1/kv/add", &headers, add.clone()).await;
            (again.status == 200).then(|| again.json())
        })
        .await;
        assert_eq!((&again["value"], &again["replayed"]), (&json!(7), &json!(true)));
    }
    // The next sequence acknowledges the first, which is stale from then on.
    let address = cluster.address(cluster.leader().await).to_owned();
    let headers_of = |sequence, ack| {
        [
            (routes::SESSION_HEADER, session.as_str()),
            (routes::SEQUENCE_HEADER, sequence),
            (routes::ACK_HEADER, ack),
        ]
    };
    let next = post(&address, "/v1/kv/add", &headers_of("2", "2"), add.clone()).await.json();
    assert_eq!(next["value"], 14);
    let stale = post(&address, "/v1/kv/add", &headers_of("1", "1"), add).await;
    assert_eq!((stale.status, &stale.json()["code"]), (409, &json!("stale")));
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_say_what_happened_and_what_to_do() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let node = cluster.address(leader).to_owned();
    let put = |body: &'static str| {
        let node = node.clone();
        async move {
            let put = send_until_served(&node, Method::POST, "/v1/kv/put", &[JSON], body);
            put.await.expect("an answer")
        }
    };
    let look = async |path| get_until_served(&node, path).await.expect("an answer");
    for (answer, status, code) in [
        (put("{").await, 400, "invalid_request"),
        (put(r#"{"key": 7}"#).await, 400, "invalid_request"),
        (put(r#"{"job": "a/b", "key": "k", "value": "v"}"#).await, 400, "invalid_request"),
        (look("/v1/kv/get?key=missing").await, 404, "key_not_found"),
        (look("/v1/nothing").await, 404, "invalid_request"),
    ] {
        let text = answer.text();
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{text}");
        let problem = answer.json();
        assert_eq!((answer.status, &problem["code"]), (status, &json!(code)), "{text}");
        assert_eq!((&problem["retryable"], &problem["outcome"]), (&json!(false), &json!("none")));
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 10), "{text}");
    }
    // A key is absent for another reason where its job exists.
    // An election would leave it open whether it was put.
    eventually("a put", async || {
        let web = put(r#"{"job": "web", "key": "k", "value": "v"}"#).await;
        (web.status == 200).then_some(())
    })
    .await;
    for (path, ends) in [
        ("/v1/kv/get?job=wbe&key=k", "job wbe does not exist; did you mean `web`?"),
        ("/v1/kv/get?job=other&key=k", "job other does not exist"),
        ("/v1/kv/get?job=web&key=missing", "there is no key missing in web"),
    ] {
        let problem = look(path).await.json();
        assert_eq!(problem["code"], "key_not_found", "{problem}");
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.ends_with(ends), "{detail}");
    }
    // Without a quorum a follower has no leader to pass calls to, and says so.
    let others: Vec<_> = cluster.ids().into_iter().filter(|id| *id != leader).collect();
    cluster.kill(leader);
    cluster.kill(others[0]);
    let alone = cluster.address(others[1]).to_owned();
    let unavailable = eventually("the last node to miss its leader", async || {
        let answer = get(&alone, "/v1/kv/get?key=k").await.ok()?;
        (answer.json()["code"] == "unavailable").then_some(answer)
    })
    .await;
    assert_eq!(unavailable.status, 503);
    assert!(unavailable.headers.contains_key("retry-after"));
    // Alive is not ready.
    assert_eq!(get(&alone, routes::LIVEZ).await.expect("an answer").status, 200);
    eventually("the last node to be ready no more", async || {
        let status = get(&alone, routes::READYZ).await.ok()?.status;
        let metrics = get(&alone, routes::METRICS).await.ok()?.text();
        (status == 503 && metrics.contains("holdfast_server_has_leader 0")).then_some(())
    })
    .await;
}
