//! The environment variables that programs of Holdfast read, and which of them
//! a mistyped name meant: it would be ignored silently.

use std::ffi::OsString;
use std::fmt;

/// What the names of all of them begin with.
pub const PREFIX: &str = "HOLDFAST_";

/// All that are read, by any program: each is handed on to others.
pub const KNOWN: [&str; 52] = [
    // Of several programs.
    "HOLDFAST_STORE",
    "HOLDFAST_TOKEN_FILE",
    "HOLDFAST_PEER_TOKEN_FILE",
    "HOLDFAST_TOKEN_KEYS",
    "HOLDFAST_TLS_CA",
    "HOLDFAST_TLS_CERT",
    "HOLDFAST_TLS_KEY",
    "HOLDFAST_JOB",
    "HOLDFAST_RUN",
    "HOLDFAST_LOG_FORMAT",
    // `holdfast`
    "HOLDFAST_CONFIG",
    "HOLDFAST_LOG",
    // `holdfast-store`
    "HOLDFAST_STORE_CONFIG",
    "HOLDFAST_STORE_TLS_CERT",
    "HOLDFAST_STORE_TLS_KEY",
    "HOLDFAST_STORE_TLS_CLIENT_CA",
    "HOLDFAST_PEER_TLS_CERT",
    "HOLDFAST_PEER_TLS_KEY",
    "HOLDFAST_PEER_TLS_CA",
    "HOLDFAST_NODE_ID",
    "HOLDFAST_DATA_DIR",
    "HOLDFAST_LISTEN",
    "HOLDFAST_ADVERTISE",
    "HOLDFAST_INITIAL_CLUSTER",
    "HOLDFAST_JOIN",
    "HOLDFAST_INSECURE",
    "HOLDFAST_ALLOW_HOST",
    "HOLDFAST_HEARTBEAT",
    "HOLDFAST_ELECTION_MIN",
    "HOLDFAST_ELECTION_MAX",
    "HOLDFAST_SNAPSHOT_ENTRIES",
    "HOLDFAST_ENTRIES_KEPT",
    "HOLDFAST_ENDED_RUNS_KEPT",
    "HOLDFAST_DISK_RESERVE",
    "HOLDFAST_SCRUB_EVERY",
    "HOLDFAST_MEMORY_RESERVE",
    "HOLDFAST_SHUTDOWN_GRACE",
    // `holdfast-agent`
    "HOLDFAST_AGENT_CONFIG",
    "HOLDFAST_TCPSTORE",
    "HOLDFAST_STORE_LOST_DEADLINE",
    "HOLDFAST_CONNECT_DEADLINE",
    "HOLDFAST_ATTEMPTS_KEPT",
    "HOLDFAST_SINGLE_ATTEMPT",
    "HOLDFAST_NO_KEEPER",
    "HOLDFAST_LEASE_TTL",
    "HOLDFAST_ALLOW_UID",
    "HOLDFAST_RUNTIME_DIR",
    // Programs under an agent.
    "HOLDFAST_CONTROL",
    "HOLDFAST_CAPTURE",
    "HOLDFAST_NAMESPACE",
    "HOLDFAST_AGENT",
    "HOLDFAST_FENCE",
];

/// What an agent has kept of the variables that it replaced.
const KEPT: &str = "HOLDFAST_ORIG_";

/// Words shorter than this have one letter wrong at most, others two.
const LONG: usize = 6;

/// Longest name that is known, at least.
const LONGEST: usize = 32;

/// A variable that no program reads, and the one that was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistyped {
    /// Name that was set.
    pub name: String,
    /// What it should be.
    pub meant: &'static str,
}

impl fmt::Display for Mistyped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mistyped { name, meant } = self;
        write!(
            f,
            "the environment variable {name} is ignored: no program of Holdfast reads it; did you mean {meant}?"
        )
    }
}

