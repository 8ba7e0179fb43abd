use holdfast_api::{Among, Arrival, LeaseCommand, LeaseId, RoundCommand, Terms};

use super::*;

#[test]
fn commands_gather_while_an_entry_is_under_way_unless_it_was_full() {
    let mut lane = Lane::default();
    assert!(lane.may_go());
    lane.went(false);
    assert!(!lane.may_go());
    lane.came_back();
    assert!(lane.may_go());
    lane.went(true);
    assert!(lane.may_go(), "more wait than one entry takes");
    lane.went(false);
    lane.came_back();
    assert!(!lane.may_go(), "the second one is under way");
    lane.came_back();
    assert!(lane.may_go());
}

#[test]
fn what_did_not_fit_follows_as_soon_as_the_rest_is_applied() {
    let mut looks = Looks::default();
    looks.proposed(false);
    looks.heard_back(false, true);
    assert!(!looks.now, "all that was due is done");
    // A tick comes before the first one is applied: both hold the same.
    looks.proposed(true);
    looks.proposed(true);
    looks.heard_back(true, true);
    assert!(!looks.now);
    looks.heard_back(true, true);
    assert!(std::mem::take(&mut looks.now));
    // It leads no more, or cannot write: the next tick is early enough.
    looks.proposed(true);
    looks.heard_back(true, false);
    assert!(!looks.now);
    looks.proposed(true);
    looks.heard_back(true, true);
    assert!(looks.now);
}

/// A queue with a ticket of each of these tenants, in this order.
fn waiting_for(
    turns: &[(&str, usize)],
    cost: u64,
    command: impl Fn(&str) -> Command,
) -> queue::Receiver<Ticket> {
    let (sender, receiver) = queue::channel(QUEUE_MAX);
    for &(job, count) in turns {
        for _ in 0..count {
            let command = command(job);
            let size = command.size();
            let proposal = Proposal { session: None, command };
            let ticket = Ticket { proposal, size, done: Box::new(|_| ()) };
            let sent = sender.try_send(Tenant::Job(job.parse().unwrap()), cost, ticket);
            assert!(sent.is_ok());
        }
    }
    receiver
}

#[test]
fn a_flood_of_renewals_delays_neither_those_of_others_nor_what_is_urgent() {
    let keep_alive = |job: &str| {
        let lease: LeaseId = if job == "few" { 2.into() } else { 1.into() };
        Command::Lease(LeaseCommand::KeepAlive { lease })
    };
    let revoke = |_: &str| Command::Lease(LeaseCommand::Revoke { lease: 2.into() });
    let turns = [("many", 4 * ENTRY_COMMANDS_MAX), ("few", 1)];
    let mut waiting = Waiting {
        tickets: waiting_for(&[], 1, revoke),
        urgent: waiting_for(&[("few", 1)], 1, revoke),
        renewals: waiting_for(&turns, RENEWAL_COST, keep_alive),
        has_renewals_left: false,
    };
    let packed = waiting.pack(None, |_| 0);
    assert_eq!(packed.commands.len(), ENTRY_COMMANDS_MAX);
    let place =
        |command: Command| packed.commands.iter().position(|proposal| proposal.command == command);
    assert!(place(keep_alive("few")).is_some_and(|place| place < 32));
    assert!(place(revoke("few")).is_some());

    // The rest does not wait for the tick, and the last entry leaves nothing.
    let mut entries = 1;
    while waiting.has_renewals_left {
        waiting.pack(None, |_| 0);
        entries += 1;
    }
    assert_eq!(entries, 5);
    assert!(waiting.renewals.is_empty());
}

#[test]
fn renewals_for_which_there_was_room_wait_for_the_next_tick() {
    let keep_alive = |_: &str| Command::Lease(LeaseCommand::KeepAlive { lease: 1.into() });
    let mut waiting = Waiting {
        tickets: waiting_for(&[], 1, keep_alive),
        urgent: waiting_for(&[], 1, keep_alive),
        renewals: waiting_for(&[("a", 82)], RENEWAL_COST, keep_alive),
        has_renewals_left: false,
    };
    assert_eq!(waiting.pack(None, |_| 0).commands.len(), 82);
    assert!(!waiting.has_renewals_left);
}

#[test]
fn large_sets_fill_an_entry_before_their_bytes_do() {
    let terms = Terms { among: Among::Set((0..2_000).collect()), ..Terms::default() };
    let arrival = Arrival {
        process: 7,
        incarnation: 1,
        call: 1,
        ack: 1,
        payload: holdfast_api::Blob::default(),
        holds: 0,
    };
    let command = Command::Round(RoundCommand::Arrive {
        lease: 1.into(),
        round: "set".into(),
        terms: Box::new(terms),
        arrivals: vec![arrival],
    });
    let size = command.size();
    assert_eq!(size.steps, 2_001);
    let most = ENTRY_STEPS_MAX.div_ceil(size.steps);
    let bytes = most * size.weight;
    assert!(bytes < ENTRY_BYTES_MAX / 16, "{most} of them, {bytes} bytes");
}
