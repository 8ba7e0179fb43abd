//! Errors over HTTP: problem+json (RFC 9457) with Holdfast's own members.
//!
//! The one place that gives each [`Code`] its HTTP status. The description of
//! the API is made from the same table.

pub(crate) mod extract;

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use holdfast_api::{Code, Effectiveness, Problem, Refusal};
use serde::{Deserialize, Serialize};
use utoipa::openapi::response::Response as Described;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};

/// Media type of an error.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Start of a problem's `type`; its code follows.
const TYPE_PREFIX: &str = "urn:holdfast:problem:";

/// How long a client should wait before it retries what had no effect, in
/// milliseconds: about the time of an election.
const RETRY_AFTER_MS: u64 = 1_000;

/// All codes, in the order of their declaration.
const CODES: [Code; 32] = [
    Code::NotLeader,
    Code::Unavailable,
    Code::Timeout,
    Code::InvalidRequest,
    Code::Unauthorized,
    Code::Forbidden,
    Code::LimitExceeded,
    Code::QuotaExceeded,
    Code::Overloaded,
    Code::NoSpace,
    Code::KeyNotFound,
    Code::JobNotFound,
    Code::RunNotFound,
    Code::Fenced,
    Code::Conflict,
    Code::NotANumber,
    Code::SessionExpired,
    Code::Stale,
    Code::Compacted,
    Code::NodeNotFound,
    Code::QuorumWouldBeLost,
    Code::WrongCluster,
    Code::FeatureLevel,
    Code::LeaseEnded,
    Code::ProcessNotFound,
    Code::Superseded,
    Code::GenerationUnknown,
    Code::Regroup,
    Code::Over,
    Code::Revoked,
    Code::SpecMismatch,
    Code::Internal,
];

/// The HTTP status of an error.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidRequest => StatusCode::BAD_REQUEST,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden => StatusCode::FORBIDDEN,
        Code::KeyNotFound
        | Code::JobNotFound
        | Code::RunNotFound
        | Code::NodeNotFound
        | Code::ProcessNotFound
        | Code::GenerationUnknown => StatusCode::NOT_FOUND,
        Code::Fenced
        | Code::Conflict
        | Code::Stale
        | Code::Superseded
        | Code::Regroup
        | Code::SpecMismatch
        | Code::QuorumWouldBeLost => StatusCode::CONFLICT,
        Code::SessionExpired | Code::Compacted | Code::LeaseEnded | Code::Over | Code::Revoked => {
            StatusCode::GONE
        }
        Code::LimitExceeded => StatusCode::PAYLOAD_TOO_LARGE,
        Code::NotLeader | Code::WrongCluster => StatusCode::MISDIRECTED_REQUEST,
        Code::NotANumber => StatusCode::UNPROCESSABLE_ENTITY,
        Code::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::FeatureLevel => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Code::QuotaExceeded | Code::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
    }
}

/// The title of a code: the same for each of its problems.
fn title_of(code: Code) -> &'static str {
    match code {
        Code::NotLeader => "Another node leads",
        Code::Unavailable => "No leader or no quorum at present",
        Code::Timeout => "The time limit passed",
        Code::InvalidRequest => "The request cannot be understood",
        Code::Unauthorized => "The token is missing or not taken",
        Code::Forbidden => "The caller's role does not allow it",
        Code::LimitExceeded => "A single thing is too big",
        Code::QuotaExceeded => "The job or the cluster is full",
        Code::Overloaded => "Too many requests at once",
        Code::NoSpace => "The cluster has no room for more",
        Code::KeyNotFound => "The key is absent",
        Code::JobNotFound => "The job is unknown",
        Code::RunNotFound => "The run is unknown, or none is open",
        Code::Fenced => "The run, or the process, has ended",
        Code::Conflict => "It does not fit the present state",
        Code::NotANumber => "The value is not a number",
        Code::SessionExpired => "The session is gone",
        Code::Stale => "The sequence was acknowledged before",
        Code::Compacted => "The revision is no longer kept",
        Code::NodeNotFound => "The node is unknown",
        Code::QuorumWouldBeLost => "The cluster could lose its quorum",
        Code::WrongCluster => "The node belongs to another cluster",
        Code::FeatureLevel => "The feature is not enabled yet",
        Code::LeaseEnded => "The lease has ended",
        Code::ProcessNotFound => "The process, or that incarnation of it, is unknown",
        Code::Superseded => "Another incarnation is the latest",
        Code::GenerationUnknown => "The generation is not kept",
        Code::Regroup => "Somebody waits in an advance",
        Code::Over => "The job is over",
        Code::Revoked => "The generation was revoked",
        Code::SpecMismatch => "The processes arrived with different terms",
        Code::Internal => "A defect of Holdfast",
    }
}

/// An error as it travels over HTTP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct ProblemDocument {
    /// `urn:holdfast:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the code means; the same for each problem of the code.
    pub(crate) title: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// What happened, and what to do about it.
    #[serde(flatten)]
    pub problem: Problem,
}

