//! Base of the end-to-end tests: real binaries as child processes.
//!
//! Entry points: [`Cluster`] (store nodes), [`Agent`] (the agent in front of
//! them), [`Adders`] (a load whose every answer is checked), [`Script`]
//! (Python with PyTorch), [`Job`] (a training job under a launcher), [`Network`]
//! (hosts of their own), [`TcpStore`], [`RawStream`] and [`RawLink`] (wire
//! clients of our own, so that a test does not trust the code it tests). The
//! program `holdfast-test-trainer` is a trainer with the library.
//!
//! | module | holds |
//! | --- | --- |
//! | [`patience`] | waiting for something, within a bound |
//! | [`binaries`] | the programs under test, and those of the last release |
//! | [`ports`] | ports that no other test process gets |
//! | [`process`] | a child: started, signalled, ended, measured |
//! | [`logs`] | logs kept, shown when a test fails, searched for errors when it does not |
//! | [`cluster`] | store nodes |
//! | [`agent`] | the agent |
//! | [`command`] | a command under `holdfast-agent run` |
//! | [`load`] | concurrent adders and the check of their answers |
//! | [`disk`] | file systems that can be made to stall, copies of folders |
//! | [`failover`] | leaders killed until a retry was answered from the session table |
//! | [`communicators`] | records of the members of a group of communicators, and their check |
//! | [`histories`] | jobs whose ranks record what they call and get, while they and the cluster are broken |
//! | [`hosts`] | hosts with a network between them, on one machine |
//! | [`delay_proxy`] | a proxy to a store that can hold answers back |
//! | [`http`] | plain HTTP requests |
//! | [`coordination`] | leases, processes and rounds over HTTP |
//! | [`slips`] | requests with one slip each, from the description of the API |
//! | [`stream`] | a raw client of the multiplexed stream |
//! | [`tcpstore`] | a client of the TCPStore protocol |
//! | [`threads`] | threads of a program that stand still |
//! | [`link`] | a raw program at an agent's control socket |
//! | [`python`] | PyTorch programs |
//! | [`job`] | training jobs under a launcher |
//!
//! # Architecture invariants
//!
//! * Nothing of the store is linked: a test knows a node only by a socket, an exit code,
//!   or a log line.
//! * Every wait is bounded, and what it waited for is in the failure.
//! * A child never outlives its test: it is killed by its process id when its
//!   owner is dropped.
//! * A test that passes has logs without an `ERROR` or a panic, unless it
//!   named the error beforehand.

pub mod agent;
pub mod binaries;
pub mod cluster;
pub mod command;
pub mod communicators;
pub mod coordination;
pub mod delay_proxy;
pub mod disk;
pub mod failover;
pub mod histories;
pub mod hosts;
pub mod http;
pub mod job;
pub mod link;
pub mod load;
pub mod logs;
pub mod patience;
pub mod ports;
pub mod process;
pub mod python;
pub mod slips;
pub mod stream;
pub mod tcpstore;
pub mod threads;

pub use agent::Agent;
pub use binaries::Build;
pub use cluster::Cluster;
pub use delay_proxy::DelayProxy;
pub use disk::Disk;
pub use hosts::{Host, Mount, Names, Network};
pub use job::Job;
pub use link::RawLink;
pub use load::Adders;
pub use patience::{PATIENCE, eventually, patiently, soon};
pub use process::{Ended, Process};
pub use python::{Script, Torch};
pub use stream::RawStream;
pub use tcpstore::TcpStore;
