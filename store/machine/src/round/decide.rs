//! The rule that closes rounds: a pure function of a round's facts.
//!
//! The machine calls it after each command, `Read::Rounds` to report what a round
//! waits for, and `Read::Plan` to compute a hypothetical outcome.

use holdfast_api::{AtDeadline, FailedWhy, LogTime, Policy, RevokeCause, Rule, WaitsFor};

/// Without a last call, standbys are promoted this long after the earliest
/// registration, in milliseconds of log time.
pub(crate) const PROMOTION_MS: u64 = 60_000;

/// The facts of a round, in numbers.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub rule: Rule,
    /// When its patience ends, and how.
    pub deadline: Option<(LogTime, AtDeadline)>,
    /// Log time up to which timers have fired, by the commands so far.
    pub reached: LogTime,
    pub is_advance: bool,
    /// How many arrivals count.
    pub arrived: u32,
    /// Processes that it waits for.
    pub missing: u32,
    /// Standbys that have arrived.
    pub standbys: u32,
    /// Among all active processes: their state.
    pub group: Option<Group>,
    /// For a quorum: the time since which it is one.
    pub enough_since: Option<LogTime>,
    /// For a quorum: the latest one of its kind.
    pub former: Option<Former>,
    /// For a held round whose generation has holders: those holders.
    pub holders: Option<Holders>,
    /// For a held round: the arrivals want different things.
    pub specs_differ: bool,
    /// The held generation that it builds on is over.
    pub is_over: bool,
    /// At a deadline that evicts: the facts without the absent, under the
    /// policy that governs before, and the one that governs after.
    pub without_absent: Option<Box<[Facts; 2]>>,
}

/// State of all active processes.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub world: u32,
    pub members_min: u32,
    pub last_call_ms: u64,
    /// How many of the missing wait in an advance.
    pub advancing: u32,
    /// Whether anybody waits in an advance.
    pub somebody_advances: bool,
    pub phase: Phase,
}

#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// Nobody is a member.
    Forming {
        /// The earliest registration, or the end of the last member.
        since: LogTime,
    },
    Formed {
        /// Members of the latest closing, less those that left in order.
        expected: u32,
        /// The latest end of a member that was a fault.
        last_fault: LogTime,
    },
}

/// The living members of the latest quorum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Former {
    pub arrived: u32,
    pub living: u32,
    /// How many of those that have not arrived wait in an advance.
    pub advancing: u32,
}

/// Holders of the present generation of a held round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holders {
    /// Those that have not arrived, and do not count as stopped.
    pub missing: u32,
    /// How many of them have ended with an exit that was not seen.
    pub ended: u32,
    /// When all of them count as stopped; none if that needs a report.
    pub free_at: Option<LogTime>,
    /// Whether anybody holds it, arrived or not.
    pub is_held: bool,
    pub is_revoked: bool,
    /// It has as many members as it may: those that wait cannot join.
    pub is_full: bool,
}

/// The decision on a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It closes with all arrivals that count, and this many of the standbys that
    /// have arrived, the lowest first.
    Close {
        promoted: u32,
    },
    /// Those missing end, then it closes.
    Evict {
        promoted: u32,
    },
    Fail(FailedWhy),
    /// The held generation ends.
    Revoke(RevokeCause),
    Wait {
        what: WaitsFor,
        /// The next time that may change something.
        again: Option<LogTime>,
    },
}

/// Why a round does not close.
enum Open {
    Waits(WaitsFor),
    Regroup,
    Revoke,
    SpecMismatch,
}

/// The earliest time for its next evaluation.
#[derive(Default)]
struct Times(Option<LogTime>);

impl Times {
    fn note(&mut self, at: LogTime) {
        self.0 = Some(self.0.map_or(at, |before| before.min(at)));
    }
}

impl Group {
    /// The world that it gathers for.
    fn full(&self) -> u32 {
        self.world.max(self.least())
    }

    fn least(&self) -> u32 {
        self.members_min.max(1)
    }

