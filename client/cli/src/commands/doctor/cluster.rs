//! The nodes: each by itself, then all together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use holdfast_api::{NodeId, NodeStatus, Room, Status, routes};
use holdfast_client::{Credentials, fetch};
use tokio::task::JoinSet;

use super::Check;
use super::exposition::{Histogram, value};
use crate::commands::status::leaderless;

/// How long a node may take for one answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);
/// Most nodes that are examined.
const NODES_MAX: usize = 64;
/// Pause between the two looks at a node's clock.
const CLOCK_WINDOW: Duration = Duration::from_secs(2);
/// Most that a node's clock rate may be off this host's, as a fraction.
const RATE_OFF_MAX: f64 = 0.01;
/// Beyond it timeouts and leases are wrong on that node.
const RATE_OFF_BROKEN: f64 = 0.1;
/// A slower disk delays every write.
const FSYNC_P99_MAX: Duration = Duration::from_millis(50);
/// With fewer observations a percentile says nothing.
const FSYNCS_MIN: f64 = 20.0;
const CLOCK: &str = "holdfast_clock_seconds";
const FSYNC: &str = "holdfast_disk_wal_fsync_duration_seconds";
const REPAIRS: &str = "holdfast_disk_repairs";
const BYTES: &str = "holdfast_kv_bytes";
const WAIT_BYTES: &str = "holdfast_parked_bytes";
const PAYLOAD_BYTES: &str = "holdfast_round_payload_bytes";
const ANSWER_BYTES: &str = "holdfast_session_answer_bytes";
/// Part of a budget from which on it is warned of.
const BUDGET_PART_WARNED: f64 = 0.8;

/// The answers of one node.
#[derive(Debug)]
struct Answered {
    took: Duration,
    status: Status,
    /// What keeps it from being ready.
    unready: Option<String>,
    looks: [Look; 2],
}

/// One look at a node's metrics.
#[derive(Debug)]
struct Look {
    /// Halfway between question and answer.
    at: Instant,
    took: Duration,
    text: String,
}

/// Looks at the nodes of the list and at those that they name.
pub(super) async fn look(store: &[String], credentials: &Credentials) -> Vec<Check> {
    let mut looked: BTreeMap<String, Result<Answered, String>> = BTreeMap::new();
    let mut wanted: BTreeSet<String> = store.iter().cloned().collect();
    // A second time, for nodes that the first ones named.
    for _ in 0..2 {
        let known = |address: &String| looked.contains_key(address) || looked.len() >= NODES_MAX;
        let mut looking = JoinSet::new();
        for address in wanted.iter().filter(|address| !known(address)).cloned() {
            let credentials = credentials.clone();
            looking.spawn(async move {
                let answered = examine(&address, &credentials).await;
                (address, answered)
            });
        }
        while let Some(Ok((address, answered))) = looking.join_next().await {
            if let Ok(answered) = &answered {
                let names = store_names(answered, &address, store);
                wanted.extend(names);
            }
            looked.insert(address, answered);
        }
    }
    let mut checks: Vec<Check> =
        looked.iter().flat_map(|(address, answered)| node(address, answered)).collect();
    let statuses: Vec<&Status> = looked.values().flatten().map(|one| &one.status).collect();
    checks.extend(together(&statuses));
    checks.extend(budget(&looked));
    checks
}

/// Other nodes that this one names, if they are not in the list under another
/// name.
fn store_names(answered: &Answered, address: &str, store: &[String]) -> Vec<String> {
    let own = answered.status.answered_by;
    let named = |id: &NodeId, named: &String| *id != own && named != address;
    let nodes = answered.status.nodes.iter();
    let all_listed = answered.status.nodes.len() <= store.len();
    nodes
        .filter(|node| !all_listed && named(&node.id, &node.address))
        .map(|node| node.address.clone())
        .collect()
}

async fn examine(address: &str, credentials: &Credentials) -> Result<Answered, String> {
    let begun = Instant::now();
    let answer = get(address, routes::STATUS, credentials).await?;
    let took = begun.elapsed();
    if answer.status.as_u16() == 401 {
        return Err("it does not accept the token: name its file with --token-file FILE".to_owned());
    }
    let status = serde_json::from_slice(&answer.body).map_err(|_| {
        format!(
            "the program that answers is not a holdfast-store (HTTP {})",
            answer.status.as_u16()
        )
    })?;
    let ready = get(address, routes::READYZ, credentials).await?;
    let unready = (!ready.status.is_success())
        .then(|| String::from_utf8_lossy(&ready.body).lines().collect::<Vec<_>>().join("; "));
    let first = metrics(address, credentials).await?;
    tokio::time::sleep(CLOCK_WINDOW).await;
    let looks = [first, metrics(address, credentials).await?];
    Ok(Answered { took, status, unready, looks })
}

