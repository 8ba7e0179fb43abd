//! Reads of keys and queues.

use axum::extract::State;
use holdfast_api::{Blob, Code, KeyEntry, Name, Problem, Read, ReadOutcome, Scope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Seen, ask, unfitting_read};
use crate::http::App;
use crate::http::answer::Json;
use crate::http::problem::extract::{Body, Params};
use crate::http::problem::{Failure, ReadProblems};
use crate::http::strict::did_you_mean;
use crate::principal::Principal;

type Answered<T> = Result<Json<T>, Failure>;

/// A key to ask about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct GetRequest {
    /// Job and run that the key belongs to.
    #[serde(flatten)]
    pub scope: Scope,
    /// The key, or the queue.
    pub key: Blob,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    pub stale: bool,
}

/// Keys to ask about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeysRequest {
    /// Job and run that the keys belong to.
    #[serde(flatten)]
    pub scope: Scope,
    /// The keys that are asked about.
    pub keys: Vec<Blob>,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    pub stale: bool,
}

/// Which keys to list, a page at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ListRequest {
    /// Job and run that the keys belong to.
    #[serde(flatten)]
    pub scope: Scope,
    /// Only keys that start with this.
    #[serde(default = "empty")]
    pub(crate) prefix: Blob,
    /// Only keys after this one: the `next` of the page before.
    #[serde(default)]
    pub after: Option<Blob>,
    /// Most entries wanted; 0 = as many as the limits allow.
    #[serde(default)]
    pub limit: u64,
    /// Leave the values out.
    #[serde(default)]
    keys_only: bool,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    pub stale: bool,
}

/// Which keys to count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CountRequest {
    /// Job and run that the keys belong to.
    #[serde(flatten)]
    pub scope: Scope,
    /// Only keys that start with this.
    #[serde(default = "empty")]
    pub(crate) prefix: Blob,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    pub stale: bool,
}

/// The prefix that every key has.
pub(super) fn empty() -> Blob {
    Blob::from("")
}

/// A key, its value and its history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct EntryAnswer {
    /// The key and its value.
    #[serde(flatten)]
    pub entry: KeyEntry,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// Several keys at one revision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct EntriesAnswer {
    /// In the order asked; null for a key that is absent.
    pub entries: Vec<Option<KeyEntry>>,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// Whether all of the keys exist.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CheckAnswer {
    /// Whether all of them exist, as keys or as queues that are not empty.
    all_exist: bool,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// A page of keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PageAnswer {
    /// In byte order of their keys.
    pub entries: Vec<KeyEntry>,
    /// Pass as `after` to go on; null at the end.
    pub next: Option<Blob>,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// How many keys start with the prefix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CountAnswer {
    /// The number of keys.
    pub count: u64,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// How long a queue is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LengthAnswer {
    /// The number of values in it; 0 if there is no such queue.
    pub length: u64,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

