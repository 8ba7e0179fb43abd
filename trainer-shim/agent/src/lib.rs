//! The agent: runs beside a trainer, on the same host, and outlives the leaders
//! of the store.
//!
//! A PyTorch process connects its TCPStore client once, never again, and dies
//! of a broken connection. So its connection ends at the agent, which never has to
//! break it, and the agent's own client follows the leader from node to node. An
//! unmodified program needs three environment variables: `MASTER_ADDR` and
//! `MASTER_PORT` lead it to the agent, and with `TORCHELASTIC_USE_AGENT_STORE` it
//! starts no store of its own. Before torch 2.7 it needs a fourth,
//! `TORCHELASTIC_RESTART_COUNT`.
//!
//! A program that uses the library ([`holdfast_trainer_shim`]) is attached to
//! the agent over its control socket: its death is reported to the others in a
//! few milliseconds.
//!
//! Entry points: [`agent::Agent::open`] and [`agent::Agent::run`]; the binary
//! `holdfast-agent` is a command line around them.
//!
//! | module | holds |
//! | --- | --- |
//! | [`agent`] | the component: opens the run, listens, serves |
//! | [`namespace`] | key spaces within one run that never meet |
//! | `outage` | says that the store does not answer, and when it does again |
//! | [`ports`] | ports of this host: bound, and found free |
//! | `collector` | deletes the keys of namespaces that are over |
//! | [`descriptors`] | how many descriptors are for what others open |
//! | `stores` | stores that programs open for themselves, at addresses of their own |
//! | `parts` | which command is which part of a launch, on all hosts of a run |
//! | [`control`] | how the processes of one run on one host find their agent |
//! | [`guard`] | which users of this host may use it |
//! | `diagnosis` | what the kernel knows of one TCP socket |
//! | `complaints` | bounds log lines about clients that are turned away |
//! | `roster` | connected clients and what each waits for, for operators |
//! | [`programs`] | the programs of the connections: last calls, and ends |
//! | `activity` | what they do while they ask nothing of the store |
//! | `reporting` | reports for operators: gathered, and sent if something is new |
//! | `process` | which process is at the other end of a connection |
//! | [`keeper`] | holds sockets and what is in flight while an agent is replaced |
//! | [`door`] | front doors, one for each foreign protocol |
//! | [`door::tcpstore`] | PyTorch's TCPStore: codec, mapping, order, sockets |
//! | `door::process` | programs with the library: one lease, deaths reported at once |
//!
//! # Architecture invariants
//!
//! * The agent decides nothing about keys, runs or sessions. It translates,
//!   keeps each connection's order, and asks the store.
//! * The agent keeps no state of its own: a new agent of the same run serves the
//!   same keys. Under `run`, and with `serve --keeper`, a
//!   keeper holds its connections; else they are lost. Processes that joined with the
//!   library end with it.
//! * While the store has a leader no connection is dropped; a change of leaders
//!   drops none either. The log has the reason of every connection that is closed. Of clients
//!   that are turned away in great numbers it has some, and how many there were.
//! * Codecs and connection order are free of I/O, clocks and tasks. These modules use
//!   trainers' sockets: in `door/tcpstore` `serve`, `socket`, `socket/restored` and
//!   `visibility`; in `door/process` `serve`, `connection` and `writing`; and
//!   `keeper/recorder`. `control/server` accepts programs with the library.
//! * Every buffer, queue and count has a bound with a name
//!   ([`door::tcpstore::Limits`]), and no client can cost another its service.
//! * Reports for operators are gathered beside the work: a trainer's operation
//!   waits for no look-up and no report.
//! * No name is ever looked up for a client: a silent name server must not
//!   stop a job from starting.
//!
//! # Modules that know each other
//!
//! * `agent`, `collector`, `door`, `keeper`, `outage`, `parts`, `ports`, `reporting`, `stores`:
//!   the agent starts its doors, its ports, the stores, the collector and the reports, and
//!   notes the parts of a launch with the lease that the door of processes holds.
//!   `collector`, `outage` and `reporting` hold a handle to it, and `stores` sends it
//!   requests. Doors, ports and stores are recorded for the keeper, whose records hold a
//!   door's answers. Ports and doors make each other's listeners and connections.

mod activity;
pub mod agent;
mod collector;
mod complaints;
pub mod control;
pub mod descriptors;
mod diagnosis;
pub mod door;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod guard;
pub mod keeper;
pub mod namespace;
mod outage;
mod parts;
pub mod ports;
mod process;
pub mod programs;
mod reporting;
mod roster;
mod stores;
