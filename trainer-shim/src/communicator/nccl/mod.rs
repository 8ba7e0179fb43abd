//! Communicators over NCCL, on one GPU of this process.
//!
//! Collectives work on a [`Buffer`](super::Buffer) in host memory: it is copied
//! to the device and back. That is for control data and for tests of the
//! lifecycle; tensors are reduced in place, by PyTorch or by [`holdfast_nccl`] itself.
//!
//! ```no_run
//! use std::sync::Arc;
//! use holdfast_trainer_shim::communicator::nccl::{NcclBackend, NcclOptions};
//! use holdfast_trainer_shim::manager::CommunicatorManager;
//!
//! # fn example(process: holdfast_trainer_shim::Process) {
//! let options = NcclOptions { device: 3, ..NcclOptions::default() };
//! let manager = CommunicatorManager::new(process, Arc::new(NcclBackend::new(options)));
//! # }
//! ```
//!
//! The library and the GPU are opened by the first communicator. Where driver,
//! GPU or library are missing, its initialisation fails, and the [`Failure`] says
//! which of them and what to do.
//!
//! | call | what becomes of it |
//! | --- | --- |
//! | mint | a child process, `holdfast-nccl-mint`, for each id: killed with the minter |
//! | barrier | an all-reduce of one value |
//! | quiesce | `ncclCommRevoke` where the library has it and the communicator was formed; else `ncclCommAbort` |
//! | release | `ncclCommAbort`, unless all have closed it |
//! | close | a barrier, `ncclCommFinalize`, `ncclCommDestroy` |
//!
//! # Architecture invariants
//!
//! * One thread owns a communicator, and it alone calls NCCL on it. It never
//!   waits in NCCL for a peer, but polls its calls after growing pauses, from
//!   which an abort wakes it. The one exception is `ncclCommDestroy`, after all
//!   members have closed: NCCL 2.31.2 and newer wait there for members on the
//!   same host.
//! * One collective of a communicator runs at a time, so that memory is copied
//!   only while nothing on its stream can hang.
//! * Calls that put work on the device are made by one owner at a time. Revoke,
//!   abort and looks are not: one communicator's abort never waits for another's
//!   call.
//! * No id is minted in this process, where NCCL could not take it back.
//! * Nothing is left of a communicator that was released or dropped, or of a
//!   minter that was dropped: no thread, no descriptor, no child. What was opened
//!   (the library, the device's context) stays until the backend goes.
//!
//! # What the user must ensure
//!
//! * NCCL compares neither operations nor lengths: members that call different
//!   ones hang, or get garbage.
//! * Collectives on two communicators of one process (a group and its subgroup)
//!   may begin in another order than they were called in. Wait for the one before
//!   the other is called.
//! * NCCL reports a lost peer without its rank, so that no [`Failure::PeerLost`]
//!   comes from here, and over NVLink not at all.

mod communicator;
mod gpu;
mod minter;
mod owner;
mod shared;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_nccl::codes::REMOTE_ERROR;
use holdfast_nccl::communicator::COLLECTIVES_PENDING_MAX;
use holdfast_nccl::minter::{DEADLINE_DEFAULT, Options as MinterOptions, PROGRAM};
use holdfast_nccl::{DeviceError, LoadError, MintError, NcclError};

use self::communicator::NcclCommunicator;
use self::gpu::Gpu;
use self::minter::NcclMinter;
use super::backend::{
    Backend, Capabilities, Communicator, InitOptions, MintOptions, Minter, check_group, check_rank,
};
use super::failure::Failure;
use super::used_ids::UsedIds;

/// How communicators are built.
#[derive(Debug, Clone)]
pub struct NcclOptions {
    /// The GPU, by the number that this process sees it under; by default 0. See
    /// `CUDA_VISIBLE_DEVICES`.
    pub device: u32,
    /// The path of `libnccl.so.2`; `None` = where [`holdfast_nccl::Nccl::load`]
    /// finds one.
    pub library: Option<PathBuf>,
    /// The program that mints; by default `holdfast-nccl-mint` beside this
    /// program, or else in the `PATH`.
    pub mint_program: PathBuf,
    /// Variables that it gets beside those of this process. `NCCL_SOCKET_IFNAME`
    /// must be that of the members.
    pub mint_environment: Vec<(OsString, OsString)>,
    /// How long minting may take.
    pub mint_time_max: Duration,
}

impl Default for NcclOptions {
    fn default() -> NcclOptions {
        let beside = MinterOptions::beside_this_program().map(|options| options.program);
        let beside = beside.ok().filter(|program| program.is_file());
        NcclOptions {
            device: 0,
            library: None,
            mint_program: beside.unwrap_or_else(|| PROGRAM.into()),
            mint_environment: Vec::new(),
            mint_time_max: DEADLINE_DEFAULT,
        }
    }
}

/// Makes communicators of NCCL.
pub struct NcclBackend {
    minting: MinterOptions,
    gpu: Arc<Gpu>,
    used: UsedIds,
}

impl NcclBackend {
    /// A backend with these options. Nothing is opened yet.
    pub fn new(options: NcclOptions) -> NcclBackend {
        let minting = MinterOptions {
            program: options.mint_program,
            library: options.library.clone(),
            environment: options.mint_environment,
            deadline: options.mint_time_max,
        };
        let gpu = Arc::new(Gpu::new(options.device, options.library));
        NcclBackend { minting, gpu, used: UsedIds::default() }
    }
}

impl Backend for NcclBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "nccl", shrink: false, revoke: false, grow: false }
    }

    fn mint(&self, options: &MintOptions) -> Result<Box<dyn Minter>, Failure> {
        check_group(&options.group, options.nranks)?;
        Ok(Box::new(NcclMinter::mint(&self.minting)?))
    }

    fn begin_init(&self, options: InitOptions) -> Result<Box<dyn Communicator>, Failure> {
        check_group(&options.group, options.nranks)?;
        check_rank(options.rank, options.nranks)?;
        self.used.use_up(options.id, options.rank)?;
        Ok(Box::new(NcclCommunicator::begin(self.gpu.clone(), options)?))
    }
}

fn not_minted(error: MintError) -> Failure {
    Failure::System { call: "minting a unique id", reason: error.to_string() }
}

fn not_loaded(error: LoadError) -> Failure {
    Failure::System { call: "loading NCCL", reason: error.to_string() }
}

fn device_failed(error: DeviceError) -> Failure {
    Failure::System { call: "using the GPU", reason: error.to_string() }
}

fn nccl_failed(error: NcclError) -> Failure {
    match error {
        NcclError::Failed(failed) => failure_of(failed),
        NcclError::Device(error) => device_failed(error),
        NcclError::CommIdSet(error) => not_loaded(error),
        NcclError::TooManyPending => Failure::Overloaded { limit: COLLECTIVES_PENDING_MAX },
        NcclError::BadName { .. } => {
            Failure::Invalid { what: "name of the group", reason: error.to_string() }
        }
        error => Failure::System { call: "NCCL", reason: error.to_string() },
    }
}

/// A call that NCCL refused, in its words.
fn failure_of(failed: holdfast_nccl::Failure) -> Failure {
    let holdfast_nccl::Failure { call, code, text, detail } = failed;
    let gone =
        if code == REMOTE_ERROR { "a member or the minter of the unique id is gone: " } else { "" };
    let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
    let reason = format!("{gone}{text} ({code}){detail}; NCCL_DEBUG=INFO makes NCCL say more");
    Failure::System { call, reason }
}
