//! What agents report: kept in memory with their connections, collected from all
//! nodes on request, and never logged. Those who ask meanwhile share what is collected.
//!
//! | module | holds |
//! | --- | --- |
//! | `known` | agents of several nodes, in order, and what fits into an answer |
//! | `shared` | what is made once for all who ask meanwhile |

mod known;
mod shared;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::join_all;
use holdfast_api::agent::{
    CLIENTS_MAX, ENDED_MAX, LISTENS_BYTES_MAX, NAME_BYTES_MAX, OTHER_WAITS_MAX, PROCESSES_MAX,
    REPORT_BYTES_MAX, WAIT_KEYS_MAX, WAITS_MAX,
};
use holdfast_api::{
    AgentReport, AgentStatus, AgentWait, Agents, Condition, LeftAgent, Name, NodeId, OtherWait,
    Scope, Until,
};
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};

use self::known::{Known, put_in_order};
use self::shared::{Interest, Shared};
use super::App;
use super::answer::Json;
use super::problem::extract::Params;
use super::problem::{Failure, ReadProblems};
use crate::access::Access;
use crate::dial;
use crate::node::tenant::Tenant;
use crate::node::tenant::room::{Part, Room};
use crate::node::waits::{Tells, UnreportedWait};
use crate::node::{Node, acting, at_length};
use crate::permit::Operation;
use crate::principal::Principal;

/// Path of the agents that are connected to one node, for other nodes.
pub(crate) const OWN_AGENTS: &str = "/raft/v1/agents";

/// How long another node may take to name its agents.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);

/// A wait is reported when it has been blocked for this long.
const BLOCKED_MIN: Duration = Duration::from_secs(1);

/// After waits were looked through, so many times as long passes before they are again, but
/// at most this.
const WALK_REST_FACTOR: u32 = 20;
const WALK_REST_MAX: Duration = Duration::from_secs(1);

/// Bytes of reports that a node keeps, shared out among jobs; what does not fit is only counted.
const KEPT_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// Agents that have left with ended programs that a node remembers, and for how
/// long.
const LEFT_MAX: usize = 1_024;
const LEFT_TIME_MAX: Duration = Duration::from_secs(3_600);
/// Programs of one of them that are remembered: the latest.
const LEFT_ENDED_MAX: usize = 64;

/// Bytes of JSON of a node's answer to another about its agents; what does not
/// fit is only counted. Less than half of what is read of an answer.
const OWN_JSON_BYTES_MAX: usize = 24 * 1024 * 1024;

/// Bytes of JSON of a node's answer to a client about all agents; what does not
/// fit is only counted. Clients read at least a third more.
const ALL_JSON_BYTES_MAX: usize = 48 * 1024 * 1024;

/// The reports of this node's connections. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Reports(Arc<Mutex<Kept>>);

struct Kept {
    last_place: u64,
    /// For the bytes of reports.
    room: Room,
    told: BTreeMap<u64, Reported>,
    left_out: HashSet<u64>,
    /// Ended programs of agents that have left, the latest last.
    left: VecDeque<Left>,
}

struct Left {
    agent: LeftAgent,
    at: Instant,
}

struct Reported {
    report: Arc<AgentReport>,
    at: Instant,
    _room: Part,
}

/// Holds the report of one connection; removed on drop.
pub(crate) struct Place {
    id: u64,
    reports: Reports,
    tells: Tells,
}

impl Reports {
    /// A place for a new connection.
    pub(crate) fn place(&self) -> Place {
        let mut kept = self.0.lock();
        kept.last_place += 1;
        Place { id: kept.last_place, reports: self.clone(), tells: Tells::default() }
    }

