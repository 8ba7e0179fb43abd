//! What a token lets its holder do, and the signed tokens that say it.
//!
//! Nodes know public keys; the private key stays with the issuer of tokens. A token is
//! of the cluster whose nodes know its key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::Name;

#[cfg(feature = "tokens")]
mod signed;

#[cfg(feature = "tokens")]
pub use signed::{
    Claims, KEYS_MAX, PublicKey, PublicKeys, PublicKeysError, SignedToken, SigningKey,
    SigningKeyError, VerifyError, is_signed, token_id,
};

/// What a caller is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A node. No token has this role: nodes have certificates, or a token of their own.
    Peer,
    /// Everything but what is between nodes.
    Admin,
    /// Sees all but values of keys; ends runs and processes; moves nodes and leadership.
    Operator,
    /// Sees and changes its own jobs.
    Job,
}

impl Role {
    /// All roles, [`Role::Peer`] among them, which no token has.
    pub const ALL: [Role; 4] = [Role::Peer, Role::Admin, Role::Operator, Role::Job];

    /// The role as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Peer => "peer",
            Role::Admin => "admin",
            Role::Operator => "operator",
            Role::Job => "job",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is no [`Role`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no role {0:?} in this version; a token has the role admin, operator or job")]
pub struct RoleError(String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let role = Role::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| RoleError(text.chars().take(64).collect()))
    }
}

/// Longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 128;

/// Most patterns of one token.
pub const PATTERNS_MAX: usize = 8;

/// Names of jobs: the characters of a [`Name`], and `*` for any characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobPattern(String);

/// Why a text is no [`JobPattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a pattern of jobs: use 1 to {PATTERN_BYTES_MAX} letters, digits, '.', '_' and '-', and '*' for any of them"
)]
pub struct JobPatternError(String);

impl JobPattern {
    /// The pattern as it is written, such as `llm-*`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a job is among them.
    pub fn matches(&self, job: &Name) -> bool {
        let (pattern, name) = (self.0.as_bytes(), job.as_str().as_bytes());
        // The latest star, and how much of the name it takes: never more than
        // pattern times name in steps.
        let (mut p, mut n, mut star) = (0, 0, None);
        while n < name.len() {
            if pattern.get(p) == Some(&b'*') {
                star = Some((p, n));
                p += 1;
            } else if pattern.get(p) == Some(&name[n]) {
                (p, n) = (p + 1, n + 1);
            } else if let Some((at, taken)) = star {
                star = Some((at, taken + 1));
                (p, n) = (at + 1, taken + 1);
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }
}

impl TryFrom<String> for JobPattern {
    type Error = JobPatternError;

    fn try_from(text: String) -> Result<Self, JobPatternError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-*".contains(&b);
        if (1..=PATTERN_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(JobPattern(text))
        } else {
            Err(JobPatternError(text.chars().take(PATTERN_BYTES_MAX).collect()))
        }
    }
}

impl FromStr for JobPattern {
    type Err = JobPatternError;

    fn from_str(text: &str) -> Result<Self, JobPatternError> {
        JobPattern::try_from(text.to_owned())
    }
}

impl From<JobPattern> for String {
    fn from(pattern: JobPattern) -> String {
        pattern.0
    }
}

impl fmt::Display for JobPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a token grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// What the holder may do.
    pub role: Role,
    /// Its jobs; empty unless the role is `job`.
    pub jobs: Vec<JobPattern>,
}

/// Why a role and patterns make no [`Grant`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// Nodes have no such token.
    #[error("no token has the role peer: nodes are known by their certificates (--peer-tls-cert)")]
    Peer,
    /// A job's token has to say which.
    #[error("a token of role job names its jobs, such as 'llm-*'")]
    NoJobs,
    /// It names too many.
    #[error("a token names at most {PATTERNS_MAX} patterns of jobs")]
    TooManyJobs,
    /// Its role is about all jobs.
    #[error("only a token of role job names jobs; the role {0} is about all of them")]
    JobsOfOtherRole(Role),
}

impl Grant {
    /// A role with its patterns, if they belong together.
    pub fn new(role: Role, jobs: Vec<JobPattern>) -> Result<Grant, GrantError> {
        match role {
            Role::Peer => Err(GrantError::Peer),
            Role::Job if jobs.is_empty() => Err(GrantError::NoJobs),
            Role::Job if jobs.len() > PATTERNS_MAX => Err(GrantError::TooManyJobs),
            Role::Admin | Role::Operator if !jobs.is_empty() => {
                Err(GrantError::JobsOfOtherRole(role))
            }
            Role::Job | Role::Admin | Role::Operator => Ok(Grant { role, jobs }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_what_its_stars_stand_for() {
        for (pattern, job, matches) in [
            ("*", "anything", true),
            ("llm-*", "llm-7b", true),
            ("llm-*", "llm-", true),
            ("llm-*", "llm", false),
            ("llm-*", "my-llm-7b", false),
            ("*-7b", "llm-7b", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("a**c", "ac", true),
            ("web", "web", true),
            ("web", "web2", false),
            ("*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            let pattern: JobPattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(&job.parse().unwrap()), matches, "{pattern} {job}");
        }
    }

    #[test]
    fn what_is_no_pattern_or_role_is_refused_by_name() {
        for bad in ["", "a b", "a?", "[a]", "ü", &"x".repeat(PATTERN_BYTES_MAX + 1)] {
            assert!(bad.parse::<JobPattern>().is_err(), "{bad:?}");
        }
        let error = "auditor".parse::<Role>().unwrap_err().to_string();
        assert!(error.contains("auditor") && error.contains("operator"), "{error}");
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
    }

    #[test]
    fn a_role_and_its_patterns_belong_together() {
        let llm: JobPattern = "llm-*".parse().unwrap();
        assert!(Grant::new(Role::Job, vec![llm.clone()]).is_ok());
        assert!(Grant::new(Role::Operator, Vec::new()).is_ok());
        for (role, jobs, error) in [
            (Role::Peer, vec![], GrantError::Peer),
            (Role::Job, vec![], GrantError::NoJobs),
            (Role::Job, vec![llm.clone(); PATTERNS_MAX + 1], GrantError::TooManyJobs),
            (Role::Admin, vec![llm], GrantError::JobsOfOtherRole(Role::Admin)),
        ] {
            assert_eq!(Grant::new(role, jobs), Err(error));
        }
    }
}
