//! Changes of keys and queues.

use axum::extract::State;
use axum::http::{Method, StatusCode};
use holdfast_api::{
    Blob, Command, Compare, KeyValue, KvOp, KvOutcome, Outcome, Revision, Scope, SessionRef,
    TransactionOp, TransactionOutcome,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Mark, commit};
use crate::http::App;
use crate::http::answer::Json;
use crate::http::forward::Class;
use crate::http::problem::extract::{Body, InSession, SessionHeaders};
use crate::http::problem::{ChangeProblems, Failure};
use crate::principal::Principal;

/// The calls of this module.
pub(crate) const CALLS: &[(Method, &str, Class)] = &[
    (Method::POST, "/v1/kv/put", Class::Change),
    (Method::POST, "/v1/kv/multi-put", Class::Change),
    (Method::POST, "/v1/kv/add", Class::Change),
    (Method::POST, "/v1/kv/max", Class::Change),
    (Method::POST, "/v1/kv/cas", Class::Change),
    (Method::POST, "/v1/kv/cas-revision", Class::Change),
    (Method::POST, "/v1/kv/append", Class::Change),
    (Method::POST, "/v1/kv/delete", Class::Change),
    (Method::POST, "/v1/kv/push", Class::Change),
    (Method::POST, "/v1/kv/pop", Class::Change),
    (Method::POST, "/v1/kv/transaction", Class::Change),
];

/// Adds the calls of this module to a router.
pub(crate) fn add_routes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router
        .routes(routes!(put))
        .routes(routes!(multi_put))
        .routes(routes!(add))
        .routes(routes!(max))
        .routes(routes!(cas))
        .routes(routes!(cas_revision))
        .routes(routes!(append))
        .routes(routes!(delete))
        .routes(routes!(push))
        .routes(routes!(pop))
        .routes(routes!(transaction))
}

type Answered<T> = Result<Json<T>, Failure>;

/// A key to change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyRequest {
    /// Job and run that the key belongs to.
    #[serde(flatten)]
    pub scope: Scope,
    /// The key, or the queue.
    pub key: Blob,
}

/// A key and a value to store, to append or to push.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyValueRequest {
    /// Job and run that the key belongs to.
    #[serde(flatten)]
    pub scope: Scope,
    /// The key, or the queue.
    pub key: Blob,
    /// Value: any bytes, up to `value_bytes_max`; may be empty.
    pub value: Blob,
}

/// A number to add to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AddRequest {
    /// Job and run that the key belongs to.
    #[serde(flatten)]
    pub scope: Scope,
    /// The key; absent, it counts as 0.
    pub key: Blob,
    /// What to add, maybe negative.
    pub(crate) delta: i64,
}

/// A number to raise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MaxRequest {
    /// Job and run that the key belongs to.
    #[serde(flatten)]
    pub scope: Scope,
    /// The key; absent, it is set.
    pub key: Blob,
    /// What the number is at least from now on.
    pub number: i64,
}

/// A value to replace if it is the expected one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CasRequest {
    /// Job and run that the key belongs to.
    #[serde(flatten)]
    pub scope: Scope,
    /// Key: any bytes, up to `key_bytes_max`.
    pub key: Blob,
    /// The value that must be there; empty matches an absent key.
    pub expected: Blob,
    /// The value to put in its place.
    pub(crate) desired: Blob,
}

/// A value to replace if it was not changed since.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CasRevisionRequest {
    /// Job and run that the key belongs to.
    #[serde(flatten)]
    pub scope: Scope,
    /// Key: any bytes, up to `key_bytes_max`.
    pub key: Blob,
    /// The `modified` revision that it must have; 0 = it is absent.
    pub revision: Revision,
    /// The value to put.
    pub value: Blob,
}

/// Keys and values to store at one revision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MultiPutRequest {
    /// Job and run that the keys belong to.
    #[serde(flatten)]
    pub scope: Scope,
    /// The keys and values; a key named twice gets its last value.
    pub entries: Vec<KeyValue>,
}

/// Steps that happen together or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct TransactionRequest {
    /// Job and run that the keys belong to.
    #[serde(flatten)]
    pub scope: Scope,
    /// What must hold. An empty list always does, and has to be written: a
    /// misspelt one must not make the change unconditional.
    pub compare: Vec<Compare>,
    /// What to do if it does.
    #[serde(default)]
    pub then: Vec<TransactionOp>,
    /// What to do if it does not.
    #[serde(default)]
    pub(crate) or_else: Vec<TransactionOp>,
}