    /// A group in which no process waits in an advance.
    pub fn of(policy: &Policy, phase: Phase) -> Group {
        let Policy { world, members_min, last_call_ms, .. } = policy;
        Group {
            world: *world,
            members_min: *members_min,
            last_call_ms: *last_call_ms,
            advancing: 0,
            somebody_advances: false,
            phase,
        }
    }

    /// While it has no member: when fewer than the world may be enough.
    fn forming_until(&self, since: LogTime) -> LogTime {
        let patience = if self.last_call_ms == 0 { PROMOTION_MS } else { self.last_call_ms };
        since.saturating_add(patience)
    }
}

/// Decides on a round.
pub(crate) fn decide(facts: &Facts) -> Decision {
    if facts.is_over {
        return Decision::Fail(FailedWhy::Revoked);
    }
    let mut times = Times::default();
    let what = match ready(facts, false, &mut times) {
        Ok(promoted) => return Decision::Close { promoted },
        Err(Open::Regroup) => return Decision::Fail(FailedWhy::Regroup),
        Err(Open::Revoke) => return Decision::Revoke(RevokeCause::Membership),
        Err(Open::SpecMismatch) => return Decision::Fail(FailedWhy::SpecMismatch),
        Err(Open::Waits(what)) => what,
    };
    match facts.deadline {
        Some((at, _)) if at > facts.reached => times.note(at),
        // A second one fails the calls: after the revocation the time starts again.
        Some(_) if facts.holders.is_some_and(|held| held.is_held && !held.is_revoked) => {
            return Decision::Revoke(RevokeCause::Deadline);
        }
        Some((_, then)) => return at_deadline(facts, then),
        None => {}
    }
    Decision::Wait { what, again: times.0 }
}

/// Its patience has ended.
fn at_deadline(facts: &Facts, then: AtDeadline) -> Decision {
    let ready = |facts| ready(facts, true, &mut Times::default()).ok();
    let most = u64::from(facts.arrived) * 2 > u64::from(facts.arrived) + u64::from(facts.missing);
    if then == AtDeadline::Evict
        && facts.missing > 0
        && most
        && let Some([before, after]) = facts.without_absent.as_deref()
        && ready(before).is_some()
        && let Some(promoted) = ready(after)
    {
        return Decision::Evict { promoted };
    }
    match ready(facts) {
        Some(promoted) => Decision::Close { promoted },
        None => Decision::Fail(FailedWhy::Deadline),
    }
}

/// How many standbys are promoted with the closing, or why it does not close.
/// `cut`: it no longer waits for the lost, or for more.
fn ready(facts: &Facts, cut: bool, times: &mut Times) -> Result<u32, Open> {
    let promoted = gathered(facts, cut, times)?;
    if facts.specs_differ {
        return Err(Open::SpecMismatch);
    }
    let Some(holders) = facts.holders.filter(|holders| holders.missing > 0) else {
        return Ok(promoted);
    };
    let Holders { missing, ended, free_at, is_revoked, is_full, is_held: _ } = holders;
    if !is_revoked && !is_full {
        return Err(Open::Revoke);
    }
    if let Some(at) = free_at {
        times.note(at);
    }
    let (holders, free_at_ms, revoked) = (missing, free_at, is_revoked);
    Err(Open::Waits(WaitsFor::Release { holders, ended, free_at_ms, revoked }))
}

/// The same, for any holder of the generation before.
fn gathered(facts: &Facts, cut: bool, times: &mut Times) -> Result<u32, Open> {
    let Facts { arrived, missing, standbys, .. } = *facts;
    match facts.rule {
        Rule::Quorum { max, settle_ms, .. } => {
            quorum(facts, times)?;
            let since = facts.enough_since.unwrap_or(facts.reached);
            let at = since.saturating_add(settle_ms);
            if arrived >= max || settle_ms == 0 || cut || at <= facts.reached {
                return Ok(0);
            }
            times.note(at);
            Err(Open::Waits(WaitsFor::Settle { at_ms: at }))
        }
        Rule::All => match &facts.group {
            Some(group) => all(facts, group, cut, times),
            None if missing == 0 && arrived + standbys > 0 => Ok(0),
            None => Err(Open::Waits(WaitsFor::Arrivals { missing })),
        },
    }
}