async fn get(
    address: &str,
    path: &str,
    credentials: &Credentials,
) -> Result<holdfast_client::Fetched, String> {
    let fetched = fetch(address, path, credentials, ANSWER_TIME_MAX).await;
    fetched.map_err(|error| error.to_string())
}

async fn metrics(address: &str, credentials: &Credentials) -> Result<Look, String> {
    let begun = Instant::now();
    let answer = get(address, routes::METRICS, credentials).await?;
    let took = begun.elapsed();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    Ok(Look { at: begun + took / 2, took, text })
}

fn node(address: &str, answered: &Result<Answered, String>) -> Vec<Check> {
    let answered = match answered {
        Ok(answered) => answered,
        Err(why) => {
            return vec![Check::ok("reach", address, why.clone()).fails(
                "start that node, or make it reachable (name, route, firewall); `curl http://ADDRESS/livez` tries it",
            )];
        }
    };
    let Answered { took, status, unready, looks } = answered;
    let own = status.nodes.iter().find(|node| node.id == status.answered_by);
    let version = own.and_then(|node| node.version.clone()).unwrap_or_default();
    let subject = format!("node {} at {address}", status.answered_by);
    let found = format!("version {version}, answers in {:.1} ms", took.as_secs_f64() * 1e3);
    let reach = Check::ok("reach", &subject, found);
    let ready = match unready {
        None => Check::ok("ready", &subject, "it serves reads and writes"),
        Some(why) => Check::ok("ready", &subject, why).fails(
            "its log says why; a node that starts, or has no leader, is not ready (`holdfast status`)",
        ),
    };
    let metrics = &looks[1].text;
    vec![reach, ready, clock(&subject, looks), fsync(&subject, metrics), disk(&subject, metrics)]
}

/// Whether the node found damage on its disk since its start.
fn disk(subject: &str, metrics: &str) -> Check {
    match value(metrics, REPAIRS) {
        None => Check::ok("disk", subject, "the node's version does not report this"),
        Some(0.0) => Check::ok("disk", subject, "no damage was found on it since its start"),
        Some(repairs) => {
            let found = format!("damage found and repaired {repairs} times");
            Check::ok("disk", subject, found).warns(
                "nothing is lost, and it will happen again: look at the disk, and replace the node (`holdfast node replace`)",
            )
        }
    }
}

/// Whether the node's clock runs as fast as this host's.
fn clock(subject: &str, looks: &[Look; 2]) -> Check {
    let [first, second] = looks;
    let values = looks.each_ref().map(|look| value(&look.text, CLOCK));
    let [Some(before), Some(after)] = values else {
        return Check::ok("clock", subject, "the node's version does not report this");
    };
    let passed = second.at.duration_since(first.at).as_secs_f64();
    let rate = (after - before) / passed;
    // When the node answered within that time is not known.
    let doubt = (first.took + second.took).as_secs_f64() / 2.0 / passed;
    let off = ((rate - 1.0).abs() - doubt).max(0.0);
    let check =
        Check::ok("clock", subject, format!("runs at {rate:.3} of this host's rate, ± {doubt:.3}"));
    let next = "one of the two hosts' clocks runs wrong: look at its clock source and at pauses of its virtual machine";
    if off > RATE_OFF_BROKEN {
        check.fails(next)
    } else if off > RATE_OFF_MAX {
        check.warns(next)
    } else {
        check
    }
}

