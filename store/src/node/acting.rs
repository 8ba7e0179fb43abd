//! What a caller asks of a node, with the caller's rights: the only way from a
//! connection to the log and to the state.

use holdfast_api::version::SHARES_LEVEL;
use holdfast_api::{
    Admin, Answer, Blob, Code, Command, Condition, Name, Problem, Proposal, Read, ReadAnswer,
    ReadOutcome, Revision, Scope, SessionCommand,
};

use super::proposer::Done;
use super::tenant::Tenant;
use super::{Node, ParkedFeed, ParkedWait, Topic, Watcher, feeds, waits};
use crate::permit::{self, Asked, Extent, Operation, Right, Whose};
use crate::principal::Principal;

/// Most characters of a change that are written down.
const AUDIT_CHARS_MAX: usize = 500;

/// A node on behalf of a caller.
#[derive(Clone, Copy)]
pub(crate) struct Acting<'a> {
    node: &'a Node,
    principal: &'a Principal,
}

impl Node {
    /// What this caller may do here.
    pub(crate) fn acting<'a>(&'a self, principal: &'a Principal) -> Acting<'a> {
        Acting { node: self, principal }
    }
}

impl Acting<'_> {
    /// Commits a command; `done` gets its outcome. Never blocks.
    pub(crate) fn submit(self, proposal: Proposal, done: Done) {
        match self.check_command(&proposal.command) {
            Ok(()) => self.node.submit(self.counted(proposal), done),
            Err(problem) => done(Err(problem)),
        }
    }

    /// Commits a command. A refusal of the state machine is an answer here.
    pub(crate) async fn propose(self, proposal: Proposal) -> Result<Answer, Problem> {
        self.check_command(&proposal.command)?;
        self.node.propose(self.counted(proposal)).await
    }

    /// Answers a read; `done` gets the answer. Never blocks.
    pub(crate) fn submit_read(
        self,
        read: Read,
        stale: bool,
        done: impl FnOnce(Result<ReadAnswer, Problem>) + Send + 'static,
    ) {
        if let Err(problem) = self.check(&permit::of_read(&read)) {
            return done(Err(problem));
        }
        let principal = self.principal.clone();
        self.node.submit_read(read, stale, move |result| {
            done(result.map(|answer| filtered(&principal, answer)));
        });
    }

    pub(crate) async fn read(self, read: Read, stale: bool) -> Result<ReadAnswer, Problem> {
        self.check(&permit::of_read(&read))?;
        let answer = self.node.read(read, stale).await?;
        Ok(filtered(self.principal, answer))
    }

    /// Waits for conditions, as `Node::wait`, if the caller may read the keys.
    pub(crate) fn wait(
        self,
        scope: &Scope,
        conditions: Vec<Condition>,
        since: Option<Revision>,
        tells: waits::Tells,
        waiting: impl FnOnce(Revision),
        ended: waits::Ended,
    ) -> Option<ParkedWait> {
        if let Err(problem) = self.check(&read_keys(scope)) {
            ended(Err(problem));
            return None;
        }
        self.node.wait(scope, conditions, since, tells, waiting, ended)
    }

    /// Watches keys, as `Node::watch`, if the caller may read them.
    pub(crate) fn watch(
        self,
        scope: &Scope,
        prefix: Blob,
        from: Option<Revision>,
    ) -> Result<Watcher, Problem> {
        self.check(&read_keys(scope))?;
        self.node.watch(scope, prefix, from)
    }

    /// Parks a request for a feed, as `Node::await_feed`, if the caller may see its topic.
    pub(crate) fn await_feed(
        self,
        topic: &Topic,
        since: Revision,
        ended: feeds::Ended,
    ) -> Option<ParkedFeed> {
        let asked = match topic {
            Topic::Lease(lease) => (Operation::ReadFeed, Whose::Lease(*lease)),
            Topic::Events(job) => (Operation::SeeRun, Whose::Job(job.clone())),
        };
        if let Err(problem) = self.check(&asked) {
            ended(Err(problem));
            return None;
        }
        self.node.await_feed(topic, since, ended)
    }

    /// Does what an operator asked.
    pub(crate) async fn admin(self, admin: Admin) -> Result<(), Problem> {
        let asked = permit::of_admin(&admin);
        self.check(&asked)?;
        self.node.leads_or_refer()?;
        self.write_down(asked.0, &admin);
        self.node.admin(admin).await
    }

    /// Whether it may use what this tenant has.
    pub(crate) fn may_be(self, tenant: &Tenant) -> bool {
        match tenant {
            Tenant::Job(job) => self.check(&(Operation::SeeRun, Whose::Job(job.clone()))).is_ok(),
            Tenant::Token(_) | Tenant::Anybody => true,
        }
    }

    /// Whether it may report an agent of this job.
    pub(crate) fn may_report(self, job: &Name) -> Result<(), Problem> {
        self.check(&(Operation::Report, Whose::Job(job.clone())))
    }

    /// The proposal as it is logged: a session counts for a job only if its opener may use that
    /// job, and from [`SHARES_LEVEL`] on. An operator's counts for none.
    fn counted(self, mut proposal: Proposal) -> Proposal {
        if let Command::Session(SessionCommand::Open { job, .. }) = &mut proposal.command {
            let is_told = self.node.machine().feature_level() >= SHARES_LEVEL;
            let of = |job: &Name| (Operation::OpenSession, Whose::Job(job.clone()));
            *job = job.take().filter(|job| is_told && self.check(&of(job)).is_ok());
        }
        proposal
    }

    fn check_command(self, command: &Command) -> Result<(), Problem> {
        let asked = permit::of_command(command);
        match asked.0.right() {
            // Refused for everybody, in words of its own.
            Right::Leader => return Ok(()),
            _ => self.check(&asked)?,
        }
        if asked.0.is_audited() && self.node.consensus().leads() {
            self.write_down(asked.0, command);
        }
        Ok(())
    }

    fn check(self, (operation, whose): &Asked) -> Result<(), Problem> {
        let Acting { node, principal } = self;
        match (operation.right().of(principal.role()), whose) {
            (Extent::All, _) | (Extent::OwnJobs, Whose::All) => Ok(()),
            (Extent::OwnJobs, Whose::Job(job)) if principal.has_job(job) => Ok(()),
            (Extent::OwnJobs, Whose::Lease(lease)) => {
                let state = node.applied();
                match state.machine.job_of_lease(*lease) {
                    Some(job) if principal.has_job(job) => Ok(()),
                    Some(_) => Err(forbidden(principal, *operation, whose)),
                    // A follower carries nothing of it out. A leader may not have
                    // applied yet what was granted before its time.
                    None if !node.consensus().leads() => Ok(()),
                    None => node.has_caught_up(&state),
                }
            }
            (Extent::OwnJobs, Whose::Job(_)) | (Extent::None, _) => {
                Err(forbidden(principal, *operation, whose))
            }
        }
    }

    fn write_down(self, operation: Operation, change: &impl std::fmt::Debug) {
        audit(self.principal, operation, change);
    }
}

