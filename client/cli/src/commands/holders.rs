//! Members that have not released a generation, and what ends that, in words.

use std::collections::BTreeMap;

use holdfast_api::{
    Blob, HeldInfo, Incarnation, LogTime, Name, Phase, ProcessId, ProcessState, RoundInfo, Rule,
    Terms, Unreleased,
};
use serde::Serialize;

use super::waits_for::{after, numbers};
use crate::log_time::{LogNow, span};
use crate::output::printable;

/// Holders of one host in the same state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Holders {
    /// Null where it is not known.
    pub(super) host: Option<String>,
    /// Their process numbers, in ascending order.
    pub(super) processes: Vec<ProcessId>,
    /// The incarnations that hold.
    incarnations: Vec<Incarnation>,
    /// How they ended, in words; null while they are alive.
    pub(super) ended: Option<String>,
    /// For how long the first of them has been in that state; null where it is not known.
    for_ms: Option<u64>,
    /// In how long they count as stopped; null while an agent may report it.
    free_in_ms: Option<u64>,
    /// In how long they are declared dead; null unless they are to stop.
    stop_in_ms: Option<u64>,
}

/// Those that are named; first those that an operator must vouch for.
pub(super) fn of(info: &HeldInfo, now: LogNow) -> Vec<Holders> {
    type Key = (bool, Option<LogTime>, String, Option<String>);
    let stop_at = info.looks_again_at_ms.filter(|_| info.phase == Phase::Revoked);
    let mut found: BTreeMap<Key, (Holders, LogTime)> = BTreeMap::new();
    for Unreleased { process, incarnation, ended, free_at_ms } in &info.unreleased {
        let cause = match &process.state {
            ProcessState::Ended { cause, .. } => Some(cause.to_string()),
            ProcessState::NeverJoined => Some("cause unknown".to_owned()),
            ProcessState::Alive { .. } => None,
        };
        let key = (!*ended, *free_at_ms, process.host.clone(), cause.clone());
        let (holders, since) = found.entry(key).or_insert_with(|| {
            let holders = Holders {
                host: Some(process.host.clone()).filter(|host| !host.is_empty()),
                processes: Vec::new(),
                incarnations: Vec::new(),
                ended: cause,
                for_ms: None,
                free_in_ms: free_at_ms.map(|at| now.until(at)),
                stop_in_ms: stop_at.filter(|_| !*ended).map(|at| now.until(at)),
            };
            (holders, process.since_ms)
        });
        holders.processes.push(process.process);
        holders.incarnations.push(*incarnation);
        *since = (*since).min(process.since_ms);
    }
    let aged = |(holders, since): (Holders, LogTime)| Holders {
        for_ms: Some(now.since(since)).filter(|_| since > 0),
        ..holders
    };
    found.into_values().map(aged).collect()
}

/// Those that keep the next generation from closing, and that are not named.
pub(super) fn unnamed(info: &HeldInfo) -> u32 {
    info.unreleased_count.saturating_sub(info.unreleased.len() as u32)
}

impl Holders {
    /// `host-1: process 3 ended 4s ago: …`.
    pub(super) fn words(&self, job: &Name, group: &Blob) -> String {
        let who = match &self.host {
            Some(host) => {
                format!("{}: {}", printable(host), numbers(self.processes.iter().copied()))
            }
            None => numbers(self.processes.iter().copied()),
        };
        let is_one = self.processes.len() == 1;
        let (has, counts) = if is_one { ("has", "counts") } else { ("have", "count") };
        let Some(cause) = &self.ended else {
            let long = self.for_ms.map(|ms| format!(" for {}", span(ms))).unwrap_or_default();
            return match self.stop_in_ms {
                Some(ms) => format!(
                    "{who} alive{long}, {has} not stopped: {} declared dead, and ended by the agent",
                    after(ms)
                ),
                None => format!("{who} alive{long}, {has} neither released it nor arrived again"),
            };
        };
        let ago = self.for_ms.map(|ms| format!(" {} ago", span(ms))).unwrap_or_default();
        let ended = format!("{who} ended{ago} ({}), exit unseen", printable(cause));
        match (self.free_in_ms, self.processes.as_slice()) {
            (Some(ms), _) => format!(
                "{ended}, and nobody can report it any more: {} {counts} as stopped",
                after(ms)
            ),
            (None, [process]) => format!(
                "{ended}: the agent reports it, or `{}` vouches for it",
                line(job, &format!("comm excuse {} {process}", word(group)))
            ),
            (None, _) => format!(
                "{ended}: the agent reports it, or `{}` vouches for each",
                line(job, &format!("comm excuse {} PROCESS", word(group)))
            ),
        }
    }
}

/// The command line to type.
pub(super) fn line(job: &Name, command: &str) -> String {
    format!("holdfast --job {job} {command}")
}

