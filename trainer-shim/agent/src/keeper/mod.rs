//! An agent that can die: what outlives it, and how the next one continues.
//!
//! A PyTorch process dies of a broken connection. So the sockets do not belong to the agent alone:
//! its parent, the *keeper*, holds a second descriptor of each, and of some memory in which the
//! agent writes what it does. When the agent has ended by a signal, the keeper restarts it and
//! hands all of it over: the ranks see a pause.
//!
//! ```text
//! run ──starts──▶ keeper ──starts──▶ agent ──killed──▶ (waited for) ──▶ agent
//!                  │ listeners, connections, one journal each, state, session ▲
//!                  └──────────── over a socket pair, with descriptors ────────┘
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`process`] | the keeper: accepts, holds, starts the agent again; no protocol in it |
//! | `wire` | what keeper and agent say to each other |
//! | [`link`] | the agent's end of that |
//! | `journal` | records in memory that outlives their writer |
//! | `recorder` | one TCPStore connection, written down |
//! | `counters` | how far a connection was read and written, as the kernel counts |
//! | `ledger` | the session: sequences, and the commands in flight |
//! | `state` | the agent: run, lease, name, stores of programs, attempts of clients |
//! | `pace` | how soon an agent is started again |
//!
//! # Why nothing is lost or done twice
//!
//! * The keeper accepts: no connection is the agent's alone at any time.
//! * A byte is recorded, then consumed. The kernel counts the consumed bytes, and the next agent
//!   discards recorded ones that are still in the socket.
//! * An answer is recorded, then sent. The kernel counts the sent bytes, and the next agent sends
//!   the rest.
//! * A command is recorded with its session and sequence, then sent. The next agent repeats it
//!   there, and the cluster gives the same answer to a command that it has applied. The place in
//!   the session is given back only when the answer is recorded with its connection, or when that
//!   record is void: the connection closes, and no other agent goes on with it.
//! * Reads are asked again, waits are parked again: they change nothing.
//! * Two agents never run at once: the next is started when the one before was waited for.
//! * An agent that ends before it has begun to take up what was handed over closes none of it: the
//!   next one gets it.
//! * The keeper accepts no more connections than leave it descriptors for the next agent.
//!
//! # What goes on, and what does not
//!
//! TCPStore ports and connections, blocked WAITs and BARRIERs, attempts, programs' own stores,
//! session and lease go on. Commands under `run` attach again by themselves. An agent that
//! programs have joined with the library cannot be continued: their incarnations end with their
//! connections, and later writes by connections of their host would be wrong; such a host starts
//! anew, as one without a keeper does.
//!
//! An agent that is not there again within the TTL of its lease finds it ended, and the ranks are
//! notified. Where a journal does not agree with what the kernel counted, the connection is
//! closed: no answer is better than a wrong one. Killing the keeper kills the agent, and the ranks
//! of its host lose their connections; other hosts go on.

pub(crate) mod counters;
pub(crate) mod journal;
pub(crate) mod ledger;
pub mod link;
mod pace;
pub mod process;
pub(crate) mod recorder;
pub(crate) mod state;
pub(crate) mod wire;