/// Rule `all` over all active processes.
fn all(facts: &Facts, group: &Group, cut: bool, times: &mut Times) -> Result<u32, Open> {
    let Facts { arrived, missing, standbys, reached, is_advance, .. } = *facts;
    let (least, full) = (group.least(), group.full());
    let needed = standbys.min(full.saturating_sub(arrived));
    // Two may wait for each other, one of them in an advance: also while a group
    // forms, where a search found that they wait for ever.
    if !is_advance && group.advancing > 0 {
        return Err(Open::Regroup);
    }
    match group.phase {
        Phase::Forming { since } => {
            let at = group.forming_until(since);
            let is_over = at <= reached;
            let promoted = if is_over { needed } else { 0 };
            let members = arrived + promoted;
            if !is_over && (standbys > 0 || group.last_call_ms > 0) {
                times.note(at);
            }
            if missing > 0 {
                return Err(Open::Waits(WaitsFor::Arrivals { missing }));
            }
            let fewer = is_over && group.last_call_ms > 0 && members >= least;
            if members >= full || fewer {
                return Ok(promoted);
            }
            let enough = if group.last_call_ms > 0 { least } else { full };
            Err(Open::Waits(WaitsFor::World { members, world: full, at_ms: at, enough }))
        }
        Phase::Formed { expected, last_fault } => {
            let members = arrived + needed;
            if !is_advance && group.somebody_advances && members + missing < least {
                return Err(Open::Regroup);
            }
            if missing > 0 || arrived + standbys == 0 {
                return Err(Open::Waits(WaitsFor::Arrivals { missing }));
            }
            if members < least {
                return Err(Open::Waits(WaitsFor::Members { members, members_min: least }));
            }
            let at = last_fault.saturating_add(group.last_call_ms);
            if members < expected && group.last_call_ms > 0 && !cut && at > reached {
                times.note(at);
                return Err(Open::Waits(WaitsFor::LastCall { members, expected, at_ms: at }));
            }
            Ok(needed)
        }
    }
}

/// Whether there are enough for a quorum.
fn quorum(facts: &Facts, times: &mut Times) -> Result<(), Open> {
    let arrived = facts.arrived;
    let least = least(facts, times)?;
    if arrived < least {
        return Err(Open::Waits(WaitsFor::Quorum { arrived, min: least }));
    }
    match facts.former {
        Some(Former { arrived, living, advancing }) if living > 0 && arrived * 2 <= living => {
            // Without those in the advance it is no majority.
            let others = living.saturating_sub(advancing);
            if facts.group.is_some() && others * 2 <= living {
                return Err(Open::Regroup);
            }
            Err(Open::Waits(WaitsFor::Majority { arrived, living }))
        }
        _ => Ok(()),
    }
}

/// Fewest arrivals of a quorum; none if a quorum is impossible.
pub(crate) fn quorum_least(facts: &Facts) -> Option<u32> {
    least(facts, &mut Times::default()).ok()
}

fn least(facts: &Facts, times: &mut Times) -> Result<u32, Open> {
    let Rule::Quorum { min, max, .. } = facts.rule else {
        return Ok(0);
    };
    let Facts { arrived, missing, reached, .. } = *facts;
    let least = min.max(1);
    let Some(group) = &facts.group else {
        return Ok(least);
    };
    let others = missing.saturating_sub(group.advancing);
    match group.phase {
        Phase::Forming { since } => {
            let at = group.forming_until(since);
            let fewer = group.last_call_ms > 0 && at <= reached;
            let last = if group.last_call_ms > 0 { group.least() } else { group.full() };
            if group.advancing > 0 && arrived + others < least.max(last.min(max)) {
                return Err(Open::Regroup);
            }
            if group.last_call_ms > 0 && at > reached {
                times.note(at);
            }
            let needed = if fewer { group.least() } else { group.full() };
            Ok(least.max(needed.min(max)))
        }
        Phase::Formed { .. } => {
            let least = least.max(group.least().min(max));
            if group.somebody_advances && arrived + others < least {
                return Err(Open::Regroup);
            }
            Ok(least)
        }
    }
}

#[cfg(test)]
mod tests;
