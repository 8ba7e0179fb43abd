//! Versions of NCCL, and what each brought.

use std::fmt;

/// The oldest version that is taken. From it on kernels look at the abort flag
/// a hundred times as often, and its progress thread does not hang in an abort.
pub const MINIMUM: Version = Version { major: 2, minor: 26, patch: 2 };

/// The version from which on ranks can be taken out of a communicator.
const SHRINK: Version = Version { major: 2, minor: 27, patch: 3 };
/// The version from which on a communicator can be stopped and kept.
pub(crate) const REVOKE: Version = Version { major: 2, minor: 28, patch: 7 };
/// The version from which on ranks can be added to a communicator.
const GROW: Version = Version { major: 2, minor: 29, patch: 2 };
/// The version from which on several ids share the work of forming.
const SCALABLE: Version = Version { major: 2, minor: 23, patch: 4 };

/// A version of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Major version: the 2 of 2.28.9.
    pub major: u32,
    /// Minor version: the 28 of 2.28.9.
    pub minor: u32,
    /// Patch level: the 9 of 2.28.9.
    pub patch: u32,
}

impl Version {
    /// Reads what `ncclGetVersion` returns: 2.8.4 is 2804, 2.28.9 is 22809.
    pub fn from_code(code: u32) -> Version {
        let scale = if code < 10_000 { 1_000 } else { 10_000 };
        Version { major: code / scale, minor: code % scale / 100, patch: code % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Functions of a library beyond those of every accepted version. Each flag means
/// that the function is there and that the version supports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// `ncclCommShrink`, from 2.27.3 on.
    pub shrink: bool,
    /// `ncclCommRevoke`, from 2.28.7 on.
    pub revoke: bool,
    /// `ncclCommGrow`, from 2.29.2 on.
    pub grow: bool,
    /// `ncclCommInitRankScalable`, from 2.23.4 on.
    pub scalable: bool,
}

impl Capabilities {
    /// Capabilities of a version whose library has all the functions.
    pub(crate) fn of(version: Version) -> Capabilities {
        Capabilities {
            shrink: version >= SHRINK,
            revoke: version >= REVOKE,
            grow: version >= GROW,
            scalable: version >= SCALABLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_both_eras_are_read() {
        for (code, text) in [
            (2_804, "2.8.4"),
            (21_804, "2.18.4"),
            (22_602, "2.26.2"),
            (22_809, "2.28.9"),
            (23_203, "2.32.3"),
            (30_001, "3.0.1"),
        ] {
            assert_eq!(Version::from_code(code).to_string(), text);
        }
    }

    #[test]
    fn each_capability_begins_with_its_version() {
        let of = |code| {
            let Capabilities { shrink, revoke, grow, scalable } =
                Capabilities::of(Version::from_code(code));
            [scalable, shrink, revoke, grow]
        };
        assert_eq!(of(22_602), [true, false, false, false]);
        assert_eq!(of(22_702), [true, false, false, false]);
        assert_eq!(of(22_703), [true, true, false, false]);
        assert_eq!(of(22_807), [true, true, true, false]);
        assert_eq!(of(22_902), [true; 4]);
    }
}
