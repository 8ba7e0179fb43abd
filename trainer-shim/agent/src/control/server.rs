//! The agent's side of the control socket: attached clients, and when to end.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_api::Name;
use holdfast_trainer_shim::Met;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::admission::{Admission, Admitted};
use super::attendance::Attendance;
use super::protocol::{CommandEnded, LINE_BYTES_MAX, Refused, Request, Response, line};
use crate::agent::{Handle, Remedy};
use crate::complaints::Complaints;
use crate::descriptors::Room;
use crate::guard::Guard;
use crate::parts::Part;
use crate::stores::{Served, Wanted};

/// How long an agent waits for the first client: the process that started it is
/// about to attach.
const FIRST_TIME_MAX: Duration = Duration::from_secs(30);
/// How long those that were refused get to read why.
const REFUSED_TIME_MAX: Duration = Duration::from_secs(2);
/// Time limit for a line of a client that is not attached: no client holds a
/// connection in silence.
const LINE_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed accept: when file descriptors run out, one must close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The agent as attached clients see it: not there yet, there, or failed for this reason.
pub type Agent = watch::Receiver<Option<Result<Handle, Refused>>>;

/// Answers all requests, and serves attached clients until the last has left.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    guard: Guard,
    admission: Admission,
    /// Log lines about connections that are refused.
    complaints: Mutex<Complaints>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    agent: Agent,
    attendance: Mutex<Attendance>,
    /// No client is attached any more, or none ever was.
    over: CancellationToken,
    /// The agent stays when the last has left.
    lasts: bool,
}

/// An attached client; leaves when dropped.
struct Attached {
    shared: Arc<Shared>,
    part: Option<Part>,
    /// Others that were attached when it came.
    before: usize,
    /// Its part of the launch is done.
    is_done: bool,
}

impl Server {
    /// A server at this socket; `over` is cancelled when the last has left.
    pub fn new(
        listener: UnixListener,
        guard: Guard,
        agent: Agent,
        over: CancellationToken,
    ) -> Server {
        Server::with(listener, guard, agent, over, false)
    }

    /// A server of an agent that does not end with its last client: it serves
    /// until `over` is cancelled.
    pub fn lasting(
        listener: UnixListener,
        guard: Guard,
        agent: Agent,
        over: CancellationToken,
    ) -> Server {
        Server::with(listener, guard, agent, over, true)
    }

    fn with(
        listener: UnixListener,
        guard: Guard,
        agent: Agent,
        over: CancellationToken,
        lasts: bool,
    ) -> Server {
        let attendance = Mutex::default();
        let shared = Arc::new(Shared { agent, attendance, over, lasts });
        let admission = Admission::new(Room::of_process().control_connections());
        let complaints = Mutex::default();
        Server { listener, guard, admission, complaints, shared }
    }