/// Writes down who changes what.
pub(crate) fn audit(principal: &Principal, operation: Operation, change: &impl std::fmt::Debug) {
    let change: String = format!("{change:?}").chars().take(AUDIT_CHARS_MAX).collect();
    let from = principal.from().map(tracing::field::display);
    tracing::info!(target: "audit", by = %principal, from, operation = operation.words(), %change);
}

/// What the role of a caller does not let it do.
pub(crate) fn forbidden(principal: &Principal, operation: Operation, whose: &Whose) -> Problem {
    let of = match whose {
        Whose::Job(job) => format!(" of job {job}"),
        Whose::Lease(_) => " of another job".to_owned(),
        Whose::All => String::new(),
    };
    let message = format!(
        "{principal}: this does not allow to {}{of}; use a token that does (`holdfast token create`)",
        operation.words()
    );
    Problem::refused(Code::Forbidden, message)
}

fn read_keys(scope: &Scope) -> Asked {
    (Operation::ReadKeys, Whose::Job(scope.job.clone()))
}

/// Whether a caller may see that there is such a job.
pub(crate) fn sees(principal: &Principal, operation: Operation, job: &Name) -> bool {
    match operation.right().of(principal.role()) {
        Extent::All => true,
        Extent::OwnJobs => principal.has_job(job),
        Extent::None => false,
    }
}

/// An answer without what the caller may not see.
fn filtered(principal: &Principal, mut answer: ReadAnswer) -> ReadAnswer {
    match &mut answer.outcome {
        ReadOutcome::Jobs(jobs) => {
            jobs.retain(|info| sees(principal, Operation::SeeJobs, &info.job));
        }
        // The holder of a lease's id speaks for the lease's holder.
        ReadOutcome::Processes { processes, .. }
            if Right::Use.of(principal.role()) == Extent::None =>
        {
            for process in processes {
                process.lease = Default::default();
            }
        }
        _ => {}
    }
    answer
}