/// The change was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WrittenAnswer {
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// The number after an add or a max.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AddedAnswer {
    /// The number that the key holds now.
    pub value: i64,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// What the comparison came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ComparedAnswer {
    /// Whether the desired value was stored.
    pub(crate) swapped: bool,
    /// The key's value now; null if it is absent.
    pub value: Option<Blob>,
    /// Revision of the key's last change; 0 if it is absent.
    pub(crate) modified: Revision,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// The key is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeletedAnswer {
    /// Whether there was anything to delete.
    existed: bool,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// The value is in the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PushedAnswer {
    /// The queue's length with it.
    pub length: u64,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// The front of the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PoppedAnswer {
    /// The value; null if the queue was empty.
    pub value: Option<Blob>,
    /// The queue's length before.
    pub length: u64,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// What the transaction came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct TransactionAnswer {
    /// Whether the comparisons held.
    succeeded: bool,
    /// One for each step of the branch taken.
    pub outcomes: Vec<TransactionOutcome>,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// Commits a key-value command and picks the answer that fits it.
async fn change<T>(
    app: &App,
    caller: &Principal,
    session: Option<SessionRef>,
    scope: Scope,
    op: KvOp,
    fitting: impl FnOnce(&KvOutcome, Mark) -> Option<T>,
) -> Answered<T> {
    let fitting = |outcome: &Outcome, mark| match outcome {
        Outcome::Kv(outcome) => fitting(outcome, mark),
        _ => None,
    };
    commit(app, caller, session, Command::Kv { scope, op }, fitting).await
}

fn written(outcome: &KvOutcome, mark: Mark) -> Option<WrittenAnswer> {
    matches!(outcome, KvOutcome::Written).then_some(WrittenAnswer { mark })
}

fn added(outcome: &KvOutcome, mark: Mark) -> Option<AddedAnswer> {
    let KvOutcome::Added { value } = outcome else { return None };
    Some(AddedAnswer { value: *value, mark })
}

fn compared(outcome: &KvOutcome, mark: Mark) -> Option<ComparedAnswer> {
    let KvOutcome::Compared { swapped, value, modified } = outcome else { return None };
    Some(ComparedAnswer { swapped: *swapped, value: value.clone(), modified: *modified, mark })
}

/// Sets a key to a value, whatever it had before.
#[utoipa::path(
    post, path = "/v1/kv/put", operation_id = "kv_put", tag = "keys", params(SessionHeaders),
    request_body(content = KeyValueRequest, example = json!({"job": "web", "key": "greeting", "value": "hello"})),
    responses((status = 200, description = "The key has the value", body = WrittenAnswer), ChangeProblems)
)]
pub(crate) async fn put(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(KeyValueRequest { scope, key, value }): Body<KeyValueRequest>,
) -> Answered<WrittenAnswer> {
    change(&app, &caller, session, scope, KvOp::Put { key, value }, written).await
}

/// Sets several keys at one revision.
#[utoipa::path(
    post, path = "/v1/kv/multi-put", operation_id = "kv_multi_put", tag = "keys",
    params(SessionHeaders),
    request_body(content = MultiPutRequest, example = json!({"job": "web", "entries": [{"key": "greeting", "value": "hello"}, {"key": "farewell", "value": "bye"}]})),
    responses((status = 200, description = "All keys have their values", body = WrittenAnswer), ChangeProblems)
)]
pub(crate) async fn multi_put(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(MultiPutRequest { scope, entries }): Body<MultiPutRequest>,
) -> Answered<WrittenAnswer> {
    change(&app, &caller, session, scope, KvOp::MultiPut { entries }, written).await
}

/// Adds to a number; an absent key counts as 0.
#[utoipa::path(
    post, path = "/v1/kv/add", operation_id = "kv_add", tag = "keys", params(SessionHeaders),
    request_body(content = AddRequest, example = json!({"job": "web", "key": "visits", "delta": 1})),
    responses((status = 200, description = "The new number", body = AddedAnswer), ChangeProblems)
)]
pub(crate) async fn add(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(AddRequest { scope, key, delta }): Body<AddRequest>,
) -> Answered<AddedAnswer> {
    change(&app, &caller, session, scope, KvOp::Add { key, delta }, added).await
}

/// Raises a number to at least this one; one that is as high already stays.
#[utoipa::path(
    post, path = "/v1/kv/max", operation_id = "kv_max", tag = "keys", params(SessionHeaders),
    request_body(content = MaxRequest, example = json!({"job": "web", "key": "last_step", "number": 4200})),
    responses((status = 200, description = "The number now", body = AddedAnswer), ChangeProblems)
)]
pub(crate) async fn max(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(MaxRequest { scope, key, number }): Body<MaxRequest>,
) -> Answered<AddedAnswer> {
    change(&app, &caller, session, scope, KvOp::Max { key, number }, added).await
}

