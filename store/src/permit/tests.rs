use std::collections::BTreeSet;

use holdfast_api::agent::AgentReport;
use holdfast_api::{KvOp, Limits, Proposal, RequestBody};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::http::openapi::DOCUMENT;

/// The names of an enum's variants, as its own reader lists them.
fn variants<T: DeserializeOwned>() -> Vec<String> {
    let error = serde_json::from_str::<T>("\"no such variant\"").err().expect("it has no such");
    let text = error.to_string();
    let (_, names) = text.split_once("expected ").expect("the reader lists them");
    let names: Vec<String> = names.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(!names.is_empty(), "{text}");
    names
}

fn read_as<T: DeserializeOwned>(name: &str, body: &Value) -> T {
    let tagged = json!({ name: body });
    serde_json::from_value(tagged).unwrap_or_else(|error| panic!("{name} {body}: {error}"))
}

/// A body of each variant: fields of all of them together, which the lenient reader
/// picks from.
fn all_of<T: DeserializeOwned>(bodies: &[Value]) -> Vec<T> {
    let of = |name: &String| {
        let read = bodies.iter().find_map(|body| {
            let tagged = json!({ name.as_str(): body });
            serde_json::from_value::<T>(tagged).ok()
        });
        read.or_else(|| serde_json::from_value(json!(name)).ok())
            .unwrap_or_else(|| panic!("no example of {name} fits: add its fields"))
    };
    variants::<T>().iter().map(of).collect()
}

fn fields() -> Value {
    let scope = json!({"job": "web", "run": "r1"});
    let mut fields = json!({
        "scope": scope, "job": "web", "run": "r1", "key": "k", "value": "v", "entries": [],
        "delta": 1, "expected": "", "desired": "", "revision": 1, "compare": [], "then": [],
        "nonce": [1, 2], "ttl_ms": 1000, "session": 7, "deadline": 1, "ended_at": 1,
        "node": 4, "address": "a:1", "cluster_id": "c", "limits": Limits::default(), "level": 5,
        "lease": 7, "host": "h", "process": 0, "incarnation": 1, "ends": [], "reason": "r",
        "round": "r", "arrivals": [], "calls": [], "releases": [], "generation": 4, "at": 1,
        "keys": [], "prefix": "", "since": 0, "after": 0, "conditions": [], "request": 1,
        "to": 2,
    });
    let more = json!({"number": 1, "token": "t1", "keep_ms": 1});
    let more = more.as_object().cloned().expect("an object");
    fields.as_object_mut().expect("an object").extend(more);
    fields
}

/// Every command that there is.
fn commands() -> Vec<Command> {
    let fields = [fields()];
    let scope = Scope::default();
    let mut all: Vec<Command> = Vec::new();
    for name in variants::<Command>() {
        match name.as_str() {
            "kv" => all.extend(all_of::<KvOp>(&fields).into_iter().map(|op| {
                let scope = scope.clone();
                Command::Kv { scope, op }
            })),
            "pipeline" => all.push(Command::Pipeline { scope: scope.clone(), ops: Vec::new() }),
            "session" => all.extend(all_of(&fields).into_iter().map(Command::Session)),
            "run" => {
                let other = json!({"job": "web", "run": "r1", "ended_at": 1});
                all.extend(all_of(&[other]).into_iter().map(Command::Run));
            }
            "cluster" => all.extend(all_of(&fields).into_iter().map(Command::Cluster)),
            "lease" => {
                let mut join = fields[0].clone();
                join["run"] = json!("auto");
                all.extend(all_of(&[fields[0].clone(), join]).into_iter().map(Command::Lease));
            }
            "process" => all.extend(all_of(&fields).into_iter().map(Command::Process)),
            "round" => all.extend(all_of(&fields).into_iter().map(Command::Round)),
            other => panic!("a new family of commands: {other}"),
        }
    }
    // Fields that decide, too.
    let scope_json = json!({"job": "web"});
    all.push(Command::Session(read_as("open", &json!({"nonce": [1, 2], "ttl_ms": 1}))));
    let released = json!({"scope": scope_json, "releases": [], "why": "excused"});
    all.push(Command::Round(read_as("release", &released)));
    let by = json!({"process": 0, "incarnation": 1});
    let revoked = json!({"scope": scope_json, "generation": 4, "by": by, "reason": "r"});
    all.push(Command::Round(read_as("revoke", &revoked)));
    all
}

/// Every read, frame and request of operators that there is.
fn frames() -> Vec<RequestBody> {
    // Pages go on after a key, or after a process.
    let mut listed = fields();
    listed["after"] = json!("k");
    let mut reads: Vec<Read> = all_of(&[fields(), listed]);
    reads.push(read_as(
        "closed",
        &json!({"scope": {"job": "web"}, "generation": 1, "payloads": true}),
    ));
    let report = AgentReport { job: "web".parse().unwrap(), ..example_report() };
    let mut all = Vec::new();
    for name in variants::<RequestBody>() {
        match name.as_str() {
            "propose" => all.extend(
                commands()
                    .into_iter()
                    .map(|command| RequestBody::Propose(Proposal { session: None, command })),
            ),
            "read" => {
                all.extend(reads.drain(..).map(|read| RequestBody::Read { read, stale: false }))
            }
            "admin" => all.extend(all_of(&[fields()]).into_iter().map(RequestBody::Admin)),
            "report" => all.push(RequestBody::Report(report.clone())),
            "status" => all.push(RequestBody::Status),
            "watch_leader" => all.push(RequestBody::WatchLeader),
            _ => all.push(read_as(&name, &fields())),
        }
    }
    all
}

