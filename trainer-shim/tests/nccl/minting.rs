//! The program that mints, of this build.

use std::path::PathBuf;

use holdfast_nccl::minter::PROGRAM;
use holdfast_trainer_shim::communicator::nccl::NcclOptions;

use crate::support::{PATIENCE, variable};

/// With this library, and its ids on the loopback interface.
pub fn options(library: PathBuf) -> NcclOptions {
    let test = std::env::current_exe().expect("a running program has a file");
    // Tests run from TARGET/PROFILE/deps, programs from TARGET/PROFILE.
    let folder = test.parent().and_then(|deps| deps.parent()).expect("deps lies in a folder");
    let mint_program = folder.join(PROGRAM);
    let built = mint_program.is_file();
    assert!(built, "{} is missing: run `cargo build --bins` first", mint_program.display());
    NcclOptions {
        device: 0,
        library: Some(library),
        mint_program,
        mint_environment: vec![variable("NCCL_SOCKET_IFNAME", "lo")],
        mint_time_max: PATIENCE,
    }
}
