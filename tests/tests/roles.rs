//! Signed tokens: what a role allows and what it does not, through every node, for as
//! long as the token and its key count.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ::http::Method;
use holdfast_api::version::SHARES_LEVEL;
use holdfast_api::{
    Admin, Blob, Code, Command, Condition, KvOp, NodeId, Proposal, Read, ReplyBody, RequestBody,
    RunCommand, Until, routes,
};
use holdfast_tests::http::{self, Response};
use holdfast_tests::{Agent, Cluster, Ended, RawStream, binaries, cluster, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

const SHARED: &str = "the-shared-token-of-the-cluster";

/// What is between clients and nodes. The same is refused over both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Plain,
    Tls,
}

/// The shared token, a key and its public half, and tokens that the key signed.
struct Files(TempDir);

impl Files {
    async fn new() -> Files {
        let files =
            Files(tempfile::tempdir().expect("the folder for temporary files can be written"));
        files.write("shared", SHARED);
        files.keygen("key").await;
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes a file in one step, closed to others.
    fn write(&self, name: &str, content: &str) -> PathBuf {
        let (path, draft) = (self.path(name), self.path("draft"));
        std::fs::write(&draft, content).expect("it can be written");
        std::fs::set_permissions(&draft, PermissionsExt::from_mode(0o600)).expect("it is ours");
        std::fs::rename(&draft, &path).expect("both are ours");
        path
    }

    async fn keygen(&self, name: &str) {
        let mut command = binaries::command("holdfast");
        command.args(["token", "keygen", &self.text(name)]);
        let made = Ended::of(command).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        let mode =
            std::fs::metadata(self.path(name)).expect("the key was written").permissions().mode();
        assert_eq!(mode & 0o077, 0, "others can read a signing key");
    }

    /// A new token in a file of its name.
    async fn token(&self, name: &str, key: &str, expires: &str, of: &[&str]) -> String {
        let mut command = binaries::command("holdfast");
        command.args(["token", "create", "--key", &self.text(key), "--name", name]);
        command.args(["--expires", expires]).args(of);
        let made = Ended::of(command).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        self.write(name, &made.stdout);
        made.stdout.trim().to_owned()
    }

    /// A running cluster that takes the shared token, and tokens signed by the key.
    async fn cluster(&self, over: Over) -> Cluster {
        std::fs::copy(self.path("key.pub"), self.path("keys")).expect("it was made");
        let (shared, keys) = (self.text("shared"), self.text("keys"));
        let flags = ["--token-file", &shared, "--token-keys", &keys];
        let mut cluster = Cluster::plan(3, &flags);
        if over == Over::Tls {
            cluster.make_certificates().await;
        }
        cluster.use_token(&self.path("shared"));
        for id in cluster.ids() {
            cluster.launch(id);
        }
        cluster.wait_all_ready().await;
        cluster
    }
}

async fn cli(cluster: &Cluster, token: &Path, arguments: &[&str]) -> Ended {
    let mut command = binaries::command("holdfast");
    command.args(["--store", &cluster.list(), "--token-file"]).arg(token);
    command.envs(trusted(cluster)).args(arguments);
    Ended::of(command).await
}

/// The variable by which programs trust the nodes' certificates, if they have any.
fn trusted(cluster: &Cluster) -> Option<(&'static str, PathBuf)> {
    cluster.authority().map(|file| ("HOLDFAST_TLS_CA", file))
}

/// One call of a node.
async fn ask(
    cluster: &Cluster,
    node: NodeId,
    token: &str,
    (method, path): (Method, &str),
    body: &Value,
) -> Response {
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    let body = if method == Method::GET { String::new() } else { body.to_string() };
    let (tls, address) = (cluster.credentials().tls, cluster.address(node));
    let sent = http::send_until_served_over(tls.as_ref(), address, method, path, &headers, body);
    sent.await.expect("it answers")
}

async fn get(cluster: &Cluster, node: NodeId, token: &str, path: &str) -> Response {
    ask(cluster, node, token, (Method::GET, path), &Value::Null).await
}

fn is_forbidden(answer: &Response) -> bool {
    let forbidden = answer.status == 403;
    assert!(!forbidden || answer.json()["code"] == "forbidden", "{}", answer.text());
    forbidden
}

/// Every call that the description of a node has, as its examples make it.
async fn calls(cluster: &Cluster, node: NodeId) -> Vec<(Method, String, Value)> {
    let document = get(cluster, node, SHARED, "/openapi.json").await.json();
    let mut calls = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, call) in methods.as_object().expect("methods") {
            let parameters = call["parameters"].as_array().cloned().unwrap_or_default();
            let query: Vec<String> = parameters
                .iter()
                .filter(|p| p["in"] == "query" && (p["name"] == "job" || p["required"] == true))
                .map(|p| {
                    let example = p["example"].to_string();
                    format!("{}={}", p["name"].as_str().expect("a name"), example.trim_matches('"'))
                })
                .collect();
            let path = match query.is_empty() {
                true => path.clone(),
                false => format!("{path}?{}", query.join("&")),
            };
            let method: Method = method.to_uppercase().parse().expect("a method");
            let content = &call["requestBody"]["content"]["application/json"];
            match content["examples"].as_object() {
                Some(examples) => calls.extend(
                    examples.values().map(|e| (method.clone(), path.clone(), e["value"].clone())),
                ),
                None => calls.push((method, path, content["example"].clone())),
            }
        }
    }
    assert!(calls.len() > 50, "{}", calls.len());
    calls
}

