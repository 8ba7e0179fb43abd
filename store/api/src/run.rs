//! Runs: how one is chosen, which agents hold it, and how it ended.

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// Most leases of a run that are counted for an answer.
pub const HOLDERS_COUNTED_MAX: usize = 1_000;

/// Hosts that a refusal names.
pub const HOLDERS_NAMED_MAX: usize = 4;

/// Which run of a job to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunChoice {
    /// The job's open run; a new one, under the job's next number, if none is
    /// open or the open one is ending. So hosts that start together meet in one
    /// run, and a host whose agent was lost comes back into its own.
    Auto,
    /// As [`RunChoice::Auto`], but a new one also where all agents of the open
    /// one were lost: hosts that start together meet, and a launch after one of
    /// which nothing is left finds none of its keys.
    Held,
    /// A new one, under the job's next number.
    New,
    /// The one of this name: joined if it is open, opened if it never was.
    Named(Name),
}

/// The agents that hold a run that another one would end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunHeld {
    /// Name of the job.
    pub job: Name,
    /// Name of the run that is open now.
    pub run: Name,
    /// For how long it has been open, in log time.
    pub open_ms: u64,
    /// Leases that are held in it, counted to [`HOLDERS_COUNTED_MAX`]: one for each agent.
    pub leases: u64,
    /// Some of their hosts.
    pub hosts: Vec<String>,
    /// How long ago one of them was renewed last, in log time.
    pub heard_ms: u64,
    /// Processes of the library that are alive in it.
    pub processes: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunOverCause {
    /// Its last agent left for good.
    LastAgentLeft {
        /// Host name that the agent gave.
        host: String,
    },
    /// Another run was opened.
    Followed {
        /// Name of that run.
        by: Name,
    },
    /// It was ended by itself.
    Ended,
}

impl std::fmt::Display for RunHeld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RunHeld { run, open_ms, leases, hosts, .. } = self;
        let agents = match *leases {
            1 => "1 agent holds it".to_owned(),
            n if n >= HOLDERS_COUNTED_MAX as u64 => format!("{n} agents or more hold it"),
            n => format!("{n} agents hold it"),
        };
        let more = if (hosts.len() as u64) < *leases { ", …" } else { "" };
        // Their agents chose these texts.
        let hosts: Vec<String> = hosts.iter().map(|host| host.escape_debug().to_string()).collect();
        let hosts = hosts.join(", ");
        write!(
            f,
            "its run {run} has been open for {}, and {agents} ({hosts}{more})",
            lasting(*open_ms)
        )
    }
}

/// A duration in words, coarse.
pub fn lasting(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

impl RunOverCause {
    /// In words, with how long ago that was, if that is known.
    pub fn since(&self, ms_ago: Option<u64>) -> String {
        let ago = ms_ago.map(|ms| format!(" {} ago", lasting(ms))).unwrap_or_default();
        match self {
            RunOverCause::LastAgentLeft { host } => {
                format!("its last agent left{ago} (host {host})")
            }
            RunOverCause::Followed { by } => format!("run {by} took its place{ago}"),
            RunOverCause::Ended => format!("it was ended{ago}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_of_time_is_as_coarse_as_people_say_it() {
        for (ms, words) in [
            (0, "0 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (7_200_000, "2 h"),
            (200_000_000, "2 days"),
            (u64::MAX, "213503982334 days"),
        ] {
            assert_eq!(lasting(ms), words);
        }
    }

    #[test]
    fn of_many_holders_some_are_named() {
        let held = |leases, hosts: &[&str]| RunHeld {
            job: "j".parse().unwrap(),
            run: "r1".parse().unwrap(),
            open_ms: 180_000,
            leases,
            hosts: hosts.iter().map(ToString::to_string).collect(),
            heard_ms: 0,
            processes: 0,
        };
        let text = held(1, &["a"]).to_string();
        assert_eq!(text, "its run r1 has been open for 3 min, and 1 agent holds it (a)");
        assert!(held(3, &["a", "b"]).to_string().ends_with("3 agents hold it (a, b, …)"));
        assert!(held(1_000, &["a"]).to_string().contains("1000 agents or more hold it"));
    }
}
