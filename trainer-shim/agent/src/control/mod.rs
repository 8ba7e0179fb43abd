//! The control socket: how the processes of one run on one host find their
//! agent.
//!
//! `holdfast-agent run` starts the agent as a process of its own, or attaches
//! to the one that is there. An attached client keeps its connection for as long
//! as its command runs; the agent ends when the last has left. Requests and
//! responses are lines of JSON, answered in order.
//!
//! | module | holds |
//! | --- | --- |
//! | [`protocol`] | requests and responses |
//! | [`place`] | path of a run's socket, and its access rules |
//! | [`lock`] | one process at a time |
//! | [`log`] | what an agent of `run` has to say: a file |
//! | [`shown`] | how far that was shown, and by which command |
//! | [`client`] | one connection to an agent |
//! | [`server`] | the agent's side |
//! | `admission` | how many connections there may be |
//! | `attendance` | attached clients, by their part of the launch |

mod admission;
mod attendance;
pub mod client;
pub mod lock;
pub mod log;
pub mod place;
pub mod protocol;
pub mod server;
pub mod shown;