async fn entry_of(app: &App, caller: &Principal, request: GetRequest) -> Answered<EntryAnswer> {
    let GetRequest { scope, key, stale } = request;
    let absent = match stale {
        false => format!("there is no key {key} in {scope}"),
        true => format!("there is no key {key} in {scope}, as far as this node knows (stale)"),
    };
    match ask(app, caller, Read::Get { scope: scope.clone(), key }, stale).await? {
        (ReadOutcome::Entry(Some(entry)), seen) => Ok(Json(EntryAnswer { entry, seen })),
        (ReadOutcome::Entry(None), _) => {
            let message = absent + &absent_job(app, caller, &scope.job).await;
            Err(Problem::refused(Code::KeyNotFound, message).into())
        }
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// Completes "there is no key …" if this node knows no such job: its name may be
/// mistyped.
async fn absent_job(app: &App, caller: &Principal, job: &Name) -> String {
    let there = ask(app, caller, Read::Runs { job: job.clone() }, true).await;
    match there.err().map(|failure| failure.problem().code) {
        Some(Code::JobNotFound) => {}
        _ => return String::new(),
    }
    let nearest = match ask(app, caller, Read::Jobs, true).await {
        Ok((ReadOutcome::Jobs(jobs), _)) => {
            let known: Vec<&str> = jobs.iter().map(|info| info.job.as_str()).collect();
            did_you_mean(job.as_str(), &known)
        }
        _ => String::new(),
    };
    format!(": job {job} does not exist{nearest}")
}

async fn page_of(app: &App, caller: &Principal, request: ListRequest) -> Answered<PageAnswer> {
    let ListRequest { scope, prefix, after, limit, keys_only, stale } = request;
    match ask(app, caller, Read::List { scope, prefix, after, limit, keys_only }, stale).await? {
        (ReadOutcome::Page { entries, next }, seen) => Ok(Json(PageAnswer { entries, next, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// One key with its value and its history.
#[utoipa::path(
    post, path = "/v1/kv/get", operation_id = "kv_get", tag = "keys",
    request_body(content = GetRequest, example = json!({"job": "web", "key": "greeting"})),
    responses((status = 200, description = "The key and its value", body = EntryAnswer), ReadProblems)
)]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Principal,
    Body(request): Body<GetRequest>,
) -> Answered<EntryAnswer> {
    entry_of(&app, &caller, request).await
}

/// One key, asked for in the address.
#[utoipa::path(
    get, path = "/v1/kv/get", operation_id = "kv_get_by_query", tag = "keys",
    params(
        ("job" = Option<Name>, Query, description = "The job; `default` when left out", example = "web"),
        ("run" = Option<Name>, Query, description = "The run; the open one when left out", example = "r1"),
        ("key" = String, Query, description = "The key, other bytes than text as \\xNN", example = "greeting"),
        ("stale" = Option<bool>, Query, description = "Answer from this node's own state, however old", example = false),
    ),
    responses((status = 200, description = "The key and its value", body = EntryAnswer), ReadProblems)
)]
pub(crate) async fn get_by_query(
    State(app): State<App>,
    caller: Principal,
    Params(request): Params<GetRequest>,
) -> Answered<EntryAnswer> {
    entry_of(&app, &caller, request).await
}

/// Several keys at one revision.
#[utoipa::path(
    post, path = "/v1/kv/multi-get", operation_id = "kv_multi_get", tag = "keys",
    request_body(content = KeysRequest, example = json!({"job": "web", "keys": ["greeting", "farewell"]})),
    responses((status = 200, description = "The keys, in the order asked", body = EntriesAnswer), ReadProblems)
)]
pub(crate) async fn multi_get(
    State(app): State<App>,
    caller: Principal,
    Body(KeysRequest { scope, keys, stale }): Body<KeysRequest>,
) -> Answered<EntriesAnswer> {
    match ask(&app, &caller, Read::MultiGet { scope, keys }, stale).await? {
        (ReadOutcome::Entries(entries), seen) => Ok(Json(EntriesAnswer { entries, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// Whether all keys exist.
#[utoipa::path(
    post, path = "/v1/kv/check", operation_id = "kv_check", tag = "keys",
    request_body(content = KeysRequest, example = json!({"job": "web", "keys": ["greeting", "farewell"]})),
    responses((status = 200, description = "Whether all of them exist", body = CheckAnswer), ReadProblems)
)]
pub(crate) async fn check(
    State(app): State<App>,
    caller: Principal,
    Body(KeysRequest { scope, keys, stale }): Body<KeysRequest>,
) -> Answered<CheckAnswer> {
    match ask(&app, &caller, Read::Check { scope, keys }, stale).await? {
        (ReadOutcome::Checked { all_exist }, seen) => Ok(Json(CheckAnswer { all_exist, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// Keys in byte order, a page at a time.
#[utoipa::path(
    post, path = "/v1/kv/list", operation_id = "kv_list", tag = "keys",
    request_body(content = ListRequest, example = json!({"job": "web", "prefix": "gre", "limit": 100})),
    responses((status = 200, description = "A page of keys", body = PageAnswer), ReadProblems)
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Principal,
    Body(request): Body<ListRequest>,
) -> Answered<PageAnswer> {
    page_of(&app, &caller, request).await
}

/// Keys in byte order, asked for in the address.
#[utoipa::path(
    get, path = "/v1/kv/list", operation_id = "kv_list_by_query", tag = "keys",
    params(
        ("job" = Option<Name>, Query, description = "The job; `default` when left out", example = "web"),
        ("run" = Option<Name>, Query, description = "The run; the open one when left out", example = "r1"),
        ("prefix" = Option<String>, Query, description = "Only keys that start with this", example = "gre"),
        ("after" = Option<String>, Query, description = "Only keys after this one: the `next` of the page before", example = "greeting"),
        ("limit" = Option<u64>, Query, description = "Most entries wanted; 0 = as many as the limits allow", example = 100),
        ("keys_only" = Option<bool>, Query, description = "Leave the values out", example = true),
        ("stale" = Option<bool>, Query, description = "Answer from this node's own state, however old", example = false),
    ),
    responses((status = 200, description = "A page of keys", body = PageAnswer), ReadProblems)
)]
pub(crate) async fn list_by_query(
    State(app): State<App>,
    caller: Principal,
    Params(request): Params<ListRequest>,
) -> Answered<PageAnswer> {
    page_of(&app, &caller, request).await
}

/// How many keys start with a prefix; queues are not counted.
#[utoipa::path(
    post, path = "/v1/kv/count", operation_id = "kv_count", tag = "keys",
    request_body(content = CountRequest, example = json!({"job": "web", "prefix": "gre"})),
    responses((status = 200, description = "The number of keys", body = CountAnswer), ReadProblems)
)]
pub(crate) async fn count(
    State(app): State<App>,
    caller: Principal,
    Body(CountRequest { scope, prefix, stale }): Body<CountRequest>,
) -> Answered<CountAnswer> {
    match ask(&app, &caller, Read::Count { scope, prefix }, stale).await? {
        (ReadOutcome::Count { count }, seen) => Ok(Json(CountAnswer { count, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// Length of a queue.
#[utoipa::path(
    post, path = "/v1/kv/queue-length", operation_id = "kv_queue_length", tag = "queues",
    request_body(content = GetRequest, example = json!({"job": "web", "key": "tasks"})),
    responses((status = 200, description = "The queue's length", body = LengthAnswer), ReadProblems)
)]
pub(crate) async fn queue_length(
    State(app): State<App>,
    caller: Principal,
    Body(GetRequest { scope, key, stale }): Body<GetRequest>,
) -> Answered<LengthAnswer> {
    match ask(&app, &caller, Read::QueueLength { scope, key }, stale).await? {
        (ReadOutcome::Count { count }, seen) => Ok(Json(LengthAnswer { length: count, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Query;
    use axum::http::Uri;
    use serde_json::{from_value, json, to_value};

    use super::*;

    fn query<T: serde::de::DeserializeOwned>(query: &str) -> Result<T, String> {
        let uri: Uri = format!("/v1/kv/get?{query}").parse().unwrap();
        Query::try_from_uri(&uri).map(|Query(params)| params).map_err(|e| e.body_text())
    }

    #[test]
    fn a_question_reads_the_same_from_the_body_and_from_the_address() {
        let body = json!({"job": "j", "run": "r", "key": "a b", "stale": true});
        let expected = from_value::<GetRequest>(body).unwrap();
        assert_eq!(query::<GetRequest>("key=a%20b&job=j&run=r&stale=true").unwrap(), expected);

        let body = json!({"prefix": "p/", "after": "p/1", "limit": 10, "keys_only": true});
        let expected = from_value::<ListRequest>(body).unwrap();
        assert_eq!(
            query::<ListRequest>("prefix=p/&after=p/1&limit=10&keys_only=true").unwrap(),
            expected
        );
    }

    #[test]
    fn what_is_left_out_of_an_address_has_its_default() {
        assert_eq!(
            query::<GetRequest>(r"key=%5Cx00").unwrap(),
            GetRequest { scope: Scope::default(), key: Blob::from(vec![0]), stale: false }
        );
        let list = query::<ListRequest>("").unwrap();
        assert_eq!((list.prefix, list.limit, list.keys_only), (Blob::from(""), 0, false));
    }

    #[test]
    fn an_address_that_cannot_be_read_is_refused() {
        for bad in ["", "job=j", "key=k&stale=maybe", "key=k&job=a/b"] {
            assert!(query::<GetRequest>(bad).is_err(), "{bad:?}");
        }
        assert!(query::<ListRequest>("limit=-1").is_err());
    }

    #[test]
    fn an_entry_is_flat_and_marked_when_stale() {
        let entry = KeyEntry {
            key: "k".into(),
            value: Some("v".into()),
            created: 2,
            modified: 3,
            version: 2,
        };
        let answer = EntryAnswer { entry, seen: Seen { revision: 9, stale: true } };
        assert_eq!(
            to_value(answer).unwrap(),
            json!({
                "key": "k", "value": "v", "created": 2, "modified": 3, "version": 2,
                "revision": 9, "stale": true,
            })
        );
    }
}
