//! Opens decoders of a node to the fuzz targets in `tests/fuzz`.

use axum::extract::Query;
use axum::http::request::Parts;
use axum::http::{Request, Uri, header};
use holdfast_api::{LeaseCommand, Limits, ProcessCommand, RoundCommand};
use openraft::raft::{AppendEntriesRequest, VoteRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::config::{check_address, is_loopback, parse_nodes};
use crate::http::kv::{change, park, read};
use crate::http::problem::extract::Quotable;
use crate::http::{agents, backup, cluster, coordination, limits, strict, tokens};
use crate::raft::peer::{PeerError, PeerHello, check};
use crate::raft::server;
use crate::raft::types::{SnapshotMeta, TypeConfig, Vote};
use crate::raft::wire::{
    Append, Appended, Ask, PeerAnswer, SnapshotOffer, SnapshotTaken, append_response,
    stream_result, vote_response,
};
use crate::storage::record::{LogRecord, SnapshotMetaRecord, VoteRecord, decode, encode};
use crate::storage::wal;

/// Reads a frame as each message between nodes, and as consensus takes it. What is read must be
/// written again the same.
pub fn peer_frame(frame: &[u8]) {
    match settled::<Ask>(frame) {
        Some(Ask::Append(append)) => appends(append),
        Some(Ask::Vote(ballot) | Ask::PreVote(ballot)) => {
            drop(VoteRequest::<TypeConfig>::try_from(ballot));
        }
        Some(Ask::Transfer { from, to, last }) => drop(server::transfer(from, to, last)),
        Some(Ask::Gone { .. }) | None => {}
    }
    if let Some(append) = settled::<Append>(frame) {
        appends(append);
    }
    if let Some(answer) = settled::<PeerAnswer>(frame) {
        drop((vote_response(answer.clone()), append_response(answer)));
    }
    if let Some(appended) = settled::<Appended>(frame) {
        drop(stream_result(appended));
    }
    if let Some(SnapshotOffer { vote, meta }) = settled(frame) {
        votes(vote);
        if let Ok(read) = SnapshotMeta::try_from(meta.clone()) {
            assert_eq!(SnapshotMetaRecord::from(&read), meta);
        }
    }
    if let Some(SnapshotTaken::Vote(vote)) = settled(frame) {
        votes(vote);
    }
}

fn settled<T: Serialize + DeserializeOwned>(frame: &[u8]) -> Option<T> {
    let read: T = decode(frame).ok()?;
    let written = encode(&read);
    let again: T = decode(&written).expect("it was just written");
    assert_eq!(encode(&again), written);
    Some(read)
}

fn appends(append: Append) {
    let records = append.entries.clone();
    if let Ok(request) = AppendEntriesRequest::<TypeConfig>::try_from(append) {
        let entries: Vec<LogRecord> = request.entries.iter().map(LogRecord::from).collect();
        assert_eq!(entries, records);
    }
}

fn votes(record: VoteRecord) {
    if let Ok(vote) = Vote::try_from(record) {
        assert_eq!(VoteRecord::from(&vote), record);
    }
}

/// Reads a header in which a node introduces itself, or refuses another.
pub fn peer_header(text: &str) {
    if let Ok(hello) = serde_json::from_str::<PeerHello>(text) {
        let written = serde_json::to_string(&hello).expect("it can be sent");
        assert_eq!(serde_json::from_str::<PeerHello>(&written).ok().as_ref(), Some(&hello));
        let _ = check(&hello, &hello);
    }
    if let Ok(error) = serde_json::from_str::<PeerError>(text) {
        let _ = (error.to_string(), error.forgetful());
    }
}

/// Checks a file of RocksDB's log. What is whole of it must be whole by itself.
pub fn wal_file(file: &[u8]) {
    let found = wal::scan(file);
    assert!(found.whole <= file.len());
    let again = wal::scan(&file[..found.whole]);
    assert_eq!((again.whole, again.sequence), (found.whole, found.sequence));
}

/// Reads lists of nodes, and addresses.
pub fn addresses(text: &str) {
    if let Ok(nodes) = parse_nodes("--initial-cluster", text) {
        let written = crate::formation::written(&nodes);
        assert_eq!(parse_nodes("--initial-cluster", &written).ok(), Some(nodes));
    }
    let _ = check_address("--listen", text);
    is_loopback(text);
    if let Ok(Quotable(id)) = text.parse() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}

/// Whether the handler of a call can read this.
type BodyReader = fn(&[u8]) -> bool;
type QueryReader = fn(&Uri) -> bool;

/// All calls with a body.
const BODIES: [(&str, BodyReader); 34] = [
    ("/v1/feed", body::<coordination::FeedRequest>),
    ("/v1/job/delete", body::<cluster::JobRequest>),
    ("/v1/kv/add", body::<change::AddRequest>),
    ("/v1/kv/append", body::<change::KeyValueRequest>),
    ("/v1/kv/cas", body::<change::CasRequest>),
    ("/v1/kv/cas-revision", body::<change::CasRevisionRequest>),
    ("/v1/kv/check", body::<read::KeysRequest>),
    ("/v1/kv/count", body::<read::CountRequest>),
    ("/v1/kv/delete", body::<change::KeyRequest>),
    ("/v1/kv/get", body::<read::GetRequest>),
    ("/v1/kv/list", body::<read::ListRequest>),
    ("/v1/kv/max", body::<change::MaxRequest>),
    ("/v1/kv/multi-get", body::<read::KeysRequest>),
    ("/v1/kv/multi-put", body::<change::MultiPutRequest>),
    ("/v1/kv/pop", body::<change::KeyRequest>),
    ("/v1/kv/push", body::<change::KeyValueRequest>),
    ("/v1/kv/put", body::<change::KeyValueRequest>),
    ("/v1/kv/queue-length", body::<read::GetRequest>),
    ("/v1/kv/transaction", body::<change::TransactionRequest>),
    ("/v1/kv/wait", body::<park::WaitRequest>),
    ("/v1/kv/watch", body::<park::WatchRequest>),
    ("/v1/leader/transfer", body::<cluster::TransferRequest>),
    ("/v1/lease", body::<LeaseCommand>),
    ("/v1/limits", changed_limits),
    ("/v1/node/add", body::<cluster::AddNodeRequest>),
    ("/v1/node/remove", body::<cluster::NodeRequest>),
    ("/v1/plan", body::<coordination::PlanRequest>),
    ("/v1/process", body::<ProcessCommand>),
    ("/v1/round", body::<RoundCommand>),
    ("/v1/run/end", body::<cluster::RunRequest>),
    ("/v1/run/open", body::<cluster::OpenRunRequest>),
    ("/v1/session/close", body::<cluster::SessionRequest>),
    ("/v1/session/open", body::<cluster::OpenSessionRequest>),
    ("/v1/token/revoke", body::<tokens::RevokeTokenRequest>),
];

/// All calls with parameters in the address.
const QUERIES: [(&str, QueryReader); 14] = [
    ("/v1/agents", query::<agents::AgentsParams>),
    ("/v1/backup", query::<backup::AtLeast>),
    ("/v1/closed", query::<coordination::ClosedParams>),
    ("/v1/events", query::<coordination::EventsParams>),
    ("/v1/held", query::<coordination::HeldParams>),
    ("/v1/iteration", query::<coordination::IterationParams>),
    ("/v1/jobs", query::<cluster::Freshness>),
    ("/v1/kv/get", query::<read::GetRequest>),
    ("/v1/kv/list", query::<read::ListRequest>),
    ("/v1/kv/watch", query::<park::WatchRequest>),
    ("/v1/limits", query::<cluster::Freshness>),
    ("/v1/processes", query::<coordination::ProcessesParams>),
    ("/v1/rounds", query::<coordination::RunParams>),
    ("/v1/runs", query::<cluster::RunsParams>),
];

fn body<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    serde_json::from_slice::<T>(bytes).is_ok()
}

