//! The description, and the router of a node that has not found its place yet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::access::Access;
use crate::http::StartedWith;
use crate::http::forward::Class;
use crate::http::problem::PROBLEM_JSON;

fn document() -> Value {
    serde_json::from_str(&DOCUMENT).unwrap()
}

/// Every operation: its method, its path and its description.
fn operations(document: &Value) -> Vec<(Method, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().iter().map(|(method, operation)| {
                let method = method.to_uppercase().parse().unwrap();
                (method, path.clone(), operation.clone())
            })
        })
        .collect()
}

#[test]
fn the_committed_description_is_what_a_node_serves() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, DOCUMENT.as_str()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == *DOCUMENT,
        "{} differs from what a node serves; UPDATE_OPENAPI=1 writes it anew",
        path.display()
    );
}

#[test]
fn the_description_names_this_project_and_this_version() {
    let info = &document()["info"];
    assert_eq!(info["title"], "Holdfast store");
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert!(info["description"].as_str().unwrap().contains(r"`\xNN`"), "{info}");
}

#[test]
fn every_operation_has_a_name_of_its_own_and_words_for_each_answer() {
    let mut names = BTreeSet::new();
    let document = document();
    for (method, path, operation) in operations(&document) {
        let name = operation["operationId"].as_str().unwrap().to_owned();
        assert!(names.insert(name.clone()), "{name} is there twice");
        assert!(operation["summary"].is_string(), "{method} {path} has no summary");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.contains_key("200"), "{method} {path}");
        for (status, response) in responses {
            let named = response["$ref"].as_str().and_then(|name| name.strip_prefix('#'));
            let response = named.map_or(response, |at| document.pointer(at).unwrap());
            let description = response["description"].as_str().unwrap_or_default();
            assert!(!description.is_empty(), "{method} {path} {status}");
        }
    }
}

