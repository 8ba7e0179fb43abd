//! A member of a group of communicators: it acquires, reduces, and acquires again,
//! and writes down what it and its library do.
//!
//! ```text
//! holdfast-test-member PROCESS GROUP STOP_MAX_MS FILE     FILE is appended to
//! ```
//!
//! SIGTERM: once a member has got it all close the group in order and leave.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_client::Deadline;
use holdfast_tests::communicators::{Event, EventLog};
use holdfast_trainer_shim::communicator::ring::Ring;
use holdfast_trainer_shim::communicator::{
    Backend, Buffer, Capabilities, Communicator, Failure, InitOptions, MintOptions, Minter,
    Reduction, State, UniqueId, Work,
};
use holdfast_trainer_shim::manager::{
    AcquireError, CallError, CommunicatorManager, GroupCommunicator, Spec,
};
use holdfast_trainer_shim::{CONTROL_VARIABLE, Holding, Host, Join, Process, Wanted};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long the agent may take, and a former incarnation may last.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two steps of a member.
const PAUSE: Duration = Duration::from_millis(5);

/// How often a held generation is acquired, to measure it.
const ACQUIRES: u32 = 10_000;

/// How many ranks the subgroup has; they are the first of the group.
const SUBGROUP_RANKS: u32 = 2;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let process: u32 = arguments.next().and_then(|n| n.parse().ok()).expect("PROCESS");
    let group = arguments.next().expect("GROUP");
    let stop_max: u64 = arguments.next().and_then(|n| n.parse().ok()).expect("STOP_MAX_MS");
    let log = EventLog::open(&PathBuf::from(arguments.next().expect("FILE")), process);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(take_part(process, &group, Duration::from_millis(stop_max), log));
}

async fn take_part(process: u32, group: &str, stop_max: Duration, log: EventLog) {
    let leaving = signal(SignalKind::terminate()).expect("a handler");
    let control = PathBuf::from(std::env::var_os(CONTROL_VARIABLE).expect("HOLDFAST_CONTROL"));
    let host = Host::attach(&control, Wanted::default(), PATIENCE).await.expect("an agent");
    let patience = Some(Deadline::after(PATIENCE));
    let join = Join { process: Some(process), patience, ..Join::default() };
    let process = host.join(join).await.expect("a registration");
    let log = log.of(process.incarnation());
    log.write(Event::Joined);
    let backend = Arc::new(Logged { ring: Ring::default(), log: log.clone() });
    let manager = CommunicatorManager::new(process.clone(), backend);
    let spec = Spec { holding: Holding { stop_max, ..Holding::default() }, ..Spec::default() };
    let mut member = Member { manager, process, spec, log, leaving, known: 0, steps: 0 };
    match Box::pin(member.steps(group)).await {
        Ok(()) => {
            member.process.leave().await.expect("an end");
            member.log.write(Event::Left);
        }
        Err(error) => {
            member.log.write(Event::Ended { error });
            std::process::exit(3);
        }
    }
}

struct Member {
    manager: CommunicatorManager,
    process: Process,
    spec: Spec,
    log: EventLog,
    leaving: Signal,
    /// The generation that was had last.
    known: u64,
    steps: i64,
}

