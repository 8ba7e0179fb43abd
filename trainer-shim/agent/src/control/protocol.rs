//! Requests and responses on the control socket: one JSON object a line.

use std::net::SocketAddr;

use holdfast_api::{Exit, LeaseId, Name};
use holdfast_trainer_shim::Wanted;
pub use holdfast_trainer_shim::link::LINE_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::agent::{Error, Remedy};
use crate::stores;

/// A request to an agent. Unknown fields are left unread, so that agents of
/// neighbouring versions understand each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Stay until this connection closes, and serve these ports too.
    Attach {
        /// Ports that the command was promised; empty takes the agent's first.
        #[serde(default)]
        tcpstore: Vec<SocketAddr>,
        /// The command's part of the launch, as "rank 0": there is one at a time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part: Option<String>,
        /// How many ranks the launch has, if the command is one of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        world_size: Option<u64>,
    },
    /// Open a namespace of the run at a port of its own, or return the port at
    /// which it is open.
    Open {
        /// Its name; the same name is the same namespace on every host.
        name: Name,
    },
    /// Serve a store that the asker opens for itself. It stays open at least until
    /// this connection closes, so that the asker can connect.
    Store(stores::Wanted),
    /// Wait until this many clients have connected to the store that was asked
    /// for before on this connection.
    Workers {
        /// How many clients must have connected.
        workers: u64,
        /// How long to wait for them, in milliseconds.
        timeout_ms: u64,
    },
    /// Be the incarnation of the asker's processes: frames follow instead of lines. See
    /// `door::process`.
    Process(Wanted),
    /// Return the agent's status.
    Status {},
    /// Have the program that is there now take the place of this agent.
    Upgrade {},
    /// The command has ended. The last one's connection closes when all that
    /// it sent is committed and the ports are free.
    Leave {
        /// It ended with code 0: its part of the launch is done.
        #[serde(default)]
        done: bool,
        /// How the command ended, if the process that started it reports that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<CommandEnded>,
    },
}

/// How a command ended, as the process that started it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandEnded {
    /// Pid of the command.
    pub pid: u32,
    /// The `RANK` that it was started with, if it had one.
    #[serde(default)]
    pub rank: Option<u64>,
    /// Exit code or signal.
    pub exit: Exit,
}

/// An agent's answer to a [`Request`]: a JSON object in one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Answer to [`Request::Attach`]: the client is attached, and its run is open.
    Attached {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
        /// Where the command's TCPStore clients connect.
        address: SocketAddr,
        /// All ports that the agent was started with.
        addresses: Vec<SocketAddr>,
        /// The lease with which it holds the run for this host, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseId>,
        /// How the run was met, in words.
        #[serde(default)]
        met: String,
    },
    /// Answer to [`Request::Open`]: the namespace is open at a port of its own.
    Opened {
        /// Where its clients connect.
        address: SocketAddr,
    },
    /// Answer to [`Request::Store`]: the store is served.
    Store {
        /// Where the asker connects, as a client.
        address: SocketAddr,
        /// The port by which others name the store.
        port: u16,
        /// The agent serves that address anyway: no program is the master there.
        is_agent: bool,
    },
    /// Answer to [`Request::Workers`]: that many clients have connected.
    Come {},
    /// To [`Request::Upgrade`]: the agent is about to be replaced.
    Upgrading {
        /// Version of the agent.
        version: String,
    },
    /// Answer to [`Request::Status`]: what the agent serves now.
    Status {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
        /// Ports that the agent was started with.
        addresses: Vec<SocketAddr>,
        /// Commands that are attached.
        attached: usize,
        /// TCPStore connections open now.
        connections: usize,
        /// TCPStore clients that ever came.
        clients_ever: usize,
        /// Processes of this host that are TCPStore clients or were; none if some are unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        programs: Option<Vec<u32>>,
        /// All ports that are open, those of namespaces included.
        #[serde(default)]
        ports: Vec<u16>,
        /// Why nothing is served any more, if the run has ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fenced: Option<String>,
        /// Version of the agent; none from an agent that does not report it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
        /// Whether it runs the program that is at its path now; none likewise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        is_installed: Option<bool>,
    },
    /// It was not done.
    Refused(Refused),
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Why, and what to do.
    pub reason: String,
    /// The command line to use instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

impl From<String> for Refused {
    fn from(reason: String) -> Refused {
        Refused { reason, remedy: None }
    }
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Refused {
        Refused { reason: error.to_string(), remedy: error.remedy() }
    }
}

/// A message as a line.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("names and numbers can be written");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_they_are_documented() {
        let name = || "group-7".parse().unwrap();
        for (text, request) in [
            (
                r#"{"attach":{}}"#,
                Request::Attach { tcpstore: vec![], part: None, world_size: None },
            ),
            (
                r#"{"attach":{"tcpstore":["127.0.0.1:29500"],"of_a_later_version":1}}"#,
                Request::Attach {
                    tcpstore: vec!["127.0.0.1:29500".parse().unwrap()],
                    part: None,
                    world_size: None,
                },
            ),
            (r#"{"open":{"name":"group-7"}}"#, Request::Open { name: name() }),
            (
                r#"{"store":{"host":"localhost","port":12355,"is_master":true,"timeout_ms":7}}"#,
                Request::Store(stores::Wanted {
                    host: "localhost".to_owned(),
                    port: 12355,
                    is_master: true,
                    multi_tenant: false,
                    of_launcher: false,
                    attempt: None,
                    namespace: None,
                    timeout_ms: 7,
                }),
            ),
            (
                r#"{"workers":{"workers":2,"timeout_ms":7}}"#,
                Request::Workers { workers: 2, timeout_ms: 7 },
            ),
            (r#"{"process":{}}"#, Request::Process(Wanted::default())),
            (r#"{"status":{}}"#, Request::Status {}),
            (r#"{"leave":{}}"#, Request::Leave { done: false, ended: None }),
            (
                r#"{"leave":{"ended":{"pid":7,"rank":2,"exit":{"code":7}}}}"#,
                Request::Leave {
                    done: false,
                    ended: Some(CommandEnded { pid: 7, rank: Some(2), exit: Exit::Code(7) }),
                },
            ),
        ] {
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request, "{text}");
            let written = line(&request);
            assert_eq!(serde_json::from_slice::<Request>(&written).unwrap(), request);
        }
        for bad in ["", "{}", "7", r#"{"open":{}}"#, r#"{"open":{"name":"a/b"}}"#, r#"{"x":{}}"#] {
            assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn responses_survive_the_way() {
        let address: SocketAddr = "127.0.0.1:29500".parse().unwrap();
        let name: Name = "n".parse().unwrap();
        for response in [
            Response::Attached {
                job: name.clone(),
                run: name.clone(),
                address,
                addresses: vec![address],
                lease: Some(7.into()),
                met: "a new run".to_owned(),
            },
            Response::Opened { address },
            Response::Store { address, port: 12355, is_agent: false },
            Response::Come {},
            Response::Refused("a \"reason\"\nof two lines".to_owned().into()),
            Response::Refused(Refused {
                reason: "in use".to_owned(),
                remedy: Some(Remedy::AnotherJob { job: name.clone(), run: name.clone() }),
            }),
        ] {
            let written = line(&response);
            assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(serde_json::from_slice::<Response>(&written).unwrap(), response);
        }
    }
}
