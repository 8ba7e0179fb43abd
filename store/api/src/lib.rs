//! The vocabulary of Holdfast: what a client can ask, what the replicated log
//! can hold, what can be answered, and how a refusal reads.
//!
//! Entry points: [`Command`] (everything that can change the state),
//! [`Read`] (everything that can be asked of it), [`Request`] and [`Reply`]
//! (the multiplexed stream between clients and nodes), [`Problem`] (the one
//! error shape of the API).
//!
//! | module | holds |
//! | --- | --- |
//! | [`agent`] | what agents report |
//! | [`backup`] | the bytes of a backup |
//! | [`blocks`] | bytes under checksums |
//! | [`blob`] | keys and values: bytes, with a readable escape for people |
//! | [`name`] | names of jobs and runs, and the [`Scope`] they form |
//! | [`command`] | log entries and the commands in them |
//! | [`outcome`] | outcomes of commands, refusals included |
//! | [`read`] | linearizable and stale reads, waits |
//! | [`watch`] | changes and watches |
//! | [`lease`] | leases, held by agents |
//! | [`run`] | runs: how one is chosen, held and ended |
//! | [`grant`] | roles, patterns of jobs, and the signed tokens that grant them |
//! | [`fence`] | tokens that prove which incarnation of a process asks |
//! | [`process`] | processes, their incarnations and ends, events |
//! | [`round`] | rounds: arrivals, decisions, feeds |
//! | [`terms`] | the terms of a round |
//! | [`closed`] | closed rounds, and what was made of them |
//! | [`members`] | members and ranks in few bytes |
//! | [`limits`] | the replicated limits |
//! | [`mod@span`] | durations in words |
//! | [`status`] | nodes, roles, the `status` document |
//! | [`majority`] | which voters answer, and the text for it |
//! | [`hold`] | rounds that are held: communicators, locks |
//! | [`stream`] | what a client and a node say to each other |
//! | [`frame`] | frames as bytes, for all streams |
//! | [`mod@planted`], [`crash`] | defects and crash points of test builds |
//! | [`problem`] | errors: code, retryable, outcome |
//! | [`routes`] | paths and headers of the HTTP surface |
//! | [`token`] | the shared bearer token, and the file that holds it |
//! | [`variables`] | environment variables, and which one was meant |
//! | [`version`] | feature levels and stream minors: which version understands what |
//!
//! # Architecture invariants
//!
//! * No logic beyond encoding and validation of single values: no files, no
//!   sockets, no clock, no async, no axum, no RocksDB.
//! * One set of types serves two encodings: JSON for people, MessagePack with
//!   named fields for machines. Requests and answers are read leniently; log
//!   entries strictly (the reader of the log refuses ignored fields).
//! * A field added to anything that is logged is skipped when it has its
//!   default, so that old logs keep their bytes.
//!
//! # Modules that know each other
//!
//! * `closed`, `command`, `hold`, `lease`, `members`, `outcome`, `process`, `round`,
//!   `secret_id`, `terms`: a command holds the terms of rounds and the ids of leases and
//!   processes, and an outcome holds those of its command. All of them count in the
//!   revisions, log times and nonces that `command` defines.

pub mod agent;
pub mod backup;
pub mod blob;
pub mod blocks;
pub mod closed;
pub mod command;
pub mod crash;
pub mod event;
pub mod fence;
pub mod frame;
pub mod grant;
pub mod hold;
pub mod lease;
pub mod limits;
pub mod majority;
pub mod members;
pub mod name;
pub mod outcome;
pub mod planted;
pub mod problem;
pub mod process;
pub mod read;
pub mod round;
pub mod routes;
pub mod run;
mod secret_id;
pub mod span;
pub mod status;
pub mod stream;
pub mod terms;
pub mod token;
pub mod variables;
pub mod version;
pub mod watch;

pub use agent::{
    Activity, AgentClient, AgentEnded, AgentProcess, AgentReport, AgentStatus, AgentWait, Agents,
    Doing, Exit, Health, LeftAgent, OtherWait, Quiet,
};
pub use blob::Blob;
pub use closed::{Against, AgainstWhy, Closed, Concluded, Dropped, DroppedWhy, Stop};
pub use command::{
    ClusterCommand, ClusterOutcome, Command, Compare, Entry, Facts, KeyValue, KvOp, KvOutcome,
    LeaseCommand, LeaseOutcome, LogTime, Nonce, PIPELINE_BYTES_MAX, PIPELINE_OPS_MAX, Part,
    Pipelined, PipelinedOutcome, ProcessCommand, ProcessOutcome, Proposal, Revision, RoundCommand,
    RoundOutcome, RunCommand, RunOutcome, Sender, SessionCommand, SessionId, SessionOutcome,
    SessionRef, Size, Subject, TransactionOp, TransactionOutcome, Turn,
};
pub use event::{Event, EventKind, Fault, ProcessList, ProcessStretch, Turnover};
pub use fence::{Fence, FenceError};
pub use frame::FrameError;
pub use grant::{Grant, JobPattern};
pub use hold::{
    Held, HeldInfo, HeldNews, Hold, Member, OtherSpec, Phase, Release, ReleaseWhy, Revocation,
    RevokeCause, SpecMismatch, Unreleased,
};
pub use lease::LeaseId;
pub use limits::{Budget, CoordinationLimits, Limits};
pub use majority::{Majority, MissingVoter};
pub use members::{MemberStretch, Members, MembersChange, RankStretch, Ranks};
pub use name::{Name, NodeId, Scope};
pub use outcome::{Answer, Outcome, Refusal};
pub use problem::{Code, Effectiveness, LeaderHint, Problem};
pub use process::{Cause, EndInfo, Incarnation, Labels, ProcessEnd, ProcessId, ProcessInfo, Role};
pub use read::{Condition, KeyEntry, Plan, Read, ReadAnswer, ReadOutcome, RunInfo, Until};
pub use round::{
    Arrival, ArrivalAnswer, CallId, Decided, Decision, Differing, Ended, FailedWhy, Feed,
    Generation, IterationInfo, Missing, ProcessState, RoundFailure, RoundInfo, WaitsFor,
};
pub use run::{RunChoice, RunHeld, RunOverCause, lasting};
pub use secret_id::{SecretId, SecretIdError};
pub use span::span;
pub use status::{Admin, CAUGHT_UP_ENTRIES, Joint, NodeRole, NodeStatus, Room, Status};
pub use stream::{Hello, Reply, ReplyBody, Request, RequestBody, WatchProgress};
pub use terms::{
    Among, AssignmentStep, AtDeadline, Conclusion, Deadline, Policy, Rule, Terms, TreeLayer,
    VoteRule,
};
pub use token::{Token, TokenError, Tokens};
pub use watch::{Change, ChangeKind, WatchBatch};
