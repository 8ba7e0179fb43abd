//! What a call waits for, in words, and when that is logged: soon, and then after
//! growing pauses. Pure: the store is asked by [`crate::process`] and
//! [`crate::host`].

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_api::{
    Blob, LogTime, Missing, ProcessId, ProcessInfo, ProcessState, Role, RoundInfo, Rule, Scope,
    Terms, WaitsFor,
};
use tokio::time::Instant;

use crate::verbs::ADVANCE_ROUND;

/// A call that waits for longer logs what it waits for.
pub(crate) const FIRST_NOTICE: Duration = Duration::from_millis(900);
/// Longest time that it takes to find that out.
pub(crate) const LOOK_TIME_MAX: Duration = Duration::from_secs(1);
/// Processes that are read to say which ones were there.
pub(crate) const PROCESSES_READ_MAX: u64 = 64;

/// Pauses from one notice to the next.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
];
/// Processes of a job that ask the store in the same second, at most, however
/// many wait.
const LOOKS_PER_SECOND_MAX: u32 = 64;
/// Groups of processes that are named.
const GROUPS_MAX: usize = 4;

/// The pause after the notice of this number, counted from 1.
pub(crate) fn pause(said: usize) -> Duration {
    PAUSES[said.clamp(1, PAUSES.len()) - 1]
}

/// When this process first logs what a call waits for. High process numbers log
/// later: with 16 384 waiting, not all have to.
pub(crate) fn first_notice(process: ProcessId) -> Duration {
    FIRST_NOTICE + Duration::from_secs(u64::from(process / LOOKS_PER_SECOND_MAX))
}

/// When a lasting state is logged, and logged again.
#[derive(Debug)]
pub(crate) struct Pauses {
    said: usize,
    next: Instant,
}

impl Pauses {
    /// For the first time then.
    pub fn begin(first: Instant) -> Pauses {
        Pauses { said: 0, next: first }
    }

    /// When it is logged next.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Whether it is time to say it.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.said += 1;
            self.next = now + pause(self.said);
        }
        is_due
    }
}

/// Keeps a loop whose every call waits for a while from saying so every time.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    said: usize,
    quiet_until: Option<Instant>,
}

impl Notices {
    /// Whether another call may say for the first time that it waits.
    pub fn may_begin(&mut self, now: Instant) -> bool {
        if self.quiet_until.is_some_and(|until| now < until) {
            return false;
        }
        let last = pause(PAUSES.len());
        if self.quiet_until.is_some_and(|until| now > until + last) {
            self.said = 0;
        }
        self.said += 1;
        self.quiet_until = Some(now + pause(self.said));
        true
    }
}

/// Whether this is the open round that a call with these terms waits in.
pub(crate) fn is_of(open: &RoundInfo, round: &Blob, terms: &Terms) -> bool {
    let is_quorum = |terms: &Terms| matches!(terms.rule, Rule::Quorum { .. });
    open.round == *round
        && open.terms.among == terms.among
        && open.terms.conclusion == terms.conclusion
        && is_quorum(&open.terms) == is_quorum(terms)
        && open.terms.hold.is_some() == terms.hold.is_some()
}

/// State of a round that waits.
pub(crate) struct Look<'a> {
    pub round: &'a RoundInfo,
    /// The first processes of the run.
    pub processes: &'a [ProcessInfo],
    /// Log time of the look, in milliseconds.
    pub now: LogTime,
}

/// A deadline further away than this year is none.
const NEVER_MS: u64 = 365 * 86_400_000;

