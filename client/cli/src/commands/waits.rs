//! Blocked waits.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

use holdfast_api::{Agents, Blob, Name, NodeId};
use serde::Serialize;

use super::{Context, agents, known};
use crate::exit::Failure;
use crate::majority;
use crate::output::{Document, cell, printable, write_rows};
use crate::pytorch::{self, Missing};

/// Most groups in a table.
const GROUPS_MAX: usize = 20;
/// Most waiters of one group in a table.
const WAITERS_MAX: usize = 16;
/// Most keys of one group in a table.
const KEYS_MAX: usize = 4;

/// Shows every blocked wait.
pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let majority_lost = majority::ask(&context.client).await;
    let agents = agents::ask(context).await?;
    let stale = majority_lost.is_some();
    let waits = Waits { majority_lost, ..Waits::of(&agents) };
    if waits.waits.is_empty() {
        known::check(context, stale).await?;
    }
    context.emit(&waits)?;
    agents::talk(context, &agents);
    Ok(())
}

/// The answer of `waits`.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Waits {
    /// Why all this may be old, in words; null while there is a majority.
    majority_lost: Option<String>,
    /// The longest wait first.
    pub(super) waits: Vec<Group>,
    /// Agents that were asked.
    agents: u64,
    /// Nodes whose agents could not be asked.
    unreachable: Vec<NodeId>,
}

/// All in one run that wait for the same.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Group {
    pub(super) job: Name,
    pub(super) run: Name,
    /// What is missing, in words; null where the keys are clearer.
    missing: Option<String>,
    /// The keys that are missing.
    keys: Vec<Blob>,
    /// The keys must be numbers of at least this.
    at_least: Option<i64>,
    /// How long the longest has waited.
    pub(super) blocked_ms: u64,
    pub(super) waiters: Vec<Waiter>,
    /// Waiters that their agents did not name.
    waiters_left_out: u64,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Waiter {
    /// Null where no agent reports it.
    pub(super) host: Option<String>,
    pub(super) pid: Option<u32>,
    pub(super) rank: Option<u64>,
    pub(super) blocked_ms: u64,
}

impl Waits {
    pub(super) fn of(agents: &Agents) -> Waits {
        let mut groups = Groups::default();
        for agent in &agents.agents {
            let report = &agent.report;
            for wait in &report.waits {
                let waiter = Waiter {
                    host: Some(report.host.clone()),
                    pid: wait.pid,
                    rank: wait.rank,
                    blocked_ms: wait.blocked_ms,
                };
                groups.add((&report.job, &report.run), &wait.keys, wait.at_least, waiter);
            }
        }
        for wait in &agents.others {
            let waiter = Waiter { host: None, pid: None, rank: None, blocked_ms: wait.blocked_ms };
            groups.add((&wait.job, &wait.run), &wait.keys, wait.at_least, waiter);
        }
        let Groups(groups) = groups;
        let mut waits: Vec<Group> = groups.into_values().collect();
        for group in &mut waits {
            group.waiters.sort_by(|a, b| {
                (a.rank.is_none(), a.rank, &a.host, a.pid).cmp(&(
                    b.rank.is_none(),
                    b.rank,
                    &b.host,
                    b.pid,
                ))
            });
        }
        waits.extend(left_out(agents));
        waits.sort_by_key(|group| std::cmp::Reverse(group.blocked_ms));
        let count = agents.agents.len() as u64;
        Waits { majority_lost: None, waits, agents: count, unreachable: agents.unreachable.clone() }
    }
}

/// The waiters of the same keys, by job, run and keys.
#[derive(Default)]
struct Groups<'a>(BTreeMap<(&'a Name, &'a Name, String), Group>);

impl<'a> Groups<'a> {
    fn add(
        &mut self,
        (job, run): (&'a Name, &'a Name),
        keys: &[Blob],
        at_least: Option<i64>,
        waiter: Waiter,
    ) {
        let missing = in_words(keys, at_least);
        let what = missing.clone().unwrap_or_else(|| format!("{keys:?} {at_least:?}"));
        let group = self.0.entry((job, run, what)).or_insert_with(|| Group {
            job: job.clone(),
            run: run.clone(),
            missing,
            keys: keys.to_vec(),
            at_least,
            blocked_ms: 0,
            waiters: Vec::new(),
            waiters_left_out: 0,
        });
        group.blocked_ms = group.blocked_ms.max(waiter.blocked_ms);
        group.waiters.push(waiter);
    }
}