/// How long the node's disk takes to make writes durable.
fn fsync(subject: &str, metrics: &str) -> Check {
    let histogram = Histogram::read(metrics, FSYNC);
    let Some(histogram) = histogram.filter(|histogram| histogram.count() >= FSYNCS_MIN) else {
        return Check::ok("fsync", subject, "too few writes since its start to tell");
    };
    let text = |part: f64| match histogram.quantile(part) {
        Some(bound) => format!("at most {:.1} ms", bound.as_secs_f64() * 1e3),
        None => "more than the histogram holds".to_owned(),
    };
    let found = format!("p50 {}, p99 {}, of {} writes", text(0.5), text(0.99), histogram.count());
    let check = Check::ok("fsync", subject, found);
    match histogram.quantile(0.99) {
        Some(p99) if p99 <= FSYNC_P99_MAX => check,
        _ => check.warns(
            "every write waits for this disk or the next slower one: give the store a disk of its own",
        ),
    }
}

/// Checks that need all nodes.
fn together(statuses: &[&Status]) -> Vec<Check> {
    let Some(newest) = statuses.iter().max_by_key(|status| (status.leader.is_some(), status.term))
    else {
        return Vec::new();
    };
    let clusters: BTreeSet<&str> = statuses
        .iter()
        .map(|status| status.cluster_id.as_str())
        .filter(|id| !id.is_empty())
        .collect();
    let all: Vec<&str> = clusters.into_iter().collect();
    let mut one = Check::ok("cluster", "all nodes", format!("cluster {}", all.join(", ")));
    if all.len() > 1 {
        one = one.fails("these are nodes of different clusters: correct --store");
    }
    let leader = match newest.leader {
        Some(leader) => {
            Check::ok("leader", "the cluster", format!("node {leader}, term {}", newest.term))
        }
        None => Check::ok("leader", "the cluster", "none").fails(leaderless(newest)),
    };
    let versions: BTreeSet<&str> =
        newest.nodes.iter().filter_map(|node| node.version.as_deref()).collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    let mut same = Check::ok("versions", "all nodes", versions.join(", "));
    if versions.len() > 1 {
        same = same.warns("finish the upgrade: what is new is not used until all nodes have it");
    }
    let changing = newest.joint_in_words().map(|words| {
        Check::ok("members", "the cluster", words).warns(
            "look again; if it stays, start the nodes that are missing from either set (`holdfast status`)",
        )
    });
    let own = statuses.iter().filter(|status| status.cluster_id == newest.cluster_id);
    let reached = own.map(|status| status.answered_by).collect();
    let checks = [one, leader, voters(newest, &reached)].into_iter().chain(changing);
    checks.chain([room(newest), same, level(newest)]).collect()
}

/// Whether all that some node supports is in use, and which nodes stand in the way.
fn level(status: &Status) -> Check {
    let levels = || status.nodes.iter().filter_map(|node| node.feature_level);
    let (newest, used) = (levels().max().unwrap_or(0), status.feature_level);
    let check = Check::ok("level", "all nodes", format!("feature level {used} is in use"));
    if newest <= used {
        return check;
    }
    let behind: Vec<String> = status
        .nodes
        .iter()
        .filter(|node| node.feature_level.is_none_or(|level| level < newest))
        .map(|node| match node.feature_level {
            Some(level) => format!("node {} supports {level}", node.id),
            None => format!("node {} does not answer", node.id),
        })
        .collect();
    match behind.is_empty() {
        true => check.warns(format!(
            "all nodes support level {newest}, and the leader raises it within seconds: look again"
        )),
        false => check.warns(format!(
            "level {newest} waits for all nodes to support it, and {}: start or upgrade what is behind",
            behind.join(", ")
        )),
    }
}

/// How much of the budgets of all jobs is used up.
fn budget(looked: &BTreeMap<String, Result<Answered, String>>) -> Option<Check> {
    let answered: Vec<&Answered> = looked.values().flatten().collect();
    let newest =
        answered.iter().max_by_key(|one| (one.status.leader.is_some(), one.status.term))?;
    let limits = &newest.status.limits.budget;
    let most = |name: &str| {
        let told = answered.iter().filter_map(|one| value(&one.looks[1].text, name));
        told.fold(0.0, f64::max)
    };
    let used = [
        ("of keys and values", "bytes_max", most(BYTES), limits.bytes_max),
        ("of waits and watches", "wait_bytes_max", most(WAIT_BYTES), limits.wait_bytes_max),
        (
            "of payloads of rounds",
            "kept_payload_bytes_max",
            most(PAYLOAD_BYTES),
            limits.kept_payload_bytes_max,
        ),
        (
            "of answers of sessions",
            "kept_answer_bytes_max",
            most(ANSWER_BYTES),
            limits.kept_answer_bytes_max,
        ),
    ];
    Some(judge_budget(&used))
}