    /// Serves until no client is attached any more, or the agent has failed and
    /// all clients know. Returns what has to stay open until the socket's file is
    /// gone, and until the agent is.
    pub async fn run(self) -> Leaving {
        let mut connections = JoinSet::new();
        let first = tokio::time::sleep(FIRST_TIME_MAX);
        tokio::pin!(first);
        let mut waiting_for_first = !self.shared.lasts;
        let mut agent = self.shared.agent.clone();
        let failed = async {
            // The caller of this function keeps the sender.
            let _ = agent.wait_for(|agent| matches!(agent, Some(Err(_)))).await;
            tokio::time::sleep(REFUSED_TIME_MAX).await;
        };
        tokio::pin!(failed);
        loop {
            tokio::select! {
                () = self.shared.over.cancelled() => break,
                () = &mut failed => break,
                () = &mut first, if waiting_for_first => {
                    waiting_for_first = false;
                    self.shared.end_unless_used();
                }
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    if let Err(error) = ended {
                        warn!(%error, "a control connection ended in a defect of the agent");
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        if let Some((pid, admitted)) = self.admit(&stream) {
                            let shared = Arc::clone(&self.shared);
                            connections.spawn(async move {
                                let _admitted = admitted;
                                if let Err(error) = converse(stream, pid, &shared).await {
                                    debug!(%error, "a control connection broke");
                                }
                            });
                        }
                    }
                    Err(error) => {
                        if let Some(left_out) = self.may_complain() {
                            warn!(%error, left_out, "cannot accept a control connection");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        Leaving { listener: Some(self.listener), _connections: connections }
    }

    /// Whether to log one more refusal; answers how many were not since the last one.
    fn may_complain(&self) -> Option<u64> {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.admit(Instant::now())
    }

    /// Admits a connection, by the process id of its program, or sends it the
    /// reason for the refusal: without waiting for it to read, so that others
    /// need not wait.
    fn admit(&self, stream: &UnixStream) -> Option<(Option<i32>, Admitted)> {
        let peer = stream.peer_cred().inspect_err(|error| debug!(%error, "nobody connected"));
        let peer = peer.ok()?;
        let admitted = self.guard.check(peer.uid(), peer.pid()).and_then(|()| {
            let admitted = self.admission.admit(peer.pid());
            admitted.inspect_err(|reason| {
                if let Some(left_out) = self.may_complain() {
                    warn!(left_out, "a control connection is refused: {reason}");
                }
            })
        });
        match admitted {
            Ok(admitted) => Some((peer.pid(), admitted)),
            Err(reason) => {
                // There is room for a line in a new socket.
                let told = socket2::SockRef::from(stream).send(&line(&refused(reason)));
                if let Err(error) = told {
                    debug!(%error, "it did not hear why");
                }
                None
            }
        }
    }
}

/// What is left of a server that has ended: the connections of clients that wait
/// for the agent's end close with it.
#[derive(Debug)]
pub struct Leaving {
    listener: Option<UnixListener>,
    _connections: JoinSet<()>,
}

impl Leaving {
    /// Refuses connections from now on. Until then the socket's file is this
    /// agent's: a socket with a listener is not replaced.
    pub fn stop_listening(&mut self) {
        self.listener = None;
    }
}

impl Shared {
    fn attendance(&self) -> MutexGuard<'_, Attendance> {
        self.attendance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None if the agent is about to end; refused if it has a command for this
    /// part of the launch already.
    fn attach(self: &Arc<Self>, part: Option<Part>) -> Result<Option<Attached>, String> {
        let mut attendance = self.attendance();
        if attendance.is_over() {
            return Ok(None);
        }
        let before = attendance.attached();
        attendance.enter(part.as_ref(), Instant::now())?;
        Ok(Some(Attached { shared: Arc::clone(self), part, before, is_done: false }))
    }

    fn end_unless_used(&self) {
        if self.attendance().end_unless_used() {
            info!("nobody attached: the agent ends");
            self.over.cancel();
        }
    }

    /// The agent, once it is there; waits for it.
    async fn agent(&self) -> Result<Handle, Refused> {
        let mut agent = self.agent.clone();
        let agent = agent.wait_for(Option::is_some).await;
        let ended = || Err("the agent ends; start the command again".to_owned().into());
        agent.map_or_else(|_| ended(), |agent| agent.clone().unwrap_or_else(ended))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Attached { shared, part, before: _, is_done } = self;
        if let (Some(part), Some(Ok(handle))) = (&*part, &*shared.agent.borrow()) {
            handle.parts().release(&part.name, *is_done);
        }
        if shared.attendance().leave(part.as_ref(), !shared.lasts) {
            shared.over.cancel();
        }
    }
}

/// One connection, from its first request to its last.
async fn converse(stream: UnixStream, pid: Option<i32>, shared: &Arc<Shared>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut attached: Option<Attached> = None;
    let mut store = None;
    // It waits for the end of this agent, which may not come.
    let mut upgrades = false;
    loop {
        let is_known = attached.is_some() || store.is_some() || upgrades;
        let text = match read_line(&mut reader, is_known).await? {
            Heard::Line(text) => text,
            Heard::Closed => return Ok(()),
            Heard::NoLine(reason) => return writer.write_all(&line(&refused(reason))).await,
        };
        let response = match serde_json::from_slice(&text) {
            Ok(Request::Leave { done, ended }) => {
                if let Some(CommandEnded { pid, rank, exit }) = ended
                    && let Some(Ok(handle)) = &*shared.agent.borrow()
                {
                    handle.command_ended(pid, rank, exit);
                }
                if let Some(attached) = attached.as_mut().filter(|_| done) {
                    attached.is_done = true;
                    if let Some(part) = &attached.part {
                        shared.attendance().note_done(part, Instant::now());
                    }
                }
                drop(attached.take());
                // The last one waits for the agent's end, the others do not.
                if shared.over.is_cancelled() {
                    std::future::pending::<()>().await;
                }
                return Ok(());
            }
            Ok(Request::Attach { tcpstore, part, world_size }) => {
                let part = part.map(|name| Part::new(&name, pid, world_size));
                match attached.take().map_or_else(|| shared.attach(part), |same| Ok(Some(same))) {
                    Ok(Some(now)) => attach(shared, &tcpstore, attached.insert(now)).await,
                    // The client finds the connection closed, and starts anew.
                    Ok(None) => return Ok(()),
                    Err(reason) => twice(shared, reason).await,
                }
            }
            Ok(Request::Process(wanted)) => match shared.agent().await {
                Ok(handle) => {
                    handle.processes().serve(reader, writer, pid, &wanted).await;
                    return Ok(());
                }
                Err(refused) => Response::Refused(refused),
            },
            Ok(Request::Open { name }) => open(shared, name).await,
            Ok(Request::Store(wanted)) => tokio::select! {
                // A client that has gone, or sends something else, waits no more.
                _ = reader.fill_buf() => return Ok(()),
                served = open_store(shared, &wanted, pid) => match served {
                    Ok(served) => {
                        let Served { address, port, .. } = served;
                        let is_agent = served.is_agent();
                        store = Some(served);
                        Response::Store { address, port, is_agent }
                    }
                    Err(refused) => Response::Refused(refused),
                }
            },
            Ok(Request::Workers { workers, timeout_ms }) => tokio::select! {
                _ = reader.fill_buf() => return Ok(()),
                response = wait_for_workers(shared, store.as_ref(), workers, timeout_ms) => response,
            },
            Ok(Request::Status {}) => status(shared).await,
            Ok(Request::Upgrade {}) => match upgrade(shared).await {
                Ok(handle) => {
                    let version = env!("CARGO_PKG_VERSION").to_owned();
                    writer.write_all(&line(&Response::Upgrading { version })).await?;
                    if let Some(keeper) = handle.keeper() {
                        keeper.replace();
                    }
                    // Its end is the end of this connection.
                    upgrades = true;
                    continue;
                }
                Err(refused) => Response::Refused(refused),
            },
            Err(error) => refused(format!(
                "the agent does not understand this request ({error}); \
                 its version and the command's do not fit"
            )),
        };
        writer.write_all(&line(&response)).await?;
    }
}

enum Heard {
    Line(Vec<u8>),
    Closed,
    /// None comes, for this reason.
    NoLine(String),
}

/// The next line. An attached client may be silent for as long as its command
/// runs.
async fn read_line(reader: &mut BufReader<OwnedReadHalf>, attached: bool) -> io::Result<Heard> {
    let mut text = Vec::new();
    let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
    let mut reader = reader.take(limit);
    let reading = reader.read_until(b'\n', &mut text);
    if attached {
        reading.await?;
    } else {
        match tokio::time::timeout(LINE_TIME_MAX, reading).await {
            Ok(read) => read?,
            Err(_) => {
                let reason = format!(
                    "no line came in {LINE_TIME_MAX:?}; a request is one line of JSON, sent at once"
                );
                return Ok(Heard::NoLine(reason));
            }
        };
    }
    Ok(match text.last() {
        Some(b'\n') => Heard::Line(text),
        _ if text.len() < LINE_BYTES_MAX => Heard::Closed,
        _ => Heard::NoLine(format!(
            "a line is longer than {LINE_BYTES_MAX} bytes; a request is one line of JSON"
        )),
    })
}

async fn attach(shared: &Shared, tcpstore: &[SocketAddr], attached: &Attached) -> Response {
    let handle = match shared.agent().await {
        Ok(handle) => handle,
        Err(refused) => return Response::Refused(refused),
    };
    if let Some(reason) = handle.fenced() {
        return refused(format!(
            "the agent of this host still has commands of a run that is over ({reason}); start this \
             one when they have ended, or end them"
        ));
    }
    if let Some(part) = &attached.part
        && let Err(reason) = handle.parts().take(part).await
    {
        return twice(shared, reason).await;
    }
    // Port 0 is any port: one that is open will do.
    let ports: Vec<SocketAddr> = tcpstore.iter().copied().filter(|at| at.port() != 0).collect();
    let address = ports.first().copied().unwrap_or(handle.address());
    if let Err(error) = handle.open_at(ports).await {
        return Response::Refused(Refused::from(&error));
    }
    Response::Attached {
        job: handle.job().clone(),
        run: handle.run().clone(),
        address,
        addresses: handle.addresses().to_vec(),
        lease: handle.processes().held().await,
        met: met(handle.met(), attached.before),
    }
}

/// How a command meets its run: as its agent did, unless others were attached
/// `before`.
fn met(met: &Met, before: usize) -> String {
    let others = match met.others {
        0 => "no other agent is in it".to_owned(),
        1 => "1 other agent is in it".to_owned(),
        others => format!("{others} other agents are in it"),
    };
    match before {
        0 if met.opened => "a new run".to_owned(),
        0 => format!("an open run, {others}"),
        1 => "the run of another command of this host".to_owned(),
        all => format!("the run of {all} other commands of this host"),
    }
}

/// The part of the launch that a command would be is there already.
async fn twice(shared: &Shared, reason: String) -> Response {
    match shared.agent().await {
        Ok(handle) => {
            let (job, run) = (handle.job().clone(), handle.run().clone());
            let reason = format!("job {job} is in use: in its run {run}, {reason}");
            Response::Refused(Refused { reason, remedy: Some(Remedy::AnotherJob { job, run }) })
        }
        Err(refused) => Response::Refused(refused),
    }
}

async fn open(shared: &Shared, name: Name) -> Response {
    let opened = match shared.agent().await {
        Ok(handle) => handle.open(name).await.map_err(|error| Refused::from(&error)),
        Err(refused) => Err(refused),
    };
    opened.map_or_else(Response::Refused, |address| Response::Opened { address })
}

async fn open_store(shared: &Shared, wanted: &Wanted, pid: Option<i32>) -> Result<Served, Refused> {
    let handle = shared.agent().await?;
    let served = handle.stores().open(wanted, pid).await;
    served.map_err(|error| error.to_string().into())
}

async fn wait_for_workers(
    shared: &Shared,
    store: Option<&Served>,
    workers: u64,
    timeout_ms: u64,
) -> Response {
    let Some(store) = store else {
        return refused("ask for a store first, on this connection".to_owned());
    };
    let handle = match shared.agent().await {
        Ok(handle) => handle,
        Err(refused) => return Response::Refused(refused),
    };
    let most = Duration::from_millis(timeout_ms);
    match handle.stores().workers(store, workers, most).await {
        Ok(()) => Response::Come {},
        Err(error) => refused(error.to_string()),
    }
}

/// The agent, if it can be replaced.
async fn upgrade(shared: &Shared) -> Result<Handle, Refused> {
    let handle = shared.agent().await?;
    if handle.keeper().is_none() {
        return Err("the agent has no keeper, which would hold its connections; start it with `serve --keeper`, or without `run --no-keeper`".to_owned().into());
    }
    if handle.processes().programs_ever() > 0 {
        return Err("programs have joined the agent with the library, and would end with it; upgrade when they have ended, with a new launch".to_owned().into());
    }
    Ok(handle)
}

async fn status(shared: &Shared) -> Response {
    match shared.agent().await {
        Ok(handle) => {
            let ports = handle.ports().await;
            Response::Status {
                programs: handle.programs().await,
                job: handle.job().clone(),
                run: handle.run().clone(),
                addresses: handle.addresses().to_vec(),
                attached: shared.attendance().attached(),
                connections: handle.connections(),
                clients_ever: handle.clients_ever(),
                ports,
                fenced: handle.fenced().map(str::to_owned),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                // The path of a program that was replaced is none that exists.
                is_installed: Some(std::env::current_exe().is_ok_and(|path| path.exists())),
            }
        }
        Err(refused) => Response::Refused(refused),
    }
}

fn refused(reason: String) -> Response {
    Response::Refused(reason.into())
}