/// A name quoted for a shell.
pub(super) fn word(name: &Blob) -> String {
    let escaped = name.escaped();
    let escaped = match escaped.strip_prefix('-') {
        Some(rest) => format!("\\x2d{rest}"),
        None => escaped,
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    match !escaped.is_empty() && escaped.chars().all(is_plain) {
        true => escaped,
        false => format!("'{}'", escaped.replace('\'', r"'\''")),
    }
}

/// Whether a round that gathers is the next generation of a held one.
pub(super) fn is_next(round: &RoundInfo, held: &HeldInfo) -> bool {
    let is_quorum = |terms: &Terms| matches!(terms.rule, Rule::Quorum { .. });
    round.round == held.round
        && round.terms.hold.is_some()
        && round.terms.among == held.terms.among
        && round.terms.conclusion == held.terms.conclusion
        && is_quorum(&round.terms) == is_quorum(&held.terms)
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_api::{Cause, Conclusion, Hold, Members, Missing, Revocation, RevokeCause, Role};

    use super::*;

    /// A ready generation of `world`, formed at 2 s of log time, that all of
    /// these processes hold.
    pub(crate) fn held(members: &[ProcessId]) -> HeldInfo {
        let incarnation = |process: &ProcessId| u64::from(*process) + 1;
        let members: Members = members.iter().map(|p| (*p, incarnation(p))).collect();
        let count = members.len() as u32;
        let hold = Hold { spec: "gloo".into(), ..Hold::default() };
        HeldInfo {
            round: "world".into(),
            terms: Terms { conclusion: Conclusion::Form, hold: Some(hold), ..Terms::default() },
            generation: 4,
            phase: Phase::Ready,
            formed: 18,
            formed_at_ms: 2_000,
            count,
            unreleased: members.iter().map(|(p, _)| alive(p)).collect(),
            members,
            ranks: None,
            revoked: None,
            holding: count,
            unreleased_count: count,
            waiting: 0,
            newcomers: 0,
            looks_again_at_ms: None,
        }
    }

    /// The same, revoked at 31 s: a holder that is alive has to stop until 61 s.
    pub(crate) fn revoked(info: HeldInfo, unreleased: Vec<Unreleased>) -> HeldInfo {
        let cause = RevokeCause::Ended { process: 1, incarnation: 2, cause: Cause::Gone };
        let holding = unreleased.len() as u32;
        HeldInfo {
            phase: Phase::Revoked,
            revoked: Some(Revocation { at: 20, at_ms: 31_000, cause }),
            holding,
            unreleased_count: holding,
            unreleased,
            looks_again_at_ms: Some(61_000),
            ..info
        }
    }

    fn unreleased(process: ProcessId, state: ProcessState, ended: bool) -> Unreleased {
        let host = format!("host-{}", process / 8);
        Unreleased {
            process: Missing { process, state, since_ms: if ended { 40_000 } else { 1_000 }, host },
            incarnation: u64::from(process) + 1,
            ended,
            free_at_ms: None,
        }
    }

    /// Alive since 1 s.
    pub(crate) fn alive(process: ProcessId) -> Unreleased {
        let incarnation = u64::from(process) + 1;
        unreleased(process, ProcessState::Alive { incarnation, role: Role::Active }, false)
    }

    /// Ended at 40 s, and its exit was not seen.
    pub(crate) fn unseen(process: ProcessId) -> Unreleased {
        let incarnation = u64::from(process) + 1;
        unreleased(process, ProcessState::Ended { incarnation, cause: Cause::Gone }, true)
    }

    fn told(info: &HeldInfo) -> Vec<String> {
        let job = "train".parse().unwrap();
        let holders = of(info, LogNow::exactly(43_000));
        holders.iter().map(|one| one.words(&job, &info.round)).collect()
    }

    #[test]
    fn whoever_somebody_must_speak_for_stands_first_with_the_line_to_type() {
        let freed = |process| Unreleased { free_at_ms: Some(50_000), ..unseen(process) };
        let all = vec![alive(0), alive(1), unseen(2), unseen(8), unseen(9), freed(16), freed(17)];
        assert_eq!(
            told(&revoked(held(&[0, 1, 2, 8, 9, 16, 17]), all)),
            [
                "host-0: process 2 ended 3s ago (gone), exit unseen: the agent reports it, or `holdfast --job train comm excuse world 2` vouches for it",
                "host-1: processes 8-9 ended 3s ago (gone), exit unseen: the agent reports it, or `holdfast --job train comm excuse world PROCESS` vouches for each",
                "host-2: processes 16-17 ended 3s ago (gone), exit unseen, and nobody can report it any more: in 7s count as stopped",
                "host-0: processes 0-1 alive for 42s, have not stopped: in 18s declared dead, and ended by the agent",
            ]
        );
        assert_eq!(
            told(&held(&[3])),
            ["host-0: process 3 alive for 42s, has neither released it nor arrived again"]
        );
    }

    #[test]
    fn of_an_older_incarnation_only_is_said_what_is_known() {
        let cause = Cause::Superseded { by: 9 };
        let mut older = unseen(2);
        let state = ProcessState::Ended { incarnation: 3, cause };
        older.process = Missing { process: 2, state, since_ms: 0, host: String::new() };
        let told = told(&revoked(held(&[2]), vec![older]));
        assert!(told[0].starts_with("process 2 ended ("), "{told:?}");
        assert!(told[0].contains("exit unseen: the agent reports it"), "{told:?}");
    }

    #[test]
    fn a_line_to_type_survives_the_shell() {
        for (name, wanted) in [
            ("world/dp-0", "world/dp-0"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("-x", r"'\x2dx'"),
            ("$(reboot)\n", r"'$(reboot)\x0a'"),
            ("", "''"),
        ] {
            assert_eq!(word(&name.into()), wanted, "{name:?}");
        }
    }
}