fn judge_budget(used: &[(&str, &str, f64, u64)]) -> Check {
    #[expect(clippy::cast_precision_loss, reason = "a part of some percent")]
    let part = |used: f64, limit: u64| used / (limit.max(1) as f64);
    let found: Vec<String> = used
        .iter()
        .map(|(what, _, used, limit)| format!("{:.0} % {what}", 100.0 * part(*used, *limit)))
        .collect();
    let check = Check::ok("budget", "all jobs", format!("used: {}", found.join(", ")));
    let full = used.iter().find(|(_, _, used, limit)| part(*used, *limit) >= BUDGET_PART_WARNED);
    match full {
        None => check,
        Some((what, name, ..)) => check.warns(format!(
            "the budget {what} is nearly used up, and what adds to it will be refused: delete runs that have ended (`holdfast run delete`), or raise budget.{name} if all nodes have the memory",
        )),
    }
}

/// Whether the nodes have disk and memory left.
fn room(status: &Status) -> Check {
    let least = |of: fn(&NodeStatus) -> Option<Room>| {
        let told = status.nodes.iter().filter_map(of);
        let least = told.min_by_key(|room| room.free_bytes.saturating_sub(room.reserve_bytes));
        least.map_or("unknown".to_owned(), |room| format!("{} MiB", room.free_bytes >> 20))
    };
    let (disk, memory) = (least(|node| node.disk), least(|node| node.memory));
    let check = Check::ok(
        "room",
        "all nodes",
        format!("at the tightest, {disk} of disk and {memory} of memory are free"),
    );
    let fit = status.nodes.iter().filter(|node| node.voter && node.has_room()).count();
    let voters = status.nodes.iter().filter(|node| node.voter).count();
    match status.shortage_in_words() {
        None => check,
        Some(words) if fit > voters / 2 => check.warns(words),
        Some(words) => check.fails(words),
    }
}

