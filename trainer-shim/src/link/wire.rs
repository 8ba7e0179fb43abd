//! Messages of a program and the agent of its host.

use holdfast_api::{
    Feed, Incarnation, LeaseId, Name, Problem, ProcessId, ReplyBody, RequestBody, Scope,
};
use serde::{Deserialize, Serialize};

use crate::vitals::Watchdog;

/// The variable that names the agent's control socket.
pub const CONTROL_VARIABLE: &str = "HOLDFAST_CONTROL";

/// Longest line in either direction, in bytes.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Longest frame of a program; a longer one ends the connection.
pub const FROM_PROGRAM_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest frame of an agent: it hands on what a node may send it.
pub const FROM_AGENT_BYTES_MAX: usize = holdfast_api::stream::FRAME_BYTES_MAX as usize;
/// Most calls of one connection that are not answered yet; one more is refused.
pub const IN_FLIGHT_MAX: usize = 256;
/// Most waits, watches and subscriptions of one connection.
pub const LASTING_MAX: usize = 1_024;

/// The line of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// This connection is to be the incarnation of its processes.
    Process(Wanted),
}

impl FromAgent {
    /// The answer to a call that failed.
    pub fn problem(seq: u64, problem: Problem) -> FromAgent {
        FromAgent::Reply { seq, body: Box::new(ReplyBody::Problem(problem)) }
    }
}

/// Which agent a program takes itself to talk to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Wanted {
    /// The job; `None` = that of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Name>,
    /// The run; `None` = that of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Name>,
    /// It understands [`Response::Waiting`] and [`FromAgent::Outage`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hears_outages: bool,
}

/// The agent's line, in answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// It is attached; frames follow.
    Welcome(Welcome),
    /// Another line follows, once the store answers. Sent to programs that
    /// understand it.
    Waiting {
        /// Why it does not.
        cause: String,
    },
    /// It was not done; the connection closes.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
}

/// The lease that a program's processes are attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The job and the run.
    pub scope: Scope,
    /// The lease of the agent's host.
    pub lease: LeaseId,
    /// Its TTL in milliseconds.
    pub ttl_ms: u64,
    /// How long processes go on without an answer of the store, in milliseconds.
    #[serde(default)]
    pub store_lost_ms_max: u64,
    /// Until when it certainly holds, in milliseconds of the time since this
    /// host was started.
    pub valid_until_ms: u64,
    /// The present moment by the same clock: a program whose clock is another
    /// one must not trust it.
    pub now_ms: u64,
}

/// A frame of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromProgram {
    /// A question to the store, as on a stream of a node; the agent hands it on.
    /// `Cancel` names the call that it ends.
    Ask {
        /// Chosen by the program, unique among its open calls.
        seq: u64,
        /// What is asked of the store.
        body: Box<RequestBody>,
        /// How long it may take, in milliseconds; `None` = as long as it takes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within_ms: Option<u64>,
    },
    /// Heartbeats of this connection's processes. Not answered.
    Heartbeats(Vec<Heartbeat>),
}

/// State of one process: its counters, which the agent checks for growth.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Heartbeat {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// Times after which silence has consequences.
    #[serde(rename = "ladder")]
    pub watchdog: Watchdog,
    /// How often it has pinged.
    pub pings: u64,
    /// Its progress; `None` = it does not report any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
    /// How many calls it has made.
    pub calls: u64,
    /// The round of the latest.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_call: String,
    /// It waits in a call.
    pub waiting: bool,
    /// For so long it is not to be watched, in milliseconds.
    pub paused_ms: u64,
    /// For so long it is not to be ended, in milliseconds.
    pub critical_ms: u64,
    /// For how long its main thread has not run what the library asks it to run;
    /// `None` = the program does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub main_thread_silent_ms: Option<u64>,
}

/// A frame of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromAgent {
    /// The answer to a call, as on a stream of a node; of a watch or a
    /// subscription one piece of it.
    #[serde(rename = "told")]
    Reply {
        /// Number of the call.
        seq: u64,
        /// The cluster's answer or refusal, or the agent's.
        body: Box<ReplyBody>,
    },
    /// Decisions for processes of this connection, in the order of the log.
    Feed(Feed),
    /// A process is silent, and will be ended if it stays so.
    Silent(Silence),
    /// The lease was renewed.
    ValidUntil {
        /// The new end of the time that [`Welcome::valid_until_ms`] begins with.
        until_ms: u64,
    },
    /// The store does not answer, or does again. Sent to programs that understand it.
    Outage {
        /// Why it does not; `None` = it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    /// The connection is over.
    Over(Over),
}

/// A process that shows no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// For how long, in milliseconds.
    pub silent_ms: u64,
    /// In how long the agent begins to end it, in milliseconds; `None` = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_in_ms: Option<u64>,
}

/// Why an agent ends a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// The lease has ended, and all that was attached to it.
    LeaseLost,
    /// The agent is about to end.
    Stopped,
    /// The program broke the rules of the connection.
    Refused {
        /// How, and what to do.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_as_they_are_documented() {
        let job = || Some("train".parse().unwrap());
        for (text, wanted) in [
            (r#"{"process":{}}"#, Wanted::default()),
            (
                r#"{"process":{"job":"train","later":1}}"#,
                Wanted { job: job(), ..Wanted::default() },
            ),
        ] {
            let request: Request = serde_json::from_str(text).unwrap();
            assert_eq!(request, Request::Process(wanted));
        }
        let scope = Scope { job: "train".parse().unwrap(), run: Some("r1".parse().unwrap()) };
        let welcome = Welcome {
            scope,
            lease: 7.into(),
            ttl_ms: 5_000,
            store_lost_ms_max: 30_000,
            valid_until_ms: 12_000,
            now_ms: 8_000,
        };
        let text = r#"{"welcome":{"scope":{"job":"train","run":"r1"},"lease":7,"ttl_ms":5000,"store_lost_ms_max":30000,"valid_until_ms":12000,"now_ms":8000}}"#;
        assert_eq!(serde_json::to_string(&Response::Welcome(welcome)).unwrap(), text);
    }
}
