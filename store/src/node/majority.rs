//! Which voters answer, and since when others do not: known on every node,
//! with or without a quorum, and logged.
//!
//! The leader knows it from what its followers answer. Another node relies on its
//! leader. Where there is no leader, or the leader has lost its majority, a node
//! asks the voters itself. A node whose entries and heartbeats arrive is there,
//! whether or not it answers: a loaded host has no processor for questions. And
//! where another entry was committed, a majority was there for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use holdfast_api::{Majority, MissingVoter, NodeId};
use tokio::time::Instant;

use super::Node;
use crate::formation::{self, Identity};
use crate::raft::View;
use crate::recurring::Recurring;

/// A voter that has not answered for this long is missing.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// A leader that has heard no majority for this long asks the voters itself:
/// its heartbeats may have stopped.
const ASK_AFTER: Duration = Duration::from_millis(500);

/// How often a node checks, while all is well and while it is not.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How long another node may take to answer.
const ASK_TIME_MAX: Duration = Duration::from_millis(400);

/// When each other node was last heard of.
#[derive(Debug)]
pub(crate) struct Contacts {
    /// When this node began to listen: no silence is longer than this.
    began: Instant,
    heard: BTreeMap<NodeId, Instant>,
    /// When a majority was last there, whoever belonged to it.
    majority: Option<Instant>,
}

impl Contacts {
    /// No node was heard of yet.
    pub(crate) fn new(began: Instant) -> Contacts {
        Contacts { began, heard: BTreeMap::new(), majority: None }
    }

    /// A node was heard of at this time.
    fn note(&mut self, node: NodeId, at: Instant) {
        let heard = self.heard.entry(node).or_insert(at);
        *heard = at.max(*heard);
    }

