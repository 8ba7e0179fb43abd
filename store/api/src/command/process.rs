//! Commands on processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::facts::{Facts, Sender, Size, Subject, Turn};
use super::{Nonce, Revision};
use crate::lease::LeaseId;
use crate::name::Scope;
use crate::process::{
    Incarnation, Labels, ProcessEnd, ProcessId, Role, is_default, is_default_role, is_zero,
};
use crate::terms::Policy;
use crate::version::{COORDINATION_LEVEL, MINOR_COORDINATION};

/// A command on processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProcessCommand {
    /// Registers a new incarnation; the same nonce registers the same one.
    Register {
        /// The lease of its host.
        lease: LeaseId,
        /// Its number; without one, the next above all that the run ever used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<ProcessId>,
        /// Chosen at random; a protocol with incarnations of its own keeps them
        /// here.
        nonce: Nonce,
        /// The incarnation that this one replaces, dead or alive; 0 = the
        /// process was never there.
        #[serde(default, skip_serializing_if = "is_zero")]
        replaces: Incarnation,
        /// Replace it even if it is alive on another host.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        takeover: bool,
        /// Whether it counts in rounds (active) or waits to be promoted.
        #[serde(default, skip_serializing_if = "is_default_role")]
        role: Role,
        /// Its labels, as it reports them.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        labels: Labels,
        /// The numbers that it gives to rounds over all active processes.
        #[serde(default, skip_serializing_if = "is_default")]
        policy: Box<Policy>,
    },
    /// Its agent reports that processes ended. One command for all that ended
    /// together: no round sees one of them without the others.
    End {
        /// The lease that all of them are attached to.
        lease: LeaseId,
        /// Which ended, and how. One that has ended before stays as it was.
        ends: Vec<ProcessEnd>,
    },
    /// An operator ends a process, on any lease.
    Remove {
        /// Job and run of the process.
        scope: Scope,
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Which of its incarnations.
        incarnation: Incarnation,
        /// Why, for the record.
        reason: String,
    },
}

impl ProcessCommand {
    pub(super) fn facts(&self) -> Facts<'_> {
        let (subject, sender) = match self {
            ProcessCommand::Register { lease, .. } | ProcessCommand::End { lease, .. } => {
                (Subject::Lease(*lease), Sender::Program)
            }
            ProcessCommand::Remove { scope, .. } => (Subject::Run(scope), Sender::Client),
        };
        Facts {
            level: COORDINATION_LEVEL,
            minor: MINOR_COORDINATION,
            sender,
            names_itself: !matches!(self, ProcessCommand::Remove { .. }),
            turn: Turn::First,
            ..Facts::of(subject)
        }
    }

    pub(super) fn size(&self) -> Size {
        match self {
            ProcessCommand::Register { replaces, labels, policy, .. } => {
                let labels = labels.iter().map(|(key, value)| key.len() + value.len() + 16);
                let bytes = 64 + policy.assignment_bytes() + labels.sum::<usize>();
                // Records of processes stay; a new incarnation takes the place of the one before.
                Size { bytes, adds: *replaces == 0, ..Size::of(bytes, 1) }
            }
            ProcessCommand::End { ends, .. } => {
                let ended = ends.iter().map(|end| 32 + end.cause.bytes());
                Size::of(ended.sum(), ends.len())
            }
            ProcessCommand::Remove { .. } => Size::of(0, 1),
        }
    }

    pub(super) fn participants(&self) -> Vec<(ProcessId, Incarnation)> {
        match self {
            ProcessCommand::End { ends, .. } => {
                ends.iter().map(|end| (end.process, end.incarnation)).collect()
            }
            ProcessCommand::Register { .. } | ProcessCommand::Remove { .. } => Vec::new(),
        }
    }
}

/// The outcome of a process command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProcessOutcome {
    /// Outcome of a registration.
    Registered {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Incarnation that this registration was given.
        incarnation: Incarnation,
        /// The revision of its registration: this incarnation's start.
        since: Revision,
    },
    /// Outcome of an end or a removal.
    Ended {
        /// How many ended by this command.
        ended: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_adds_unless_it_replaces_another() {
        let size = |replaces| {
            let register = ProcessCommand::Register {
                lease: 1.into(),
                process: Some(7),
                nonce: Nonce(1, 1),
                replaces,
                takeover: false,
                role: Role::Active,
                labels: Labels::from([("rack".to_owned(), "r".repeat(1_000))]),
                policy: Box::default(),
            };
            register.size()
        };
        assert!(size(0).adds && size(0).bytes > 1_000, "{:?}", size(0));
        assert!(!size(1).adds, "a rank that comes back is needed");
    }
}
