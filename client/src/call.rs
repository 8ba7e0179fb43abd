//! One open call: what was asked, who waits for it, how far it got.

use std::sync::Arc;

use holdfast_api::version::{MINOR_COORDINATION, MINOR_EVENTS};
use holdfast_api::{
    Admin, Answer, Blob, Command, Condition, Effectiveness, Feed, Generation, LeaseCommand,
    LeaseId, Name, ProcessCommand, Read, ReadAnswer, Revision, RunCommand, Scope, SessionId,
    Status, WatchBatch,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::calls::Group;
use crate::error::Error;
use crate::events::EventsPage;
use crate::mailbox::Mailbox;
use crate::resume::Mark;

/// Names a call within its client.
pub(crate) type CallId = u64;

/// Where the result of a call goes. Sending to a caller that has gone away is
/// harmless.
pub(crate) type ReplyTo<T> = oneshot::Sender<Result<T, Error>>;

/// What was asked, and where the answer goes.
#[derive(Debug)]
pub(crate) enum Ask {
    Propose {
        command: Command,
        reply: ReplyTo<Answer>,
    },
    /// Commands of several calls as one: the client's own.
    Pipeline(Pipeline),
    Read {
        read: Read,
        stale: bool,
        reply: ReplyTo<ReadAnswer>,
    },
    Wait {
        wait: Wait,
        reply: ReplyTo<Revision>,
    },
    Feed(FeedAsk),
    Events(EventsAsk),
    Watch(WatchAsk),
    Status {
        reply: ReplyTo<Status>,
    },
    Admin {
        admin: Admin,
        reply: ReplyTo<()>,
    },
}

#[derive(Debug)]
pub(crate) struct Pipeline {
    /// What goes out, the same each time: a copy may be under way.
    pub(crate) command: Command,
    /// The call of each of its commands; none once its caller has left.
    pub(crate) members: Vec<Option<CallId>>,
}

#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) scope: Scope,
    pub(crate) conditions: Vec<Condition>,
    /// The revision at which the wait was first registered.
    pub(crate) since: Option<Revision>,
    /// Told that revision.
    pub(crate) began: Option<oneshot::Sender<Revision>>,
}

#[derive(Debug)]
pub(crate) struct FeedAsk {
    pub(crate) lease: LeaseId,
    /// Up to where it was delivered, and the members that are known by then.
    pub(crate) since: Revision,
    pub(crate) have: Vec<Generation>,
    pub(crate) mailbox: Arc<Mailbox<Feed>>,
}

#[derive(Debug)]
pub(crate) struct EventsAsk {
    pub(crate) job: Name,
    /// Up to where they were delivered.
    pub(crate) after: Revision,
    pub(crate) mailbox: Arc<Mailbox<EventsPage>>,
}

#[derive(Debug)]
pub(crate) struct WatchAsk {
    pub(crate) scope: Scope,
    pub(crate) prefix: Blob,
    /// The first revision that was not delivered yet.
    pub(crate) next: Revision,
    pub(crate) mailbox: Arc<Mailbox<WatchBatch>>,
}

/// The share of the client's bounds that a call holds while it is open.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    pub(crate) _count: Option<OwnedSemaphorePermit>,
    pub(crate) _bytes: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) ask: Ask,
    pub(crate) deadline: Option<Instant>,
    /// A read is held back until then, for others to join it.
    pub(crate) not_before: Option<Instant>,
    /// How many sessions were lost when its handle was bound to one: once that
    /// one is lost too, the call goes out in no other.
    pub(crate) bound: Option<u64>,
    /// The mark by which the next process finds it again.
    pub(crate) mark: Option<Mark>,
    /// Encoded size of the request, about.
    pub(crate) bytes: usize,
    /// The small calls that it may go out with, if it is a small command on keys or a pipeline.
    pub(crate) group: Option<Arc<Group>>,
    pub(crate) progress: Progress,
    /// Given back when the call is dropped.
    pub(crate) _permits: Permits,
}

/// How far a call got.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The id under which it is on the wire at present.
    pub(crate) wire: Option<u64>,
    /// The pipeline that it goes out with, while that may be applied.
    pub(crate) pipeline: Option<CallId>,
    /// Its place in the session, once it has one.
    pub(crate) sequence: Option<u64>,
    /// It was on the wire when its session ended: its answer says whether it was
    /// applied.
    pub(crate) orphan_of: Option<SessionId>,
    /// An earlier try ended without a certain answer.
    pub(crate) uncertain: bool,
    /// It was sent at least once.
    pub(crate) sent: bool,
    /// How often a node that seemed to lead turned it away.
    pub(crate) turned_away: u32,
    /// What went wrong last, for the error at the deadline.
    pub(crate) trouble: Option<String>,
}

