//! An open round: which processes it waits for, and what happens when.

use std::collections::BTreeMap;

use holdfast_api::{
    Among, AtDeadline, Blob, Differing, Generation, Policy, ProcessId, RoundInfo, WaitsFor,
};
use serde::Serialize;

use super::fit::{Row, Section};
use super::groups::{Group, Known};
use super::held::Holding;
use crate::commands::waits_for::{after, needs, numbers};
use crate::log_time::{LogNow, span};
use crate::output::{printable, shortened};

/// Most differences that are shown to people.
const DIFFERENCES_SHOWN_MAX: usize = 3;

#[derive(Debug, Serialize)]
pub(super) struct Waiting {
    round: Blob,
    generation: Generation,
    among: Among,
    open_ms: u64,
    arrived: u64,
    missing_count: u32,
    /// Missing ones that the cluster did not name.
    unnamed: u32,
    deadline_in_ms: Option<u64>,
    then: Option<AtDeadline>,
    looks_again_in_ms: Option<u64>,
    missing: Vec<Group>,
    /// What it waits for, as the rule that closes it says.
    waits_for: WaitsFor,
    /// The generation before it, if that is held and blocks it.
    holding: Option<Holding>,
    /// What it needs besides those that are missing, in words.
    needs: Option<String>,
    /// Arrivals with numbers that do not govern.
    differing: Vec<Differing>,
    /// How they differ, in words.
    differences: Vec<String>,
}

impl Waiting {
    pub(super) fn of(
        round: &RoundInfo,
        missing: Vec<Group>,
        unnamed: u32,
        holding: Option<Holding>,
        known: &Known<'_>,
        now: LogNow,
    ) -> Waiting {
        let deadline = round.deadline_at_ms;
        let looks_again = round.looks_again_at_ms.filter(|at| Some(*at) != deadline);
        Waiting {
            round: round.round.clone(),
            generation: round.generation,
            among: round.terms.among.clone(),
            open_ms: now.since(round.opened_at_ms),
            arrived: round.arrived.len() as u64,
            missing_count: round.missing_count,
            unnamed,
            deadline_in_ms: deadline.map(|at| now.until(at)),
            then: round.terms.deadline.map(|deadline| deadline.then),
            looks_again_in_ms: looks_again.map(|at| now.until(at)),
            missing,
            waits_for: round.waits_for,
            holding,
            needs: needs(&round.waits_for, now),
            differing: round.differing.clone(),
            differences: differences(round, known),
        }
    }

    /// Missing processes whose main threads have not run Python for some time.
    pub(super) fn hanging(&self) -> impl Iterator<Item = &Group> {
        self.missing.iter().filter(|group| group.main_thread_silent())
    }

    pub(super) fn section(&self) -> Section {
        let (round, generation) = (shortened(&self.round), self.generation);
        let (open, arrived, missing) = (span(self.open_ms), self.arrived, self.missing_count);
        let among = among(&self.among);
        let mut head = format!(
            "round {round}{among} (generation {generation}), open for {open}: {arrived} arrived, {missing} missing"
        );
        if let Some(needs) = &self.needs {
            head.push_str("; ");
            head.push_str(needs);
        }
        if let Some(holding) = &self.holding {
            head.push_str("; ");
            head.push_str(&holding.words());
        }
        for difference in self.differences.iter().take(DIFFERENCES_SHOWN_MAX) {
            head.push_str(&format!("; {difference}"));
        }
        if let Some(more) = self.differences.len().checked_sub(DIFFERENCES_SHOWN_MAX + 1) {
            head.push_str(&format!("; {} more differences, -o json shows all", more + 1));
        }
        head.push_str("; ");
        head.push_str(&match (self.deadline_in_ms, self.then) {
            (Some(ms), Some(AtDeadline::Evict)) => format!(
                "{} those missing are evicted if most have arrived, else all these calls fail",
                after(ms)
            ),
            (Some(ms), _) => format!("{} all these calls fail", after(ms)),
            (None, Some(_)) => "its deadline counts from the first active arrival".to_owned(),
            (None, None) => "it has no deadline".to_owned(),
        });
        let mut rows: Vec<Row> = self.holding.iter().flat_map(Holding::rows).collect();
        // No more arrivals are needed: only the holders have to act.
        if matches!(self.waits_for, WaitsFor::Release { .. }) && !rows.is_empty() {
            return Section { head, rows };
        }
        rows.extend(self.missing.iter().map(Group::missing_row));
        if self.unnamed > 0 {
            let text = format!("and {} more, whom the cluster does not name", self.unnamed);
            rows.push(Row { text, host: None, processes: self.unnamed.into() });
        }
        Section { head, rows }
    }
}

/// Its scope, if not all active processes.
fn among(among: &Among) -> String {
    match among {
        Among::Active => String::new(),
        Among::Set(set) => format!(" among {}", numbers(set.iter().copied())),
        Among::Generation(generation) => format!(" among generation {generation}"),
    }
}

/// Arrivals whose numbers do not govern, and how they differ from those that do:
/// `process 4 has world 4 instead of 3`.
fn differences(round: &RoundInfo, known: &Known<'_>) -> Vec<String> {
    let mut found: BTreeMap<String, Vec<ProcessId>> = BTreeMap::new();
    for Differing { process, fields } in &round.differing {
        let own = known.get(process).map(|info| &info.policy);
        let how = fields.iter().map(|field| difference(field, own, round.policy.as_ref()));
        let how: Vec<String> = how.collect();
        found.entry(how.join(", ")).or_default().push(*process);
    }
    let words = found.into_iter().map(|(how, processes)| {
        let has = if processes.len() == 1 { "has" } else { "have" };
        format!("{} {has} {}", numbers(processes.into_iter()), printable(&how))
    });
    words.collect()
}

fn difference(field: &str, own: Option<&Policy>, governs: Option<&Policy>) -> String {
    match (own.and_then(|own| number(own, field)), governs.and_then(|it| number(it, field))) {
        (Some(own), Some(governs)) if own != governs => {
            format!("{field} {own} instead of {governs}")
        }
        _ => format!("another {field}"),
    }
}

/// A number of a policy by its name; none if that is no number.
fn number(policy: &Policy, field: &str) -> Option<u64> {
    let written = serde_json::to_value(policy).ok()?;
    match written.get(field) {
        Some(value) => value.as_u64(),
        // A field that is not set is left out.
        None if NUMBERS.contains(&field) => Some(0),
        None => None,
    }
}

/// Fields of a policy that are numbers.
const NUMBERS: [&str; 6] =
    ["world", "members_min", "last_call_ms", "active_min", "restarts_max", "restarts_window_ms"];
