//! Who may do what: the one place that says which right each command, read, frame and
//! route needs, and which role has it.
//!
//! Each `match` here names everything, so that what is new does not compile without an
//! answer. `store/docs/secure.md` has the same as a table; a test keeps the two equal.

use holdfast_api::grant::Role;
use holdfast_api::{
    Admin, ClusterCommand, Command, LeaseCommand, LeaseId, Name, ProcessCommand, Read, ReleaseWhy,
    RoundCommand, RunCommand, Scope, SessionCommand, routes,
};
use http::Method;

use crate::tls::PEER_PATHS;

/// A right that something needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// None beyond being let in.
    Any,
    /// To be of the job: its programs and agents.
    Use,
    /// To look at the job, but not at what its programs store.
    See,
    /// To end what belongs to the job.
    End,
    /// To change the cluster.
    Operate,
    Everything,
    /// To be a node.
    Peer,
    /// Nobody's who asks from outside: the leader does it by itself.
    Leader,
}

/// Of which jobs a role has a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    None,
    /// Of those that its patterns match.
    OwnJobs,
    All,
}

impl Right {
    /// How far a role has it.
    pub(crate) fn of(self, role: Role) -> Extent {
        match (self, role) {
            (Right::Leader, _) => Extent::None,
            (Right::Peer, Role::Peer) => Extent::All,
            (Right::Peer, Role::Admin | Role::Operator | Role::Job) | (_, Role::Peer) => {
                Extent::None
            }
            (Right::Any, Role::Admin | Role::Operator | Role::Job) => Extent::All,
            (_, Role::Admin) => Extent::All,
            (Right::See | Right::End | Right::Operate, Role::Operator) => Extent::All,
            (Right::Use | Right::Everything, Role::Operator) => Extent::None,
            (Right::Use | Right::See | Right::End, Role::Job) => Extent::OwnJobs,
            (Right::Operate | Right::Everything, Role::Job) => Extent::None,
        }
    }
}

/// Which job something is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whose {
    Job(Name),
    /// The one that holds this lease.
    Lease(LeaseId),
    /// No single one: what is answered leaves out those that the caller may not see.
    All,
}

impl Whose {
    fn of(scope: &Scope) -> Whose {
        Whose::Job(scope.job.clone())
    }
}

macro_rules! operations {
    ($($variant:ident: $words:literal => $right:ident,)+) => {
        /// Something that can be asked for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Operation {
            $(#[doc = $words] $variant,)+
        }

        impl Operation {
            #[cfg(test)]
            const ALL: &[Operation] = &[$(Operation::$variant,)+];

            /// Its words: "it may not …".
            pub(crate) fn words(self) -> &'static str {
                match self {
                    $(Operation::$variant => $words,)+
                }
            }

            /// The right that it needs.
            pub(crate) fn right(self) -> Right {
                match self {
                    $(Operation::$variant => Right::$right,)+
                }
            }
        }
    };
}

operations! {
    ReadKeys: "read keys and queues, wait for them and watch them" => Use,
    ChangeKeys: "change keys and queues" => Use,
    UseSession: "open a session without a lease; keep and close one by its id" => Any,
    OpenSession: "open a session of a lease" => Use,
    OpenRun: "open a run" => Use,
    EndRun: "end and delete a run" => End,
    DeleteJob: "delete a job" => End,
    HoldLease: "grant, join, renew and end a lease" => Use,
    RunProcess: "register processes and report their ends" => Use,
    RemoveProcess: "remove a process" => End,
    TakePart: "arrive at rounds, withdraw and acknowledge" => Use,
    ReadFeed: "read the feed of a lease" => Use,
    Release: "release a generation" => Use,
    Excuse: "excuse a member of a generation" => End,
    RevokeOwn: "revoke a generation as its member" => Use,
    RevokeAny: "revoke a generation as an operator" => End,
    ReadPayloads: "read the payloads of a closed round" => Use,
    SeeJobs: "list jobs; others are left out" => See,
    SeeRun: "see runs, processes, rounds, generations, iterations, plans and events" => See,
    SeeAgents: "see agents, waits and their keys; others are left out" => See,
    Report: "report the state of an agent" => Use,
    SeeCluster: "see status, nodes, leader, majority, limits and the description" => Any,
    SetLimits: "change the limits" => Operate,
    ChangeNodes: "add, promote and remove nodes" => Operate,
    TransferLeader: "hand leadership over" => Operate,
    RevokeToken: "revoke a token" => Everything,
    SeeTokens: "list revoked tokens" => Everything,
    Backup: "make a backup" => Everything,
    BetweenNodes: "use the paths between nodes" => Peer,
    Lead: "expire, purge, tick, found and raise the feature level" => Leader,
}

