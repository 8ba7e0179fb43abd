//! Why something failed.
//!
//! Nothing here touches the store, so that no error leaves an outcome open.

use std::path::PathBuf;
use std::process::ExitStatus;

use crate::codes::{REMOTE_ERROR, ResultCode, SYSTEM_ERROR};
use crate::communicator::{COLLECTIVES_PENDING_MAX, GROUP_BYTES_MAX, RANKS_MAX};
use crate::environment::{COMM_ID, LIBRARY};
use crate::version::{MINIMUM, Version};

/// One try in the search for a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The path or the name.
    pub what: String,
    /// Why it was not that.
    pub why: String,
}

fn list(tried: &[Attempt]) -> String {
    let each = tried.iter().map(|Attempt { what, why }| format!("{what} ({why})"));
    each.collect::<Vec<_>>().join(", ")
}

/// Why there is no NCCL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// No library was found, or the one that was named cannot be loaded.
    #[error(
        "no NCCL library; tried: {}. Install one (`pip install nvidia-nccl-cu12`), and set {LIBRARY} \
         to the path of its libnccl.so.2",
        list(tried)
    )]
    Missing {
        /// Everything that was tried, in order.
        tried: Vec<Attempt>,
    },
    /// The file is a library, and not this one.
    #[error("{library} is not NCCL: it has no function {symbol}; see {LIBRARY}")]
    NotNccl {
        /// The path or the name.
        library: String,
        /// The first function that the library was found to lack.
        symbol: &'static str,
    },
    /// Older than the minimum.
    #[error(
        "{library} is NCCL {found}, too old: aborts take seconds and can hang before {MINIMUM}; \
         install {MINIMUM} or newer, or see {LIBRARY}"
    )]
    TooOld {
        /// The path or the name.
        library: String,
        /// Version that was found.
        found: Version,
    },
    /// Its version is good, but it lacks a function that every such version has.
    #[error(
        "{library} says that it is NCCL {version}, and has no function {symbol}; install another build"
    )]
    Incomplete {
        /// The path or the name.
        library: String,
        /// Version that it reports.
        version: Version,
        /// The first function that the library was found to lack.
        symbol: &'static str,
    },
    /// It does not say its version.
    #[error(
        "{library} does not say its version: ncclGetVersion returned {code}; install another build"
    )]
    NoVersion {
        /// The path or the name.
        library: String,
        /// Code that it returned.
        code: ResultCode,
    },
    /// All ids would be the same.
    #[error(
        "{COMM_ID}={value} is set: it makes all unique ids equal, so that a communicator of an earlier \
         generation could join a later one; unset it, also in nccl.conf"
    )]
    CommIdSet {
        /// Value of the variable.
        value: String,
    },
}

impl LoadError {
    /// Stable name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            LoadError::Missing { .. } => "nccl_missing",
            LoadError::NotNccl { .. } => "nccl_not_nccl",
            LoadError::TooOld { .. } => "nccl_too_old",
            LoadError::Incomplete { .. } => "nccl_incomplete",
            LoadError::NoVersion { .. } => "nccl_no_version",
            LoadError::CommIdSet { .. } => "nccl_comm_id_set",
        }
    }

    /// Never: something has to be installed or unset first.
    pub fn is_retryable(&self) -> bool {
        false
    }
}

/// A call of NCCL that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{call} failed: {text} ({code}){}; NCCL_DEBUG=INFO makes NCCL say more",
    after_colon(detail)
)]
pub struct Failure {
    /// Name of the function.
    pub call: &'static str,
    /// Code that it returned.
    pub code: ResultCode,
    /// The code in NCCL's words.
    pub text: String,
    /// NCCL's last error message; empty if it has none.
    pub detail: String,
}

fn after_colon(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}

/// Why a call on a communicator failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// NCCL returned an error.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// CUDA returned an error.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// All ids would be the same.
    #[error(transparent)]
    CommIdSet(LoadError),
    /// The communicator is not in a state for this.
    #[error("{call} cannot be called on a communicator that {reason}")]
    NotReady {
        /// Function that was called.
        call: &'static str,
        /// Which state, and what to do.
        reason: &'static str,
    },
    /// A group is open on this thread, in which only collectives can be called.
    #[error("{call} cannot be called within a group; call it before or after")]
    InGroup {
        /// Function that was called.
        call: &'static str,
    },
    /// The library is too old for this.
    #[error("NCCL {version} has no {call}, which came with {since}")]
    Unsupported {
        /// Function that was called.
        call: &'static str,
        /// The version in use.
        version: Version,
        /// The version that has it.
        since: Version,
    },
    /// There is no such rank.
    #[error("there is no rank {rank} among {ranks}; at most {RANKS_MAX} ranks, counted from 0")]
    NoSuchRank {
        /// The rank that was asked for, counted from 0.
        rank: u32,
        /// How many ranks the communicator has.
        ranks: u32,
    },
    /// The name cannot be that of a communicator.
    #[error(
        "a group's name of {bytes} bytes: it has 1 to {GROUP_BYTES_MAX} bytes, none of them NUL"
    )]
    BadName {
        /// Length of the name, in bytes.
        bytes: usize,
    },
    /// The group has fewer communicators.
    #[error("there is no communicator {index} in a group of {count}")]
    NoSuchCommunicator {
        /// The index that was asked for, counted from 0.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Too many collectives have not ended.
    #[error("{COLLECTIVES_PENDING_MAX} collectives have not ended; wait for some of them first")]
    TooManyPending,
}