/// What agents had no room to name, a group for each run.
fn left_out(agents: &Agents) -> impl Iterator<Item = Group> {
    let mut counts: BTreeMap<(Name, Name), u64> = BTreeMap::new();
    for agent in &agents.agents {
        let report = &agent.report;
        if report.waits_left_out > 0 {
            let count = counts.entry((report.job.clone(), report.run.clone())).or_default();
            *count = count.saturating_add(report.waits_left_out);
        }
    }
    counts.into_iter().map(|((job, run), waiters_left_out)| Group {
        job,
        run,
        missing: Some("waits beyond what an agent tells".to_owned()),
        keys: Vec::new(),
        at_least: None,
        blocked_ms: 0,
        waiters: Vec::new(),
        waiters_left_out,
    })
}

/// What a wait misses, if all its keys are PyTorch's.
fn in_words(keys: &[Blob], at_least: Option<i64>) -> Option<String> {
    let read = |key: &Blob| pytorch::missing(key, at_least);
    let missing: Option<BTreeSet<Missing>> = keys.iter().map(read).collect();
    let sentence = pytorch::sentence(&missing.filter(|missing| !missing.is_empty())?);
    // A wait comes from one connection, which is in one namespace.
    match keys.iter().find_map(pytorch::namespace) {
        Some(namespace) => Some(format!("{sentence} (namespace {namespace})")),
        None => Some(sentence),
    }
}

fn since(blocked_ms: u64) -> String {
    let blocked = Duration::from_millis(blocked_ms);
    humantime::format_duration(Duration::from_secs(blocked.as_secs())).to_string()
}

impl Group {
    pub(super) fn count(&self) -> u64 {
        self.waiters.len() as u64 + self.waiters_left_out
    }

    /// The keys that are missing.
    pub(super) fn keys(&self) -> &[Blob] {
        &self.keys
    }

