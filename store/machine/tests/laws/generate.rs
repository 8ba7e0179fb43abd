//! Random entries over a world small enough that commands meet.

use holdfast_api::*;
use holdfast_machine::FEATURE_LEVEL;
use proptest::collection::vec;
use proptest::prelude::*;

#[path = "coordination_steps.rs"]
pub mod coordination_steps;
#[path = "held_steps.rs"]
pub mod held_steps;

/// Entries of every kind of command, with and without sessions, under limits
/// that are often reached.
pub fn entries(max: usize) -> impl Strategy<Value = Vec<Entry>> {
    let without_coordination = vec((0u64..8_000, vec(proposal(), 0..4)), 1..max).prop_map(in_time);
    prop_oneof![1 => without_coordination, 2 => coordination_steps::entries(max, proposal())]
}

/// Entries with live processes, disturbed only by failovers.
pub fn coordination_entries(max: usize) -> impl Strategy<Value = Vec<Entry>> {
    let leader = Just(Proposal { session: None, command: leader_started() });
    coordination_steps::entries(max, leader)
}

fn proposal() -> impl Strategy<Value = Proposal> {
    (proptest::option::weighted(0.4, session_ref()), command())
        .prop_map(|(session, command)| Proposal { session, command })
}

/// Entries with neither sessions nor limits: commands on keys and runs alone.
pub fn plain_entries(max: usize) -> impl Strategy<Value = Vec<Entry>> {
    let command = prop_oneof![9 => kv_command(), 2 => run_command()];
    let proposal = command.prop_map(|command| Proposal { session: None, command });
    vec((0u64..8_000, vec(proposal, 1..4)), 1..max).prop_map(in_time)
}

/// Entries in which sessions open, are used, and expire.
pub fn session_entries(max: usize) -> impl Strategy<Value = Vec<Entry>> {
    let used = (session_ref(), kv_command())
        .prop_map(|(place, command)| Proposal { session: Some(place), command });
    let other = prop_oneof![4 => session_command(), 1 => Just(leader_started())]
        .prop_map(|command| Proposal { session: None, command });
    let proposal = prop_oneof![used, other];
    vec((0u64..8_000, vec(proposal, 0..4)), 1..max).prop_map(in_time)
}

/// Stamps that move on, and sometimes lag.
fn in_time(steps: Vec<(u64, Vec<Proposal>)>) -> Vec<Entry> {
    let mut time = 0u64;
    let entry = |(step, commands): (u64, Vec<Proposal>)| {
        if step % 7 == 0 {
            return Entry { time: time.saturating_sub(step), commands };
        }
        time += step;
        Entry { time, commands }
    };
    steps.into_iter().map(entry).collect()
}

fn session_ref() -> impl Strategy<Value = SessionRef> {
    (1u64..5, 1u64..12, 1u64..8).prop_map(|(id, sequence, ack)| SessionRef {
        id: id.into(),
        sequence,
        ack,
    })
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        12 => kv_command(),
        3 => session_command(),
        3 => run_command(),
        2 => cluster_command(),
    ]
}

fn name(names: &'static [&'static str]) -> impl Strategy<Value = Name> {
    proptest::sample::select(names).prop_map(|name| name.parse().unwrap())
}

fn job() -> impl Strategy<Value = Name> {
    name(&["a", "b"])
}

fn run() -> impl Strategy<Value = Name> {
    name(&["default", "r1", "r2", "x"])
}

fn kv_command() -> impl Strategy<Value = Command> {
    let scope = (job(), proptest::option::weighted(0.3, run()));
    (scope, kv_op()).prop_map(|((job, run), op)| Command::Kv { scope: Scope { job, run }, op })
}

fn key() -> impl Strategy<Value = Blob> {
    proptest::sample::select(&["", "a", "b", "k/1", "k/2", "\u{ff}"][..]).prop_map(Blob::from)
}

fn value() -> impl Strategy<Value = Blob> {
    prop_oneof![
        proptest::sample::select(
            &["", "1", "-7", " 12abc", "9223372036854775807", "text", "9223372036854775808"][..]
        )
        .prop_map(Blob::from),
        vec(any::<u8>(), 0..24).prop_map(Blob::from),
    ]
}

fn kv_op() -> impl Strategy<Value = KvOp> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| KvOp::Put { key, value }),
        1 => vec((key(), value()), 0..4).prop_map(|pairs| KvOp::MultiPut {
            entries: pairs.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        }),
        3 => (key(), delta()).prop_map(|(key, delta)| KvOp::Add { key, delta }),
        1 => (key(), delta()).prop_map(|(key, number)| KvOp::Max { key, number }),
        2 => (key(), value(), value()).prop_map(|(key, expected, desired)| {
            KvOp::CompareAndSet { key, expected, desired }
        }),
        2 => (key(), 0u64..20, value()).prop_map(|(key, revision, value)| {
            KvOp::CompareRevisionAndSet { key, revision, value }
        }),
        2 => (key(), value()).prop_map(|(key, value)| KvOp::Append { key, value }),
        2 => key().prop_map(|key| KvOp::Delete { key }),
        3 => (key(), value()).prop_map(|(key, value)| KvOp::QueuePush { key, value }),
        2 => key().prop_map(|key| KvOp::QueuePop { key }),
        2 => (vec(compare(), 0..3), vec(step(), 0..5), vec(step(), 0..3)).prop_map(
            |(compare, then, or_else)| KvOp::Transaction { compare, then, or_else }
        ),
    ]
}

