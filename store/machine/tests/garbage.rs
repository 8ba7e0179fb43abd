//! Values that take long to free are handed out instead of being freed while applying.

use holdfast_api::*;
use holdfast_machine::Machine;

fn entry(command: Command) -> Entry {
    Entry { time: 1, commands: vec![Proposal { session: None, command }] }
}

#[test]
fn a_deleted_run_is_freed_by_whoever_drops_the_garbage() {
    let (job, run) = (name::default_name(), name::default_name());
    let mut machine = Machine::new();
    let entries = (0..1_000u32)
        .map(|i| KeyValue { key: i.to_string().into(), value: vec![7; 1_000].into() })
        .collect();
    let op = KvOp::MultiPut { entries };
    let written = machine.apply(&entry(Command::Kv { scope: Scope::default(), op }));
    assert!(written.garbage.is_empty());
    let end = RunCommand::End { job: job.clone(), run: run.clone() };
    assert!(machine.apply(&entry(Command::Run(end))).garbage.is_empty());

    let deleted = machine.apply(&entry(Command::Run(RunCommand::Delete { job, run })));
    assert_eq!(deleted.garbage.len(), 1);
    assert_eq!(machine.counts().keys, 0);
}

#[test]
fn a_closed_session_hands_out_its_answers() {
    let mut machine = Machine::new();
    let open = SessionCommand::Open { nonce: Nonce(1, 2), ttl_ms: 60_000, lease: None, job: None };
    machine.apply(&entry(Command::Session(open)));
    let closed =
        machine.apply(&entry(Command::Session(SessionCommand::Close { session: 1.into() })));
    assert_eq!(closed.garbage.len(), 1);
}
