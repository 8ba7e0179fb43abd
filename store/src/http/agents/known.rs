//! Agents of several nodes, in order, and what fits into an answer.

use std::collections::BTreeMap;

use holdfast_api::{AgentReport, AgentStatus, Agents, LeftAgent, Name, NodeId, OtherWait};
use serde::Serialize;

use crate::http::answer::Counted;

/// Agents, each with the bytes of its JSON.
pub(super) struct Known {
    agents: Vec<(usize, AgentStatus)>,
    others: Vec<(usize, OtherWait)>,
    left: Vec<(usize, LeftAgent)>,
    /// The rest: these lists are empty in it.
    rest: Agents,
}

/// What one answer says of them.
#[derive(Serialize)]
pub(super) struct Listed<'a> {
    agents: Vec<&'a AgentStatus>,
    unreachable: &'a [NodeId],
    older: &'a [NodeId],
    left_out: u64,
    others: Vec<&'a OtherWait>,
    others_left_out: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<&'a LeftAgent>,
}

impl Known {
    pub(super) fn of(mut all: Agents) -> Known {
        Known {
            agents: counted(std::mem::take(&mut all.agents)),
            others: counted(std::mem::take(&mut all.others)),
            left: counted(std::mem::take(&mut all.left)),
            rest: all,
        }
    }

    /// Those of the jobs and runs that are shown. What would make the JSON longer than so
    /// many bytes is left out, and counted; jobs share the bytes.
    pub(super) fn listed(
        &self,
        bytes_max: usize,
        shown: impl Fn(&Name, &Name) -> bool,
    ) -> Listed<'_> {
        let agents = those_of(&self.agents, |it| [&it.report.job, &it.report.run], &shown);
        let others = those_of(&self.others, |it| [&it.job, &it.run], &shown);
        let left = those_of(&self.left, |it| [&it.job, &it.run], &shown);
        let mut wanted: BTreeMap<&Name, usize> = BTreeMap::new();
        let all = agents.iter().map(Item::wants);
        let all = all.chain(others.iter().map(Item::wants)).chain(left.iter().map(Item::wants));
        for (job, bytes) in all {
            *wanted.entry(job).or_default() += bytes;
        }
        let mut room = parts(wanted, bytes_max);
        let (agents, agents_left_out) = fitting(agents, &mut room);
        let (others, others_left_out) = fitting(others, &mut room);
        let (left, _) = fitting(left, &mut room);
        Listed {
            agents,
            unreachable: &self.rest.unreachable,
            older: &self.rest.older,
            left_out: self.rest.left_out + agents_left_out,
            others,
            others_left_out: self.rest.others_left_out + others_left_out,
            left,
        }
    }
}

/// Something that is shown, with its job and the bytes of its JSON.
struct Item<'a, T> {
    job: &'a Name,
    bytes: usize,
    item: &'a T,
}

impl<'a, T> Item<'a, T> {
    fn wants(&self) -> (&'a Name, usize) {
        (self.job, self.bytes)
    }
}

/// The items of the jobs and runs that are shown. `whose`: job and run of one.
fn those_of<'a, T>(
    items: &'a [(usize, T)],
    whose: impl Fn(&'a T) -> [&'a Name; 2],
    shown: &impl Fn(&Name, &Name) -> bool,
) -> Vec<Item<'a, T>> {
    let items = items.iter().filter_map(|(bytes, item)| {
        let [job, run] = whose(item);
        shown(job, run).then_some(Item { job, bytes: *bytes, item })
    });
    items.collect()
}

/// The bytes of each job, of those that it wants: all the same, and what one does not want is for
/// the others.
fn parts(wanted: BTreeMap<&Name, usize>, bytes_max: usize) -> BTreeMap<&Name, usize> {
    let mut jobs: Vec<(usize, &Name)> =
        wanted.into_iter().map(|(job, bytes)| (bytes, job)).collect();
    jobs.sort_unstable();
    let (count, mut left) = (jobs.len(), bytes_max);
    let parts = jobs.into_iter().enumerate().map(|(done, (wanted, job))| {
        let part = wanted.min(left / (count - done));
        left -= part;
        (job, part)
    });
    parts.collect()
}

/// The items that fit into the room of their jobs, and how many do not fit.
fn fitting<'a, T>(
    items: Vec<Item<'a, T>>,
    room: &mut BTreeMap<&'a Name, usize>,
) -> (Vec<&'a T>, u64) {
    let (mut fitting, mut left_out) = (Vec::new(), 0);
    for Item { job, bytes, item } in items {
        let room = room.entry(job).or_default();
        match room.checked_sub(bytes) {
            Some(rest) => {
                *room = rest;
                fitting.push(item);
            }
            None => left_out += 1,
        }
    }
    (fitting, left_out)
}

/// Each with the bytes of its JSON, with a separator.
fn counted<T: Serialize>(items: Vec<T>) -> Vec<(usize, T)> {
    let counted = |item: T| {
        let mut bytes = Counted(1);
        serde_json::to_writer(&mut bytes, &item)
            .expect("a report is made of strings and numbers, which JSON can hold");
        (bytes.0, item)
    };
    items.into_iter().map(counted).collect()
}