fn delta() -> impl Strategy<Value = i64> {
    prop_oneof![3 => -3i64..4, 1 => any::<i64>()]
}

fn compare() -> impl Strategy<Value = Compare> {
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| Compare::Value { key, value }),
        (key(), 0u64..20).prop_map(|(key, revision)| Compare::Revision { key, revision }),
        (key(), any::<bool>()).prop_map(|(key, exists)| Compare::Exists { key, exists }),
    ]
}

fn step() -> impl Strategy<Value = TransactionOp> {
    prop_oneof![
        key().prop_map(|key| TransactionOp::Get { key }),
        (key(), value()).prop_map(|(key, value)| TransactionOp::Put { key, value }),
        (key(), delta()).prop_map(|(key, delta)| TransactionOp::Add { key, delta }),
        (key(), value()).prop_map(|(key, value)| TransactionOp::Append { key, value }),
        key().prop_map(|key| TransactionOp::Delete { key }),
    ]
}

fn session_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        3 => (0u64..6, 5_000u64..30_000, proptest::option::of(job())).prop_map(
            |(nonce, ttl_ms, job)| {
                SessionCommand::Open { nonce: Nonce(nonce, nonce), ttl_ms, lease: None, job }
            }
        ),
        1 => (1u64..6).prop_map(|session| SessionCommand::KeepAlive { session: session.into() }),
        1 => (1u64..6).prop_map(|session| SessionCommand::Close { session: session.into() }),
        1 => (1u64..6, 0u64..100_000)
            .prop_map(|(session, deadline)| SessionCommand::Expire { session: session.into(), deadline }),
    ]
    .prop_map(Command::Session)
}

fn run_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (job(), proptest::option::of(run()), any::<bool>())
            .prop_map(|(job, run, takeover)| RunCommand::Open { job, run, takeover }),
        (job(), run()).prop_map(|(job, run)| RunCommand::End { job, run }),
        (job(), run()).prop_map(|(job, run)| RunCommand::Delete { job, run }),
        (job(), run(), 0u64..3)
            .prop_map(|(job, run, at)| { RunCommand::Purge { job, run, ended_at: at * 1_000 } }),
        job().prop_map(|job| RunCommand::DeleteJob { job }),
    ]
    .prop_map(Command::Run)
}

fn leader_started() -> Command {
    Command::Cluster(ClusterCommand::LeaderStarted { node: 1 })
}

fn cluster_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        2 => Just(leader_started()),
        1 => Just(Command::Cluster(ClusterCommand::Tick)),
        1 => "[a-z]{0,6}".prop_map(|cluster_id| {
            Command::Cluster(ClusterCommand::Found { cluster_id })
        }),
        2 => limits().prop_map(|limits| Command::Cluster(ClusterCommand::SetLimits { limits })),
        1 => (0..=FEATURE_LEVEL).prop_map(|level| Command::Cluster(ClusterCommand::SetFeatureLevel { level })),
        1 => (1u64..9).prop_map(|node| Command::Cluster(ClusterCommand::RetireNode { node })),
    ]
}

/// Limits around what the other commands need.
fn limits() -> impl Strategy<Value = Limits> {
    (0u64..4, 0u64..40, 0u64..12, 0u64..200, 0u64..3).prop_map(|(few, bytes, keys, much, runs)| {
        Limits {
            key_bytes_max: few,
            value_bytes_max: bytes,
            keys_per_command_max: keys,
            command_bytes_max: much,
            jobs_max: runs,
            runs_per_job_max: runs + 1,
            job_keys_max: keys,
            job_bytes_max: much,
            sessions_max: few,
            session_window: keys,
            session_answer_bytes_max: much * 4,
            session_ttl_ms_min: bytes * 400,
            session_ttl_ms_max: much * 100,
            history_changes_max: keys,
            history_bytes_max: much * 20,
            list_page_max: few,
            coordination: Box::new(coordination_limits(few, bytes, keys)),
            budget: Budget {
                bytes_max: much,
                wait_bytes_max: much,
                job_wait_bytes_max: much,
                ..Budget::default()
            },
        }
    })
}

fn coordination_limits(few: u64, bytes: u64, many: u64) -> CoordinationLimits {
    CoordinationLimits {
        leases_max: few,
        lease_ttl_ms_min: bytes * 40,
        lease_ttl_ms_max: bytes * 400,
        store_lost_ms_max: bytes * 60,
        run_ending_ms: few * 100,
        host_bytes_max: bytes,
        processes_per_run_max: many,
        label_bytes_max: bytes,
        rounds_per_run_max: few,
        quorums_per_run_max: few,
        named_per_run_max: many,
        held_per_job_max: few,
        round_name_bytes_max: few,
        calls_per_process_max: many,
        calls_per_command_max: many,
        payload_bytes_max: bytes,
        run_payload_bytes_max: bytes,
        events_per_job_max: many,
    }
}
