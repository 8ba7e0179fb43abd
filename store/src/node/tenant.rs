//! Tenants, and how they share a node fairly.
//!
//! A tenant is a job; all requests that name none are one tenant, too. Until a request
//! has been read, the holder of its signed token is its tenant. Each has a part of every
//! queue and of all room, and those that wait are served in turn: a tenant that asks for
//! more than its part does not slow the others.
//!
//! | module | holds |
//! | --- | --- |
//! | [`queue`] | queues that serve tenants in turn |
//! | [`room`] | room of which a tenant takes at most as much as it leaves free |

pub(crate) mod queue;
pub(crate) mod room;

use holdfast_api::{Command, LeaseId, Name, Read, RequestBody, Scope, Subject};
use holdfast_machine::Machine;

use crate::principal::Principal;

/// Whose request it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) enum Tenant {
    Job(Name),
    /// The holder of the signed token with this id. Its request has not been read yet, or
    /// names no job.
    Token(Name),
    /// It names no job, or a lease that does not exist.
    #[default]
    Anybody,
}

impl Tenant {
    /// The tenant of a request that has not been read yet.
    pub(crate) fn of_caller(caller: &Principal) -> Tenant {
        caller.token().map_or(Tenant::Anybody, |token| Tenant::Token(token.id.clone()))
    }

    /// The tenant of these keys and processes.
    pub(crate) fn of(scope: &Scope) -> Tenant {
        Tenant::Job(scope.job.clone())
    }

    /// The tenant of a lease.
    pub(crate) fn holder(machine: &Machine, lease: LeaseId) -> Tenant {
        machine.job_of_lease(lease).map_or(Tenant::Anybody, |job| Tenant::Job(job.clone()))
    }

    /// The tenant of a command.
    pub(crate) fn of_command(machine: &Machine, command: &Command) -> Tenant {
        match command.facts().subject {
            Subject::Nobody => Tenant::Anybody,
            Subject::Job(job) => Tenant::Job(job.clone()),
            Subject::Keys(scope) | Subject::Run(scope) => Tenant::of(scope),
            Subject::Lease(lease) => Tenant::holder(machine, lease),
        }
    }

    /// The tenant of a read.
    pub(crate) fn of_read(machine: &Machine, read: &Read) -> Tenant {
        match read {
            Read::Get { scope, .. }
            | Read::MultiGet { scope, .. }
            | Read::Check { scope, .. }
            | Read::List { scope, .. }
            | Read::Count { scope, .. }
            | Read::QueueLength { scope, .. }
            | Read::Processes { scope, .. }
            | Read::Rounds { scope, .. }
            | Read::Held { scope, .. }
            | Read::Closed { scope, .. }
            | Read::Iteration { scope, .. }
            | Read::Plan { scope, .. } => Tenant::of(scope),
            Read::Runs { job } | Read::Events { job, .. } => Tenant::Job(job.clone()),
            Read::Feed { lease, .. } => Tenant::holder(machine, *lease),
            Read::Jobs => Tenant::Anybody,
        }
    }

    /// The tenant of a request.
    pub(crate) fn of_request(machine: &Machine, body: &RequestBody) -> Tenant {
        match body {
            RequestBody::Propose(proposal) => Tenant::of_command(machine, &proposal.command),
            RequestBody::Read { read, .. } => Tenant::of_read(machine, read),
            RequestBody::Wait { scope, .. } | RequestBody::Watch { scope, .. } => Tenant::of(scope),
            RequestBody::Feed { lease, .. } => Tenant::holder(machine, *lease),
            RequestBody::Events { job, .. } => Tenant::Job(job.clone()),
            RequestBody::Status
            | RequestBody::Admin(_)
            | RequestBody::Cancel { .. }
            | RequestBody::WatchLeader
            | RequestBody::Report(_) => Tenant::Anybody,
        }
    }
}
