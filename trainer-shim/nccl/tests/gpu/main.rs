//! NCCL on a GPU: several ranks on one, each a process of its own.
//!
//! Run with `HOLDFAST_GPU_TESTS=1`; without it this says that it was not run.
//! NCCL refuses two ranks on one GPU unless they seem to be on different hosts,
//! which `NCCL_HOSTID` makes it believe. They then talk over sockets of the
//! loopback interface: what is tested is the lifecycle, not NVLink and not
//! InfiniBand.

#[path = "../support/gpu.rs"]
mod gpu;
#[path = "../support/mint.rs"]
mod mint;
mod rank;
#[path = "../support/ranks.rs"]
mod rank_processes;
mod ranks;
mod scenarios;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    gpu::run(scenarios::ALL, rank::serve)
}
