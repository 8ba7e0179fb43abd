//! A run of the tool: its plan, its course, its record.
//!
//! | module | holds |
//! | --- | --- |
//! | [`plan`] | the plan |
//! | [`drive`] | a run on a cluster of its own |
//! | [`attached`] | a run on an existing cluster |
//! | [`live`] | progress for people |
//! | `signals` | how a run is asked to end |

pub mod attached;
pub mod drive;
pub mod live;
pub mod plan;
mod signals;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history::Moment;
use crate::recording::RecordCounts;

/// How a run was made: `run.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The seed of all choices.
    pub seed: u64,
    /// The command that repeats it.
    pub command: String,
    /// The version of this tool.
    pub version: String,
    /// The commit of the checkout that the binaries lie in, if they lie in one.
    pub commit: Option<String>,
    /// Why the binaries may be of another state than that commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commit_doubts: Vec<String>,
    /// The nodes of the cluster at its beginning, with their own reports.
    pub nodes: Vec<NodeDescription>,
    /// Names of the workloads.
    pub workloads: Vec<String>,
    /// The faults that were asked for by name.
    #[serde(default)]
    pub nemeses: Vec<String>,
    /// The faults that were to be injected, by name or as all.
    #[serde(default)]
    pub planned: Vec<String>,
    /// The clients, with the class of each.
    pub clients: Vec<ClientDescription>,
    /// When the workloads began.
    pub began: Moment,
    /// When the final reads had been made.
    pub ended: Option<Moment>,
    /// The faults, in order.
    pub faults: Vec<FaultRecord>,
    /// Requested parts that cannot be run here, with the reason.
    pub left_out: Vec<LeftOut>,
    /// Failures besides wrong answers: nodes that ended by themselves, a cluster that did
    /// not recover.
    pub failures: Vec<String>,
    /// Why the run was ended early, if it was.
    pub stopped: Option<String>,
    /// The calls that each client wrote down, final ones too; none while it goes on.
    #[serde(default)]
    pub calls: Option<BTreeMap<String, u64>>,
    /// The records that each program of each job wrote down, by job; none while it goes on.
    #[serde(default)]
    pub records: Option<RecordCounts>,
}

impl Description {
    /// Adds a reason why the run does not reach its planned end.
    pub fn stop(&mut self, why: &str) {
        match &mut self.stopped {
            None => self.stopped = Some(why.to_owned()),
            Some(before) if before.contains(why) => {}
            Some(before) => {
                before.push_str("; ");
                before.push_str(why);
            }
        }
    }
}

/// A node at the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeDescription {
    /// Id of the node.
    pub id: u64,
    /// Address at which clients reach it.
    pub address: String,
    /// Its version, if it was reported.
    pub version: Option<String>,
}

/// A client of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientDescription {
    /// Its name, that of its file.
    pub name: String,
    /// Name of its workload.
    pub workload: String,
    /// `cluster`, or `one node` if it is bound to one.
    pub class: String,
}

/// The record of one fault.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRecord {
    /// Name of the nemesis.
    pub nemesis: String,
    /// The faults that were there at the same time, if it was not alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The action, and the node it hit.
    pub what: String,
    /// Whether it was asked for by name.
    pub by_name: bool,
    /// When it was begun.
    pub begin: Moment,
    /// When the first step of it began, if that was later.
    #[serde(default)]
    pub struck: Option<Moment>,
    /// When its last step was done, if it was made in several: a call before that may have
    /// passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<Moment>,
    /// When it was healed; none if it was not.
    pub end: Option<Moment>,
    /// Proof that it was really there; none if it was not observed.
    pub evidence: Option<String>,
    /// The error of this fault.
    pub error: Option<String>,
}

impl FaultRecord {
    /// The name under which it was planned.
    pub fn planned_as(&self) -> &str {
        self.group.as_deref().unwrap_or(&self.nemesis)
    }
}

/// Something that was not done.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Name of the fault or workload.
    pub name: String,
    /// Why it was left out, for people.
    pub why: String,
}
