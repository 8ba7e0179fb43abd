//! Strict reading of hand-written requests: bodies and queries of the JSON calls.
//!
//! One check in front of every call, on every node, before the call is passed on:
//! the request is checked against the description in `/openapi.json`. Handlers do
//! not take part, and a call without a description has no route, so every call is
//! strict. The types of the calls stay lenient, since our own programs exchange
//! them as MessagePack.
//!
//! | module | holds |
//! | --- | --- |
//! | `shape` | what a value may be, made from a schema of the description |
//! | `body` | a JSON body against its shape |
//! | `query` | the parameters of an address against theirs |
//! | `words` | the nearest known name, and what was found in place of a value |

mod body;
mod query;
mod shape;
mod words;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use holdfast_api::routes::{
    ACK_HEADER, CLUSTER_HEADER, FORWARDED_HEADER, NO_FORWARD_HEADER, SEQUENCE_HEADER,
    SESSION_HEADER,
};
use serde_json::Value;

use self::body::Body;
use self::query::Query;
use self::shape::Schemas;
pub(crate) use self::words::did_you_mean;
use super::openapi::DOCUMENT;
use super::problem::Failure;

/// Headers that Holdfast defines.
const HEADERS: [&str; 6] = [
    SESSION_HEADER,
    SEQUENCE_HEADER,
    ACK_HEADER,
    CLUSTER_HEADER,
    FORWARDED_HEADER,
    NO_FORWARD_HEADER,
];

/// Every call in the description.
static CALLS: LazyLock<BTreeMap<(String, String), Call>> = LazyLock::new(|| {
    let document: Value = serde_json::from_str(&DOCUMENT).expect("the description is JSON");
    let schemas = Schemas::of(&document);
    let paths = document["paths"].as_object().expect("the description has paths");
    let mut calls = BTreeMap::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().expect("a path has methods") {
            let call = Call::of(path, operation, &schemas);
            calls.insert((method.to_uppercase(), path.clone()), call);
        }
    }
    calls
});

/// Parameters and body of a call.
struct Call {
    /// None if it takes none.
    body: Option<Body>,
    query: Query,
    /// Health and metrics ignore unknown parameters: probes add their own.
    takes_any_query: bool,
}

impl Call {
    fn of(path: &str, operation: &Value, schemas: &Schemas<'_>) -> Call {
        let query = Query::of(path, operation, schemas);
        let takes_any_query = !path.starts_with("/v1/") && query.is_empty();
        let body = operation.get("requestBody").map(|body| Body::of(body, schemas));
        Call { body, query, takes_any_query }
    }
}

/// Reads the description; a node that cannot read it does not start.
pub(crate) fn prepare() {
    LazyLock::force(&CALLS);
}

/// Completes "there is no path …": with the path that was probably meant, if any,
/// and where all paths are listed.
pub(crate) fn nearest_path(path: &str) -> String {
    let known: Vec<&str> = CALLS.keys().map(|(_, path)| path.as_str()).collect();
    let nearest = words::nearly(path, &known);
    nearest.map_or_else(
        || "; see /openapi.json".to_owned(),
        |known| format!("; did you mean {known}? See /openapi.json"),
    )
}

/// The methods that a path takes.
pub(crate) fn methods(path: &str) -> Vec<&'static str> {
    let known = CALLS.keys().filter(|(_, known)| known == path);
    known.map(|(method, _)| method.as_str()).collect()
}

/// Refuses what the description does not know, and says how many values the body has. Other
/// paths pass unchecked.
pub(crate) fn check(parts: &Parts, body: &[u8]) -> Result<usize, Failure> {
    let (method, path) = (parts.method.as_str().to_owned(), parts.uri.path().to_owned());
    let Some(call) = CALLS.get(&(method, path)) else { return Ok(0) };
    let faulty = match call.takes_any_query {
        true => None,
        false => misspelt_header(&parts.headers)
            .or_else(|| strange_header(&parts.headers))
            .or_else(|| call.query.fault(&parts.method, &parts.uri, call.body.is_some())),
    };
    match (&call.body, faulty) {
        (Some(expected), Some(fault)) => Err(refused(&fault, "body", expected.example(body))),
        (Some(expected), None) => {
            is_json(&parts.headers)?;
            let values = expected.values(body);
            values.map_err(|fault| refused(&fault, "body", expected.example(body)))
        }
        (None, Some(fault)) => Err(refused(&fault, "address", call.query.example())),
        (None, None) if body.is_empty() => Ok(0),
        (None, None) => {
            let fault = format!("{} {} takes no body", parts.method, parts.uri.path());
            Err(refused(&fault, "address", call.query.example()))
        }
    }
}

/// A header one letter from one of ours. One that resembles none may be of a
/// later version.
fn misspelt_header(headers: &HeaderMap) -> Option<String> {
    let others = headers.keys().map(HeaderName::as_str).filter(|name| !HEADERS.contains(name));
    others.into_iter().find_map(|name| {
        let meant = words::nearly(name, &HEADERS)?;
        Some(format!("unknown header `{name}`; did you mean `{meant}`?"))
    })
}

/// A header whose value would be ignored.
fn strange_header(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(NO_FORWARD_HEADER).filter(|value| *value != "1")?;
    let found = words::quoted(&String::from_utf8_lossy(value.as_bytes()));
    Some(format!(
        "the header `{NO_FORWARD_HEADER}` must be 1, not {found}; leave it out to have the call passed on"
    ))
}

fn refused(fault: &str, what: &str, example: &str) -> Failure {
    let article = if what == "address" { "An" } else { "A" };
    let end = if fault.ends_with('?') { "" } else { "." };
    let message = format!("{fault}{end} {article} {what} that works: {example}");
    Failure::invalid(StatusCode::BAD_REQUEST, message)
}

fn is_json(headers: &HeaderMap) -> Result<(), Failure> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let kind = kind.to_ascii_lowercase();
    if kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json") {
        return Ok(());
    }
    Err(Failure::invalid(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "the body must be JSON: send the header `content-type: application/json` (curl: `--json`)",
    ))
}

#[cfg(test)]
mod tests;
