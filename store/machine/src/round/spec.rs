//! The purpose of a held round: valid terms, and callers that agree.

use holdfast_api::hold::SPEC_BYTES_MAX;
use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{
    Among, Blob, Conclusion, OtherSpec, ProcessId, Refusal, Rule, SpecMismatch, Terms,
};
use imbl::{OrdMap, OrdSet};

use super::{Arrived, Numbers, Round, most_frequent};
use crate::size;

impl Round {
    /// Whether arrivals want different things of a held round: standbys too, any of
    /// which may be needed.
    pub fn specs_differ(&self) -> bool {
        let counted = self.tally.variants.keys();
        let some = if self.tally.standbys > 0 { usize::MAX } else { 0 };
        let others = self.arrivals.values().take(some).map(|arrived| &arrived.numbers);
        let mut specs = counted.chain(others).map(Numbers::spec);
        specs.next().is_some_and(|first| specs.any(|spec| spec != first))
    }

    /// What most arrivals want of a held round.
    pub fn most_frequent_spec(&self) -> Blob {
        let mut specs: OrdMap<Blob, OrdSet<ProcessId>> = OrdMap::new();
        for (process, arrived) in &self.arrivals {
            let spec = arrived.numbers.spec().cloned().unwrap_or_default();
            specs.entry(spec).or_default().insert(*process);
        }
        most_frequent(&specs).cloned().unwrap_or_default()
    }
}

/// How the specs of the arrivals differ.
pub(super) fn mismatch(round: &Round) -> SpecMismatch {
    let most = round.most_frequent_spec();
    let spec = |arrived: &Arrived| arrived.numbers.spec().cloned().unwrap_or_default();
    let others = round.arrivals.iter().map(|(process, arrived)| (*process, spec(arrived)));
    let differing = others.filter(|(_, spec)| *spec != most).take(MISSING_LISTED_MAX);
    let differing = differing.map(|(process, spec)| OtherSpec { process, spec });
    SpecMismatch { differing: differing.collect(), most }
}

/// Terms of a held round that no process could meet.
pub(super) fn check(terms: &Terms) -> Result<(), Refusal> {
    let invalid = |why: &str| Err(Refusal::TermsInvalid { why: why.to_owned() });
    let Terms { among, rule, deadline, conclusion, hold, .. } = terms;
    let Some(hold) = hold else {
        return match conclusion {
            Conclusion::Form => invalid("a round that forms something is held: say how"),
            _ => Ok(()),
        };
    };
    size::within("spec_bytes_max", hold.spec.len() as u64, SPEC_BYTES_MAX)?;
    if !matches!(conclusion, Conclusion::Form | Conclusion::Advance) {
        return invalid("only a round that forms something, or an advance, can be held");
    }
    if matches!(among, Among::Generation(_)) {
        return invalid(
            "a held round is among all active processes or a set: its generations follow each other",
        );
    }
    if hold.stop_ms_max == 0 {
        return invalid("stop_ms_max is at least 1 ms");
    }
    let is_lock = matches!(rule, Rule::Quorum { max: 1, .. });
    match deadline {
        None if !is_lock => {
            invalid("a held round needs a deadline, so that nobody holds it up for ever (60000 ms)")
        }
        Some(_) if is_lock => invalid("a lock has no deadline: withdraw the call"),
        _ => Ok(()),
    }
}
