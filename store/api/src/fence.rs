//! Tokens that prove which incarnation of a process asks for something.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::{Name, Scope};
use crate::process::{Incarnation, ProcessId, ProcessInfo};
use crate::round::Generation;

/// Proof of a caller's identity, for a service that guards a resource. Read and
/// written as `JOB:RUN:PROCESS:INCARNATION:GENERATION`.
///
/// Among the tokens of one process, one with a larger incarnation, or with the same
/// and a larger generation, makes all smaller ones void. Incarnations grow with
/// every incarnation of any process of the job and are never used again.
/// The cluster vouches for the incarnation alone: the generation is what its holder claims,
/// and orders the tokens of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fence {
    /// Name of the job.
    pub job: Name,
    /// Name of the run, unique within its job.
    pub run: Name,
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// The latest generation in whose name it acts; 0 = none yet.
    pub generation: Generation,
}

/// Why a text is no [`Fence`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a fence token: write JOB:RUN:PROCESS:INCARNATION:GENERATION, as `fence()` gives it"
)]
pub struct FenceError(String);

/// Longest part of a text that an error repeats.
const SHOWN_CHARS_MAX: usize = 128;

impl Fence {
    /// Job and run of the process.
    pub fn scope(&self) -> Scope {
        Scope { job: self.job.clone(), run: Some(self.run.clone()) }
    }

    /// Why the token is void, going by what the cluster knows of its process;
    /// none if that incarnation is alive.
    pub fn void(&self, found: Option<&ProcessInfo>) -> Option<String> {
        let found = found.filter(|found| found.process == self.process);
        match found {
            None => Some("no such process ever joined".to_owned()),
            Some(found) if found.incarnation > self.incarnation => {
                Some(format!("incarnation {} has taken its place", found.incarnation))
            }
            Some(found) if found.incarnation < self.incarnation => {
                Some(format!("its latest incarnation is {}", found.incarnation))
            }
            Some(found) => {
                found.end.as_ref().map(|end| format!("{} (revision {})", end.cause, end.at))
            }
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fence { job, run, process, incarnation, generation } = self;
        write!(f, "{job}:{run}:{process}:{incarnation}:{generation}")
    }
}

impl FromStr for Fence {
    type Err = FenceError;

    fn from_str(text: &str) -> Result<Fence, FenceError> {
        let read = || {
            let mut parts = text.split(':');
            let fence = Fence {
                job: parts.next()?.parse().ok()?,
                run: parts.next()?.parse().ok()?,
                process: parts.next()?.parse().ok()?,
                incarnation: parts.next()?.parse().ok()?,
                generation: parts.next()?.parse().ok()?,
            };
            // There is one spelling only: texts that differ are different tokens.
            (parts.next().is_none() && fence.to_string() == text).then_some(fence)
        };
        read().ok_or_else(|| FenceError(text.chars().take(SHOWN_CHARS_MAX).collect()))
    }
}

impl TryFrom<String> for Fence {
    type Error = FenceError;

    fn try_from(text: String) -> Result<Fence, FenceError> {
        text.parse()
    }
}

impl From<Fence> for String {
    fn from(fence: Fence) -> String {
        fence.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Cause, EndInfo, Labels, Role};

    #[test]
    fn a_token_is_read_as_it_is_written_and_in_no_other_way() {
        let text = "llm.7b:r3:4:41:12";
        let fence: Fence = text.parse().unwrap();
        assert_eq!((fence.process, fence.incarnation, fence.generation), (4, 41, 12));
        assert_eq!(fence.to_string(), text);
        for bad in [
            "",
            "llm:r3:4:41",
            "llm:r3:4:41:12:",
            "llm:r3:4:41:12:1",
            "llm:r3:+4:41:12",
            "llm:r3:04:41:12",
            "llm::4:41:12",
            "llm:r3:-1:41:12",
            "llm:r3:4:99999999999999999999:12",
            "../x:r3:4:41:12",
        ] {
            assert!(bad.parse::<Fence>().is_err(), "{bad}");
        }
        let long = "x".repeat(10_000).parse::<Fence>().unwrap_err();
        assert!(long.to_string().len() < 300);
    }

    #[test]
    fn only_the_incarnation_that_is_alive_has_a_token_that_holds() {
        let fence: Fence = "llm:r3:4:41:12".parse().unwrap();
        let found = |process, incarnation, end: Option<Cause>| ProcessInfo {
            process,
            incarnation,
            role: Role::Active,
            host: "a".to_owned(),
            lease: 1.into(),
            since: 1,
            since_ms: 1,
            end: end.map(|cause| EndInfo { at: 77, at_ms: 1, cause }),
            member_since: None,
            policy: Default::default(),
            rank: None,
            waits_in: Vec::new(),
            labels: Labels::new(),
        };
        assert_eq!(fence.void(Some(&found(4, 41, None))), None);
        for (found, why) in [
            (None, "ever joined"),
            (Some(found(5, 41, None)), "ever joined"),
            (Some(found(4, 42, None)), "incarnation 42"),
            (Some(found(4, 40, None)), "latest incarnation is 40"),
            (Some(found(4, 41, Some(Cause::LeaseExpired))), "revision 77"),
        ] {
            let void = fence.void(found.as_ref()).unwrap();
            assert!(void.contains(why), "{void}");
        }
    }
}
