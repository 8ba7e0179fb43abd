//! Variables that NCCL reads: one that must not be set, and those that should be.

/// Makes all unique ids equal, so that generations look the same.
pub const COMM_ID: &str = "NCCL_COMM_ID";

/// The library to load, where it is not found by its name.
pub const LIBRARY: &str = "HOLDFAST_NCCL_LIBRARY";

/// A variable that is worth setting before the first call of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Name of the variable.
    pub name: &'static str,
    /// The value to set it to.
    pub value: &'static str,
    /// Why that value is recommended, in words.
    pub why: &'static str,
}

/// Recommended variables for programs whose communicators are to be aborted and
/// formed anew. Nothing sets them here: the environment of a running program is
/// not changed, and the user's own values stay.
pub const RECOMMENDED: &[Setting] = &[
    Setting {
        name: "NCCL_SOCKET_RETRY_SLEEP_MSEC",
        value: "20",
        why: "a joiner whose minter is gone sleeps between its tries, and an abort waits for that: \
              for 0.7 s at most instead of 3.4 s",
    },
    Setting {
        name: "NCCL_NVLS_ENABLE",
        value: "0",
        why: "NVIDIA's guide to restarts within a process (NVRx) asks for it",
    },
    Setting {
        name: "NCCL_LAUNCH_ORDER_IMPLICIT",
        value: "1",
        why: "several communicators of one device need one order of launches",
    },
    Setting {
        name: "TORCH_NCCL_RETHROW_CUDA_ERRORS",
        value: "0",
        why: "the same guide asks for it where PyTorch is used: an abort causes CUDA errors that must \
              not end the program",
    },
];

/// The value of [`COMM_ID`] in this process. NCCL sets it there itself if its
/// configuration file has it, in its first call.
pub(crate) fn comm_id() -> Option<String> {
    std::env::var_os(COMM_ID).map(|value| value.to_string_lossy().into_owned())
}
