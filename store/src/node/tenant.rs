//! Tenants, and how they share a node fairly.
//!
//! A tenant is a job; all requests that name none are one tenant, too. Until a request
//! has been read, the holder of its signed token is its tenant; on a stream, the last job
//! that a request before it named. Each has a part of every queue and of all room, and those
//! that wait are served in turn: a tenant that asks for more than its part does not slow the
//! others.
//!
//! | module | holds |
//! | --- | --- |
//! | [`queue`] | queues that serve tenants in turn |
//! | [`room`] | room of which a tenant takes at most as much as it leaves free |

pub(crate) mod queue;
pub(crate) mod room;

use std::fmt;

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
            Read::Feed { lease, .. } => Tenant::holder(machine, *lease),
            _ => read.job().map_or(Tenant::Anybody, |job| Tenant::Job(job.clone())),
        }
    }

    /// The tenant of a request.
    pub(crate) fn of_request(machine: &Machine, body: &RequestBody) -> Tenant {
        match body {
            RequestBody::Propose(proposal) => Tenant::of_command(machine, &proposal.command),
            RequestBody::Read { read, .. } if read.is_probe() => Tenant::Anybody,
            RequestBody::Read { read, .. } => Tenant::of_read(machine, read),
            RequestBody::Wait { scope, .. } | RequestBody::Watch { scope, .. } => Tenant::of(scope),
            RequestBody::Feed { lease, .. } => Tenant::holder(machine, *lease),
            RequestBody::Events { job, .. } => Tenant::Job(job.clone()),
            RequestBody::Report(report) => Tenant::Job(report.job.clone()),
            RequestBody::Status
            | RequestBody::Admin(_)
            | RequestBody::Cancel { .. }
            | RequestBody::WatchLeader => Tenant::Anybody,
        }
    }

    /// A request on this tenant's connection is about another: one about a job that the caller
    /// may be makes the connection that job's. What names no job leaves it as it is.
    pub(crate) fn follow(&mut self, asked: Tenant, may_be: impl FnOnce(&Tenant) -> bool) {
        if matches!(asked, Tenant::Job(_)) && may_be(&asked) {
            *self = asked;
        }
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tenant::Job(job) => write!(f, "job {job}"),
            Tenant::Token(id) => write!(f, "token {id}"),
            Tenant::Anybody => f.write_str("all who name no job"),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Blob, Proposal, SessionCommand};
    use serde_json::json;

    use super::*;

    fn job(name: &str) -> Tenant {
        Tenant::Job(name.parse().unwrap())
    }

    fn of(body: &RequestBody) -> Tenant {
        Tenant::of_request(&Machine::new(), body)
    }

    #[test]
    fn a_connection_is_that_of_the_last_job_that_was_named() {
        let mut tenant = Tenant::Token("t1".parse().unwrap());
        tenant.follow(Tenant::Anybody, |_| true);
        assert_eq!(tenant, Tenant::Token("t1".parse().unwrap()));
        tenant.follow(job("b"), |_| true);
        assert_eq!(tenant, job("b"));
        let keep_alive = Command::Session(SessionCommand::KeepAlive { session: 7.into() });
        for names_none in [
            RequestBody::Status,
            RequestBody::Cancel { request: 1 },
            RequestBody::Propose(Proposal { session: None, command: keep_alive }),
            RequestBody::Read { read: Read::Jobs, stale: false },
        ] {
            tenant.follow(of(&names_none), |_| true);
            assert_eq!(tenant, job("b"), "{names_none:?}");
        }
        tenant.follow(job("c"), |_| false);
        assert_eq!(tenant, job("b"), "the caller may not be c");
        tenant.follow(job("c"), |_| true);
        assert_eq!(tenant, job("c"));
    }

    #[test]
    fn a_report_is_of_its_job() {
        let report = json!({
            "host": "h", "pid": 1, "version": "0", "job": "b", "run": "r1",
            "listens": "127.0.0.1:1", "clients": [], "waits": [],
        });
        let report = serde_json::from_value(report).unwrap();
        assert_eq!(of(&RequestBody::Report(report)), job("b"));
    }

    #[test]
    fn a_sign_of_life_is_of_no_job() {
        let length = |scope: &Scope, key: &str, stale| {
            let read = Read::QueueLength { scope: scope.clone(), key: Blob::from(key) };
            RequestBody::Read { read, stale }
        };
        let (none, b) = (Scope::default(), Scope { job: "b".parse().unwrap(), run: None });
        for stale in [false, true] {
            assert_eq!(of(&length(&none, "", stale)), Tenant::Anybody);
            assert_eq!(of(&length(&none, "q", stale)), job("default"));
            assert_eq!(of(&length(&b, "", stale)), job("b"));
        }
    }
}