#[tokio::test]
async fn every_call_about_another_job_is_refused_through_every_node() {
    every_call(Over::Plain).await;
}

#[tokio::test]
async fn every_call_about_another_job_is_refused_through_every_node_over_tls() {
    every_call(Over::Tls).await;
}

async fn every_call(over: Over) {
    let files = Files::new().await;
    let cluster = files.cluster(over).await;
    let llm = files.token("llm", "key", "1h", &["--role", "job", "--jobs", "llm-*"]).await;
    let operator = files.token("op", "key", "1h", &["--role", "operator"]).await;
    let shared = files.path("shared");
    for job in ["web", "llm-7b"] {
        cli(&cluster, &shared, &["--job", job, "kv", "put", "k", "v"]).await;
    }
    let (follower, leader) = cluster.follower_and_leader().await;
    // Each call has a handshake of its own, and what a follower passes on reaches the leader, too.
    let nodes = match over {
        Over::Plain => vec![follower, leader],
        Over::Tls => vec![follower],
    };
    for node in nodes {
        for (method, path, body) in calls(&cluster, node).await {
            let answer = ask(&cluster, node, &llm, (method.clone(), &path), &body).await;
            let said = format!("{method} {path} {body}: {} {}", answer.status, answer.text());
            let of_web = path.contains("job=web") || body.to_string().contains(r#""job":"web""#);
            let of_cluster = ["/v1/node/", "/v1/token"].iter().any(|of| path.starts_with(of))
                || path == "/v1/leader/transfer"
                || path == "/v1/backup"
                || (path == "/v1/limits" && method == Method::POST);
            // Agents are asked for by job, and those of others left out.
            let filtered = path.starts_with("/v1/agents");
            assert_eq!(is_forbidden(&answer), (of_web && !filtered) || of_cluster, "{said}");

            // An operator sees, and has no keys. What it may change is not asked for here.
            let everything = ["/v1/backup", "/v1/tokens"].contains(&path.as_str());
            if path.starts_with("/v1/kv/") || everything {
                let answer = ask(&cluster, node, &operator, (method, &path), &body).await;
                assert!(is_forbidden(&answer), "{path}: {}", answer.text());
            } else if method == Method::GET {
                let answer = ask(&cluster, node, &operator, (method, &path), &body).await;
                assert!(!is_forbidden(&answer), "{path}: {}", answer.text());
            }
        }
        // Its own job, and lists without others.
        let own = json!({"job": "llm-7b", "key": "k", "value": node.to_string()});
        let post = |path| (Method::POST, path);
        let put = ask(&cluster, node, &llm, post("/v1/kv/put"), &own).await;
        assert_eq!(put.status, 200);
        let jobs = get(&cluster, node, &llm, "/v1/jobs?stale=true").await.json();
        let names: Vec<&Value> =
            jobs["jobs"].as_array().expect("a list").iter().map(|j| &j["job"]).collect();
        assert_eq!(names, ["llm-7b"], "{jobs}");
        let stale = json!({"job": "web", "key": "k", "stale": true});
        let got = ask(&cluster, node, &llm, post("/v1/kv/get"), &stale).await;
        assert_eq!(got.status, 403);
        // No token is one of nodes.
        for path in ["/raft/v1/identity", "/raft/v1/agents", "/raft/v1/channel/append"] {
            let answer = get(&cluster, node, &llm, path).await;
            assert_eq!(answer.status, 401, "{path}");
        }
    }
}

#[tokio::test]
async fn a_session_counts_for_no_job_that_its_opener_may_not_use() {
    let files = Files::new().await;
    let cluster = files.cluster(Over::Plain).await;
    let llm = files.token("llm", "key", "1h", &["--role", "job", "--jobs", "llm-*"]).await;
    let operator = files.token("op", "key", "1h", &["--role", "operator"]).await;
    let (_, leader) = cluster.follower_and_leader().await;
    eventually("the feature level to rise", async || {
        let status = get(&cluster, leader, SHARED, "/v1/status").await.json();
        (status["feature_level"].as_u64() >= Some(SHARES_LEVEL.into())).then_some(())
    })
    .await;
    let few = json!({"sessions_max": 4});
    let limited = ask(&cluster, leader, SHARED, (Method::POST, "/v1/limits"), &few).await;
    assert_eq!(limited.status, 200, "{}", limited.text());
    let (open, of_web) = ((Method::POST, "/v1/session/open"), json!({"job": "web"}));
    for token in [&llm, &operator] {
        let opened = ask(&cluster, leader, token, open.clone(), &of_web).await;
        assert_eq!(opened.status, 200, "{}", opened.text());
    }
    for token in [&llm, &operator] {
        let refused = ask(&cluster, leader, token, open.clone(), &of_web).await;
        assert!(refused.text().contains("those who name no job hold 2 of 4"), "{}", refused.text());
    }
    let opened = ask(&cluster, leader, SHARED, open, &of_web).await;
    assert_eq!(opened.status, 200, "{}", opened.text());
}

#[tokio::test]
async fn command_lines_and_agents_work_with_a_token_of_their_job_alone() {
    command_lines_and_agents(Over::Plain).await;
}

#[tokio::test]
async fn command_lines_and_agents_work_with_a_token_of_their_job_alone_over_tls() {
    command_lines_and_agents(Over::Tls).await;
}

async fn command_lines_and_agents(over: Over) {
    let files = Files::new().await;
    let mut cluster = files.cluster(over).await;
    files.token("llm", "key", "1h", &["--role", "job", "--jobs", "llm-*"]).await;
    files.token("op", "key", "1h", &["--role", "operator"]).await;
    let (llm, op) = (files.path("llm"), files.path("op"));
    let put = cli(&cluster, &llm, &["--job", "llm-7b", "kv", "put", "k", "v"]).await;
    assert_eq!(put.code, Some(0), "{put:?}");
    let words = ["role job for llm-*", "change keys", "job web"];
    cli(&cluster, &llm, &["--job", "web", "kv", "put", "k", "v"]).await.failed(1, &words);
    let watch = ["--job", "web", "kv", "watch"];
    cli(&cluster, &llm, &watch).await.failed(1, &["role job for llm-*", "job web"]);
    cli(&cluster, &llm, &["leader", "transfer"]).await.failed(1, &["hand leadership over"]);
    cli(&cluster, &op, &["--job", "llm-7b", "kv", "get", "k"]).await.failed(1, &["role operator"]);
    let moved = cli(&cluster, &op, &["leader", "transfer"]).await;
    assert_eq!(moved.code, Some(0), "{moved:?}");
    let listed = cli(&cluster, &op, &["job", "list"]).await;
    assert!(listed.stdout.contains("llm-7b"), "{listed:?}");

    // A launcher's agent: of its job, and of another.
    let flags = |job: &'static str| {
        vec!["--job".to_owned(), job.to_owned(), "--token-file".to_owned(), files.text("llm")]
    };
    let own = flags("llm-7b");
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let trusted: Vec<(&str, String)> = trusted(&cluster)
        .map(|(name, file)| (name, file.display().to_string()))
        .into_iter()
        .collect();
    let variables: Vec<(&str, &str)> =
        trusted.iter().map(|(name, file)| (*name, file.as_str())).collect();
    let (mut agent, log) = Agent::run_with(&mut cluster, "own", &variables, &own, &["true"]);
    let ended = agent.ended().await;
    assert!(ended.success(), "{ended}: {}", std::fs::read_to_string(&log).unwrap_or_default());
    let other = flags("web");
    let mut command = binaries::command("holdfast-agent");
    command.args(["run", "--store", &cluster.list()]).args(other).args(["--", "true"]);
    command.envs(variables);
    let refused = Ended::of(command).await;
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.stderr.contains("role job for llm-*"), "{refused:?}");

    // The operator's change is written down, on the node that led.
    let mut audited = false;
    for id in cluster.ids() {
        audited |= cluster.process(id).said().contains("hand leadership over");
    }
    assert!(audited, "nobody wrote down who moved the leadership");
}