impl Operation {
    /// Whether it is written down with who did it.
    pub(crate) fn is_audited(self) -> bool {
        match self.right() {
            Right::End | Right::Operate | Right::Everything => true,
            Right::Any | Right::Use | Right::See | Right::Peer | Right::Leader => false,
        }
    }
}

/// An operation and whose it is.
pub(crate) type Asked = (Operation, Whose);

/// What a command does.
pub(crate) fn of_command(command: &Command) -> Asked {
    match command {
        Command::Kv { scope, op: _ } | Command::Pipeline { scope, ops: _ } => {
            (Operation::ChangeKeys, Whose::of(scope))
        }
        Command::Session(command) => match command {
            SessionCommand::Open { lease: Some(lease), .. } => {
                (Operation::OpenSession, Whose::Lease(*lease))
            }
            SessionCommand::Open { lease: None, .. }
            | SessionCommand::KeepAlive { .. }
            | SessionCommand::Close { .. } => (Operation::UseSession, Whose::All),
            SessionCommand::Expire { .. } => (Operation::Lead, Whose::All),
        },
        Command::Run(command) => match command {
            RunCommand::Open { job, .. } => (Operation::OpenRun, Whose::Job(job.clone())),
            RunCommand::End { job, .. } | RunCommand::Delete { job, .. } => {
                (Operation::EndRun, Whose::Job(job.clone()))
            }
            RunCommand::DeleteJob { job } => (Operation::DeleteJob, Whose::Job(job.clone())),
            RunCommand::Purge { .. } => (Operation::Lead, Whose::All),
        },
        Command::Cluster(command) => match command {
            ClusterCommand::SetLimits { .. } => (Operation::SetLimits, Whose::All),
            ClusterCommand::RevokeToken { .. } => (Operation::RevokeToken, Whose::All),
            ClusterCommand::LeaderStarted { .. }
            | ClusterCommand::Tick
            | ClusterCommand::Found { .. }
            | ClusterCommand::SetFeatureLevel { .. }
            | ClusterCommand::RetireNode { .. } => (Operation::Lead, Whose::All),
        },
        Command::Lease(command) => match command {
            LeaseCommand::Grant { scope, .. } => (Operation::HoldLease, Whose::of(scope)),
            LeaseCommand::Join { job, .. } => (Operation::HoldLease, Whose::Job(job.clone())),
            LeaseCommand::KeepAlive { lease }
            | LeaseCommand::Revoke { lease }
            | LeaseCommand::Leave { lease } => (Operation::HoldLease, Whose::Lease(*lease)),
            LeaseCommand::Expire { .. } => (Operation::Lead, Whose::All),
        },
        Command::Process(command) => match command {
            ProcessCommand::Register { lease, .. } | ProcessCommand::End { lease, .. } => {
                (Operation::RunProcess, Whose::Lease(*lease))
            }
            ProcessCommand::Remove { scope, .. } => (Operation::RemoveProcess, Whose::of(scope)),
        },
        Command::Round(command) => match command {
            RoundCommand::Arrive { lease, .. }
            | RoundCommand::Withdraw { lease, .. }
            | RoundCommand::Acknowledge { lease, .. } => {
                (Operation::TakePart, Whose::Lease(*lease))
            }
            RoundCommand::Release { scope, why, .. } => match why {
                ReleaseWhy::Stopped | ReleaseWhy::Exited => (Operation::Release, Whose::of(scope)),
                ReleaseWhy::Excused => (Operation::Excuse, Whose::of(scope)),
            },
            RoundCommand::Revoke { scope, by: Some(_), .. } => {
                (Operation::RevokeOwn, Whose::of(scope))
            }
            RoundCommand::Revoke { scope, by: None, .. } => {
                (Operation::RevokeAny, Whose::of(scope))
            }
            RoundCommand::Deadline { .. } => (Operation::Lead, Whose::All),
        },
    }
}