    /// All reports with their ages as of now, and how many had no room.
    fn now(&self) -> (Vec<(AgentReport, u64)>, u64) {
        let (told, left_out) = {
            let kept = self.0.lock();
            let aged = |told: &Reported| {
                let ms = u64::try_from(told.at.elapsed().as_millis()).unwrap_or(u64::MAX);
                (told.report.clone(), ms)
            };
            (kept.told.values().map(aged).collect::<Vec<_>>(), kept.left_out.len() as u64)
        };
        // Copied without the lock that agents' reports wait for.
        let told = told.into_iter().map(|(report, ms)| (AgentReport::clone(&report).aged(ms), ms));
        (told.collect(), left_out)
    }

    /// Last reports of agents that have left.
    fn left(&self) -> Vec<LeftAgent> {
        let kept = self.0.lock();
        let recent = kept.left.iter().filter(|left| left.at.elapsed() < LEFT_TIME_MAX);
        let aged = |left: &Left| {
            let ms = u64::try_from(left.at.elapsed().as_millis()).unwrap_or(u64::MAX);
            let mut agent = left.agent.clone();
            for ended in &mut agent.ended {
                ended.ended_ms_ago = ended.ended_ms_ago.saturating_add(ms);
            }
            agent
        };
        recent.map(aged).collect()
    }
}

impl Default for Kept {
    fn default() -> Self {
        Kept {
            last_place: 0,
            room: Room::new(KEPT_BYTES_MAX),
            told: BTreeMap::new(),
            left_out: HashSet::new(),
            left: VecDeque::new(),
        }
    }
}

impl Kept {
    fn forget(&mut self, id: u64) {
        self.left_out.remove(&id);
        self.told.remove(&id);
    }

    /// Room for a report of so many bytes, if its job does not have its share already.
    fn room_for(&self, job: &Name, size: u32) -> Option<Part> {
        self.room.take(&Tenant::Job(job.clone()), size).now_or_never()
    }
}

impl Place {
    /// Whether the waits of this connection are in its agent's report, and that is kept.
    pub(crate) fn tells(&self) -> Tells {
        self.tells.clone()
    }

    /// Replaces the last report.
    pub(crate) fn tell(&self, report: AgentReport) {
        let size = Some(report.size()).filter(|size| *size <= REPORT_BYTES_MAX);
        let size = size.filter(|_| is_bounded(&report)).and_then(|size| u32::try_from(size).ok());
        let kept = &mut *self.reports.0.lock();
        kept.forget(self.id);
        let room = size.and_then(|size| kept.room_for(&report.job, size));
        self.tells.store(room.is_some(), Ordering::Relaxed);
        let Some(room) = room else {
            kept.left_out.insert(self.id);
            return;
        };
        let (report, at) = (Arc::new(report), Instant::now());
        kept.told.insert(self.id, Reported { report, at, _room: room });
    }
}

/// Whether every part of a report is within an agent's limits.
fn is_bounded(report: &AgentReport) -> bool {
    let from = report.clients.iter().map(|client| &client.from);
    let mut names = [&report.id, &report.host, &report.version].into_iter().chain(from);
    names.all(|name| name.len() <= NAME_BYTES_MAX)
        && report.listens.len() <= LISTENS_BYTES_MAX
        && report.processes.len() <= PROCESSES_MAX
        && report.clients.len() <= CLIENTS_MAX
        && report.waits.len() <= WAITS_MAX
        && report.ended.len() <= ENDED_MAX
}

impl Drop for Place {
    fn drop(&mut self) {
        let kept = &mut *self.reports.0.lock();
        if let Some(told) = kept.told.get(&self.id)
            && !told.report.ended.is_empty()
        {
            let AgentReport { id, job, run, host, ended, .. } = &*told.report;
            let ended = ended[ended.len().saturating_sub(LEFT_ENDED_MAX)..].to_vec();
            let (id, host) = (id.clone(), host.clone());
            let agent = LeftAgent { id, job: job.clone(), run: run.clone(), host, ended };
            let at = told.at;
            kept.left.push_back(Left { agent, at });
            if kept.left.len() > LEFT_MAX {
                kept.left.pop_front();
            }
        }
        kept.forget(self.id);
    }
}