/// Streams of this token's holder: at a node, and through it to the leader.
async fn streams(
    cluster: &Cluster,
    [follower, leader]: [NodeId; 2],
    token: &str,
) -> [RawStream; 2] {
    let authorization = format!("Bearer {token}");
    let authorization = ("authorization", authorization.as_str());
    let through = [authorization, (routes::THROUGH_HEADER, "1")];
    let tls = cluster.credentials().tls;
    let open = async |node, headers: &[(&str, &str)]| {
        RawStream::open_with(tls.as_ref(), cluster.address(node), headers).await
    };
    let here = open(leader, &[authorization]).await;
    let there = open(follower, &through).await;
    let there = there.expect("a follower passes the stream on");
    assert_eq!(there.hello.node, leader);
    [here.expect("the leader takes it"), there]
}

/// Frames about another job, and about the cluster.
fn others() -> Vec<RequestBody> {
    let web = cluster::job("web");
    let command = |command| RequestBody::Propose(Proposal { session: None, command });
    let read = |read, stale| RequestBody::Read { read, stale };
    let (scope, key) = (web.clone(), Blob::from("k"));
    let run = "r1".parse().expect("a name");
    vec![
        command(Command::Kv { scope, op: KvOp::Delete { key: key.clone() } }),
        command(Command::Run(RunCommand::End { job: web.job.clone(), run })),
        read(Read::Get { scope: web.clone(), key: key.clone() }, true),
        read(Read::rounds(web.clone()), false),
        RequestBody::Wait {
            scope: web.clone(),
            conditions: vec![Condition { key: key.clone(), until: Until::Exists }],
            since: None,
        },
        RequestBody::Watch {
            scope: web.clone(),
            prefix: key,
            from: None,
            progress_together: false,
        },
        RequestBody::Events { job: web.job, after: 0 },
        RequestBody::Admin(Admin::TransferLeader { to: None }),
    ]
}

