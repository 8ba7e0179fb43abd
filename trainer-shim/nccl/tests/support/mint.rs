//! Minters of this crate's build.

use std::path::PathBuf;

use holdfast_nccl::minter::Options;

use crate::support::{PATIENCE, variable};

/// A minter of this build, on the loopback interface.
pub fn minter_options(library: Option<PathBuf>) -> Options {
    Options {
        program: env!("CARGO_BIN_EXE_holdfast-nccl-mint").into(),
        library,
        environment: vec![variable("NCCL_SOCKET_IFNAME", "lo")],
        deadline: PATIENCE,
    }
}