/// How many losses the cluster survives. A node is alive if it answered here or
/// in the status: the node that gave the status waits for the others more
/// briefly, and may reach nodes that this host does not.
fn voters(status: &Status, reached: &BTreeSet<NodeId>) -> Check {
    let voters: Vec<_> = status.nodes.iter().filter(|node| node.voter).collect();
    let is_alive = |node: &NodeStatus| node.version.is_some() || reached.contains(&node.id);
    let alive = voters.iter().filter(|node| is_alive(node)).count();
    let (all, quorum) = (voters.len(), voters.len() / 2 + 1);
    let check =
        Check::ok("voters", "the cluster", format!("{alive} of {all} answer, {quorum} are needed"));
    if alive < quorum {
        check.fails("start the missing nodes; nothing is lost, and nothing can be written before")
    } else if alive == quorum && all > 1 {
        check.warns("the next loss stops all writes: start or replace the missing nodes")
    } else if all == 1 {
        check.warns("one node survives no loss: three are meant for production")
    } else {
        check
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Joint;

    use super::super::CheckStatus;
    use super::*;
    use crate::commands::status::tests::cluster;

    fn looks(first: f64, second: f64, apart: Duration, took: Duration) -> [Look; 2] {
        let begun = Instant::now();
        let text = |seconds: f64| format!("{CLOCK} {seconds}\n");
        [
            Look { at: begun, took, text: text(first) },
            Look { at: begun + apart, took, text: text(second) },
        ]
    }

    #[test]
    fn a_clock_is_judged_by_its_rate_and_not_by_what_it_shows() {
        let two = Duration::from_secs(2);
        let quick = Duration::from_millis(1);
        let verdict = |second: f64, took| clock("n", &looks(100.0, second, two, took)).verdict;
        assert_eq!(verdict(102.0, quick), CheckStatus::Ok);
        assert_eq!(verdict(102.1, quick), CheckStatus::Warning);
        assert_eq!(verdict(101.9, quick), CheckStatus::Warning);
        assert_eq!(verdict(103.0, quick), CheckStatus::Failed);
        assert_eq!(verdict(101.0, quick), CheckStatus::Failed);
        assert_eq!(verdict(102.1, Duration::from_millis(200)), CheckStatus::Ok, "who knows");
        let old = looks(0.0, 0.0, two, quick).map(|look| Look { text: String::new(), ..look });
        assert_eq!(clock("n", &old).verdict, CheckStatus::Ok);
    }

    #[test]
    fn a_slow_disk_is_warned_of() {
        let metrics = |fast: u64, all: u64| {
            format!(
                "{FSYNC}_bucket{{le=\"0.01\"}} {fast}\n{FSYNC}_bucket{{le=\"1.6\"}} {all}\n{FSYNC}_bucket{{le=\"+Inf\"}} {all}\n"
            )
        };
        assert_eq!(fsync("n", &metrics(100, 100)).verdict, CheckStatus::Ok);
        assert_eq!(fsync("n", &metrics(90, 100)).verdict, CheckStatus::Warning);
        assert_eq!(fsync("n", &metrics(0, 3)).verdict, CheckStatus::Ok, "too few to tell");
        assert_eq!(fsync("n", "").verdict, CheckStatus::Ok);
    }

    #[test]
    fn damage_on_a_disk_is_warned_of() {
        let verdict = |metrics: &str| disk("n", metrics).verdict;
        assert_eq!(verdict(&format!("{REPAIRS} 0\n")), CheckStatus::Ok);
        assert_eq!(verdict(&format!("{REPAIRS} 2\n")), CheckStatus::Warning);
        assert_eq!(verdict(""), CheckStatus::Ok, "an older version");
    }

    #[test]
    fn nodes_that_a_level_waits_for_are_named() {
        let mut status = cluster(&[1, 2]);
        assert_eq!(level(&status).verdict, CheckStatus::Ok);
        for node in &mut status.nodes {
            node.feature_level = (node.id != 3).then_some(1 + u32::from(node.id == 1));
        }
        let check = level(&status);
        assert_eq!(check.verdict, CheckStatus::Warning);
        let next = check.next.unwrap();
        assert!(next.contains("level 2") && next.contains("node 2 supports 1"), "{next}");
        assert!(next.contains("node 3 does not answer"), "{next}");
    }

    #[test]
    fn a_budget_that_is_nearly_used_up_is_warned_of() {
        let used = |bytes: f64| [("of keys", "bytes_max", bytes, 1_000)];
        assert_eq!(judge_budget(&used(799.0)).verdict, CheckStatus::Ok);
        let full = judge_budget(&used(800.0));
        assert_eq!(full.verdict, CheckStatus::Warning);
        assert!(full.found.contains("80 %") && full.next.unwrap().contains("budget.bytes_max"));
    }

    #[test]
    fn the_cluster_is_judged_as_a_whole() {
        let verdicts = |statuses: &[&Status]| {
            let checks = together(statuses).into_iter();
            checks.map(|check| (check.check, check.verdict)).collect::<BTreeMap<_, _>>()
        };
        let whole = verdicts(&[&cluster(&[1, 2, 3])]);
        assert!(whole.values().all(|verdict| *verdict == CheckStatus::Ok), "{whole:?}");
        assert_eq!(verdicts(&[&cluster(&[1, 2])])["voters"], CheckStatus::Warning);
        let third = Status { answered_by: 3, ..cluster(&[1, 2]) };
        assert_eq!(
            verdicts(&[&cluster(&[1, 2]), &third])["voters"],
            CheckStatus::Ok,
            "it answered here"
        );
        let stranger = Status { cluster_id: "other".to_owned(), ..third };
        assert_eq!(verdicts(&[&stranger, &cluster(&[1, 2])])["voters"], CheckStatus::Warning);
        let lost = verdicts(&[&cluster(&[1])]);
        assert_eq!((lost["voters"], lost["leader"]), (CheckStatus::Failed, CheckStatus::Failed));
        let stranger = Status { cluster_id: "other".to_owned(), ..cluster(&[1, 2, 3]) };
        assert_eq!(verdicts(&[&cluster(&[1, 2, 3]), &stranger])["cluster"], CheckStatus::Failed);
        let mut mixed = cluster(&[1, 2, 3]);
        mixed.nodes[0].version = Some("0.0.9".to_owned());
        assert_eq!(verdicts(&[&mixed])["versions"], CheckStatus::Warning);
        mixed.joint = Some(Joint { from: vec![1, 2, 3], to: vec![1, 2] });
        assert_eq!(verdicts(&[&mixed])["members"], CheckStatus::Warning);
        assert!(together(&[]).is_empty());
    }
}