fn changed_limits(bytes: &[u8]) -> bool {
    let wanted = serde_json::from_slice::<Map<String, Value>>(bytes).ok();
    wanted.is_some_and(|wanted| limits::overlay(&Limits::default(), wanted).is_ok())
}

fn query<T: DeserializeOwned>(uri: &Uri) -> bool {
    Query::<T>::try_from_uri(uri).is_ok()
}

fn parts(method: &str, uri: Uri) -> Parts {
    let request = Request::builder().method(method).uri(uri);
    let request = request.header(header::CONTENT_TYPE, "application/json");
    request.body(()).expect("all of it was parsed").into_parts().0
}

/// Checks the body of one of the calls. What the check lets pass its handler must read.
pub fn http_body(call: u8, bytes: &[u8]) {
    let (path, is_read) = BODIES[usize::from(call) % BODIES.len()];
    let parts = parts("POST", Uri::from_static(path));
    let passes = strict::check(&parts, bytes).is_ok();
    assert!(!passes || is_read(bytes), "{path}: {}", bytes.escape_ascii());
}

/// Checks the parameters of one of the calls. What the check lets pass its handler must read.
pub fn http_query(call: u8, parameters: &str) {
    let (path, is_read) = QUERIES[usize::from(call) % QUERIES.len()];
    let Ok(uri) = format!("{path}?{parameters}").parse::<Uri>() else { return };
    let parts = parts("GET", uri.clone());
    let passes = strict::check(&parts, &[]).is_ok();
    assert!(!passes || is_read(&uri), "{uri}");
}
