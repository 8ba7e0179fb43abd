//! The cluster as a whole.

use std::io::{self, Write};
use std::time::Duration;

use holdfast_api::{AgentStatus, Majority, NodeRole, NodeStatus, Status};
use holdfast_client::Error;

use serde::Serialize;

use super::{Context, agents};
use crate::config::{Settings, Source, Sourced, StoreList, Timeout};
use crate::exit::{Failure, other_nodes};
use crate::output::{Document, Output, cell, write_rows};

/// How long a node may take to answer the status by default: every node can, in
/// whatever state the others are.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(1_500);

/// The status from any node, or why none answers.
pub(crate) async fn ask(context: &Context) -> Result<Status, Failure> {
    let Settings { timeout, store, .. } = &context.settings;
    let limit = match timeout.source {
        Source::Default => Timeout::After(ANSWER_TIME_MAX),
        _ => timeout.value,
    };
    match context.client.status(limit.deadline()).await {
        Err(Error::Unreachable { tried }) => Err(Failure::Unreachable(nobody(&tried, store))),
        answer => Ok(answer?),
    }
}

/// Why no node answered, one by one, and how to name others.
fn nobody(tried: &[(String, String)], store: &Sourced<StoreList>) -> String {
    // While a cluster is forming, a hint at another cluster does not help.
    let forming = tried.iter().any(|(_, why)| why.contains("the cluster is not founded yet"));
    let next = match forming {
        true => "name others with --store HOST:PORT,… or HOLDFAST_STORE",
        false => other_nodes(&store.source),
    };
    let tried = tried.iter().map(|(address, why)| format!("\n  {address}: {why}"));
    format!(
        "no node can tell the status of the cluster; nothing was changed{}\nthese nodes come from: {}; {next}",
        tried.collect::<String>(),
        store.source
    )
}

/// Prints the status of the cluster, as any node sees it.
pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let status = ask(context).await?;
    // A table has a command of its own for them: `agent list`.
    let agents = match context.output() {
        Output::Json => agents::ask_all(context).await.map(|all| all.agents),
        Output::Table => None,
    };
    let document = StatusWithAgents { status, agents };
    context.emit(&document)?;
    if let Some(next) = trouble(&document.status) {
        context.talk(next);
    }
    Ok(())
}

/// The answer of `status`.
#[derive(Debug, Serialize)]
struct StatusWithAgents {
    #[serde(flatten)]
    status: Status,
    /// Null where no node knows them.
    agents: Option<Vec<AgentStatus>>,
}

impl Document for StatusWithAgents {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        self.status.write_table(out)
    }
}

/// What is wrong with the voters, the leader or the nodes' room; none if nothing
/// is.
fn trouble(status: &Status) -> Option<String> {
    let majority = status.majority.as_ref();
    let lost = majority.and_then(Majority::lost_in_words);
    lost.or_else(|| status.leader.is_none().then(|| leaderless(status)))
        .or_else(|| status.shortage_in_words())
        .or_else(|| majority.and_then(Majority::weakened_in_words))
        .or_else(|| status.joint_in_words())
}

/// Why there is no leader, as far as it can be seen, and what to do.
pub(crate) fn leaderless(status: &Status) -> String {
    if status.cluster_id.is_empty() {
        return "the cluster is not founded yet: start the other nodes of --initial-cluster"
            .to_owned();
    }
    if let Some(lost) = status.majority.as_ref().and_then(Majority::lost_in_words) {
        return lost;
    }
    let voters = status.nodes.iter().filter(|node| node.voter);
    let (mut all, mut alive) = (0, 0);
    for voter in voters {
        all += 1;
        alive += usize::from(voter.role != NodeRole::Unreachable);
    }
    let quorum = all / 2 + 1;
    if alive < quorum {
        format!(
            "there is no leader: {alive} of {all} voters answer and {quorum} are needed; start the unreachable nodes"
        )
    } else {
        format!(
            "there is no leader at present: {alive} of {all} voters answer, which is enough for an election; look again"
        )
    }
}

impl Document for Status {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let facts = [
            ("cluster", self.cluster_id.clone()),
            ("leader", cell(self.leader)),
            ("term", self.term.to_string()),
            ("revision", self.revision.to_string()),
            ("feature level", self.feature_level.to_string()),
            ("answered by", format!("node {}", self.answered_by)),
        ];
        write_rows(out, None, facts.map(|(name, value)| [name.to_owned(), value]))?;
        writeln!(out)?;
        write_nodes(out, &self.nodes)
    }
}

/// Writes the table of nodes.
fn write_nodes(out: &mut Vec<u8>, nodes: &[NodeStatus]) -> io::Result<()> {
    write_rows(
        out,
        Some(["NODE", "ADDRESS", "ROLE", "VOTER", "LAST-LOG", "APPLIED", "SNAPSHOT", "VERSION"]),
        nodes.iter().map(|node| {
            [
                node.id.to_string(),
                node.address.clone(),
                role(node.role).to_owned(),
                if node.voter { "yes" } else { "no" }.to_owned(),
                cell(node.last_log),
                cell(node.applied),
                cell(node.snapshot),
                cell(node.version.as_ref()),
            ]
        }),
    )
}