fn example_report() -> AgentReport {
    let report = json!({
        "host": "h", "pid": 1, "version": "0", "job": "web", "run": "r1", "listens": "a:1",
        "draining": false, "clients": [], "clients_left_out": 0, "waits": [],
        "waits_left_out": 0,
    });
    serde_json::from_value(report).expect("a report")
}

/// Every route: those of the description, the stream, and those between nodes.
fn routes_of_a_node() -> Vec<(Method, String)> {
    let document: Value = serde_json::from_str(&DOCUMENT).expect("it is JSON");
    let mut all = vec![
        (Method::GET, routes::STREAM.to_owned()),
        (Method::GET, crate::formation::IDENTITY.to_owned()),
        (Method::POST, crate::formation::FOUND.to_owned()),
        (Method::GET, crate::node::status::OWN_STATUS.to_owned()),
        (Method::GET, crate::http::agents::OWN_AGENTS.to_owned()),
        (Method::GET, format!("{}append", crate::raft::tcp::PATH)),
    ];
    for (path, calls) in document["paths"].as_object().expect("paths") {
        for method in calls.as_object().expect("methods").keys() {
            let method = method.to_uppercase().parse().expect("a method");
            all.push((method, path.clone()));
        }
    }
    all
}

/// The table of `secure.md`.
fn table() -> String {
    let extent = |right: Right, role| match right.of(role) {
        Extent::None => "no",
        Extent::OwnJobs => "own jobs",
        Extent::All => "yes",
    };
    let rows = Operation::ALL.iter().map(|operation| {
        let cells = [Role::Job, Role::Operator, Role::Admin, Role::Peer]
            .map(|role| extent(operation.right(), role));
        format!("| {} | {} |\n", operation.words(), cells.join(" | "))
    });
    let head = "| | job | operator | admin | node |\n|---|---|---|---|---|\n";
    std::iter::once(head.to_owned()).chain(rows).collect()
}

#[test]
fn the_document_has_every_operation_with_every_role() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/secure.md");
    let document = std::fs::read_to_string(path).expect("the document");
    assert!(document.contains(&table()), "secure.md lacks this table:\n{}", table());
}

#[test]
fn every_command_read_frame_and_route_is_in_the_table_and_the_table_has_no_other() {
    let mut reached = BTreeSet::new();
    for frame in frames() {
        reached.insert(of_frame(&frame).0.words());
    }
    for (method, path) in routes_of_a_node() {
        match of_route(&method, &path) {
            Some(Route::Operation(operation)) => drop(reached.insert(operation.words())),
            Some(Route::Body) => {}
            None => panic!("{method} {path} has no right"),
        }
    }
    let all: BTreeSet<&str> = Operation::ALL.iter().map(|operation| operation.words()).collect();
    assert_eq!(reached, all);
    assert_eq!(all.len(), Operation::ALL.len(), "two have the same words");
}

#[test]
fn what_belongs_to_a_job_names_it_and_what_names_none_is_left_out_in_the_answer() {
    for frame in frames() {
        let (operation, whose) = of_frame(&frame);
        let of_a_job = match operation.right() {
            Right::Use | Right::See | Right::End => true,
            Right::Any | Right::Operate | Right::Everything | Right::Peer | Right::Leader => false,
        };
        let filtered = operation == Operation::SeeJobs;
        assert_eq!(of_a_job && !filtered, whose != Whose::All, "{frame:?}");
    }
}

#[test]
fn nothing_that_a_role_may_not_is_allowed_to_a_lesser_one() {
    for operation in Operation::ALL {
        let right = operation.right();
        let [job, operator, admin] =
            [Role::Job, Role::Operator, Role::Admin].map(|role| right.of(role));
        assert!(admin == Extent::All || matches!(right, Right::Peer | Right::Leader));
        assert!(operator != Extent::All || admin == Extent::All);
        assert!(job != Extent::All || right == Right::Any, "{operation:?}");
    }
}

/// What a frame of a stream asks for.
fn of_frame(body: &RequestBody) -> Asked {
    match body {
        RequestBody::Propose(proposal) => of_command(&proposal.command),
        RequestBody::Read { read, .. } => of_read(read),
        RequestBody::Wait { scope, .. } | RequestBody::Watch { scope, .. } => {
            (Operation::ReadKeys, Whose::of(scope))
        }
        RequestBody::Feed { lease, .. } => (Operation::ReadFeed, Whose::Lease(*lease)),
        RequestBody::Events { job, .. } => (Operation::SeeRun, Whose::Job(job.clone())),
        RequestBody::Report(report) => (Operation::Report, Whose::Job(report.job.clone())),
        RequestBody::Status | RequestBody::WatchLeader | RequestBody::Cancel { .. } => {
            (Operation::SeeCluster, Whose::All)
        }
        RequestBody::Admin(admin) => of_admin(admin),
    }
}