#[tokio::test]
async fn a_stream_ends_with_its_token_and_with_its_key() {
    a_stream(Over::Plain).await;
}

#[tokio::test]
async fn a_stream_ends_with_its_token_and_with_its_key_over_tls() {
    a_stream(Over::Tls).await;
}

async fn a_stream(over: Over) {
    let files = Files::new().await;
    let cluster = files.cluster(over).await;
    let shared = files.path("shared");
    let put = cli(&cluster, &shared, &["--job", "llm-7b", "kv", "put", "k", "v"]).await;
    assert_eq!(put.code, Some(0), "{put:?}");

    // Opened here and on the leader through a follower, both end with the token.
    let (follower, leader) = cluster.follower_and_leader().await;
    let brief = files.token("brief", "key", "15s", &["--role", "job", "--jobs", "llm-*"]).await;
    let mut streams = streams(&cluster, [follower, leader], &brief).await;
    for stream in &mut streams {
        let status = stream.ask(RequestBody::Status).await;
        assert!(matches!(status, Ok(ReplyBody::Status(_))), "{status:?}");
        // A client that gets no answer to this leaves its leader.
        let probe = RequestBody::Read { read: Read::probe(), stale: false };
        let alive = stream.ask(probe).await;
        assert!(matches!(alive, Ok(ReplyBody::Read(_))), "{alive:?}");
        for body in others() {
            let said = format!("{body:?}");
            match stream.ask(body).await {
                Ok(ReplyBody::Problem(problem)) => assert_eq!(problem.code, Code::Forbidden),
                other => panic!("{said}: {other:?}"),
            }
        }
    }
    get(&cluster, follower, &brief, "/v1/kv/watch?job=llm-7b").await;
    for stream in &mut streams {
        stream.closed().await;
    }
    let late = get(&cluster, follower, &brief, "/v1/status").await;
    assert_eq!(late.status, 401);
    assert!(late.text().contains("clock says"), "{}", late.text());
    cli(&cluster, &files.path("brief"), &["status"]).await.failed(1, &["expired at"]);

    // A new key beside the old one, and then without it: nothing stops.
    let old = files.token("old", "key", "1h", &["--role", "job", "--jobs", "llm-*"]).await;
    files.keygen("next").await;
    let next = files.token("new", "next", "1h", &["--role", "job", "--jobs", "llm-*"]).await;
    let early = get(&cluster, 1, &next, "/v1/status").await;
    assert!(early.status == 401 && early.text().contains("--token-keys"), "{}", early.text());
    let line = |name: &str| std::fs::read_to_string(files.path(name)).expect("a key");
    files.write("keys", &(line("key.pub") + &line("next.pub")));
    eventually("the nodes to have read the keys", async || {
        for id in cluster.ids() {
            let answer = get(&cluster, id, &next, "/v1/status").await;
            if answer.status != 200 {
                return None;
            }
        }
        Some(())
    })
    .await;
    let mut of_old = self::streams(&cluster, [follower, leader], &old).await;
    let mut of_next = self::streams(&cluster, [follower, leader], &next).await;
    files.write("keys", &line("next.pub"));
    for stream in &mut of_old {
        stream.closed().await;
    }
    // Each node reads the file at times of its own, and a command may ask any of them.
    eventually("the nodes to refuse the old key", async || {
        for id in cluster.ids() {
            if get(&cluster, id, &old, "/v1/status").await.status != 401 {
                return None;
            }
        }
        Some(())
    })
    .await;
    for stream in &mut of_next {
        assert!(matches!(stream.ask(RequestBody::Status).await, Ok(ReplyBody::Status(_))));
    }
    cli(&cluster, &files.path("old"), &["status"]).await.failed(1, &["taken out"]);
    let got = cli(&cluster, &files.path("new"), &["--job", "llm-7b", "kv", "get", "k"]).await;
    assert_eq!(got.code, Some(0), "{got:?}");
}

