//! What is sent for a call, and what its error says at the deadline.

use holdfast_api::{Command, Effectiveness, Proposal, RequestBody, SessionRef};

use crate::call::{Ask, Call};
use crate::error::Error;

pub(super) fn deadline_error(
    call: &Call,
    leads: bool,
    tried: &impl Fn() -> Vec<(String, String)>,
) -> Error {
    let outcome = call.effect();
    let on_wire = call.progress.wire.is_some();
    if outcome == Effectiveness::None && !on_wire && !leads {
        return Error::Unreachable { tried: tried() };
    }
    let reason = match (&call.progress.trouble, &call.ask) {
        (Some(trouble), _) if !on_wire => trouble.clone(),
        (_, Ask::Wait { .. }) => "not all conditions were met".to_owned(),
        _ if on_wire => "the node has not answered yet".to_owned(),
        _ => "the call waited for others of this session".to_owned(),
    };
    Error::Timeout { outcome, reason }
}

pub(super) fn request_body(ask: &Ask, session: Option<SessionRef>) -> RequestBody {
    match ask {
        Ask::Propose { command, .. } => propose(command, session),
        Ask::Pipeline(pipeline) => propose(&pipeline.command, session),
        Ask::Read { read, stale, .. } => RequestBody::Read { read: read.clone(), stale: *stale },
        Ask::Wait { wait, .. } => RequestBody::Wait {
            scope: wait.scope.clone(),
            conditions: wait.conditions.clone(),
            since: wait.since,
        },
        Ask::Feed(feed) => {
            RequestBody::Feed { lease: feed.lease, since: feed.since, have: feed.have.clone() }
        }
        Ask::Events(events) => RequestBody::Events { job: events.job.clone(), after: events.after },
        Ask::Watch(watch) => RequestBody::Watch {
            scope: watch.scope.clone(),
            prefix: watch.prefix.clone(),
            from: Some(watch.next),
            progress_together: true,
        },
        Ask::Status { .. } => RequestBody::Status,
        Ask::Admin { admin, .. } => RequestBody::Admin(admin.clone()),
    }
}

fn propose(command: &Command, session: Option<SessionRef>) -> RequestBody {
    RequestBody::Propose(Proposal { session, command: command.clone() })
}
