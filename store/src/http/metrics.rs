//! `/metrics`: OpenMetrics text, with names in the shape that etcd's have.
//!
//! Events are counted as they happen; states are read at each scrape. Anybody may scrape, so
//! the text is written a few times a second at most.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use holdfast_api::{Answer, Effectiveness, NodeId, Problem, Room};
use holdfast_machine::Counts;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::App;
use crate::node::View;
use crate::node::{Node, VERSION};

/// Media type of the text.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Start of every name.
const PREFIX: &str = "holdfast";

/// A text this old is still good for the next scrape, but for the clock.
const TEXT_AGE_MAX: Duration = Duration::from_millis(100);

/// And one this old, while another scrape is writing the next.
const LAST_AGE_MAX: Duration = Duration::from_secs(5);

/// The `route` of requests that no route matches: one label for all, or any
/// client could make as many as it likes.
const ROUTE_UNKNOWN: &str = "unknown";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabels {
    peer: NodeId,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

/// The counters and histograms.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    leader_changes: Counter,
    leader_seen: Mutex<Option<(u64, NodeId)>>,
    proposals_committed: Counter,
    proposals_failed: Counter,
    duplicates_answered: Counter,
    reads: Counter,
    fsync_seconds: Histogram,
    request_seconds: Family<RequestLabels, Histogram>,
    began: Instant,
    /// The text without the clock, and when it was finished.
    written: Mutex<Option<(tokio::time::Instant, Arc<str>)>>,
    /// Held by the scrape that writes the next one.
    writing: Mutex<()>,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

/// From 0.1 ms, below any disk's fsync, to more than 3 s.
fn fsync_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 16))
}

/// From 0.2 ms to more than the longest call.
fn request_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_2, 2.5, 14))
}