    fn keys_in_words(&self) -> String {
        let keys: Vec<String> = self.keys.iter().take(KEYS_MAX).map(Blob::escaped).collect();
        let more = self.keys.len().saturating_sub(KEYS_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", keys.join(" "))
    }

    /// What the waits of the group miss, in words.
    pub(super) fn words(&self) -> String {
        self.missing.clone().unwrap_or_else(|| format!("not there: {}", self.keys_in_words()))
    }

    fn write(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let (keys, words) = (self.keys_in_words(), self.words());
        let (job, run, count) = (&self.job, &self.run, self.count());
        writeln!(out, "job {job}, run {run}: {}", printable(&words))?;
        let wait = if count == 1 { "waits" } else { "wait" };
        write!(out, "  {count} {wait}, the longest for {}", since(self.blocked_ms))?;
        if self.missing.is_some() && !self.keys.is_empty() {
            write!(out, "; key {keys}")?;
        }
        writeln!(out)?;
        let rows = self.waiters.iter().take(WAITERS_MAX).map(|waiter| {
            [
                format!("    {}", cell(waiter.rank)),
                cell(waiter.host.as_ref()),
                cell(waiter.pid),
                since(waiter.blocked_ms),
            ]
        });
        if !self.waiters.is_empty() {
            write_rows(out, Some(["    RANK", "HOST", "PID", "SINCE"]), rows)?;
        }
        let more = self.waiters.len().saturating_sub(WAITERS_MAX);
        if more > 0 {
            writeln!(out, "    … and {more} more; -o json shows all")?;
        }
        Ok(())
    }
}

impl Document for Waits {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        if let Some(lost) = &self.majority_lost {
            writeln!(out, "{lost}")?;
        }
        for (place, group) in self.waits.iter().take(GROUPS_MAX).enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            group.write(out)?;
        }
        match self.waits.len() {
            0 if self.majority_lost.is_some() => writeln!(
                out,
                "who waits is not known beyond what agents tell the nodes that answer: agents connected to those: {}, and none reports a wait",
                self.agents
            ),
            0 => writeln!(out, "nobody waits; agents connected: {}", self.agents),
            many if many > GROUPS_MAX => {
                writeln!(out, "\n… and {} more; -o json shows all", many - GROUPS_MAX)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{AgentWait, OtherWait};

    use super::agents::tests::agent;
    use super::*;
    use crate::output::{Output, render};

    fn wait(rank: u64, keys: &[&str], blocked_ms: u64) -> AgentWait {
        AgentWait {
            pid: Some(100 + rank as u32),
            rank: Some(rank),
            keys: keys.iter().map(|key| (*key).into()).collect(),
            keys_left_out: 0,
            at_least: None,
            blocked_ms,
        }
    }

    fn table(agents: &Agents) -> String {
        String::from_utf8(render(&Waits::of(agents), Output::Table).unwrap()).unwrap()
    }

    #[test]
    fn who_waits_for_the_same_stands_together_the_longest_first() {
        let mut first = agent("node-a", 0..2);
        first.report.waits = vec![
            wait(1, &["/default_pg/0//cpu//0/5"], 40_500),
            wait(0, &["/default_pg/0//cpu//0/5"], 41_000),
        ];
        let mut second = agent("node-b", 2..4);
        second.report.waits =
            vec![wait(2, &["/default_pg/0//cpu//0/5"], 39_000), wait(3, &["/mine"], 90_000)];
        let agents = Agents { agents: vec![first, second], ..Agents::default() };
        let wanted = "\
job train, run r1: not there: /mine
  1 waits, the longest for 1m 30s
    RANK  HOST    PID  SINCE
    3     node-b  103  1m 30s

job train, run r1: rank 5 has not published its gloo address
  3 wait, the longest for 41s; key /default_pg/0//cpu//0/5
    RANK  HOST    PID  SINCE
    0     node-a  100  41s
    1     node-a  101  40s
    2     node-b  102  39s
";
        assert_eq!(table(&agents), wanted);
        let json: serde_json::Value =
            serde_json::from_slice(&render(&Waits::of(&agents), Output::Json).unwrap()).unwrap();
        assert_eq!(json["waits"][1]["missing"], "rank 5 has not published its gloo address");
        assert_eq!(json["waits"][1]["waiters"][2]["host"], "node-b");
        assert_eq!(json["waits"][0]["missing"], serde_json::Value::Null);
        assert_eq!(json["waits"][0]["keys"][0], "/mine");
    }

    #[test]
    fn waits_of_different_namespaces_stand_apart() {
        let mut restarted = agent("node-a", 0..2);
        restarted.report.waits = vec![
            wait(0, &["@#1:/default_pg/0//cpu//0/5"], 3_000),
            wait(1, &["/default_pg/0//cpu//0/5"], 2_000),
        ];
        let table = table(&Agents { agents: vec![restarted], ..Agents::default() });
        let wanted = "rank 5 has not published its gloo address (namespace @#1)\n  1 waits";
        assert!(table.contains(wanted), "{table}");
        let wanted = "rank 5 has not published its gloo address\n  1 waits";
        assert!(table.contains(wanted), "{table}");
    }

    #[test]
    fn a_wait_that_is_no_agents_is_shown_without_its_host() {
        let other = OtherWait {
            job: "train".parse().unwrap(),
            run: "r1".parse().unwrap(),
            keys: vec!["ready".into()],
            keys_left_out: 0,
            at_least: None,
            blocked_ms: 2_000,
            node: 1,
        };
        let wanted = "\
job train, run r1: not there: ready
  1 waits, the longest for 2s
    RANK  HOST  PID  SINCE
    -     -     -    2s
";
        assert_eq!(table(&Agents { others: vec![other], ..Agents::default() }), wanted);
    }

    #[test]
    fn what_agents_tell_cannot_speak_to_the_terminal() {
        let mut hostile = agent("a\u{1b}[2J", 0..1);
        let keys = ["/x\n\tstore_based_barrier_key:1:last_worker", "/\u{1b}]0;x\u{7}"];
        let keys = [&keys[..1], &keys[1..], &["/group\n/last_member"]];
        hostile.report.waits = keys.map(|keys| wait(0, keys, 2_000)).into();
        let table = table(&Agents { agents: vec![hostile], ..Agents::default() });
        let controls = table.chars().filter(|c| c.is_control() && *c != '\n').count();
        assert_eq!(controls, 0, "{table:?}");
        assert!(table.contains(r"a\x1b[2J") && table.contains(r"barrier group\x0a"), "{table}");
    }

    #[test]
    fn a_table_is_bounded_and_says_what_it_leaves_out() {
        let mut crowd = agent("a", 0..0);
        crowd.report.waits = (0..500).map(|rank| wait(rank, &["/k"], 2_000)).collect();
        crowd.report.waits_left_out = 9;
        for n in 0..50 {
            let key = format!("/{n}");
            crowd.report.waits.push(wait(n, &[key.as_str()], 1_000));
        }
        let table = table(&Agents { agents: vec![crowd], ..Agents::default() });
        assert!(table.contains("… and 484 more"), "{table}");
        assert!(table.ends_with("… and 32 more; -o json shows all\n"), "{table}");
        assert!(table.lines().count() < 120);
    }

    #[test]
    fn without_a_majority_nobody_is_said_to_wait_for_nothing() {
        let lost = Some("the majority is lost: voter 2".to_owned());
        let waits = Waits { majority_lost: lost, ..Waits::of(&Agents::default()) };
        let told = String::from_utf8(render(&waits, Output::Table).unwrap()).unwrap();
        assert!(
            told.starts_with("the majority is lost: voter 2\nwho waits is not known"),
            "{told}"
        );
        assert!(!told.contains("nobody waits"), "{told}");
    }

    #[test]
    fn nobody_waiting_is_said() {
        assert_eq!(table(&Agents::default()), "nobody waits; agents connected: 0\n");
    }
}
