//! The backend for NCCL on a GPU: several ranks on one, each a process of its own
//! that does what `CommunicatorManager` would have it do.
//!
//! Run with `HOLDFAST_GPU_TESTS=1`; without it this says that it was not run. How
//! ranks share one GPU, and what that does not test, is in `nccl/tests/gpu`.

#[path = "../../nccl/tests/support/gpu.rs"]
mod gpu;
#[path = "../nccl/minting.rs"]
mod minting;
mod rank;
#[path = "../../nccl/tests/support/ranks.rs"]
mod rank_processes;
mod scenarios;
#[path = "../../nccl/tests/support/mod.rs"]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    gpu::run(scenarios::ALL, rank::serve)
}