/// Sets a key if it has the expected value.
///
/// An absent key matches an empty `expected` and nothing else. A value that
/// does not match is an answer (`swapped` false), not an error.
#[utoipa::path(
    post, path = "/v1/kv/cas", operation_id = "kv_cas", tag = "keys", params(SessionHeaders),
    request_body(content = CasRequest, example = json!({"job": "web", "key": "greeting", "expected": "hello", "desired": "good day"})),
    responses((status = 200, description = "Whether it was stored, and the value now", body = ComparedAnswer), ChangeProblems)
)]
pub(crate) async fn cas(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(CasRequest { scope, key, expected, desired }): Body<CasRequest>,
) -> Answered<ComparedAnswer> {
    change(&app, &caller, session, scope, KvOp::CompareAndSet { key, expected, desired }, compared)
        .await
}

/// Sets a key if it was last changed at exactly this revision.
#[utoipa::path(
    post, path = "/v1/kv/cas-revision", operation_id = "kv_cas_revision", tag = "keys",
    params(SessionHeaders),
    request_body(content = CasRevisionRequest, example = json!({"job": "web", "key": "greeting", "revision": 4, "value": "good day"})),
    responses((status = 200, description = "Whether it was stored, and the value now", body = ComparedAnswer), ChangeProblems)
)]
async fn cas_revision(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(CasRevisionRequest { scope, key, revision, value }): Body<CasRevisionRequest>,
) -> Answered<ComparedAnswer> {
    let op = KvOp::CompareRevisionAndSet { key, revision, value };
    change(&app, &caller, session, scope, op, compared).await
}

/// Appends to a key's value; an absent key counts as empty.
#[utoipa::path(
    post, path = "/v1/kv/append", operation_id = "kv_append", tag = "keys", params(SessionHeaders),
    request_body(content = KeyValueRequest, example = json!({"job": "web", "key": "log", "value": "one more line"})),
    responses((status = 200, description = "The value has grown", body = WrittenAnswer), ChangeProblems)
)]
pub(crate) async fn append(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(KeyValueRequest { scope, key, value }): Body<KeyValueRequest>,
) -> Answered<WrittenAnswer> {
    change(&app, &caller, session, scope, KvOp::Append { key, value }, written).await
}

/// Deletes a key; an absent one is not an error.
#[utoipa::path(
    post, path = "/v1/kv/delete", operation_id = "kv_delete", tag = "keys", params(SessionHeaders),
    request_body(content = KeyRequest, example = json!({"job": "web", "key": "greeting"})),
    responses((status = 200, description = "The key is absent", body = DeletedAnswer), ChangeProblems)
)]
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(KeyRequest { scope, key }): Body<KeyRequest>,
) -> Answered<DeletedAnswer> {
    let fitting = |outcome: &KvOutcome, mark| match outcome {
        KvOutcome::Deleted { existed } => Some(DeletedAnswer { existed: *existed, mark }),
        _ => None,
    };
    change(&app, &caller, session, scope, KvOp::Delete { key }, fitting).await
}

/// Puts a value at the end of a queue.
#[utoipa::path(
    post, path = "/v1/kv/push", operation_id = "kv_push", tag = "queues", params(SessionHeaders),
    request_body(content = KeyValueRequest, example = json!({"job": "web", "key": "tasks", "value": "shard-7"})),
    responses((status = 200, description = "The queue's length now", body = PushedAnswer), ChangeProblems)
)]
pub(crate) async fn push(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(KeyValueRequest { scope, key, value }): Body<KeyValueRequest>,
) -> Answered<PushedAnswer> {
    let fitting = |outcome: &KvOutcome, mark| match outcome {
        KvOutcome::Pushed { length } => Some(PushedAnswer { length: *length, mark }),
        _ => None,
    };
    change(&app, &caller, session, scope, KvOp::QueuePush { key, value }, fitting).await
}

/// Takes the value at the front of a queue; an empty one gives null.
#[utoipa::path(
    post, path = "/v1/kv/pop", operation_id = "kv_pop", tag = "queues", params(SessionHeaders),
    request_body(content = KeyRequest, example = json!({"job": "web", "key": "tasks"})),
    responses((status = 200, description = "The value that was taken", body = PoppedAnswer), ChangeProblems)
)]
pub(crate) async fn pop(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(KeyRequest { scope, key }): Body<KeyRequest>,
) -> Answered<PoppedAnswer> {
    let fitting = |outcome: &KvOutcome, mark| match outcome {
        KvOutcome::Popped { length, value } => {
            Some(PoppedAnswer { value: value.clone(), length: *length, mark })
        }
        _ => None,
    };
    change(&app, &caller, session, scope, KvOp::QueuePop { key }, fitting).await
}