#[tokio::test]
async fn a_revoked_token_counts_nowhere_and_never_again() {
    a_revoked_token(Over::Plain).await;
}

#[tokio::test]
async fn a_revoked_token_counts_nowhere_and_never_again_over_tls() {
    a_revoked_token(Over::Tls).await;
}

async fn a_revoked_token(over: Over) {
    let files = Files::new().await;
    let mut cluster = files.cluster(over).await;
    let of_llm = ["--role", "job", "--jobs", "llm-*"];
    let lost = files.token("lost", "key", "1h", &of_llm).await;
    let kept = files.token("kept", "key", "1h", &of_llm).await;
    files.token("op", "key", "1h", &["--role", "operator"]).await;
    let show = ["-o", "json", "token", "show", &files.text("lost")];
    let shown = cli(&cluster, &files.path("op"), &show).await;
    let shown: Value = serde_json::from_str(&shown.stdout).expect("it prints JSON");
    let id = shown["id"].as_str().expect("a token has an id").to_owned();

    // Neither its own holder nor an operator revokes, or sees what was revoked.
    for name in ["lost", "op"] {
        let path = files.path(name);
        cli(&cluster, &path, &["token", "revoke", &id]).await.failed(1, &["revoke a token"]);
        cli(&cluster, &path, &["token", "list"]).await.failed(1, &["list revoked tokens"]);
    }

    let (follower, leader) = cluster.follower_and_leader().await;
    let mut lost_streams = streams(&cluster, [follower, leader], &lost).await;
    let mut kept_streams = streams(&cluster, [follower, leader], &kept).await;
    let shared = files.path("shared");
    let revoked = cli(&cluster, &shared, &["token", "revoke", &id, "--keep", "1h"]).await;
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    for stream in &mut lost_streams {
        stream.closed().await;
    }
    for stream in &mut kept_streams {
        assert!(matches!(stream.ask(RequestBody::Status).await, Ok(ReplyBody::Status(_))));
    }
    is_revoked_everywhere(&cluster, &lost).await;
    cli(&cluster, &files.path("lost"), &["status"]).await.failed(1, &["was revoked", "(lost)"]);
    let listed = cli(&cluster, &shared, &["-o", "json", "token", "list"]).await;
    let listed: Value = serde_json::from_str(&listed.stdout).expect("it prints JSON");
    assert_eq!(listed["revoked"][0]["token"], id.as_str(), "{listed}");
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(1), "{listed}");

    // It is as replicated and lasting as everything else.
    for id in cluster.ids() {
        cluster.kill(id);
    }
    for id in cluster.ids() {
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    is_revoked_everywhere(&cluster, &lost).await;
    let answer = get(&cluster, 1, &kept, "/v1/status").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn is_revoked_everywhere(cluster: &Cluster, token: &str) {
    for id in cluster.ids() {
        eventually("the node to have applied the revocation", async || {
            let answer = get(cluster, id, token, "/v1/status").await;
            (answer.status == 401 && answer.text().contains("was revoked")).then_some(())
        })
        .await;
    }
}
