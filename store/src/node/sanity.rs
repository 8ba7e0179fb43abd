//! Refuses, before proposing or parking, what only the leader may propose and
//! what no cluster can work with.

use holdfast_api::process::ENDS_MAX;
use holdfast_api::{
    ClusterCommand, Code, Command, Condition, KvOp, Limits, PIPELINE_BYTES_MAX, PIPELINE_OPS_MAX,
    Problem, ProcessCommand, Proposal, Refusal, Sender, SessionRef,
};

/// Largest `command_bytes_max`: half of the longest frame of a stream.
const COMMAND_BYTES_CEILING: u64 = 32 * 1024 * 1024;

/// Most entries that `list_page_max` may allow.
const LIST_PAGE_CEILING: u64 = 1_000_000;

/// Least that `lease_ttl_ms_min` may be, in milliseconds: renewals need time.
const LEASE_TTL_FLOOR_MS: u64 = 500;

/// Longest time that a run may be ending.
const RUN_ENDING_CEILING_MS: u64 = 24 * 3_600_000;

/// Whether a lease command only names its holder's session.
fn is_beside(place: &SessionRef, command: &Command) -> bool {
    (place.sequence, place.ack) == (0, 0) && matches!(command, Command::Lease(_))
}

/// Refuses what only the leader itself may propose: log time, feature level,
/// node ids and expiries follow from what the nodes see.
pub(crate) fn is_for_clients(proposal: &Proposal) -> Result<(), Problem> {
    if let Some(place) = &proposal.session
        && !is_beside(place, &proposal.command)
        && (place.sequence == 0 || place.ack == 0 || place.ack > place.sequence)
    {
        let why = "a sequence starts at 1, and its acknowledgement is at least 1 and not above it";
        return Err(Problem::refused(Code::InvalidRequest, why));
    }
    if proposal.command.facts().sender == Sender::Leader {
        let why = "only the cluster's leader makes such a command";
        return Err(Problem::refused(Code::InvalidRequest, why));
    }
    match &proposal.command {
        Command::Pipeline { ops, .. } if ops.is_empty() => {
            Err(Problem::refused(Code::InvalidRequest, "a pipeline holds at least one command"))
        }
        Command::Pipeline { ops, .. } if ops.iter().any(KvOp::answers_a_value) => {
            Err(Problem::refused(
                Code::InvalidRequest,
                "a pipeline holds no command that is answered with a value; send it alone",
            ))
        }
        Command::Pipeline { ops, .. } => is_short(ops),
        Command::Process(ProcessCommand::End { ends, .. }) => {
            are_within(&[("ends_max", ends.len(), ENDS_MAX)])
        }
        Command::Cluster(ClusterCommand::SetLimits { limits }) => are_sane(limits),
        _ => Ok(()),
    }
}

/// A pipeline that the state machine would refuse for its length must not enter
/// the log.
fn is_short(ops: &[KvOp]) -> Result<(), Problem> {
    let bytes: usize = ops.iter().map(KvOp::bytes).sum();
    are_within(&[
        ("pipeline_ops_max", ops.len(), PIPELINE_OPS_MAX),
        ("pipeline_bytes_max", bytes, PIPELINE_BYTES_MAX),
    ])
}

/// Refuses the first size that is above its limit.
fn are_within(sizes: &[(&str, usize, usize)]) -> Result<(), Problem> {
    match sizes.iter().find(|(_, size, limit)| size > limit) {
        None => Ok(()),
        Some((what, size, limit)) => {
            let (size, limit) = (*size as u64, *limit as u64);
            Err(Refusal::LimitExceeded { what: (*what).to_owned(), size, limit }.into())
        }
    }
}

/// Checks that a cluster with these limits can still work, and be read and
/// changed.
fn are_sane(limits: &Limits) -> Result<(), Problem> {
    let checks = [
        (limits.session_window >= 1, "session_window must be at least 1"),
        (limits.sessions_max >= 1, "sessions_max must be at least 1"),
        (limits.jobs_max >= 1, "jobs_max must be at least 1"),
        (limits.list_page_max >= 1, "list_page_max must be at least 1"),
        (limits.list_page_max <= LIST_PAGE_CEILING, "list_page_max is at most 1 000 000"),
        (
            limits.coordination.lease_ttl_ms_min <= limits.coordination.lease_ttl_ms_max,
            "life.lease_ttl_ms_min exceeds life.lease_ttl_ms_max",
        ),
        (
            limits.coordination.lease_ttl_ms_min >= LEASE_TTL_FLOOR_MS,
            "life.lease_ttl_ms_min must be at least 500: shorter leases expire while they are renewed",
        ),
        (
            limits.coordination.run_ending_ms <= RUN_ENDING_CEILING_MS,
            "life.run_ending_ms is at most 86 400 000, a day",
        ),
        (
            limits.coordination.calls_per_process_max >= 1
                && limits.coordination.calls_per_command_max >= 1,
            "life.calls_per_process_max and life.calls_per_command_max must be at least 1",
        ),
        (
            limits.coordination.payload_bytes_max <= limits.command_bytes_max,
            "life.payload_bytes_max exceeds command_bytes_max",
        ),
        (
            limits.session_ttl_ms_min <= limits.session_ttl_ms_max,
            "session_ttl_ms_min exceeds session_ttl_ms_max",
        ),
        (
            limits.command_bytes_max <= COMMAND_BYTES_CEILING,
            "command_bytes_max is at most 32 MiB: larger commands do not fit a frame",
        ),
        (
            limits.value_bytes_max <= limits.command_bytes_max,
            "value_bytes_max exceeds command_bytes_max",
        ),
        (
            limits.key_bytes_max <= limits.command_bytes_max,
            "key_bytes_max exceeds command_bytes_max",
        ),
    ];
    match checks.into_iter().find(|(sane, _)| !sane) {
        None => Ok(()),
        Some((_, why)) => Err(Problem::refused(Code::InvalidRequest, why)),
    }
}

