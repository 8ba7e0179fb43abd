//! NCCL's result codes, as the integers that they are.

use std::fmt;

/// `ncclSuccess`: the call has succeeded.
pub const SUCCESS: ResultCode = ResultCode(0);
/// `ncclUnhandledCudaError`: no driver, no GPU, or CUDA failed.
pub const UNHANDLED_CUDA_ERROR: ResultCode = ResultCode(1);
/// `ncclSystemError`: a call of the operating system failed.
pub const SYSTEM_ERROR: ResultCode = ResultCode(2);
/// `ncclInternalError`: a check inside NCCL failed.
pub const INTERNAL_ERROR: ResultCode = ResultCode(3);
/// `ncclInvalidArgument`: NCCL does not take the value of an argument.
pub const INVALID_ARGUMENT: ResultCode = ResultCode(4);
/// `ncclInvalidUsage`: wrong order of calls, ranks of different versions, no
/// interface.
pub const INVALID_USAGE: ResultCode = ResultCode(5);
/// `ncclRemoteError`: a neighbour closed its connection. Other ranks get no error.
pub const REMOTE_ERROR: ResultCode = ResultCode(6);
/// `ncclInProgress`: the call goes on in a communicator that does not block.
pub const IN_PROGRESS: ResultCode = ResultCode(7);

/// Result of a call of NCCL. Codes without a name here are as valid: newer
/// libraries have more of them, and the meaning of 8 depends on the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultCode(pub i32);

impl ResultCode {
    /// Whether the call was accepted: it has ended well, or goes on.
    pub fn is_accepted(self) -> bool {
        self == SUCCESS || self == IN_PROGRESS
    }

    /// Its name in NCCL's header; `None` for one that this crate does not know.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            SUCCESS => "ncclSuccess",
            UNHANDLED_CUDA_ERROR => "ncclUnhandledCudaError",
            SYSTEM_ERROR => "ncclSystemError",
            INTERNAL_ERROR => "ncclInternalError",
            INVALID_ARGUMENT => "ncclInvalidArgument",
            INVALID_USAGE => "ncclInvalidUsage",
            REMOTE_ERROR => "ncclRemoteError",
            IN_PROGRESS => "ncclInProgress",
            _ => return None,
        })
    }
}

impl fmt::Display for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "result code {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_without_a_name_is_a_number() {
        assert_eq!(ResultCode(6).to_string(), "ncclRemoteError (6)");
        assert_eq!(ResultCode(8).to_string(), "result code 8");
        assert_eq!(ResultCode(-1).name(), None);
        assert!(IN_PROGRESS.is_accepted() && SUCCESS.is_accepted());
        assert!(!ResultCode(8).is_accepted());
    }
}