impl Ask {
    /// Whether only the leader answers it.
    pub(crate) fn needs_leader(&self) -> bool {
        !matches!(self, Ask::Status { .. } | Ask::Read { stale: true, .. })
    }

    /// Whether it can have an effect.
    pub(crate) fn has_effect(&self) -> bool {
        matches!(self, Ask::Propose { .. } | Ask::Pipeline(_) | Ask::Admin { .. })
    }

    /// Whether it has the same effect however often it is sent: it needs no
    /// session, and goes out before all others.
    pub(crate) fn names_itself(&self) -> bool {
        matches!(self, Ask::Propose { command, .. } if command.facts().names_itself)
    }

    /// The job that a session opened for it counts for: that of its command, unless the command
    /// ends what the job has: a job that holds its share can still be ended.
    pub(crate) fn job(&self) -> Option<&Name> {
        let (Ask::Propose { command, .. } | Ask::Pipeline(Pipeline { command, .. })) = self else {
            return None;
        };
        match command {
            Command::Run(
                RunCommand::End { .. } | RunCommand::Delete { .. } | RunCommand::DeleteJob { .. },
            )
            | Command::Process(ProcessCommand::Remove { .. }) => None,
            _ => command.facts().subject.job(),
        }
    }

    /// The job that it names, if it names one.
    pub(crate) fn named_job(&self) -> Option<&Name> {
        match self {
            Ask::Propose { command, .. } | Ask::Pipeline(Pipeline { command, .. }) => {
                command.facts().subject.job()
            }
            Ask::Read { read, .. } => read.job(),
            Ask::Wait { wait, .. } => Some(&wait.scope.job),
            Ask::Watch(watch) => Some(&watch.scope.job),
            Ask::Events(events) => Some(&events.job),
            Ask::Feed(_) | Ask::Status { .. } | Ask::Admin { .. } => None,
        }
    }

    /// Whether it renews a lease.
    pub(crate) fn renews(&self) -> bool {
        let Ask::Propose { command, .. } = self else { return false };
        matches!(command, Command::Lease(LeaseCommand::KeepAlive { .. }))
    }

    /// The minor version of the stream that a node needs to take it.
    pub(crate) fn minor(&self) -> u32 {
        match self {
            Ask::Propose { command, .. } | Ask::Pipeline(Pipeline { command, .. }) => {
                command.facts().minor
            }
            Ask::Events(_) => MINOR_EVENTS,
            Ask::Feed(_)
            | Ask::Read {
                read:
                    Read::Processes { .. }
                    | Read::Rounds { .. }
                    | Read::Closed { .. }
                    | Read::Iteration { .. }
                    | Read::Plan { .. }
                    | Read::Events { .. }
                    | Read::Feed { .. },
                ..
            } => MINOR_COORDINATION,
            _ => 0,
        }
    }

    pub(crate) fn fail(self, error: Error) {
        match self {
            Ask::Propose { reply, .. } => drop(reply.send(Err(error))),
            // `Calls::fail` answers its callers.
            Ask::Pipeline(_) => {}
            Ask::Read { reply, .. } => drop(reply.send(Err(error))),
            Ask::Wait { reply, .. } => drop(reply.send(Err(error))),
            Ask::Feed(feed) => feed.mailbox.end(error),
            Ask::Events(events) => events.mailbox.end(error),
            Ask::Watch(watch) => watch.mailbox.end(error),
            Ask::Status { reply } => drop(reply.send(Err(error))),
            Ask::Admin { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

impl Call {
    pub(crate) fn new(ask: Ask, deadline: Option<Instant>, bytes: usize, permits: Permits) -> Call {
        Call {
            ask,
            deadline,
            not_before: None,
            bound: None,
            mark: None,
            bytes,
            group: None,
            progress: Progress::default(),
            _permits: permits,
        }
    }

    /// Whether it is a command that takes a place in a session.
    pub(crate) fn needs_session(&self) -> bool {
        match self.ask {
            Ask::Propose { .. } => !self.ask.names_itself(),
            Ask::Pipeline(_) => true,
            _ => false,
        }
    }

    /// What is known about its effect now.
    pub(crate) fn effect(&self) -> Effectiveness {
        let open = self.progress.uncertain || self.progress.wire.is_some();
        let open = open && !holdfast_api::planted!(UnknownIsRefused);
        if self.ask.has_effect() && open { Effectiveness::Unknown } else { Effectiveness::None }
    }
}