impl Member {
    async fn steps(&mut self, name: &str) -> Result<(), String> {
        let mut wants_to_leave = false;
        let mut part: Option<Arc<GroupCommunicator>> = None;
        loop {
            let acquired = self.manager.acquire(name, &self.spec, Deadline::after(PATIENCE)).await;
            let group = acquired.map_err(|error| error.to_string())?;
            let generation = group.generation();
            if generation != self.known {
                self.known = generation;
                let members = group.members().iter();
                let members = members.map(|one| (one.process, one.incarnation)).collect();
                let rank = group.rank().expect("a member");
                self.log.write(Event::Active { generation, rank, members });
                part = None;
            }
            wants_to_leave |= futures::poll!(std::pin::pin!(self.leaving.recv())).is_ready();
            match self.step(&group, &mut part, wants_to_leave).await {
                Ok(all_leave) => {
                    self.log.write(Event::Step { generation });
                    if all_leave {
                        self.measure(name).await.map_err(|error| error.to_string())?;
                        drop((part, group));
                        let closed = self.manager.close(name, Deadline::after(PATIENCE)).await;
                        return closed.map_err(|error| error.to_string());
                    }
                }
                Err(CallError::Revoked { why, .. }) => {
                    self.log.write(Event::Told { generation, why: why.to_string() });
                }
                Err(error) => return Err(error.to_string()),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Measures how long it takes to acquire a held generation.
    async fn measure(&self, name: &str) -> Result<(), AcquireError> {
        let begun = std::time::Instant::now();
        for _ in 0..ACQUIRES {
            self.manager.acquire(name, &self.spec, Deadline::after(PATIENCE)).await?;
        }
        let nanoseconds = begun.elapsed().as_nanos() as u64 / u64::from(ACQUIRES);
        self.log.write(Event::Acquired { nanoseconds });
        Ok(())
    }

    /// Sums what all brought, and what the first ranks did. Whether all leave.
    async fn step(
        &mut self,
        group: &Arc<GroupCommunicator>,
        part: &mut Option<Arc<GroupCommunicator>>,
        leaves: bool,
    ) -> Result<bool, CallError> {
        let (rank, nranks) = (group.rank().expect("a member"), group.nranks());
        let own = vec![i64::from(rank), group.generation() as i64, i64::from(leaves)];
        let sum = group.all_reduce(Buffer::I64(own), Reduction::Sum).await?;
        let Buffer::I64(sum) = sum else { panic!("another type") };
        let count = i64::from(nranks);
        let all = [count * (count - 1) / 2, group.generation() as i64 * count];
        assert_eq!(sum[..2], all, "generation {} of {nranks}", group.generation());
        if part.is_none() && nranks > SUBGROUP_RANKS {
            let ranks: Vec<u32> = (0..SUBGROUP_RANKS).collect();
            *part = Some(group.subgroup("first", &ranks, Deadline::after(PATIENCE)).await?);
        }
        if let Some(part) = part
            && part.rank().is_some()
        {
            part.barrier().await?;
        }
        self.steps += 1;
        self.process.progress(self.steps as u64);
        Ok(sum[2] > 0)
    }
}

/// A ring that logs each of its calls.
struct Logged {
    ring: Ring,
    log: EventLog,
}

impl Backend for Logged {
    fn capabilities(&self) -> Capabilities {
        self.ring.capabilities()
    }

    fn mint(&self, options: &MintOptions) -> Result<Box<dyn Minter>, Failure> {
        let minter = self.ring.mint(options)?;
        let (generation, name) = (options.generation, options.group.clone());
        self.log.write(Event::Minted { generation, name, id: short(&minter.id()) });
        Ok(minter)
    }

    fn begin_init(&self, options: InitOptions) -> Result<Box<dyn Communicator>, Failure> {
        let (generation, name) = (options.generation, options.group.clone());
        self.log.write(Event::Open { generation, name: name.clone(), id: short(&options.id) });
        let communicator = self.ring.begin_init(options)?;
        Ok(Box::new(LoggedCommunicator { communicator, log: self.log.clone(), generation, name }))
    }
}

/// Enough of an id to distinguish it from others.
fn short(id: &UniqueId) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

struct LoggedCommunicator {
    communicator: Box<dyn Communicator>,
    log: EventLog,
    generation: u64,
    name: String,
}

impl Communicator for LoggedCommunicator {
    fn options(&self) -> &InitOptions {
        self.communicator.options()
    }

    fn state(&self) -> State {
        self.communicator.state()
    }

    fn initialised(&self) -> Work<()> {
        self.communicator.initialised()
    }

    fn all_reduce(&self, data: Buffer, reduction: Reduction) -> Work<Buffer> {
        self.communicator.all_reduce(data, reduction)
    }

    fn broadcast(&self, data: Buffer, root: u32) -> Work<Buffer> {
        self.communicator.broadcast(data, root)
    }

    fn barrier(&self) -> Work<()> {
        self.communicator.barrier()
    }

    fn quiesce(&self) {
        self.communicator.quiesce();
        self.log.write(Event::Stopped { generation: self.generation });
    }

    fn release(&self) {
        self.communicator.release();
        let (generation, name) = (self.generation, self.name.clone());
        self.log.write(Event::Freed { generation, name });
    }

    fn close(&self) -> Work<()> {
        self.log.write(Event::Closing { generation: self.generation });
        self.communicator.close()
    }
}