impl Look<'_> {
    /// What the round waits for, and the remedy.
    pub fn words(&self) -> String {
        let RoundInfo { arrived_count, missing_count, missing, terms, waits_for, .. } = self.round;
        let has_arrived = match arrived_count {
            1 => "1 has arrived".to_owned(),
            many => format!("{many} have arrived"),
        };
        let mut words = has_arrived;
        if *missing_count > 0 {
            let states = missing.iter().map(|one| (one.process, self.state(one)));
            words += &format!("; it waits for {}", grouped(states, *missing_count as usize));
        }
        if let Some(needs) = self.needs(waits_for) {
            words += &format!("; {needs}");
        }
        let deadline = self.round.deadline_at_ms.zip(terms.deadline);
        if let Some((at, deadline)) =
            deadline.filter(|(at, _)| *at < self.now.saturating_add(NEVER_MS))
        {
            let then = match deadline.then {
                holdfast_api::AtDeadline::Evict => "declares dead who is missing",
                holdfast_api::AtDeadline::Fail => "fails",
            };
            words += &format!("; in {} it {then}", self.until(at));
        }
        words
    }

    /// What it needs besides the live processes that have not arrived.
    fn needs(&self, waits_for: &WaitsFor) -> Option<String> {
        let needs = match *waits_for {
            WaitsFor::Arrivals { .. } if self.round.missing_count > 0 => return None,
            WaitsFor::Arrivals { .. } => self.nobody_alive("an active process has to come"),
            WaitsFor::World { members, world, at_ms, enough } => {
                let of = if members == 1 { "member" } else { "members" };
                let so_far = format!("the world is {world}, and there would be {members} {of}");
                let then = match enough {
                    enough if enough >= world => String::new(),
                    enough if at_ms > self.now => {
                        format!("; in {} it goes on with {enough}", self.until(at_ms))
                    }
                    enough => format!("; {enough} are enough"),
                };
                self.nobody_alive(&format!("more have to join: {so_far}{then}"))
            }
            WaitsFor::Members { members, members_min } => self.nobody_alive(&format!(
                "there would be {members} members, and members_min is {members_min}"
            )),
            WaitsFor::LastCall { members, expected, at_ms } => self.nobody_alive(&format!(
                "last call: there would be {members} members, and {expected} were there before; in {} it \
                 goes on without the others",
                self.until(at_ms)
            )),
            WaitsFor::Quorum { arrived, min } => format!("{arrived} of at least {min} are there"),
            WaitsFor::Majority { arrived, living } => format!(
                "{arrived} of the {living} that live of the latest one are there, and more than half have to be"
            ),
            WaitsFor::Release { holders, ended, free_at_ms, revoked } => {
                let those = if holders == 1 { "process holds" } else { "processes hold" };
                let what = if revoked { "a revoked generation" } else { "the present generation" };
                let next = match free_at_ms {
                    Some(at) => format!("; in {} they count as stopped", self.until(at)),
                    None if ended > 0 => {
                        format!("; {ended} of them ended, and nobody saw them exit: see `comm show`")
                    }
                    None => String::new(),
                };
                format!("{holders} {those} {what}{next}")
            }
            WaitsFor::Settle { at_ms } => {
                format!("enough are there; in {} it goes on", self.until(at_ms))
            }
        };
        Some(needs)
    }

    /// What is needed, and the processes that have gone, if that is why.
    fn nobody_alive(&self, needed: &str) -> String {
        let gone: Vec<&ProcessInfo> =
            self.processes.iter().filter(|one| one.end.is_some()).collect();
        if gone.is_empty() || self.round.missing_count > 0 {
            return needed.to_owned();
        }
        let is_clean =
            |one: &&ProcessInfo| one.end.as_ref().is_some_and(|end| end.cause.is_clean());
        let advice = match gone.iter().all(is_clean) {
            true => "their loop is over: start all of them again, or open a new run",
            false => "start them again",
        };
        let states = gone.iter().filter_map(|one| {
            let end = one.end.as_ref()?;
            Some((one.process, format!("{} {} ago", end.cause, self.since(end.at_ms))))
        });
        let gone = grouped(states, gone.len());
        format!("nobody else is alive; {needed}; it waits for {gone}; {advice}")
    }

    fn state(&self, missing: &Missing) -> String {
        let known = self.processes.iter().find(|one| one.process == missing.process);
        let since = self.since(missing.since_ms);
        match &missing.state {
            ProcessState::Alive { role, .. } => {
                let role = if *role == Role::Standby { "a standby" } else { "alive" };
                let elsewhere = known.and_then(|one| one.waits_in.first());
                let elsewhere = elsewhere.map(|round| format!(", waits for {}", purpose(round)));
                let host = &missing.host;
                format!("{role} on {host}, joined {since} ago{}", elsewhere.unwrap_or_default())
            }
            ProcessState::Ended { cause, .. } => format!("{cause} {since} ago"),
            ProcessState::NeverJoined => "never joined".to_owned(),
        }
    }

    fn until(&self, at: LogTime) -> String {
        span(at.saturating_sub(self.now))
    }

    fn since(&self, at: LogTime) -> String {
        span(self.now.saturating_sub(at))
    }
}