/// Which agents are meant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AgentsParams {
    /// Only those of this job.
    #[serde(default)]
    #[param(value_type = Name, required = false, example = "web")]
    pub job: Option<Name>,
    /// Only those of runs with this name.
    #[serde(default)]
    #[param(value_type = Name, required = false, example = "r1")]
    pub run: Option<Name>,
}

impl AgentsParams {
    fn wants(&self, job: &Name, run: &Name) -> bool {
        self.job.as_ref().is_none_or(|wanted| wanted == job)
            && self.run.as_ref().is_none_or(|wanted| wanted == run)
    }
}

/// The agents, their clients, and who has been waiting there for what.
///
/// Any node answers, for all that it can reach. Agents tell what has changed
/// every few seconds, so that the answer is that old.
#[utoipa::path(
    get, path = "/v1/agents", operation_id = "agents", tag = "operations", params(AgentsParams),
    responses((status = 200, description = "The agents", body = Agents), ReadProblems)
)]
pub(crate) async fn agents(
    State(app): State<App>,
    caller: Principal,
    Params(params): Params<AgentsParams>,
) -> Result<Json<Shown>, Failure> {
    let node = app.node()?;
    let interest = app.inner.collected.all.interest(collect(&app, node)).await;
    Ok(Json(Shown { interest, params, caller }))
}

/// What a caller may see of the agents. It is picked out as it is written: callers that wait
/// for their turn hold nothing of it.
pub(crate) struct Shown {
    interest: Interest<Known>,
    params: AgentsParams,
    caller: Principal,
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = |job: &Name, run: &Name| {
            self.params.wants(job, run) && acting::sees(&self.caller, Operation::SeeAgents, job)
        };
        self.interest.latest().listed(ALL_JSON_BYTES_MAX, shown).serialize(serializer)
    }
}

/// Asks all nodes for their agents.
async fn collect(app: &App, node: &Node) -> Known {
    let view = node.view();
    let others = view
        .nodes
        .iter()
        .filter(|(id, _)| **id != view.id)
        .map(|(id, address)| async { (*id, ask_agents(address, &app.inner.access).await) });
    let mut all = at_length(|| own(app, node));
    let answers = join_all(others).await;
    at_length(|| {
        for (id, answer) in answers {
            match answer.map_or(Asked::Silent, |(status, body)| understood(status, &body)) {
                Asked::Reported(theirs) => {
                    all.agents.extend(theirs.agents);
                    all.left_out += theirs.left_out;
                    all.others.extend(theirs.others);
                    all.others_left_out += theirs.others_left_out;
                    all.left.extend(theirs.left);
                }
                Asked::Older => all.older.push(id),
                Asked::Silent => all.unreachable.push(id),
            }
        }
        put_in_order(&mut all.agents);
        Known::of(all)
    })
}

/// The agents that are connected to this node.
pub(crate) async fn own_agents(State(app): State<App>) -> Result<Response, Failure> {
    let node = app.node()?;
    let writing = async {
        at_length(|| {
            let known = Known::of(own(&app, node));
            let json = serde_json::to_vec(&known.listed(OWN_JSON_BYTES_MAX, |_, _| true));
            Bytes::from(json.expect("a report is made of strings and numbers, which JSON can hold"))
        })
    };
    let json = app.inner.collected.own_json.interest(writing).await.latest();
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, kind)], Bytes::clone(&json)).into_response())
}

/// What is collected of reports, for all who ask meanwhile.
#[derive(Default)]
pub(crate) struct Collected {
    /// Of all nodes.
    all: Arc<Shared<Known>>,
    /// Of this node, as JSON for the others.
    own_json: Arc<Shared<Bytes>>,
    walk: Mutex<Option<Walk>>,
}

/// The waits that no agent reports, as last looked through.
struct Walk {
    ended: Instant,
    took: Duration,
    waits: Vec<OtherWait>,
    left_out: u64,
}

