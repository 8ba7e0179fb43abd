//! Names of jobs and runs, and the scope that keys belong to.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// A store node's id, chosen by the operator, never 0, never used again after
/// the node was removed.
pub type NodeId = u64;

/// The name of a job or a run: 1 to 128 of `A-Z a-z 0-9 . _ -`, and not
/// starting with a dot or a dash (it appears in paths and command lines).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[cfg_attr(
    feature = "openapi",
    derive(utoipa::ToSchema),
    schema(value_type = String, pattern = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")
)]
#[serde(try_from = "String")]
pub struct Name(
    // Shared, not copied: every change of a key carries two names.
    Arc<str>,
);

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// What an agent's `--run` says for a new run, and for the one in which the hosts
/// of a job meet. Not for use as the name of a run.
pub const RUN_NEW: &str = "new";
/// The value for the run in which the hosts of a job meet; see [`RUN_NEW`].
pub const RUN_AUTO: &str = "auto";

/// Why a text is not a [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a name: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', not starting with '.' or '-'"
)]
pub struct NameError(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let good = !text.is_empty()
            && text.len() <= NAME_BYTES_MAX
            && text.bytes().all(allowed)
            && !text.starts_with(['.', '-']);
        if good {
            Ok(Name(text.into()))
        } else {
            Err(NameError(text.chars().take(NAME_BYTES_MAX).collect()))
        }
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Name::try_from(text.to_owned())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.as_str().to_owned()
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The scope of keys: a run of a job.
///
/// Without a run it means the job's open run. A write to a job that never had a
/// run opens the named one, or one called `default`; a write never opens a run
/// beside existing ones, since that would fence their writers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Scope {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    pub job: Name,
    /// The run; the job's open run when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Name>,
}

/// The job or run that is used where none is named: `default`.
pub fn default_name() -> Name {
    Name("default".into())
}

impl Default for Scope {
    fn default() -> Self {
        Scope { job: default_name(), run: None }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.run {
            Some(run) => write!(f, "{}/{run}", self.job),
            None => write!(f, "{}", self.job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_wherever_they_come_from() {
        for good in ["a", "train-7b.2", "A_1", &"x".repeat(128)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", ".a", "-a", "a/b", "ä", "a b", &"x".repeat(129)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
            assert!(serde_json::from_value::<Name>(bad.into()).is_err(), "{bad:?}");
        }
    }
}