/// What a call waits for.
pub(crate) fn purpose(round: &Blob) -> String {
    let name = round.to_string();
    match name.split_once(':') {
        _ if name == ADVANCE_ROUND => "the next iteration".to_owned(),
        Some(("vote", tag)) => format!("vote {tag:?}"),
        Some(("atomic", name)) => format!("atomic block {name:?}"),
        _ => format!("round {name:?}"),
    }
}

/// The log line: which process waits, for how long, and for what.
pub(crate) fn waits(who: ProcessId, scope: &Scope, waited: Duration, what: &str) -> String {
    let waited = span_of(waited);
    format!("process {who} of {} has waited {waited} for {what}", place(scope))
}

/// The command that shows more of a job.
pub(crate) fn more(scope: &Scope) -> String {
    format!("`holdfast why --job {}` shows more", scope.job)
}

/// An incarnation goes on that holds the number which another one wants.
pub(crate) fn held(
    participant: &ProcessInfo,
    now: LogTime,
    scope: &Scope,
    left: Option<Duration>,
) -> String {
    let ProcessInfo { process, incarnation, host, since_ms, .. } = participant;
    let joined = span(now.saturating_sub(*since_ms));
    let left = left.map(|left| format!(" up to {}", span_of(left))).unwrap_or_default();
    format!(
        "process {process} of {} is held on host {host} (incarnation {incarnation}, alive, joined \
         {joined} ago): waiting{left} for its end, which for a killed one is that of its lease; end it \
         there, or give this process another number (RANK); `takeover` replaces it at once",
        place(scope)
    )
}

/// The job, and the run if there is one, in words.
pub(crate) fn place(Scope { job, run }: &Scope) -> String {
    match run {
        Some(run) => format!("job {job}, run {run}"),
        None => format!("job {job}"),
    }
}

/// Processes by what there is to say of them, the first of them first.
fn grouped(states: impl Iterator<Item = (ProcessId, String)>, count: usize) -> String {
    let mut groups: BTreeMap<String, Vec<ProcessId>> = BTreeMap::new();
    for (process, state) in states {
        groups.entry(state).or_default().push(process);
    }
    let mut groups: Vec<(Vec<ProcessId>, String)> =
        groups.into_iter().map(|(state, processes)| (processes, state)).collect();
    groups.sort();
    let named: usize = groups.iter().take(GROUPS_MAX).map(|(processes, _)| processes.len()).sum();
    let shown = groups.iter().take(GROUPS_MAX).map(|(processes, state)| {
        let of = if processes.len() == 1 { "process" } else { "processes" };
        format!("{of} {} ({state})", numbers(processes))
    });
    let mut words = shown.collect::<Vec<_>>().join(", ");
    if count > named {
        words += &format!(" and {} more", count - named);
    }
    words
}

/// `0, 1 and 2`; `0-5 and 7`.
fn numbers(processes: &[ProcessId]) -> String {
    let mut stretches: Vec<(ProcessId, ProcessId)> = Vec::new();
    for &process in processes {
        match stretches.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(process) => *last = process,
            _ => stretches.push((process, process)),
        }
    }
    let mut parts: Vec<String> = Vec::new();
    for (first, last) in stretches {
        match last - first {
            0..=2 => parts.extend((first..=last).map(|n| n.to_string())),
            _ => parts.push(format!("{first}-{last}")),
        }
    }
    match parts.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => parts.concat(),
    }
}

pub(crate) fn span_of(duration: Duration) -> String {
    span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// `41 s`, `3 min`, `2 h`.
fn span(ms: u64) -> String {
    // A wait of 900 ms counts as one of a second.
    match ms.saturating_add(500) / 1_000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}

#[cfg(test)]
mod tests;