impl Metrics {
    /// All counters at zero.
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix(PREFIX);
        let build = Info::new(BuildLabels { version: VERSION });
        registry.register("build", "The build", build);
        let leader_changes = Counter::default();
        registry.register(
            "server_leader_changes",
            "Leaders that this node has seen come",
            leader_changes.clone(),
        );
        let proposals_committed = Counter::default();
        registry.register(
            "server_proposals_committed",
            "Commands of this node's clients that were committed",
            proposals_committed.clone(),
        );
        let proposals_failed = Counter::default();
        registry.register(
            "server_proposals_failed",
            "Commands of this node's clients that were not committed, or whose outcome is unknown",
            proposals_failed.clone(),
        );
        let duplicates_answered = Counter::default();
        registry.register(
            "session_duplicates_answered",
            "Commands that were sent again and got the answer of their first try",
            duplicates_answered.clone(),
        );
        let reads = Counter::default();
        registry.register(
            "server_reads",
            "Reads that clients have sent to this node, refused ones included",
            reads.clone(),
        );
        let fsync_seconds = fsync_histogram();
        registry.register(
            "disk_wal_fsync_duration_seconds",
            "Time to write a batch of log entries and make it durable",
            fsync_seconds.clone(),
        );
        let request_seconds = Family::new_with_constructor(request_histogram as fn() -> Histogram);
        registry.register(
            "http_request_duration_seconds",
            "Time until the answer to an HTTP request begins",
            request_seconds.clone(),
        );
        Metrics {
            registry,
            leader_changes,
            leader_seen: Mutex::default(),
            proposals_committed,
            proposals_failed,
            duplicates_answered,
            reads,
            fsync_seconds,
            request_seconds,
            began: Instant::now(),
            written: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// A client sent a read.
    pub fn asked(&self) {
        self.reads.inc();
    }

    /// A command was committed, and its answer goes to its client.
    pub fn answered(&self, answer: &Answer) {
        self.proposals_committed.inc();
        if answer.replayed {
            self.duplicates_answered.inc();
        }
    }

    /// A command was refused, or its outcome is unknown. One that this node only
    /// refers to the leader was not proposed and is not counted.
    pub(crate) fn proposal_failed(&self, problem: &Problem) {
        if problem.leader.is_none() || problem.outcome != Effectiveness::None {
            self.proposals_failed.inc();
        }
    }

    /// This node knows this leader in this term. Call it at each change; the same
    /// leader counts once.
    pub(crate) fn leader_seen(&self, term: u64, leader: NodeId) {
        let mut seen = self.leader_seen.lock();
        if *seen != Some((term, leader)) {
            *seen = Some((term, leader));
            self.leader_changes.inc();
        }
    }

    /// The log made a batch of entries durable in this time.
    pub(crate) fn observe_fsync(&self, took: Duration) {
        self.fsync_seconds.observe(took.as_secs_f64());
    }

    /// A request on a route was answered.
    fn observe_request(&self, route: &str, code: u16, took: Duration) {
        let labels = RequestLabels { route: route.to_owned(), code };
        self.request_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// The text for a scrape.
    fn text(&self, sample: impl FnOnce() -> Option<Sample>) -> Result<String, fmt::Error> {
        let mut text = self.values(sample)?.to_string();
        let mut clock = Registry::with_prefix(PREFIX);
        clock.register(
            "clock_seconds",
            "The clock by which this node counts time, since its start; its rate is what matters",
            ConstGauge::new(self.began.elapsed().as_secs_f64()),
        );
        encode_registry(&mut text, &clock)?;
        encode_eof(&mut text)?;
        Ok(text)
    }

    /// What was counted, and what is so if there is a node: both written just now, or the
    /// last time if another scrape is writing.
    fn values(&self, sample: impl FnOnce() -> Option<Sample>) -> Result<Arc<str>, fmt::Error> {
        let last = || self.written.lock().clone();
        let _writing = match (self.writing.try_lock(), last()) {
            (Some(writing), _) => writing,
            // Nobody waits for another's scrape, which may take long, as long as there is a text.
            (None, Some((finished, text))) if finished.elapsed() < LAST_AGE_MAX => return Ok(text),
            (None, _) => self.writing.lock(),
        };
        if let Some((finished, text)) = last()
            && finished.elapsed() < TEXT_AGE_MAX
        {
            return Ok(text);
        }
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        if let Some(sample) = sample() {
            let mut present = Registry::with_prefix(PREFIX);
            sample.register(&mut present);
            encode_registry(&mut text, &present)?;
        }
        let text: Arc<str> = text.into();
        *self.written.lock() = Some((tokio::time::Instant::now(), text.clone()));
        Ok(text)
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let value = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, value);
}

/// Values as of a scrape.
#[derive(Debug, Clone)]
struct Sample {
    view: View,
    revision: u64,
    counts: Counts,
    waits: u64,
    parked_bytes: u64,
    disk: Option<Room>,
    memory: Option<Room>,
    scrubs: u64,
    repairs: u64,
    feeds: u64,
    watches: u64,
}

impl Sample {
    fn of(node: &Node) -> Sample {
        let (revision, counts) = {
            let machine = node.machine();
            (machine.revision(), machine.counts())
        };
        let effects = node.effects();
        Sample {
            view: node.view(),
            revision,
            counts,
            waits: effects.waits().len() as u64,
            parked_bytes: effects.parking.bytes(),
            disk: node.room().disk(),
            memory: node.room().memory(),
            scrubs: node.scrubs().rounds(),
            repairs: node.scrubs().repairs(),
            feeds: effects.feeds().len() as u64,
            watches: effects.watches().len(),
        }
    }

    fn register(&self, registry: &mut Registry) {
        let Sample { view, revision, counts, waits, parked_bytes, disk, memory, .. } = self;
        let Sample { scrubs, repairs, feeds, watches, .. } = self;
        let mut add = |name, help, value| gauge(registry, name, help, value);
        let knows_leader = u64::from(view.leader.is_some());
        add("server_has_leader", "Whether this node knows a leader", knows_leader);
        add("server_is_leader", "Whether this node leads", u64::from(view.is_leader()));
        add("raft_term", "The term", view.term);
        add("raft_last_log_index", "Index of the last log entry", view.last_log);
        add(
            "raft_committed_index",
            "Index of the last entry known to be committed",
            view.committed,
        );
        add("raft_applied_index", "Index of the last applied entry", view.applied);
        let snapshot = view.snapshot.unwrap_or(0);
        add("raft_snapshot_index", "Index up to which the snapshot reaches, or 0", snapshot);
        add("kv_revision", "The revision", *revision);
        add("kv_keys", "Keys and queued values", counts.keys);
        add("kv_bytes", "Bytes of keys and values", counts.bytes);
        add("jobs", "Jobs", counts.jobs);
        add("runs", "Runs, ended ones included", counts.runs);
        add("sessions_active", "Sessions", counts.sessions);
        let answers = counts.session_answer_bytes;
        add("session_answer_bytes", "Bytes of answers kept for retries", answers);
        let payloads = counts.payload_bytes;
        add("round_payload_bytes", "Bytes of payloads of rounds", payloads);
        add("history_changes", "Changes kept for watches that resume", counts.history_changes);
        add("history_bytes", "Bytes of those changes", counts.history_bytes);
        add(
            "leases_active",
            "Leases: of hosts, and of processes that hold one of their own",
            counts.leases,
        );
        add("waits_parked", "Waits parked on this node", *waits);
        add("parked_bytes", "Bytes of waits and watches on this node", *parked_bytes);
        if let Some(Room { free_bytes, reserve_bytes, low }) = *disk {
            add("disk_free_bytes", "Bytes free on the disk", free_bytes);
            add("disk_reserve_bytes", "Bytes of it that are to stay free", reserve_bytes);
            add("disk_low", "Whether this node is short of disk", u64::from(low));
        }
        if let Some(Room { free_bytes, reserve_bytes, low }) = *memory {
            add("memory_free_bytes", "Bytes of memory that are left", free_bytes);
            add("memory_reserve_bytes", "Bytes of it that are to stay free", reserve_bytes);
            add("memory_low", "Whether this node is short of memory", u64::from(low));
        }
        add("disk_scrubs", "How often the whole disk was read again since the start", *scrubs);
        add("disk_repairs", "How often something on it was damaged and written anew", *repairs);
        let joint = u64::from(view.joint.is_some());
        add("raft_joint", "Whether a change of voters is under way", joint);
        add("feeds_parked", "Feeds of leases parked on this node", *feeds);
        add("watches_active", "Watches on this node", *watches);
        registry.register(
            "raft_replication_lag_entries",
            "On the leader: entries that a node's log lacks",
            self.lags(),
        );
    }

    /// How far each other node lags; empty unless this one leads.
    fn lags(&self) -> Family<PeerLabels, Gauge> {
        let lags = Family::<PeerLabels, Gauge>::default();
        let others = self.view.nodes.keys().filter(|node| **node != self.view.id);
        for peer in others.copied().filter(|_| self.view.is_leader()) {
            let matched = self.view.matched.get(&peer).copied().unwrap_or(0);
            let lag = self.view.last_log.saturating_sub(matched);
            let lag = i64::try_from(lag).unwrap_or(i64::MAX);
            lags.get_or_create(&PeerLabels { peer }).set(lag);
        }
        lags
    }
}

/// Metrics of this node, OpenMetrics text.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "operations", security(()),
    responses((status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"))
)]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let metrics = app.metrics();
    if let Ok(view) = app.node().map(Node::view)
        && let Some(leader) = &view.leader
    {
        metrics.leader_seen(view.term, leader.node);
    }
    let text = metrics
        .text(|| app.node().ok().map(Sample::of))
        .expect("writing into a string fails only when memory is gone");
    ([(header::CONTENT_TYPE, HeaderValue::from_static(OPENMETRICS))], text).into_response()
}

/// The layer that times requests.
pub(crate) async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let began = Instant::now();
    let response = next.run(request).await;
    let route = route.as_ref().map_or(ROUTE_UNKNOWN, MatchedPath::as_str);
    app.metrics().observe_request(route, response.status().as_u16(), began.elapsed());
    response
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use holdfast_api::{Code, KvOutcome, LeaderHint, NodeRole, Outcome};