impl NcclError {
    /// Stable name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            NcclError::Failed(_) => "nccl_failed",
            NcclError::Device(error) => error.code(),
            NcclError::CommIdSet(error) => error.code(),
            NcclError::NotReady { .. } => "nccl_not_ready",
            NcclError::InGroup { .. } => "nccl_in_group",
            NcclError::Unsupported { .. } => "nccl_unsupported",
            NcclError::NoSuchRank { .. } => "nccl_no_such_rank",
            NcclError::BadName { .. } => "nccl_bad_name",
            NcclError::NoSuchCommunicator { .. } => "nccl_no_such_communicator",
            NcclError::TooManyPending => "nccl_too_many_pending",
        }
    }

    /// Whether the same may succeed later: in a new generation with a new id
    /// after a failure of a peer or of the network, else with the same
    /// communicator.
    pub fn is_retryable(&self) -> bool {
        match self {
            NcclError::Failed(failure) => [REMOTE_ERROR, SYSTEM_ERROR].contains(&failure.code),
            NcclError::NotReady { .. } | NcclError::TooManyPending => true,
            _ => false,
        }
    }
}

/// Why the CUDA driver could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no driver.
    #[error(
        "no CUDA driver on this machine: libcuda.so.1 was not found; install NVIDIA's driver, \
         or start the container with its GPUs"
    )]
    NoDriver,
    /// The library found as the driver lacks a function.
    #[error(
        "the CUDA driver has no function {symbol}: it is older than CUDA 12, or another library of that name"
    )]
    BadDriver {
        /// The first function that the driver was found to lack.
        symbol: &'static str,
    },
    /// There are fewer devices.
    #[error(
        "there is no CUDA device {ordinal}: this process sees {count}; see CUDA_VISIBLE_DEVICES"
    )]
    NoSuchDevice {
        /// The number that was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The driver returned an error.
    #[error("CUDA failed {doing}: {text}")]
    Cuda {
        /// What was being done, as an infinitive: `to open a device`.
        doing: &'static str,
        /// What the driver says of the error, and its name for it.
        text: String,
    },
}

impl DeviceError {
    /// Stable name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            DeviceError::NoDriver => "cuda_no_driver",
            DeviceError::BadDriver { .. } => "cuda_bad_driver",
            DeviceError::NoSuchDevice { .. } => "cuda_no_such_device",
            DeviceError::Cuda { .. } => "cuda_failed",
        }
    }

    /// Never: after an error of CUDA the process has to start again.
    pub fn is_retryable(&self) -> bool {
        false
    }
}

/// Why there is no minter.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The helper does not start.
    #[error("the minter {} cannot be started: {source}; it is installed beside the agent", program.display())]
    NotStarted {
        /// Path of the helper.
        program: PathBuf,
        /// The system's error on starting it.
        source: std::io::Error,
    },
    /// The helper reported why it mints nothing.
    #[error("no unique id: {reason}")]
    Refused {
        /// Reason in the helper's words.
        reason: String,
    },
    /// The helper ended without output.
    #[error("the minter ended before it wrote an id: {status}; its standard error says more")]
    Ended {
        /// Exit code of the helper, or the signal that ended it.
        status: ExitStatus,
    },
    /// The helper wrote something else.
    #[error("the minter wrote no unique id; is {} the program of this version?", program.display())]
    Garbled {
        /// Path of the helper.
        program: PathBuf,
    },
    /// The helper took too long.
    #[error("the minter wrote no unique id within {deadline_ms} ms")]
    TooLate {
        /// The deadline that it had.
        deadline_ms: u128,
    },
    /// The system refused something.
    #[error("the minter cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

impl MintError {
    /// Stable name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            MintError::NotStarted { .. } => "mint_not_started",
            MintError::Refused { .. } => "mint_refused",
            MintError::Ended { .. } => "mint_ended",
            MintError::Garbled { .. } => "mint_garbled",
            MintError::TooLate { .. } => "mint_too_late",
            MintError::Io(_) => "mint_io",
        }
    }

    /// Whether another minter may succeed: this one was killed, or the host is
    /// too busy.
    pub fn is_retryable(&self) -> bool {
        matches!(self, MintError::Ended { .. } | MintError::TooLate { .. } | MintError::Io(_))
    }
}