/// A problem and its HTTP status.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    status: StatusCode,
    /// Boxed, since most calls succeed.
    problem: Box<Problem>,
}

impl Failure {
    /// A request for which HTTP has another status than its code: no such path, a
    /// body too large.
    pub(crate) fn invalid(status: StatusCode, message: impl Into<String>) -> Failure {
        Failure { status, problem: Box::new(Problem::refused(Code::InvalidRequest, message)) }
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The problem as it is sent.
    pub(crate) fn document(&self) -> ProblemDocument {
        ProblemDocument {
            kind: format!("{TYPE_PREFIX}{}", self.problem.code),
            title: title_of(self.problem.code).to_owned(),
            status: self.status.as_u16(),
            problem: Problem::clone(&self.problem),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure { status: status_of(problem.code), problem: Box::new(problem) }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Problem::from(refusal).into()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.document())
            .expect("a problem is made of strings and numbers, which JSON can hold");
        let kind = HeaderValue::from_static(PROBLEM_JSON);
        let mut response =
            (self.status, [(header::CONTENT_TYPE, kind)], Bytes::from(body)).into_response();
        let headers = response.headers_mut();
        // Generic HTTP clients repeat on this header, in a session or not:
        // only what had no effect invites them to.
        if self.problem.retryable
            && self.problem.outcome == Effectiveness::None
            && matches!(self.problem.code, Code::Unavailable | Code::Overloaded | Code::NoSpace)
        {
            let after = self.problem.retry_after_ms.unwrap_or(RETRY_AFTER_MS);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.div_ceil(1_000)));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.problem.code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A problem as a response.
pub(crate) fn respond(problem: Problem) -> Response {
    Failure::from(problem).into_response()
}

/// Codes that every call can answer.
const ALWAYS: &[Code] = &[
    Code::InvalidRequest,
    Code::Unauthorized,
    Code::Forbidden,
    Code::NotLeader,
    Code::WrongCluster,
    Code::Overloaded,
    Code::Internal,
    Code::Unavailable,
    Code::Timeout,
];

/// Problems that some calls answer with, beside those of every call.
struct Family {
    /// Prefix of the names of its responses.
    name: &'static str,
    codes: &'static [Code],
}

/// Problems of every call.
const ANY: Family = Family { name: "any", codes: &[] };

const READ: Family = Family {
    name: "read",
    codes: &[
        Code::KeyNotFound,
        Code::JobNotFound,
        Code::RunNotFound,
        Code::LimitExceeded,
        Code::Fenced,
        Code::Compacted,
    ],
};

const CHANGE: Family = Family {
    name: "change",
    codes: &[
        Code::JobNotFound,
        Code::RunNotFound,
        Code::LimitExceeded,
        Code::QuotaExceeded,
        Code::Fenced,
        Code::Conflict,
        Code::NotANumber,
        Code::SessionExpired,
        Code::Stale,
        Code::FeatureLevel,
    ],
};

const ADMIN: Family =
    Family { name: "admin", codes: &[Code::Conflict, Code::NodeNotFound, Code::QuorumWouldBeLost] };

/// Problems that a read can answer with.
pub(crate) struct ReadProblems;

impl utoipa::IntoResponses for ReadProblems {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        READ.references()
    }
}

/// Problems that a change can answer with.
pub(crate) struct ChangeProblems;

impl utoipa::IntoResponses for ChangeProblems {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        CHANGE.references()
    }
}

/// Problems that a cluster operation can answer with.
pub(crate) struct AdminProblems;

impl utoipa::IntoResponses for AdminProblems {
    fn responses() -> BTreeMap<String, RefOr<Described>> {
        ADMIN.references()
    }
}

/// All responses that the calls refer to, by their names.
pub(crate) fn shared_responses() -> BTreeMap<String, RefOr<Described>> {
    let described = [ANY, READ, CHANGE, ADMIN].into_iter().flat_map(|family| {
        family.statuses().into_iter().map(move |(status, meanings)| {
            (family.response(status), problem_response(status, &meanings.join("; ")))
        })
    });
    described.collect()
}

impl Family {
    /// Its statuses and those of every call, with what they mean.
    fn statuses(&self) -> BTreeMap<u16, Vec<String>> {
        let mut by_status: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        let can_come = |code: &Code| ALWAYS.contains(code) || self.codes.contains(code);
        for code in CODES.into_iter().filter(can_come) {
            let meaning = format!("`{code}`: {}", title_of(code));
            by_status.entry(status_of(code).as_u16()).or_default().push(meaning);
        }
        by_status
    }

    /// The name of the response with this status: that of every call unless it means more here.
    fn response(&self, status: u16) -> String {
        let is_own = self.codes.iter().any(|code| status_of(*code).as_u16() == status);
        format!("{}_{status}", if is_own { self.name } else { ANY.name })
    }

    fn references(&self) -> BTreeMap<String, RefOr<Described>> {
        let reference = |status: u16| {
            let named = Ref::from_response_name(self.response(status));
            (status.to_string(), RefOr::Ref(named))
        };
        self.statuses().into_keys().map(reference).collect()
    }
}