    use super::*;

    fn answer(replayed: bool) -> Answer {
        Answer { revision: 1, outcome: Outcome::Kv(KvOutcome::Written), replayed }
    }

    fn sample(role: NodeRole) -> Sample {
        let address = |node: u64| format!("127.0.0.1:2100{node}");
        Sample {
            view: View {
                id: 1,
                term: 3,
                leader: Some(LeaderHint { node: 1, address: address(1) }),
                role,
                last_log: 100,
                applied: 98,
                committed: 99,
                snapshot: None,
                nodes: (1..=3).map(|node| (node, address(node))).collect(),
                voters: BTreeSet::from([1, 2, 3]),
                joint: None,
                matched: BTreeMap::from([(1, 100), (2, 90)]),
                heard: BTreeMap::new(),
                quorum_seen: None,
                failed: None,
            },
            revision: 42,
            counts: Counts { keys: 7, ..Counts::default() },
            waits: 5,
            parked_bytes: 9,
            disk: Some(Room { free_bytes: 5, reserve_bytes: 6, low: true }),
            memory: None,
            scrubs: 0,
            repairs: 0,
            feeds: 0,
            watches: 6,
        }
    }

    fn has_line(text: &str, line: &str) -> bool {
        text.lines().any(|found| found == line)
    }

