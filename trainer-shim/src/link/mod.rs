//! A program's place in a run depends on a lease of its own, or on the agent of
//! its host, which holds one lease for all and sees the death of a process at once.
//!
//! A program connects to the agent's control socket and asks with one line of JSON ([`Request`]);
//! the agent answers with one ([`Response`]). From there on both send frames: a little-endian
//! `u32` length, then that many bytes of MessagePack with named fields, [`FromProgram`] in one
//! direction and [`FromAgent`] in the other; in both, questions and answers are those of a node's
//! stream. The connection is the incarnation of the program's processes: when it closes, or the
//! program ends, the agent reports to the cluster that they are gone.
//!
//! | module | holds |
//! | --- | --- |
//! | `wire` | requests, responses and frames as values, and their bounds |
//! | `frame` | frames as bytes |
//! | `agent` | the program's side of the connection |
//! | `users` | the users of this host whose word counts |

mod agent;
mod frame;
mod users;
mod wire;

use holdfast_api::{Answer, Blob, Command, Condition, Read, ReadAnswer, Revision, Scope};
use holdfast_client::{Consistency, Deadline};

use crate::error::Error;
use crate::lease::Lease;

pub(crate) use agent::{Agent, Connected, Ended, Listening, Said, Subscription};
pub use frame::{FrameError, Frames, decode, encode, frames};
pub use users::{ALLOW_UID_VARIABLE, Users, UsersError};
pub use wire::{
    CONTROL_VARIABLE, FROM_AGENT_BYTES_MAX, FROM_PROGRAM_BYTES_MAX, FromAgent, FromProgram,
    Heartbeat, IN_FLIGHT_MAX, LASTING_MAX, LINE_BYTES_MAX, Over, Request, Response, Silence,
    Wanted, Welcome,
};

/// Where commands go, and where feeds come from.
#[derive(Debug)]
pub(crate) enum Link {
    /// A lease of this program.
    Own(Lease),
    /// The agent of this host.
    Agent(Agent),
}

impl Link {
    pub async fn propose(&self, command: Command, deadline: Deadline) -> Result<Answer, Error> {
        match self {
            Link::Own(lease) => Ok(lease.client().propose(command, deadline).await?),
            Link::Agent(agent) => agent.propose(command, deadline).await,
        }
    }

    pub async fn read(&self, read: Read, deadline: Deadline) -> Result<ReadAnswer, Error> {
        match self {
            Link::Own(lease) => {
                Ok(lease.client().read(read, Consistency::Linearizable, deadline).await?)
            }
            Link::Agent(agent) => agent.read(read, deadline).await,
        }
    }
}

impl Link {
    pub async fn wait(
        &self,
        scope: Scope,
        conditions: Vec<Condition>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        match self {
            Link::Own(lease) => Ok(lease.client().wait(scope, conditions, deadline).await?),
            Link::Agent(agent) => agent.wait(scope, conditions, deadline).await,
        }
    }

    /// Changes of keys from a revision on.
    pub async fn watch(
        &self,
        scope: Scope,
        prefix: Blob,
        from: Option<Revision>,
    ) -> Result<Pieces<holdfast_client::Watch>, Error> {
        Ok(match self {
            Link::Own(lease) => Pieces::Own(lease.client().watch(scope, prefix, from).await?),
            Link::Agent(agent) => Pieces::Agent(agent.watch(scope, prefix, from)?),
        })
    }

    /// Events of the job after a revision.
    pub async fn events(
        &self,
        scope: &Scope,
        after: Revision,
    ) -> Result<Pieces<holdfast_client::Events>, Error> {
        let job = scope.job.clone();
        Ok(match self {
            Link::Own(lease) => Pieces::Own(lease.client().events(job, after).await?),
            Link::Agent(agent) => Pieces::Agent(agent.events(job, after)?),
        })
    }
}

/// Pieces of a watch or subscription, from a client of this program's own or
/// through the agent.
#[derive(Debug)]
pub(crate) enum Pieces<C> {
    Own(C),
    Agent(Subscription),
}