/// Compares, then takes one of two branches, all or nothing, at one revision.
///
/// What must hold is always written: a `compare` that compares nothing is
/// refused. Each comparison names exactly one of its variants.
#[utoipa::path(
    post, path = "/v1/kv/transaction", operation_id = "kv_transaction", tag = "keys",
    params(SessionHeaders),
    request_body(content = TransactionRequest, example = json!({"job": "web", "compare": [{"value": {"key": "leader", "value": "host-1"}}], "then": [{"put": {"key": "leader", "value": "host-2"}}], "or_else": [{"get": {"key": "leader"}}]})),
    responses((status = 200, description = "Which branch was taken, and what came of it", body = TransactionAnswer), ChangeProblems)
)]
pub(crate) async fn transaction(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(TransactionRequest { scope, compare, then, or_else }): Body<TransactionRequest>,
) -> Answered<TransactionAnswer> {
    if compare.is_empty() {
        let message = "`compare` is empty: it compares nothing, so that `then` would always be done; \
             write what must hold, as {\"exists\": {\"key\": \"leader\", \"exists\": false}}; \
             changes without a condition have calls of their own, as /v1/kv/multi-put";
        return Err(Failure::invalid(StatusCode::BAD_REQUEST, message));
    }
    let fitting = |outcome: &KvOutcome, mark| match outcome {
        KvOutcome::Transaction { succeeded, outcomes } => {
            Some(TransactionAnswer { succeeded: *succeeded, outcomes: outcomes.clone(), mark })
        }
        _ => None,
    };
    change(&app, &caller, session, scope, KvOp::Transaction { compare, then, or_else }, fitting)
        .await
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::super::unfitting;
    use super::*;

    fn scope(job: &str, run: Option<&str>) -> Scope {
        Scope { job: job.parse().unwrap(), run: run.map(|run| run.parse().unwrap()) }
    }

    #[test]
    fn bodies_are_flat_and_the_job_may_be_left_out() {
        assert_eq!(
            from_value::<KeyValueRequest>(
                json!({"job": "j", "run": "r", "key": "k", "value": "v"})
            )
            .unwrap(),
            KeyValueRequest { scope: scope("j", Some("r")), key: "k".into(), value: "v".into() }
        );
        assert_eq!(
            from_value::<AddRequest>(json!({"key": "k", "delta": -2})).unwrap(),
            AddRequest { scope: Scope::default(), key: "k".into(), delta: -2 }
        );
        assert_eq!(
            from_value::<MultiPutRequest>(json!({"entries": [{"key": "a", "value": r"\x00"}]}))
                .unwrap(),
            MultiPutRequest {
                scope: Scope::default(),
                entries: vec![KeyValue { key: "a".into(), value: Blob::from(vec![0]) }],
            }
        );
        assert_eq!(
            from_value::<TransactionRequest>(json!({
                "compare": [{"exists": {"key": "k", "exists": false}}],
                "then": [{"put": {"key": "k", "value": "v"}}],
            }))
            .unwrap(),
            TransactionRequest {
                scope: Scope::default(),
                compare: vec![Compare::Exists { key: "k".into(), exists: false }],
                then: vec![TransactionOp::Put { key: "k".into(), value: "v".into() }],
                or_else: vec![],
            }
        );
    }

    #[test]
    fn a_body_that_is_short_of_something_or_misnames_a_job_is_refused() {
        let bad: [Value; 5] = [
            json!({"value": "v"}),
            json!({"key": "k"}),
            json!({"key": 1, "value": "v"}),
            json!({"key": "k", "value": "v", "job": "a/b"}),
            json!({"key": "k", "value": "v", "run": ""}),
        ];
        for body in bad {
            assert!(from_value::<KeyValueRequest>(body.clone()).is_err(), "{body}");
        }
        assert!(from_value::<AddRequest>(json!({"key": "k", "delta": 1.5})).is_err());
    }

    #[test]
    fn answers_are_flat_and_say_when_they_are_replayed() {
        let mark = Mark { revision: 8, replayed: false };
        assert_eq!(to_value(WrittenAnswer { mark }).unwrap(), json!({"revision": 8}));
        let added = AddedAnswer { value: 3, mark: Mark { replayed: true, ..mark } };
        assert_eq!(to_value(added).unwrap(), json!({"value": 3, "revision": 8, "replayed": true}));
        let popped = PoppedAnswer { value: None, length: 0, mark };
        assert_eq!(to_value(popped).unwrap(), json!({"value": null, "length": 0, "revision": 8}));
    }

    #[test]
    fn an_answer_of_another_kind_is_the_clients_mistake_only_if_it_was_replayed() {
        let outcome = Outcome::Kv(KvOutcome::Written);
        let replayed = unfitting(&outcome, Mark { revision: 8, replayed: true });
        assert_eq!(replayed.status().as_u16(), 409);
        let fresh = unfitting(&outcome, Mark { revision: 8, replayed: false });
        assert_eq!(fresh.status().as_u16(), 500);
    }
}