    /// For how long a node has been silent.
    fn silence(&self, node: NodeId, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard.get(&node).copied().unwrap_or(self.began))
    }

    /// Forgets nodes that are no longer members.
    fn keep(&mut self, members: &BTreeMap<NodeId, String>) {
        self.heard.retain(|node, _| members.contains_key(node));
    }

    /// What the leader has heard, this node has heard through it. `asked` is when the
    /// leader was asked.
    fn take_word(&mut self, leader: NodeId, word: &Majority, view: &View, asked: Instant) {
        self.note(leader, asked);
        for voter in &view.voters {
            let missing = word.missing.iter().find(|missing| missing.node == *voter);
            let silence = Duration::from_millis(missing.map_or(0, |missing| missing.silent_ms));
            // Nothing is known of the time before this node began.
            if let Some(at) = asked.checked_sub(silence).filter(|at| *at >= self.began) {
                self.note(*voter, at);
            }
        }
    }

    /// A majority of the voters was there at this time.
    fn note_majority(&mut self, at: Instant) {
        self.majority = self.majority.max(Some(at));
    }

    /// The state of the majority that follows; none for a node without voters.
    fn judge(&self, view: &View, now: Instant, silence_max: Duration) -> Option<Majority> {
        let count = u32::try_from(view.voters.len()).ok().filter(|count| *count > 0)?;
        let needed = count / 2 + 1;
        let silence = |node: &NodeId| match *node == view.id {
            true => Duration::ZERO,
            false => self.silence(*node, now),
        };
        let mut silences: Vec<Duration> = view.voters.iter().map(silence).collect();
        silences.sort_unstable();
        let missing = view.voters.iter().filter(|node| silence(node) > silence_max);
        let missing: Vec<MissingVoter> = missing
            .map(|node| MissingVoter {
                node: *node,
                address: view.nodes.get(node).cloned().unwrap_or_default(),
                silent_ms: milliseconds(silence(node)),
            })
            .collect();
        let answering = count - u32::try_from(missing.len()).unwrap_or(count);
        // The majority was last present when the last voter that it needs was heard of, or
        // when something was committed.
        let committed = self.majority.map(|at| now.saturating_duration_since(at));
        let lost = silences[needed as usize - 1].min(committed.unwrap_or(Duration::MAX));
        let is_there = committed.is_some_and(|ago| ago <= silence_max);
        let answering = if is_there { answering.max(needed) } else { answering };
        let lost_ms = (answering < needed).then(|| milliseconds(lost));
        Some(Majority { of: count, needed, answering, missing, lost_ms })
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Node {
    /// Which voters answer, as far as this node knows; none before it knows of
    /// any voter.
    pub fn majority(&self) -> Option<Majority> {
        self.majority_with(&self.view(), [])
    }

    /// The same, counting these nodes as having answered just now.
    pub(super) fn majority_with(
        &self,
        view: &View,
        answered: impl IntoIterator<Item = NodeId>,
    ) -> Option<Majority> {
        let now = Instant::now();
        let mut contacts = self.inner.contacts.lock();
        for node in answered {
            contacts.note(node, now);
        }
        self.note_heard(&mut contacts, view, now);
        contacts.judge(view, now, SILENCE_MAX)
    }

    /// Records [`Node::majority`] and logs changes.
    pub(crate) async fn watch_majority(self) {
        let mut log = Log::default();
        loop {
            let well = self.look_around().await;
            let (view, now) = (self.view(), Instant::now());
            let majority = self.majority_with(&view, []);
            let silent = {
                let mut contacts = self.inner.contacts.lock();
                contacts.keep(&view.nodes);
                let silence = |node: &NodeId| (*node, contacts.silence(*node, now));
                view.nodes.keys().filter(|node| **node != view.id).map(silence).collect()
            };
            for line in log.lines(&view, majority.as_ref(), &silent, now) {
                line.write();
            }
            tokio::time::sleep(if well { LOOK_EVERY } else { LOOK_AGAIN }).await;
        }
    }

    /// Logs, while this node leads, members that join, become voters or leave.
    pub(crate) async fn watch_members(self) {
        let mut members = Members::default();
        let changed = |view: View| members.lines(&view).into_iter().for_each(Line::write);
        self.consensus().watch(changed).await;
    }

    /// Asks the nodes that this one does not hear by itself; returns whether all is
    /// well.
    async fn look_around(&self) -> bool {
        let (view, asked) = (self.view(), Instant::now());
        if view.is_leader() {
            let mut contacts = self.inner.contacts.lock();
            self.note_heard(&mut contacts, &view, asked);
            let judged = contacts.judge(&view, asked, ASK_AFTER);
            if judged.is_none_or(|majority| !majority.is_lost()) {
                return true;
            }
        } else if let Some(leader) = &view.leader
            && let Some(word) = self.identity_of(leader.node, &leader.address).await
            && let Some(majority) = word.majority.filter(|majority| !majority.is_lost())
        {
            self.inner.contacts.lock().take_word(leader.node, &majority, &view, asked);
            return true;
        }
        let others = view.nodes.iter().filter(|(node, _)| {
            **node != view.id && (view.voters.contains(node) || view.is_leader())
        });
        let asks = others.map(|(node, address)| self.identity_of(*node, address));
        let answers = join_all(asks).await;
        let mut contacts = self.inner.contacts.lock();
        for identity in answers.into_iter().flatten() {
            contacts.note(identity.node, asked);
        }
        let now = Instant::now();
        contacts.judge(&view, now, SILENCE_MAX).is_none_or(|majority| majority.missing.is_empty())
    }

    /// What came without asking: followers' answers to the leader, the leader's entries
    /// and heartbeats, and its word for what is committed.
    fn note_heard(&self, contacts: &mut Contacts, view: &View, now: Instant) {
        let answered = view.heard.iter().map(|(node, ago)| (*node, *ago));
        for (node, ago) in answered.chain(self.consensus().evidence().silences()) {
            if let Some(at) = now.checked_sub(ago) {
                contacts.note(node, at);
            }
        }
        if !view.is_leader()
            && let Some(ago) = self.consensus().evidence().last_commit()
            && let Some(at) = now.checked_sub(ago)
        {
            contacts.note_majority(at);
        }
    }

    /// The node at a member's address, if it is that member.
    async fn identity_of(&self, node: NodeId, address: &str) -> Option<Identity> {
        let answer = formation::ask_identity(self.access(), address, ASK_TIME_MAX).await.ok()?;
        (answer.node == node && answer.is_of(self.cluster_id())).then_some(answer)
    }
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Warn(String),
    Info(String),
}

impl Line {
    fn write(self) {
        match self {
            Line::Warn(text) => tracing::warn!("{text}"),
            Line::Info(text) => tracing::info!("{text}"),
        }
    }
}

/// The state of the majority and the other nodes as last logged.
#[derive(Debug)]
struct Log {
    majority: Recurring<Vec<NodeId>>,
    /// On the leader: its followers.
    followers: BTreeMap<NodeId, Recurring<()>>,
}

impl Default for Log {
    fn default() -> Self {
        Log { majority: Recurring::repeating(), followers: BTreeMap::new() }
    }
}

impl Log {
    /// What to log now.
    fn lines(
        &mut self,
        view: &View,
        majority: Option<&Majority>,
        silent: &BTreeMap<NodeId, Duration>,
        now: Instant,
    ) -> Vec<Line> {
        let mut lines = self.of_followers(view, silent, now);
        lines.extend(majority.and_then(|majority| self.of_majority(majority, now)));
        lines
    }

    fn of_majority(&mut self, majority: &Majority, now: Instant) -> Option<Line> {
        if !majority.is_lost() {
            let lasted = self.majority.over(now)?;
            let Majority { of, answering, .. } = majority;
            return Some(Line::Info(format!(
                "the majority is back after {}: {answering} of {of} voters answer",
                seconds(lasted)
            )));
        }
        let state = majority.missing.iter().map(|missing| missing.node).collect();
        self.majority.met(&state, now).then(|| Line::Warn(lost(majority)))
    }

    /// The leader's followers: lost and returned.
    fn of_followers(
        &mut self,
        view: &View,
        silent: &BTreeMap<NodeId, Duration>,
        now: Instant,
    ) -> Vec<Line> {
        if !view.is_leader() {
            self.followers.clear();
            return Vec::new();
        }
        self.followers.retain(|node, _| silent.contains_key(node));
        let mut lines = Vec::new();
        for (node, silence) in silent {
            let address = view.nodes.get(node).map_or("", String::as_str);
            let role = if view.voters.contains(node) { "voter" } else { "learner" };
            let follower = self.followers.entry(*node).or_insert_with(Recurring::once);
            if *silence > SILENCE_MAX {
                if follower.met(&(), now) {
                    let silence = seconds(*silence);
                    lines.push(Line::Warn(format!(
                        "{role} {node} ({address}) has not answered for {silence}"
                    )));
                }
            } else if let Some(lasted) = follower.over(now) {
                let lasted = seconds(lasted);
                lines.push(Line::Info(format!(
                    "{role} {node} ({address}) answers again, after {lasted}"
                )));
            }
        }
        lines
    }
}

/// All members, and the voters among them, as last seen.
#[derive(Debug, Default)]
struct Members {
    seen: Option<(BTreeMap<NodeId, String>, BTreeSet<NodeId>)>,
}

impl Members {
    /// The leader's log lines on members that joined, became voters or left.
    fn lines(&mut self, view: &View) -> Vec<Line> {
        let members = (view.nodes.clone(), view.voters.clone());
        if self.seen.as_ref() == Some(&members) {
            return Vec::new();
        }
        let Some(before) = self.seen.replace(members) else { return Vec::new() };
        if !view.is_leader() || before.0.is_empty() {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for (node, address) in &view.nodes {
            if !before.0.contains_key(node) && !view.voters.contains(node) {
                changes.push(format!("node {node} ({address}) was added as a learner"));
            }
            if view.voters.contains(node) && !before.1.contains(node) {
                changes.push(format!("node {node} ({address}) votes now"));
            }
        }
        for (node, address) in before.0.iter().filter(|(node, _)| !view.nodes.contains_key(node)) {
            changes.push(format!("node {node} ({address}) was removed"));
        }
        let voters = view.voters.len();
        let may_fail = voters.saturating_sub(1) / 2;
        let tell =
            |change| Line::Info(format!("{change}; {voters} voters, of which {may_fail} may fail"));
        changes.into_iter().map(tell).collect()
    }
}

/// The line on a lost majority: who is missing, since when, and what is needed.
fn lost(majority: &Majority) -> String {
    let Majority { of, needed, answering, missing, .. } = majority;
    let missing: Vec<String> = missing
        .iter()
        .map(|MissingVoter { node, address, silent_ms }| {
            format!("{node} ({address}) for {}", seconds(Duration::from_millis(*silent_ms)))
        })
        .collect();
    format!(
        "the majority is lost: of {of} voters {needed} are needed, and {answering} answer; not answering: {}; nothing is written until enough are back: start them with their old data folders",
        missing.join(", ")
    )
}

fn seconds(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs().max(1))).to_string()
}

#[cfg(test)]
mod tests;