impl Collected {
    /// The waits that no agent reports, and how many more there are. Looking through many
    /// holds up who wakes them: it is done again after a rest.
    fn others(&self, node: &Node) -> (Vec<OtherWait>, u64) {
        let mut last = self.walk.lock();
        if let Some(Walk { ended, took, waits, left_out }) = &*last
            && ended.elapsed() < (*took * WALK_REST_FACTOR).min(WALK_REST_MAX)
        {
            return (waits.clone(), *left_out);
        }
        let began = Instant::now();
        let found = node.effects().waits().unreported(BLOCKED_MIN, OTHER_WAITS_MAX, WAIT_KEYS_MAX);
        let ended = Instant::now();
        let (waits, left_out) = found;
        let waits: Vec<_> = waits.into_iter().map(|wait| other(wait, node.id())).collect();
        let (took, left_out) = (ended - began, left_out as u64);
        *last = Some(Walk { ended, took, waits: waits.clone(), left_out });
        (waits, left_out)
    }
}

fn own(app: &App, node: &Node) -> Agents {
    // Before the reports: a wait reported in between is shown twice, once, rather
    // than not at all.
    let (others, others_left_out) = app.inner.collected.others(node);
    let reports = &app.inner.reports;
    let (told, left_out) = reports.now();
    let agents = told.into_iter().map(|(mut report, told_ms_ago)| {
        let scope = Scope { job: report.job.clone(), run: Some(report.run.clone()) };
        {
            let machine = node.machine();
            // A run that is gone has no waits.
            let run = machine.resolve(&scope).ok();
            report.waits.retain_mut(|wait| {
                let Some(run) = &run else { return false };
                keep_missing(wait, |condition| !machine.met(run, condition, None))
            });
        }
        AgentStatus { report, node: node.id(), told_ms_ago }
    });
    let agents = agents.collect();
    let left = reports.left();
    Agents { agents, left_out, others, others_left_out, left, ..Agents::default() }
}

fn other(wait: UnreportedWait, node: NodeId) -> OtherWait {
    let at_least = wait.missing.iter().find_map(|condition| match condition.until {
        Until::AtLeast(least) => Some(least),
        Until::Exists => None,
    });
    OtherWait {
        job: wait.run.job,
        run: wait.run.run,
        keys: wait.missing.into_iter().map(|condition| condition.key).collect(),
        keys_left_out: wait.left_out as u64,
        at_least,
        blocked_ms: u64::try_from(wait.blocked.as_millis()).unwrap_or(u64::MAX),
        node,
    }
}

/// Keeps the keys that are missing; returns whether the wait is still blocked.
fn keep_missing(wait: &mut AgentWait, missing: impl Fn(&Condition) -> bool) -> bool {
    let until = wait.at_least.map_or(Until::Exists, Until::AtLeast);
    wait.keys.retain(|key| missing(&Condition { key: key.clone(), until }));
    !wait.keys.is_empty() || wait.keys_left_out > 0
}

/// Another node's answer about its agents.
#[derive(Debug, PartialEq)]
enum Asked {
    Reported(Agents),
    /// It does not know the request: its version is older.
    Older,
    /// No answer, or an unreadable one.
    Silent,
}

async fn ask_agents(address: &str, access: &Access) -> Option<(StatusCode, Bytes)> {
    let asked = dial::request(
        access.tls(),
        address,
        Method::GET,
        OWN_AGENTS,
        access.headers(),
        Bytes::new(),
        ASK_TIME_MAX,
    );
    let (status, _, body) = asked.await.ok()?;
    Some((status, body))
}

fn understood(status: StatusCode, body: &[u8]) -> Asked {
    match status {
        StatusCode::NOT_FOUND => Asked::Older,
        status if status.is_success() => {
            serde_json::from_slice(body).map_or(Asked::Silent, Asked::Reported)
        }
        _ => Asked::Silent,
    }
}

#[cfg(test)]
mod tests;