#[test]
fn every_call_is_classified_as_the_description_says() {
    for (method, path, operation) in operations(&document()) {
        let class = Class::of(&method, &path);
        assert_eq!(class.is_some(), path.starts_with("/v1/"), "{method} {path}");
        let may_be_full = operation["responses"].get("507").is_some();
        if may_be_full {
            assert_eq!(class, Some(Class::Change), "{method} {path}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere_and_no_schema_is_called_value() {
    fn references<'d>(value: &'d Value, found: &mut BTreeSet<&'d str>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let place = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(place).is_some(), "{reference}");
    }
    assert!(document["components"]["schemas"].get("Value").is_none());
}

/// An app whose node has not found its place yet.
pub(crate) fn forming() -> App {
    let metrics = Arc::new(metrics::Metrics::new());
    let (initial, access) = (BTreeMap::new(), Access::open());
    let told = StartedWith { id: 1, initial, advertise: None, access, allow_host: Vec::new() };
    App::new(told, metrics, TaskTracker::new(), CancellationToken::new())
}

/// Its answer to a request.
async fn ask(request: Request<Body>) -> Response<Bytes> {
    let response = TowerToHyperService::new(router(forming())).call(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
}

async fn get(path: &str) -> Response<Bytes> {
    ask(Request::builder().uri(path).body(Body::empty()).unwrap()).await
}

async fn post(path: &str, body: impl Into<Body>) -> Response<Bytes> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    ask(request.body(body.into()).unwrap()).await
}

fn text(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).unwrap()
}

/// Checks that an answer is a problem with this status and code.
fn assert_problem(response: &Response<Bytes>, status: StatusCode, code: &str) -> Value {
    assert_eq!(response.status(), status, "{}", text(response));
    assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
    let problem: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(problem["code"], code, "{problem}");
    assert_eq!(problem["status"], status.as_u16(), "{problem}");
    assert_eq!(problem["outcome"], "none", "{problem}");
    problem
}

#[tokio::test]
async fn a_node_without_a_place_lives_but_is_not_ready() {
    let live = get("/livez").await;
    assert_eq!(live.status(), StatusCode::OK);
    let ready = get("/readyz").await;
    assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(text(&ready).starts_with("[-]formed failed: "), "{}", text(&ready));
    assert_eq!(get("/readyz?exclude=formed").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_node_without_a_place_says_so_to_every_call() {
    for (path, body) in [
        ("/v1/kv/put", r#"{"key": "k", "value": "v"}"#),
        ("/v1/kv/get", r#"{"key": "k", "stale": true}"#),
        ("/v1/kv/wait", r#"{"keys": ["k"]}"#),
        ("/v1/kv/watch", "{}"),
        ("/v1/session/open", "{}"),
        ("/v1/node/add", r#"{"node": 4, "address": "127.0.0.1:21004"}"#),
        ("/v1/limits", r#"{"jobs_max": 7}"#),
    ] {
        let refused = post(path, body).await;
        let problem = assert_problem(&refused, StatusCode::SERVICE_UNAVAILABLE, "unavailable");
        assert_eq!(problem["retryable"], true, "{path}");
        assert!(refused.headers().contains_key(header::RETRY_AFTER), "{path}");
    }
    for path in ["/v1/kv/get?key=k", "/v1/kv/watch", "/v1/jobs", "/v1/status", "/v1/leader"] {
        let refused = get(path).await;
        assert_problem(&refused, StatusCode::SERVICE_UNAVAILABLE, "unavailable");
    }
}

#[tokio::test]
async fn what_nobody_serves_is_a_problem() {
    let unknown = get("/v1/kv/putt").await;
    let problem = assert_problem(&unknown, StatusCode::NOT_FOUND, "invalid_request");
    let detail = "there is no path /v1/kv/putt; did you mean /v1/kv/put? See /openapi.json";
    assert_eq!(problem["detail"], detail);
    let wrong = get("/v1/kv/put").await;
    let problem = assert_problem(&wrong, StatusCode::METHOD_NOT_ALLOWED, "invalid_request");
    assert_eq!(problem["detail"], "/v1/kv/put takes POST, not GET; see /openapi.json");
    assert_eq!(wrong.headers()[header::ALLOW], "POST");
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_a_problem() {
    for body in ["", "{", "[]", "{}", r#"{"key": "k", "value": 7}"#] {
        let bad = post("/v1/kv/put", body).await;
        assert_problem(&bad, StatusCode::BAD_REQUEST, "invalid_request");
    }
    let form = Request::post("/v1/kv/put").body(Body::from(r#"{"key": "k", "value": "v"}"#));
    let form = ask(form.unwrap()).await;
    assert_problem(&form, StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request");
    let huge = post("/v1/kv/put", vec![b' '; BODY_BYTES_MAX + 1]).await;
    assert_problem(&huge, StatusCode::PAYLOAD_TOO_LARGE, "invalid_request");
}

#[tokio::test]
async fn parameters_and_headers_that_cannot_be_read_are_problems() {
    for path in ["/v1/kv/get", "/v1/kv/get?key=k&stale=7", "/v1/runs?job=a/b"] {
        assert_problem(&get(path).await, StatusCode::BAD_REQUEST, "invalid_request");
    }
    let request = Request::post("/v1/kv/put")
        .header(header::CONTENT_TYPE, "application/json")
        .header("holdfast-session", "7");
    let request = request.body(Body::from(r#"{"key": "k", "value": "v"}"#)).unwrap();
    assert_problem(&ask(request).await, StatusCode::BAD_REQUEST, "invalid_request");
}

#[tokio::test]
async fn the_description_and_the_metrics_are_there_before_the_node_is() {
    let described = get("/openapi.json").await;
    assert_eq!(described.headers()[header::CONTENT_TYPE], "application/json");
    assert_eq!(text(&described), *DOCUMENT);
    let metrics = get("/metrics").await;
    assert_eq!(metrics.status(), StatusCode::OK);
    assert!(text(&metrics).ends_with("# EOF\n"));
}

#[tokio::test]
async fn unknown_paths_do_not_make_new_series() {
    let service = TowerToHyperService::new(router(forming()));
    for path in ["/one", "/two", "/livez", "/metrics"] {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = service.call(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        if path == "/metrics" {
            let text = std::str::from_utf8(&body).unwrap();
            let count = "holdfast_http_request_duration_seconds_count";
            assert!(
                text.contains(&format!("{count}{{route=\"unknown\",code=\"404\"}} 2")),
                "{text}"
            );
            assert!(
                text.contains(&format!("{count}{{route=\"/livez\",code=\"200\"}} 1")),
                "{text}"
            );
            assert!(!text.contains("/one"), "{text}");
        }
    }
}