/// A wait has the bounds of a command.
pub(crate) fn are_bounded(conditions: &[Condition], limits: &Limits) -> Result<(), Problem> {
    let refuse = |what: &str, size: u64, limit: u64| {
        Err(Refusal::LimitExceeded { what: what.to_owned(), size, limit }.into())
    };
    let count = conditions.len() as u64;
    if count > limits.keys_per_command_max {
        return refuse("keys_per_command_max", count, limits.keys_per_command_max);
    }
    let longest = conditions.iter().map(|c| c.key.len() as u64).max().unwrap_or(0);
    if longest > limits.key_bytes_max {
        return refuse("key_bytes_max", longest, limits.key_bytes_max);
    }
    let bytes = conditions.iter().map(|c| c.key.len() as u64).sum();
    if bytes > limits.command_bytes_max {
        return refuse("command_bytes_max", bytes, limits.command_bytes_max);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Blob, Cause, ProcessEnd, Scope};

    use super::*;

    #[test]
    fn pipelines_hold_something_and_nothing_that_is_answered_with_a_value() {
        let key = Blob::from("k");
        let delete = KvOp::Delete { key: key.clone() };
        let pop = KvOp::QueuePop { key };
        let check = |ops| {
            let command = Command::Pipeline { scope: Scope::default(), ops };
            is_for_clients(&Proposal { session: None, command })
        };
        check(vec![delete.clone()]).expect("it is taken");
        for (ops, words) in [(vec![], "at least one"), (vec![delete, pop], "send it alone")] {
            let problem = check(ops).expect_err("it is refused");
            assert_eq!(problem.code, Code::InvalidRequest);
            assert!(problem.message.contains(words), "{}", problem.message);
        }
    }

    #[test]
    fn pipelines_that_are_too_long_are_refused_before_they_are_logged() {
        let delete = |bytes: usize| KvOp::Delete { key: Blob::from(vec![b'k'; bytes]) };
        let check = |ops| {
            let command = Command::Pipeline { scope: Scope::default(), ops };
            is_for_clients(&Proposal { session: None, command })
        };
        check(vec![delete(1); PIPELINE_OPS_MAX]).expect("it is taken");
        check(vec![delete(PIPELINE_BYTES_MAX / 2); 2]).expect("it is taken");
        for (ops, what) in [
            (vec![delete(0); PIPELINE_OPS_MAX + 1], "pipeline_ops_max"),
            (vec![delete(PIPELINE_BYTES_MAX / 2 + 1); 2], "pipeline_bytes_max"),
        ] {
            let problem = check(ops).expect_err("it is refused");
            assert_eq!(problem.code, Code::LimitExceeded);
            assert!(problem.message.contains(what), "{}", problem.message);
        }
    }

    #[test]
    fn too_many_ends_are_refused_before_they_are_logged() {
        let cause = Cause::Gone;
        let end = ProcessEnd { process: 1, incarnation: 1, cause, exit_seen: true };
        let check = |ends| {
            let command = Command::Process(ProcessCommand::End { lease: 1.into(), ends });
            is_for_clients(&Proposal { session: None, command })
        };
        check(vec![end.clone(); ENDS_MAX]).expect("it is taken");
        let problem = check(vec![end; ENDS_MAX + 1]).expect_err("it is refused");
        assert_eq!(problem.code, Code::LimitExceeded);
        assert!(problem.message.contains("ends_max"), "{}", problem.message);
    }

    #[test]
    fn limits_that_no_cluster_can_work_with_are_refused() {
        assert!(are_sane(&Limits::default()).is_ok());
        let refused = |change: fn(&mut Limits)| {
            let mut limits = Limits::default();
            change(&mut limits);
            are_sane(&limits).expect_err("it is refused").message
        };
        for (change, words) in [
            ((|l| l.coordination.lease_ttl_ms_min = 0) as fn(&mut Limits), "lease_ttl_ms_min"),
            (|l| l.coordination.lease_ttl_ms_max = 1, "lease_ttl_ms_max"),
            (|l| l.coordination.run_ending_ms = u64::MAX, "run_ending_ms"),
            (|l| l.coordination.calls_per_command_max = 0, "calls_per_command_max"),
            (|l| l.session_window = 0, "session_window"),
            (|l| l.list_page_max = u64::MAX, "list_page_max"),
            (|l| l.command_bytes_max = u64::MAX, "command_bytes_max"),
        ] {
            let message = refused(change);
            assert!(message.contains(words), "{message}");
        }
    }
}