pub(crate) fn role(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Leader => "leader",
        NodeRole::Follower => "follower",
        NodeRole::Candidate => "candidate",
        NodeRole::Learner => "learner",
        NodeRole::Unreachable => "unreachable",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_api::{Limits, MissingVoter};
    use serde_json::Value;

    use super::*;
    use crate::output::{Output, render};

    /// Three voters; the ones named here answer, the first of them leads if
    /// they are a majority.
    pub(crate) fn cluster(alive: &[u64]) -> Status {
        let leader = (alive.len() > 1).then_some(alive[0]);
        let node = |id| {
            let answers = alive.contains(&id);
            NodeStatus {
                id,
                address: format!("127.0.0.1:2100{id}"),
                role: match (answers, leader == Some(id)) {
                    (false, _) => NodeRole::Unreachable,
                    (true, true) => NodeRole::Leader,
                    (true, false) => NodeRole::Follower,
                },
                voter: true,
                last_log: answers.then_some(10),
                applied: answers.then_some(9),
                snapshot: None,
                version: answers.then(|| "0.1.0".to_owned()),
                feature_level: answers.then_some(1),
                disk: None,
                memory: None,
            }
        };
        let silent = |id: &u64| !alive.contains(id);
        let missing = [1, 2, 3].into_iter().filter(silent).map(|id| MissingVoter {
            node: id,
            address: format!("127.0.0.1:2100{id}"),
            silent_ms: 35_000,
        });
        let answering = alive.len() as u32;
        Status {
            cluster_id: "c1".to_owned(),
            leader,
            term: 4,
            revision: 8,
            feature_level: 1,
            answered_by: alive[0],
            nodes: vec![node(1), node(2), node(3)],
            limits: Limits::default(),
            majority: Some(Majority {
                of: 3,
                needed: 2,
                answering,
                missing: missing.collect(),
                lost_ms: (answering < 2).then_some(35_000),
            }),
            joint: None,
        }
    }

    #[test]
    fn json_has_the_agents_beside_what_the_api_says() {
        let agents = Some(vec![agents::tests::agent("a", 0..2)]);
        let document = StatusWithAgents { status: cluster(&[1, 2]), agents };
        let printed: Value =
            serde_json::from_slice(&render(&document, Output::Json).unwrap()).unwrap();
        assert_eq!(printed["leader"], 1);
        assert_eq!(printed["agents"][0]["clients"][1]["connections"], 2);
    }

    #[test]
    fn json_is_exactly_the_document_of_the_api() {
        let status = cluster(&[2, 3]);
        let printed: Value =
            serde_json::from_slice(&render(&status, Output::Json).unwrap()).unwrap();
        assert_eq!(printed, serde_json::to_value(&status).unwrap());
        assert_eq!(printed["leader"], 2);
        assert_eq!(printed["nodes"][0]["role"], "unreachable");
        assert_eq!(printed["nodes"][0]["last_log"], Value::Null);
        let printed = render(&cluster(&[1]), Output::Json).unwrap();
        let printed: Value = serde_json::from_slice(&printed).unwrap();
        assert_eq!(printed["leader"], Value::Null);
    }

    #[test]
    fn the_table_shows_the_cluster_and_its_nodes() {
        let table = String::from_utf8(render(&cluster(&[2, 3]), Output::Table).unwrap()).unwrap();
        let wanted = "\
cluster        c1
leader         2
term           4
revision       8
feature level  1
answered by    node 2

NODE  ADDRESS          ROLE         VOTER  LAST-LOG  APPLIED  SNAPSHOT  VERSION
1     127.0.0.1:21001  unreachable  yes    -         -        -         -
2     127.0.0.1:21002  leader       yes    10        9        -         0.1.0
3     127.0.0.1:21003  follower     yes    10        9        -         0.1.0
";
        assert_eq!(table, wanted);
    }

    #[test]
    fn nodes_that_cannot_tell_are_quoted_and_this_command_is_not_advised() {
        let (value, source) = (StoreList(Vec::new()), Source::Default);
        let why = "node 1: the cluster is not founded yet, which takes all of its nodes: waiting for node 3 at n3:1";
        let tried =
            [("n1:1".to_owned(), why.to_owned()), ("n3:1".to_owned(), "refused".to_owned())];
        let text = nobody(&tried, &Sourced { value, source });
        assert!(text.contains(&format!("\n  n1:1: {why}\n  n3:1: refused\n")), "{text}");
        assert!(text.contains("--store") && !text.contains("holdfast status"), "{text}");
        assert!(!text.contains("holdfast-store dev"), "there is a cluster: {text}");
    }

    #[test]
    fn what_is_wrong_with_the_voters_is_said_beside_the_table() {
        assert_eq!(trouble(&cluster(&[1, 2, 3])), None);
        let weak = trouble(&cluster(&[1, 2])).unwrap();
        assert!(weak.ends_with("none more may fail"), "{weak}");
        // A leader that lost its followers may not know yet that it no longer leads.
        let lost = Status { leader: Some(1), ..cluster(&[1]) };
        assert!(trouble(&lost).unwrap().starts_with("the majority is lost"));
        let electing = Status { leader: None, ..cluster(&[1, 2]) };
        assert!(trouble(&electing).unwrap().contains("enough for an election"));
    }

    #[test]
    fn a_cluster_without_a_leader_says_what_is_missing() {
        let text = leaderless(&cluster(&[1]));
        assert!(text.contains("the majority is lost: voters 2 ("), "{text}");
        let older = Status { majority: None, ..cluster(&[1]) };
        let text = leaderless(&older);
        assert!(text.contains("1 of 3 voters answer and 2 are needed"), "{text}");
        let electing = Status { leader: None, ..cluster(&[1, 2]) };
        assert!(leaderless(&electing).contains("enough for an election"));
        let young = Status { cluster_id: String::new(), ..cluster(&[1]) };
        assert!(leaderless(&young).contains("not founded yet"));
    }
}