/// Ordered by identity; of an agent that has just changed its node only the last
/// report.
pub(super) fn put_in_order(agents: &mut Vec<AgentStatus>) {
    type Identity<'a> = (&'a Name, &'a Name, &'a str, u32, &'a str, &'a str);
    fn identity(agent: &AgentStatus) -> Identity<'_> {
        let AgentReport { id, host, pid, job, run, listens, .. } = &agent.report;
        (job, run, host, *pid, listens, id)
    }
    agents.sort_by(|a, b| {
        identity(a).cmp(&identity(b)).then_with(|| a.told_ms_ago.cmp(&b.told_ms_ago))
    });
    agents.dedup_by(|later, first| identity(later) == identity(first));
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    fn told(host: &str, node: NodeId, told_ms_ago: u64) -> AgentStatus {
        AgentStatus { report: report(host, 0), node, told_ms_ago }
    }

    #[test]
    fn an_answer_is_bounded_and_says_what_it_leaves_out() {
        let wait = OtherWait {
            job: "j".parse().unwrap(),
            run: "r".parse().unwrap(),
            keys: vec!["\u{1}".repeat(10_000).as_str().into()],
            keys_left_out: 0,
            at_least: None,
            blocked_ms: 1,
            node: 1,
        };
        let mut all = Agents {
            agents: ["a", "b"].map(|host| told(host, 1, 0)).into(),
            others: vec![wait; 5],
            unreachable: vec![7],
            left_out: 3,
            ..Agents::default()
        };
        all.agents.insert(1, told(&"x".repeat(1_000_000), 2, 0));
        let known = Known::of(all.clone());
        let listed = |bytes_max, shown: fn(&Name, &Name) -> bool| {
            let json = serde_json::to_vec(&known.listed(bytes_max, shown)).unwrap();
            (json.len(), serde_json::from_slice::<Agents>(&json).unwrap())
        };
        let (whole, listed_all) = listed(usize::MAX, |_, _| true);
        assert_eq!(listed_all, all);
        assert_eq!(listed(whole, |_, _| true).1, all, "what fits is told");
        let (bytes, agents) = listed(100_000, |_, _| true);
        let hosts: Vec<_> = agents.agents.iter().map(|agent| agent.report.host.as_str()).collect();
        assert_eq!((hosts, agents.left_out), (vec!["a", "b"], 4));
        assert_eq!((agents.others.len() as u64 + agents.others_left_out), 5);
        assert!(agents.others_left_out > 0 && !agents.others.is_empty());
        assert!(bytes < 101_000, "beside the lists there is little");
        let (_, agents) = listed(usize::MAX, |_, run| run.as_str() == "r");
        assert_eq!((agents.agents.len(), agents.others.len(), agents.left_out), (0, 5, 3));
    }

    #[test]
    fn a_job_with_many_agents_leaves_room_for_those_of_others() {
        let of = |job: &str, host: &str| {
            let mut agent = told(&host.repeat(10_000), 1, 0);
            agent.report.job = job.parse().unwrap();
            agent
        };
        let mut agents: Vec<AgentStatus> = (0..20).map(|_| of("a", "x")).collect();
        agents.extend(["y", "z"].map(|host| of("b", host)));
        let left = LeftAgent {
            id: String::new(),
            job: "c".parse().unwrap(),
            run: "r".parse().unwrap(),
            host: "h".repeat(10_000),
            ended: Vec::new(),
        };
        let all = Agents { agents, left: vec![left], ..Agents::default() };
        let known = Known::of(all);
        let listed = known.listed(100_000, |_, _| true);
        let hosts = |begin: &str| {
            listed.agents.iter().filter(|agent| agent.report.host.starts_with(begin)).count()
        };
        assert_eq!((hosts("y"), hosts("z"), listed.left.len()), (1, 1, 1));
        assert_eq!((hosts("x"), listed.left_out), (6, 14));
    }

    #[test]
    fn an_agent_that_changed_its_node_is_listed_once_with_what_it_told_last() {
        let mut agents = vec![told("b", 1, 5), told("a", 1, 900), told("a", 2, 10)];
        put_in_order(&mut agents);
        let listed: Vec<_> =
            agents.iter().map(|agent| (agent.report.host.as_str(), agent.node)).collect();
        assert_eq!(listed, [("a", 2), ("b", 1)]);
    }

    #[test]
    fn agents_in_containers_that_have_host_name_and_process_id_in_common_are_two() {
        let of = |id: &str, listens: &str| {
            let (id, listens) = (id.to_owned(), listens.to_owned());
            let report = AgentReport { id, listens, ..report("a", 0) };
            AgentStatus { report, node: 1, told_ms_ago: 5 }
        };
        let mut agents = vec![of("1", "127.0.0.1:1"), of("2", "127.0.0.1:1")];
        put_in_order(&mut agents);
        assert_eq!(agents.len(), 2);
        // Agents of an earlier version send no name of their own.
        let mut agents = vec![of("", "127.0.0.1:1"), of("", "127.0.0.1:2")];
        put_in_order(&mut agents);
        assert_eq!(agents.len(), 2);
    }
}
