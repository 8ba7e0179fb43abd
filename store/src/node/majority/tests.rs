use holdfast_api::NodeRole;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Node 1 of this many voters; it leads or knows no leader.
fn view(voters: u64, role: NodeRole) -> View {
    View {
        id: 1,
        term: 1,
        leader: None,
        role,
        last_log: 1,
        applied: 1,
        committed: 1,
        snapshot: None,
        nodes: (1..=voters).map(|node| (node, format!("n{node}:1"))).collect(),
        voters: (1..=voters).collect(),
        joint: None,
        matched: BTreeMap::new(),
        heard: BTreeMap::new(),
        quorum_seen: None,
        failed: None,
    }
}

/// The state at second 100, given when each voter was last heard of.
fn judged(voters: u64, heard: &[(NodeId, u32)]) -> Majority {
    let began = Instant::now();
    let mut contacts = Contacts::new(began);
    for (node, second) in heard {
        contacts.note(*node, began + SECOND * *second);
    }
    contacts.judge(&view(voters, NodeRole::Follower), began + SECOND * 100, SILENCE_MAX).unwrap()
}

#[test]
fn the_majority_is_lost_since_the_last_voter_that_it_needs_fell_silent() {
    let whole = judged(3, &[(2, 100), (3, 100)]);
    assert_eq!((whole.needed, whole.answering, whole.lost_ms), (2, 3, None));
    let one_missing = judged(3, &[(2, 40), (3, 100)]);
    assert_eq!((one_missing.answering, one_missing.lost_ms), (2, None));
    let missing = MissingVoter { node: 2, address: "n2:1".to_owned(), silent_ms: 60_000 };
    assert_eq!(one_missing.missing, [missing]);
    let lost = judged(3, &[(2, 40), (3, 65)]);
    assert!(lost.is_lost());
    assert_eq!((lost.answering, lost.lost_ms), (1, Some(35_000)));
    let of_five = judged(5, &[(2, 10), (3, 20), (4, 30), (5, 100)]);
    assert_eq!((of_five.needed, of_five.answering, of_five.lost_ms), (3, 2, Some(70_000)));
}

#[test]
fn nobody_is_silent_for_longer_than_this_node_listens() {
    let unheard = judged(3, &[]);
    assert_eq!(unheard.lost_ms, Some(100_000));
    assert_eq!(unheard.missing.len(), 2);
    let alone = judged(1, &[]);
    assert_eq!((alone.needed, alone.answering, alone.lost_ms), (1, 1, None));
}

#[test]
fn a_follower_hears_the_others_through_its_leader() {
    let began = Instant::now();
    let now = began + SECOND * 50;
    let mut contacts = Contacts::new(began);
    let word = judged(4, &[(2, 100), (3, 70), (4, 100)]);
    contacts.take_word(2, &word, &view(4, NodeRole::Follower), now);
    let known = contacts.judge(&view(4, NodeRole::Follower), now, SILENCE_MAX).unwrap();
    assert_eq!(known.missing, word.missing, "for as long as the leader says");
}

#[test]
fn what_is_committed_shows_a_majority_and_not_more() {
    let began = Instant::now();
    let view = view(5, NodeRole::Follower);
    let mut contacts = Contacts::new(began);
    contacts.note(2, began + SECOND * 10);
    contacts.note(3, began + SECOND * 20);
    contacts.note(4, began + SECOND * 30);
    let judged = |contacts: &Contacts, second: u32| {
        contacts.judge(&view, began + SECOND * second, SILENCE_MAX).unwrap()
    };
    assert!(judged(&contacts, 100).is_lost());
    contacts.note_majority(began + SECOND * 100);
    let known = judged(&contacts, 100);
    let missing: Vec<NodeId> = known.missing.iter().map(|missing| missing.node).collect();
    // Who belonged to it is not known.
    assert_eq!((known.answering, known.lost_ms, missing), (3, None, vec![2, 3, 4, 5]));
    // Nothing more is committed: it is lost again.
    assert_eq!(judged(&contacts, 102).lost_ms, Some(2_000));
}

/// A leader's log lines after its followers have been silent for this long.
fn said(log: &mut Log, silences: [u64; 2], now: Instant) -> Vec<Line> {
    let view = view(3, NodeRole::Leader);
    let mut contacts = Contacts::new(now - SECOND * 1_000);
    let silent: BTreeMap<NodeId, Duration> =
        [(2, SECOND * silences[0] as u32), (3, SECOND * silences[1] as u32)].into();
    for (node, silence) in &silent {
        contacts.note(*node, now - *silence);
    }
    let majority = contacts.judge(&view, now, SILENCE_MAX);
    log.lines(&view, majority.as_ref(), &silent, now)
}

#[test]
fn a_lost_majority_is_one_line_and_then_again_with_growing_pauses() {
    let (mut log, began) = (Log::default(), Instant::now());
    assert_eq!(said(&mut log, [0, 0], began), []);
    let first = said(&mut log, [2, 35], began + SECOND);
    let majority = "the majority is lost: of 3 voters 2 are needed, and 1 answer; not answering: 2 (n2:1) for 2s, 3 (n3:1) for 35s; nothing is written until enough are back: start them with their old data folders";
    assert_eq!(first.last(), Some(&Line::Warn(majority.to_owned())));
    assert_eq!(first.len(), 3, "and one for each follower: {first:?}");
    let mut later = 0;
    for second in 2..=60 {
        later += said(&mut log, [2 + second, 35 + second], began + SECOND * second as u32).len();
    }
    assert_eq!(later, 3, "after 5, 15 and 35 seconds");
    let back = said(&mut log, [0, 0], began + SECOND * 61);
    let info = "the majority is back after 1m: 3 of 3 voters answer".to_owned();
    assert_eq!(back.last(), Some(&Line::Info(info)));
    assert_eq!(said(&mut log, [0, 0], began + SECOND * 62), []);
}

#[test]
fn a_leader_says_once_that_a_follower_is_lost_and_once_that_it_is_back() {
    let (mut log, began) = (Log::default(), Instant::now());
    said(&mut log, [0, 0], began);
    let lost = said(&mut log, [0, 2], began + SECOND * 2);
    assert_eq!(lost, [Line::Warn("voter 3 (n3:1) has not answered for 2s".to_owned())]);
    assert_eq!(said(&mut log, [0, 400], began + SECOND * 400), []);
    let back = said(&mut log, [0, 0], began + SECOND * 402);
    assert_eq!(back, [Line::Info("voter 3 (n3:1) answers again, after 6m 40s".to_owned())]);
}

#[test]
fn a_leader_says_who_came_votes_and_went() {
    let mut log = Members::default();
    let mut said = |view: &View| log.lines(view);
    let mut members = view(3, NodeRole::Leader);
    assert_eq!(said(&members), [], "that it knows its members is no news");
    members.nodes.insert(4, "n4:1".to_owned());
    let added = "node 4 (n4:1) was added as a learner; 3 voters, of which 1 may fail";
    assert_eq!(said(&members), [Line::Info(added.to_owned())]);
    members.voters.insert(4);
    let votes = "node 4 (n4:1) votes now; 4 voters, of which 1 may fail";
    assert_eq!(said(&members), [Line::Info(votes.to_owned())]);
    members.nodes.remove(&3);
    members.voters.remove(&3);
    let removed = "node 3 (n3:1) was removed; 3 voters, of which 1 may fail";
    assert_eq!(said(&members), [Line::Info(removed.to_owned())]);
    members.role = NodeRole::Follower;
    members.voters.remove(&4);
    members.nodes.remove(&4);
    assert_eq!(said(&members), [], "its leader says so");
}