    #[test]
    fn what_happens_is_counted() {
        let metrics = Metrics::new();
        metrics.answered(&answer(false));
        metrics.answered(&answer(true));
        metrics.asked();
        metrics.proposal_failed(&Problem::unknown(Code::Unavailable, ""));
        metrics.leader_seen(1, 1);
        metrics.leader_seen(1, 1);
        metrics.leader_seen(2, 3);
        metrics.observe_fsync(Duration::from_millis(1));
        metrics.observe_request("/v1/kv/put", 200, Duration::from_millis(2));
        let text = metrics.text(|| None).unwrap();
        for line in [
            "holdfast_server_proposals_committed_total 2",
            "holdfast_server_proposals_failed_total 1",
            "holdfast_session_duplicates_answered_total 1",
            "holdfast_server_reads_total 1",
            "holdfast_server_leader_changes_total 2",
            "holdfast_disk_wal_fsync_duration_seconds_count 1",
            "holdfast_http_request_duration_seconds_count{route=\"/v1/kv/put\",code=\"200\"} 1",
        ] {
            assert!(has_line(&text, line), "{line} in\n{text}");
        }
        assert!(
            text.contains(&format!("holdfast_build_info{{version=\"{VERSION}\"}} 1")),
            "{text}"
        );
    }

    #[test]
    fn a_command_that_is_only_referred_to_the_leader_has_not_failed() {
        let metrics = Metrics::new();
        let leader = LeaderHint { node: 2, address: "127.0.0.1:21002".to_owned() };
        metrics.proposal_failed(&Problem::not_leader(Some(leader)));
        assert_eq!(metrics.proposals_failed.get(), 0);
    }

    #[test]
    fn what_is_so_is_shown_as_it_is_at_the_scrape() {
        let text = Metrics::new().text(|| Some(sample(NodeRole::Leader))).unwrap();
        for line in [
            "holdfast_server_has_leader 1",
            "holdfast_server_is_leader 1",
            "holdfast_raft_term 3",
            "holdfast_raft_last_log_index 100",
            "holdfast_raft_committed_index 99",
            "holdfast_raft_applied_index 98",
            "holdfast_kv_revision 42",
            "holdfast_kv_keys 7",
            "holdfast_waits_parked 5",
            "holdfast_watches_active 6",
            "holdfast_parked_bytes 9",
            "holdfast_disk_free_bytes 5",
            "holdfast_disk_low 1",
            "holdfast_raft_replication_lag_entries{peer=\"2\"} 10",
            "holdfast_raft_replication_lag_entries{peer=\"3\"} 100",
        ] {
            assert!(has_line(&text, line), "{line} in\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_scrape_the_text_is_written_a_few_times_a_second() {
        let (metrics, mut looks) = (Metrics::new(), 0);
        let mut scrape = || {
            let text = metrics.text(|| {
                looks += 1;
                Some(Sample { waits: looks, ..sample(NodeRole::Leader) })
            });
            text.unwrap()
        };
        for _ in 0..1_000 {
            assert!(has_line(&scrape(), "holdfast_waits_parked 1"));
        }
        tokio::time::advance(TEXT_AGE_MAX).await;
        assert!(has_line(&scrape(), "holdfast_waits_parked 2"));
    }

    #[tokio::test(start_paused = true)]
    async fn who_scrapes_while_another_writes_gets_the_last_text() {
        let (metrics, sample) = (Metrics::new(), || Some(sample(NodeRole::Leader)));
        let waits = |waits| Some(Sample { waits, ..sample()? });
        metrics.text(|| waits(1)).unwrap();
        tokio::time::advance(TEXT_AGE_MAX).await;
        let text = metrics.text(|| {
            let meanwhile = metrics.text(|| unreachable!("one writes at a time")).unwrap();
            assert!(has_line(&meanwhile, "holdfast_waits_parked 1"));
            waits(2)
        });
        assert!(has_line(&text.unwrap(), "holdfast_waits_parked 2"));
    }

    #[test]
    fn a_follower_knows_nothing_of_the_others_lag() {
        let text = Metrics::new().text(|| Some(sample(NodeRole::Follower))).unwrap();
        assert!(!text.contains("replication_lag_entries{"), "{text}");
        assert!(has_line(&text, "holdfast_server_is_leader 0"), "{text}");
    }

    #[test]
    fn each_name_is_declared_once_and_the_text_ends_as_it_should() {
        let text = Metrics::new().text(|| Some(sample(NodeRole::Leader))).unwrap();
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("holdfast_")), "{names:?}");
        assert!(text.ends_with("# EOF\n"));
    }
}