/// What a read asks for.
pub(crate) fn of_read(read: &Read) -> Asked {
    match read {
        Read::QueueLength { .. } if read.is_probe() => (Operation::SeeCluster, Whose::All),
        Read::Get { scope, .. }
        | Read::MultiGet { scope, .. }
        | Read::Check { scope, .. }
        | Read::List { scope, .. }
        | Read::Count { scope, .. }
        | Read::QueueLength { scope, .. } => (Operation::ReadKeys, Whose::of(scope)),
        Read::Closed { scope, payloads: true, .. } => (Operation::ReadPayloads, Whose::of(scope)),
        Read::Closed { scope, payloads: false, .. }
        | Read::Processes { scope, .. }
        | Read::Rounds { scope, .. }
        | Read::Held { scope, .. }
        | Read::Iteration { scope, .. }
        | Read::Plan { scope, .. } => (Operation::SeeRun, Whose::of(scope)),
        Read::Runs { job } | Read::Events { job, .. } => {
            (Operation::SeeRun, Whose::Job(job.clone()))
        }
        Read::Feed { lease, .. } => (Operation::ReadFeed, Whose::Lease(*lease)),
        Read::Jobs => (Operation::SeeJobs, Whose::All),
    }
}

/// What an operator's request does.
pub(crate) fn of_admin(admin: &Admin) -> Asked {
    match admin {
        Admin::AddNode { .. } | Admin::PromoteNode { .. } | Admin::RemoveNode { .. } => {
            (Operation::ChangeNodes, Whose::All)
        }
        Admin::TransferLeader { .. } => (Operation::TransferLeader, Whose::All),
    }
}

/// What a route asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// This right, for every body.
    Operation(Operation),
    /// What its body or its frames say; they are checked when they have been read.
    Body,
}

/// Calls on keys and queues.
const KEY_PATHS: &str = "/v1/kv/";

/// The other calls whose body says what they ask for.
const BODIES: [&str; 21] = [
    "/v1/session/open",
    "/v1/session/keep-alive",
    "/v1/session/close",
    "/v1/run/open",
    "/v1/run/end",
    "/v1/run/delete",
    "/v1/job/delete",
    "/v1/lease",
    "/v1/process",
    "/v1/round",
    "/v1/feed",
    "/v1/processes",
    "/v1/rounds",
    "/v1/held",
    "/v1/closed",
    "/v1/plan",
    "/v1/iteration",
    "/v1/events",
    "/v1/runs",
    "/v1/token/revoke",
    routes::STREAM,
];

/// What a route asks for; none: it is not known here, and only who has everything gets
/// to it.
pub(crate) fn of_route(method: &Method, path: &str) -> Option<Route> {
    if path.starts_with(PEER_PATHS) {
        return Some(Route::Operation(Operation::BetweenNodes));
    }
    if path.starts_with(KEY_PATHS) || BODIES.contains(&path) {
        return Some(Route::Body);
    }
    let operation = match path {
        routes::STATUS | routes::MAJORITY | "/v1/nodes" | "/v1/leader" => Operation::SeeCluster,
        routes::LIVEZ | routes::READYZ | routes::METRICS | routes::OPENAPI => Operation::SeeCluster,
        routes::AGENTS => Operation::SeeAgents,
        "/v1/jobs" => Operation::SeeJobs,
        "/v1/backup" => Operation::Backup,
        "/v1/tokens" => Operation::SeeTokens,
        "/v1/limits" if method == Method::GET => Operation::SeeCluster,
        "/v1/limits" => Operation::SetLimits,
        "/v1/node/add" | "/v1/node/promote" | "/v1/node/remove" => Operation::ChangeNodes,
        "/v1/leader/transfer" => Operation::TransferLeader,
        _ => return None,
    };
    Some(Route::Operation(operation))
}

#[cfg(test)]
mod tests;