fn problem_response(status: u16, description: &str) -> RefOr<Described> {
    let schema = Ref::from_schema_name("ProblemDocument");
    let example = (status == StatusCode::BAD_REQUEST.as_u16()).then(slip);
    let content = ContentBuilder::new().schema(Some(schema)).example(example).build();
    ResponseBuilder::new().description(description).content(PROBLEM_JSON, content).build().into()
}

/// The description of an invalid request.
fn slip() -> serde_json::Value {
    let detail = "unknown field `jbo`; did you mean `job`? The body takes job, key, run, value. \
                  A body that works: {\"job\":\"web\",\"key\":\"greeting\",\"value\":\"hello\"}";
    let document = Failure::invalid(StatusCode::BAD_REQUEST, detail).document();
    serde_json::to_value(document).expect("a problem is made of strings and numbers")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use holdfast_api::LeaderHint;

    use super::*;

    /// Fails to compile when a code is added, so that it is added to [`CODES`].
    fn ordinal(code: Code) -> usize {
        match code {
            Code::NotLeader => 0,
            Code::Unavailable => 1,
            Code::Timeout => 2,
            Code::InvalidRequest => 3,
            Code::Unauthorized => 4,
            Code::Forbidden => 5,
            Code::LimitExceeded => 6,
            Code::QuotaExceeded => 7,
            Code::Overloaded => 8,
            Code::NoSpace => 9,
            Code::KeyNotFound => 10,
            Code::JobNotFound => 11,
            Code::RunNotFound => 12,
            Code::Fenced => 13,
            Code::Conflict => 14,
            Code::NotANumber => 15,
            Code::SessionExpired => 16,
            Code::Stale => 17,
            Code::Compacted => 18,
            Code::NodeNotFound => 19,
            Code::QuorumWouldBeLost => 20,
            Code::WrongCluster => 21,
            Code::FeatureLevel => 22,
            Code::LeaseEnded => 23,
            Code::ProcessNotFound => 24,
            Code::Superseded => 25,
            Code::GenerationUnknown => 26,
            Code::Regroup => 27,
            Code::Over => 28,
            Code::Revoked => 29,
            Code::SpecMismatch => 30,
            Code::Internal => 31,
        }
    }

    #[test]
    fn every_code_is_listed_once_and_has_an_error_status_and_a_title_of_its_own() {
        let ordinals: Vec<usize> = CODES.into_iter().map(ordinal).collect();
        assert_eq!(ordinals, (0..CODES.len()).collect::<Vec<_>>());
        for code in CODES {
            let status = status_of(code);
            assert!(status.is_client_error() || status.is_server_error(), "{code}: {status}");
        }
        let titles: BTreeSet<&str> = CODES.into_iter().map(title_of).collect();
        assert_eq!(titles.len(), CODES.len());
    }

    #[test]
    fn a_problem_reads_as_rfc_9457_says_with_our_members_beside() {
        let leader = LeaderHint { node: 2, address: "127.0.0.1:21002".to_owned() };
        let document = Failure::from(Problem::not_leader(Some(leader))).document();
        assert_eq!(
            serde_json::to_value(&document).unwrap(),
            serde_json::json!({
                "type": "urn:holdfast:problem:not_leader",
                "title": "Another node leads",
                "status": 421,
                "code": "not_leader",
                "detail": "the leader is node 2 at 127.0.0.1:21002",
                "retryable": true,
                "outcome": "none",
                "leader": {"node": 2, "address": "127.0.0.1:21002"},
            })
        );
    }

    #[test]
    fn a_refusal_keeps_the_state_machines_own_words() {
        let refusal = Refusal::JobNotFound { job: "train".parse().unwrap() };
        let document = serde_json::to_value(Failure::from(refusal).document()).unwrap();
        assert_eq!(document["status"], 404);
        assert_eq!(document["code"], "job_not_found");
        assert_eq!(document["refusal"], serde_json::json!({"job_not_found": {"job": "train"}}));
    }

    #[test]
    fn only_what_had_no_effect_invites_generic_clients_to_retry() {
        let retry_after = |problem| respond(problem).headers().contains_key(header::RETRY_AFTER);
        assert!(retry_after(Problem::not_leader(None)));
        assert!(retry_after(Problem::overloaded("")));
        assert!(!retry_after(Problem::unknown(Code::Unavailable, "")));
        assert!(!retry_after(Problem::refused(Code::Fenced, "")));
    }

    #[test]
    fn a_problem_is_sent_as_problem_json() {
        let response = respond(Problem::refused(Code::KeyNotFound, "no key"));
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
    }

    #[test]
    fn codes_that_share_a_status_are_described_together() {
        let described = shared_responses();
        let RefOr::T(response) = &described["read_404"] else { panic!("described in place") };
        assert!(response.description.contains("key_not_found"));
        assert!(response.description.contains("job_not_found"));
        let references = READ.references();
        assert!(references.contains_key("503") && !references.contains_key("507"));
    }
}