/// Those of these variables whose names are almost ones that are read. What is not near to any
/// belongs to another program, and an empty one counts as not set.
pub fn mistyped(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<Mistyped> {
    let set = variables.into_iter().filter(|(_, value)| !value.is_empty());
    let names = set.filter_map(|(name, _)| name.into_string().ok());
    let mut found: Vec<Mistyped> =
        names.filter_map(|name| nearest(&name).map(|meant| Mistyped { name, meant })).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

fn nearest(name: &str) -> Option<&'static str> {
    // No name far shorter or longer is near.
    if KNOWN.contains(&name) || name.starts_with(KEPT) || name.len() > 2 * LONGEST {
        return None;
    }
    let upper = name.to_uppercase().replace('-', "_");
    let most = if upper.len() < PREFIX.len() + LONG { 1 } else { 2 };
    let distance = |known: &&'static str| strsim::osa_distance(&upper, known);
    // As many letters as they differ in length are wrong at least.
    let may_be = |known: &&'static str| known.len().abs_diff(upper.chars().count()) <= most;
    let near = KNOWN.iter().copied().filter(may_be).min_by_key(distance);
    let near = near.filter(|near| distance(near) <= most);
    let begins = || {
        let whole = format!("{upper}_");
        let begun = upper.len() > PREFIX.len();
        KNOWN.iter().copied().find(|known| begun && known.starts_with(&whole))
    };
    near.or_else(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(name: &str) -> Option<&'static str> {
        let found = mistyped([(name.into(), "x".into())]);
        found.first().map(|slip| slip.meant)
    }

    #[test]
    fn each_name_with_a_letter_wrong_missing_or_exchanged_is_found() {
        for known in KNOWN {
            assert_eq!(meant(known), None);
            for at in 1..known.len() {
                let (head, tail) = known.split_at(at);
                let (next, behind) = tail.split_at(1);
                let last = &head[at - 1..];
                let slips = [
                    format!("{head}Q{behind}"),
                    format!("{head}{behind}"),
                    format!("{}{next}{last}{behind}", &head[..at - 1]),
                ];
                for slip in slips.iter().filter(|slip| !KNOWN.contains(&slip.as_str())) {
                    assert!(meant(slip).is_some(), "{slip}");
                }
            }
        }
        for (slip, right) in [
            ("HOLDFAST_STROE", "HOLDFAST_STORE"),
            ("HOLDFATS_STORE", "HOLDFAST_STORE"),
            ("holdfast_job", "HOLDFAST_JOB"),
            ("HOLDFAST_TOKENFILE", "HOLDFAST_TOKEN_FILE"),
            ("HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE"),
            ("HOLDFAST_CONTORL", "HOLDFAST_CONTROL"),
        ] {
            assert_eq!(meant(slip), Some(right), "{slip}");
        }
    }

    #[test]
    fn what_is_somebody_else_s_is_left_alone() {
        for name in [
            "PATH",
            "HOLD_STORE",
            "STORE",
            "HOLDFAST",
            "HOLDFAST_",
            "HOLDFAST_ORIG_MASTER_ADDR",
            // Of Kubernetes, for a service named holdfast.
            "HOLDFAST_SERVICE_HOST",
            "HOLDFAST_SERVICE_PORT",
            "HOLDFAST_PORT",
            "HOLDFAST_PORT_21001_TCP",
            "HOLDFAST_PORT_21001_TCP_ADDR",
            // Of the tests and of `make`.
            "HOLDFAST_PYTHON",
            "HOLDFAST_PYTHON_OLDER",
            "HOLDFAST_WHEEL_PYTHON",
            "HOLDFAST_TORCH",
            "HOLDFAST_HOSTS",
            "HOLDFAST_TEST_VICTIM",
            "HOLDFAST_MARK",
        ] {
            assert_eq!(meant(name), None, "{name}");
        }
        assert_eq!(mistyped([("HOLDFAST_STROE".into(), "".into())]), []);
    }
}
